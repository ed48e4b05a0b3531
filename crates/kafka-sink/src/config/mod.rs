use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rdkafka::client::{Client, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::{ClientConfig, ClientContext};
use walrelay_sink_client::Patience;

mod check;
mod error;
mod options;
mod properties;
mod rules;

use check::{check_property, is_secret, names_of};
pub use error::KafkaConfigError;
pub use options::{KafkaOptions, TopicCreation};
use rules::{ALIASES, FILES};

use crate::client_log::{KindThrottle, no_token};
use crate::error::KafkaError;
use crate::ffi;
use crate::in_flight::partition_gate::{Keyless, Requests};
use crate::known_brokers::KnownBrokers;
use crate::tokens::{TokenCache, TokenSource, chain};

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
const LOWEST_BATCH_SIZE: usize = 16_384;

/// The shortest patience with a missing topic: a broker that creates it on request reports it as missing
/// meanwhile.
const NEW_TOPIC: Duration = Duration::from_secs(2);

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

/// A validated configuration of the producer.
///
/// Its `Debug` shows the properties without secrets.
#[derive(Clone)]
pub struct KafkaConfig {
    properties: BTreeMap<String, String>,
    options: KafkaOptions,
    tokens: Option<Arc<TokenCache>>,
    /// Sets [`STATISTICS_INTERVAL`], unless the properties have an interval.
    statistics: bool,
    /// Throttles log lines about the cluster, for all producers of this configuration.
    throttle: Arc<KindThrottle>,
    /// The brokers that any producer of this configuration has known.
    known_brokers: Arc<KnownBrokers>,
    /// The limit of `batch.size` since a topic refused a batch, for all later producers of this
    /// configuration.
    batch_limit: Arc<AtomicUsize>,
    /// The patience with topics, for all sinks of this configuration.
    patience: Patience,
}

impl KafkaConfig {
    /// Validates librdkafka `properties` by librdkafka itself and by the relay's rules. Uses
    /// neither network nor files.
    pub fn new(
        properties: BTreeMap<String, String>,
        options: KafkaOptions,
    ) -> Result<Self, KafkaConfigError> {
        Self::with_tokens(properties, options, None)
    }

    /// Makes a configuration as [`new`](Self::new) does, with a source of tokens for
    /// `sasl.mechanism=OAUTHBEARER`.
    pub fn with_tokens(
        properties: BTreeMap<String, String>,
        options: KafkaOptions,
        tokens: Option<Arc<dyn TokenSource>>,
    ) -> Result<Self, KafkaConfigError> {
        options.check()?;
        let patience = Patience::new(options.retry_for.max(NEW_TOPIC));
        if let Some((_, error)) = Self::problems(&properties).into_iter().next() {
            return Err(error);
        }
        let config = Self {
            properties,
            options,
            tokens: tokens.map(TokenCache::new),
            statistics: false,
            throttle: Arc::default(),
            known_brokers: Arc::default(),
            batch_limit: Arc::new(AtomicUsize::new(usize::MAX)),
            patience,
        };
        config.check_together()?;
        Ok(config)
    }

    /// Returns all errors of single properties, and of two names of one property, each with the
    /// given name. Uses neither network nor files.
    pub fn problems(properties: &BTreeMap<String, String>) -> Vec<(String, KafkaConfigError)> {
        let single = properties.iter().filter_map(|(property, value)| {
            let error = check_property(property, value).err()?;
            Some((property.clone(), error))
        });
        let twice = ALIASES.iter().filter_map(|aliases| {
            let mut given = aliases.iter().filter(|a| properties.contains_key(**a));
            let mut next = || given.next().map(|name| (*name).to_owned());
            let (first, second) = (next()?, next()?);
            Some((second.clone(), KafkaConfigError::Twice { first, second }))
        });
        single.chain(twice).collect()
    }

    /// Returns the file of the client's certificate.
    pub(crate) fn certificate_file(&self) -> Option<&Path> {
        let file = self.properties.get("ssl.certificate.location");
        file.map(Path::new)
    }

    pub(crate) fn throttle(&self) -> &KindThrottle {
        &self.throttle
    }

    /// Returns the patience with topics that do not exist or may not be written to.
    pub(crate) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Refuses records of a missing topic as soon as it is known to be missing.
    pub(crate) fn without_patience(mut self) -> Self {
        self.patience = Patience::new(NEW_TOPIC);
        self
    }

    pub(crate) fn known_brokers(&self) -> &KnownBrokers {
        &self.known_brokers
    }

    /// Enables statistics of producers, every [`STATISTICS_INTERVAL`] unless configured otherwise.
    pub(crate) fn with_statistics(mut self) -> Self {
        self.statistics = true;
        self
    }

    /// Returns the in-flight bounds, the linger and the creation of topics.
    pub fn options(&self) -> &KafkaOptions {
        &self.options
    }

    /// Returns the linger of the producer for throughput; `None`: there is only one producer.
    pub(crate) fn bulk_linger(&self) -> Option<Duration> {
        self.options
            .bulk_linger
            .filter(|linger| !linger.is_zero() && self.get("linger.ms").is_none())
    }

    /// Returns `bootstrap.servers`.
    pub fn bootstrap_servers(&self) -> &str {
        self.get("bootstrap.servers").unwrap_or_default()
    }

    /// Returns the value of a property, by any of its names.
    fn get(&self, property: &str) -> Option<&str> {
        let mut names = names_of(property).iter().chain([&property]);
        let value = names.find_map(|name| self.properties.get(*name));
        value.map(String::as_str)
    }

    fn check_together(&self) -> Result<(), KafkaConfigError> {
        if self.bootstrap_servers().trim().is_empty() {
            return Err(KafkaConfigError::Missing {
                property: "bootstrap.servers",
                reason: "it names the brokers to ask first, as host:port, separated by commas",
            });
        }
        let oauth = self.protocol_has("sasl_") && self.get("sasl.mechanism") == Some("OAUTHBEARER");
        match (&self.tokens, oauth) {
            (None, true) => return Err(KafkaConfigError::NoTokens),
            (Some(_), false) => return Err(KafkaConfigError::TokensUnused),
            (Some(_), true) => return Ok(()),
            (None, false) => {}
        }
        if self.protocol_has("sasl_") {
            for (property, reason) in [
                (
                    "sasl.mechanism",
                    "security.protocol asks for SASL; say PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or \
                     OAUTHBEARER",
                ),
                ("sasl.username", "the SASL mechanism needs it"),
                ("sasl.password", "the SASL mechanism needs it"),
            ] {
                if self.get(property).is_none() {
                    return Err(KafkaConfigError::Missing { property, reason });
                }
            }
        }
        Ok(())
    }

    /// Returns true if `security.protocol` starts or ends with `part`.
    fn protocol_has(&self, part: &str) -> bool {
        let protocol = self.get("security.protocol").unwrap_or("plaintext");
        let protocol = protocol.trim().to_ascii_lowercase();
        protocol.starts_with(part) || protocol.ends_with(part)
    }

    /// Warnings about settings that are allowed but weaken security, a line each.
    pub fn warnings(&self) -> Vec<&'static str> {
        let mut warnings = Vec::new();
        if self.protocol_has("ssl") {
            let off = |value: &str| matches!(value.trim(), "false" | "f" | "0");
            let verify = "enable.ssl.certificate.verification";
            if self.get(verify).is_some_and(off) {
                warnings.push(
                    "enable.ssl.certificate.verification is off: a server on the way can pose as \
                     the broker, and read and change records",
                );
            } else if self
                .get("ssl.endpoint.identification.algorithm")
                .is_some_and(|value| value.trim() == "none")
            {
                warnings.push(
                    "ssl.endpoint.identification.algorithm is none: whoever holds a certificate of \
                     a trusted authority, for whatever name, can pose as the broker",
                );
            }
        }
        if self.protocol_has("sasl_plaintext") {
            match self.get("sasl.mechanism") {
                Some("PLAIN" | "OAUTHBEARER") => warnings.push(
                    "security.protocol is SASL_PLAINTEXT: the password or token goes over the \
                     network in clear; use SASL_SSL",
                ),
                _ => warnings.push(
                    "security.protocol is SASL_PLAINTEXT: records can be read and changed on their \
                     way; use SASL_SSL",
                ),
            }
        }
        warnings
    }

    /// Returns the result for `rdkafka::ClientContext::generate_oauth_token`. Logs a failure.
    pub(crate) fn oauth_token(
        &self,
        throttle: &KindThrottle,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let token = match &self.tokens {
            Some(tokens) => tokens.for_refresh(),
            None => Err("no source of OAUTHBEARER tokens is configured".into()),
        };
        token.inspect_err(|error| no_token(throttle, &error.to_string()))
    }

    /// Sets a client's token now: for a client whose events are not served, or whose token was
    /// refused. Does nothing with other mechanisms than OAUTHBEARER.
    pub(crate) fn authorise<C: ClientContext>(&self, client: &Client<C>) -> Result<(), String> {
        let Some(tokens) = &self.tokens else {
            return Ok(());
        };
        let token = tokens.token().map_err(|error| chain(&*error))?;
        ffi::set_token(client, &token).map_err(|reason| self.scrub(&reason))
    }

    /// Returns the configuration of a client that checks the brokers' certificates: it verifies as
    /// this one and has no credentials.
    pub(crate) fn without_credentials(&self) -> ClientConfig {
        let mut config = self.client_config();
        for property in self.properties.keys() {
            let credential = ["sasl.", "ssl.key", "ssl.certificate."]
                .iter()
                .any(|prefix| property.starts_with(prefix));
            if credential || matches!(&**property, "debug" | "statistics.interval.ms") {
                config.remove(property);
            }
        }
        config.set("security.protocol", "ssl");
        config.set_log_level(RDKafkaLogLevel::Emerg);
        config
    }

    /// Returns true if the mechanism is OAUTHBEARER.
    pub(crate) fn uses_tokens(&self) -> bool {
        self.tokens.is_some()
    }

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

    /// Returns `message.max.bytes`, with librdkafka's default.
    pub fn message_max_bytes(&self) -> &str {
        self.get("message.max.bytes").unwrap_or("1000000")
    }

    /// Returns the text with every secret replaced.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let text = self
            .properties
            .iter()
            .filter(|(property, value)| is_secret(property) && value.len() > 2)
            .fold(text.to_owned(), |text, (_, value)| {
                text.replace(value.as_str(), "[redacted]")
            });
        match &self.tokens {
            Some(tokens) => tokens.scrub(text),
            None => text,
        }
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

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: BTreeMap<&str, &str> = self
            .properties
            .iter()
            .map(|(property, value)| {
                let value = if is_secret(property) {
                    "[redacted]"
                } else {
                    value
                };
                (property.as_str(), value)
            })
            .collect();
        f.debug_struct("KafkaConfig")
            .field("properties", &shown)
            .field("options", &self.options)
            .field("tokens", &self.tokens.is_some())
            .finish_non_exhaustive()
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

#[cfg(test)]
mod tests;
