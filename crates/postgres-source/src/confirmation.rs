//! Waits until the slots have confirmed what a snapshot sees.
//!
//! A transaction takes its snapshot, then reads the end of the WAL: every row that the snapshot sees was
//! committed before that position. Once a slot has confirmed the position, the destination has
//! acknowledged every event before it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_literal};

use super::catalog::row::{is_true, parsed};
use super::dead_letters::DeadLettersError;
use super::position_note::MOST_UNCONFIRMED;

/// Interval between two queries of the slots' positions.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time that the slots may take to confirm. The transaction holds its snapshot meanwhile.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why rows are not compared or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfirmedError {
    /// A statement failed.
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// At least one of the slots has not reached the position.
    #[error("the slots {slots} have not confirmed {position} within {} s", CONFIRM_TIMEOUT.as_secs())]
    NotConfirmed {
        /// The names of the slots.
        slots: String,
        /// The position that all of them must have confirmed.
        position: Lsn,
    },
    /// Open dead letters forbid it.
    #[error(transparent)]
    DeadLetters(#[from] DeadLettersError),
    /// The rows fulfil the condition also after the change.
    #[error(
        "rows of {0} still count as not sent after mark_sent: it does not make snapshot_where false, or a trigger \
         undoes it"
    )]
    InVain(TableName),
}

/// Makes the server flush its WAL. WAL records of no commit, such as those of a SELECT that prunes
/// a page, stay unflushed on an idle server, and a walsender sends only flushed WAL.
///
/// Writes so much WAL that a relay that notes positions confirms without an event, for the next seconds,
/// also at the beginning of a segment.
pub(super) async fn flush_wal(session: &mut Session) -> Result<(), Error> {
    // A commit that wrote something flushes the WAL. No router takes this message for an event.
    let statements = [
        "BEGIN",
        // No standby is waited for: it may be down, and a walsender of a relay does not wait for it.
        "SET LOCAL synchronous_commit = local",
        &format!(
            "SELECT pg_catalog.pg_logical_emit_message(true, 'walrelay-flush', pg_catalog.repeat(' ', {}))",
            2 * MOST_UNCONFIRMED
        ),
        "COMMIT",
    ];
    session.query_all(&statements).await?;
    Ok(())
}

/// Begins a transaction with a snapshot. Returns a position behind every commit that the snapshot
/// sees.
pub(super) async fn begin_snapshot(
    session: &mut Session,
    lock_timeout: Duration,
) -> Result<Lsn, Error> {
    let begin = [
        "BEGIN ISOLATION LEVEL REPEATABLE READ".to_owned(),
        format!(
            "SET LOCAL lock_timeout = {}",
            lock_timeout.as_millis().max(1)
        ),
    ];
    session.query_all(&begin).await?;
    // The first query of a transaction takes the snapshot before it is executed.
    insert_position(session).await
}

/// Queries the end of the WAL (`pg_current_wal_insert_lsn`).
pub(super) async fn insert_position(session: &mut Session) -> Result<Lsn, Error> {
    let sql = "SELECT pg_catalog.pg_current_wal_insert_lsn() AS position";
    let rows = session.query(sql).await?;
    let position = rows.first().and_then(|row| parsed(&row, "position"));
    Ok(position.unwrap_or(Lsn::MAX))
}

/// Returns a position behind everything that was committed before, and makes a walsender reach it also on an idle
/// server. On a standby: the end of the WAL that it has replayed. `None`: the server does not report it, or is a
/// standby though it is `one_of_several`, of which the primary has more.
pub async fn end_of_commits(
    session: &mut Session,
    one_of_several: bool,
) -> Result<Option<Lsn>, Error> {
    let sql = "SELECT pg_catalog.pg_is_in_recovery() AS in_recovery, \
               CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() END AS position";
    let rows = session.query(sql).await?;
    if let Some(row) = rows.first().filter(|row| is_true(row, "in_recovery")) {
        return Ok(parsed(&row, "position").filter(|_| !one_of_several));
    }
    let position = Some(insert_position(session).await?).filter(|position| *position < Lsn::MAX);
    flush_wal(session).await?;
    Ok(position)
}

/// Waits until every slot has confirmed this position. A transaction sees the slots' current
/// positions, whatever its snapshot.
pub(super) async fn wait_confirmed(
    session: &mut Session,
    slots: &[String],
    position: Lsn,
) -> Result<(), ConfirmedError> {
    let names: Vec<String> = slots.iter().map(|slot| quote_literal(slot)).collect();
    let sql = format!(
        "SELECT count(*) AS rows FROM pg_catalog.pg_replication_slots WHERE slot_name IN ({}) \
         AND confirmed_flush_lsn >= {}::pg_catalog.pg_lsn",
        names.join(", "),
        quote_literal(&position.to_string())
    );
    let begun = Instant::now();
    while count_rows(session, &sql).await? < slots.len() as u64 {
        if begun.elapsed() > CONFIRM_TIMEOUT {
            let slots = slots.join(", ");
            return Err(ConfirmedError::NotConfirmed { slots, position });
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Queries the number that a query returns as `rows`.
pub(super) async fn count_rows(session: &mut Session, sql: &str) -> Result<u64, Error> {
    let rows = session.query(sql).await?;
    let count = rows.first().and_then(|row| parsed(&row, "rows"));
    Ok(count.unwrap_or(0))
}

/// A text of the error by which a statement of [`counted_sql`] undoes its change.
const UNDONE: &str = "walrelay has undone this change of rows";

/// Writes the end of a statement whose item `changed` changes rows: their number, as `rows`. If `undo` is true of one,
/// the statement fails, which undoes the change.
///
/// The server decides, so that the change is one statement. A transaction that waits for the decision of a relay keeps
/// its rows locked while the relay is suspended or cut off.
pub(super) fn counted_sql(undo: &str) -> String {
    format!(
        "SELECT CASE WHEN count(*) FILTER (WHERE {undo}) > 0 \
         THEN pg_catalog.concat('{UNDONE}: ', count(*))::int8 ELSE count(*) END AS rows FROM changed"
    )
}

/// Returns true if a statement of [`counted_sql`] has undone its change.
pub(super) fn is_undone(error: &Error) -> bool {
    let message = error.server().map(|error| error.message.as_str());
    message.is_some_and(|message| message.contains(UNDONE))
}

/// Executes a change of a table's rows that ends with [`counted_sql`], and returns the number of rows.
///
/// # Errors
/// [`ConfirmedError::InVain`] if the change was undone.
pub(super) async fn count_changed(
    session: &mut Session,
    change: &str,
    table: &TableName,
) -> Result<u64, ConfirmedError> {
    match count_rows(session, change).await {
        Err(error) if is_undone(&error) => Err(ConfirmedError::InVain(table.clone())),
        counted => Ok(counted?),
    }
}
