//! Deletes old rows that were sent, from tables that are not partitioned by time.
//!
//! Sent is a row that its relay has marked, or each row of a time bucket whose rows are exactly those
//! that were accounted as sent ([`sent_rows`](super::sent_rows)).

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use tokio::time::sleep;
use walrelay_pgoutput::calendar::gregorian;
use walrelay_relay::{AccountColumns, BUCKET_SECONDS, TableName};
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind, quote_ident, quote_literal};

use super::TIMES;
use super::catalog::Selection;
use super::catalog::row::{parsed, text};
use super::confirmed::{
    ConfirmedError, begin_snapshot, count_rows, flush_wal, insert_position, wait_confirmed,
};
use super::dead_letters::{DeadLetters, DeadLettersError};
use super::error::PostgresError;
use super::script;
use super::sent_rows::compare::{
    AccountError, AccountedTable, DeadLetterRows, Difference, NoAccount,
};
use super::snapshot::unsent_condition;

/// Buckets that are named in a message, at most.
const NAMED: usize = 3;

/// The evidence by which a row counts as sent.
#[derive(Debug)]
pub enum Evidence {
    /// The mark of the relay: the selection of unsent rows does not have the row.
    Marks(Selection),
    /// The accounts of the slots agree with the table.
    Account {
        /// The relay's own slot first, then those of relays that share the table.
        slots: Vec<String>,
        /// The columns of the account.
        columns: AccountColumns,
        /// The dead letters of the own slot: rows of open ones are not deleted.
        dead_letters: DeadLetters,
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

/// Rows of a table that are not those that were accounted as sent, so they stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unaccounted {
    /// The table, or the partition that is not dropped.
    pub table: TableName,
    /// The buckets that differ.
    pub buckets: Vec<Difference>,
}

impl fmt::Display for Unaccounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, buckets) = (&self.table, self.buckets.len());
        let sum = |each: fn(&Difference) -> i64| self.buckets.iter().map(each).sum::<i64>();
        let more = sum(|one| (one.present - one.accounted).max(0));
        let fewer = sum(|one| (one.accounted - one.present).max(0));
        write!(f, "rows of {table} stay: it has ")?;
        match (more, fewer) {
            (0, 0) => write!(f, "other rows than were accounted as sent")?,
            (more, 0) => write!(f, "{more} rows more than were accounted as sent")?,
            (0, fewer) => write!(f, "{fewer} rows fewer than were accounted as sent")?,
            (more, fewer) => write!(
                f,
                "{more} rows more in some ten minutes, and {fewer} fewer in others, than were accounted as sent"
            )?,
        }
        write!(f, ", in the ten minutes from ")?;
        for (number, one) in self.buckets.iter().take(NAMED).enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{}", Time(one.bucket))?;
        }
        if buckets > NAMED {
            write!(f, " and {} more", buckets - NAMED)?;
        }
        Ok(())
    }
}

/// The time when a bucket begins.
struct Time(i64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.saturating_mul(BUCKET_SECONDS);
        let (year, month, day) = gregorian(seconds.div_euclid(86_400));
        let minute = seconds.rem_euclid(86_400) / 60;
        let (hour, minute) = (minute / 60, minute % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}Z")
    }
}

