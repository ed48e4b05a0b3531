//! A consumer that shows what arrives, for demonstrations: reads whole topics from the beginning,
//! belongs to no group, commits nothing.

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};

use crate::KafkaError;
use crate::client_log::{self, Repetitions};

/// A record as the broker has it.
#[derive(Clone, PartialEq, Eq)]
pub struct TailedRecord {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp_ms: Option<i64>,
    /// The key; `None` is null.
    pub key: Option<Vec<u8>>,
    /// The value; `None` is null.
    pub value: Option<Vec<u8>>,
    /// Names and values in their order; a value of `None` is null.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

// By hand: no values in a log.
impl fmt::Debug for TailedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TailedRecord")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .field("timestamp_ms", &self.timestamp_ms)
            .field("key_bytes", &self.key.as_ref().map(Vec::len))
            .field("value_bytes", &self.value.as_ref().map(Vec::len))
            .field("headers", &self.headers.len())
            .finish()
    }
}

/// Reads topics from their beginning on.
pub struct Tail {
    consumer: BaseConsumer<Context>,
}

impl Tail {
    /// Looks up the partitions of `topics`, which must exist, and starts to read.
    ///
    /// **Blocks** for `timeout` at most.
    pub fn open(
        bootstrap_servers: &str,
        topics: &[&str],
        timeout: Duration,
    ) -> Result<Self, KafkaError> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap_servers)
            .set("client.id", "walrelay-tail")
            // librdkafka assigns nothing without one; no member of it ever joins.
            .set("group.id", "walrelay-tail")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("fetch.wait.max.ms", "1")
            .set("fetch.queue.backoff.ms", "1");
        let consumer: BaseConsumer<Context> = config
            .create_with_context(Context(Repetitions::default()))
            .map_err(KafkaError::Tail)?;
        // The sum must not overflow.
        let deadline = Instant::now() + timeout.min(Duration::from_secs(24 * 60 * 60));
        let mut assignment = TopicPartitionList::new();
        for topic in topics {
            for partition in 0..partitions(&consumer, topic, deadline)? {
                assignment
                    .add_partition_offset(topic, partition, Offset::Beginning)
                    .map_err(KafkaError::Tail)?;
            }
        }
        consumer.assign(&assignment).map_err(KafkaError::Tail)?;
        Ok(Self { consumer })
    }

    /// The next record of any partition; `None` when none came in time.
    ///
    /// **Blocks** for `timeout` at most.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<TailedRecord>, KafkaError> {
        match self.consumer.poll(timeout) {
            Some(Ok(message)) => Ok(Some(own(&message))),
            // From a lost connection the client recovers by itself.
            None
            | Some(Err(ClientError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::OperationTimedOut,
            ))) => Ok(None),
            Some(Err(error)) => Err(KafkaError::Tail(error)),
        }
    }
}

fn partitions(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    deadline: Instant,
) -> Result<i32, KafkaError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let metadata = consumer
        .fetch_metadata(Some(topic), left)
        .map_err(KafkaError::Tail)?;
    let found = metadata.topics().iter().find(|t| t.name() == topic);
    match found.map(|t| (t.error(), t.partitions().len())) {
        Some((None, partitions)) if partitions > 0 => Ok(partitions as i32),
        Some((Some(code), _)) => Err(KafkaError::Topic {
            topic: topic.to_owned(),
            code: code.into(),
        }),
        _ => Err(KafkaError::Topic {
            topic: topic.to_owned(),
            code: RDKafkaErrorCode::UnknownTopicOrPartition,
        }),
    }
}

pub(crate) fn own(message: &BorrowedMessage<'_>) -> TailedRecord {
    TailedRecord {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp_ms: message.timestamp().to_millis(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: message.headers().map_or_else(Vec::new, |headers| {
            headers
                .iter()
                .map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec)))
                .collect()
        }),
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").finish_non_exhaustive()
    }
}

struct Context(Repetitions);

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client_log::line(&self.0, level, facility, message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: ClientError, reason: &str) {
        tracing::debug!(%error, "{reason}");
    }
}

impl ConsumerContext for Context {}
