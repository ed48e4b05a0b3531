use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::client::{Client, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::{ClientConfig, ClientContext};

mod check;
mod error;
mod options;
mod properties;
mod rules;

use check::{check_property, is_secret, names_of};
pub use error::KafkaConfigError;
pub use options::{KafkaOptions, TopicCreation};
use rules::ALIASES;

use crate::client_log::{LogThrottle, no_token};
use crate::ffi;
use crate::producer::partition_gate::{Keyless, Requests};
use crate::tokens::{TokenCache, TokenSource, chain};

/// What we set where librdkafka's default is not what a relay wants. Overridable within the rules.
const DEFAULTS: &[(&str, &str)] = &[
    ("client.id", "walrelay"),
    ("partitioner", "murmur2_random"),
    // For latency: a record alone is in flight at once, and under load batches form while
    // the requests before them are sent. It costs the broker CPU where a burst is spread over many
    // partitions; whoever minds sets a linger.
    ("linger.ms", "0"),
    // The default of 10 s would leave a broker that came back unnoticed for that long.
    ("reconnect.backoff.max.ms", "1000"),
    // A peer that vanished behind a firewall shows only so while nothing is sent.
    ("socket.keepalive.enable", "true"),
];

/// Round-trip times and states of brokers, in milliseconds.
const STATISTICS_INTERVAL: &str = "1000";

/// What is not negotiable: a rule refuses any attempt.
const FIXED: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    // A request that is repeated must not find a later one there already. Idempotence alone does
    // not see to that where a broker has no state of the producer, as with the first request of a
    // partition. docs/adr/0007-one-request-in-flight.md has the whole story. Where gates see to it there
    // may be more: `of_gates`.
    ("max.in.flight", "1"),
    // A batch that fails for good ends the producer; otherwise librdkafka goes on behind it.
    ("enable.gapless.guarantee", "true"),
    // Never give up on our own account: the relay decides, and no hole opens in a sequence.
    ("message.timeout.ms", "0"),
    // Our own window bounds the queue, also where one record is larger than it.
    ("queue.buffering.max.messages", "0"),
    ("queue.buffering.max.kbytes", "2147483647"),
];

/// As many as an idempotent producer may have in flight to a broker, whose look at sequence numbers goes
/// back so far.
const SEVERAL_REQUESTS: &str = "5";

const STICKS: &str = "sticky.partitioning.linger.ms";
/// librdkafka's default of it.
const STICKS_FOR: Duration = Duration::from_millis(10);

/// A validated configuration of the producer.
///
/// Its `Debug` shows the properties with secrets taken out.
#[derive(Clone)]
pub struct KafkaConfig {
    properties: BTreeMap<String, String>,
    options: KafkaOptions,
    tokens: Option<Arc<TokenCache>>,
    /// librdkafka is asked for statistics, unless the properties say how often.
    statistics: bool,
    /// Of log lines about the cluster, by any producer of this configuration.
    throttle: Arc<LogThrottle>,
}

impl KafkaConfig {
    /// Validates librdkafka `properties`, by their own names, against librdkafka itself and against
    /// what the relay promises. Touches neither network nor files.
    pub fn new(
        properties: BTreeMap<String, String>,
        options: KafkaOptions,
    ) -> Result<Self, KafkaConfigError> {
        Self::with_tokens(properties, options, None)
    }

    /// The same, with a source of tokens for `sasl.mechanism=OAUTHBEARER`.
    pub fn with_tokens(
        properties: BTreeMap<String, String>,
        options: KafkaOptions,
        tokens: Option<Arc<dyn TokenSource>>,
    ) -> Result<Self, KafkaConfigError> {
        options.check()?;
        if let Some((_, error)) = Self::problems(&properties).into_iter().next() {
            return Err(error);
        }
        let config = Self {
            properties,
            options,
            tokens: tokens.map(TokenCache::new),
            statistics: false,
            throttle: Arc::default(),
        };
        config.check_together()?;
        Ok(config)
    }

    /// What is wrong with single properties, and with pairs that are two names of one: each by the name that
    /// was given. Touches neither network nor files.
    pub fn problems(properties: &BTreeMap<String, String>) -> Vec<(String, KafkaConfigError)> {
        let mut problems = Vec::new();
        for (property, value) in properties {
            if let Err(error) = check_property(property, value) {
                problems.push((property.clone(), error));
            }
        }
        for aliases in ALIASES {
            let mut given = aliases.iter().filter(|a| properties.contains_key(**a));
            if let (Some(first), Some(second)) = (given.next(), given.next()) {
                let error = KafkaConfigError::Twice {
                    first: (*first).to_owned(),
                    second: (*second).to_owned(),
                };
                problems.push(((*second).to_owned(), error));
            }
        }
        problems
    }

    /// Which log lines were written lately.
    pub(crate) fn throttle(&self) -> &LogThrottle {
        &self.throttle
    }

    /// With statistics of producers, by [`STATISTICS_INTERVAL`] unless the properties say how often.
    pub(crate) fn with_statistics(mut self) -> Self {
        self.statistics = true;
        self
    }

    /// The bounds and the creation of topics.
    pub fn options(&self) -> &KafkaOptions {
        &self.options
    }

    /// The linger of the producer for throughput, if there is to be one.
    pub(crate) fn bulk_linger(&self) -> Option<Duration> {
        self.options
            .bulk_linger
            .filter(|linger| !linger.is_zero() && self.get("linger.ms").is_none())
    }

    /// `bootstrap.servers`.
    pub fn bootstrap_servers(&self) -> &str {
        self.get("bootstrap.servers").unwrap_or_default()
    }

    /// The value of a property by any of its names.
    fn get(&self, property: &str) -> Option<&str> {
        names_of(property)
            .iter()
            .find_map(|name| self.properties.get(*name))
            .map(String::as_str)
            .or_else(|| self.properties.get(property).map(String::as_str))
    }

