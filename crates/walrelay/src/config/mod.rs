//! The configuration file: TOML, read strictly.
//!
//! # Contents
//! - [`Config`] and its parts: what the rest of the program sees, checked and with defaults in.
//! - [`ConfigError`], [`Problem`], [`Place`]: everything that is wrong, each with line, column, the
//!   line itself and a remedy.
//!
//! # Invariants
//! - All keys stand in one table (`keys.rs`), from which the checks, the defaults and the reference
//!   in `docs/CONFIGURATION.md` follow.
//! - A key that is known and not yet supported is refused, not ignored. Two options of Debezium are
//!   accepted without effect, because they have none there either under these settings
//!   (`table.field.event.type`, `topic.prefix`); the reference says so.
//! - No value of a secret key, and no value of an environment variable, is part of an error or of
//!   a `Debug` form. Messages show lines as they stand in the file, up to the equals sign where the
//!   line may hold a secret.

mod document;
mod encoding;
mod error;
mod excerpt;
mod expand;
#[doc(hidden)]
pub mod fuzzing;
mod kafka;
mod keys;
mod messages;
mod oauthbearer;
mod reader;
mod registry;
mod route;
mod router;
mod table_name;
mod types;
mod units;

#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret;
use walrelay_relay::{PoisonAction, TableName};

/// What a string of the file means where the environment is empty; for tests of who writes such
/// files.
#[cfg(test)]
pub(crate) fn expand_for_tests(raw: &str) -> String {
    expand::expand(raw, &|_| None).expect("no variable")
}

pub use error::{ConfigError, Place, Problem};
pub use types::{
    Backoff, Bearer, Config, Debezium, Delivery, KafkaProperties, KafkaSink, Log, LogFormat,
    LogLevel, Poison, Registry, RegistryLogin, Router, SchemaFile, SinkConfig, Source, TokenOrigin,
    TopicCreation,
};

use document::Document;
use excerpt::SourceText;
use reader::{ReadFile, Reader};

impl Config {
    /// Reads the file at `path`.
    ///
    /// `overrides` are `key=value` texts that win over the file: the value is taken as bare text
    /// where the key wants a string and does not begin with a quote, as TOML otherwise. `env` looks
    /// up environment variables for `${NAME}`.
    ///
    /// # Errors
    /// Everything that is wrong, not only the first thing.
    pub fn load(
        path: &Path,
        overrides: &[String],
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &name, overrides, env),
            Err(error) => Err(ConfigError::new(vec![Problem {
                id: "config-file",
                place: Place::File { name },
                what: "cannot read the configuration file".to_owned(),
                excerpt: None,
                help: Some("name another one with --config FILE".to_owned()),
                source: Some(error),
            }])),
        }
    }

    /// Reads `text`; `file_name` is how messages name it, and relative names of secret files are
    /// looked up beside it.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(
        text: &str,
        file_name: &str,
        overrides: &[String],
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let files = |path: &Path| std::fs::read_to_string(path);
        parse_with(text, file_name, overrides, env, &files)
    }
}

fn parse_with(
    text: &str,
    file_name: &str,
    overrides: &[String],
    env: &dyn Fn(&str) -> Option<String>,
    files: ReadFile<'_>,
) -> Result<Config, ConfigError> {
    let source = SourceText {
        name: file_name,
        text,
    };
    let document = Document::read(source, overrides, env);
    if document
        .problems
        .iter()
        .any(|problem| problem.id == "config-syntax")
    {
        // Nothing was read: every required key would be reported as missing.
        return Err(ConfigError::new(document.problems));
    }
    let mut reader = Reader::new(document, files);
    let config = build(&mut reader);
    let problems = reader.into_problems();
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(ConfigError::new(problems)),
    }
}

