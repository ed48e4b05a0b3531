//! Translates a configuration of Debezium into one of walrelay. No other crate of this workspace
//! knows the names of Debezium's properties.
//!
//! - [`Input::parse`] reads the JSON of a connector, its properties, or Debezium Server's
//!   `application.properties`.
//! - [`translate`] applies `rules`, which are tables of properties and their meaning: `source`,
//!   `router`, `converters` and `producer`, then `connector` for all other properties.
//! - [`Imported`] has the TOML and the [`Report`].
//!
//! Invariants: no I/O, no clock, no environment. Each setting is in the report exactly once. The
//! report contains no values; the TOML contains secrets only with [`Options::with_secrets`].
//! walrelay's own configuration, behind [`ConfigCheck`], has read every line of the TOML.

mod draft;
mod input;
mod report;
mod rules;
mod translation;

pub use input::{Input, InputError};
pub use report::{Note, Outcome, Report, Row, Variable};

use input::Program;
use translation::Translation;

/// Options of a translation, which the input does not contain.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// The outbox tables, in place of those in `table.include.list`.
    pub tables: &'a [String],
    /// Write passwords into the TOML. Without this they come from the environment.
    pub with_secrets: bool,
}

/// walrelay's own configuration, which validates the translation.
pub trait ConfigCheck {
    /// Returns the reason why `[sink.kafka]` refuses this value of this property, regardless of the
    /// other properties.
    fn refused_property(&self, name: &str, value: &str) -> Option<String>;

    /// Reads a configuration.
    ///
    /// # Errors
    /// All problems of the configuration.
    fn read(&self, toml: &str) -> Result<Vec<Warning>, Vec<Problem>>;
}

/// A reason to refuse a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line of the TOML, from 1; `None` if no line is at fault.
    pub line: Option<usize>,
    /// The fault, and the remedy.
    pub why: String,
}

/// A warning about a valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Key of the configuration.
    pub about: &'static str,
    /// The fault, and the remedy.
    pub text: String,
}

/// The result of a translation.
#[derive(Debug, Clone)]
pub struct Imported {
    /// walrelay's configuration; unusable if `fatal` is not empty.
    pub toml: String,
    /// The outcome of each setting.
    pub report: Report,
    /// The reasons why no configuration can be written.
    pub fatal: Vec<String>,
}

/// Translates a configuration of Debezium.
pub fn translate(input: Input, options: Options<'_>, config: &dyn ConfigCheck) -> Imported {
    let from = match (input.program, &input.name) {
        (Program::Connect, Some(name)) => format!("the connector {name} of Kafka Connect"),
        (Program::Connect, None) => "a connector of Kafka Connect".to_owned(),
        (Program::Server, _) => "Debezium Server's application.properties".to_owned(),
    };
    let mut translation = Translation::new(input, options.with_secrets, config);
    rules::apply(&mut translation, options.tables);
    translation.check();
    let mut imported = translation.finish();
    let heading = heading(&from, &imported.report);
    imported.toml.insert_str(0, &heading);
    imported
}

/// Writes the comments at the top of the configuration.
fn heading(from: &str, report: &Report) -> String {
    let mut lines = vec![
        format!("# Written by `walrelay import-debezium` from {from}."),
        "# The hand-over, step by step: docs/start/debezium.md.".to_owned(),
    ];
    for (at, key) in report.unsupported().enumerate() {
        if at == 0 {
            let what = "# Not supported and left out; the report says what to do instead:";
            lines.extend(["#".to_owned(), what.to_owned()]);
        }
        lines.push(format!("#   {key}"));
    }
    let lines = lines.iter().map(|line| draft::printable(line) + "\n");
    lines.collect()
}
