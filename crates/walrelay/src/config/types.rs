//! What a configuration is, once it was checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use walrelay_event_router::{CloudEvents, Templates, WireFormat};
use walrelay_relay::{OnUpdate, PoisonAction, TableName};

use super::keys;

/// A whole configuration. `Debug` shows no secrets.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where rows come from.
    pub source: Source,
    /// How rows become records.
    pub router: Router,
    /// Whether records are CloudEvents.
    pub cloud_events: Option<CloudEvents>,
    /// The header that carries each event's position; not empty, and no other header of the route.
    pub position_header: Option<String>,
    /// Whether values are in a schema registry's wire format.
    pub registry: Option<Registry>,
    /// Where records go.
    pub sink: SinkConfig,
    /// How hard it is tried.
    pub delivery: Delivery,
    /// What happens to events that cannot be delivered.
    pub poison: Poison,
    /// What is logged.
    pub log: Log,
}

/// `[source]`.
#[derive(Debug, Clone)]
pub struct Source {
    /// A `postgres://` URL, as written; only its scheme was looked at.
    pub url: SecretString,
    /// The content of `password_file`, for a URL without a password.
    pub password: Option<SecretString>,
    /// The replication slot; `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// The publication; not empty, at most 63 bytes.
    pub publication: String,
    /// The outbox tables; no table twice, and at least one unless there are messages.
    pub tables: Vec<TableName>,
    /// The prefix of messages that are events.
    pub messages: Option<String>,
    /// Whether slot and publication are created when absent.
    pub create: bool,
    /// Whether the slot is created as a failover slot.
    pub failover: bool,
    /// Where the relay notes how far it has come.
    pub state_file: Option<PathBuf>,
    /// Bytes of WAL kept for the slot from which on a warning is due; 0 for never.
    pub retained_wal_warning: u64,
    /// Longest time between two status updates; at most a second.
    pub status_interval: Duration,
    /// Silence after which the connection counts as dead; `wal_sender_timeout` unless the file says
    /// otherwise.
    pub receive_timeout: Duration,
    /// `wal_sender_timeout` of the replication session.
    pub wal_sender_timeout: Duration,
}

/// `[router]`.
#[derive(Clone, PartialEq, Eq)]
pub enum Router {
    /// Preset `debezium`.
    Debezium(Box<Debezium>),
    /// The other presets, as changed by `[router.route]`.
    Templates(Box<Templates>),
}

/// Without templates: they may hold what stands in the environment.
impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debezium(debezium) => debezium.fmt(f),
            Self::Templates(_) => f.debug_tuple("Templates").finish_non_exhaustive(),
        }
    }
}

/// `[router.debezium]` and `[router.converters]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debezium {
    /// Everything but the context headers, which are known when the relay starts.
    pub options: walrelay_event_router::Options,
    /// `extended.headers.enabled`.
    pub context_headers: bool,
    /// `table.op.invalid.behavior`.
    pub on_update: OnUpdate,
}

/// `[router.registry]`.
#[derive(Debug, Clone)]
pub struct Registry {
    /// At least one; without user, password and a slash at the end.
    pub urls: Vec<String>,
    /// Who asks.
    pub login: Option<RegistryLogin>,
    /// Certificates to trust; `None` for those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Whether schemas are registered.
    pub register: bool,
    /// By subject.
    pub schemas: BTreeMap<String, SchemaFile>,
    /// How values are encoded.
    pub wire: WireFormat,
}

/// Who asks a schema registry.
#[derive(Debug, Clone)]
pub enum RegistryLogin {
    /// HTTP basic authentication.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: SecretString,
    },
    /// A bearer token.
    Bearer(SecretString),
}

/// A schema of one's own.
#[derive(Clone, PartialEq, Eq)]
pub struct SchemaFile {
    /// Where it stands.
    pub path: PathBuf,
    /// What stands there: a schema of the configured format.
    pub text: String,
}

/// Without the text: another file may have been named by mistake.
impl fmt::Debug for SchemaFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SchemaFile").field(&self.path).finish()
    }
}

