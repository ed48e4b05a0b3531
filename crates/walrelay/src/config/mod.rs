//! Reads the configuration: a TOML file, `--set` and environment variables.
//!
//! # Contents
//! - [`Config`] and its parts: the checked configuration, with defaults filled in. [`PipelineConfig`]
//!   has the sections of a pipeline, [`ProcessConfig`] those of the process.
//! - [`ConfigError`], [`Problem`], [`Location`]: all problems, each with line, column, an excerpt and
//!   a remedy.
//!
//! # Inside
//! `sections` declares every key once and checks combinations of keys. `templates` has the types of
//! values that are templates. `walrelay-settings` reads the file; the sections of Postgres and
//! of the sinks are in the crates that they configure.
//!
//! # Invariants
//! - Struct, reader, known names, defaults and the reference in `docs/reference/configuration.md` follow from
//!   one declaration.
//! - Two options of Debezium change no record (`table.field.event.type`, `topic.prefix`), because
//!   they change none in Debezium either under these settings; the reference says so.
//! - No value of a secret key or of an environment variable is part of `Debug` output.

#[doc(hidden)]
pub mod fuzzing;
mod sections;
mod templates;

#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::LazyLock;

use tracing::Level;
use walrelay_event_router::{Address, CloudEvents, ColumnNames, HeadersFrom};
use walrelay_settings::{ReadFile, Section as _};

pub use walrelay_settings::{ConfigError, Location, Problem};

#[cfg(test)]
pub(crate) use schema_tests::problems as schema_problems;
pub use sections::{
    AuditSettings, BackoffLimits, Debezium, Delivery, Guarantee, Http, Log, LogFormat, Otel,
    Poison, Prune, Retention, RouterConfig, SinkConfig, Slo, SnapshotMode, SourceSection,
    preset_names, sink_names,
};
pub(crate) use sections::{DEFAULT_KIND, Sample, sample};
#[cfg(test)]
pub(crate) use sections::{SinkSection, SinkSettings, StdoutSection, descriptions};

/// Returns the JSON Schema of the configuration file, with a newline at its end.
pub(crate) fn json_schema() -> String {
    let description = "The configuration of walrelay. Printed by `walrelay schema`; \
                       docs/reference/configuration.md explains each key, and `walrelay check \
                       --offline` finds the mistakes that a schema cannot.";
    format!(
        "{:#}\n",
        sections::KEYS.json_schema("walrelay.toml", description)
    )
}

/// Expands a string of the file in an empty environment, for tests of code that writes such files.
#[cfg(test)]
pub(crate) fn expand_for_tests(raw: &str) -> String {
    walrelay_settings::expand(raw, &|_| None).expect("no variable")
}

/// The whole configuration: the sections of a pipeline and those of the process. `Debug` shows no
/// secrets.
#[derive(Debug, Clone)]
pub struct Config {
    /// The sections of the pipeline.
    pub pipeline: PipelineConfig,
    /// The sections of the process, which hold for any number of pipelines.
    pub process: ProcessConfig,
}

/// The sections that describe one pipeline.
#[derive(Debug, Clone)]
pub struct PipelineConfig {
    /// `[source]`: the Postgres server, slot, publication and tables.
    pub source: SourceSection,
    /// `[router]`: how rows become records.
    pub router: RouterConfig,
    /// `[router.cloudevents]`: how records become CloudEvents; `None`: they do not.
    pub cloud_events: Option<CloudEvents>,
    /// The columns with more headers.
    pub headers_from: Option<HeadersFrom>,
    /// Name of the header that carries each event's position. Not empty, and no other header has
    /// it.
    pub position_header: Option<String>,
    /// Other names of columns: rows from before a column was renamed have the name of then.
    pub column_names: ColumnNames,
    /// `[router.registry]`: the schema registry, if values are in its wire format.
    pub registry: Option<walrelay_schema_registry::RegistrySettings>,
    /// `[sink]`: where records are sent.
    pub sink: SinkConfig,
    /// The templates of the sink's address; `None`: the topic of the route is the address.
    pub address: Option<Address>,
    /// `[delivery]`: limits of records in flight, pauses between retries.
    pub delivery: Delivery,
    /// `[poison]`: what happens to events that cannot be delivered.
    pub poison: Poison,
    /// `[retention]`: the rolling bookmark that the running relay keeps for replays.
    pub retention: Option<Retention>,
    /// `[prune]`: which confirmed rows are deleted. `None`: rows from before the slot forbid it.
    pub prune: Option<Prune>,
    /// `[audit]`: the look for rows that were never seen.
    pub audit: Option<AuditSettings>,
    /// Keys and values of the whole configuration, the process's sections included, as written in
    /// the file and on the command line, with defaults and without secrets.
    pub shown: Vec<(String, String)>,
    /// A hash of the file, `--set`, and the contents of the variables and files that it names, with a key of this
    /// process: equal for two reads of the same configuration.
    pub digest: u64,
}

