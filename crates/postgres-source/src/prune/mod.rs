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

use walrelay_lsn::Lsn;
use walrelay_relay::{AccountColumns, TableName};
use walrelay_walsender::{ConnInfo, Error, Session, quote_ident, quote_literal};

use super::TIMES;
use super::catalog::Selection;
use super::confirmation::{ConfirmedError, count_rows, flush_wal, insert_position, wait_confirmed};
use super::dead_letters::DeadLetters;
use super::dead_rows::ResolvedKeys;
use super::script;
use super::sent_rows::account::{columns_of, identifies_rows};
use super::sent_rows::compare::{AccountedTable, NoAccount};
use super::sent_rows::policy::Difference;

mod accounted;
mod error;
mod marked;
mod partition;
mod partitions;
mod unaccounted;
mod unseen;

pub use error::PruneError;
pub use partitions::Change;
pub use unaccounted::UnaccountedRows;
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
    /// The slots that did not confirm a position in time in this round: no other table waits for them.
    pub not_confirmed: RefCell<Option<(String, Lsn)>>,
}

/// A partition to be dropped: it is old enough, or was detached as such.
#[derive(Debug, PartialEq, Eq)]
struct OldPartition {
    oid: u32,
    name: TableName,
    attached: bool,
}

/// Statements by which an error of one table leaves a transaction usable for the others.
const SAVEPOINT: &str = "SAVEPOINT walrelay_table";
const TO_SAVEPOINT: &str = "ROLLBACK TO SAVEPOINT walrelay_table";

/// The bounds of partitions are in this time zone. A `timestamp` column is in that of the role.
const UTC: &str = "SET TimeZone TO 'UTC'";

/// The time for which a transaction that locks rows or partitions, or holds a snapshot, waits for this process: the server
/// ends it then, because the process may be suspended or cut off.
const LONGEST_IDLE: Duration = Duration::from_secs(10);

/// Writes a statement that lets the server end a transaction which is idle for [`LONGEST_IDLE`]. `scope`: `LOCAL` or
/// `SESSION`.
fn limit_idle(scope: &str) -> String {
    let limit = LONGEST_IDLE.as_millis();
    format!("SET {scope} idle_in_transaction_session_timeout = {limit}")
}

/// Rolls a transaction back in which this error occurred. Returns the error.
///
/// # Errors
/// The same error if the session cannot be used any more, of which it is the cause.
async fn roll_back(session: &mut Session, error: PruneError) -> Result<PruneError, PruneError> {
    match session.query("ROLLBACK").await {
        Ok(_) => Ok(error),
        Err(_) => Err(error),
    }
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
        let column = age_column(session, table, &age_columns(None)).await?;
        if column.is_none() || (found.is_some() && found != column) {
            return Ok(None);
        }
        found = column;
    }
    Ok(found.map(|column| format!("NOT ({})", is_older(&column, since))))
}

