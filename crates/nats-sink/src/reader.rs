//! Reads the messages of streams, for dead letters, `tail` and `verify-topic`.

use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure as _};

use crate::client::Login;
use crate::client::blocking::BlockingClient;
use crate::client::error::ProtocolError;
use crate::client::exchange::ExchangeError;
use crate::client::jetstream::{
    Extent, STREAM_NAMES, StoredMessage, StreamNames, extent, info_subject, kept_request,
    kept_subject, names_request, next_request, stored_message, stream_names,
};
use crate::client::protocol;
use crate::client::read_back::is_of_subject;
use crate::failures::{not_the_same, several_streams, stream_failure};

/// The number of messages that is read at first: each may be as large as an event.
const FIRST_COUNT: u64 = 16;
/// The most messages that are read at once for `tail` and `verify-topic`.
pub(crate) const MAX_COUNT: u64 = 256;
/// The bytes of messages that are read at once, if their sizes are those of the ones before.
const TARGET_BYTES: u64 = 1 << 20;
/// The subject that all messages have.
pub(crate) const ALL: &str = ">";

/// The questions to a server about its streams.
pub(crate) struct Server(BlockingClient);

impl Server {
    pub(crate) fn new(login: &Arc<Login>, patience: Duration) -> Result<Self, Failure> {
        let client = BlockingClient::new(Arc::clone(login), patience);
        Ok(Self(client.map_err(|error| error.to_failure())?))
    }

    /// Changes the longest wait for a sign of the server.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.0.patience = patience;
    }

    /// Asks about one stream or subject.
    fn ask<T>(
        &mut self,
        topic: &str,
        subject: &str,
        body: Vec<u8>,
        parse: impl Fn(Option<u16>, &[u8]) -> Result<T, ProtocolError>,
    ) -> Result<T, Failure> {
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
    ) -> Result<Vec<T>, Failure> {
        let answers = self.0.request_all(subject, bodies);
        let answers = answers.map_err(|error| stream_failure(topic, &error))?;
        let parsed = answers
            .iter()
            .map(|answer| parse(answer.status, &answer.payload));
        let parsed: Result<_, _> = parsed.collect();
        parsed.map_err(|error| self.failure(topic, error))
    }

    fn failure(&self, topic: &str, error: ProtocolError) -> Failure {
        let error = protocol(&self.0.address(), error);
        stream_failure(topic, &ExchangeError::Connection(error))
    }

    pub(crate) fn extent(&mut self, topic: &str, stream: &str) -> Result<Option<Extent>, Failure> {
        let parse = |_, payload: &[u8]| extent(payload);
        self.ask(topic, &info_subject(stream), Vec::new(), parse)
    }

    /// Returns the stream that has a subject; `None` if none has.
    pub(crate) fn stream_of(&mut self, subject: &str) -> Result<Option<String>, Failure> {
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

    /// Returns the existing messages, of those asked for.
    pub(crate) fn messages(
        &mut self,
        topic: &str,
        stream: &str,
        bodies: &[Vec<u8>],
    ) -> Result<Vec<StoredMessage>, Failure> {
        let Some(subject) = kept_subject(stream) else {
            return Ok(Vec::new());
        };
        let parse = |_, payload: &[u8]| stored_message(payload);
        let messages = self.ask_all(topic, &subject, bodies, parse)?;
        Ok(messages.into_iter().flatten().collect())
    }

    /// Returns the first message with a subject from this number on.
    pub(crate) fn next_message(
        &mut self,
        topic: &str,
        stream: &str,
        seq: u64,
        subject: &str,
    ) -> Result<Option<StoredMessage>, Failure> {
        let messages = self.messages(topic, stream, &[next_request(seq, subject)])?;
        Ok(messages.into_iter().next())
    }

    /// Returns the first number from which all messages were stored at this time or later. Their times
    /// are taken to rise.
    pub(crate) fn number_at(
        &mut self,
        topic: &str,
        stream: &str,
        extent: &Extent,
        from_ms: i64,
    ) -> Result<u64, Failure> {
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

/// The reason why an end of a stream counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Untaken {
    /// The stream was deleted, or recreated.
    NotTheSame,
    /// The server may lack messages that another one has given, or will give.
    Behind,
}

/// Reads the messages of a stream that have a subject, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct StreamReader {
    /// The name under which the messages are read.
    topic: String,
    stream: String,
    /// The subject of the messages that are read, which may have wildcards.
    subject: String,
    /// When the stream was created, in the words of its server: a recreated one has another time.
    created: String,
    /// The server that has said the end last.
    leader: Option<String>,
    /// The number of the next message.
    next: u64,
    /// The number of the next message when the end was found last.
    found_at: u64,
    /// The most messages that are read at once.
    max_count: u64,
    /// The number behind the last message that the stream is known to have.
    end: u64,
    /// The number of messages that is read next.
    count: u64,
}

