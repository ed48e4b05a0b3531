//! Problems of the pipeline: its state, and the ends of the runs before.

use super::list::{ENDED, HALTED, NOT_READY, Problems, RESTARTS, SCHEMA_REGISTRY};
use super::sink::sink_is_down;
use crate::report::StatusReport;
use crate::report::causes::{OPEN_TRANSACTIONS, is_of_sink, remedy_of_cause};

/// The longest usual time in the state `connecting`, in milliseconds.
const CONNECTING_MS: u64 = 10_000;

/// The time for which a run shows that the one before has noted no end, in milliseconds.
const SHOW_FORMER_MS: u64 = 3_600_000;

/// Adds the error with which the last run ended, until this run has passed its place.
pub(super) fn add_last_error(found: &mut Problems, report: &StatusReport) {
    let Some(error) = &report.last_error else {
        return;
    };
    let problem = found.add("note", ENDED, "The last run ended with an error");
    problem.reason(error.text.clone());
    problem.remedy.clone_from(&error.remedy);
    problem.since_ms = Some(error.at_ms);
}

/// Adds that the run before has noted no end, for an hour.
pub(super) fn add_former_run(found: &mut Problems, report: &StatusReport) {
    let is_recent = report.now_ms.saturating_sub(report.started_ms) < SHOW_FORMER_MS;
    let former = report.former_run.as_ref().filter(|_| is_recent);
    let Some(former) = former.filter(|former| former.ended_ms.is_none()) else {
        return;
    };
    let title = "The run before left no sign of its end";
    let problem = found.add("note", RESTARTS, title);
    let remedy = "see why in the log of the platform, for example by journalctl -k or kubectl describe pod: if memory \
                  ran out, raise the limit or lower delivery.max_in_flight_bytes";
    problem.reason(format!("it {}", former.text)).remedy(remedy);
}

/// Adds the state of the pipeline, unless it streams.
pub(super) fn add_state_problems(found: &mut Problems, report: &StatusReport) {
    let pipeline = &report.pipeline;
    let holder = pipeline.holder.as_ref();
    let not_ready = "WalrelayNotReady";
    let problem = match &*pipeline.state {
        // An attempt that the sink ended tells nothing of Postgres, and the next one may end so, too.
        "connecting" | "streaming" if pipeline.cause.as_deref().is_some_and(is_of_sink) => {
            let remedy = remedy_of_cause(pipeline.cause.as_deref().unwrap_or_default());
            found
                .alert("bad", not_ready, retrying(report))
                .remedy(remedy.unwrap_or_default())
        }
        "streaming" => return,
        "connecting" if pipeline.cause.as_deref() == Some(OPEN_TRANSACTIONS) => {
            let title = "The slot is not created yet: Postgres waits";
            found.alert("warn", not_ready, title)
        }
        "connecting" => {
            let lasts = report.now_ms.saturating_sub(pipeline.since_ms);
            let level = if lasts > CONNECTING_MS { "bad" } else { "warn" };
            found
                .alert(level, not_ready, "Connecting to Postgres")
                .remedy("see walrelay check, if it lasts")
        }
        "snapshot" => found
            .alert(
                "warn",
                not_ready,
                "Reading the rows that were there before the slot",
            )
            .remedy("nothing: the log is relayed when all of them are acknowledged"),
        "blocked" if report.sink.all_down => {
            let title = sink_is_down(&report.sink);
            found.alert("bad", "WalrelaySinkDown", title)
        }
        "blocked" => found.alert("bad", not_ready, "Delivery is blocked"),
        "waiting-for-schema" => {
            let problem = found.alert("bad", not_ready, "Waiting for a schema of the registry");
            SCHEMA_REGISTRY.clone_into(&mut problem.runbook);
            problem
        }
        "waiting-for-slot" if holder.is_some_and(|holder| holder.standby) => {
            let title = "Standing by: another relay reads the slot";
            let problem = found.add("ok", NOT_READY, title);
            problem.remedy("nothing: this relay takes over when the other one is gone")
        }
        "waiting-for-slot" if holder.is_some_and(|holder| holder.taken) => found.alert(
            "bad",
            "WalrelaySlotTaken",
            "The slot is taken: a process that is no relay of this configuration reads it",
        ),
        "waiting-for-slot" => found.alert("bad", not_ready, "The slot is read by another process"),
        "retrying" => found.alert("bad", not_ready, retrying(report)),
        "draining" => found.alert("warn", not_ready, "Draining: walrelay was asked to stop"),
        "halted" => {
            let problem = found.alert("bad", not_ready, "walrelay has stopped relaying");
            HALTED.clone_into(&mut problem.runbook);
            problem
        }
        other => found.alert("warn", not_ready, format!("State: {other}")),
    };
    problem.reason(pipeline.reason.clone()).is_state = true;
    problem.since_ms = Some(pipeline.since_ms);
    if pipeline.remedy.is_some() {
        problem.remedy.clone_from(&pipeline.remedy);
    }
}

/// The titles of errors of the source, by their ids.
const SOURCE_ERRORS: &[(&str, &str)] = &[
    ("state-file", "The state file cannot be used"),
    (
        "file-limit",
        "walrelay may open no more files and connections",
    ),
    ("process-limit", "walrelay may start no more threads"),
    ("password", "Postgres refuses the relay"),
    ("access", "Postgres refuses the relay"),
    ("privilege", "Postgres refuses the relay"),
    ("postgres-tls", "TLS to Postgres fails"),
    ("postgres-full", "Postgres lets in no more connections"),
    (
        "postgres-resources",
        "Postgres lacks space on its disk, or memory",
    ),
    ("postgres-busy", "Postgres has not done it in time"),
    ("server-limit", "A limit of Postgres is used up"),
];

/// Names what fails while the relay tries again.
fn retrying(report: &StatusReport) -> String {
    let id = report.pipeline.error_id.as_deref();
    let known = SOURCE_ERRORS.iter().find(|(known, _)| id == Some(*known));
    let what = match report.pipeline.cause.as_deref() {
        Some("connection" | "silence") => {
            known.map_or("No connection to Postgres", |(_, title)| title)
        }
        Some(cause) if is_of_sink(cause) => &format!("{} accepts no events", report.sink.title),
        Some("displaced") => "Another relay may read the slot",
        Some("promotion") => return "Postgres was promoted: the slot is read again".to_owned(),
        _ => return "Not relaying; walrelay tries again".to_owned(),
    };
    format!("{what}: not relaying, trying again")
}
