//! Options for which librdkafka has no property.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::KafkaConfigError;

/// The default of [`KafkaOptions::bulk_linger`]. A longer linger saves the broker little, and the
/// records in flight take more memory: docs/adr/0013-producer-modes.md.
const BULK_LINGER: Duration = Duration::from_millis(50);
/// The default of [`KafkaOptions::retry_for`], as that of `poison.retry_for`.
const RETRY_FOR: Duration = Duration::from_secs(300);

/// In-flight bounds, the linger for throughput, the patience with topics, and their creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaOptions {
    /// The most records accepted and not yet reported.
    pub max_in_flight_records: u64,
    /// The most bytes of those records: key, value and headers, and librdkafka's overhead of about
    /// 200 bytes per record, 96 for a list of headers and 60 per header. A larger record is sent
    /// alone.
    pub max_in_flight_bytes: u64,
    /// The most keys of a topic that may wait, for views: a topic that is refused waits as a whole.
    pub max_retrying_keys: u32,
    /// The most bytes of records that wait for such topics, beyond those in flight, once the sink is full.
    pub max_retrying_bytes: u64,
    /// The `linger.ms` of the second producer, which is for throughput. `None`: there is only one
    /// producer, as when the properties contain `linger.ms`.
    pub bulk_linger: Option<Duration>,
    /// The time for which records of a topic that does not exist, or may not be written to, are held
    /// back before they are refused.
    pub retry_for: Duration,
    /// `Some`: a missing topic is created before the first record is sent to it. `None`: the
    /// broker's `auto.create.topics.enable` applies.
    pub topics: Option<TopicCreation>,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            max_in_flight_records: 100_000,
            max_in_flight_bytes: 64 << 20,
            max_retrying_keys: 1_000,
            max_retrying_bytes: 64 << 20,
            bulk_linger: Some(BULK_LINGER),
            retry_for: RETRY_FOR,
            topics: None,
        }
    }
}

/// The options by which a missing topic is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicCreation {
    /// At least one, or -1 for the broker's `num.partitions`.
    pub partitions: i32,
    /// At least one, or -1 for the broker's `default.replication.factor`.
    pub replication_factor: i32,
    /// Topic configuration by Kafka's names, such as `retention.ms`.
    pub properties: BTreeMap<String, String>,
}

impl KafkaOptions {
    pub(super) fn check(&self) -> Result<(), KafkaConfigError> {
        let wrong = |option, reason| Err(KafkaConfigError::Option { option, reason });
        if self.max_in_flight_records == 0 {
            return wrong("max_in_flight_records", "at least 1");
        }
        if self.max_in_flight_records > i32::MAX as u64 {
            return wrong("max_in_flight_records", "at most 2147483647");
        }
        if self.max_in_flight_bytes == 0 {
            return wrong("max_in_flight_bytes", "at least 1");
        }
        if let Some(topics) = &self.topics {
            if topics.partitions != -1 && topics.partitions < 1 {
                return wrong("partitions", "at least 1, or -1 for the broker's default");
            }
            if topics.replication_factor != -1
                && !(1..=i32::from(i16::MAX)).contains(&topics.replication_factor)
            {
                return wrong(
                    "replication_factor",
                    "at least 1, or -1 for the broker's default",
                );
            }
            if topics
                .properties
                .iter()
                .any(|(name, value)| name.is_empty() || name.contains('\0') || value.contains('\0'))
            {
                return wrong("properties", "a name is empty or something contains a NUL");
            }
        }
        Ok(())
    }
}
