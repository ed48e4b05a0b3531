//! The crate's only consumer. It reads topics with the producer's configuration: from the same
//! brokers, with the same credentials. It joins no group and commits no offsets.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use walrelay_sink_kind::topics::{FollowedPartition, ReadRecord};

use crate::client_log::{self, KindThrottle};
use crate::config::KafkaConfig;
use crate::error::{KafkaError, is_refusal};
use crate::probe::probe;

mod tail;

pub use tail::Tail;

/// The interval at which a refused token is replaced by a new one of the source.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);

/// Copies a message.
fn copy_of(message: &BorrowedMessage<'_>) -> ReadRecord {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    let timestamp_ms = message.timestamp().to_millis();
    ReadRecord {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp_ms,
        written_ms: timestamp_ms,
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers
            .map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec)))
            .collect(),
        ..ReadRecord::default()
    }
}

/// The result of waiting for a record.
pub(crate) enum Polled {
    Record(Box<ReadRecord>),
    /// All committed records of this partition were read.
    End(i32),
    /// No record came in time.
    Nothing,
    /// The client or the broker reports an error. The client keeps retrying.
    Error(Code),
}

/// Checks whether a record was ever written to the topic, including records that retention has
/// removed. A missing topic counts as not written to, and is not created.
///
/// **Blocks** for `timeout` at most for each request: the probe, the metadata, and one per
/// partition.
///
/// # Errors
/// If the brokers do not answer, or this principal may not read the topic.
pub fn was_written_to(
    config: &KafkaConfig,
    topic: &str,
    timeout: Duration,
) -> Result<bool, KafkaError> {
    // The probe has the specific errors for whatever can be wrong.
    probe(config, timeout)?;
    let client = Consumer::new(config, &[])?;
    for partition in client.partitions(topic, timeout)?.unwrap_or_default() {
        if client.ends(topic, partition, timeout)?.1 > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A partition, and the offset at which reading starts.
pub(crate) type Start = (i32, Offset);

/// A consumer of explicitly assigned partitions.
pub(crate) struct Consumer {
    consumer: BaseConsumer<Context>,
    renewed: Cell<Instant>,
}

impl Consumer {
    /// Creates the client with the properties `more` on top; does not connect yet. **Blocks** if a
    /// token must be fetched first.
    pub(crate) fn new(config: &KafkaConfig, more: &[(&str, &str)]) -> Result<Self, KafkaError> {
        let mut client = config.consumer_config();
        client
            // librdkafka assigns no partitions without a group; this client never joins it.
            .set("group.id", "walrelay-dlq")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            // A request for the metadata of a topic must not create it.
            .set("allow.auto.create.topics", "false")
            // Bounds the memory for read-ahead: a queue, and one response of
            // `fetch.message.max.bytes` (1 MiB) for each partition. The formula in
            // docs/operate/running.md includes both.
            .set("queued.max.messages.kbytes", "2048")
            .set("fetch.queue.backoff.ms", "10")
            .set("fetch.wait.max.ms", "500");
        for (property, value) in more {
            client.set(*property, *value);
        }
        let context = Context {
            throttle: KindThrottle::default(),
            config: config.clone(),
            refused: AtomicBool::new(false),
        };
        let consumer = client
            .create_with_context(context)
            .map_err(|error| config.creation_error(&error))?;
        let client = Self {
            consumer,
            renewed: Cell::new(Instant::now()),
        };
        // Polling serves the client's events, but metadata is requested before the first poll.
        client.authorise();
        Ok(client)
    }

    /// Sets the client's token, if it needs one.
    fn authorise(&self) {
        let context = self.consumer.context();
        if let Err(reason) = context.config.authorise(self.consumer.client()) {
            client_log::no_token(&context.throttle, &reason);
        }
    }

    /// Returns the topic's partitions; `None` if the topic does not exist.
    ///
    /// **Blocks** for `timeout` at most.
    pub(crate) fn partitions(
        &self,
        topic: &str,
        timeout: Duration,
    ) -> Result<Option<Vec<i32>>, KafkaError> {
        let metadata = self
            .consumer
            .fetch_metadata(Some(topic), timeout)
            .map_err(KafkaError::Tail)?;
        let failed = |code| KafkaError::for_topic(topic, code);
        let found = metadata.topics().iter().find(|t| t.name() == topic);
        let found = found.ok_or_else(|| failed(Code::UnknownTopicOrPartition))?;
        let partitions = found.partitions().iter().map(MetadataPartition::id);
        match found.error().map(Code::from) {
            None if found.partitions().is_empty() => Err(failed(Code::LeaderNotAvailable)),
            None => Ok(Some(partitions.collect())),
            Some(Code::UnknownTopicOrPartition) => Ok(None),
            Some(code) => Err(failed(code)),
        }
    }

    /// Returns the offsets of the oldest record and of the next one to be written.
    ///
    /// **Blocks** for `timeout` at most.
    pub(crate) fn ends(
        &self,
        topic: &str,
        partition: i32,
        timeout: Duration,
    ) -> Result<(i64, i64), KafkaError> {
        self.consumer
            .fetch_watermarks(topic, partition, timeout)
            .map_err(KafkaError::Tail)
    }

    /// Returns the first record in each partition at or after the timestamp, or the end if there is
    /// none. From 0 on that is the oldest record, and from `i64::MAX` on the end: the brokers are
    /// not asked for either, because the embedded broker does not search by time.
    ///
    /// **Blocks** for `timeout` at most for each request: one per partition, and one for all.
    pub(crate) fn offsets_at(
        &self,
        topic: &str,
        partitions: impl Iterator<Item = i32>,
        timestamp_ms: i64,
        timeout: Duration,
    ) -> Result<Vec<FollowedPartition>, KafkaError> {
        // The order matters: a record that is written between the requests is behind these ends.
        let ends = partitions
            .map(|partition| Ok((partition, self.ends(topic, partition, timeout)?)))
            .collect::<Result<BTreeMap<i32, (i64, i64)>, KafkaError>>()?;
        let starts = match timestamp_ms {
            ..=0 => ends.iter().map(|(p, (oldest, _))| (*p, *oldest)).collect(),
            i64::MAX => BTreeMap::new(),
            at => self.search(topic, ends.keys().copied(), at, timeout)?,
        };
        let followed = ends.into_iter().map(|(partition, (_, end))| {
            let start = starts.get(&partition).copied().unwrap_or(end);
            FollowedPartition {
                partition,
                start,
                end,
            }
        });
        Ok(followed.collect())
    }

    /// Returns the offset of the first record at or after the timestamp, for each partition that
    /// has one.
    ///
    /// **Blocks** for `timeout` at most.
    fn search(
        &self,
        topic: &str,
        partitions: impl Iterator<Item = i32>,
        timestamp_ms: i64,
        timeout: Duration,
    ) -> Result<BTreeMap<i32, i64>, KafkaError> {
        let at = Offset::Offset(timestamp_ms);
        let asked = list(topic, partitions.map(|partition| (partition, at)))?;
        let found = self.consumer.offsets_for_times(asked, timeout);
        let found = found.map_err(KafkaError::Tail)?;
        let starts = found.elements().into_iter();
        let starts = starts.filter_map(|found| match found.offset() {
            Offset::Offset(start) => Some((found.partition(), start)),
            _ => None,
        });
        Ok(starts.collect())
    }

    /// Checks that the brokers search by time, after a search that found no record in any of these
    /// partitions: a search from the first moment on finds one in a partition that has records.
    ///
    /// **Blocks** for `timeout` at most for each request: one per partition, and one for all.
    pub(crate) fn check_search(
        &self,
        topic: &str,
        partitions: &[FollowedPartition],
        timeout: Duration,
    ) -> Result<(), KafkaError> {
        let mut with_records = Vec::new();
        for of in partitions.iter().filter(|of| of.end > 0) {
            let (oldest, end) = self.ends(topic, of.partition, timeout)?;
            if oldest < end {
                with_records.push(of.partition);
            }
        }
        if with_records.is_empty() {
            return Ok(());
        }
        let found = self.search(topic, with_records.into_iter(), 0, timeout)?;
        if found.is_empty() {
            return Err(KafkaError::NoTimes {
                topic: topic.to_owned(),
            });
        }
        Ok(())
    }

    /// Reads these partitions from these offsets, and no others.
    pub(crate) fn assign(
        &self,
        topic: &str,
        from: impl IntoIterator<Item = Start>,
    ) -> Result<(), KafkaError> {
        self.consumer
            .assign(&list(topic, from)?)
            .map_err(KafkaError::Tail)
    }

    /// Reads these partitions, too.
    pub(crate) fn assign_also(
        &self,
        topic: &str,
        from: impl IntoIterator<Item = Start>,
    ) -> Result<(), KafkaError> {
        self.consumer
            .incremental_assign(&list(topic, from)?)
            .map_err(KafkaError::Tail)
    }

    /// Returns the offset up to which a partition was polled, over the markers of transactions;
    /// `None` before anything of it was.
    pub(crate) fn position(&self, topic: &str, partition: i32) -> Option<i64> {
        let positions = self.consumer.position().ok()?;
        match positions.find_partition(topic, partition)?.offset() {
            Offset::Offset(next) => Some(next),
            _ => None,
        }
    }

    /// Waits for the next record or event. **Blocks** for `timeout` at most.
    pub(crate) fn poll(&self, timeout: Duration) -> Polled {
        let refused = &self.consumer.context().refused;
        if self.renewed.get().elapsed() > RENEWAL_INTERVAL && refused.swap(false, SeqCst) {
            self.renewed.set(Instant::now());
            self.authorise();
        }
        match self.consumer.poll(timeout) {
            None => Polled::Nothing,
            Some(Ok(message)) => Polled::Record(Box::new(copy_of(&message))),
            Some(Err(ClientError::PartitionEOF(partition))) => Polled::End(partition),
            Some(Err(error)) => Polled::Error(error.rdkafka_error_code().unwrap_or(Code::Fail)),
        }
    }
}

fn list(
    topic: &str,
    from: impl IntoIterator<Item = Start>,
) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in from {
        list.add_partition_offset(topic, partition, offset)
            .map_err(KafkaError::Tail)?;
    }
    Ok(list)
}

struct Context {
    throttle: KindThrottle,
    config: KafkaConfig,
    /// A broker refused the credentials.
    refused: AtomicBool,
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.config.oauth_token(&self.throttle)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let message = self.config.scrub(message);
        client_log::line(&self.throttle, level, facility, &message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: ClientError, reason: &str) {
        if is_refusal(error.rdkafka_error_code()) {
            self.refused.store(true, SeqCst);
        }
        tracing::debug!(%error, "{}", self.config.scrub(reason));
    }
}

impl ConsumerContext for Context {}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

    use super::*;
    use crate::testing::proxy::{LIST_OFFSETS, Proxy};
    use crate::testing::{Cluster, LONG, cluster, config_of, eventually, next};

    /// Writes a record to partition 0 of "orders".
    fn write(cluster: &Cluster) {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .create()
            .expect("a producer");
        let record: BaseRecord<'_, str, str> = BaseRecord::to("orders").partition(0).payload("x");
        producer
            .send(record)
            .map_err(|(error, _)| error)
            .expect("queued");
        let begun = Instant::now();
        while producer.in_flight_count() > 0 && begun.elapsed() < LONG {
            producer.poll(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_topic_was_written_to_once_it_had_a_record() {
        let cluster = cluster(&[("orders", 4)]);
        let config = config_of(&cluster, &[]);
        let written = || was_written_to(&config, "orders", LONG).expect("an answer");
        assert!(!written());
        write(&cluster);
        assert!(written());
    }

    /// The mock cluster does not search by time.
    #[test]
    fn a_topic_is_read_from_its_beginning_and_its_end_and_a_time_is_refused() {
        let cluster = cluster(&[("orders", 4), ("empty", 1)]);
        write(&cluster);
        let follow = |topic: &str, from_ms| {
            let mut tail = Tail::open(&cluster.bootstrap_servers(), &[], LONG).expect("a tail");
            let followed = tail.follow(topic, from_ms, LONG);
            followed.map(|followed| (followed.expect("a topic")[0], tail))
        };
        let (first, mut tail) = follow("orders", 0).expect("a start");
        assert_eq!((first.start, first.end), (0, 1));
        assert_eq!(next(&mut tail).offset, 0);
        let (first, _) = follow("orders", i64::MAX).expect("a start");
        assert_eq!((first.start, first.end), (1, 1));
        let error = follow("orders", 1).map(drop).expect_err("a refusal");
        assert!(matches!(&error, KafkaError::NoTimes { topic } if topic == "orders"));
        let (first, _) = follow("empty", 1).expect("a start");
        assert_eq!((first.start, first.end), (0, 0));
    }

    /// The record is written between the questions about the topic's offsets.
    #[test]
    fn a_record_that_is_written_while_a_tail_begins_is_read() {
        let cluster = cluster(&[("orders", 1)]);
        let proxy = Proxy::start(&cluster);
        let mut tail = Tail::open(&proxy.servers(), &[], LONG).expect("a tail");
        proxy.withhold(LIST_OFFSETS);
        std::thread::scope(|scope| {
            let follow = scope.spawn(|| tail.follow("orders", 1, LONG));
            proxy.release_one(LIST_OFFSETS);
            eventually("a second question", || proxy.requests(LIST_OFFSETS) > 1);
            write(&cluster);
            proxy.release(LIST_OFFSETS);
            follow.join().unwrap().expect("an answer").expect("a topic");
        });
        assert_eq!(next(&mut tail).offset, 0);
    }
}
