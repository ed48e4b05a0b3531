//! What is seen of a running relay: logs, metrics, health, the status page, OpenTelemetry.
//!
//! # Contents
//! - [`log_to_stderr`]: the log. [`printable`]: text of others, safe for a log and a terminal. [`RecentErrors`]: its last warnings and errors.
//! - [`RelayEnvironment`]: the observer of a pipeline, which collects telemetry. [`Latencies`]:
//!   the figures of it that are logged at the end.
//! - [`Telemetry`]: all figures of a run. [`StatusReport`]: one document of them, which the HTTP
//!   endpoint serves; [`SlotMonitor`] adds the server's view of the slot.
//! - [`start_endpoint`], [`Exporter`]: the views: metrics in the OpenMetrics format, status, page;
//!   OTLP.
//! - [`sections`]: `[http]`, `[otel]` and `[log]` of the configuration.
//!
//! # Inside
//! `observed` has [`Telemetry`], with the state in `live`. `report` is the status document,
//! `metrics` its figures as text. `otlp` sends metrics and spans, which are made of `batches`.
//! `http` is the endpoint with the page. `background` runs threads that stop when they are dropped.
//!
//! # Invariants
//! - The views and the pipeline share only [`Telemetry`], whose locks are held briefly.
//! - No secret and no value of a row is in a log line, a metric, the report or a span.

mod background;
mod batches;
mod environment;
mod http;
mod latencies;
mod live;
mod metrics;
mod monitor;
mod observed;
mod otlp;
mod printable;
mod recent;
mod report;
pub mod sections;
mod summary;

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use walrelay_pgoutput::PgTimestamp;

use printable::Printable;
use sections::{Log, LogFormat};

pub use background::Background;
pub use environment::RelayEnvironment;
pub use http::{EndpointError, start_endpoint};
pub use latencies::Latencies;
pub use metrics::{CONTENT_TYPE as METRICS_TYPE, text as metrics_text};
pub use monitor::{SlotMonitor, slot_report};
pub use observed::{Setup, Telemetry};
pub use otlp::Exporter;
pub use printable::{is_hidden, printable, printable_json, printable_lines};
pub use recent::RecentErrors;
pub use report::{BookmarkReport, SlotReport, SnapshotReport, StatusReport};

/// Logs to standard error, and returns the list of the last warnings and errors. JSON lines have
/// the member `slot`. A second call changes nothing: the first subscriber stays.
pub fn log_to_stderr(
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
    let text = format::debug_fn(text_field).delimited(" ");
    let lines = match log.format {
        LogFormat::Auto if io::stderr().is_terminal() => lines.fmt_fields(text).boxed(),
        LogFormat::Text => lines.fmt_fields(text).boxed(),
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

/// Writes a field of a line of text, as `tracing_subscriber` does, but escaped.
fn text_field(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() == "message" {
        return write!(Printable(out), "{value:?}");
    }
    if out.has_ansi_escapes() {
        write!(out, "\u{1b}[3m{}\u{1b}[0m\u{1b}[2m=\u{1b}[0m", field.name())?;
    } else {
        write!(out, "{}=", field.name())?;
    }
    write!(Printable(out), "{value:?}")
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
        let text = String::from_utf8_lossy(line);
        let rest = text.strip_prefix('{').unwrap_or(&text);
        let fields = if rest.len() < text.len() {
            &*self.fields
        } else {
            ""
        };
        let shown = [fields, &printable_json(rest)].concat();
        io::stderr().write_all(shown.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The wall clock in milliseconds since 1970.
pub fn millis_now() -> u64 {
    u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock in microseconds since 1970.
pub fn micros_now() -> i64 {
    i64::try_from(since_epoch().as_micros()).unwrap_or(i64::MAX)
}

/// The wall clock as a Postgres timestamp.
pub fn wall_clock() -> PgTimestamp {
    PgTimestamp::from_unix_micros(micros_now()).unwrap_or(PgTimestamp::new(0))
}

fn since_epoch() -> Duration {
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether output may be coloured: only on a terminal that is not `TERM=dumb`, and not if
/// `NO_COLOR` is set (<https://no-color.org>: present and not empty).
pub fn colours(terminal: bool, env: &dyn Fn(&str) -> Option<String>) -> bool {
    let refused = env("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env("TERM").is_some_and(|value| value == "dumb");
    terminal && !refused && !dumb
}

#[cfg(test)]
mod tests {
    use super::colours;

    #[test]
    fn colours_only_on_a_capable_terminal() {
        let with = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        assert!(colours(true, &|_| None));
        assert!(!colours(false, &|_| None));
        assert!(!colours(true, &with("NO_COLOR", "1")));
        assert!(colours(true, &with("NO_COLOR", "")));
        assert!(!colours(true, &with("TERM", "dumb")));
    }
}
