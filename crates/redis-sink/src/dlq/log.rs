//! A stream of dead letters as a log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::Failure;
use walrelay_sink::{AnySinkFactory, Record};
use walrelay_sink_kind::dead_letters::{Answer, DlqEntry, DlqLog, DlqRecord, RecordSender};
use walrelay_sink_kind::topics::{Position, ReadRecord};

use super::failure::failure;
use crate::client::Login;
use crate::client::blocking::BlockingClient;
use crate::client::error::{ProtocolError, RedisError};
use crate::client::resp::Reply;
use crate::sink::{EntryId, ReadEntry, newest, read_entries};

/// The entries that are read at once: each may be as large as an event.
const READ_AT_ONCE: &str = "16";

/// Reads a stream of dead letters, and writes to it.
///
/// # Positions
/// An offset is the number of the entry among those that this log has read. The ids of entries have
/// 128 bits, and a stream may lack some.
pub(super) struct StreamLog {
    client: BlockingClient,
    stream: String,
    /// The ids of the entries that were read, by offset.
    ids: Vec<EntryId>,
    sender: RecordSender,
}

impl StreamLog {
    /// Opens the stream; `None` if it does not exist.
    pub(super) fn open(
        login: &Arc<Login>,
        stream: &str,
        patience: Duration,
        factory: AnySinkFactory,
    ) -> Result<Option<Self>, RedisError> {
        let mut log = Self {
            client: BlockingClient::new(Arc::clone(login), patience)?,
            stream: stream.to_owned(),
            ids: Vec::new(),
            sender: RecordSender::new(factory),
        };
        Ok(log.newest()?.map(|_| log))
    }

    /// Returns the newest id that the stream has ever had; `None` if there is no stream.
    fn newest(&mut self) -> Result<Option<EntryId>, RedisError> {
        let info = vec!["XINFO", "STREAM", &self.stream];
        let replies = self.client.read(&self.stream, &[info])?;
        match replies.first() {
            Some(Reply::Error(text)) if text.starts_with(b"ERR no such key") => Ok(None),
            Some(Reply::Error(text)) => Err(self.client.refused(text)),
            Some(reply) => {
                let end = newest(reply).map_err(|error| self.protocol(error))?;
                Ok(Some(end.id))
            }
            None => Err(self.protocol(ProtocolError("no reply"))),
        }
    }

    /// Reads to the end of the stream. An error: it was deleted or recreated since it was read; the next
    /// read starts at its first entry.
    pub(super) fn read_all(&mut self, each: &mut dyn FnMut(DlqEntry)) -> Result<(), RedisError> {
        let newest = self.newest()?;
        if let Some(last) = self.ids.last()
            && newest < Some(*last)
        {
            self.ids.clear();
            let why = "that the stream of dead letters is another one than before";
            return Err(self.protocol(ProtocolError(why)));
        }
        let end = newest.unwrap_or_default().to_string();
        loop {
            if self.ids.last().copied() >= newest {
                return Ok(());
            }
            let begin = match self.ids.last() {
                Some(last) => format!("({last}"),
                None => "-".to_owned(),
            };
            let range = vec!["XRANGE", &self.stream, &begin, &end, "COUNT", READ_AT_ONCE];
            let replies = self.client.read(&self.stream, &[range])?;
            let entries = match replies.first() {
                Some(Reply::Error(text)) => return Err(self.client.refused(text)),
                Some(reply) => read_entries(reply).map_err(|error| self.protocol(error))?,
                None => return Err(self.protocol(ProtocolError("no reply"))),
            };
            // The newest one may have been deleted.
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let offset = self.ids.len();
                self.ids.push(entry.id);
                each(DlqEntry::from_record(self.record(entry, offset)));
            }
        }
    }

    fn record(&self, entry: ReadEntry, offset: usize) -> ReadRecord {
        ReadRecord {
            topic: self.stream.clone(),
            partition: 0,
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            timestamp_ms: entry.timestamp_ms,
            key: entry.key,
            value: entry.value,
            headers: entry.headers,
            ..ReadRecord::default()
        }
    }

    fn fetch_all(
        &mut self,
        positions: &[Position],
    ) -> Result<HashMap<Position, DlqRecord>, RedisError> {
        let mut records = HashMap::new();
        for position in positions {
            let offset = usize::try_from(position.offset).unwrap_or(usize::MAX);
            let Some(id) = self.ids.get(offset).map(EntryId::to_string) else {
                continue;
            };
            let range = vec!["XRANGE", &self.stream, &id, &id];
            let replies = self.client.read(&self.stream, &[range])?;
            let entries = match replies.first() {
                Some(Reply::Error(text)) => return Err(self.client.refused(text)),
                Some(reply) => read_entries(reply).map_err(|error| self.protocol(error))?,
                None => return Err(self.protocol(ProtocolError("no reply"))),
            };
            for entry in entries {
                let record = self.record(entry, offset);
                if let DlqEntry::DlqRecord(dead_letter) = DlqEntry::from_record(record) {
                    records.insert(*position, *dead_letter);
                }
            }
        }
        Ok(records)
    }

    fn protocol(&self, error: ProtocolError) -> RedisError {
        self.client.protocol(error)
    }
}

impl DlqLog for StreamLog {
    /// Ids may be positions, which are no times: nothing is skipped.
    fn start_at(&mut self, _: i64) -> Result<(), Failure> {
        Ok(())
    }

    fn read(&mut self, each: &mut dyn FnMut(DlqEntry)) -> Result<(), Failure> {
        self.read_all(each).map_err(|error| failure(&error))
    }

    fn fetch(&mut self, positions: &[Position]) -> Result<HashMap<Position, DlqRecord>, Failure> {
        self.fetch_all(positions).map_err(|error| failure(&error))
    }

    fn send(&mut self, record: &Record<'_>, patience: Duration) -> Answer {
        self.sender.send(record, patience)
    }
}
