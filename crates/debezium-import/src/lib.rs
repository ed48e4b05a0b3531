//! Debezium's configuration translated into walrelay's. Nothing else in this workspace knows the
//! names of Debezium's properties.
//!
//! - [`Input::parse`] reads the JSON of a connector, its properties, or Debezium Server's
//!   `application.properties`.
//! - [`translate`] goes through `rules` (`source`, `router`, `converters`, `producer`, and `connector`
//!   for all that is left), which are tables of property and meaning.
//! - [`Imported`] is the TOML and the [`Report`].
//!
//! Invariants: no I/O, no clock, no environment. Each setting is in the report exactly once. The
//! report holds no values; the TOML holds secrets only with [`Options::with_secrets`]. Every line of
//! the TOML was read by walrelay's own configuration, behind [`ConfigCheck`].

mod draft;
mod input;
mod report;
mod rules;
mod translation;

pub use input::{ConnectorError, Input, InputError, Kind, PropertiesError};
pub use report::{Note, Outcome, Report, Row, Variable};

use translation::Translation;

/// What the input does not say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// The outbox tables, instead of those in `table.include.list`.
    pub tables: &'a [String],
    /// Write passwords, which otherwise come from the environment.
    pub with_secrets: bool,
}

/// walrelay's own configuration, which decides what is valid.
pub trait ConfigCheck {
    /// Why `[sink.kafka]` refuses this value of this property, whatever the others are.
    fn refused_property(&self, name: &str, value: &str) -> Option<String>;

    /// Reads a configuration.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    fn read(&self, toml: &str) -> Result<Vec<Warning>, Vec<Problem>>;
}

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// From 1; `None` where it is no line's fault.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub why: String,
}

/// Something to know about a configuration that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// A key of the configuration.
    pub about: &'static str,
    /// What is wrong, and what to do.
    pub text: String,
}

/// What came of a translation.
#[derive(Debug, Clone)]
pub struct Imported {
    /// walrelay's configuration; of no use where something is `fatal`.
    pub toml: String,
    /// What became of each setting.
    pub report: Report,
    /// Why there can be no configuration at all.
    pub fatal: Vec<String>,
}

/// Translates a configuration of Debezium's.
pub fn translate(input: Input, options: Options<'_>, config: &dyn ConfigCheck) -> Imported {
    let from = match (input.kind, &input.name) {
        (Kind::Connect, Some(name)) => format!("the connector {name} of Kafka Connect"),
        (Kind::Connect, None) => "a connector of Kafka Connect".to_owned(),
        (Kind::Server, _) => "Debezium Server's application.properties".to_owned(),
    };
    let mut translation = Translation::new(input, options.with_secrets, config);
    rules::apply(&mut translation, options.tables);
    translation.check();
    let (body, report, fatal) = translation.finish();
    let heading = heading(&from, &report);
    Imported {
        toml: format!("{heading}{body}"),
        report,
        fatal,
    }
}

/// Comments at the top of the configuration.
fn heading(from: &str, report: &Report) -> String {
    let mut lines = vec![
        format!("# Written by `walrelay import-debezium` from {from}."),
        "# The hand-over, step by step: docs/MIGRATING-FROM-DEBEZIUM.md.".to_owned(),
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
