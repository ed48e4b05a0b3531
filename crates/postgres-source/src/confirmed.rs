//! Changes confirmed rows: rows that the slot carried, and whose commit every slot has confirmed.
//!
//! The second needs only a row's visibility (docs/adr/0031-a-confirmed-row-is-a-visible-one.md). A
//! transaction takes its snapshot, then reads the end of the WAL: every row that the snapshot sees
//! was committed before that position. When every slot has confirmed the position, the same
//! transaction changes the rows that were carried ([`Carrier`]) and have no open dead letter
//! ([`DeadLetters`]).

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_literal};

use super::carried::noted::MOST_UNCONFIRMED;
use super::carried::{Carried, CarriedError, Carrier, NotCarried};
use super::catalog::row::parsed;
use super::dead_letters::{DeadLetters, DeadLettersError};
use super::script;

/// Interval between two queries of the slots' positions.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time that the slots may take to confirm. The transaction holds its snapshot meanwhile.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts of a transaction that fails because another session changed a row after the snapshot.
const ATTEMPTS: u32 = 5;
const SERIALIZATION_FAILURE: &str = "40001";

/// The reason why confirmed rows are not changed.
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
    /// The slot does not carry the rows.
    #[error(transparent)]
    NotCarried(#[from] NotCarried),
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

impl From<CarriedError> for ConfirmedError {
    fn from(error: CarriedError) -> Self {
        match error {
            CarriedError::Sql(error) => Self::Sql(error),
            CarriedError::Not(error) => Self::NotCarried(error),
        }
    }
}

impl ConfirmedError {
    /// Returns true if another session changed a row between the snapshot and the change.
    pub(super) fn is_serialization_failure(&self) -> bool {
        matches!(self, Self::Sql(sql) if sql.sqlstate() == Some(SERIALIZATION_FAILURE))
    }
}

/// The change of the rows.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    Delete,
    /// The SQL assignments of `UPDATE … SET`.
    #[expect(dead_code, reason = "rows are marked by their keys alone")]
    Update(&'a str),
}

/// A change of one table's confirmed rows, in batches.
#[derive(Debug)]
pub(super) struct ConfirmedRows<'a> {
    /// The slots that must have confirmed the rows.
    pub(super) carrier: &'a Carrier,
    /// Their rows are left alone.
    pub(super) dead_letters: &'a DeadLetters,
    pub(super) table: &'a TableName,
    /// An SQL condition for the rows. If no row fulfils it, the slots are not queried.
    pub(super) condition: &'a str,
    /// `ORDER BY …`: the rows to change first. May be empty.
    pub(super) order: &'a str,
    pub(super) change: Change<'a>,
    /// Rows changed by one transaction, at most.
    pub(super) batch: u32,
    /// Delay between two transactions.
    pub(super) pause: Duration,
    pub(super) lock_timeout: Duration,
}

