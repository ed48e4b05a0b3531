//! One module per command. Each has a function that runs the command and returns its failures.

mod bench;
mod bookmark;
mod check;
mod confirm;
mod connect;
mod cutover;
mod demo;
mod dlq;
mod import_debezium;
mod init;
mod pipelines;
mod progress_line;
mod prune;
mod replay;
mod resend;
mod route;
mod run;
mod server;
mod slots;
mod status;
mod units;

pub(crate) use bench::bench;
pub(crate) use bookmark::bookmark;
pub(crate) use check::check;
pub(crate) use cutover::cutover;
pub(crate) use demo::demo;
pub(crate) use dlq::dlq;
pub(crate) use import_debezium::import_debezium;
pub(crate) use init::init;
pub(crate) use prune::prune;
pub(crate) use replay::replay;
pub(crate) use resend::resend;
pub(crate) use route::route;
pub(crate) use run::run;
pub(crate) use slots::slots;
pub(crate) use status::status;

use std::io::{self, Write};
use std::ops::ControlFlow;

use tracing::Level;
use walrelay_observe::log_to_stderr;

use crate::cli::{ConfigArgs, Exit, Failure};
use crate::config::{Config, Log};

/// The result of a command: success, or the failures to print.
pub(crate) type CommandResult = Result<(), Vec<Failure>>;
/// Looks up an environment variable by its name.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

fn load(args: &ConfigArgs, env: Env<'_>) -> Result<Config, Vec<Failure>> {
    Config::load(&args.config, &args.set, env).map_err(Failure::of_config)
}

/// A configuration of one outbox table and of Kafka; everything else has its default.
#[cfg(test)]
fn test_config() -> Config {
    let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n\
                [sink.kafka]\n\"bootstrap.servers\" = \"b:9092\"\n";
    Config::parse(text, "walrelay.toml", &[], &|_| None).unwrap()
}

/// Logs at the configured level, but warnings in place of `info`: the command prints its own
/// progress.
fn log_warnings(config: &Config, slot: Option<&str>, env: Env<'_>) {
    let level = match config.log.level {
        Level::INFO => Level::WARN,
        level => level,
    };
    let log = Log {
        level,
        ..config.log
    };
    log_to_stderr(log, slot, env);
}

/// The failure to write to standard output.
fn write_failed(error: io::Error) -> Failure {
    Failure::new("output", Exit::Unavailable, "cannot write").caused_by(error)
}

/// Prints the output of a command on standard output, by one write. A reader that has gone away, as
/// in `walrelay check | head -1`, is no failure: the exit code says what the command found.
fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
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

/// Prints a line of a command's output on standard output.
fn print_line(line: &str) -> Result<(), Failure> {
    print_text(&format!("{line}\n"))
}

/// Prints a line for the operator on standard error; does nothing if it is closed.
fn print_notice(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
