//! The configurations of librdkafka's clients, and the errors with which it refuses them.

use std::fs::File;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;

use super::check::{is_secret, names_of};
use super::rules::FILES;
use super::{KafkaConfig, properties};
use crate::error::KafkaError;
use crate::in_flight::partition_gate::{Keyless, Requests};

/// The relay's defaults where they differ from librdkafka's. They can be overridden within the
/// rules.
const DEFAULTS: &[(&str, &str)] = &[
    ("client.id", "walrelay"),
    ("partitioner", "murmur2_random"),
    // For latency: a single record is sent at once; under load, batches form while earlier requests
    // are sent. A burst over many partitions costs the broker CPU; a configured linger reduces it.
    ("linger.ms", "0"),
    // With the default of 10 s a broker that is back would go unnoticed for that long.
    ("reconnect.backoff.max.ms", "1000"),
    // Without traffic, only keepalives detect a peer that vanished behind a firewall.
    ("socket.keepalive.enable", "true"),
    // The brokers' view of a client's metrics (KIP-714) costs two requests to each broker and six
    // histograms of 20 KiB for each broker and client, with or without somebody who reads them. The
    // relay has metrics of its own.
    ("enable.metrics.push", "false"),
];

/// `statistics.interval.ms`: how often librdkafka reports round-trip times and states of brokers.
const STATISTICS_INTERVAL: &str = "1000";

/// librdkafka's default of `batch.size` and of `message.max.bytes`.
const DEFAULT_BATCH_SIZE: usize = 1_000_000;
/// `batch.size` is not lowered below this: it is the default of Java's client, and smaller batches
/// would slow down all topics for the sake of one.
pub(super) const LOWEST_BATCH_SIZE: usize = 16_384;

/// Properties that cannot be overridden: a rule refuses any other value.
const FIXED: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    // A repeated request must not be written after a later one. Idempotence alone does not prevent
    // that where a broker has no state of the producer, as at the first request of a partition: see
    // docs/adr/0007-one-request-in-flight.md. Where gates prevent it, more requests are allowed:
    // `for_gates`.
    ("max.in.flight", "1"),
    // A batch that fails for good ends the producer; otherwise librdkafka would send those behind
    // it.
    ("enable.gapless.guarantee", "true"),
    // No limit: the relay decides when to give up, and no gap opens in the sequence numbers.
    ("message.timeout.ms", "0"),
    // The sink's own window bounds the queue, also if a single record is larger than the window.
    ("queue.buffering.max.messages", "0"),
    ("queue.buffering.max.kbytes", "2147483647"),
];

/// `max.in.flight` with gates: the most that an idempotent producer may have, because a broker
/// checks the sequence numbers of the last five batches.
const SEVERAL_REQUESTS: &str = "5";

const STICKY_LINGER: &str = "sticky.partitioning.linger.ms";
/// librdkafka's default of `sticky.partitioning.linger.ms`.
const DEFAULT_STICKY_LINGER: Duration = Duration::from_millis(10);

