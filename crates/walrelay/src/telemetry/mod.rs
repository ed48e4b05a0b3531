//! Logging, and what a run knows of itself.
//!
//! - `environment`: the pipeline's environment, where everything is collected; `summary`, `latencies`: what is logged of
//!   it.
//! - `observed`: the figures that the HTTP endpoint shows, over the state in `live`; `monitor` adds what the server says of the slot,
//!   `recent` the last warnings.
//! - `report`: the document that is made of them; `metrics`: the same as metrics; `otlp`: the same for OpenTelemetry.

mod environment;
mod latencies;
mod live;
mod metrics;
mod monitor;
mod observed;
mod otlp;
mod recent;
mod report;
mod summary;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use walrelay_pgoutput::PgTimestamp;

use crate::cli::colours;
use crate::config::{Log, LogFormat, LogLevel};

pub(crate) use environment::World;
pub(crate) use latencies::Latencies;
pub(crate) use metrics::{
    CONTENT_TYPE as METRICS_TYPE, registry as metrics_registry, text as metrics_text,
};
pub(crate) use monitor::{SlotMonitor, slot_report};
pub(crate) use observed::{RegistryStats, Setup, Telemetry};
pub(crate) use otlp::Exporter;
pub(crate) use recent::RecentErrors;
pub(crate) use report::{BookmarkReport, SlotReport, SnapshotReport, StatusReport};

/// Sends log lines to standard error, and keeps the last warnings and errors. JSON lines name the slot. Called once; a
/// second call changes nothing.
pub(crate) fn log_to_stderr(
    log: Log,
    slot: Option<&str>,
    env: &dyn Fn(&str) -> Option<String>,
) -> RecentErrors {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(colours(io::stderr().is_terminal(), env))
        // The error of a line that cannot be written, to a full disk for example, would be written to the
        // same place, and that panics.
        .log_internal_errors(false);
    let lines = match log.format {
        LogFormat::Auto if io::stderr().is_terminal() => lines.boxed(),
        LogFormat::Text => lines.boxed(),
        LogFormat::Auto | LogFormat::Json => {
            let fields = json_fields(slot);
            lines
                .json()
                .flatten_event(true)
                .with_writer(move || WithFields {
                    fields: Arc::clone(&fields),
                })
                .boxed()
        }
    };
    let recent = RecentErrors::default();
    let subscriber = tracing_subscriber::registry()
        .with(level)
        .with(lines)
        .with(recent.clone());
    // Fails if there is a subscriber already: that one stays.
    let _ = subscriber.try_init();
    recent
}

/// The beginning of each JSON line.
fn json_fields(slot: Option<&str>) -> Arc<str> {
    match slot {
        Some(slot) => format!("{{\"slot\":{},", serde_json::Value::from(slot)).into(),
        None => "{".into(),
    }
}

/// Standard error, which begins each object with the same fields: threads of client libraries have no span that could
/// hold them. `tracing_subscriber` writes a line at once.
struct WithFields {
    fields: Arc<str>,
}

impl Write for WithFields {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let rest = line.strip_prefix(b"{").unwrap_or(line);
        let fields = if rest.len() < line.len() {
            self.fields.as_bytes()
        } else {
            b""
        };
        io::stderr().write_all(&[fields, rest].concat())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Milliseconds since 1970.
pub(crate) fn millis_now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock as Postgres counts.
pub(crate) fn wall_clock() -> PgTimestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    PgTimestamp::from_unix_micros(micros).unwrap_or(PgTimestamp::new(0))
}
