//! Reads streams back, for `tail` and `verify-topic`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::topics::{
    FollowedPartition, InTurns, ReadRecord, ReadableTopics, StreamParts, TopicReader,
};
use walrelay_sink::{SinkFailure, ToFailure as _};

use crate::client::Login;
use crate::client::blocking::BlockingClient;
use crate::client::error::ProtocolError;
use crate::client::exchange::ExchangeError;
use crate::client::jetstream::{
    Extent, STREAM_NAMES, StoredMessage, StreamNames, extent, info_subject, is_stream_name,
    kept_request, kept_subject, names_request, next_request, stored_message, stream_names,
};
use crate::client::protocol;
use crate::client::read_back::{is_of_subject, record};
use crate::failures::{not_the_same, of_stream, several_streams};

/// The number of messages that is read at first: each may be as large as an event.
const FIRST_COUNT: u64 = 16;
/// The most messages that are read at once.
const MAX_COUNT: u64 = 256;
/// The bytes of messages that are read at once, if their sizes are those of the ones before.
const TARGET_BYTES: u64 = 1 << 20;
/// The subject that all messages have.
const ALL: &str = ">";

/// The streams of a server.
#[derive(Debug, Clone)]
pub(crate) struct NatsTopics {
    pub(crate) login: Arc<Login>,
    /// The longest wait for a sign of the server.
    pub(crate) patience: Duration,
}

impl ReadableTopics for NatsTopics {
    fn reader(&self) -> Result<Box<dyn TopicReader>, SinkFailure> {
        let client = BlockingClient::new(Arc::clone(&self.login), self.patience);
        let client = client.map_err(|error| error.to_failure())?;
        Ok(Box::new(InTurns::new(Streams {
            server: Server(client),
            followed: Vec::new(),
        })))
    }

    fn has_event_ids(&self) -> bool {
        true
    }
}

/// The questions to a server about its streams.
struct Server(BlockingClient);

impl Server {
    /// Asks about one stream or subject.
    fn ask<T>(
        &mut self,
        topic: &str,
        subject: &str,
        body: Vec<u8>,
        parse: impl Fn(Option<u16>, &[u8]) -> Result<T, ProtocolError>,
    ) -> Result<T, SinkFailure> {
        let answers = self.ask_all(topic, subject, &[body], parse)?;
        let unanswered = || self.failure(topic, ProtocolError("no answer"));
        answers.into_iter().next().ok_or_else(unanswered)
    }

    fn ask_all<T>(
        &mut self,
        topic: &str,
        subject: &str,
        bodies: &[Vec<u8>],
        parse: impl Fn(Option<u16>, &[u8]) -> Result<T, ProtocolError>,
    ) -> Result<Vec<T>, SinkFailure> {
        let answers = self.0.request_all(subject, bodies);
        let answers = answers.map_err(|error| of_stream(topic, &error))?;
        let parsed = answers
            .iter()
            .map(|answer| parse(answer.status, &answer.payload));
        let parsed: Result<_, _> = parsed.collect();
        parsed.map_err(|error| self.failure(topic, error))
    }

    fn failure(&self, topic: &str, error: ProtocolError) -> SinkFailure {
        let error = protocol(&self.0.address(), error);
        of_stream(topic, &ExchangeError::Connection(error))
    }

    fn extent(&mut self, topic: &str, stream: &str) -> Result<Option<Extent>, SinkFailure> {
        let parse = |_, payload: &[u8]| extent(payload);
        self.ask(topic, &info_subject(stream), Vec::new(), parse)
    }

    /// Returns the stream that has a subject; `None` if none has.
    fn stream_of(&mut self, subject: &str) -> Result<Option<String>, SinkFailure> {
        let parse = |status, payload: &[u8]| match stream_names(status, payload) {
            StreamNames::Names(names) => Ok(names),
            StreamNames::Unknown => Err(ProtocolError("no names of streams")),
        };
        let names = self.ask(subject, STREAM_NAMES, names_request(subject), parse)?;
        match <[String; 1]>::try_from(names) {
            Ok([name]) => Ok(Some(name)),
            Err(names) if names.is_empty() => Ok(None),
            Err(names) => Err(several_streams(subject, &names)),
        }
    }

