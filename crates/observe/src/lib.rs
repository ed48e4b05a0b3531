//! What is seen of a running relay: logs, metrics, health, the status page, OpenTelemetry.
//!
//! # Contents
//! - [`log_to_stderr`]: the log. [`pipeline_span()`]: names the pipeline of its lines. [`printable()`]:
//!   text of others, safe for a log and a terminal. [`RecentErrors`]: its last warnings and errors.
//! - [`RunObserver`]: the observer of a pipeline, which collects telemetry. [`Latencies`]:
//!   the figures of it that are logged at the end.
//! - [`Telemetry`]: all figures of a pipeline's run. [`Pipelines`]: those of a process. [`StatusReport`]: one document of them, which the HTTP
//!   endpoint serves. [`SourceFacts`]: what a source adds to it.
//! - [`start_endpoint`], [`Exporter`]: the views: metrics in the OpenMetrics format, status, page;
//!   OTLP. [`ServiceManager`]: the state for systemd.
//! - [`sections`]: `[http]`, `[otel]` and `[log]` of the configuration.
//!
//! # Inside
//! `state` has [`Telemetry`], and makes the document of `report` of it. `report` also
//! lists the problems of a relay. `views` shows the document: `http` is the endpoint with the page, `metrics` its figures
//! as text, `otlp` sends metrics and spans. `log` is the log with its last warnings. `dlq` has the dead letters of the
//! page, `event_jobs` its look for an event. `background` runs threads that stop when they are dropped.
//!
//! # Invariants
//! - The views and the pipeline share only [`Telemetry`], whose locks are held briefly.
//! - No secret and no value of a row is in a log line, a metric, the report or a span. The list of dead
//!   letters has keys, and is served with a token alone. The look for an event has the id that the request named.

mod background;
mod dlq;
mod event_jobs;
mod log;
mod report;
pub mod sections;
mod state;
mod views;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use walrelay_relay::PgTimestamp;

pub use background::Background;
pub use dlq::DlqAccess;
pub use event_jobs::{EventCommands, EventJobs};
pub use log::{
    RecentErrors, is_hidden, log_to_stderr, pipeline_span, printable, printable_json,
    printable_lines, subscriber,
};
pub use report::{
    AuditReport, AuditedTable, BookmarkReport, EndpointReport, FormerRunReport, LastErrorReport,
    LossReport, MoveReport, NearLimitReport, OutboxReport, ProblemReport, ProcessReport,
    ReplayReport, STANDBY_REMEDY, SinkReport, SlotReport, SnapshotReport, StatusReport,
    TableLockReport,
};
pub use state::{
    Latencies, Pipelines, ReplaceFile, RunObserver, Setup, SinkSetup, SourceFacts, Telemetry,
};
pub use views::{
    EndpointError, Exporter, METRICS_TYPE, ServiceManager, heartbeat, metrics_text, start_endpoint,
};
pub use walrelay_sink::micros_now;

/// Reads the wall clock in milliseconds since 1970.
pub fn millis_now() -> u64 {
    u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX)
}

/// Reads the wall clock as a Postgres timestamp.
pub fn wall_clock() -> PgTimestamp {
    PgTimestamp::from_unix_micros(micros_now()).unwrap_or(PgTimestamp::new(0))
}

fn since_epoch() -> Duration {
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns true if output may be coloured: only on a terminal that is not `TERM=dumb`, and not if
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
