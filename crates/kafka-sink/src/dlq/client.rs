//! A consumer with the producer's configuration: the same brokers, the same credentials.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::Entry;
use crate::client_log::{self, Repetitions};
use crate::error::is_refusal;
use crate::tail::{TailedRecord, own};
use crate::{KafkaConfig, KafkaError};

/// What of [`KafkaConfig`] a consumer would only complain of: CONFIGURATION.md marks it with a P.
/// And `receive.message.max.bytes`, which librdkafka otherwise derives from what is fetched.
const PRODUCER_ONLY: &[&str] = &[
    "acks",
    "batch.num.messages",
    "batch.size",
    "compression.codec",
    "compression.level",
    "compression.type",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "linger.ms",
    "message.send.max.retries",
    "message.timeout.ms",
    "partitioner",
    "produce.offset.report",
    "queue.buffering.backpressure.threshold",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queuing.strategy",
    "receive.message.max.bytes",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "sticky.partitioning.linger.ms",
];

/// How often a token that the broker refuses is replaced by what its source has by then.
const RENEWAL: Duration = Duration::from_secs(2);

/// Reads one topic: belongs to no group, commits nothing.
pub(crate) struct Client {
    consumer: BaseConsumer<Context>,
    topic: String,
    renewed: Cell<Instant>,
}

/// What came of waiting for a record.
pub(crate) enum Polled<T = Entry> {
    Entry(T),
    /// Everything that is committed in this partition was read.
    End(i32),
    /// Nothing came in time.
    Nothing,
    /// The client or the broker complains. It goes on trying.
    Complaint(Code),
}

impl Client {
    /// Makes the client; talks to no broker yet. **Blocks** where a token must be got first.
    pub(crate) fn new(config: &KafkaConfig, topic: &str) -> Result<Self, KafkaError> {
        let mut client = config.client_config();
        for property in PRODUCER_ONLY {
            client.remove(property);
        }
        client
            // librdkafka assigns nothing without one; no member of it ever joins.
            .set("group.id", "walrelay-letters")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            // Looking whether there is a topic must not make one.
            .set("allow.auto.create.topics", "false")
            // What it reads ahead, and with it the memory that it takes: a queue, and one answer of
            // `fetch.message.max.bytes` (1 MiB) for each partition. The formula of docs/OPERATIONS.md
            // counts both.
            .set("queued.max.messages.kbytes", "2048")
            .set("fetch.queue.backoff.ms", "10")
            .set("fetch.wait.max.ms", "500");
        let context = Context {
            repetitions: Repetitions::default(),
            config: config.clone(),
            refused: AtomicBool::new(false),
        };
        let consumer = client
            .create_with_context(context)
            .map_err(|error| KafkaError::Create {
                reason: config.creation_reason(&error),
            })?;
        let client = Self {
            consumer,
            topic: topic.to_owned(),
            renewed: Cell::new(Instant::now()),
        };
        // Its events are served by polling, and it is asked for partitions before.
        client.authorise();
        Ok(client)
    }

    /// Gives it a token, if it needs one.
    fn authorise(&self) {
        let context = self.consumer.context();
        if let Err(reason) = context.config.authorise(self.consumer.client()) {
            context.complain_of_tokens(&reason);
        }
    }

    /// The topic's partitions; `None` when the broker says that there is no such topic.
    ///
    /// **Blocks** for `timeout` at most.
    pub(crate) fn partitions(&self, timeout: Duration) -> Result<Option<Vec<i32>>, KafkaError> {
        let metadata = self
            .consumer
            .fetch_metadata(Some(&self.topic), timeout)
            .map_err(KafkaError::Tail)?;
        let found = metadata.topics().iter().find(|t| t.name() == self.topic);
        let failed = |code| KafkaError::Topic {
            topic: self.topic.clone(),
            code,
        };
        let found = found.ok_or_else(|| failed(Code::UnknownTopicOrPartition))?;
        match found.error().map(Code::from) {
            None if found.partitions().is_empty() => Err(failed(Code::LeaderNotAvailable)),
            None => Ok(Some(
                found
                    .partitions()
                    .iter()
                    .map(MetadataPartition::id)
                    .collect(),
            )),
            Some(Code::UnknownTopicOrPartition) => Ok(None),
            Some(code) => Err(failed(code)),
        }
    }

