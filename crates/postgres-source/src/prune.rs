//! Deletes old rows whose commit is confirmed, from tables that are not partitioned by time.

use std::time::Duration;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::TIMES;
use super::carried::Carrier;
use super::confirmed::{Change, ConfirmedError, ConfirmedRows, count_rows};
use super::dead_letters::{DeadLetters, DeadLettersError};
use super::script;

/// `[prune]`: which rows are deleted, and how. See `partitions` for tables partitioned by time.
#[derive(Debug)]
pub struct Pruning {
    /// A row is deleted only if all of its slots have confirmed it.
    pub carrier: Carrier,
    /// Their rows are not deleted.
    pub dead_letters: DeadLetters,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// The column of a row's time; `None`: the first of `occurred_at` and `created_at` that the table has.
    pub column: Option<String>,
    /// The age that a row must exceed.
    pub keep: Duration,
    /// Rows deleted by one transaction, at most.
    pub batch: u32,
    /// Delay between two transactions.
    pub pause: Duration,
    /// `lock_timeout` of the session.
    pub lock_timeout: Duration,
    /// The range of time of a new partition; `None`: no partitions are created.
    pub partition: Option<Duration>,
    /// Number of partitions created in advance, beyond the current one.
    pub ahead: u32,
}

/// The reason why rows are not deleted, or partitions not changed.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// A statement failed.
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// The table has neither of the columns `occurred_at` and `created_at`, and none is configured.
    #[error("table {0} has no column that tells a row's age")]
    Column(TableName),
    /// Other sessions hold a lock on the table.
    #[error("table {0} is in use: its lock was not free within lock_timeout")]
    Locked(TableName),
    /// The role is not a member of the table's owner, so it may not change partitions.
    #[error("the role may not create and drop partitions of table {0}")]
    Owner(TableName),
    /// The DEFAULT partition holds rows of the new partition's range.
    #[error("partition {0} cannot be created: the DEFAULT partition holds rows of its range")]
    DefaultPartition(TableName),
    /// A table of that name exists, or another partition's range overlaps.
    #[error("partition {0} cannot be created beside the tables that are there")]
    Partition(TableName, #[source] Error),
    /// The partition was made before it was attached, so no log need have its rows as rows of the
    /// table.
    #[error(
        "partition {0} is not dropped: it was made before it was attached, so its rows may not be sent"
    )]
    Attached(TableName),
    /// Rows were written into a detached partition by its own name. No log has them as rows of the
    /// table.
    #[error(
        "partition {part} is not dropped: {rows} rows were written into it after it was detached"
    )]
    Late {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Some of the rows have an event that was never sent.
    #[error("partition {part} is not dropped: {rows} of its rows have an open dead letter")]
    DeadLetters {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Confirmed rows are not changed.
    #[error(transparent)]
    Confirmed(#[from] ConfirmedError),
}

impl From<DeadLettersError> for PruneError {
    fn from(error: DeadLettersError) -> Self {
        Self::Confirmed(error.into())
    }
}

/// Returns the names of columns that tell a row's age: the configured one, or those of the presets'
/// tables.
pub fn age_columns(configured: Option<&str>) -> Vec<String> {
    match configured {
        Some(column) => vec![column.to_owned()],
        None => TIMES.map(str::to_owned).to_vec(),
    }
}

/// Returns an SQL condition for rows that are not older than `since`. `None`: a table has no column
/// of a row's time, or the tables have different ones.
pub async fn recent_rows(
    session: &mut Session,
    tables: &[TableName],
    since: Duration,
) -> Result<Option<String>, Error> {
    let mut found = None;
    for table in tables {
        let column = time_column(session, table).await?;
        if column.is_none() || (found.is_some() && found != column) {
            return Ok(None);
        }
        found = column;
    }
    Ok(found.map(|column| format!("NOT ({})", is_older(&column, since))))
}

/// Returns the column of a row's time: the first of `occurred_at` and `created_at` that the table
/// has.
async fn time_column(session: &mut Session, table: &TableName) -> Result<Option<String>, Error> {
    let sql = format!(
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = {}::pg_catalog.regclass \
         AND attname IN ({}) AND NOT attisdropped ORDER BY attname DESC",
        quote_literal(&script::table(table)),
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
    /// Deletes the old confirmed rows of all tables that are not partitioned by time, and returns
    /// their number. Calls `deleted` with the number of rows after each transaction.
    pub async fn run(
        &self,
        session: &mut Session,
        mut deleted: impl FnMut(u64),
    ) -> Result<u64, PruneError> {
        // `change_partitions` sets UTC on this session. A `timestamp` column is in the time zone of
        // the role.
        session.query("RESET TimeZone").await?;
        let mut total = 0;
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            if self.is_partitioned(session, table, &column).await? {
                continue;
            }
            let rows = ConfirmedRows {
                carrier: &self.carrier,
                dead_letters: &self.dead_letters,
                table,
                condition: &is_older(&column, self.keep),
                order: &format!("ORDER BY {}", quote_ident(&column)),
                change: Change::Delete,
                batch: self.batch,
                pause: self.pause,
                lock_timeout: self.lock_timeout,
            };
            total += rows.change_all(session, &mut deleted).await?.0;
        }
        Ok(total)
    }

    /// Counts the rows that are carried, old enough and have no open dead letter, confirmed or not.
    pub async fn count(&self, session: &mut Session) -> Result<u64, PruneError> {
        self.dead_letters.read().await?;
        let mut total = 0;
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            if self.is_partitioned(session, table, &column).await? {
                continue;
            }
            let carried = self.carrier.carried(session, table);
            let carried = carried.await.map_err(ConfirmedError::from)?;
            let sql = format!(
                "SELECT count(*) AS rows FROM {} WHERE {}{}{}",
                carried.from,
                is_older(&column, self.keep),
                carried.condition(),
                self.dead_letters.others(table)?
            );
            total += count_rows(session, &sql).await?;
        }
        Ok(total)
    }

    /// Returns the column of a row's time: the configured one, or the first of [`TIMES`].
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
}
