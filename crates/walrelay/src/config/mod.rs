//! The configuration file: TOML, read strictly.
//!
//! # Contents
//! - [`Config`] and its parts: what the rest of the program sees, checked and with defaults in.
//! - [`ConfigError`], [`Problem`], [`Place`]: everything that is wrong, each with line, column, the
//!   line itself and a remedy.
//!
//! # Inside
//! `sections` declares every key once and checks what keys mean together; `declare` is the macro and
//! the types of values behind it; `keys` is the table of names that follows; `document` reads TOML and
//! `--set` into entries; `reader` gives entries out and collects problems; `excerpt` shows lines.
//!
//! # Invariants
//! - The struct, its reader, the check of names, the defaults and the reference in
//!   `docs/CONFIGURATION.md` follow from one declaration.
//! - A key that is known and not yet supported is refused, not ignored. Two options of Debezium
//!   change no record, because they do not there either under these settings
//!   (`table.field.event.type`, `topic.prefix`); the reference says so.
//! - No value of a secret key, and no value of an environment variable, is part of an error or of
//!   a `Debug` form. Messages show lines as they stand in the file, up to the equals sign where the
//!   line may hold a secret.

mod declare;
mod document;
mod error;
mod excerpt;
mod expand;
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod reader;
mod sections;
mod table_name;
mod units;

#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod tests;

use std::path::Path;

use walrelay_event_router::CloudEvents;

pub use error::{ConfigError, Place, Problem};
pub use sections::{
    Backoff, Bearer, Debezium, Delivery, Guarantee, Http, KafkaProperties, KafkaSink, Log,
    LogFormat, LogLevel, Otel, Poison, Prune, Registry, RegistryLogin, Retention, Router,
    SchemaFile, SinkConfig, SnapshotMode, Source, TokenOrigin, TopicCreation,
};

pub(crate) use units::duration;

use document::Document;
use excerpt::SourceText;
use reader::{ReadFile, Reader};

/// What a string of the file means where the environment is empty; for tests of the code that writes
/// such files.
#[cfg(test)]
pub(crate) fn expand_for_tests(raw: &str) -> String {
    expand::expand(raw, &|_| None).expect("no variable")
}

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
    /// What the running relay keeps for replays.
    pub retention: Option<Retention>,
    /// Which confirmed rows are deleted. `None`: rows from before the slot are in the way.
    pub prune: Option<Prune>,
    /// Where metrics, health and status are served.
    pub http: Option<Http>,
    /// Where metrics and spans are sent.
    pub otel: Option<Otel>,
    /// What is logged.
    pub log: Log,
    /// What the file and the command line say, and defaults, by key; without secrets.
    pub shown: Vec<(String, String)>,
}

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
            Err(error) => {
                let what = "cannot read the configuration file".to_owned();
                Err(ConfigError::new(vec![Problem {
                    help: Some("name another one with --config FILE".to_owned()),
                    source: Some(error),
                    ..Problem::new("config-file", Place::File { name }, what)
                }]))
            }
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
    let document = Document::read(source, &sections::KEYS, overrides, env);
    let mut problems = document.problems.iter();
    if problems.any(|problem| problem.id == "config-syntax") {
        // Nothing was read: every required key would be reported as missing.
        return Err(ConfigError::new(document.problems));
    }
    let mut reader = Reader::new(document, files);
    let config = sections::config(&mut reader);
    let problems = reader.into_problems();
    match config {
        Ok(config) if problems.is_empty() => Ok(config),
        _ => Err(ConfigError::new(problems)),
    }
}