    /// Offset of the oldest record, and of the one that will be written next.
    ///
    /// **Blocks** for `timeout` at most.
    pub(crate) fn ends(&self, partition: i32, timeout: Duration) -> Result<(i64, i64), KafkaError> {
        self.consumer
            .fetch_watermarks(&self.topic, partition, timeout)
            .map_err(KafkaError::Tail)
    }

    /// Where the first record of that time or later lies in each partition.
    ///
    /// **Blocks** for `timeout` at most.
    pub(crate) fn offsets_at(
        &self,
        partitions: &[i32],
        timestamp_ms: i64,
        timeout: Duration,
    ) -> Result<Vec<(i32, Offset)>, KafkaError> {
        let asked = self.list(
            partitions
                .iter()
                .map(|p| (*p, Offset::Offset(timestamp_ms))),
        )?;
        let found = self
            .consumer
            .offsets_for_times(asked, timeout)
            .map_err(KafkaError::Tail)?;
        Ok(found
            .elements()
            .iter()
            .map(|element| (element.partition(), element.offset()))
            .collect())
    }

    /// Reads these partitions from there, and no others.
    pub(crate) fn assign(
        &self,
        from: impl Iterator<Item = (i32, Offset)>,
    ) -> Result<(), KafkaError> {
        let list = self.list(from)?;
        self.consumer.assign(&list).map_err(KafkaError::Tail)
    }

    /// Reads these partitions too.
    pub(crate) fn assign_also(
        &self,
        from: impl Iterator<Item = (i32, Offset)>,
    ) -> Result<(), KafkaError> {
        let list = self.list(from)?;
        self.consumer
            .incremental_assign(&list)
            .map_err(KafkaError::Tail)
    }

    fn list(
        &self,
        from: impl Iterator<Item = (i32, Offset)>,
    ) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in from {
            list.add_partition_offset(&self.topic, partition, offset)
                .map_err(KafkaError::Tail)?;
        }
        Ok(list)
    }

    /// **Blocks** for `timeout` at most.
    pub(crate) fn poll(&self, timeout: Duration) -> Polled {
        match self.poll_record(timeout) {
            Polled::Entry(record) => Polled::Entry(Entry::of(record)),
            Polled::End(partition) => Polled::End(partition),
            Polled::Nothing => Polled::Nothing,
            Polled::Complaint(code) => Polled::Complaint(code),
        }
    }

    /// The same, whatever the record is.
    ///
    /// **Blocks** for `timeout` at most.
    pub(crate) fn poll_record(&self, timeout: Duration) -> Polled<TailedRecord> {
        let refused = &self.consumer.context().refused;
        if self.renewed.get().elapsed() > RENEWAL && refused.swap(false, SeqCst) {
            self.renewed.set(Instant::now());
            self.authorise();
        }
        match self.consumer.poll(timeout) {
            None => Polled::Nothing,
            Some(Ok(message)) => Polled::Entry(own(&message)),
            Some(Err(ClientError::PartitionEOF(partition))) => Polled::End(partition),
            Some(Err(error)) => Polled::Complaint(error.rdkafka_error_code().unwrap_or(Code::Fail)),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

struct Context {
    repetitions: Repetitions,
    config: KafkaConfig,
    /// A broker refused who we are.
    refused: AtomicBool,
}

impl Context {
    fn complain_of_tokens(&self, reason: &str) {
        if let Some(held_back) = self.repetitions.pass("OAUTHBEARER") {
            tracing::warn!(
                held_back = held_back.shown(),
                "no OAUTHBEARER token for Kafka: {reason}"
            );
        }
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let token = self.config.oauth_token();
        if let Err(error) = &token {
            self.complain_of_tokens(&error.to_string());
        }
        token
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let message = self.config.scrub(message);
        client_log::line(&self.repetitions, level, facility, &message);
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