impl StreamReader {
    /// Creates a reader that starts with the message of the number `next`.
    pub(crate) fn new(
        topic: &str,
        stream: String,
        subject: String,
        extent: &Extent,
        next: u64,
        max_count: u64,
    ) -> Self {
        Self {
            topic: topic.to_owned(),
            stream,
            subject,
            created: extent.created.clone(),
            leader: extent.leader.clone(),
            next: next.max(1),
            found_at: next.max(1),
            max_count,
            // Numbers begin with 1.
            end: extent.last.saturating_add(1),
            count: FIRST_COUNT,
        }
    }

    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn stream(&self) -> &str {
        &self.stream
    }

    /// Returns the number of the next message.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number behind the last message that the stream is known to have.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Asks for the end of the stream.
    ///
    /// # Errors
    /// If no server answers, or the stream was deleted or recreated. A server of a cluster may be behind
    /// the one that was asked before: its answer changes nothing.
    pub(crate) fn find_end(&mut self, server: &mut Server) -> Result<Extent, Failure> {
        let extent = server.extent(&self.topic, &self.stream)?;
        let end = self.take_end(extent);
        end.map_err(|why| self.failure(server, why))
    }

    /// Returns true if messages were read since the end was found or verified last.
    pub(crate) fn is_unverified(&self) -> bool {
        self.next != self.found_at
    }

    /// Asks for the end, and sees that what was read since it was found last is all that the stream had.
    /// If another server may have given the messages, they are read once more: it may have passed over
    /// those that it lacks.
    ///
    /// # Errors
    /// As [`find_end`](Self::find_end), and if the stream has another leader than when they were read.
    pub(crate) fn verify(&mut self, server: &mut Server) -> Result<Extent, Failure> {
        let extent = server.extent(&self.topic, &self.stream)?;
        let verified = self.take_verified_end(extent);
        verified.map_err(|why| self.failure(server, why))
    }

    fn failure(&self, server: &Server, why: Untaken) -> Failure {
        match why {
            Untaken::NotTheSame => not_the_same(&self.topic),
            Untaken::Behind => {
                server.failure(&self.topic, ProtocolError("the stream changes its leader"))
            }
        }
    }

    fn take_end(&mut self, extent: Option<Extent>) -> Result<Extent, Untaken> {
        let extent = extent.filter(|extent| extent.created == self.created);
        let extent = extent.ok_or(Untaken::NotTheSame)?;
        let end = extent.last.saturating_add(1);
        if end < self.end {
            return Err(match extent.leader {
                Some(_) => Untaken::Behind,
                None => Untaken::NotTheSame,
            });
        }
        self.end = end;
        self.leader.clone_from(&extent.leader);
        self.found_at = self.next;
        Ok(extent)
    }

    fn take_verified_end(&mut self, extent: Option<Extent>) -> Result<Extent, Untaken> {
        let (leader, found_at) = (self.leader.clone(), self.found_at);
        let is_unverified = self.is_unverified();
        let verified = self.take_end(extent).and_then(|extent| {
            if is_unverified && extent.leader != leader {
                Err(Untaken::Behind)
            } else {
                Ok(extent)
            }
        });
        if verified.is_err() {
            (self.next, self.found_at) = (found_at, found_at);
        }
        verified
    }

