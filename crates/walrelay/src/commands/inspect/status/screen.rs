//! The lines of the screen.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use walrelay_observe::{
    AuditedTable, BookmarkReport, OutboxReport, ProblemReport, SinkReport, SlotReport,
    SnapshotReport, StatusReport, printable_lines,
};
use walrelay_sink::{ACCEPT_LOSS, EndpointStats};

use super::{MISSING_SLOT, Status, UNREAD_SLOT, slot_problem};
use crate::cli::paint;
use crate::commands::inspect::endpoint::SILENT_REMEDY;
use crate::commands::terminal::units::{bytes, rows_bar};
use crate::commands::terminal::wrap::wrapped;

/// Columns of the name of a line.
const NAME_WIDTH: usize = 14;
const NO_ENDPOINT: &str = "to see the relay itself, add to the configuration, and start the relay again:\n[http]\nlisten = \"127.0.0.1:9187\"";

fn snapshot_line(snapshot: &SnapshotReport) -> String {
    match (snapshot.running, snapshot.rows) {
        (true, rows) => rows_bar(rows, snapshot.expected_rows.unwrap_or(0)),
        (false, 0) => "not running".to_owned(),
        (false, rows) => format!("read: {rows} rows"),
    }
}

/// Returns the lines of the screen: name and value.
pub(super) fn lines(slot: &str, status: &Status) -> Vec<(String, String)> {
    match (&status.relay, &status.slot) {
        (Some(relay), _) => status_lines(relay),
        (None, standing) => {
            let reason = status.relay_error.as_deref().unwrap_or("no reason");
            // The remedy of the last error is the one for a slot that is not read. After a drain none need be read.
            let is_ended = status.last_error.is_some() || status.is_drained();
            let (standing, remedy) = match standing {
                Some(standing) => (
                    format!("{slot}: {}", slot_line(standing)),
                    slot_problem(standing)
                        .map(|(_, remedy)| remedy)
                        .filter(|remedy| !is_ended || *remedy != UNREAD_SLOT),
                ),
                None => (
                    format!("{slot} does not exist"),
                    Some(MISSING_SLOT).filter(|_| !status.is_drained()),
                ),
            };
            let mut lines = vec![
                ("relay".to_owned(), format!("not asked: {reason}")),
                ("slot".to_owned(), standing),
            ];
            let help = |remedy: &str| (String::new(), format!("-> {remedy}"));
            lines.extend(remedy.map(help));
            if status.is_silent {
                lines.insert(1, help(SILENT_REMEDY));
            } else if !status.has_endpoint {
                lines.insert(1, help(NO_ENDPOINT));
            }
            if let Some(moved) = &status.moved {
                lines.push(("problem".to_owned(), moved.text.clone()));
                lines.push(help(&moved.remedy));
            }
            if let Some(error) = &status.last_error {
                lines.push(("last run".to_owned(), error.text()));
                lines.extend(error.remedy.as_deref().map(help));
            } else if let Some(run) = &status.last_run
                && !status.slot.as_ref().is_some_and(|slot| slot.active)
            {
                lines.push(("run before".to_owned(), run.text.clone()));
            }
            for loss in &status.losses {
                let finding = "the destination has lost events that it had acknowledged";
                lines.push(("problem".to_owned(), format!("{finding}: {}", loss.text)));
                lines.push(help(&format!("{}. {ACCEPT_LOSS}", loss.remedy)));
            }
            lines
        }
    }
}

/// Returns the lines as text for a terminal of this width.
pub(super) fn screen(lines: &[(String, String)], colours: bool, columns: usize) -> String {
    let mut text = String::new();
    for (name, value) in lines {
        let value = wrapped(&printable_lines(value), NAME_WIDTH + 1, columns);
        let value = match value.strip_prefix("-> ") {
            Some(remedy) => format!("{} {remedy}", paint(colours, "1;32", "->")),
            None if name == "problem" || name == "last run" || value.starts_with("NOT READY") => {
                paint(colours, "31", &value)
            }
            None => value,
        };
        let name = paint(colours, "1", &format!("{name:<NAME_WIDTH$}"));
        let _ = writeln!(text, "{name} {value}");
    }
    text
}

/// Returns the lines of a relay's screen: name and value.
pub(crate) fn status_lines(relay: &StatusReport) -> Vec<(String, String)> {
    let mut screen = Screen(Vec::new());
    screen.source(relay);
    screen.delivery(relay);
    screen.errors(relay);
    screen.0
}

