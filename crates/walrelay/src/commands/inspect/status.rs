//! `walrelay status`: shows the state of a running relay, or of its slot if no relay answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::{
    AuditedTable, BookmarkReport, FormerRunReport, LossReport, MoveReport, OutboxReport,
    ProblemReport, SinkReport, SlotReport, SnapshotReport, StatusReport, colours, printable_json,
    printable_lines,
};
use walrelay_postgres_source::epoch::find_epoch;
use walrelay_postgres_source::last_error::{self, LastError};
use walrelay_postgres_source::moves::{MoveState, find_unfinished_move};
use walrelay_postgres_source::run_note::{self, RunNote};
use walrelay_postgres_source::slot_standing;
use walrelay_relay::Danger;
use walrelay_sink::{ACCEPT_LOSS, EndpointStats};

use crate::cli::{Output, StatusArgs, paint};
use crate::commands::assembly::server::failure;
use crate::commands::assembly::{block_on, conn_info, sql_session};
use crate::commands::inspect::endpoint::{SILENT_REMEDY, fetch_status};
use crate::commands::terminal::units::{bytes, rows_bar};
use crate::commands::terminal::wrap::{columns, wrapped};
use crate::commands::{CommandResult, EnvVars, load, print_part, print_text, write_failed};
use crate::config::{Config, PipelineConfig};
use crate::workers::{former_run_report, move_report, slot_report};

/// Timeout of an answer of Postgres.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);
/// Columns of the name of a line.
const NAME_WIDTH: usize = 14;
/// Moves to the upper left corner and clears the screen (ECMA-48).
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

const MISSING_SLOT: &str = "if a relay has run before, its slot was dropped: docs/operate/troubleshooting.md, \"The slot is gone or was \
     moved\"; otherwise run walrelay init, or walrelay run, which makes it";
const LOST_SLOT: &str = "docs/operate/troubleshooting.md, \"The slot is lost\"; walrelay check has the range of the log that is gone";
const NEAR_LIMIT: &str = "docs/operate/alerts.md, \"WalrelaySlotWalNearLimit\": raise \
                          max_slot_wal_keep_size now, or remove the obstacle to delivery";
const SILENT: &str = "a process has the address of [http] listen, and does not answer";
const NO_ENDPOINT: &str = "to see the relay itself, add to the configuration, and start the relay again:\n[http]\nlisten = \"127.0.0.1:9187\"";
const UNREAD_SLOT: &str = "start walrelay run, or see why it stops: walrelay check; if the slot is \
                           no longer needed, walrelay slots drop, because Postgres keeps its log";

/// The document of `--output json`.
#[derive(Serialize)]
struct Status {
    /// The document of the endpoint; `null` if the endpoint did not answer.
    relay: Option<StatusReport>,
    /// Why the endpoint did not answer.
    relay_error: Option<String>,
    /// True if something listens at the address of the endpoint, and gave no answer in time.
    #[serde(skip)]
    is_silent: bool,
    /// True if the configuration has an endpoint.
    #[serde(skip)]
    has_endpoint: bool,
    /// The slot, read from Postgres if the endpoint did not answer.
    slot: Option<SlotReport>,
    /// The error with which the last run ended, if the endpoint did not answer and the slot is not beyond it.
    last_error: Option<LastError>,
    /// The last run, if the endpoint did not answer.
    last_run: Option<FormerRunReport>,
    /// The move of the outbox that has not ended on this server, if the endpoint did not answer.
    moved: Option<MoveReport>,
    /// The noted losses of the destination, if the endpoint did not answer.
    losses: Vec<LossReport>,
}

impl Status {
    /// Returns true if the slot may be missing or not read, because of a move: only the switch needs it again.
    fn is_drained(&self) -> bool {
        let moved = self.moved.as_ref();
        moved.is_some_and(|moved| moved.state != MoveState::Fenced.name())
    }
}

/// Runs `walrelay status`.
pub(crate) fn status(args: &StatusArgs, env: EnvVars<'_>) -> CommandResult {
    let config = load(&args.config, env)?;
    loop {
        let status = query_status(&config, env)?;
        let mut text = match args.output {
            Output::Json => {
                let json = serde_json::to_string(&status);
                let json = json.map_err(|error| write_failed(error.into()))?;
                printable_json(&json).into_owned() + "\n"
            }
            Output::Table => {
                let lines = lines(&config.pipeline.source.slot, &status);
                screen(
                    &lines,
                    colours(io::stdout().is_terminal(), env),
                    columns(env),
                )
            }
        };
        if !args.watch {
            print_text(&text)?;
            let failure =
                not_well(&config.pipeline.source.slot, &status).filter(|_| args.exit_code);
            return failure.map_or(Ok(()), |failure| Err(vec![failure]));
        }
        if args.output == Output::Table && io::stdout().is_terminal() {
            text.insert_str(0, CLEAR);
        }
        if print_part(text.as_bytes())?.is_break() {
            return Ok(());
        }
        thread::sleep(INTERVAL);
    }
}