    /// Reads some messages before the end that is known. A message that the stream does not have is
    /// passed over.
    pub(crate) fn read(&mut self, server: &mut Server) -> Result<Vec<StoredMessage>, Failure> {
        let to = self.end.min(self.next.saturating_add(self.count));
        let bodies: Vec<Vec<u8>> = (self.next..to).map(kept_request).collect();
        let count = std::mem::replace(&mut self.count, 1);
        // After an error, as of a server that cannot send so much, fewer are asked for.
        let mut messages = server.messages(&self.topic, &self.stream, &bodies)?;
        let bytes: u64 = messages.iter().map(size).sum();
        let fitting = match messages.len() {
            0 => count,
            count => TARGET_BYTES * count as u64 / bytes.max(1),
        };
        self.count = fitting.clamp(1, self.max_count.min(count * 4));
        self.next = self.next.max(to);
        messages.retain(|found| is_of_subject(&self.subject, &found.kept.subject));
        if messages.is_empty() && self.next < self.end {
            // Between two messages many may be deleted, or have other subjects.
            let (topic, stream) = (&self.topic, &self.stream);
            let message = server.next_message(topic, stream, self.next, &self.subject)?;
            let next = message.map_or(self.end, |message| message.seq);
            self.next = next.clamp(self.next, self.end);
        }
        Ok(messages)
    }
}

fn size(message: &StoredMessage) -> u64 {
    (message.kept.headers.len() + message.kept.payload.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(last: u64, leader: Option<&str>) -> Extent {
        Extent {
            first: 1,
            last,
            subjects: vec!["s".to_owned()],
            created: "T".to_owned(),
            transforms: false,
            leader: leader.map(str::to_owned),
        }
    }

    /// Makes a reader that has read up to this number from a stream with the last number 9.
    fn reader(next: u64, leader: Option<&str>) -> StreamReader {
        let stream = "S".to_owned();
        let mut reader = StreamReader::new(
            "s",
            stream,
            "s".to_owned(),
            &extent(9, leader),
            1,
            MAX_COUNT,
        );
        reader.next = next;
        reader
    }

    #[test]
    fn what_was_read_before_a_change_of_leader_is_read_once_more() {
        let mut reader = reader(5, Some("a"));
        let of_b = Some(extent(9, Some("b")));
        assert_eq!(reader.take_verified_end(of_b.clone()), Err(Untaken::Behind));
        assert_eq!(reader.next(), 1);
        // An error in the middle of a part does not make it count either.
        reader.next = 7;
        let of_c = Some(extent(9, Some("c")));
        assert_eq!(reader.take_verified_end(of_c), Err(Untaken::Behind));
        assert_eq!(reader.next(), 1);
        // Nothing was read under the former leader.
        reader.take_verified_end(of_b.clone()).unwrap();
        reader.next = 10;
        reader.take_verified_end(of_b).unwrap();
        assert!(!reader.is_unverified());
        assert_eq!(reader.next(), 10);
    }

    #[test]
    fn an_end_that_is_lower_changes_nothing() {
        let mut of_cluster = reader(5, Some("a"));
        let lower = of_cluster.take_end(Some(extent(8, Some("a"))));
        assert_eq!(lower, Err(Untaken::Behind));
        assert_eq!((of_cluster.next(), of_cluster.end()), (5, 10));
        // One server that has lost messages has another stream.
        let lower = reader(5, None).take_end(Some(extent(8, None)));
        assert_eq!(lower, Err(Untaken::NotTheSame));
        let other = Extent {
            created: "U".to_owned(),
            ..extent(20, None)
        };
        for end in [None, Some(other)] {
            assert_eq!(reader(5, None).take_end(end), Err(Untaken::NotTheSame));
        }
    }
}