/// Returns sizes and ages of an outbox table, as far as they are known.
fn outbox_line(outbox: &OutboxReport) -> String {
    let mut parts = Vec::new();
    parts.extend(outbox.rows.map(|rows| format!("about {rows} rows")));
    parts.extend(outbox.bytes.map(bytes));
    parts.extend(outbox.dead_rows.map(|rows| format!("about {rows} dead")));
    let ages = [
        ("the oldest", outbox.oldest_seconds),
        (
            "the oldest unmarked",
            outbox.oldest_unmarked_seconds.filter(|age| *age > 0.0),
        ),
    ];
    let ages = ages
        .into_iter()
        .filter_map(|(row, age)| Some(format!("{row} {:.0} s old", age?)));
    parts.extend(ages);
    parts.extend(outbox.unknown.iter().cloned());
    format!("{}: {}", outbox.table, parts.join(", "))
}

struct Screen(Vec<(String, String)>);

impl Screen {
    fn line(&mut self, name: &str, value: String) {
        self.0.push((name.to_owned(), value));
    }

    /// Adds state, slot and positions.
    fn source(&mut self, relay: &StatusReport) {
        let state = match &relay.not_ready {
            None => match (&relay.pipeline.holder, &relay.pipeline.reason) {
                (Some(_), Some(reason)) => format!("standing by, {reason}"),
                _ => relay.pipeline.state.clone(),
            },
            Some(reason) => format!("NOT READY, {reason}"),
        };
        let duration = human_duration(relay.now_ms.saturating_sub(relay.pipeline.since_ms));
        self.line("relay", format!("{state}, for {duration}"));
        if let Some(remedy) = &relay.pipeline.remedy {
            self.line("", format!("-> {remedy}"));
        }
        self.problems(&relay.problems);
        if let Some(snapshot) = &relay.snapshot {
            self.line("snapshot", snapshot_line(snapshot));
        }
        let source = &relay.source;
        self.line("source", source.server.clone());
        let slot = match (&relay.slot, &relay.slot_error) {
            (Some(slot), None) => slot_line(slot),
            (_, Some(error)) => format!("not known, {error}"),
            (None, None) => "not known".to_owned(),
        };
        self.line("slot", format!("{}: {slot}", relay.pipeline.slot));
        if let Some(bookmark) = &relay.bookmark {
            self.line("rolling", bookmark_line(bookmark));
        }
        for replay in &relay.source.replays {
            self.line("replay", replay.text());
        }
        for outbox in &source.outboxes {
            self.line("outbox", outbox_line(outbox));
        }
        if let Some(audit) = &source.audit {
            for table in &audit.tables {
                let AuditedTable {
                    table,
                    rows,
                    percent,
                } = table;
                let seen = format!("{table}: {rows} rows without evidence, {percent} % looked at");
                self.line("audit", seen);
            }
            if let Some(error) = &audit.error {
                self.line("audit", format!("not looked at now, {error}"));
            }
        }
        if let Some(error) = &source.outbox_error {
            self.line("outbox", format!("not known now, {error}"));
        }
        let behind = source.lag_bytes.map_or_else(|| "-".to_owned(), bytes);
        self.line("lag", format!("{:.1} s, {behind}", source.lag_seconds));
        if let Some(slo) = &relay.slo {
            let (left, missed) = (slo.budget_left_percent, slo.missed_seconds);
            let (target, objective) = (slo.target_percent, slo.commit_to_ack_seconds);
            let line = format!(
                "{left:.1} % of the budget left, {missed} s later than {objective} s ({target} %)"
            );
            self.line("slo", line);
        }
        let [confirmed, received, server] =
            [source.confirmed_lsn, source.received_lsn, source.server_lsn]
                .map(|lsn| lsn.map_or_else(|| "-".to_owned(), |lsn| lsn.to_string()));
        self.line(
            "positions",
            format!("confirmed {confirmed}, received {received}, server {server}"),
        );
    }

    /// Adds what else is wrong, and the alert for each.
    fn problems(&mut self, problems: &[ProblemReport]) {
        for problem in problems.iter().filter(|problem| problem.level != "ok") {
            if !problem.is_state {
                self.line("problem", problem.finding());
                if let Some(remedy) = &problem.remedy {
                    self.line("", format!("-> {remedy}"));
                }
            }
            if let Some(alert) = problem.alert_text() {
                self.line("", format!("alert {alert}"));
            }
        }
    }