/// `None` only when a problem was noted. Everything is read before anything is given up, so that
/// all problems are noted.
fn build(reader: &mut Reader<'_>) -> Option<Config> {
    let source = source(reader);
    let lookups = route::lookups(reader);
    let router = router::router(reader, &lookups);
    let registry = registry::registry(reader, &lookups);
    let format = registry.as_ref().map(|registry| registry.wire.format);
    let cloud_events = encoding::cloud_events(reader, &lookups, format);
    encoding::agree(
        reader,
        router.as_ref(),
        registry.as_ref(),
        cloud_events.as_ref(),
    );
    let position_header = encoding::position_header(reader, router.as_ref(), cloud_events.as_ref());
    let sink = sink(reader);
    let delivery = delivery(reader);
    let poison = poison(reader);
    let level = reader
        .choice("log.level")
        .and_then(|index| LogLevel::ALL.get(index).copied());
    let format = reader
        .choice("log.format")
        .and_then(|index| LogFormat::ALL.get(index).copied());
    Some(Config {
        source: source?,
        router: router?,
        cloud_events,
        position_header,
        registry,
        sink: sink?,
        delivery: delivery?,
        poison: poison?,
        log: Log {
            level: level?,
            format: format?,
        },
    })
}

fn source(reader: &mut Reader<'_>) -> Option<Source> {
    let any_url = reader.has("source.url") || reader.has("source.url_file");
    if !any_url {
        let example = "\"postgres://relay:${PGPASSWORD}@localhost:5432/app\"";
        reader.missing("source.url", example);
    }
    let url = any_url
        .then(|| reader.secret("source.url", "source.url_file"))
        .flatten();
    let password = reader.secret("source.password", "source.password_file");
    if let Some(url) = &url {
        let text = url.value.expose_secret();
        let known = text.starts_with("postgres://") || text.starts_with("postgresql://");
        if !known {
            let why = "it must begin with postgres:// or postgresql://";
            reader.invalid("source.url", &url.origin, why);
        } else if let Some(password) = &password
            && has_password(text)
        {
            let what = "a password stands in the URL and in `source.password_file`".to_owned();
            let help = Some("keep one of them".to_owned());
            reader.note(&password.origin, None, "config-conflict", what, help);
        }
    }
    let slot = reader.parsed("source.slot", slot_name);
    let publication = reader.parsed("source.publication", |text| {
        table_name::identifier(text).map(|()| text.to_owned())
    });
    let tables = tables(reader);
    let messages = messages::prefix(reader);
    let create = reader.boolean("source.create");
    let failover = reader.boolean("source.failover");
    let state_file = reader.path("source.state_file");
    let retained_wal_warning = reader.size("source.retained_wal_warning", &(0..=(1 << 60)));
    let second = Duration::from_secs(1);
    let status_interval = reader.duration(
        "source.status_interval",
        Duration::from_millis(10),
        Some(second),
    );
    // GUC_UNIT_MS in a 32-bit integer.
    let most = Duration::from_millis(2_147_483_647);
    let wal_sender_timeout = reader.duration("source.wal_sender_timeout", second, Some(most));
    let receive_timeout = if reader.has("source.receive_timeout") {
        reader.duration("source.receive_timeout", second, None)
    } else {
        wal_sender_timeout
    };
    Some(Source {
        url: url?.value,
        password: password.map(|found| found.value),
        slot: slot?,
        publication: publication?,
        tables,
        messages,
        create,
        failover,
        state_file,
        retained_wal_warning: retained_wal_warning?,
        status_interval: status_interval?,
        receive_timeout: receive_timeout?,
        wal_sender_timeout: wal_sender_timeout?,
    })
}

/// Whether the part of the URL before the hosts has a password, as RFC 3986 places it.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority
        .rsplit_once('@')
        .and_then(|(user, _)| user.split_once(':'))
        .is_some_and(|(_, password)| !password.is_empty())
}

/// `ReplicationSlotValidateName`: lower-case dead letters, digits and underscores, below `NAMEDATALEN`.
fn slot_name(text: &str) -> Result<String, String> {
    let plain = text
        .bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    if plain && (1..=table_name::MAX_IDENTIFIER_BYTES).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err(
            "the name of a slot is 1 to 63 of lower-case letters, digits and underscores"
                .to_owned(),
        )
    }
}

fn tables(reader: &mut Reader<'_>) -> Vec<TableName> {
    let path = "source.tables";
    let mut tables: Vec<TableName> = Vec::new();
    if !reader.has(path) && messages::suffice(reader) {
        return tables;
    }
    for (text, span, origin) in reader.list(path) {
        let why = match table_name::parse(&text) {
            Ok(table) if tables.contains(&table) => "a table is named twice".to_owned(),
            Ok(table) => {
                tables.push(table);
                continue;
            }
            Err(why) => why,
        };
        let what = format!("invalid value of `{path}`: {why}");
        let help =
            Some("for example: tables = ['public.outbox', '\"My Schema\".\"Tab\"']".to_owned());
        reader.note(&origin, span.as_ref(), "config-invalid-value", what, help);
    }
    tables
}

