use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use rdkafka::client::{Client, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::{ClientConfig, ClientContext};
use walrelay_sink_client::Patience;

mod check;
mod clients;
mod error;
mod options;
mod properties;
mod rules;

use check::{check_property, is_secret, names_of};
pub use error::KafkaConfigError;
pub use options::{KafkaOptions, TopicCreation};
use rules::ALIASES;

use crate::client_log::{KindThrottle, no_token};
use crate::ffi;
use crate::known_brokers::KnownBrokers;
use crate::tokens::{TokenCache, TokenSource, chain};

/// The shortest patience with a missing topic: a broker that creates it on request reports it as missing
/// meanwhile.
const NEW_TOPIC: Duration = Duration::from_secs(2);

/// A validated configuration of the producer.
///
/// Its `Debug` shows the properties without secrets.
#[derive(Clone)]
pub struct KafkaConfig {
    properties: BTreeMap<String, String>,
    options: KafkaOptions,
    tokens: Option<Arc<TokenCache>>,
    /// Sets `statistics.interval.ms`, unless the properties have an interval.
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

    /// Enables statistics of producers, every second unless configured otherwise.
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

#[cfg(test)]
mod tests;