/// `[sink]`.
#[derive(Debug, Clone)]
pub enum SinkConfig {
    /// To Kafka.
    Kafka(KafkaSink),
    /// To standard output, one JSON object a line.
    Stdout {
        /// Whether the slot is read itself, and what is printed confirmed in it.
        confirm: bool,
    },
}

/// `[sink.kafka]` and `[sink.topics]`.
#[derive(Debug, Clone)]
pub struct KafkaSink {
    /// For librdkafka.
    pub properties: KafkaProperties,
    /// Whether and how topics are created.
    pub topics: TopicCreation,
    /// Where tokens come from.
    pub bearer: Option<Bearer>,
}

/// `[sink.oauthbearer]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// Where a token comes from.
    pub origin: TokenOrigin,
    /// How long a token is valid that does not say so itself.
    pub lifetime: Option<Duration>,
    /// How long a command may take.
    pub timeout: Duration,
}

/// Where a token comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenOrigin {
    /// The content of this file.
    File(PathBuf),
    /// What this program prints; first the program, then its arguments. Not empty.
    Command(Vec<String>),
}

/// Without a program's arguments: one may be a secret, whatever it is called.
impl fmt::Debug for TokenOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Command(argv) => {
                let program = argv.first().map_or("", String::as_str);
                f.debug_tuple("Command")
                    .field(&program)
                    .finish_non_exhaustive()
            }
        }
    }
}

/// `[sink.topics]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicCreation {
    /// Whether the relay creates topics; if not, the broker may.
    pub create: bool,
    /// At least 1; `None` takes the broker's default.
    pub partitions: Option<i32>,
    /// At least 1; `None` takes the broker's default.
    pub replication_factor: Option<i16>,
}

/// Properties of librdkafka by their own names, unchecked. `Debug` hides those that look secret.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct KafkaProperties(pub BTreeMap<String, String>);

impl fmt::Debug for KafkaProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(name, value)| {
                let secret = keys::is_secret(name);
                (name, if secret { "[REDACTED]" } else { value.as_str() })
            }))
            .finish()
    }
}

/// `[delivery]`. The guarantee of this version is at-least-once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Records accepted by the sink and not yet reported, at most.
    pub max_in_flight_records: u32,
    /// Their bytes, at most.
    pub max_in_flight_bytes: u64,
    /// How long requests are filled while the relay is behind; zero for never.
    pub bulk_linger: Duration,
    /// How long a stop waits for reports.
    pub drain_timeout: Duration,
    /// Pauses between retries.
    pub backoff: Backoff,
}

/// Pauses between retries: from `initial`, doubling, to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first.
    pub initial: Duration,
    /// The longest; not below `initial`.
    pub max: Duration,
}

/// `[poison]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poison {
    /// For an event without a topic.
    pub unroutable: PoisonAction,
    /// For one that is too large.
    pub oversize: PoisonAction,
    /// For one that the broker refuses.
    pub rejected: PoisonAction,
    /// For one that cannot be read.
    pub undecodable: PoisonAction,
    /// The topic of dead letters; a name that Kafka allows.
    pub topic: String,
    /// Whether later events of a key follow its dead letter.
    pub park_key: bool,
    /// How long a refusal that may pass is waited for.
    pub retry_for: Duration,
}

impl Poison {
    /// Whether any class of events becomes dead letters.
    pub fn writes_letters(&self) -> bool {
        [
            self.unroutable,
            self.oversize,
            self.rejected,
            self.undecodable,
        ]
        .contains(&PoisonAction::DeadLetter)
    }
}

/// `[log]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// How much.
    pub level: LogLevel,
    /// In which form.
    pub format: LogFormat,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// What stops the relay.
    Error,
    /// What somebody should look at.
    Warn,
    /// What happened.
    Info,
    /// What led to it.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// In the order of the key's choices.
    pub(super) const ALL: [Self; 5] = [
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    /// As the file names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// In the order of the key's choices.
    pub(super) const ALL: [Self; 2] = [Self::Text, Self::Json];
}
