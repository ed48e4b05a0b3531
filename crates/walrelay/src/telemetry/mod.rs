//! Logging, and the telemetry of a running relay.
//!
//! - `environment`: the pipeline's environment, which collects telemetry. `summary`, `latencies`:
//!   the figures of it that are logged.
//! - `observed`: [`Telemetry`], from which the HTTP endpoint reports, with the state in `live`.
//!   `monitor` adds the server's view of the slot, `recent` the last warnings and errors.
//! - `report`: the status document. `metrics`: its figures in the OpenMetrics format. `otlp`:
//!   metrics and spans for OpenTelemetry; the spans are made of `batches`.

mod batches;
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
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use walrelay_pgoutput::PgTimestamp;

use crate::cli::colours;
use crate::config::{Log, LogFormat};

pub(crate) use environment::RelayEnvironment;
pub(crate) use latencies::Latencies;
pub(crate) use metrics::{CONTENT_TYPE as METRICS_TYPE, text as metrics_text};
pub(crate) use monitor::{SlotMonitor, slot_report};
pub(crate) use observed::{Setup, Telemetry};
pub(crate) use otlp::Exporter;
pub(crate) use recent::RecentErrors;
pub(crate) use report::{BookmarkReport, SlotReport, SnapshotReport, StatusReport};

/// Logs to standard error, and returns the list of the last warnings and errors. JSON lines have
/// the member `slot`. A second call changes nothing: the first subscriber stays.
pub(crate) fn log_to_stderr(
    log: Log,
    slot: Option<&str>,
    env: &dyn Fn(&str) -> Option<String>,
) -> RecentErrors {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(colours(io::stderr().is_terminal(), env))
        // If a line cannot be written, as to a full disk, the error would be written to standard
        // error as well, and that panics.
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
        .with(LevelFilter::from_level(log.level))
        .with(lines)
        .with(recent.clone());
    // Fails if a subscriber is set already.
    let _ = subscriber.try_init();
    recent
}

/// The first bytes of each JSON line: the brace and the member `slot`.
fn json_fields(slot: Option<&str>) -> Arc<str> {
    match slot {
        Some(slot) => format!("{{\"slot\":{},", serde_json::Value::from(slot)).into(),
        None => "{".into(),
    }
}

/// Writes to standard error, with `fields` at the beginning of each JSON object.
///
/// A span could not hold them: threads of client libraries have none. `tracing_subscriber` writes
/// each line with one call.
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

/// The wall clock in milliseconds since 1970.
pub(crate) fn millis_now() -> u64 {
    u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock in microseconds since 1970.
pub(crate) fn micros_now() -> i64 {
    i64::try_from(since_epoch().as_micros()).unwrap_or(i64::MAX)
}

/// The wall clock as a Postgres timestamp.
pub(crate) fn wall_clock() -> PgTimestamp {
    PgTimestamp::from_unix_micros(micros_now()).unwrap_or(PgTimestamp::new(0))
}

fn since_epoch() -> Duration {
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}
