//! Deletes old rows that were sent, from tables that are not partitioned by time.
//!
//! Sent is a row that its relay has marked, or each row of a time bucket whose rows are exactly those
//! that were accounted as sent ([`sent_rows`](super::sent_rows)).
//!
//! - [`accounted`]: deletes rows by the account.
//! - [`marked`]: finds and deletes rows by their marks.
//! - [`partition`]: decides whether a partition's rows count as sent.
//! - [`unaccounted`]: finds rows that are not accounted, and accepts them on the user's word.
//! - [`unseen`]: finds rows that no relay has accounted, for `walrelay stuck`.
//! - [`error`]: the reasons why rows stay.

use std::cell::RefCell;
use std::time::Duration;

use walrelay_relay::{AccountColumns, TableName};
use walrelay_walsender::{ConnInfo, Error, Session, quote_ident, quote_literal};

use super::TIMES;
use super::catalog::Selection;
use super::confirmation::{count_rows, flush_wal, insert_position, wait_confirmed};
use super::dead_letters::DeadLetters;
use super::script;
use super::sent_rows::account::{columns_of, identifies_rows};
use super::sent_rows::compare::{AccountedTable, NoAccount};
use super::sent_rows::policy::Difference;
use super::sent_rows::unaccounted::Unaccounted;

mod accounted;
mod error;
mod marked;
mod partition;
mod partitions;
mod unaccounted;
mod unseen;

pub use error::PruneError;
pub use partitions::Change;
pub use unseen::ExtraRows;

/// The evidence by which a row counts as sent.
#[derive(Debug)]
pub enum Evidence {
    /// The mark of the relay: the selection of unsent rows does not have the row, and no open dead letter has its
    /// key.
    Marks {
        /// The selection of unsent rows.
        selection: Selection,
        /// The relay's slot.
        slot: String,
        /// The dead letters of the slot, which tell that a stored key is that of a resolved one.
        dead_letters: Box<DeadLetters>,
    },
    /// The accounts of the slots agree with the table.
    Account {
        /// The relay's own slot first, then those of relays that share the table.
        slots: Vec<String>,
        /// The columns of the account.
        columns: AccountColumns,
        /// The dead letters of the own slot: rows of open ones are not deleted.
        dead_letters: Box<DeadLetters>,
        /// The store that they are read from.
        store: String,
    },
}

/// `[prune]`: which rows are deleted, and how. See `partitions` for tables partitioned by time.
#[derive(Debug)]
pub struct Pruning {
    /// The server, for a second session: one holds the snapshot, the other deletes.
    pub info: ConnInfo,
    /// The evidence by which a row counts as sent.
    pub evidence: Evidence,
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
    /// The differences that were found last: they are not waited for again.
    pub waited: RefCell<Vec<Difference>>,
}

/// A partition to be dropped: it is old enough, or was detached as such.
#[derive(Debug, PartialEq, Eq)]
struct OldPartition {
    oid: u32,
    name: TableName,
    attached: bool,
}

/// The way in which old rows of a table go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Row by row.
    Rows,
    /// With their partition: the table is partitioned by time.
    Partitions,
}

/// The time for which a transaction that locks rows or partitions waits for this process: the server ends it then,
/// because the process may be suspended or cut off.
const LONGEST_IDLE: Duration = Duration::from_secs(10);

/// Writes a statement that lets the server end a transaction which is idle for longer. `scope`: `LOCAL` or `SESSION`.
fn limit_idle(scope: &str, limit: Duration) -> String {
    let limit = limit.as_millis();
    format!("SET {scope} idle_in_transaction_session_timeout = {limit}")
}