    /// Returns the messages that are there, of those that are asked for.
    fn messages(
        &mut self,
        topic: &str,
        stream: &str,
        bodies: &[Vec<u8>],
    ) -> Result<Vec<StoredMessage>, SinkFailure> {
        let Some(subject) = kept_subject(stream) else {
            return Ok(Vec::new());
        };
        let parse = |_, payload: &[u8]| stored_message(payload);
        let found = self.ask_all(topic, &subject, bodies, parse)?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns the first message with a subject from this number on.
    fn next_message(
        &mut self,
        topic: &str,
        stream: &str,
        seq: u64,
        subject: &str,
    ) -> Result<Option<StoredMessage>, SinkFailure> {
        let found = self.messages(topic, stream, &[next_request(seq, subject)])?;
        Ok(found.into_iter().next())
    }

    /// Returns the first number from which all messages were stored at this time or later. Their times
    /// are taken to rise.
    fn number_at(
        &mut self,
        topic: &str,
        stream: &str,
        extent: &Extent,
        from_ms: i64,
    ) -> Result<u64, SinkFailure> {
        let (mut low, mut high) = (extent.first, extent.last.saturating_add(1));
        while low < high {
            let middle = low + (high - low) / 2;
            match self.next_message(topic, stream, middle, ALL)? {
                Some(message) if message.stored_ms < Some(from_ms) => {
                    low = message.seq.saturating_add(1);
                }
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// A stream, or a subject of one, that is read.
struct Followed {
    topic: String,
    stream: String,
    /// The subject of the messages that are read, which may have wildcards.
    subject: String,
    /// The subjects of the records that are sent to it.
    sent_to: Vec<String>,
    /// The number of the next message.
    next: u64,
    /// The number behind the last message that the stream is known to have.
    end: u64,
    /// The number of messages that is read next.
    count: u64,
}

/// The streams that are read. An offset is the number of a message in its stream.
struct Streams {
    server: Server,
    followed: Vec<Followed>,
}

impl Streams {
    /// Returns the stream that a topic names, or that has it as a subject, and the subject that is read.
    fn find(&mut self, topic: &str) -> Result<Option<(String, String, Extent)>, SinkFailure> {
        if is_stream_name(topic)
            && let Some(extent) = self.server.extent(topic, topic)?
        {
            return Ok(Some((topic.to_owned(), ALL.to_owned(), extent)));
        }
        let Some(stream) = self.server.stream_of(topic)? else {
            return Ok(None);
        };
        let extent = self.server.extent(topic, &stream)?;
        Ok(extent.map(|extent| (stream, topic.to_owned(), extent)))
    }

    fn start(
        &mut self,
        topic: &str,
        from_ms: i64,
    ) -> Result<Option<FollowedPartition>, SinkFailure> {
        let Some((stream, subject, extent)) = self.find(topic)? else {
            return Ok(None);
        };
        // Numbers begin with 1.
        let end = if extent.last == 0 {
            0
        } else {
            extent.last.saturating_add(1)
        };
        let next = match from_ms {
            ..=0 => extent.first,
            i64::MAX => end,
            from_ms => self.server.number_at(topic, &stream, &extent, from_ms)?,
        };
        let start = if next <= 1 { 0 } else { next.min(end) };
        self.followed.push(Followed {
            topic: topic.to_owned(),
            sent_to: match &*subject {
                ALL => extent.subjects,
                _ => vec![subject.clone()],
            },
            stream,
            subject,
            next: next.max(1),
            end: end.max(1),
            count: FIRST_COUNT,
        });
        Ok(Some(FollowedPartition {
            partition: 0,
            start: offset(start),
            end: offset(end),
        }))
    }
}

impl Followed {
    /// Reads some messages. Returns false at the end of the stream.
    fn read(
        &mut self,
        server: &mut Server,
        read: &mut VecDeque<ReadRecord>,
    ) -> Result<bool, SinkFailure> {
        if self.next >= self.end {
            let extent = server.extent(&self.topic, &self.stream)?;
            let last = extent.map(|extent| extent.last);
            if last.is_none_or(|last| last.saturating_add(1) < self.end) {
                return Err(not_the_same(&self.topic));
            }
            self.end = last.unwrap_or_default().saturating_add(1);
            if self.next >= self.end {
                return Ok(false);
            }
        }
        let to = self.end.min(self.next.saturating_add(self.count));
        let bodies: Vec<Vec<u8>> = (self.next..to).map(kept_request).collect();
        let messages = server.messages(&self.topic, &self.stream, &bodies)?;
        let bytes: u64 = messages.iter().map(size).sum();
        let fitting = TARGET_BYTES * messages.len() as u64 / bytes.max(1);
        let fitting = if messages.is_empty() {
            self.count
        } else {
            fitting
        };
        self.count = fitting.clamp(1, MAX_COUNT.min(self.count * 4));
        self.next = to;
        let before = read.len();
        let messages = messages.into_iter();
        let wanted = messages.filter(|found| is_of_subject(&self.subject, &found.kept.subject));
        read.extend(wanted.map(|message| record(&self.topic, message)));
        if read.len() == before {
            // Between two messages many may be deleted, or have other subjects.
            let (topic, stream) = (&self.topic, &self.stream);
            let found = server.next_message(topic, stream, self.next, &self.subject)?;
            let next = found.map_or(self.end, |message| message.seq);
            self.next = next.clamp(self.next, self.end);
        }
        Ok(true)
    }
}

fn size(message: &StoredMessage) -> u64 {
    (message.kept.headers.len() + message.kept.payload.len()) as u64
}

fn offset(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

impl StreamParts for Streams {
    fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<FollowedPartition>, SinkFailure> {
        self.server.0.patience = timeout;
        self.start(topic, from_ms)
    }

    fn count(&self) -> usize {
        self.followed.len()
    }

    fn read(&mut self, number: usize, read: &mut VecDeque<ReadRecord>) -> Result<(), SinkFailure> {
        let Some(followed) = self.followed.get_mut(number) else {
            return Ok(());
        };
        // Up to the end that is known now: other subjects may be written faster than they are read.
        let end = followed.end;
        while followed.read(&mut self.server, read)? && read.is_empty() && followed.next < end {}
        Ok(())
    }

    fn next_offset(&self, topic: &str) -> Option<i64> {
        let followed = self.followed.iter().find(|of| of.topic == topic)?;
        Some(offset(followed.next))
    }

    fn holds(&self, topic: &str, sent_to: &str) -> bool {
        let followed = self.followed.iter().find(|of| of.topic == topic);
        let mut subjects = followed.into_iter().flat_map(|of| &of.sent_to);
        subjects.any(|filter| is_of_subject(filter, sent_to))
    }
}
