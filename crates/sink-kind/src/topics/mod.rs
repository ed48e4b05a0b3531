//! Topics of a sink that can be read back, for `tail` and `verify-topic`, and temporary ones, for
//! `cutover` and `bench`, too.

mod round_robin;

use std::fmt;
use std::time::Duration;

use walrelay_failure::Failure;
use walrelay_sink::EventPosition;

pub use round_robin::{InTurns, StreamParts};

/// The position of a record in its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The partition.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
}

/// A record read from a topic.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ReadRecord {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
    /// The name of the record in its store, if that is not the offset, such as the id of an entry in Redis.
    pub entry_id: Option<String>,
    /// The record's timestamp in milliseconds since 1970-01-01 UTC.
    pub timestamp_ms: Option<i64>,
    /// When the record was written to the topic, in milliseconds since 1970-01-01 UTC; `None` if the
    /// topic does not tell.
    pub written_ms: Option<i64>,
    /// The id of the event, if the sink stores it alongside the headers.
    pub event_id: Option<Vec<u8>>,
    /// The position of the event, if the sink stores it alongside the headers.
    pub event_position: Option<EventPosition>,
    /// The key; `None` is null.
    pub key: Option<Vec<u8>>,
    /// The value; `None` is null.
    pub value: Option<Vec<u8>>,
    /// Names and values in their order; a value of `None` is null.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl ReadRecord {
    /// Returns the record's position.
    pub fn position(&self) -> Position {
        Position {
            partition: self.partition,
            offset: self.offset,
        }
    }
}

// Not derived: keys, values and headers must not be logged.
impl fmt::Debug for ReadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadRecord")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .field("entry_id", &self.entry_id)
            .field("timestamp_ms", &self.timestamp_ms)
            .field("written_ms", &self.written_ms)
            .field("event_id_bytes", &self.event_id.as_ref().map(Vec::len))
            .field("event_position", &self.event_position)
            .field("key_bytes", &self.key.as_ref().map(Vec::len))
            .field("value_bytes", &self.value.as_ref().map(Vec::len))
            .field("headers", &self.headers.len())
            .finish()
    }
}

/// A partition that a [`TopicReader`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowedPartition {
    /// The partition's number.
    pub partition: i32,
    /// The offset at which reading starts; 0 if the first record is the first one that the partition
    /// has ever had.
    pub start: i64,
    /// The offset of the next record to be written, when reading started.
    pub end: i64,
}

/// The address of records that a sink is given.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SentTo {
    /// [`Record::topic`](walrelay_sink::Record::topic).
    pub topic: String,
    /// [`Record::routing_key`](walrelay_sink::Record::routing_key); empty if there is none.
    pub routing_key: String,
}

/// Reads the records of topics, and those that follow.
pub trait TopicReader: Send {
    /// Reads one more topic, from the first record at or after `from_ms` (milliseconds since
    /// 1970-01-01 UTC; 0: from the oldest one, `i64::MAX`: from the end). Returns the partitions;
    /// `None` if the topic does not exist.
    ///
    /// **Blocks** for `timeout` at most for each request.
    ///
    /// # Errors
    /// If no server answers, the topic may not be read, or it has no times.
    fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<Vec<FollowedPartition>>, Failure>;

    /// Returns the next record of any partition; `None` if none came in time.
    ///
    /// **Blocks** for `timeout` at most.
    ///
    /// # Errors
    /// If a server refuses to be read from. A lost connection is none.
    fn next(&mut self, timeout: Duration) -> Result<Option<ReadRecord>, Failure>;

    /// Returns true if what is sent to an address is in the followed topic.
    ///
    /// # Errors
    /// If that is not known.
    fn holds(&mut self, topic: &str, sent_to: &SentTo) -> Result<bool, Failure> {
        Ok(topic == sent_to.topic)
    }

    /// Returns the offset up to which a partition was read, including offsets that hold no record
    /// for consumers, such as the markers of Kafka transactions; `None` if it is not known.
    fn position(&self, topic: &str, partition: i32) -> Option<i64> {
        let _ = (topic, partition);
        None
    }
}

/// The topics of a sink that can be read back.
pub trait ReadableTopics: Send + Sync {
    /// Returns a reader, which reads no topic yet. Does not connect.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    fn reader(&self) -> Result<Box<dyn TopicReader>, Failure>;

    /// Returns true if the sink stores the ids of events alongside the headers
    /// ([`ReadRecord::event_id`]).
    fn has_event_ids(&self) -> bool {
        false
    }
}

/// The topics of a sink that can be read back and created for a while.
pub trait SinkTopics: ReadableTopics {
    /// Returns true if a topic has, or had, records.
    ///
    /// **Blocks** for `timeout` at most.
    ///
    /// # Errors
    /// If no server answers.
    fn was_written_to(&self, topic: &str, timeout: Duration) -> Result<bool, Failure>;

    /// Creates a topic that must not exist, and waits until it can be written to.
    ///
    /// **Blocks** for `timeout` at most for each request.
    ///
    /// # Errors
    /// If no server answers, or it refuses.
    fn create(&self, topic: &str, timeout: Duration) -> Result<(), Failure>;

    /// Deletes topics; one that does not exist counts as deleted. Returns those that could not be
    /// deleted.
    ///
    /// **Blocks** for `timeout` at most for each of them.
    fn delete(&self, topics: Vec<String>, timeout: Duration) -> Vec<String>;

    /// Returns the command with which an operator deletes a topic.
    fn delete_command(&self, topic: &str) -> String;
}
