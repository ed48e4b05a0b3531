//! [`ProblemReport`]: what is wrong with a relay. Page, `/readyz`, `walrelay status` and
//! `walrelay check` show the same list, so that each of them alone names reason, alert and remedy.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use walrelay_postgres_source::Danger;
use walrelay_sink::{ACCEPT_LOSS, EndpointStats};

use super::report::{EndpointReport, ProblemReport, SinkReport, SourceReport, StatusReport};
use super::warnings::{OPEN_TRANSACTIONS, STANDBY_REMEDY, is_of_sink, remedy_of_cause};

/// The alerts that users install; their times are shown.
const ALERTS: &str = include_str!("../shipped/alerts.yml");
/// A lag from which on a relay that streams has a problem, and a lag that is a fault, in seconds.
const LAG_WARN: f64 = 5.0;
const LAG_BAD: f64 = 60.0;
/// The longest usual time in the state `connecting`, in milliseconds.
const CONNECTING_MS: u64 = 10_000;
/// The time for which a run shows that the one before has noted no end, in milliseconds.
const SHOW_FORMER_MS: u64 = 3_600_000;
/// Clocks that differ by more seconds are a problem.
const CLOCKS_APART: f64 = 1.0;
/// More failed attempts within ten minutes are a problem, as for the alert `WalrelayReconnects`.
pub(crate) const RECONNECTS: u64 = 10;

// Headings of the runbook, docs/operate, that are not those of the problem's alert, as anchors.
const NOT_READY: &str = "walrelaynotready";
const SINK_DOWN: &str = "walrelaysinkdown";
const SLOT_LOST: &str = "the-slot-is-lost";
const SCHEMA_REGISTRY: &str = "the-schema-registry";
const HALTED: &str = "when-something-is-wrong";
const ENDED: &str = "the-relay-has-ended";
const WATCHING: &str = "watching-the-slot";
const DEAD_LETTERS: &str = "dead-letters";
const OPENTELEMETRY: &str = "opentelemetry";
const SINK_LOSES: &str = "the-destination-may-lose-events";
const SLO: &str = "the-budget-of-the-slo";
const RETRYING: &str = "walrelaykeysretrying";
const RESTARTS: &str = "walrelayrestarts";

/// Returns the anchors of all headings that a problem may lead to.
#[cfg(test)]
pub(crate) fn headings() -> Vec<String> {
    let others = [
        NOT_READY,
        SINK_DOWN,
        SLOT_LOST,
        SCHEMA_REGISTRY,
        HALTED,
        ENDED,
        WATCHING,
        DEAD_LETTERS,
        SINK_LOSES,
        SLO,
    ];
    let of_alerts = TIMES.keys().map(|alert| alert.to_lowercase());
    of_alerts.chain(others.map(str::to_owned)).collect()
}

/// The time of each alert, by its name.
static TIMES: LazyLock<BTreeMap<&str, Option<&str>>> = LazyLock::new(|| {
    let mut times = BTreeMap::new();
    let mut alert = "";
    for line in ALERTS.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            alert = name;
            times.insert(alert, None);
        } else if let Some(time) = line.strip_prefix("for: ") {
            times.insert(alert, Some(time));
        }
    }
    times
});

/// The list under construction.
struct Problems(Vec<ProblemReport>);

impl Problems {
    /// Adds a problem for which an alert exists, whose heading of the runbook has its name.
    fn alert(&mut self, level: &str, alert: &str, title: impl Into<String>) -> &mut ProblemReport {
        let after = TIMES.get(alert).copied().flatten();
        let problem = self.add(level, &alert.to_lowercase(), title);
        problem.alert = Some(alert.to_owned());
        problem.alert_after = after.map(str::to_owned);
        problem
    }

    /// Adds a problem with this heading of the runbook.
    fn add(&mut self, level: &str, runbook: &str, title: impl Into<String>) -> &mut ProblemReport {
        let at = self.0.len();
        self.0.push(ProblemReport {
            level: level.to_owned(),
            title: title.into(),
            reason: None,
            remedy: None,
            alert: None,
            alert_after: None,
            runbook: runbook.to_owned(),
            since_ms: None,
            is_state: false,
        });
        &mut self.0[at]
    }
}