/// Returns the names of columns that show a row's age: the configured one, or those of the presets'
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
    /// Deletes the old sent rows of all tables that are not partitioned by time, and returns their
    /// number. Calls `deleted` with the number of rows after each transaction.
    ///
    /// # Errors
    /// Also if rows of one table stay, after everything else is deleted.
    pub async fn run(
        &self,
        session: &mut Session,
        mut deleted: impl FnMut(u64),
    ) -> Result<u64, PruneError> {
        // `change_partitions` sets UTC on this session. A `timestamp` column is in the time zone of
        // the role.
        session.query("RESET TimeZone").await?;
        let resolved = self.resolved_keys(session, true).await?;
        let (mut total, mut unaccounted, mut left) = (0, Vec::new(), None);
        for (table, column) in self.tables_by(session, Way::Rows).await? {
            total += match self.marked_rows(session, table, &resolved).await {
                Ok(Some(marked)) => {
                    let old = is_older(&column, self.keep);
                    self.delete_marked(session, table, &marked, &old, &mut deleted)
                        .await?
                }
                Ok(None) => {
                    let Some(accounted) = self.with_key(session, table).await? else {
                        unaccounted.push(Unaccounted::keyless(table.clone()));
                        continue;
                    };
                    let deleting = self.delete_accounted(session, &accounted, &mut deleted);
                    let (rows, differ, unread) = deleting.await?;
                    unaccounted.extend(differ);
                    left = left.or(unread);
                    rows
                }
                Err(error) if error.is_of_rows() => {
                    left.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
        }
        if !unaccounted.is_empty() {
            return Err(PruneError::Unaccounted(unaccounted));
        }
        let unread = resolved.unread.map(PruneError::from);
        left.or(unread).map_or(Ok(total), Err)
    }

    /// Counts the rows that are old enough: of those that are marked, or of whole buckets. Also returns why no row of a
    /// table is deleted.
    pub async fn count(&self, session: &mut Session) -> Result<(u64, Vec<PruneError>), PruneError> {
        let resolved = self.resolved_keys(session, false).await?;
        let (mut total, mut stay) = (0, Vec::new());
        for (table, column) in self.tables_by(session, Way::Rows).await? {
            total += match self.marked_rows(session, table, &resolved).await {
                Ok(Some(marked)) => {
                    let from = self.from(session, table).await?;
                    let (sent, old) = (marked.sent(), is_older(&column, self.keep));
                    let sql = format!("SELECT count(*) AS rows FROM {from} WHERE {old} AND {sent}");
                    count_rows(session, &sql).await?
                }
                Ok(None) => {
                    let Some(accounted) = self.with_key(session, table).await? else {
                        let keyless = Unaccounted::keyless(table.clone());
                        stay.push(PruneError::Unaccounted(vec![keyless]));
                        continue;
                    };
                    let limit = accounted.limit(session, self.keep).await?;
                    let candidates = accounted.candidates(session, limit).await?;
                    let rows = candidates.iter().map(|one| one.counts.present);
                    u64::try_from(rows.sum::<i64>()).unwrap_or(0)
                }
                Err(error) if error.is_of_rows() => {
                    stay.push(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
        }
        Ok((total, stay))
    }

    /// Returns the tables whose old rows go in this way, each with the column of a row's time.
    async fn tables_by(
        &self,
        session: &mut Session,
        way: Way,
    ) -> Result<Vec<(&TableName, String)>, PruneError> {
        let mut tables = Vec::new();
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            let is_partitioned = self.is_partitioned(session, table, &column).await?;
            if is_partitioned == (way == Way::Partitions) {
                tables.push((table, column));
            }
        }
        Ok(tables)
    }

    /// Reads the table's accounts.
    pub(super) async fn accounted(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<AccountedTable, PruneError> {
        let column = self.column_of(session, table).await?;
        let slots = self.slots();
        let accounted = AccountedTable::read(session, table, slots, &column).await?;
        if let Evidence::Account { columns, .. } = &self.evidence
            && !accounted.identifies_rows()
        {
            let columns = columns_of(session, table, columns).await?;
            if columns.is_some_and(|columns| !identifies_rows(&columns)) {
                return Err(NoAccount::Key(table.clone()).into());
            }
        }
        Ok(accounted)
    }

    /// Reads the table's accounts; `None` if no column identifies its rows. Other tables may have a key.
    async fn with_key(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<Option<AccountedTable>, PruneError> {
        match self.accounted(session, table).await {
            Ok(accounted) => Ok(Some(accounted)),
            Err(PruneError::NoAccount(NoAccount::Key(_))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the slots whose accounts must agree; empty where rows are marked.
    pub(super) fn slots(&self) -> &[String] {
        match &self.evidence {
            Evidence::Marks { .. } => &[],
            Evidence::Account { slots, .. } => slots,
        }
    }

    /// Waits until every slot has confirmed the current end of the WAL: rows that are visible by now
    /// are accounted then, if they were sent.
    pub(super) async fn wait_all_confirmed(&self, session: &mut Session) -> Result<(), PruneError> {
        let position = insert_position(session).await?;
        flush_wal(session).await?;
        Ok(wait_confirmed(session, self.slots(), position).await?)
    }

    /// Returns `ONLY "schema"."table"`, or without ONLY if it is partitioned: children by INHERITS
    /// are tables of their own.
    async fn from(&self, session: &mut Session, table: &TableName) -> Result<String, Error> {
        let sql = format!(
            "SELECT count(*) AS rows FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass({}) AND relkind = 'p'",
            quote_literal(&script::table(table))
        );
        let partitioned = count_rows(session, &sql).await? > 0;
        Ok(script::rows_of(table, partitioned))
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