    /// Adds what is in flight, and what was delivered.
    fn delivery(&mut self, relay: &StatusReport) {
        let delivery = &relay.delivery;
        self.line(
            "in flight",
            format!(
                "{} of {} records, {} of {}{}",
                delivery.in_flight_records,
                delivery.in_flight_records_limit,
                bytes(delivery.in_flight_bytes),
                bytes(delivery.in_flight_bytes_limit),
                delivery
                    .first_in_flight
                    .as_ref()
                    .map_or_else(String::new, |event| format!(", the first is event {event}"))
            ),
        );
        if let Some(retrying) = &delivery.retrying {
            self.line("sent again", retrying.text());
        }
        let latency = &relay.latency.commit_to_ack;
        let latency = match latency.p50_ms.zip(latency.p99_ms) {
            Some((p50, p99)) => format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
            None => "no events in the last minute".to_owned(),
        };
        self.line("commit to ack", latency);
        self.line(
            "relayed",
            format!(
                "{} records in {} transactions, {} mode{}",
                delivery.acknowledged,
                delivery.transactions,
                delivery.mode,
                relay.sample.map_or_else(String::new, |(_, rate, ..)| {
                    format!(", {rate:.0} records/s now")
                })
            ),
        );
        if let Some(former) = &relay.former_run {
            let text = format!("{}; {} run(s) before this one", former.text, former.starts);
            self.line("run before", text);
        }
        self.line(
            "last event",
            delivery.acknowledged_at_ms.map_or_else(
                || "none since the start".to_owned(),
                |at| {
                    format!(
                        "acknowledged {} ago",
                        human_duration(relay.now_ms.saturating_sub(at))
                    )
                },
            ),
        );
        if delivery.pruned_rows > 0 {
            self.line("pruned", format!("{} rows", delivery.pruned_rows));
        }
        let total = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
        self.line(
            "dead letters",
            format!(
                "{} written, {} skipped, {} keys parked",
                total(&relay.dead_letters.written),
                total(&relay.dead_letters.skipped),
                relay.dead_letters.parked_keys
            ),
        );
        self.sink(&relay.sink);
    }

    /// Adds the servers of the sink, if it has any.
    fn sink(&mut self, sink: &SinkReport) {
        let Some(servers) = &sink.servers else { return };
        let in_state = |state: &'static str| {
            let endpoints = sink.endpoints.iter();
            endpoints.filter(move |endpoint| endpoint.state == state)
        };
        let (up, all) = (in_state(EndpointStats::UP).count(), sink.endpoints.len());
        let term = &sink.endpoint_term;
        self.line(&sink.kind, format!("{up} of {all} {term}s up, {servers}"));
        let unanswered = in_state(EndpointStats::NO_ANSWER);
        let unanswered: Vec<_> = unanswered.map(|endpoint| &*endpoint.name).collect();
        if !unanswered.is_empty() {
            self.line("", format!("no answer from {}", unanswered.join(", ")));
        }
        if sink.unavailable_count > 0 {
            let (count, term) = (sink.unavailable_count, &sink.unavailable_term);
            let named = sink.unavailable.join(", ");
            self.line("", format!("{count} {term}: {named}"));
        }
    }

    /// Adds the newest errors, each with its remedy.
    fn errors(&mut self, relay: &StatusReport) {
        for error in relay.errors.iter().take(3) {
            let message = format!("{} ({} times)", error.message, error.count);
            self.line(&error.level.to_lowercase(), message);
            if let Some(remedy) = &error.remedy {
                self.line("", format!("-> {remedy}"));
            }
        }
    }
}

fn bookmark_line(bookmark: &BookmarkReport) -> String {
    let seconds = |seconds: f64| human_duration((seconds * 1e3) as u64);
    let cut = bookmark.cut_short.as_ref();
    format!(
        "{} at {}: {} back can be replayed, of {}{}; {} of WAL are kept for it, of {}",
        bookmark.slot,
        bookmark.position,
        seconds(bookmark.reachable_seconds),
        seconds(bookmark.keep_seconds),
        cut.map_or_else(String::new, |why| format!(", CUT SHORT: {why}")),
        bytes(bookmark.retained_bytes),
        bytes(bookmark.max_wal_bytes)
    )
}

pub(super) fn slot_line(slot: &SlotReport) -> String {
    let reader = match (slot.active_pid, slot.inactive_seconds) {
        (Some(pid), _) => format!("read by server process {pid}"),
        (None, Some(seconds)) => {
            format!("not read for {}", human_duration((seconds * 1e3) as u64))
        }
        (None, None) => "not read".to_owned(),
    };
    let mut text = format!("{reader}, {} of WAL kept", bytes(slot.retained_bytes));
    if let Some(limit) = slot.limit_bytes {
        let _ = write!(text, " of {} at most", bytes(limit));
    }
    let status = slot.wal_status.as_deref();
    if let Some(status) = status.filter(|status| *status != "reserved" && *status != "lost") {
        let _ = write!(text, ", {status}");
    }
    if let Some(oldest) = &slot.oldest_transaction {
        let _ = write!(text, "; the oldest open transaction: {oldest}");
    }
    if let Some(reason) = &slot.invalidation_reason {
        let _ = write!(text, ", LOST: {reason}");
    }
    text
}

/// Milliseconds as seconds, minutes or hours.
fn human_duration(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