impl ProblemReport {
    fn reason(&mut self, reason: impl Into<Option<String>>) -> &mut Self {
        self.reason = reason.into();
        self
    }

    fn remedy(&mut self, remedy: &str) -> &mut Self {
        self.remedy = Some(remedy.to_owned());
        self
    }
}

/// Returns the problems of a relay, the worst first.
pub(crate) fn problems(report: &StatusReport) -> Vec<ProblemReport> {
    let mut found = Problems(Vec::new());
    add_slot_problems(&mut found, report);
    add_state_problems(&mut found, report);
    add_source_problems(&mut found, report);
    add_sink_problems(&mut found, &report.sink);
    add_risks(&mut found, &report.sink);
    add_events_problems(&mut found, report);
    add_last_error(&mut found, report);
    add_former_run(&mut found, report);
    if let Some(reason) = &report.otel_problem {
        let title = "The OpenTelemetry collector does not accept the metrics";
        let problem = found.add("warn", OPENTELEMETRY, title);
        let remedy = "see that the collector runs at [otel] endpoint and accepts the token; relaying is not affected";
        problem.reason(reason.clone()).remedy(remedy);
    }
    if let (Some(why), true) = (&report.not_ready, found.0.is_empty()) {
        let problem = found.alert("bad", "WalrelayNotReady", "The relay is not ready");
        problem.reason(why.clone()).is_state = true;
    }
    let mut found = found.0;
    let rank = |problem: &ProblemReport| {
        let levels = ["bad", "warn", "ok", "note"];
        levels.iter().position(|level| *level == problem.level)
    };
    found.sort_by_key(rank);
    found
}

/// Adds the error with which the last run ended, until this run has passed its place.
fn add_last_error(found: &mut Problems, report: &StatusReport) {
    let Some(error) = &report.last_error else {
        return;
    };
    let problem = found.add("note", ENDED, "The last run ended with an error");
    problem.reason(error.text.clone());
    problem.remedy.clone_from(&error.remedy);
    problem.since_ms = Some(error.at_ms);
}

