//! NATS JetStream as a [`SinkKind`].

use std::sync::Arc;

use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink::{AnySinkFactory, DeliveryError, Record, SinkOptions, SinkStats, any_factory};
use walrelay_sink_client::{Patience, Servers, TlsFiles};
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks};
use walrelay_sink_kind::dead_letters::DeadLetterStore;
use walrelay_sink_kind::topics::ReadableTopics;
use walrelay_sink_kind::{Ability, KindDescription, SinkKind, SinkTerms};

use crate::NatsError;
use crate::check::{self, ITEMS};
use crate::client::Login;
use crate::client::credentials::Credentials;
use crate::dlq::NatsDeadLetters;
use crate::section::{NatsSection, address};
use crate::sink::{NatsSinkFactory, Settings, check_record};
use crate::topics::NatsTopics;

/// A NATS server with JetStream.
#[derive(Debug)]
pub struct NatsKind {
    login: Arc<Login>,
    settings: Arc<Settings>,
    topics: NatsTopics,
    dead_letters: NatsDeadLetters,
    plain_text: bool,
    files: TlsFiles,
}

impl NatsKind {
    /// The facts about the kind.
    pub const DESCRIPTION: KindDescription = KindDescription {
        name: "nats",
        title: "NATS JetStream",
        settings_item: Some("nats-settings"),
        items: &ITEMS,
        cannot: &[Ability::Partitions],
    };

    /// Makes the sink of a configuration. Reads certificates and credentials, and does not connect.
    /// `options`: those that other sections decide.
    ///
    /// # Errors
    /// If a certificate, key or file of credentials cannot be used.
    pub fn new(section: &NatsSection, options: &SinkOptions) -> Result<Self, Failure> {
        let login = Arc::new(login(section).map_err(|error| error.to_failure())?);
        let settings = Arc::new(Settings {
            max_records: options.max_in_flight_records,
            max_retrying_bytes: options.max_retrying_bytes,
            max_retrying_keys: options.max_retrying_keys as usize,
            max_bytes: options.max_in_flight_bytes,
            max_message: section.max_message_size,
            exclusive_stream: section.exclusive_stream.clone(),
            ack: section.ack_timeout,
            pauses: (options.backoff_initial, options.backoff_max),
            refusals: Patience::new(options.retry_for),
        });
        let secret = section.password.is_some() || section.token.is_some();
        Ok(Self {
            files: section.files.clone(),
            plain_text: !section.tls && secret,
            topics: NatsTopics {
                login: Arc::clone(&login),
                patience: section.ack_timeout,
            },
            dead_letters: NatsDeadLetters::new(Arc::clone(&login), Arc::clone(&settings)),
            login,
            settings,
        })
    }
}

fn login(section: &NatsSection) -> Result<Login, NatsError> {
    let tls = section.tls.then(|| section.files.client_config());
    let credentials = section.credentials_file.as_deref().map(Credentials::read);
    let hosts = section.hosts.iter().filter_map(|host| address(host));
    Ok(Login {
        servers: Servers {
            hosts: hosts.collect(),
            tls: tls.transpose()?.map(Arc::new),
            timeout: section.connect_timeout,
        },
        username: section.username.clone(),
        password: section.password.clone(),
        token: section.token.clone(),
        credentials: credentials.transpose()?.map(Arc::new),
    })
}

impl SinkKind for NatsKind {
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
        let what = "the password or token and the events are sent without TLS: others on the way \
                    can read them";
        let warning = Check::warn(what, "set tls = true in [sink.nats]");
        let warning = self.plain_text.then_some(warning);
        let expiry = self.files.expiry_warning();
        warning.into_iter().chain(expiry).collect()
    }

    fn factory(&self, stats: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        let stats = stats.unwrap_or_default();
        let factory = NatsSinkFactory {
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
        let exclusive = self.settings.exclusive_stream.as_deref();
        check::check(&self.login, self.settings.max_message, exclusive, &input)
    }

    fn risks(&self, topics: &[String]) -> Option<Vec<Check>> {
        let exclusive = self.settings.exclusive_stream.as_deref();
        check::risks(&self.login, exclusive, topics)
    }

    fn readable_topics(&self) -> Result<&dyn ReadableTopics, &'static str> {
        Ok(&self.topics)
    }

    fn dead_letters(&self) -> Option<&dyn DeadLetterStore> {
        Some(&self.dead_letters)
    }

    fn dead_letter_obstacle(&self, topic: &str) -> Option<String> {
        check::dead_letter_obstacle(&self.login, topic)
    }
}