impl KafkaConfig {
    /// Returns all properties for librdkafka: the relay's defaults, the given ones, the fixed ones.
    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (property, value) in DEFAULTS {
            if self.get(property).is_none() {
                config.set(*property, *value);
            }
        }
        for (property, value) in &self.properties {
            config.set(property, value);
        }
        for (property, value) in FIXED {
            for alias in names_of(property) {
                config.remove(alias);
            }
            config.set(*property, *value);
        }
        if let Some(level) = self.get("log_level").and_then(log_level) {
            config.set_log_level(level);
        }
        config
    }

    /// Adapts a configuration to topics with gates, which choose partitions in place of librdkafka.
    /// Also returns how the gates treat records without a key.
    pub(crate) fn for_gates(
        mut config: ClientConfig,
        requests: Requests,
    ) -> (ClientConfig, Keyless) {
        if requests == Requests::Several {
            config.set("max.in.flight", SEVERAL_REQUESTS);
        }
        let linger = config.get(STICKY_LINGER).and_then(|ms| ms.parse().ok());
        let keyless = match config.get("partitioner") {
            Some("murmur2") => Keyless::Hashed,
            _ => Keyless::Sticky(linger.map_or(DEFAULT_STICKY_LINGER, Duration::from_millis)),
        };
        config.set(STICKY_LINGER, "0");
        (config, keyless)
    }

    /// Returns the size that a batch of a new producer has at most, unless a single record is
    /// larger.
    pub(crate) fn batch_size(&self) -> usize {
        let configured = |property, default| {
            let value = self
                .get(property)
                .and_then(|value| value.trim().parse().ok());
            value.unwrap_or(default)
        };
        configured("batch.size", DEFAULT_BATCH_SIZE)
            .min(configured("message.max.bytes", DEFAULT_BATCH_SIZE))
            .min(self.batch_limit.load(Relaxed))
    }

    /// Lowers `batch.size` of later producers after a topic refused a batch of a producer with the
    /// size `refused`, and returns the lower one. `None`: the size is low already.
    pub(crate) fn lower_batch_size(&self, refused: usize) -> Option<usize> {
        let lower = (refused / 10).max(LOWEST_BATCH_SIZE);
        if lower >= refused {
            return None;
        }
        self.batch_limit.fetch_min(lower, Relaxed);
        Some(lower)
    }

    /// Adds what only a producer needs: the interval of statistics, if they are enabled, and a
    /// lowered `batch.size`.
    pub(crate) fn for_producer(&self, mut config: ClientConfig) -> ClientConfig {
        const INTERVAL: &str = "statistics.interval.ms";
        if self.statistics && self.get(INTERVAL).is_none() {
            config.set(INTERVAL, STATISTICS_INTERVAL);
        }
        if self.batch_limit.load(Relaxed) < usize::MAX {
            config.set("batch.size", self.batch_size().to_string());
        }
        config
    }

    /// Returns [`client_config`](Self::client_config) for a consumer.
    pub(crate) fn consumer_config(&self) -> ClientConfig {
        let mut config = self.client_config();
        for property in properties::producer_only() {
            config.remove(property);
        }
        config
    }

    /// Returns the error of a client that could not be created.
    pub(crate) fn creation_error(&self, error: &ClientError) -> KafkaError {
        KafkaError::Create {
            reason: self.creation_reason(error),
        }
    }

    /// Returns the message of a client that could not be created, without secrets.
    pub(crate) fn creation_reason(&self, error: &ClientError) -> String {
        match error {
            ClientError::ClientConfig(_, _, property, _) if is_secret(property) => {
                format!("{property}: librdkafka does not accept the value")
            }
            ClientError::ClientConfig(_, reason, property, _) => {
                self.scrub(&format!("{property}: {reason}"))
            }
            ClientError::ClientCreation(reason) => match self.unreadable_file(reason) {
                Some(unreadable) => unreadable,
                None => self.scrub(reason),
            },
            other => self.scrub(&other.to_string()),
        }
    }

    /// Returns which property that `reason` mentions has a file that cannot be read, and why:
    /// librdkafka's message has no path, and OpenSSL's code for the cause.
    fn unreadable_file(&self, reason: &str) -> Option<String> {
        FILES.iter().find_map(|property| {
            let path = self.get(property).filter(|_| reason.contains(property))?;
            let error = File::open(path).err()?;
            Some(format!(
                "{property}: {path:?} cannot be read: {error}; correct the path, or let this user \
                 read the file"
            ))
        })
    }
}

fn log_level(value: &str) -> Option<RDKafkaLogLevel> {
    Some(match value.trim().parse::<u8>().ok()? {
        0 => RDKafkaLogLevel::Emerg,
        1 => RDKafkaLogLevel::Alert,
        2 => RDKafkaLogLevel::Critical,
        3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 => RDKafkaLogLevel::Notice,
        6 => RDKafkaLogLevel::Info,
        7 => RDKafkaLogLevel::Debug,
        _ => return None,
    })
}