/// Returns why a relay or its slot needs attention, as the failure of `--exit-code`; `None` if it does not.
fn not_well(slot: &str, status: &Status) -> Option<Failure> {
    let failure = |exit, what: String| Failure::new("not-ready", exit, what);
    let Some(relay) = &status.relay else {
        let moved = status.moved.as_ref().filter(|_| status.is_drained());
        if let Some(moved) = moved {
            return Some(failure(Exit::Unavailable, moved.text.clone()).remedy(&*moved.remedy));
        }
        return match &status.slot {
            None => Some(
                failure(Exit::Unavailable, format!("slot {slot} does not exist"))
                    .remedy(MISSING_SLOT),
            ),
            Some(_) if status.is_silent => {
                Some(failure(Exit::Unavailable, SILENT.to_owned()).remedy(SILENT_REMEDY))
            }
            Some(found) => slot_problem(found).map(|(what, remedy)| {
                let failure = failure(Exit::Unavailable, format!("slot {slot} {what}"));
                match status.last_error.as_ref().filter(|_| !found.active) {
                    Some(error) => with_last_error(failure, error),
                    None => failure.remedy(remedy),
                }
            }),
        };
    };
    let reason = relay.not_ready.as_ref()?;
    let failure = failure(Exit::Temporary, format!("the relay is not ready: {reason}"));
    Some(match &relay.pipeline.remedy {
        Some(remedy) => failure.remedy(remedy),
        None => failure.remedy("see in the relay's log since when, and why"),
    })
}

/// Adds the error with which the last run ended to the failure that its slot is not read.
fn with_last_error(mut failure: Failure, error: &LastError) -> Failure {
    failure.what = format!("{}: the last run {}", failure.what, error.text());
    failure.remedy(error.remedy.as_deref().unwrap_or(UNREAD_SLOT))
}

/// Returns the problem of a slot that the server was asked for, and the remedy.
fn slot_problem(slot: &SlotReport) -> Option<(String, &'static str)> {
    if let Some(reason) = &slot.invalidation_reason {
        return Some((format!("is LOST: {reason}"), LOST_SLOT));
    }
    if !slot.active {
        return Some(("is not read".to_owned(), UNREAD_SLOT));
    }
    match slot.danger(0) {
        Danger::None | Danger::Much => None,
        Danger::Half | Danger::Imminent => Some(("may lose WAL it needs".to_owned(), NEAR_LIMIT)),
    }
}

fn query_status(config: &Config, env: EnvVars<'_>) -> Result<Status, Failure> {
    let relay = match &config.process.http {
        Some(http) => fetch_status(http),
        None => Err("[http] listen is not configured".to_owned().into()),
    };
    let found = match &relay {
        Ok(_) => Found::default(),
        Err(_) => query_slot(&config.pipeline, env)?,
    };
    let losses = found.run.iter().flat_map(|run| &run.losses);
    let no_document = relay.as_ref().err();
    Ok(Status {
        relay_error: no_document.map(ToString::to_string),
        is_silent: no_document.is_some_and(|reason| reason.is_silent),
        has_endpoint: config.process.http.is_some(),
        relay: relay.ok(),
        slot: found.slot,
        last_error: found.last_error,
        moved: found.moved,
        losses: losses
            .map(|loss| LossReport::new(loss, found.epoch))
            .collect(),
        last_run: found.run.as_ref().map(former_run_report),
    })
}

/// The state of a relay that does not answer, as Postgres has it.
#[derive(Default)]
struct Found {
    slot: Option<SlotReport>,
    last_error: Option<LastError>,
    run: Option<RunNote>,
    epoch: u8,
    moved: Option<MoveReport>,
}

/// Reads the state of the slot from Postgres, the error with which its last run ended, and the note of that run.
fn query_slot(config: &PipelineConfig, env: EnvVars<'_>) -> Result<Found, Failure> {
    let info = conn_info(&config.source, env)?;
    let state_file = config.source.state_file.as_deref();
    let (standing, error, run, epoch, moved) = block_on(async {
        let mut session = sql_session(&info).await?;
        session.limit_answers(ANSWER_TIMEOUT);
        let standing = slot_standing(&mut session, &config.source.slot).await;
        let standing = standing.map_err(failure)?;
        let error = last_error::find(&mut session, &config.source.slot, state_file).await;
        let run = run_note::find(&mut session, &config.source.slot, state_file).await;
        let epoch = find_epoch(&mut session, &config.source.slot).await;
        let moved = find_unfinished_move(&mut session, &config.source.slot).await;
        session.close().await;
        let (error, run) = (error.map_err(failure)?, run.map_err(failure)?);
        let (epoch, moved) = (epoch.map_err(failure)?.number, moved.map_err(failure)?);
        Ok::<_, Failure>((standing, error, run, epoch, moved))
    })??;
    let confirmed = standing.slot.as_ref().and_then(|slot| slot.confirmed);
    Ok(Found {
        last_error: error.filter(|error| !error.is_passed(confirmed)),
        slot: slot_report(standing),
        run,
        epoch,
        moved: moved.as_ref().map(move_report),
    })
}

