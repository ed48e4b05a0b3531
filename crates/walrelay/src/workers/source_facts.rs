//! The facts that a source of Postgres finds, as reports for the views.

use walrelay_lsn::Lsn;
use walrelay_observe::{
    FormerRunReport, LastErrorReport, MoveReport, SlotReport, SnapshotReport, SourceFacts,
    millis_now,
};
use walrelay_postgres_source::moves::UnfinishedMove;
use walrelay_postgres_source::run_note::RunNote;
use walrelay_postgres_source::{SlotStanding, SourceFindings};

/// The facts that the source of a relay finds.
#[derive(Debug)]
pub(crate) struct PostgresFacts {
    /// A snapshot is configured.
    pub(crate) has_snapshot: bool,
    pub(crate) findings: SourceFindings,
}

impl SourceFacts for PostgresFacts {
    fn snapshot(&self) -> Option<SnapshotReport> {
        let progress = &self.findings.snapshot;
        self.has_snapshot.then(|| SnapshotReport {
            running: progress.is_running(),
            rows: progress.rows_in_attempt(),
            expected_rows: progress.expected(),
            rows_total: progress.rows(),
        })
    }

    fn opening_wait(&self) -> Option<(String, &'static str)> {
        self.findings.slot_wait.read()
    }

    fn last_error(&self, confirmed: Option<Lsn>) -> Option<LastErrorReport> {
        let error = self.findings.last_error.get();
        let error = error.filter(|error| !error.is_passed(confirmed))?;
        Some(LastErrorReport {
            at_ms: error.at_ms,
            id: error.id.clone(),
            text: error.text(),
            remedy: error.remedy.clone(),
        })
    }

    fn former_run(&self) -> Option<FormerRunReport> {
        let note = self.findings.former_run.get();
        note.map(|note| former_run_report(&note))
    }
}

/// Returns the report of a note.
pub(crate) fn former_run_report(note: &RunNote) -> FormerRunReport {
    let ended = note.ended.as_ref();
    FormerRunReport {
        starts: note.starts,
        started_ms: note.started_ms,
        ended_ms: ended.map(|ended| ended.at_ms),
        error_id: ended.and_then(|ended| ended.error.clone()),
        text: note.text(),
    }
}

/// Returns the report of a move.
pub(crate) fn move_report(unfinished: &UnfinishedMove) -> MoveReport {
    MoveReport {
        state: unfinished.state.name().to_owned(),
        text: unfinished.to_string(),
        remedy: unfinished.remedy().to_owned(),
        since_ms: unfinished.since_ms,
    }
}

/// Returns the report of a slot; `None` if the slot does not exist.
pub(crate) fn slot_report(standing: SlotStanding) -> Option<SlotReport> {
    let slot = standing.slot?;
    let lost = slot.lost();
    let kept = standing.retained;
    Some(SlotReport {
        active: slot.active_pid.is_some(),
        active_pid: slot.active_pid,
        wal_status: kept.wal_status,
        retained_bytes: kept.retained,
        safe_wal_bytes: kept.safe,
        limit_bytes: kept.limit,
        oldest_transaction: kept.oldest_transaction,
        inactive_seconds: standing.inactive_seconds,
        invalidation_reason: lost,
        waits_for_standbys: standing.waits_for_standbys,
        seen_ms: millis_now(),
    })
}