impl ConfirmedRows<'_> {
    /// Changes the rows, and returns their number, and whether none was left: of the rows that are
    /// updated, one that was locked may be. Calls `changed` with the number of rows after each
    /// transaction.
    pub(super) async fn change_all(
        &self,
        session: &mut Session,
        mut changed: impl FnMut(u64),
    ) -> Result<(u64, bool), ConfirmedError> {
        let mut total = 0;
        loop {
            let (count, complete) = retry(
                session,
                async |session: &mut Session| self.transaction(session).await,
                ConfirmedError::is_serialization_failure,
            )
            .await?;
            total += count;
            changed(count);
            // Locked rows are skipped, so a batch smaller than the limit need not be the last one.
            if count == 0 || complete {
                return Ok((total, complete));
            }
            sleep(self.pause).await;
        }
    }

    /// Returns the number of changed rows, and whether the snapshot sees no other row to change.
    async fn transaction(&self, session: &mut Session) -> Result<(u64, bool), ConfirmedError> {
        // Also without a row to change, so that a publication that is changed back is noticed.
        let carried = self.carrier.carried(session, self.table).await?;
        self.dead_letters.refresh().await?;
        let rows = self.rows(&carried)?;
        let any = format!("SELECT count(*) AS rows FROM (SELECT {rows} LIMIT 1) AS found");
        if count_rows(session, &any).await? == 0 {
            return Ok((0, true));
        }
        flush_wal(session).await?;
        let position = begin_snapshot(session, self.lock_timeout).await?;
        let carried = self.carrier.carried(session, self.table).await?;
        wait_confirmed(session, &self.carrier.slots, position).await?;
        self.carrier.check_position(session).await?;
        // Only now the topic has the dead letters of all rows that the snapshot sees.
        self.dead_letters.read().await?;
        let (rows, table) = (self.rows(&carried)?, &carried.from);
        // The assignments and the condition are on lines of their own, because they may end in a
        // comment. The names of the batch's columns must not be those of the table's.
        let (change, unchanged) = match self.change {
            Change::Delete => (format!("DELETE FROM {table} USING batch"), "false"),
            Change::Update(set) => (
                format!("UPDATE {table} SET {set}\n FROM batch"),
                self.condition,
            ),
        };
        let change = format!(
            "WITH batch AS (SELECT tableoid AS walrelay_part, ctid AS walrelay_place {rows} {order} LIMIT {limit} \
             FOR UPDATE SKIP LOCKED), changed AS ({change} \
             WHERE {name}.ctid = batch.walrelay_place AND {name}.tableoid = batch.walrelay_part \
             RETURNING (\n{unchanged}\n) AS unchanged) \
             SELECT count(*) AS rows, count(*) FILTER (WHERE unchanged) AS unchanged FROM changed",
            order = self.order,
            limit = self.batch,
            // Without an alias: the condition may name the table.
            name = script::table(self.table),
        );
        let count = count_changed(session, &change, self.table).await?;
        let complete = match self.change {
            Change::Delete => false,
            Change::Update(_) => {
                let left = format!("SELECT count(*) AS rows FROM (SELECT {rows} LIMIT 1) AS found");
                count_rows(session, &left).await? == 0
            }
        };
        session.query("COMMIT").await?;
        Ok((count, complete))
    }

    /// Writes `FROM … WHERE …`: the carried rows that fulfil the condition and have no open dead
    /// letter.
    fn rows(&self, carried: &Carried) -> Result<String, DeadLettersError> {
        // The condition is on lines of its own, because it may end in a comment.
        let (table, condition) = (&carried.from, self.condition);
        Ok(format!(
            "FROM {table} WHERE (\n{condition}\n){}{}",
            carried.condition(),
            self.dead_letters.others(self.table)?
        ))
    }
}

/// Runs a transaction, and again as long as it fails because another session changed a row, up to
/// [`ATTEMPTS`] times. Rolls back after each failure.
pub(super) async fn retry<T, E: From<Error>>(
    session: &mut Session,
    mut transaction: impl AsyncFnMut(&mut Session) -> Result<T, E>,
    is_serialization_failure: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut attempt = 1;
    loop {
        let error = match transaction(session).await {
            Ok(result) => return Ok(result),
            Err(error) => error,
        };
        // If the connection is lost, ROLLBACK fails as well, and its error is returned.
        session.query("ROLLBACK").await?;
        if attempt == ATTEMPTS || !is_serialization_failure(&error) {
            return Err(error);
        }
        attempt += 1;
    }
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
        "SET LOCAL synchronous_commit = on",
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

/// Returns the number that a change of a table's rows returns as `rows`.
///
/// # Errors
/// Also if it returns more than 0 as `unchanged`: rows that fulfil the condition still.
pub(super) async fn count_changed(
    session: &mut Session,
    change: &str,
    table: &TableName,
) -> Result<u64, ConfirmedError> {
    let counts = session.query(change).await?;
    let counts = counts.first();
    let count = |name| {
        counts
            .as_ref()
            .and_then(|row| parsed(row, name))
            .unwrap_or(0)
    };
    if count("unchanged") > 0 {
        return Err(ConfirmedError::InVain(table.clone()));
    }
    Ok(count("rows"))
}