fn sink(reader: &mut Reader<'_>) -> Option<SinkConfig> {
    let kind = reader.choice("sink.kind");
    let properties = KafkaProperties(reader.properties());
    let bearer = oauthbearer::bearer(reader);
    let confirm = reader.boolean("sink.stdout.confirm");
    let create = reader.boolean("sink.topics.create");
    let partitions = reader.integer("sink.topics.partitions", &(1..=100_000));
    let replication_factor = reader.integer("sink.topics.replication_factor", &(1..=1_000));
    for path in ["sink.topics.partitions", "sink.topics.replication_factor"] {
        if reader.has(path) && !create {
            let what = format!("`{path}` has no effect while `sink.topics.create` is false");
            reader.conflict(path, what);
        }
    }
    // Kafka's settings may stay in the file while one tries things out on standard output.
    if kind? == 1 {
        return Some(SinkConfig::Stdout { confirm });
    }
    kafka::check(reader, &properties);
    Some(SinkConfig::Kafka(KafkaSink {
        properties,
        topics: TopicCreation {
            create,
            partitions,
            replication_factor,
        },
        bearer,
    }))
}

fn poison(reader: &mut Reader<'_>) -> Option<Poison> {
    let mut action = |name: &str| {
        let index = reader.choice(&format!("poison.{name}"))?;
        // In the order of the key's choices.
        let actions = [
            PoisonAction::Halt,
            PoisonAction::DeadLetter,
            PoisonAction::Skip,
        ];
        actions.get(index).copied()
    };
    let unroutable = action("unroutable");
    let oversize = action("oversize");
    let rejected = action("rejected");
    let undecodable = action("undecodable");
    let topic = reader.parsed("poison.topic", topic_name);
    let park_key = reader.boolean("poison.park_key");
    let retry_for = reader.duration("poison.retry_for", Duration::from_secs(1), None);
    let poison = Poison {
        unroutable: unroutable?,
        oversize: oversize?,
        rejected: rejected?,
        undecodable: undecodable?,
        topic: topic?,
        park_key,
        retry_for: retry_for?,
    };
    if park_key && !poison.writes_letters() {
        let what = "`poison.park_key` has no effect while nothing becomes a dead letter".to_owned();
        reader.conflict("poison.park_key", what);
    }
    Some(poison)
}

fn topic_name(text: &str) -> Result<String, String> {
    walrelay_kafka_sink::topic_name_problem(text).map_or_else(|| Ok(text.to_owned()), Err)
}

fn delivery(reader: &mut Reader<'_>) -> Option<Delivery> {
    reader.choice("delivery.guarantee");
    let records = reader.integer("delivery.max_in_flight_records", &(1..=16_777_216));
    let bytes = reader.size("delivery.max_in_flight_bytes", &((64 << 10)..=(1 << 30)));
    let longest = Some(Duration::from_secs(1));
    let bulk_linger = reader.duration("delivery.bulk_linger", Duration::ZERO, longest);
    let drain = reader.duration("delivery.drain_timeout", Duration::from_secs(1), None);
    let initial = reader.duration("delivery.backoff_initial", Duration::from_millis(1), None);
    let max = reader.duration("delivery.backoff_max", Duration::from_millis(1), None);
    if let (Some(initial), Some(max)) = (initial, max)
        && initial > max
    {
        // One of them is not the default, for the defaults agree.
        let path = if reader.has("delivery.backoff_max") {
            "delivery.backoff_max"
        } else {
            "delivery.backoff_initial"
        };
        let what = "`delivery.backoff_max` is shorter than `delivery.backoff_initial`".to_owned();
        reader.conflict(path, what);
    }
    Some(Delivery {
        max_in_flight_records: records?,
        max_in_flight_bytes: bytes?,
        bulk_linger: bulk_linger?,
        drain_timeout: drain?,
        backoff: Backoff {
            initial: initial?,
            max: max?,
        },
    })
}