/// The reason why rows are not deleted, or partitions not changed.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// A statement failed.
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// Which rows are marked cannot be known.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
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
    /// Some of the rows have an event that was never sent.
    #[error("partition {part} is not dropped: {rows} of its rows have an open dead letter")]
    DeadLetters {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Rows of the partition have an infinite time, so none of them is accounted.
    #[error(
        "partition {part} is not dropped: {rows} of its rows have no finite time, so they are not accounted"
    )]
    Timeless {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Rows of the partition are not marked as sent.
    #[error("partition {part} is not dropped: {rows} of its rows are not marked as sent")]
    Unmarked {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Rows are not those that were accounted as sent.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unaccounted(Vec<Unaccounted>),
    /// There is no account to compare with.
    #[error(transparent)]
    NoAccount(#[from] NoAccount),
    /// The slots have not confirmed what was written, or dead letters cannot be read.
    #[error(transparent)]
    Confirmed(#[from] ConfirmedError),
}

impl PruneError {
    /// Returns true if rows of one table or partition stay, and others may go.
    pub(super) fn is_of_rows(&self) -> bool {
        matches!(
            self,
            Self::Unaccounted(_)
                | Self::Timeless { .. }
                | Self::Unmarked { .. }
                | Self::DeadLetters { .. }
        )
    }
}

impl From<DeadLettersError> for PruneError {
    fn from(error: DeadLettersError) -> Self {
        Self::Confirmed(error.into())
    }
}

impl From<AccountError> for PruneError {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Sql(error) => Self::Sql(error),
            AccountError::None(error) => Self::NoAccount(error),
        }
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
    /// Deletes the old sent rows of all tables that are not partitioned by time, and returns their
    /// number. Calls `deleted` with the number of rows after each transaction.
    ///
    /// # Errors
    /// [`PruneError::Unaccounted`] after everything else is deleted.
    pub async fn run(
        &self,
        session: &mut Session,
        mut deleted: impl FnMut(u64),
    ) -> Result<u64, PruneError> {
        // `change_partitions` sets UTC on this session. A `timestamp` column is in the time zone of
        // the role.
        session.query("RESET TimeZone").await?;
        let (mut total, mut unaccounted) = (0, Vec::new());
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            if self.is_partitioned(session, table, &column).await? {
                continue;
            }
            total += match &self.evidence {
                Evidence::Marks(selection) => {
                    let marked = self.marked(session, table, &column, selection).await?;
                    self.delete_marked(session, table, &marked, &mut deleted)
                        .await?
                }
                Evidence::Account { .. } => {
                    let (rows, buckets) =
                        self.delete_accounted(session, table, &mut deleted).await?;
                    if !buckets.is_empty() {
                        let table = table.clone();
                        unaccounted.push(Unaccounted { table, buckets });
                    }
                    rows
                }
            };
        }
        if unaccounted.is_empty() {
            return Ok(total);
        }
        Err(PruneError::Unaccounted(unaccounted))
    }

    /// Counts the rows that are old enough: of those that are marked, or of whole buckets.
    pub async fn count(&self, session: &mut Session) -> Result<u64, PruneError> {
        let mut total = 0;
        for table in &self.tables {
            let column = self.column_of(session, table).await?;
            if self.is_partitioned(session, table, &column).await? {
                continue;
            }
            total += match &self.evidence {
                Evidence::Marks(selection) => {
                    let marked = self.marked(session, table, &column, selection).await?;
                    let from = self.from(session, table).await?;
                    let sql = format!("SELECT count(*) AS rows FROM {from} WHERE {marked}");
                    count_rows(session, &sql).await?
                }
                Evidence::Account { .. } => {
                    let accounted = self.accounted(session, table).await?;
                    let limit = accounted.limit(session, self.keep).await?;
                    let candidates = accounted.candidates(session, limit).await?;
                    let rows = candidates.iter().map(|one| one.counts.present);
                    u64::try_from(rows.sum::<i64>()).unwrap_or(0)
                }
            };
        }
        Ok(total)
    }

    /// Returns the old rows of each table that are not those that were accounted as sent, by their
    /// numbers alone.
    pub async fn unaccounted(&self, session: &mut Session) -> Result<Vec<Unaccounted>, PruneError> {
        let mut unaccounted = Vec::new();
        for table in &self.tables {
            if let Evidence::Account { .. } = self.evidence {
                let accounted = self.accounted(session, table).await?;
                let limit = accounted.limit(session, self.keep).await?;
                let candidates = accounted.candidates(session, limit).await?;
                let differ = candidates
                    .iter()
                    .filter(|one| one.counts.present > 0 && !one.counts_agree);
                let buckets: Vec<Difference> = differ.map(|one| one.counts).collect();
                if !buckets.is_empty() {
                    let table = table.clone();
                    unaccounted.push(Unaccounted { table, buckets });
                }
            }
        }
        Ok(unaccounted)
    }

    /// Makes the old rows that are not accounted as sent count as sent: the user says that they were,
    /// or may go. Rows of open dead letters stay. Returns the number of rows.
    pub async fn accept(&self, session: &mut Session) -> Result<u64, PruneError> {
        let Evidence::Account {
            dead_letters,
            columns,
            ..
        } = &self.evidence
        else {
            return Ok(0);
        };
        dead_letters.read().await?;
        let mut rows = 0;
        for unaccounted in self.unaccounted(session).await? {
            let table = &unaccounted.table;
            let accounted = self.accounted(session, table).await?;
            let columns = super::sent_rows::account::columns_of(session, table, columns).await?;
            let columns = columns.ok_or_else(|| PruneError::Column(table.clone()))?;
            let open = dead_letters.rows(table)?;
            for one in &unaccounted.buckets {
                accounted
                    .accept(session, one.bucket, &columns, open.as_deref())
                    .await?;
                rows += u64::try_from(one.present).unwrap_or(0);
            }
        }
        Ok(rows)
    }

    /// Returns an SQL condition for the old rows of a table that are marked.
    async fn marked(
        &self,
        session: &mut Session,
        table: &TableName,
        column: &str,
        selection: &Selection,
    ) -> Result<String, PruneError> {
        let unsent = unsent_condition(session, table, selection).await?;
        // On a line of its own, because it may end in a comment.
        Ok(format!(
            "(\n{unsent}\n) IS FALSE AND {}",
            is_older(column, self.keep)
        ))
    }

    async fn delete_marked(
        &self,
        session: &mut Session,
        table: &TableName,
        marked: &str,
        deleted: &mut impl FnMut(u64),
    ) -> Result<u64, PruneError> {
        let from = self.from(session, table).await?;
        let name = script::table(table);
        let sql = format!(
            "WITH batch AS (SELECT tableoid AS walrelay_part, ctid AS walrelay_place FROM {from} WHERE {marked} \
             LIMIT {limit} FOR UPDATE SKIP LOCKED), gone AS (DELETE FROM {from} USING batch \
             WHERE {name}.ctid = batch.walrelay_place AND {name}.tableoid = batch.walrelay_part RETURNING 1) \
             SELECT count(*) AS rows FROM gone",
            limit = self.batch,
        );
        let mut total = 0;
        loop {
            let rows = count_rows(session, &sql).await?;
            total += rows;
            deleted(rows);
            // Locked rows are skipped, so a batch smaller than the limit need not be the last one.
            if rows == 0 {
                return Ok(total);
            }
            sleep(self.pause).await;
        }
    }

    /// Deletes the rows of each old bucket whose rows are those that were accounted as sent. Returns
    /// their number, and the buckets that differ.
    async fn delete_accounted(
        &self,
        session: &mut Session,
        table: &TableName,
        deleted: &mut impl FnMut(u64),
    ) -> Result<(u64, Vec<Difference>), PruneError> {
        let accounted = self.accounted(session, table).await?;
        let limit = accounted.limit(session, self.keep).await?;
        let mut candidates = accounted.candidates(session, limit).await?;
        let waited = |difference| self.waited.borrow().contains(difference);
        if candidates
            .iter()
            .any(|one| one.counts.present > one.counts.accounted && !waited(&one.counts))
        {
            self.wait_all_confirmed(session).await?;
            candidates = accounted.candidates(session, limit).await?;
        }
        let (mut total, mut differ, mut empty) = (0, Vec::new(), Vec::new());
        let mut deleting = None;
        for one in candidates {
            if one.counts.present == 0 {
                empty.push(one.counts.bucket);
                continue;
            }
            if !one.counts_agree {
                differ.push(one.counts);
                continue;
            }
            let deleting = match &mut deleting {
                Some(deleting) => deleting,
                none => none.insert(Session::connect(&self.info, SessionKind::Sql, &[]).await?),
            };
            let bucket = one.counts.bucket;
            match self
                .delete_bucket(session, deleting, &accounted, bucket, deleted)
                .await
            {
                Ok(Ok(rows)) => total += rows,
                Ok(Err(difference)) => differ.push(difference),
                Err(error) => {
                    session.query("ROLLBACK").await?;
                    return Err(error);
                }
            }
        }
        if let Some(deleting) = deleting {
            deleting.close().await;
        }
        accounted.forget_empty(session, &empty).await?;
        self.waited.borrow_mut().clone_from(&differ);
        Ok((total, differ))
    }

    /// Returns true if these differences were waited for before.
    pub(super) fn is_waited(&self, found: &[Unaccounted]) -> bool {
        let mut waited = self.waited.borrow_mut();
        let mut buckets = found.iter().flat_map(|one| &one.buckets);
        let known = buckets.all(|one| waited.contains(one));
        waited.extend(found.iter().flat_map(|one| &one.buckets));
        known
    }

    /// Compares a bucket under one snapshot, and deletes exactly the rows that the snapshot sees.
    /// Returns their number, or the difference if they are not those of the account.
    async fn delete_bucket(
        &self,
        session: &mut Session,
        deleting: &mut Session,
        accounted: &AccountedTable,
        bucket: i64,
        deleted: &mut impl FnMut(u64),
    ) -> Result<Result<u64, Difference>, PruneError> {
        begin_snapshot(session, self.lock_timeout).await?;
        let buckets = (bucket, bucket);
        let dead_rows = self.dead_letter_rows(session, accounted, buckets).await?;
        let compared = accounted
            .compare(session, buckets, None, &dead_rows)
            .await?;
        let Some(compared) = compared.first().filter(|compared| compared.is_equal) else {
            session.query("ROLLBACK").await?;
            // Another process may have deleted all rows since they were counted.
            return Ok(compared
                .first()
                .map_or(Ok(0), |compared| Err(compared.counts)));
        };
        if compared.has_diverted && compared.open == 0 {
            accounted.settle_diverted(deleting, buckets).await?;
        }
        // Beside an open dead letter, rows of resolved ones stay as well: they are accounted together.
        let kept = dead_rows.known.filter(|_| compared.open > 0);
        let cursor = format!(
            "DECLARE walrelay_places NO SCROLL CURSOR FOR {}",
            accounted.places(bucket, kept.as_deref())
        );
        session.query(&cursor).await?;
        let fetch = format!("FETCH {} FROM walrelay_places", self.batch);
        let limits = format!(
            "SET lock_timeout = {}",
            self.lock_timeout.as_millis().max(1)
        );
        deleting.query(&limits).await?;
        let mut total = 0;
        loop {
            let rows = session.query(&fetch).await?;
            if rows.is_empty() {
                break;
            }
            let mut parts: Vec<(i64, Vec<String>)> = Vec::new();
            for row in rows.iter() {
                let part = parsed(&row, "part").unwrap_or(0);
                let place = text(&row, "place");
                match parts.iter_mut().find(|(known, _)| *known == part) {
                    Some((_, places)) => places.push(place),
                    None => parts.push((part, vec![place])),
                }
            }
            for (part, places) in parts {
                let gone = accounted.delete(deleting, bucket, part, &places).await?;
                total += gone;
                deleted(gone);
            }
            sleep(self.pause).await;
        }
        session.query("COMMIT").await?;
        Ok(Ok(total))
    }

    /// Reads the table's accounts.
    pub(super) async fn accounted(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<AccountedTable, PruneError> {
        let column = self.column_of(session, table).await?;
        let slots = self.slots();
        Ok(AccountedTable::read(session, table, slots, &column).await?)
    }

    /// Returns the slots whose accounts must agree; empty where rows are marked.
    pub(super) fn slots(&self) -> &[String] {
        match &self.evidence {
            Evidence::Marks(_) => &[],
            Evidence::Account { slots, .. } => slots,
        }
    }

    /// Returns the conditions for rows of dead letters, if rows of these buckets became any: only
    /// then they are read.
    pub(super) async fn dead_letter_rows(
        &self,
        session: &mut Session,
        accounted: &AccountedTable,
        buckets: (i64, i64),
    ) -> Result<DeadLetterRows, PruneError> {
        let Evidence::Account { dead_letters, .. } = &self.evidence else {
            return Ok(DeadLetterRows::default());
        };
        if !accounted.has_diverted(session, buckets).await? {
            return Ok(DeadLetterRows::default());
        }
        dead_letters.read().await?;
        Ok(DeadLetterRows {
            known: dead_letters.known_rows(&accounted.table)?,
            open: dead_letters.rows(&accounted.table)?,
        })
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
        let name = script::table(table);
        let sql = format!(
            "SELECT count(*) AS rows FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass({}) AND relkind = 'p'",
            quote_literal(&name)
        );
        let partitioned = count_rows(session, &sql).await? > 0;
        Ok(if partitioned {
            name
        } else {
            format!("ONLY {name}")
        })
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
