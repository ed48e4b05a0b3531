use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::{Consumer, Polled, TailedRecord};
use crate::config::{KafkaConfig, KafkaOptions};
use crate::error::KafkaError;

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A partition that a [`Tail`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowedPartition {
    /// Its number.
    pub partition: i32,
    /// The offset that reading begins at.
    pub start: i64,
    /// The offset that the next record would have had when reading began.
    pub end: i64,
}

/// Reads topics as their records come, from their beginning or from a time on.
pub struct Tail {
    consumer: Consumer,
}

impl Tail {
    /// Looks up the partitions of `topics`, which must exist, and starts to read, from brokers that ask for neither
    /// encryption nor credentials. Asks for records so often that the mock broker, too, gives them at once.
    ///
    /// **Blocks** for `timeout` at most.
    pub fn open(
        bootstrap_servers: &str,
        topics: &[&str],
        timeout: Duration,
    ) -> Result<Self, KafkaError> {
        let servers = ("bootstrap.servers".to_owned(), bootstrap_servers.to_owned());
        let config = KafkaConfig::new(BTreeMap::from([servers]), KafkaOptions::default());
        let config = config.map_err(|error| KafkaError::Create {
            reason: error.to_string(),
        })?;
        let at_once = [("fetch.wait.max.ms", "1"), ("fetch.queue.backoff.ms", "1")];
        Self::start(&config, topics, timeout, &at_once)
    }

    /// The same with the producer's configuration.
    ///
    /// **Blocks** for `timeout` at most, and where a token must be got first.
    pub fn with_config(
        config: &KafkaConfig,
        topics: &[&str],
        timeout: Duration,
    ) -> Result<Self, KafkaError> {
        Self::start(config, topics, timeout, &[])
    }

    fn start(
        config: &KafkaConfig,
        topics: &[&str],
        timeout: Duration,
        more: &[(&str, &str)],
    ) -> Result<Self, KafkaError> {
        let consumer = Consumer::new(
            config,
            &[more, &[("enable.partition.eof", "false")]].concat(),
        )?;
        // The sum must not overflow.
        let deadline = Instant::now() + timeout.min(A_DAY);
        for topic in topics {
            let left = deadline.saturating_duration_since(Instant::now());
            let partitions = consumer
                .partitions(topic, left)?
                .ok_or_else(|| KafkaError::of_topic(topic, Code::UnknownTopicOrPartition))?;
            let beginning = partitions.into_iter().map(|p| (p, Offset::Beginning));
            consumer.assign_also(topic, beginning)?;
        }
        Ok(Self { consumer })
    }

    /// Reads one more topic, from the first record of that time on, in milliseconds since 1970. Gives the partitions
    /// with the offsets that it begins at and that the next record would have had; `None`: there is no such topic.
    ///
    /// **Blocks** for some times `timeout` at most.
    pub fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<Vec<FollowedPartition>>, KafkaError> {
        let Some(partitions) = self.consumer.partitions(topic, timeout)? else {
            return Ok(None);
        };
        let starts = self
            .consumer
            .offsets_at(topic, partitions.into_iter(), from_ms, timeout)?;
        let mut followed = Vec::new();
        for (partition, start) in starts {
            let (_, end) = self.consumer.ends(topic, partition, timeout)?;
            let start = match start {
                Offset::Offset(offset) => offset,
                _ => end,
            };
            followed.push(FollowedPartition {
                partition,
                start,
                end,
            });
        }
        let from = followed
            .iter()
            .map(|of| (of.partition, Offset::Offset(of.start)));
        self.consumer.assign_also(topic, from)?;
        Ok(Some(followed))
    }

    /// The next record of any partition; `None` when none came in time.
    ///
    /// **Blocks** for `timeout` at most.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<TailedRecord>, KafkaError> {
        match self.consumer.poll(timeout) {
            Polled::Record(record) => Ok(Some(record)),
            // From a lost connection the client recovers by itself.
            Polled::End(_)
            | Polled::Nothing
            | Polled::Complaint(
                Code::BrokerTransportFailure | Code::AllBrokersDown | Code::OperationTimedOut,
            ) => Ok(None),
            Polled::Complaint(code) => Err(KafkaError::Tail(ClientError::MessageConsumption(code))),
        }
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").finish_non_exhaustive()
    }
}
