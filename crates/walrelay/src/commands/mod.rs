//! One module per command. Each takes its arguments and returns the failures to report, if any.

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

use crate::cli::{ConfigArgs, Exit, Failure};
use crate::config::{Config, Log, LogLevel};
use crate::telemetry::log_to_stderr;

/// How a command ends.
pub(crate) type Ended = Result<(), Vec<Failure>>;
/// The environment, by name.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

fn load(args: &ConfigArgs, env: Env<'_>) -> Result<Config, Vec<Failure>> {
    Ok(Config::load(&args.config, &args.set, env)?)
}

/// Logs warnings, and less only where it is asked for: what the command says for people tells the rest.
fn log_warnings(config: &Config, slot: Option<&str>, env: Env<'_>) {
    let level = match config.log.level {
        LogLevel::Info => LogLevel::Warn,
        level => level,
    };
    let log = Log {
        level,
        ..config.log
    };
    log_to_stderr(log, slot, env);
}

/// Standard output cannot be written.
fn output(error: std::io::Error) -> Failure {
    Failure::new("output", Exit::Unavailable, "cannot write").caused_by(error)
}
