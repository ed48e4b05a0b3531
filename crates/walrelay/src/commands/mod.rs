//! One module per command, in groups: the `use` lines below list which command is in which. Each has
//! a function that runs the command and returns its failures.
//!
//! `assembly` makes the parts of a relay of its configuration, `terminal` talks to the operator, and
//! `topics` reads the sink's topics: the commands use them.

mod assembly;
mod database;
mod dead_letters;
mod delivery;
mod inspect;
mod measure;
mod moves;
mod onboard;
mod terminal;
mod topics;

pub(crate) use database::{bookmark::bookmark, init::init, prune::prune, slots::slots};
pub(crate) use dead_letters::dlq;
pub(crate) use delivery::{replay::replay, resend::resend, run::run};
pub(crate) use inspect::{
    alerts::alerts, check::check, route::route, status::status, stuck::stuck, tail::tail,
    verify_topic::verify_topic, whereabouts::whereabouts,
};
pub(crate) use measure::{bench::bench, demo::demo};
pub(crate) use moves::move_outbox;
pub(crate) use onboard::{
    cutover::cutover, import_debezium::import_debezium, new::new, schema::schema,
};

use std::fmt::Display;
use std::io::{self, Write};
use std::ops::ControlFlow;

use serde::Serialize;
use tracing::Level;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::{log_to_stderr, printable_json};

use crate::cli::{ConfigArgs, Output};
#[cfg(test)]
use crate::config::PipelineConfig;
use crate::config::{Config, Log};

/// The result of a command: success, or the failures to print.
pub(crate) type CommandResult = Result<(), Vec<Failure>>;
/// Looks up an environment variable by its name.
pub(crate) type EnvVars<'a> = &'a dyn Fn(&str) -> Option<String>;

fn load(args: &ConfigArgs, env: EnvVars<'_>) -> Result<Config, Vec<Failure>> {
    Config::load(&args.config, &args.set, env).map_err(crate::cli::from_config)
}

/// Returns a configuration of one outbox table and of Kafka; everything else has its default.
#[cfg(test)]
fn test_config() -> PipelineConfig {
    let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n\
                [sink.kafka]\n\"bootstrap.servers\" = \"b:9092\"\n";
    Config::parse(text, "walrelay.toml", &[], &|_| None)
        .unwrap()
        .pipeline
}

/// Logs at the configured level, but warnings in place of `info`: the command prints its own
/// progress.
fn log_warnings(log: Log, slot: Option<&str>, env: EnvVars<'_>) {
    let level = match log.level {
        Level::INFO => Level::WARN,
        level => level,
    };
    log_to_stderr(Log { level, ..log }, slot.as_slice(), env);
}

/// Returns the failure to write to standard output.
fn write_failed(error: io::Error) -> Failure {
    Failure::new("output", Exit::Unavailable, "cannot write")
        .caused_by(error)
        .remedy("see where standard output leads to: for example a file on a full disk. What the command did is done")
}

/// Prints the output of a command on standard output, by one write. A reader that has gone away, as
/// in `walrelay check | head -1`, is no failure: the exit code says what the command found.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    print_part(bytes).map(drop)
}

/// Prints a part of a command's output as [`print_bytes`] does. Breaks if the reader has gone away,
/// so that nothing more need be read to be printed.
fn print_part(bytes: &[u8]) -> Result<ControlFlow<()>, Failure> {
    let mut out = io::stdout();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(write_failed(error)),
    }
}

/// Prints a text as [`print_bytes`] does.
fn print_text(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Prints the result of a command: as text, or as one object in a line.
fn print_as(output: Output, text: &impl Display, object: &impl Serialize) -> Result<(), Failure> {
    match output {
        Output::Table => print_text(&text.to_string()),
        Output::Json => print_line(&printable_json(&serde_json::json!(object).to_string())),
    }
}

/// Prints a line of a command's output on standard output.
fn print_line(line: &str) -> Result<(), Failure> {
    print_text(&format!("{line}\n"))
}

/// Prints a line for the operator on standard error; does nothing if it is closed.
fn print_notice(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
