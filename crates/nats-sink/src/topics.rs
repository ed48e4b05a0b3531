//! Reads streams back, for `tail` and `verify-topic`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::Failure;
use walrelay_sink_kind::topics::{
    FollowedPartition, InTurns, ReadRecord, ReadableTopics, SentTo, StreamParts, TopicReader,
};

use crate::client::Login;
use crate::client::jetstream::{Extent, is_stream_name};
use crate::client::read_back::{is_of_subject, read_back};
use crate::reader::{ALL, MAX_COUNT, Server, StreamReader};

/// The streams of a server.
#[derive(Debug, Clone)]
pub(crate) struct NatsTopics {
    pub(crate) login: Arc<Login>,
    /// The longest wait for a sign of the server.
    pub(crate) patience: Duration,
}

impl ReadableTopics for NatsTopics {
    fn reader(&self) -> Result<Box<dyn TopicReader>, Failure> {
        Ok(Box::new(InTurns::new(Streams {
            server: Server::new(&self.login, self.patience)?,
            followed: Vec::new(),
        })))
    }

    fn has_event_ids(&self) -> bool {
        true
    }
}

/// A stream, or a subject of one, that is read.
struct Followed {
    reader: StreamReader,
    /// The subjects of the records that are sent to it.
    sent_to: Vec<String>,
}

/// The streams that are read. An offset is the number of a message in its stream.
struct Streams {
    server: Server,
    followed: Vec<Followed>,
}

impl Streams {
    /// Returns the stream that a topic names, or that has it as a subject, and the subject that is read.
    fn find(&mut self, topic: &str) -> Result<Option<(String, String, Extent)>, Failure> {
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

    fn start(&mut self, topic: &str, from_ms: i64) -> Result<Option<FollowedPartition>, Failure> {
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
            reader: StreamReader::new(topic, stream, subject.clone(), &extent, next, MAX_COUNT),
            sent_to: match &*subject {
                ALL => extent.subjects,
                _ => vec![subject],
            },
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
    ) -> Result<bool, Failure> {
        let reader = &mut self.reader;
        if reader.next() >= reader.end() {
            reader.find_end(server)?;
            if reader.next() >= reader.end() {
                return Ok(false);
            }
        }
        let messages = reader.read(server)?.into_iter();
        read.extend(messages.map(|message| read_back(reader.topic(), message).record));
        Ok(true)
    }
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
    ) -> Result<Option<FollowedPartition>, Failure> {
        self.server.set_patience(timeout);
        self.start(topic, from_ms)
    }

    fn count(&self) -> usize {
        self.followed.len()
    }

    fn read(&mut self, number: usize, read: &mut VecDeque<ReadRecord>) -> Result<(), Failure> {
        let Some(followed) = self.followed.get_mut(number) else {
            return Ok(());
        };
        // Up to the end that is known now: other subjects may be written faster than they are read.
        let end = followed.reader.end();
        while followed.read(&mut self.server, read)?
            && read.is_empty()
            && followed.reader.next() < end
        {}
        Ok(())
    }

    fn next_offset(&self, topic: &str) -> Option<i64> {
        let followed = self.followed.iter().find(|of| of.reader.topic() == topic)?;
        Some(offset(followed.reader.next()))
    }

    fn holds(&mut self, topic: &str, sent_to: &SentTo) -> Result<bool, Failure> {
        let followed = self.followed.iter().find(|of| of.reader.topic() == topic);
        let mut subjects = followed.into_iter().flat_map(|of| &of.sent_to);
        Ok(subjects.any(|filter| is_of_subject(filter, &sent_to.topic)))
    }
}