/// Adds that the run before has noted no end, for an hour.
fn add_former_run(found: &mut Problems, report: &StatusReport) {
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
fn add_state_problems(found: &mut Problems, report: &StatusReport) {
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

/// Returns the slots of standbys that the server waits for before it sends anything.
fn waits_for_standbys(report: &StatusReport) -> Option<&str> {
    report.slot.as_ref()?.waits_for_standbys.as_deref()
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

/// Adds what threatens the slot.
fn add_slot_problems(found: &mut Problems, report: &StatusReport) {
    let Some(slot) = &report.slot else { return };
    let held = || {
        let oldest = slot.oldest_transaction.as_ref();
        oldest.map(|oldest| format!("the oldest open transaction: {oldest}"))
    };
    let find = "see why walrelay does not deliver; a long transaction keeps the log, too: end it";
    let raise = "raise max_slot_wal_keep_size now, or remove the obstacle to delivery: past the \
                 limit the slot is lost";
    let title = "Postgres keeps much WAL for the slot";
    let status = slot.wal_status.as_deref();
    if status == Some("lost") || slot.invalidation_reason.is_some() {
        let title = "The slot is lost: Postgres removed WAL that it needs";
        let problem = found.alert("bad", "WalrelaySlotLost", title);
        problem
            .reason(slot.invalidation_reason.clone())
            .remedy("events are missing: read the runbook before anything is restarted");
        SLOT_LOST.clone_into(&mut problem.runbook);
        return;
    }
    let left = slot.safe_wal_bytes.zip(slot.limit_bytes);
    let warn_above = report.source.retained_wal_warning_bytes.unwrap_or_default();
    match Danger::judge(status, slot.retained_bytes, left, warn_above) {
        Danger::Imminent => {
            let title = "The slot is about to lose WAL it needs";
            let problem = found.alert("bad", "WalrelaySlotWalNearLimit", title);
            problem.reason(held()).remedy(raise);
        }
        Danger::Half => {
            let problem = found.alert("warn", "WalrelaySlotWalNearLimit", title);
            problem.reason(held()).remedy(raise);
        }
        Danger::Much => {
            let problem = found.alert("warn", "WalrelaySlotRetainsWal", title);
            problem.reason(held()).remedy(find);
        }
        Danger::None => {}
    }
}

/// Adds lag, failed looks at the server, locks, clocks and reconnects.
fn add_source_problems(found: &mut Problems, report: &StatusReport) {
    let source = &report.source;
    let holder = report.pipeline.holder.as_ref();
    let stands_by = holder.is_some_and(|holder| holder.standby);
    if let Some(slots) = waits_for_standbys(report) {
        let title = "Postgres sends nothing until a standby has the log";
        found
            .alert("bad", "WalrelayLag", title)
            .reason(format!("synchronized_standby_slots = {slots}"))
            .remedy(STANDBY_REMEDY);
    } else if source.lag_seconds >= LAG_WARN && !stands_by {
        // Any state but streaming is the reason of the lag.
        let level = match source.lag_seconds >= LAG_BAD {
            _ if report.pipeline.state != "streaming" => "note",
            true => "bad",
            false => "warn",
        };
        found
            .alert(level, "WalrelayLag", "walrelay is behind Postgres")
            .remedy(
                "nothing if throughput is high: walrelay catches up. If it is low, see whether delivery is blocked, and \
                 walrelay check",
            );
    }
    if source.recent_reconnects > RECONNECTS {
        found
            .alert(
                "warn",
                "WalrelayReconnects",
                "Attempts fail again and again",
            )
            .reason(format!(
                "more than {RECONNECTS} in ten minutes; since the start: {}",
                counted(&source.reconnects)
            ))
            .remedy(
                "see the recent errors, and the log of Postgres, of a pooler, or of the brokers",
            );
    }
    for (of, offset, wrong) in [
        ("Postgres", source.clock_offset_seconds, "lag and times are"),
        (
            &*report.sink.title,
            report.sink.clock_offset_seconds,
            "the times of records are",
        ),
    ] {
        let Some(offset) = offset.filter(|offset| offset.abs() > CLOCKS_APART) else {
            continue;
        };
        let place = if offset > 0.0 { "ahead of" } else { "behind" };
        found
            .alert(
                "warn",
                "WalrelayClocksApart",
                format!("The clocks of {of} and of this machine are apart"),
            )
            .reason(format!(
                "{of} is {:.1} s {place} this machine: {wrong} wrong by as much",
                offset.abs()
            ))
            .remedy("see that time is synchronised on both machines: timedatectl");
    }
    if let Some((lock, remedy)) = source
        .table_lock
        .as_ref()
        .zip(source.table_lock_remedy.as_ref())
    {
        let title = "An outbox table is locked: services cannot write events";
        let problem = found.alert("warn", "WalrelayTableLocked", title);
        problem.reason(lock.clone()).remedy(remedy);
    }
    add_outboxes(found, source);
    add_audit(found, source);
    if let Some(error) = &report.slot_error {
        found
            .add("warn", WATCHING, "The slot cannot be watched")
            .reason(error.clone())
            .remedy("nothing while events are relayed: retained WAL is not watched meanwhile");
    }
    if let Some(cut) = report
        .bookmark
        .as_ref()
        .and_then(|of| of.cut_short.as_ref())
    {
        let title = "Less than retention.keep can be replayed";
        found
            .alert("note", "WalrelayBookmarkShort", title)
            .reason(cut.clone())
            .remedy("see the cause in the runbook; relaying is not affected");
    }
}

/// Adds servers that do not answer, and destinations that accept no record.
fn add_sink_problems(found: &mut Problems, sink: &SinkReport) {
    let term = &sink.endpoint_term;
    if sink.all_down {
        if !found
            .0
            .iter()
            .any(|problem| problem.title == sink_is_down(sink))
        {
            let servers = sink.servers.as_deref().unwrap_or_default();
            let reach = || format!("see whether {servers} can be reached from here");
            let failure = sink.failure.as_ref();
            let remedy = sink.certificate_remedy.clone();
            let remedy = remedy.or_else(|| failure.map(|failure| failure.remedy.clone()));
            let remedy = remedy.unwrap_or_else(reach);
            found
                .alert("bad", "WalrelaySinkDown", sink_is_down(sink))
                .reason(failure.map(|failure| failure.cause.clone()))
                .remedy(&format!(
                    "{remedy}. Nothing is lost: Postgres keeps the log"
                ));
        }
    } else if sink.endpoints.iter().any(is_up) && sink.endpoints.iter().any(endpoint_is_down) {
        // If none is up, the attempts to connect decide what is down.
        let down = sink.endpoints.iter().filter(|one| endpoint_is_down(one));
        let down: Vec<&str> = down.map(|endpoint| &*endpoint.name).collect();
        found
            .add(
                "warn",
                SINK_DOWN,
                format!("{}: one {term} or more are down", sink.title),
            )
            .reason(down.join(", "))
            .remedy("start them; events that need them wait");
    }
    for loss in &sink.losses {
        let title = format!("{} has lost events that it had acknowledged", sink.title);
        let problem = found.alert("bad", "WalrelayDestinationLost", title);
        let remedy = format!("{}. {ACCEPT_LOSS}", loss.remedy);
        problem.reason(loss.text.clone()).remedy(&remedy);
        problem.since_ms = Some(loss.seen_ms);
    }
    if let Some(near) = &sink.near_limit {
        let title = format!("Events are almost as large as {} accepts", sink.title);
        let problem = found.alert("warn", "WalrelayEventsNearLimit", title);
        problem
            .reason(format!(
                "topic {:?}: an event has {} bytes, the limit is {}",
                near.topic, near.bytes, near.limit_bytes
            ))
            .remedy("raise the limit of server and relay, or make the events smaller: [poison] oversize decides about larger ones");
    }
    if sink.unavailable_count > 0 {
        found
            .alert(
                "warn",
                "WalrelayLeaderless",
                format!("Events wait for {}", sink.unavailable_term),
            )
            .reason(sink.unavailable.join(", "))
            .remedy("start the servers that have them: other events are delivered");
    }
}

/// Adds settings by which the servers may lose what they have acknowledged.
fn add_risks(found: &mut Problems, sink: &SinkReport) {
    for risk in &sink.risks {
        let title = format!("{} may lose events that it has acknowledged", sink.title);
        let level = if risk.fails { "warn" } else { "note" };
        let problem = found.add(level, SINK_LOSES, title);
        problem.reason(risk.finding.clone());
        problem.remedy.clone_from(&risk.remedy);
    }
}

/// Adds silence, events that were not delivered, and rows that stay.
fn add_events_problems(found: &mut Problems, report: &StatusReport) {
    let (delivery, dead) = (&report.delivery, &report.dead_letters);
    if let (true, Some(expected)) = (delivery.silent, delivery.expected_event_seconds)
        && waits_for_standbys(report).is_none()
    {
        let title = "No event for longer than expected";
        let problem = found.alert("warn", "WalrelaySilent", title);
        problem
            .reason(format!("an event is expected every {expected} s"))
            .remedy(
                "see whether the application writes events, and into a table of [source] tables",
            );
        let last = delivery.acknowledged_at_ms;
        problem.since_ms = Some(last.unwrap_or(report.started_ms));
    }
    if let Some(slo) = report
        .slo
        .as_ref()
        .filter(|slo| slo.budget_left_percent <= 0.0)
    {
        let title = "Events were late for longer than the budget of [slo] allows";
        found
            .add("warn", SLO, title)
            .reason(format!(
                "{} s of this run were later than {} s, with a target of {} %",
                slo.missed_seconds, slo.commit_to_ack_seconds, slo.target_percent
            ))
            .remedy("see what delayed them: the history of the page has lag and latency of the last hours");
    }
    if let Some(retrying) = &delivery.retrying {
        let title = "Keys wait because an event of theirs is refused";
        let problem = if 2 * retrying.most > retrying.limit {
            found.alert("warn", "WalrelayKeysRetrying", title)
        } else {
            found.add("warn", RETRYING, title)
        };
        problem.reason(retrying.text()).remedy(
            "the log has the destination's answer: repair it; [poison] decides about events \
             that it refuses for retry_for",
        );
    }
    if let Some(obstacle) = &dead.obstacle {
        found
            .alert(
                "warn",
                "WalrelayDeadLetterTopic",
                "No dead letter can be written: the relay stops at the first one",
            )
            .reason(obstacle.clone())
            .remedy("create the topic, or allow the relay to write to it");
    }
    if dead.parked_keys > 0 {
        found
            .add("warn", DEAD_LETTERS, "Keys are parked behind dead letters")
            .reason(format!("{} keys", dead.parked_keys))
            .remedy("walrelay dlq list shows them: redrive or drop them");
    }
    for (counts, alert, title, remedy) in [
        (
            &dead.written,
            "WalrelayDeadLetters",
            "Events became dead letters since the start",
            "walrelay dlq list has the cause of each: remove it, then walrelay dlq redrive",
        ),
        (
            &dead.skipped,
            "WalrelayEventsSkipped",
            "Events were skipped since the start, and relayed nowhere",
            "the log has the id of each; remove the cause, then publish the rows again",
        ),
    ] {
        let counts = counted(counts);
        if !counts.is_empty() {
            let problem = found.alert("note", alert, title);
            problem.reason(counts).remedy(remedy);
        }
    }
    for (work, obstacle) in &delivery.row_changes {
        if let Some(obstacle) = obstacle {
            let done = if work == "prune" { "deleted" } else { "marked" };
            found
                .alert("warn", "WalrelayRowsStay", format!("Sent rows are not {done}"))
                .reason(obstacle.clone())
                .remedy("see walrelay check: usually the publication or a right was changed. Events are relayed");
        }
    }
}

/// Age of an unmarked row, and time beyond `[prune] keep`, from which on the alerts fire, in seconds.
const UNSENT: f64 = 900.0;
const OVERDUE: f64 = 3600.0;

/// Adds outbox tables with rows that should be marked or deleted by now.
fn add_outboxes(found: &mut Problems, source: &SourceReport) {
    if let Some(error) = &source.outbox_error {
        found
            .add(
                "note",
                WATCHING,
                "Sizes and ages of the outbox are not known",
            )
            .reason(error.clone())
            .remedy("nothing while events are relayed; if it lasts, see the cause");
    }
    for outbox in &source.outboxes {
        let table = &outbox.table;
        if let Some(age) = outbox.oldest_unmarked_seconds.filter(|age| *age > UNSENT) {
            found
                .alert(
                    "warn",
                    "WalrelayOldestUnsent",
                    format!("{table} has old rows without a mark"),
                )
                .reason(format!("the oldest is {age:.0} s old"))
                .remedy("walrelay stuck lists these rows and why each of them has no mark");
        }
        if let Some(overdue) = outbox.prune_overdue_seconds.filter(|age| *age > OVERDUE) {
            found
                .alert(
                    "warn",
                    "WalrelayOutboxGrows",
                    format!("{table} has rows that should be deleted by now"),
                )
                .reason(format!(
                    "the oldest is {overdue:.0} s older than [prune] keep"
                ))
                .remedy("walrelay prune --dry-run, and walrelay stuck, name the rows that stay");
        }
    }
}

/// Adds tables with rows that were never seen, and an audit that does not work.
fn add_audit(found: &mut Problems, source: &SourceReport) {
    let Some(audit) = &source.audit else {
        return;
    };
    for table in audit.tables.iter().filter(|table| table.rows > 0) {
        let (name, rows) = (&table.table, table.rows);
        let title = format!("{name} has rows without evidence that they were sent");
        found
            .alert("warn", "WalrelayUnseenRows", title)
            .reason(format!(
                "{rows} rows have no mark and no dead letter, and the slot is past them"
            ))
            .remedy("walrelay stuck lists these rows; walrelay resend sends one again");
    }
    if let Some(error) = &audit.error {
        found
            .add("note", WATCHING, "The rows of the outbox cannot be audited")
            .reason(error.clone())
            .remedy("nothing while events are relayed; the next round looks again");
    }
}

fn sink_is_down(sink: &SinkReport) -> String {
    match (&sink.certificate_fault, &sink.failure) {
        (Some(fault), _) => format!("{} is down: {fault}", sink.title),
        (None, Some(failure)) if failure.needs_change => failure.what.clone(),
        _ => format!("{} is down: no {} answers", sink.title, sink.endpoint_term),
    }
}

fn is_up(endpoint: &EndpointReport) -> bool {
    endpoint.state == EndpointStats::UP
}

/// Returns true if an endpoint is down.
fn endpoint_is_down(endpoint: &EndpointReport) -> bool {
    !matches!(&*endpoint.state, EndpointStats::UP | EndpointStats::INIT)
}

/// Writes each name with its count, but those of 0.
fn counted(counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let counts: Vec<String> = counts
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use walrelay_failure::{Exit, FailureWords};
    use walrelay_lsn::{CommitEnd, Lsn};
    use walrelay_relay::{Counts, PipelineState, Progress};
    use walrelay_sink::{ConnectFailure, Endpoints, EventPosition, Loss};

    use super::*;
    use crate::{RecentErrors, Setup, Telemetry};

    #[test]
    fn each_alert_that_is_named_exists_and_has_its_time() {
        assert_eq!(TIMES["WalrelayNotReady"], Some("2m"));
        assert_eq!(TIMES["WalrelaySilent"], None);
        let code = include_str!("problems.rs").split("\nmod tests {").next();
        for named in code.expect("the code").split("\"Walrelay").skip(1) {
            let end = named.find(['"', ',']).expect("its end");
            let name = format!("Walrelay{}", &named[..end]);
            assert!(TIMES.contains_key(&*name), "{name}");
        }
    }

    #[test]
    fn a_clock_of_the_sink_that_is_apart_is_a_problem() {
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        let shown = || {
            let problems = telemetry.report().problems;
            let mut alerts = problems.into_iter().filter_map(|problem| problem.reason);
            alerts.find(|reason| reason.contains("this machine"))
        };
        for (offset, expected) in [
            (-0.5, None),
            (-3.0, Some("3.0 s behind")),
            (4.0, Some("4.0 s ahead")),
        ] {
            telemetry.sink.clocks.note(offset);
            let reason = shown();
            assert_eq!(reason.is_some(), expected.is_some(), "{reason:?}");
            assert!(
                reason
                    .unwrap_or_default()
                    .contains(expected.unwrap_or_default())
            );
        }
    }

    #[test]
    fn a_budget_that_is_used_up_is_a_problem() {
        let setup = Setup {
            slo: Some(crate::sections::Slo {
                commit_to_ack: Some(Duration::from_millis(1)),
                // 26 seconds of 30 days.
                target: 99.999,
                lag: Duration::from_secs(30),
            }),
            ..Setup::default()
        };
        let telemetry = Telemetry::new(setup, RecentErrors::default());
        let end_seconds = |number: u32| {
            for _ in 0..number {
                telemetry.commit_to_ack.record(Duration::from_millis(3));
                telemetry.end_second();
            }
            let problems = telemetry.report().problems;
            problems
                .into_iter()
                .find(|problem| problem.title.contains("budget"))
        };
        assert!(end_seconds(20).is_none());
        let problem = end_seconds(10).expect("a problem");
        let reason = "30 s of this run were later than 0.001 s, with a target of 99.999 %";
        assert_eq!(problem.reason.as_deref(), Some(reason));
        assert_eq!(problem.runbook, SLO);
    }

    #[test]
    fn an_event_near_the_limit_is_a_problem_with_topic_and_sizes() {
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        let event = walrelay_sink::Record {
            topic: "orders",
            value: Some(b"secret"),
            ..walrelay_sink::Record::default()
        };
        let shown = || {
            let problems = telemetry.report().problems.into_iter();
            let mut found = problems.filter(|it| it.title.contains("almost as large"));
            found.next()
        };
        telemetry.sink.sizes.compare(&event, 80, 100);
        assert_eq!(shown(), None);
        telemetry.sink.sizes.compare(&event, 81, 100);
        let problem = shown().expect("a problem");
        assert_eq!(telemetry.report().sink.events_near_limit, 1);
        let reason = "topic \"orders\": an event has 81 bytes, the limit is 100";
        assert_eq!(problem.reason.as_deref(), Some(reason));
        let alert = problem.alert.as_deref();
        assert_eq!(alert, Some("WalrelayEventsNearLimit"));
    }

    #[test]
    fn a_loss_of_the_destination_is_a_problem_with_its_range_and_command() {
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        let range = [0x10, 0x20].map(|lsn| EventPosition::in_first_epoch(lsn, 1));
        let loss = Loss::new("orders", Some("orders"), 4, range.into(), false);
        telemetry.sink.note_loss(loss);
        let problems = telemetry.report().problems.into_iter();
        let mut losses = problems.filter(|it| it.title.contains("has lost events"));
        let problem = losses.next().expect("a problem");
        let alert = problem.alert.as_deref();
        assert_eq!(
            (&*problem.level, alert),
            ("bad", Some("WalrelayDestinationLost"))
        );
        let reason =
            "stream \"orders\": 4 or more entries are gone, of the events from 0/10 1 to 0/20 1";
        assert_eq!(problem.reason.as_deref(), Some(reason));
        let remedy = problem.remedy.expect("a remedy");
        assert!(
            remedy.starts_with("walrelay replay --from 0/10 --to 0/21 "),
            "{remedy}"
        );
    }

    #[test]
    fn a_problem_has_alert_reason_and_remedy_and_the_worst_is_first() {
        let setup = Setup {
            expect_event_every: Some(Duration::ZERO),
            ..Setup::default()
        };
        let telemetry = Telemetry::new(setup, RecentErrors::default());
        telemetry.state(&PipelineState::Streaming);
        telemetry.clock(Some(-3.0));
        telemetry.skipped(walrelay_relay::Class::Parked);
        telemetry.dead_letter_obstacle(Some("it is missing".to_owned()));
        let titles = |telemetry: &Telemetry| {
            let shown = telemetry.report().problems.into_iter();
            let shown: Vec<_> = shown
                .map(|problem| {
                    assert!(
                        problem.reason.is_some() && problem.remedy.is_some(),
                        "{problem:?}"
                    );
                    (
                        problem.level.clone(),
                        problem.alert_text().expect("an alert"),
                    )
                })
                .collect();
            shown
        };
        let of = |level: &str, alert: &str| (level.to_owned(), alert.to_owned());
        let streaming = [
            of("warn", "WalrelayClocksApart, after 5m"),
            of("warn", "WalrelaySilent"),
            of("warn", "WalrelayDeadLetterTopic, after 5m"),
            of("note", "WalrelayEventsSkipped"),
        ];
        assert_eq!(titles(&telemetry), streaming);
        telemetry.state(&PipelineState::Blocked {
            why: "no room".to_owned(),
            remedy: None,
        });
        let blocked = titles(&telemetry);
        assert_eq!(blocked[0], of("bad", "WalrelayNotReady, after 2m"));
        assert_eq!(blocked[1..], streaming);
    }

    #[test]
    fn a_new_attempt_names_why_the_last_one_failed() {
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        let shown = |state: &PipelineState| {
            telemetry.state(state);
            let report = telemetry.report();
            let first = report.problems.into_iter().next();
            first.map(|problem| (problem.title, problem.reason))
        };
        let why = "a record was not delivered".to_owned();
        let failed = shown(&PipelineState::Waiting {
            cause: "delivery",
            why: why.clone(),
            explanation: None,
        });
        let (failed, reason) = failed.expect("a problem");
        assert!(
            failed.ends_with(" accepts no events: not relaying, trying again"),
            "{failed}"
        );
        assert_eq!(reason, Some(why));
        let (title, reason) = shown(&PipelineState::Connecting).expect("a problem");
        assert_eq!(title, failed, "it tells nothing of Postgres");
        let last = "the last attempt failed: a record was not delivered";
        assert_eq!(reason.as_deref(), Some(last));
        // The next event may end this attempt, too: a probe does not see it ready in between.
        let (title, reason) = shown(&PipelineState::Streaming).expect("a problem");
        assert_eq!((title, reason.as_deref()), (failed, Some(last)));
        assert!(!telemetry.report().ready);
        telemetry.progress(&Progress {
            counts: Counts::default(),
            received: Lsn::ZERO,
            confirmed: CommitEnd::from_slot(Lsn::new(1)),
            in_flight: 1,
            first: None,
            oldest: None,
        });
        assert_eq!(shown(&PipelineState::Streaming), None);
        assert!(telemetry.report().ready);
        let (title, reason) = shown(&PipelineState::Connecting).expect("a problem");
        assert_eq!(
            (&*title, reason),
            ("Connecting to Postgres", None),
            "this is another attempt"
        );
    }

    #[test]
    fn a_server_of_which_no_attempt_has_failed_is_not_down() {
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        telemetry.state(&PipelineState::Streaming);
        // A broker of the last client, which the present one does not know yet.
        let of_client = telemetry.sink.client();
        for state in [EndpointStats::INIT, EndpointStats::DOWN, "CONNECT"] {
            *walrelay_sink::lock(&of_client) = vec![EndpointStats {
                name: "b:9092/1".to_owned(),
                state: state.to_owned(),
                ..EndpointStats::default()
            }];
            assert!(telemetry.report().problems.is_empty(), "{state}");
        }
        telemetry.sink.all_down.store(true, Relaxed);
        let problems = telemetry.report().problems;
        assert_eq!(problems[0].alert.as_deref(), Some("WalrelaySinkDown"));
    }

    #[test]
    fn servers_that_refuse_the_relay_have_the_words_of_their_failure() {
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        telemetry.state(&PipelineState::Streaming);
        let mut endpoints = Endpoints::new(Arc::clone(&telemetry.sink));
        let fail = |endpoints: &mut Endpoints, exit| {
            endpoints.attempt("a:1", None, false);
            telemetry.sink.all_down.store(true, Relaxed);
            endpoints.connect_failed(ConnectFailure {
                words: FailureWords {
                    id: "redis-access",
                    exit,
                    what: "Redis refuses the relay",
                    remedy: "correct the password",
                },
                cause: "a:1: no login [redis-access]".to_owned(),
            });
        };
        let shown = || telemetry.report().problems.into_iter().next();
        for (exit, title) in [
            (Exit::Denied, "Redis refuses the relay"),
            (Exit::Unavailable, " is down: no endpoint answers"),
        ] {
            fail(&mut endpoints, exit);
            let problem = shown().expect("a problem");
            assert_eq!(problem.title, title);
            assert_eq!(
                problem.reason.as_deref(),
                Some("a:1: no login [redis-access]")
            );
            let remedy = problem.remedy.expect("a remedy");
            assert!(remedy.starts_with("correct the password. "), "{remedy}");
            assert_eq!(problem.alert.as_deref(), Some("WalrelaySinkDown"));
        }
        endpoints.connected("a:1");
        assert!(shown().is_none(), "it answers");
        endpoints.attempt("a:1", None, false);
        assert!(shown().is_none(), "one attempt is not enough");
    }
}