    fn check_together(&self) -> Result<(), KafkaConfigError> {
        if self.bootstrap_servers().trim().is_empty() {
            return Err(KafkaConfigError::Missing {
                property: "bootstrap.servers",
                reason: "it names the brokers to ask first, as host:port, separated by commas",
            });
        }
        let oauth = self.speaks("sasl_") && self.get("sasl.mechanism") == Some("OAUTHBEARER");
        match (&self.tokens, oauth) {
            (None, true) => return Err(KafkaConfigError::NoTokens),
            (Some(_), false) => return Err(KafkaConfigError::TokensUnused),
            (Some(_), true) => return Ok(()),
            (None, false) => {}
        }
        if self.speaks("sasl_") {
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

    /// Whether `security.protocol` begins with, or ends with, `part`.
    fn speaks(&self, part: &str) -> bool {
        let protocol = self.get("security.protocol").unwrap_or("plaintext");
        let protocol = protocol.trim().to_ascii_lowercase();
        protocol.starts_with(part) || protocol.ends_with(part)
    }

    /// Settings that are allowed and give security away: a line each, for whoever starts a relay.
    pub fn warnings(&self) -> Vec<&'static str> {
        let mut warnings = Vec::new();
        if self.speaks("ssl") {
            let off = |value: &str| matches!(value.trim(), "false" | "f" | "0");
            let verify = "enable.ssl.certificate.verification";
            if self.get(verify).is_some_and(off) {
                warnings.push(
                    "enable.ssl.certificate.verification is off: anybody between here and the \
                     broker can pose as the broker, and read and change what is sent",
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
        if self.speaks("sasl_plaintext") {
            match self.get("sasl.mechanism") {
                Some("PLAIN" | "OAUTHBEARER") => warnings.push(
                    "security.protocol is SASL_PLAINTEXT: the password or token goes over the \
                     network in clear; use SASL_SSL",
                ),
                _ => warnings.push(
                    "security.protocol is SASL_PLAINTEXT: what is sent can be read and changed on \
                     its way; use SASL_SSL",
                ),
            }
        }
        warnings
    }

    /// What `rdkafka::ClientContext::generate_oauth_token` returns. Asks the source of tokens, and logs a failure.
    pub(crate) fn oauth_token(
        &self,
        throttle: &LogThrottle,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let token = match &self.tokens {
            Some(tokens) => tokens.for_refresh(),
            None => Err("no source of OAUTHBEARER tokens is configured".into()),
        };
        token.inspect_err(|error| no_token(throttle, &error.to_string()))
    }

    /// Gives a client its token now: one whose events nobody serves, or whose token was refused.
    /// Does nothing with other mechanisms.
    pub(crate) fn authorise<C: ClientContext>(&self, client: &Client<C>) -> Result<(), String> {
        let Some(tokens) = &self.tokens else {
            return Ok(());
        };
        let token = tokens.token().map_err(|error| chain(&*error))?;
        ffi::set_token(client, &token).map_err(|reason| self.scrub(&reason))
    }

    /// For a client that looks at the brokers' certificates: verifies as this one, logs in as nobody.
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

    /// Whether the mechanism is OAUTHBEARER.
    pub(crate) fn uses_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Everything for librdkafka: our defaults, what was given, what is not negotiable.
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

    /// One of these for a sink whose topics have gates, which choose partitions in librdkafka's stead; and
    /// what the gates do with records that have no key.
    pub(crate) fn of_gates(
        mut config: ClientConfig,
        requests: Requests,
    ) -> (ClientConfig, Keyless) {
        if requests == Requests::Several {
            config.set("max.in.flight", SEVERAL_REQUESTS);
        }
        let sticks = config.get(STICKS).and_then(|ms| ms.parse().ok());
        let keyless = match config.get("partitioner") {
            Some("murmur2") => Keyless::Hashed,
            _ => Keyless::Sticky(sticks.map_or(STICKS_FOR, Duration::from_millis)),
        };
        config.set(STICKS, "0");
        (config, keyless)
    }

    /// [`client_config`](Self::client_config), filling requests for so long.
    pub(crate) fn client_config_lingering(&self, linger: Duration) -> ClientConfig {
        let mut config = self.client_config();
        config.set("linger.ms", linger.as_millis().to_string());
        config
    }

    /// The properties of a producer on top of these: statistics, where somebody reads them.
    pub(crate) fn of_producer(&self, mut config: ClientConfig) -> ClientConfig {
        const INTERVAL: &str = "statistics.interval.ms";
        if self.statistics && self.get(INTERVAL).is_none() {
            config.set(INTERVAL, STATISTICS_INTERVAL);
        }
        config
    }

    /// `message.max.bytes` as librdkafka sees it.
    pub fn message_max_bytes(&self) -> &str {
        self.get("message.max.bytes").unwrap_or("1000000")
    }

    /// The text without any secret that may have strayed into it.
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

    /// The same for a consumer.
    pub(crate) fn consumer_config(&self) -> ClientConfig {
        let mut config = self.client_config();
        for property in properties::producer_only() {
            config.remove(property);
        }
        config
    }

    /// What a failure to make a client says, without secrets.
    pub(crate) fn creation_reason(&self, error: &ClientError) -> String {
        match error {
            ClientError::ClientConfig(_, _, property, _) if is_secret(property) => {
                format!("{property}: librdkafka does not accept the value")
            }
            ClientError::ClientConfig(_, reason, property, _) => {
                self.scrub(&format!("{property}: {reason}"))
            }
            ClientError::ClientCreation(reason) => self.scrub(reason),
            other => self.scrub(&other.to_string()),
        }
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