fn snapshot_line(snapshot: &SnapshotReport) -> String {
    match (snapshot.running, snapshot.rows) {
        (true, rows) => rows_bar(rows, snapshot.expected_rows.unwrap_or(0)),
        (false, 0) => "not running".to_owned(),
        (false, rows) => format!("read: {rows} rows"),
    }
}

/// Returns the lines of the screen: name and value.
fn lines(slot: &str, status: &Status) -> Vec<(String, String)> {
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
fn screen(lines: &[(String, String)], colours: bool, columns: usize) -> String {
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

fn slot_line(slot: &SlotReport) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_observe::{RecentErrors, Setup, Telemetry};

    #[test]
    fn pruned_rows_are_shown_once_there_are_any() {
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        let pruned = || {
            let lines = status_lines(&telemetry.report());
            lines.into_iter().find(|(name, _)| name == "pruned")
        };
        assert_eq!(pruned(), None);
        telemetry.pruned(7);
        telemetry.pruned(5);
        assert_eq!(pruned(), Some(("pruned".to_owned(), "12 rows".to_owned())));
    }
    fn slot(invalidated: Option<&str>, pid: Option<i64>) -> SlotReport {
        SlotReport {
            active: pid.is_some(),
            active_pid: pid,
            wal_status: None,
            retained_bytes: 0,
            safe_wal_bytes: None,
            limit_bytes: None,
            oldest_transaction: None,
            inactive_seconds: None,
            invalidation_reason: invalidated.map(str::to_owned),
            waits_for_standbys: None,
            seen_ms: 0,
        }
    }

    #[test]
    fn without_an_endpoint_the_screen_has_the_lines_to_add_and_fits() {
        let mut status = Status {
            relay: None,
            relay_error: Some("[http] listen is not configured".to_owned()),
            is_silent: false,
            has_endpoint: false,
            slot: None,
            last_error: None,
            last_run: None,
            moved: None,
            losses: Vec::new(),
        };
        let narrow = screen(&lines("s", &status), false, 60);
        assert!(narrow.contains("[http]\n"), "{narrow}");
        assert!(narrow.contains("listen = \"127.0.0.1:9187\"\n"), "{narrow}");
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 60),
            "{narrow}"
        );
        assert!(!narrow.contains('\u{1b}'), "{narrow}");
        let coloured = screen(&lines("s", &status), true, 60);
        assert!(
            coloured.contains("\u{1b}[1;32m->\u{1b}[0m to see"),
            "{coloured}"
        );
        status.has_endpoint = true;
        let without = screen(&lines("s", &status), false, 60);
        assert!(!without.contains("9187"), "{without}");
    }

    /// With `--exit-code` a script sees what a person reads.
    #[test]
    fn what_is_not_well_has_an_exit_code_and_a_remedy() {
        let of_slot = |slot| Status {
            relay: None,
            relay_error: None,
            is_silent: false,
            has_endpoint: true,
            slot,
            last_error: None,
            last_run: None,
            moved: None,
            losses: Vec::new(),
        };
        let exit = |status: &Status| not_well("s", status).map(|failure| failure.exit);
        for (status, word) in [
            (of_slot(None), "walrelay init"),
            (of_slot(Some(slot(Some("lost"), None))), "slot is lost"),
            (of_slot(Some(slot(None, None))), "walrelay run"),
        ] {
            let failure = not_well("s", &status).expect("a failure");
            assert_eq!(failure.exit, Exit::Unavailable);
            let remedy = failure.remedy.expect("a remedy");
            assert!(remedy.contains(word), "{remedy}");
        }
        assert_eq!(exit(&of_slot(Some(slot(None, Some(1))))), None);
        // It is read, and the server removes what it needs at the next checkpoint.
        let unreserved = SlotReport {
            wal_status: Some("unreserved".to_owned()),
            ..slot(None, Some(1))
        };
        assert!(slot_line(&unreserved).contains(", unreserved"));
        let failure = not_well("s", &of_slot(Some(unreserved))).expect("a failure");
        assert_eq!(failure.exit, Exit::Unavailable);
        // Two fifths of the limit are left.
        let half = SlotReport {
            safe_wal_bytes: Some(40 << 20),
            limit_bytes: Some(100 << 20),
            ..slot(None, Some(1))
        };
        assert_eq!(exit(&of_slot(Some(half))), Some(Exit::Unavailable));
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        let of_relay = |telemetry: &Telemetry| Status {
            relay: Some(telemetry.report()),
            relay_error: None,
            is_silent: false,
            has_endpoint: true,
            slot: None,
            last_error: None,
            last_run: None,
            moved: None,
            losses: Vec::new(),
        };
        assert_eq!(exit(&of_relay(&telemetry)), Some(Exit::Temporary));
        telemetry.state(&walrelay_relay::PipelineState::Streaming);
        assert_eq!(exit(&of_relay(&telemetry)), None);
    }
}
