//! Deletes rows whose commit is confirmed.
//!
//! The rule needs nothing of the row but that it is visible (docs/adr/0031-a-confirmed-row-is-a-visible-one.md): a
//! transaction takes its snapshot, then reads the end of the log. What the snapshot sees was committed before that
//! position. When every slot has confirmed the position, the same transaction deletes.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::TIMES;

/// How often the slots are asked, and how long they may take to confirm. The snapshot is held meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(10);
/// Somebody changed a row between the snapshot and the DELETE: the transaction is tried again so often.
const ATTEMPTS: u32 = 5;
const SERIALIZATION_FAILURE: &str = "40001";

/// Which rows are deleted, and how.
#[derive(Debug, Clone)]
pub(crate) struct Pruning {
    /// All of these must have confirmed a row.
    pub(crate) slots: Vec<String>,
    pub(crate) tables: Vec<TableName>,
    pub(crate) column: Option<String>,
    pub(crate) keep: Duration,
    pub(crate) batch: u32,
    pub(crate) pause: Duration,
    pub(crate) lock_timeout: Duration,
}

/// Why rows are not deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PruneError {
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// No column says how old a row is.
    #[error("table {0} has no column that tells a row's age")]
    Column(TableName),
    /// The slots stay behind.
    #[error("the slots {slots} have not confirmed {position} within {} s", PATIENCE.as_secs())]
    NotConfirmed { slots: String, position: Lsn },
}

impl Pruning {
    /// Deletes all such rows of all tables, and says after each transaction how many it deleted.
    pub(crate) async fn run(
        &self,
        session: &mut Session,
        mut deleted: impl FnMut(u64),
    ) -> Result<u64, PruneError> {
        let mut total = 0;
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            loop {
                let count = self.batch(session, table, &column).await?;
                total += count;
                deleted(count);
                // Locked rows are passed over: fewer are no sign of the end, none are.
                if count == 0 {
                    break;
                }
                sleep(self.pause).await;
            }
        }
        Ok(total)
    }

    /// How many rows are old enough, confirmed or not.
    pub(crate) async fn count(&self, session: &mut Session) -> Result<u64, PruneError> {
        let mut total = 0;
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            let sql = format!(
                "SELECT count(*) AS rows FROM {} WHERE {}",
                quoted(table),
                self.is_old(&column)
            );
            total += number(session, &sql).await?;
        }
        Ok(total)
    }

    async fn column_of(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<String, PruneError> {
        if let Some(column) = &self.column {
            return Ok(column.clone());
        }
        let sql = format!(
            "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = {}::pg_catalog.regclass \
             AND attname IN ({}) AND NOT attisdropped ORDER BY attname DESC",
            quote_literal(&quoted(table)),
            TIMES.map(quote_literal).join(", ")
        );
        let rows = session.query(&sql).await?;
        let found = rows.first().and_then(|row| row.get("attname"));
        let found = found.map(str::to_owned);
        found.ok_or_else(|| PruneError::Column(table.clone()))
    }

    fn is_old(&self, column: &str) -> String {
        let seconds = self.keep.as_secs_f64();
        format!(
            "{} < pg_catalog.now() - pg_catalog.make_interval(secs => {seconds})",
            quote_ident(column)
        )
    }

    async fn batch(
        &self,
        session: &mut Session,
        table: &TableName,
        column: &str,
    ) -> Result<u64, PruneError> {
        let mut attempt = 1;
        loop {
            let ended = self.transaction(session, table, column).await;
            let error = match ended {
                Ok(count) => return Ok(count),
                Err(error) => error,
            };
            // A session that is lost has no transaction any more: its error is in the way of this one's.
            session.query("ROLLBACK").await?;
            match &error {
                PruneError::Sql(sql)
                    if sql.sqlstate() == Some(SERIALIZATION_FAILURE) && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                _ => return Err(error),
            }
        }
    }

    /// Deletes one batch.
    async fn transaction(
        &self,
        session: &mut Session,
        table: &TableName,
        column: &str,
    ) -> Result<u64, PruneError> {
        let (name, old) = (quoted(table), self.is_old(column));
        let begin = [
            "BEGIN ISOLATION LEVEL REPEATABLE READ".to_owned(),
            format!(
                "SET LOCAL lock_timeout = {}",
                self.lock_timeout.as_millis().max(1)
            ),
        ];
        session.query_all(&begin).await?;
        // The first query takes the snapshot, and only then runs.
        let position = "SELECT pg_catalog.pg_current_wal_insert_lsn() AS position";
        let rows = session.query(position).await?;
        let position = rows
            .first()
            .and_then(|row| row.get("position")?.parse().ok());
        let position = position.unwrap_or(Lsn::MAX);
        let any =
            format!("SELECT count(*) AS rows FROM (SELECT FROM {name} WHERE {old} LIMIT 1) AS old");
        if number(session, &any).await? > 0 {
            self.confirmed(session, position).await?;
        }
        let delete = format!(
            "WITH old AS (SELECT tableoid AS part, ctid AS place FROM {name} WHERE {old} \
             ORDER BY {column} LIMIT {limit} FOR UPDATE SKIP LOCKED), \
             gone AS (DELETE FROM {name} AS rows USING old \
             WHERE rows.ctid = old.place AND rows.tableoid = old.part RETURNING 1) \
             SELECT count(*) AS rows FROM gone",
            column = quote_ident(column),
            limit = self.batch,
        );
        let count = number(session, &delete).await?;
        session.query("COMMIT").await?;
        Ok(count)
    }

    /// Waits until every slot has confirmed this position. What a query reads of slots is not in its snapshot.
    async fn confirmed(&self, session: &mut Session, position: Lsn) -> Result<(), PruneError> {
        let names: Vec<String> = self.slots.iter().map(|slot| quote_literal(slot)).collect();
        let sql = format!(
            "SELECT count(*) AS rows FROM pg_catalog.pg_replication_slots WHERE slot_name IN ({}) \
             AND confirmed_flush_lsn >= {}::pg_catalog.pg_lsn",
            names.join(", "),
            quote_literal(&position.to_string())
        );
        let begun = Instant::now();
        while number(session, &sql).await? < self.slots.len() as u64 {
            if begun.elapsed() > PATIENCE {
                let slots = self.slots.join(", ");
                return Err(PruneError::NotConfirmed { slots, position });
            }
            sleep(INTERVAL).await;
        }
        Ok(())
    }
}

async fn number(session: &mut Session, sql: &str) -> Result<u64, Error> {
    let rows = session.query(sql).await?;
    let count = rows.first().and_then(|row| row.get("rows")?.parse().ok());
    Ok(count.unwrap_or(0))
}

fn quoted(table: &TableName) -> String {
    format!(
        "{}.{}",
        quote_ident(&table.schema),
        quote_ident(&table.name)
    )
}