/// Returns the last of these columns, in the order of their names, that the table has.
async fn age_column(
    session: &mut Session,
    table: &TableName,
    columns: &[String],
) -> Result<Option<String>, Error> {
    let columns: Vec<String> = columns.iter().map(|name| quote_literal(name)).collect();
    let sql = format!(
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass({}) \
         AND attname IN ({}) AND NOT attisdropped ORDER BY attname DESC",
        quote_literal(&script::table(table)),
        columns.join(", ")
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

/// The tables of `[prune]`, each with the column of a row's time.
struct SortedTables<'a> {
    /// Tables partitioned by time, whose old rows go with their partitions.
    partitioned: Vec<(&'a TableName, String)>,
    /// Tables whose old rows go one by one.
    others: Vec<(&'a TableName, String)>,
}

/// The changes that a run would make.
#[derive(Debug, Default)]
pub struct PrunePlan {
    /// The number of rows that are old enough: of those that are marked, or of whole buckets.
    pub rows: u64,
    /// The changes of partitions, if all rows were confirmed.
    pub changes: Vec<Change>,
    /// The reasons why rows of some tables stay.
    pub problems: Vec<PruneError>,
}

impl Pruning {
    /// Creates and drops partitions, and deletes the old sent rows of all other tables. Calls `changed` after each
    /// change of a partition, and `deleted` with the number of rows after each transaction.
    ///
    /// Returns the reasons why rows or partitions stay. A problem of one table stops no other.
    pub async fn run(
        &self,
        session: &mut Session,
        mut changed: impl FnMut(Change),
        mut deleted: impl FnMut(u64),
    ) -> Vec<PruneError> {
        let mut problems = Vec::new();
        let all = self.run_all(session, &mut changed, &mut deleted, &mut problems);
        if let Err(error) = all.await {
            problems.push(error);
        }
        problems
    }

    /// Makes a run. Adds the problems of single tables to `problems`.
    async fn run_all(
        &self,
        session: &mut Session,
        changed: &mut impl FnMut(Change),
        deleted: &mut impl FnMut(u64),
        problems: &mut Vec<PruneError>,
    ) -> Result<(), PruneError> {
        self.not_confirmed.take();
        let tables = self.sorted_tables(session, problems).await?;
        session.query(UTC).await?;
        self.create_partitions(session, &tables.partitioned, changed, problems)
            .await?;
        let resolved = self.resolved_keys(session, true).await?;
        for (table, _) in &tables.partitioned {
            self.drop_old(session, table, &resolved, changed, problems)
                .await?;
        }
        session.query("RESET TimeZone").await?;
        for (table, column) in &tables.others {
            let deleting = self.delete_old(session, table, column, &resolved, deleted, problems);
            if let Err(error) = deleting.await {
                let error = error.limit_to(table)?;
                problems.push(roll_back(session, error).await?);
            }
        }
        problems.extend(self.problems_of_keys(session, resolved).await?);
        Ok(())
    }

    /// Deletes the old sent rows of a table.
    async fn delete_old(
        &self,
        session: &mut Session,
        table: &TableName,
        column: &str,
        resolved: &ResolvedKeys,
        deleted: &mut impl FnMut(u64),
        problems: &mut Vec<PruneError>,
    ) -> Result<(), PruneError> {
        if let Some(marked) = self.marked_rows(session, table, resolved).await? {
            let old = is_older(column, self.keep);
            return self
                .delete_marked(session, table, &marked, &old, deleted)
                .await;
        }
        let accounted = self.accounted(session, table).await?;
        self.delete_accounted(session, &accounted, deleted, problems)
            .await
    }

    /// Returns what [`run`](Self::run) would change. Changes nothing.
    pub async fn plan(&self, session: &mut Session) -> Result<PrunePlan, PruneError> {
        let mut plan = PrunePlan::default();
        // Before the transaction, which an error of one table would end.
        let tables = self.sorted_tables(session, &mut plan.problems).await?;
        session.query("BEGIN").await?;
        if let Err(error) = self.plan_all(session, &tables, &mut plan).await {
            return Err(roll_back(session, error).await?);
        }
        session.query("ROLLBACK").await?;
        Ok(plan)
    }

    async fn plan_all(
        &self,
        session: &mut Session,
        tables: &SortedTables<'_>,
        plan: &mut PrunePlan,
    ) -> Result<(), PruneError> {
        session.query(UTC).await?;
        let resolved = self.resolved_keys(session, false).await?;
        for (table, _) in &tables.partitioned {
            session.query(SAVEPOINT).await?;
            match self.planned(session, table, &resolved).await {
                Ok(changes) => plan.changes.extend(changes),
                Err(error) => {
                    plan.problems.push(error.limit_to(table)?);
                    session.query(TO_SAVEPOINT).await?;
                }
            }
        }
        session.query("RESET TimeZone").await?;
        for (table, column) in &tables.others {
            session.query(SAVEPOINT).await?;
            match self.count(session, table, column, &resolved).await {
                Ok(rows) => plan.rows += rows,
                Err(error) => {
                    plan.problems.push(error.limit_to(table)?);
                    session.query(TO_SAVEPOINT).await?;
                }
            }
        }
        let of_keys = self.problems_of_keys(session, resolved).await?;
        plan.problems.extend(of_keys);
        Ok(())
    }

    /// Counts the rows of a table that are old enough.
    async fn count(
        &self,
        session: &mut Session,
        table: &TableName,
        column: &str,
        resolved: &ResolvedKeys,
    ) -> Result<u64, PruneError> {
        if let Some(marked) = self.marked_rows(session, table, resolved).await? {
            let from = self.from(session, table).await?;
            let (sent, old) = (marked.sent(), is_older(column, self.keep));
            let sql = format!("SELECT count(*) AS rows FROM {from} WHERE {old} AND {sent}");
            return Ok(count_rows(session, &sql).await?);
        }
        let accounted = self.accounted(session, table).await?;
        let limit = accounted.limit(session, self.keep).await?;
        let candidates = accounted.candidates(session, limit).await?;
        let rows = candidates.iter().map(|one| one.counts.present);
        Ok(u64::try_from(rows.sum::<i64>()).unwrap_or(0))
    }

    /// Sorts the tables by the way in which their old rows go. Adds a problem for each table that is missing, has no
    /// age, or cannot be queried.
    async fn sorted_tables(
        &self,
        session: &mut Session,
        problems: &mut Vec<PruneError>,
    ) -> Result<SortedTables<'_>, PruneError> {
        let mut tables = SortedTables {
            partitioned: Vec::new(),
            others: Vec::new(),
        };
        for table in &self.tables {
            match self.column_and_partitioned(session, table).await {
                Ok((column, true)) => tables.partitioned.push((table, column)),
                Ok((column, false)) => tables.others.push((table, column)),
                Err(error) => problems.push(error.limit_to(table)?),
            }
        }
        Ok(tables)
    }

    /// Returns the column of a row's time, and whether the table is partitioned by it.
    async fn column_and_partitioned(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<(String, bool), PruneError> {
        let column = self.column_of(session, table).await?;
        let is_partitioned = self.is_partitioned(session, table, &column).await?;
        Ok((column, is_partitioned))
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

    /// Returns the slots whose accounts must agree; empty where rows are marked.
    pub(super) fn slots(&self) -> &[String] {
        match &self.evidence {
            Evidence::Marks { .. } => &[],
            Evidence::Account { slots, .. } => slots,
        }
    }

    /// Waits until every slot has confirmed the current end of the WAL: rows that are visible by now
    /// are accounted then, if they were sent.
    ///
    /// # Errors
    /// [`ConfirmedError::NotConfirmed`], once a slot has not confirmed in time, without a wait for the rest of the round.
    pub(super) async fn wait_all_confirmed(&self, session: &mut Session) -> Result<(), PruneError> {
        if let Some((slots, position)) = self.not_confirmed.borrow().clone() {
            return Err(ConfirmedError::NotConfirmed { slots, position }.into());
        }
        let position = insert_position(session).await?;
        flush_wal(session).await?;
        let waited = wait_confirmed(session, self.slots(), position).await;
        if let Err(ConfirmedError::NotConfirmed { slots, position }) = &waited {
            let not_confirmed = Some((slots.clone(), *position));
            self.not_confirmed.replace(not_confirmed);
        }
        Ok(waited?)
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
    ///
    /// # Errors
    /// [`PruneError::Missing`] and [`PruneError::Column`] if there is none.
    pub(super) async fn column_of(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<String, PruneError> {
        let columns = age_columns(self.column.as_deref());
        if let Some(column) = age_column(session, table, &columns).await? {
            return Ok(column);
        }
        let sql = format!(
            "SELECT count(pg_catalog.to_regclass({})) AS rows",
            quote_literal(&script::table(table))
        );
        let exists = count_rows(session, &sql).await? > 0;
        let table = table.clone();
        Err(if exists {
            PruneError::Column(table)
        } else {
            PruneError::Missing(table)
        })
    }
}
