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

/// Reads topics from their beginning on, as their records come: for demonstrations, benchmarks and tests.
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