impl PipelineConfig {
    /// Returns the name of the pipeline in the log, metrics and requests: that of its slot.
    pub fn name(&self) -> &str {
        &self.source.slot
    }
}

/// The sections that describe the process.
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// `[http]`: the endpoint of metrics, health and status.
    pub http: Option<Http>,
    /// `[otel]`: the collector that metrics and spans are sent to.
    pub otel: Option<Otel>,
    /// `[slo]`: how soon events are to be acknowledged.
    pub slo: Slo,
    /// `[log]`: level and format of the log.
    pub log: Log,
}

impl Config {
    /// Reads the file at `path`.
    ///
    /// `overrides` are `key=value` texts that take precedence over the file. A value is bare text
    /// if the key takes a string and the value does not begin with a quote, and TOML otherwise.
    /// `env` looks up environment variables for `${NAME}`.
    ///
    /// # Errors
    /// All problems, not only the first.
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
                let help = match error.kind() {
                    ErrorKind::NotFound => {
                        "name another one with --config FILE; walrelay new writes a first one"
                    }
                    ErrorKind::PermissionDenied => {
                        "let the user that walrelay runs as read it, and search the folders above it"
                    }
                    ErrorKind::InvalidData => "it is no text in UTF-8: save it as such",
                    _ => "name another one with --config FILE",
                };
                Err(ConfigError::new(vec![Problem {
                    help: Some(help.to_owned()),
                    source: Some(error),
                    ..Problem::new("config-file", Location::File { name }, what)
                }]))
            }
        }
    }

    /// Reads `[log]` alone, whatever else is wrong: the log gets the errors of [`Config::load`]. The
    /// defaults apply where the section cannot be read.
    pub fn log_of_refused(
        path: &Path,
        overrides: &[String],
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Log {
        let files = |path: &Path| std::fs::read_to_string(path);
        let log = |text: &str, overrides: &[String]| {
            let read = walrelay_settings::read(text, "", overrides, env, &files, &sections::KEYS);
            Log::read(&mut read.ok()?).ok()
        };
        // A FIFO is not read again: `load` has taken its text.
        let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
        let text = if is_file {
            std::fs::read_to_string(path).unwrap_or_default()
        } else {
            String::new()
        };
        log(&text, overrides)
            .or_else(|| log("", overrides))
            .unwrap_or(Log {
                level: Level::INFO,
                format: LogFormat::Auto,
            })
    }

    /// Reads `text`. Messages name it `file_name`, and relative names of secret files are looked up
    /// beside that file.
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
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let hasher = RefCell::new(KEY.build_hasher());
    let note = |text: Option<&str>| text.hash(&mut *hasher.borrow_mut());
    note(Some(text));
    for set in overrides {
        note(Some(set));
    }
    let env = |name: &str| {
        let value = env(name);
        note(value.as_deref());
        value
    };
    let files = |path: &Path| {
        let content = files(path);
        note(content.as_deref().ok());
        content
    };
    let mut reader =
        walrelay_settings::read(text, file_name, overrides, &env, &files, &sections::KEYS)?;
    let config = sections::config(&mut reader);
    let problems = reader.into_problems();
    match config {
        Ok(mut config) if problems.is_empty() => {
            config.pipeline.digest = hasher.borrow().finish();
            Ok(config)
        }
        _ => Err(ConfigError::new(problems)),
    }
}
