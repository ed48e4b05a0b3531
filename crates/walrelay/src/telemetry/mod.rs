//! Logging, and what a run tells about itself.

mod environment;
mod latencies;
mod summary;

use std::io::{self, IsTerminal};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::level_filters::LevelFilter;
use walrelay_pgoutput::PgTimestamp;

use crate::cli::colours;
use crate::config::{Log, LogFormat, LogLevel};

pub(crate) use environment::World;
pub(crate) use latencies::Latencies;

/// Sends log lines to standard error. Called once; a second call changes nothing.
pub(crate) fn log_to_stderr(log: Log, env: &dyn Fn(&str) -> Option<String>) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(colours(io::stderr().is_terminal(), env))
        // The error of a line that cannot be written, to a full disk for example, would be written to the
        // same place, and that panics.
        .log_internal_errors(false);
    // Fails if there is a subscriber already: that one stays.
    let _ = match log.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// The wall clock as Postgres counts.
pub(crate) fn wall_clock() -> PgTimestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    PgTimestamp::from_unix_micros(micros).unwrap_or(PgTimestamp::new(0))
}
