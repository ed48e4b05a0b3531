use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink_kind::topics::{FollowedPartition, ReadRecord, TopicReader};

use super::{Consumer, Polled};
use crate::config::{KafkaConfig, KafkaOptions};
use crate::error::KafkaError;

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads the records of topics, from the first record or from a time on, and those that follow.
pub struct Tail {
    consumer: Consumer,
}

impl Tail {
    /// Starts reading `topics`, which must exist, from brokers without encryption and
    /// authentication. Fetches so often that the mock broker, too, returns records at once.
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

    /// Makes a reader with the producer's configuration, which reads no topic yet.
    ///
    /// **Blocks** if a token must be fetched first.
    pub fn with_config(config: &KafkaConfig) -> Result<Self, KafkaError> {
        Self::start(config, &[], Duration::ZERO, &[])
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
                .ok_or_else(|| KafkaError::for_topic(topic, Code::UnknownTopicOrPartition))?;
            let beginning = partitions.into_iter().map(|p| (p, Offset::Beginning));
            consumer.assign_also(topic, beginning)?;
        }
        Ok(Self { consumer })
    }

    /// Reads one more topic, from the first record at or after `from_ms` (milliseconds since
    /// 1970-01-01 UTC; 0: from the oldest one, `i64::MAX`: from the end). Returns the partitions;
    /// `None` if the topic does not exist.
    ///
    /// **Blocks** for `timeout` at most for each request: three, and two per partition.
    ///
    /// # Errors
    /// Also if the brokers do not search by time, as the embedded broker does not.
    pub fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<Vec<FollowedPartition>>, KafkaError> {
        let Some(partitions) = self.consumer.partitions(topic, timeout)? else {
            return Ok(None);
        };
        let followed = self
            .consumer
            .offsets_at(topic, partitions.into_iter(), from_ms, timeout)?;
        let is_search = from_ms > 0 && from_ms < i64::MAX;
        if is_search && followed.iter().all(|of| of.start == of.end) {
            self.consumer.check_search(topic, &followed, timeout)?;
        }
        let from = followed
            .iter()
            .map(|of| (of.partition, Offset::Offset(of.start)));
        self.consumer.assign_also(topic, from)?;
        Ok(Some(followed))
    }

    /// Waits for the next record of any partition; `None` if none came in time.
    ///
    /// **Blocks** for `timeout` at most.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<ReadRecord>, KafkaError> {
        match self.consumer.poll(timeout) {
            Polled::Record(record) => Ok(Some(*record)),
            // The client recovers from a lost connection by itself.
            Polled::End(_)
            | Polled::Nothing
            | Polled::Error(
                Code::BrokerTransportFailure | Code::AllBrokersDown | Code::OperationTimedOut,
            ) => Ok(None),
            Polled::Error(code) => Err(KafkaError::Tail(ClientError::MessageConsumption(code))),
        }
    }
}

impl TopicReader for Tail {
    fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<Vec<FollowedPartition>>, Failure> {
        let followed = self.follow(topic, from_ms, timeout);
        followed.map_err(|error| error.to_failure())
    }

    fn next(&mut self, timeout: Duration) -> Result<Option<ReadRecord>, Failure> {
        self.next(timeout).map_err(|error| error.to_failure())
    }

    fn position(&self, topic: &str, partition: i32) -> Option<i64> {
        self.consumer.position(topic, partition)
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").finish_non_exhaustive()
    }
}
