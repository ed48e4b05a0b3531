//! Reads a topic as its records come, with the producer's configuration: to measure how long they
//! take. Belongs to no group, commits nothing.

use std::fmt;
use std::time::Duration;

use rdkafka::Offset;
use rdkafka::types::RDKafkaErrorCode;

use crate::dlq::client::{Client, Polled};
use crate::tail::TailedRecord;
use crate::{KafkaConfig, KafkaError};

/// A consumer of one topic, from its beginning.
pub struct Follower {
    client: Client,
}

impl Follower {
    /// Looks up the partitions of `topic`, which must exist, and starts to read.
    ///
    /// **Blocks** for `timeout` at most, and where a token must be got first.
    pub fn open(config: &KafkaConfig, topic: &str, timeout: Duration) -> Result<Self, KafkaError> {
        let client = Client::new(config, topic)?;
        let partitions = client
            .partitions(timeout)?
            .ok_or_else(|| KafkaError::Topic {
                topic: topic.to_owned(),
                code: RDKafkaErrorCode::UnknownTopicOrPartition,
            })?;
        client.assign(partitions.into_iter().map(|p| (p, Offset::Beginning)))?;
        Ok(Self { client })
    }

    /// The next record of any partition; `None` when none came in time. From a lost connection the
    /// client recovers by itself.
    ///
    /// **Blocks** for `timeout` at most.
    pub fn next(&self, timeout: Duration) -> Option<TailedRecord> {
        match self.client.poll_record(timeout) {
            Polled::Entry(record) => Some(record),
            Polled::End(_) | Polled::Nothing | Polled::Complaint(_) => None,
        }
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").finish_non_exhaustive()
    }
}
