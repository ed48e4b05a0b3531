//! Redis as a [`SinkKind`].

use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink::{AnySinkFactory, DeliveryError, Record, SinkOptions, SinkStats, any_factory};
use walrelay_sink_client::{Patience, Servers, TlsFiles};
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks};
use walrelay_sink_kind::dead_letters::DeadLetterStore;
use walrelay_sink_kind::topics::ReadableTopics;
use walrelay_sink_kind::{Ability, KindDescription, SinkKind, SinkTerms};

use crate::RedisError;
use crate::check::{self, ITEMS};
use crate::client::cluster::Cluster;
use crate::client::sentinel::Sentinel;
use crate::client::{Credentials, Login};
use crate::dlq::RedisDeadLetters;
use crate::section::RedisSection;
use crate::sink::{RedisSinkFactory, Settings, Wait, check_record};
use crate::topics::RedisTopics;

/// The time after which it is asked again what a stream has. The answer has the first and the last entry.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A Redis or Valkey server.
#[derive(Debug)]
pub struct RedisKind {
    login: Arc<Login>,
    settings: Arc<Settings>,
    dead_letters: RedisDeadLetters,
    topics: RedisTopics,
    plain_text: bool,
    files: TlsFiles,
}

impl RedisKind {
    /// The facts about the kind.
    pub const DESCRIPTION: KindDescription = KindDescription {
        name: "redis",
        title: "Redis Streams",
        settings_item: Some("redis-settings"),
        items: &ITEMS,
        cannot: &[Ability::Partitions],
    };

    /// Makes the sink of a configuration. Reads the certificates, and does not connect. `options`:
    /// those that other sections decide.
    ///
    /// # Errors
    /// If a certificate or key cannot be used.
    pub fn new(section: &RedisSection, options: &SinkOptions) -> Result<Self, Failure> {
        let tls = section.tls.then(|| section.files.client_config());
        let tls = tls
            .transpose()
            .map_err(|error| RedisError::from(error).to_failure())?;
        let sentinel = |master: &String| Sentinel {
            master: master.clone(),
            credentials: Credentials {
                username: section.sentinel_username.clone(),
                password: section.sentinel_password.clone(),
            },
        };
        let login = Login {
            servers: Servers {
                hosts: section.hosts(),
                tls: tls.map(Arc::new),
                timeout: section.connect_timeout,
            },
            sentinel: section.master.as_ref().map(sentinel),
            cluster: section.cluster.then(Cluster::default),
            credentials: Credentials {
                username: section.username.clone(),
                password: section.password.clone(),
            },
        };
        let login = Arc::new(login);
        let settings = Arc::new(Settings {
            max_records: options.max_in_flight_records,
            max_bytes: options.max_in_flight_bytes,
            max_retrying_bytes: options.max_retrying_bytes,
            max_retrying_keys: options.max_retrying_keys,
            max_message: section.max_message_size,
            reply: section.reply_timeout,
            pauses: (options.backoff_initial, options.backoff_max),
            ids: section.ids,
            look_every: LOOK_EVERY,
            refusals: Patience::new(options.retry_for),
            wait: Wait {
                replicas: section.wait_replicas,
                fsync: section.wait_fsync,
                timeout: section.wait_timeout,
            },
        });
        Ok(Self {
            files: section.files.clone(),
            plain_text: !section.tls
                && (section.password.is_some() || section.sentinel_password.is_some()),
            topics: RedisTopics {
                login: Arc::clone(&login),
                ids: section.ids,
                patience: section.reply_timeout,
            },
            dead_letters: RedisDeadLetters::new(Arc::clone(&login), Arc::clone(&settings)),
            login,
            settings,
        })
    }
}

impl SinkKind for RedisKind {
    fn description(&self) -> &'static KindDescription {
        &Self::DESCRIPTION
    }

    fn servers(&self) -> Option<String> {
        Some(self.login.servers.names())
    }

    fn terms(&self) -> SinkTerms {
        SinkTerms {
            endpoint: "server",
            ..SinkTerms::default()
        }
    }

    fn warnings(&self) -> Vec<Check> {
        let what = "the password and the events are sent without TLS: anyone on the network path can read \
                    them";
        let warning = Check::warn(what, "set tls = true in [sink.redis]");
        let warning = self.plain_text.then_some(warning);
        let expiry = self.files.expiry_warning();
        warning.into_iter().chain(expiry).collect()
    }

    fn factory(&self, stats: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        let stats = stats.unwrap_or_default();
        let factory = RedisSinkFactory {
            login: Arc::clone(&self.login),
            settings: Arc::clone(&self.settings),
            stats: Arc::clone(&stats),
        };
        (any_factory(factory), Some(stats))
    }

    fn refusal(&self, record: &Record<'_>) -> Option<DeliveryError> {
        check_record(record, &self.settings).err()
    }

    fn check(&self, input: CheckInput<'_>) -> SinkChecks {
        check::check(&self.login, &self.settings, &input)
    }

    fn risks(&self, _topics: &[String]) -> Option<Vec<Check>> {
        check::risks(&self.login)
    }

    fn dead_letters(&self) -> Option<&dyn DeadLetterStore> {
        Some(&self.dead_letters)
    }

    fn readable_topics(&self) -> Result<&dyn ReadableTopics, &'static str> {
        Ok(&self.topics)
    }

    fn dead_letter_obstacle(&self, topic: &str) -> Option<String> {
        check::dead_letter_obstacle(&self.login, topic)
    }
}
