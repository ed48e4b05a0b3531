//! The messages of a subject as a log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::Failure;
use walrelay_sink::{AnySinkFactory, Record};
use walrelay_sink_kind::dead_letters::{Answer, DlqEntry, DlqLog, DlqRecord, RecordSender};
use walrelay_sink_kind::topics::Position;

use super::failure::{dead_letter_failure, transformed};
use crate::client::Login;
use crate::client::jetstream::{Extent, StoredMessage, kept_request};
use crate::client::read_back::{is_of_subject, read_back};
use crate::failures::{is_not_the_same, not_the_same};
use crate::reader::{Server, StreamReader};

/// The messages that are read at once: each may be as large as an event.
const AT_ONCE: usize = 16;

/// Reads the dead letters of a subject, and writes to it. An offset is the number of a message in its
/// stream.
pub(super) struct SubjectLog {
    server: Server,
    subject: String,
    /// `None`: the stream is looked for, and read from its beginning.
    reader: Option<StreamReader>,
    sender: RecordSender,
}

impl SubjectLog {
    /// Opens the stream that has the subject; `None` if none has.
    pub(super) fn open(
        login: &Arc<Login>,
        subject: &str,
        patience: Duration,
        factory: AnySinkFactory,
    ) -> Result<Option<Self>, Failure> {
        let mut log = Self {
            server: Server::new(login, patience)?,
            subject: subject.to_owned(),
            reader: None,
            sender: RecordSender::new(factory),
        };
        log.find_stream().map_err(dead_letter_failure)?;
        Ok(log.reader.is_some().then_some(log))
    }

    fn find_stream(&mut self) -> Result<(), Failure> {
        let subject = &self.subject;
        let Some(stream) = self.server.stream_of(subject)? else {
            return Ok(());
        };
        let extent = self.server.extent(subject, &stream)?;
        let extent = extent.ok_or_else(|| not_the_same(subject))?;
        see_subject(subject, &extent)?;
        let begin = extent.first;
        self.reader = Some(StreamReader::new(
            subject,
            stream,
            subject.clone(),
            &extent,
            begin,
            AT_ONCE as u64,
        ));
        Ok(())
    }

    /// Reads to the end of the stream that it has after the start of the call.
    fn read_all(&mut self, each: &mut dyn FnMut(DlqEntry)) -> Result<(), Failure> {
        if self.reader.is_none() {
            self.find_stream()?;
        } else {
            self.verify()?;
        }
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        // Other subjects may be written faster than they are read.
        let end = reader.end();
        while reader.next() < end {
            for message in reader.read(&mut self.server)? {
                each(entry(&self.subject, message));
            }
        }
        if reader.is_unverified() {
            // A server without the newest messages, or another stream of the name, would have made the
            // reader pass over what it does not have.
            self.verify()?;
        }
        Ok(())
    }

    /// Sees that the stream is the one that was read and has the subject, and asks for its end.
    /// Otherwise it is read again.
    fn verify(&mut self) -> Result<(), Failure> {
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        let verified = reader.verify(&mut self.server);
        let verified = verified.and_then(|extent| see_subject(&self.subject, &extent));
        if verified.as_ref().is_err_and(is_not_the_same) {
            self.reader = None;
        }
        verified
    }

    fn fetch_all(
        &mut self,
        positions: &[Position],
    ) -> Result<HashMap<Position, DlqRecord>, Failure> {
        let mut records = HashMap::new();
        let Some(reader) = &self.reader else {
            return Ok(records);
        };
        for chunk in positions.chunks(AT_ONCE) {
            let numbers = chunk
                .iter()
                .filter_map(|position| u64::try_from(position.offset).ok());
            let bodies: Vec<Vec<u8>> = numbers.map(kept_request).collect();
            let messages = self
                .server
                .messages(&self.subject, reader.stream(), &bodies)?;
            for message in messages {
                if message.kept.subject != self.subject {
                    continue;
                }
                if let DlqEntry::DlqRecord(dead_letter) = entry(&self.subject, message) {
                    records.insert(dead_letter.position, *dead_letter);
                }
            }
        }
        Ok(records)
    }
}

/// Sees that the stream has the subject of dead letters, and they have it in the stream.
fn see_subject(subject: &str, extent: &Extent) -> Result<(), Failure> {
    let mut filters = extent.subjects.iter();
    if extent.transforms {
        Err(transformed(subject))
    } else if filters.any(|filter| is_of_subject(filter, subject)) {
        Ok(())
    } else {
        Err(not_the_same(subject))
    }
}

fn entry(subject: &str, message: StoredMessage) -> DlqEntry {
    let read = read_back(subject, message);
    match DlqEntry::from_record(read.record) {
        DlqEntry::DlqRecord(mut dead_letter) => {
            dead_letter.is_exact = read.is_exact;
            if !read.is_exact {
                // Its line may not be what the event has; a row is kept by it.
                dead_letter.event_id = read.dead_letter_event;
            }
            DlqEntry::DlqRecord(dead_letter)
        }
        other => other,
    }
}

impl DlqLog for SubjectLog {
    /// Skips nothing: the times of messages are those of NATS, whose clock may be behind that of
    /// Postgres.
    fn start_at(&mut self, _: i64) -> Result<(), Failure> {
        Ok(())
    }

    fn read(&mut self, each: &mut dyn FnMut(DlqEntry)) -> Result<(), Failure> {
        self.read_all(each).map_err(dead_letter_failure)
    }

    fn fetch(&mut self, positions: &[Position]) -> Result<HashMap<Position, DlqRecord>, Failure> {
        self.fetch_all(positions).map_err(dead_letter_failure)
    }

    fn send(&mut self, record: &Record<'_>, patience: Duration) -> Answer {
        self.sender.send(record, patience)
    }
}
