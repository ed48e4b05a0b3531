//! Rows that are not those that were accounted as sent: finds them, and counts them as sent on the user's
//! word.

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session};

use super::{Evidence, PruneError, Pruning, roll_back};
use crate::confirmation::begin_snapshot;
use crate::sent_rows::account::{columns_of, identifies_rows};
use crate::sent_rows::compare::{AccountedTable, DeadLetterRows, NoAccount};
use crate::sent_rows::policy::{BucketRows, Difference, Estimate, Verdict};
use crate::sent_rows::unaccounted::Unaccounted;

/// The old rows that stay because they are not those that were accounted as sent.
#[derive(Debug, Default)]
pub struct UnaccountedRows {
    /// The rows by table.
    pub tables: Vec<Unaccounted>,
    /// The reasons why other tables cannot be compared.
    pub problems: Vec<PruneError>,
}

impl Pruning {
    /// Returns the rows of each table that stay, as far as numbers show: old rows that are too
    /// many or too few, and rows of dead letters in other stores than the configured one.
    ///
    /// # Errors
    /// If no table can be compared.
    pub async fn unaccounted(&self, session: &mut Session) -> Result<UnaccountedRows, PruneError> {
        let mut found = UnaccountedRows::default();
        if let Evidence::Account { store, .. } = &self.evidence {
            for table in &self.tables {
                let rows = self.unaccounted_of(session, table, store).await;
                found.add(table, rows)?;
            }
        }
        Ok(found)
    }

    async fn unaccounted_of(
        &self,
        session: &mut Session,
        table: &TableName,
        store: &str,
    ) -> Result<Option<Unaccounted>, PruneError> {
        let accounted = self.accounted(session, table).await?;
        let limit = accounted.limit(session, self.keep).await?;
        let candidates = accounted.candidates(session, limit).await?;
        let differ = candidates.iter().filter_map(|one| match one.estimate() {
            Estimate::Differs(difference) => Some(difference),
            Estimate::Gone | Estimate::MayBeSent => None,
        });
        let mut buckets: Vec<Difference> = differ.collect();
        buckets.extend(accounted.dead_letters_elsewhere(session, store).await?);
        Ok(self.named(session, &accounted, table, buckets).await?)
    }

    /// Returns the old rows of each table that [`accept`](Self::accept) would count as sent: all rows are
    /// compared.
    ///
    /// # Errors
    /// If no table can be compared.
    pub async fn differences(&self, session: &mut Session) -> Result<UnaccountedRows, PruneError> {
        let mut found = UnaccountedRows::default();
        if let Evidence::Account { .. } = self.evidence {
            for table in &self.tables {
                let rows = self.differences_of(session, table).await;
                found.add(table, rows)?;
            }
        }
        Ok(found)
    }

