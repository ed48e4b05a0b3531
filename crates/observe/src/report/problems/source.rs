//! Problems of the database: the slot, the lag, locks, clocks, and rows that stay.

use walrelay_relay::Danger;

use super::list::{MOVE, Problems, SLOT_LOST, WATCHING, counted};
use crate::report::causes::STANDBY_REMEDY;
use crate::report::{SourceReport, StatusReport};

/// A lag from which on a relay that streams has a problem, and a lag that is a fault, in seconds.
const LAG_WARN: f64 = 5.0;
const LAG_BAD: f64 = 60.0;

/// Clocks that differ by more seconds are a problem.
const CLOCKS_APART: f64 = 1.0;

/// More failed attempts within ten minutes are a problem, as for the alert `WalrelayReconnects`.
pub(crate) const RECONNECTS: u64 = 10;

/// Adds what threatens the slot.
pub(super) fn add_slot_problems(found: &mut Problems, report: &StatusReport) {
    let Some(slot) = &report.slot else { return };
    let held = || {
        let oldest = slot.oldest_transaction.as_ref();
        oldest.map(|oldest| format!("the oldest open transaction: {oldest}"))
    };
    let find = "see why walrelay does not deliver; a long transaction keeps the log, too: end it";
    let raise = "raise max_slot_wal_keep_size now, or remove the obstacle to delivery: past the \
                 limit the slot is lost";
    let title = "Postgres keeps much WAL for the slot";
    if slot.wal_status.as_deref() == Some("lost") || slot.invalidation_reason.is_some() {
        let title = "The slot is lost: Postgres removed WAL that it needs";
        let problem = found.alert("bad", "WalrelaySlotLost", title);
        problem
            .reason(slot.invalidation_reason.clone())
            .remedy("events are missing: read the runbook before anything is restarted");
        SLOT_LOST.clone_into(&mut problem.runbook);
        return;
    }
    let warn_above = report.source.retained_wal_warning_bytes.unwrap_or_default();
    match slot.danger(warn_above) {
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
pub(super) fn add_source_problems(found: &mut Problems, report: &StatusReport) {
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

/// Returns the slots of standbys that the server waits for before it sends anything.
pub(super) fn waits_for_standbys(report: &StatusReport) -> Option<&str> {
    report.slot.as_ref()?.waits_for_standbys.as_deref()
}

/// Adds the move that has not ended, unless the relay waits for its end: then that is the reason of its state.
pub(super) fn add_move(found: &mut Problems, report: &StatusReport) {
    let waits = report.pipeline.error_id.as_deref() == Some("move-pending");
    let Some(moved) = report.moved.as_ref().filter(|_| !waits) else {
        return;
    };
    let title = "The outbox is being moved to another server";
    let problem = found.add("warn", MOVE, title);
    problem.reason(moved.text.clone()).remedy(&moved.remedy);
    problem.since_ms = Some(moved.since_ms);
}
