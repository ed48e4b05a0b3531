//! Changes rows whose commit is confirmed.
//!
//! The rule needs nothing of the row but that it is visible (docs/adr/0031-a-confirmed-row-is-a-visible-one.md): a
//! transaction takes its snapshot, then reads the end of the log. What the snapshot sees was committed before that
//! position. When every slot has confirmed the position, the same transaction changes the rows.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

/// How often the slots are asked, and how long they may take to confirm. The snapshot is held meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(10);
/// Somebody changed a row between the snapshot and the change: the transaction is tried again so often.
pub(super) const ATTEMPTS: u32 = 5;
const SERIALIZATION_FAILURE: &str = "40001";

/// Why confirmed rows are not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfirmedError {
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// The slots stay behind.
    #[error("the slots {slots} have not confirmed {position} within {} s", PATIENCE.as_secs())]
    NotConfirmed { slots: String, position: Lsn },
}

impl ConfirmedError {
    /// Whether somebody changed a row between the snapshot and the change.
    pub(super) fn is_of_another_change(&self) -> bool {
        matches!(self, Self::Sql(sql) if sql.sqlstate() == Some(SERIALIZATION_FAILURE))
    }
}

/// A change of confirmed rows, in a transaction of its own.
#[derive(Debug)]
pub(super) struct ConfirmedChange<'a> {
    /// All of these must have confirmed the rows.
    pub(super) slots: &'a [String],
    /// How long a table's lock is waited for.
    pub(super) lock_timeout: Duration,
    /// A SELECT of rows that may have to be changed. If there is none, no slot is waited for.
    pub(super) any: &'a str,
    /// A SELECT that changes rows, and gives their number as `rows`.
    pub(super) change: &'a str,
}

impl ConfirmedChange<'_> {
    /// Changes the rows, and gives their number.
    pub(super) async fn run(&self, session: &mut Session) -> Result<u64, ConfirmedError> {
        let mut attempt = 1;
        loop {
            let error = match self.transaction(session).await {
                Ok(count) => return Ok(count),
                Err(error) => error,
            };
            // A session that is lost has no transaction any more: its error is in the way of this one's.
            session.query("ROLLBACK").await?;
            if !error.is_of_another_change() || attempt == ATTEMPTS {
                return Err(error);
            }
            attempt += 1;
        }
    }

    async fn transaction(&self, session: &mut Session) -> Result<u64, ConfirmedError> {
        let any = format!(
            "SELECT count(*) AS rows FROM ({} LIMIT 1) AS found",
            self.any
        );
        if number(session, &any).await? == 0 {
            return Ok(0);
        }
        flush(session).await?;
        let position = begin(session, self.lock_timeout).await?;
        confirmed(session, self.slots, position).await?;
        let count = number(session, self.change).await?;
        session.query("COMMIT").await?;
        Ok(count)
    }
}

/// Has the server flush its log. Records that belong to no commit, as a SELECT that prunes a page writes them, stay
/// unflushed on an idle server, and no walsender sends what is not flushed.
pub(super) async fn flush(session: &mut Session) -> Result<(), Error> {
    // A commit that wrote something flushes the log. This message is nobody's event.
    let statements = [
        "BEGIN",
        "SET LOCAL synchronous_commit = on",
        "SELECT pg_catalog.pg_logical_emit_message(true, 'walrelay-flush', '')",
        "COMMIT",
    ];
    session.query_all(&statements).await?;
    Ok(())
}

/// Begins a transaction with a snapshot. Gives a position that lies behind each commit that the snapshot sees.
pub(super) async fn begin(session: &mut Session, lock_timeout: Duration) -> Result<Lsn, Error> {
    let begin = [
        "BEGIN ISOLATION LEVEL REPEATABLE READ".to_owned(),
        format!(
            "SET LOCAL lock_timeout = {}",
            lock_timeout.as_millis().max(1)
        ),
    ];
    session.query_all(&begin).await?;
    // The first query takes the snapshot, and only then runs.
    position(session).await
}

/// The end of the log as it is now.
pub(super) async fn position(session: &mut Session) -> Result<Lsn, Error> {
    let position = "SELECT pg_catalog.pg_current_wal_insert_lsn() AS position";
    let rows = session.query(position).await?;
    let position = rows
        .first()
        .and_then(|row| row.get("position")?.parse().ok());
    Ok(position.unwrap_or(Lsn::MAX))
}

/// Waits until every slot has confirmed this position. What a query reads of slots is not in its snapshot.
pub(super) async fn confirmed(
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
    while number(session, &sql).await? < slots.len() as u64 {
        if begun.elapsed() > PATIENCE {
            let slots = slots.join(", ");
            return Err(ConfirmedError::NotConfirmed { slots, position });
        }
        sleep(INTERVAL).await;
    }
    Ok(())
}

/// The number that a query gives as `rows`.
pub(super) async fn number(session: &mut Session, sql: &str) -> Result<u64, Error> {
    let rows = session.query(sql).await?;
    let count = rows.first().and_then(|row| row.get("rows")?.parse().ok());
    Ok(count.unwrap_or(0))
}

/// A table's name in SQL.
pub(super) fn quoted(table: &TableName) -> String {
    format!(
        "{}.{}",
        quote_ident(&table.schema),
        quote_ident(&table.name)
    )
}