    async fn differences_of(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<Option<Unaccounted>, PruneError> {
        let accounted = self.accounted(session, table).await?;
        let limit = accounted.limit(session, self.keep).await?;
        let candidates = accounted.candidates(session, limit).await?;
        let numbers = candidates.iter().map(|one| one.counts.bucket);
        let Some(ends) = numbers.clone().min().zip(numbers.max()) else {
            return Ok(None);
        };
        let dead_rows = self.dead_letter_rows(session, &accounted, ends).await?;
        let compared = accounted.compare(session, ends, None, &dead_rows).await?;
        let differ = compared.iter().filter_map(|rows| match rows.verdict() {
            Verdict::Stays(difference) => Some(difference),
            Verdict::Sent(_) | Verdict::OpenDeadLetters { .. } | Verdict::Unsettled { .. } => None,
        });
        let differ = differ.collect();
        Ok(self.named(session, &accounted, table, differ).await?)
    }

    /// Makes these rows count as sent: the user says that they were, or may go. Rows of open dead
    /// letters of the configured store stay, and so do buckets that are not as they were found any more: the
    /// user has not seen their rows. Returns the number of rows.
    pub async fn accept(
        &self,
        session: &mut Session,
        found: &[Unaccounted],
    ) -> Result<u64, PruneError> {
        let Evidence::Account { dead_letters, .. } = &self.evidence else {
            return Ok(0);
        };
        dead_letters.read().await?;
        let mut rows = 0;
        for unaccounted in found {
            let accounted = self.accounted(session, &unaccounted.table).await?;
            for one in &unaccounted.buckets {
                match self.accept_bucket(session, &accounted, one).await {
                    Ok(true) => {
                        session.query("COMMIT").await?;
                        rows += u64::try_from(one.present).unwrap_or(0);
                    }
                    Ok(false) => drop(session.query("ROLLBACK").await?),
                    Err(error) => {
                        let error = roll_back(session, error).await?;
                        if !error.is_of_concurrent_change() {
                            return Err(error);
                        }
                    }
                }
            }
        }
        Ok(rows)
    }

    /// Begins a transaction that makes the rows of a bucket count as sent, if they are those of this
    /// difference. Returns whether they are.
    async fn accept_bucket(
        &self,
        session: &mut Session,
        accounted: &AccountedTable,
        one: &Difference,
    ) -> Result<bool, PruneError> {
        let Evidence::Account {
            dead_letters,
            columns,
            store,
            ..
        } = &self.evidence
        else {
            return Ok(false);
        };
        begin_snapshot(session, self.lock_timeout).await?;
        let table = &accounted.table;
        let buckets = (one.bucket, one.bucket);
        let open = dead_letters.rows(table)?;
        let dead_rows = if accounted.has_diverted(session, buckets).await? {
            DeadLetterRows {
                known: dead_letters.known_rows(table)?,
                open: open.clone(),
            }
        } else {
            DeadLetterRows::default()
        };
        let compared = accounted
            .compare(session, buckets, None, &dead_rows)
            .await?;
        let decided = compared.first().map(BucketRows::verdict);
        if decided != Some(Verdict::Stays(*one)) {
            return Ok(false);
        }
        let columns = columns_of(session, table, columns).await?;
        let columns = columns.ok_or_else(|| PruneError::Column(table.clone()))?;
        if !identifies_rows(&columns) {
            return Err(NoAccount::Key(table.clone()).into());
        }
        accounted
            .accept(session, one.bucket, &columns, open.as_deref(), store)
            .await?;
        Ok(true)
    }

    /// Names the buckets of a table or partition that differ, with the stores of missing dead letters.
    /// `None`: there are none.
    pub(super) async fn named(
        &self,
        session: &mut Session,
        accounted: &AccountedTable,
        table: &TableName,
        buckets: Vec<Difference>,
    ) -> Result<Option<Unaccounted>, Error> {
        let Evidence::Account { store, .. } = &self.evidence else {
            return Ok(None);
        };
        if buckets.is_empty() {
            return Ok(None);
        }
        let lost = buckets.iter().filter(|one| one.lost_dead_letters > 0);
        let lost: Vec<i64> = lost.map(|one| one.bucket).collect();
        let stores = if lost.is_empty() {
            Vec::new()
        } else {
            accounted.stores(session, &lost).await?
        };
        let unpublished_key = if buckets.iter().any(|one| one.rows_differ) {
            accounted.unpublished_key(session).await?
        } else {
            Vec::new()
        };
        Ok(Some(Unaccounted {
            table: table.clone(),
            buckets,
            stores,
            read: store.clone(),
            unpublished_key,
        }))
    }

    /// Returns true if these differences were waited for before.
    pub(super) fn is_waited(&self, found: &[Unaccounted]) -> bool {
        let mut waited = self.waited.borrow_mut();
        let mut buckets = found.iter().flat_map(|one| &one.buckets);
        let known = buckets.all(|one| waited.contains(one));
        waited.extend(found.iter().flat_map(|one| &one.buckets));
        known
    }
}

impl UnaccountedRows {
    /// Adds the rows of a table, or the reason why they cannot be compared.
    fn add(
        &mut self,
        table: &TableName,
        rows: Result<Option<Unaccounted>, PruneError>,
    ) -> Result<(), PruneError> {
        match rows {
            Ok(rows) => self.tables.extend(rows),
            Err(error) => self.problems.push(error.limit_to(table)?),
        }
        Ok(())
    }
}
