//! Deletes rows whose commit is confirmed, and that are old enough, from tables that are not partitioned by time.

use std::time::Duration;

use tokio::time::sleep;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::TIMES;
use super::confirmed::{ConfirmedChange, ConfirmedError, number, quoted};

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
    /// How long the partitions are that are created; `None`: none are.
    pub(crate) partition: Option<Duration>,
    /// How many partitions there are beyond the current one.
    pub(crate) ahead: u32,
}

/// Why rows are not deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PruneError {
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// No column says how old a row is.
    #[error("table {0} has no column that tells a row's age")]
    Column(TableName),
    /// Others hold the lock of a table.
    #[error("table {0} is in use: its lock was not free within lock_timeout")]
    Locked(TableName),
    /// The role may not change partitions.
    #[error("the role may not create and drop partitions of table {0}")]
    Owner(TableName),
    /// The DEFAULT partition has rows that belong into a new one.
    #[error("partition {0} cannot be created: the DEFAULT partition holds rows of its range")]
    DefaultPartition(TableName),
    /// Another table is in the way of a new partition.
    #[error("partition {0} cannot be created beside the tables that are there")]
    Partition(TableName, #[source] Error),
    #[error(transparent)]
    Confirmed(#[from] ConfirmedError),
}

/// A condition in SQL on rows that are not older than `since`; `None`: a table has no column that tells a row's time,
/// or the tables have different ones.
pub(crate) async fn recent_rows(
    session: &mut Session,
    tables: &[TableName],
    since: Duration,
) -> Result<Option<String>, Error> {
    let mut found = None;
    for table in tables {
        let column = time_column(session, table).await?;
        if column.is_none()
            || found
                .as_ref()
                .is_some_and(|found| Some(found) != column.as_ref())
        {
            return Ok(None);
        }
        found = column;
    }
    Ok(found.map(|column| format!("NOT ({})", is_older(&column, since))))
}

/// The column of a row's time, among the usual ones.
async fn time_column(session: &mut Session, table: &TableName) -> Result<Option<String>, Error> {
    let sql = format!(
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = {}::pg_catalog.regclass \
         AND attname IN ({}) AND NOT attisdropped ORDER BY attname DESC",
        quote_literal(&quoted(table)),
        TIMES.map(quote_literal).join(", ")
    );
    let rows = session.query(&sql).await?;
    Ok(rows
        .first()
        .and_then(|row| row.get("attname"))
        .map(str::to_owned))
}

fn is_older(column: &str, age: Duration) -> String {
    format!(
        "{} < pg_catalog.now() - pg_catalog.make_interval(secs => {})",
        quote_ident(column),
        age.as_secs_f64()
    )
}

impl Pruning {
    /// Deletes all such rows of the tables that are not partitioned by time, and says after each transaction how many it deleted.
    pub(crate) async fn run(
        &self,
        session: &mut Session,
        mut deleted: impl FnMut(u64),
    ) -> Result<u64, PruneError> {
        // Partitions are looked at in UTC; a row's `timestamp` is in the zone of the role.
        session.query("RESET TimeZone").await?;
        let mut total = 0;
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            if self.is_partitioned(session, table, &column).await? {
                continue;
            }
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
            if self.is_partitioned(session, table, &column).await? {
                continue;
            }
            let sql = format!(
                "SELECT count(*) AS rows FROM {} WHERE {}",
                quoted(table),
                self.is_old(&column)
            );
            total += number(session, &sql).await?;
        }
        Ok(total)
    }

    pub(super) async fn column_of(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<String, PruneError> {
        if let Some(column) = &self.column {
            return Ok(column.clone());
        }
        let found = time_column(session, table).await?;
        found.ok_or_else(|| PruneError::Column(table.clone()))
    }

    fn is_old(&self, column: &str) -> String {
        is_older(column, self.keep)
    }

    /// Deletes one batch.
    async fn batch(
        &self,
        session: &mut Session,
        table: &TableName,
        column: &str,
    ) -> Result<u64, ConfirmedError> {
        let (name, old) = (quoted(table), self.is_old(column));
        let any = format!("SELECT FROM {name} WHERE {old}");
        let delete = format!(
            "WITH old AS (SELECT tableoid AS part, ctid AS place FROM {name} WHERE {old} \
             ORDER BY {column} LIMIT {limit} FOR UPDATE SKIP LOCKED), \
             gone AS (DELETE FROM {name} AS rows USING old \
             WHERE rows.ctid = old.place AND rows.tableoid = old.part RETURNING 1) \
             SELECT count(*) AS rows FROM gone",
            column = quote_ident(column),
            limit = self.batch,
        );
        let change = ConfirmedChange {
            slots: &self.slots,
            lock_timeout: self.lock_timeout,
            any: &any,
            change: &delete,
        };
        change.run(session).await
    }
}
