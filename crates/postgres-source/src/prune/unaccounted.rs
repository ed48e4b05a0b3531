//! Rows that are not those that were accounted as sent: finds them, and counts them as sent on the user's
//! word.

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session};

use super::{Evidence, PruneError, Pruning};
use crate::confirmation::begin_snapshot;
use crate::sent_rows::account::{columns_of, identifies_rows};
use crate::sent_rows::compare::{AccountedTable, DeadLetterRows, NoAccount};
use crate::sent_rows::policy::{BucketRows, Difference, Estimate, Verdict};
use crate::sent_rows::unaccounted::Unaccounted;

impl Pruning {
    /// Returns the rows of each table that stay, as far as numbers show: old rows that are too
    /// many or too few, and rows of dead letters in other stores than the configured one.
    pub async fn unaccounted(&self, session: &mut Session) -> Result<Vec<Unaccounted>, PruneError> {
        let Evidence::Account { store, .. } = &self.evidence else {
            return Ok(Vec::new());
        };
        let mut unaccounted = Vec::new();
        for table in &self.tables {
            let Some(accounted) = self.with_key(session, table).await? else {
                unaccounted.push(Unaccounted::keyless(table.clone()));
                continue;
            };
            let limit = accounted.limit(session, self.keep).await?;
            let candidates = accounted.candidates(session, limit).await?;
            let differ = candidates.iter().filter_map(|one| match one.estimate() {
                Estimate::Differs(difference) => Some(difference),
                Estimate::Gone | Estimate::MayBeSent => None,
            });
            let mut buckets: Vec<Difference> = differ.collect();
            buckets.extend(accounted.dead_letters_elsewhere(session, store).await?);
            unaccounted.extend(self.named(session, &accounted, table, buckets).await?);
        }
        Ok(unaccounted)
    }

    /// Returns the old rows of each table that [`accept`](Self::accept) would count as sent: all rows are
    /// compared.
    pub async fn differences(&self, session: &mut Session) -> Result<Vec<Unaccounted>, PruneError> {
        let mut unaccounted = Vec::new();
        if let Evidence::Marks { .. } = self.evidence {
            return Ok(unaccounted);
        }
        for table in &self.tables {
            let Some(accounted) = self.with_key(session, table).await? else {
                unaccounted.push(Unaccounted::keyless(table.clone()));
                continue;
            };
            let limit = accounted.limit(session, self.keep).await?;
            let candidates = accounted.candidates(session, limit).await?;
            let numbers = candidates.iter().map(|one| one.counts.bucket);
            let Some(ends) = numbers.clone().min().zip(numbers.max()) else {
                continue;
            };
            let dead_rows = self.dead_letter_rows(session, &accounted, ends).await?;
            let compared = accounted.compare(session, ends, None, &dead_rows).await?;
            let differ = compared.iter().filter_map(|rows| match rows.verdict() {
                Verdict::Stays(difference) => Some(difference),
                Verdict::Sent(_) | Verdict::OpenDeadLetters { .. } | Verdict::Unsettled { .. } => {
                    None
                }
            });
            let differ = differ.collect();
            unaccounted.extend(self.named(session, &accounted, table, differ).await?);
        }
        Ok(unaccounted)
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
        for unaccounted in found.iter().filter(|one| !one.is_keyless) {
            let accounted = self.accounted(session, &unaccounted.table).await?;
            for one in &unaccounted.buckets {
                match self.accept_bucket(session, &accounted, one).await {
                    Ok(true) => {
                        session.query("COMMIT").await?;
                        rows += u64::try_from(one.present).unwrap_or(0);
                    }
                    Ok(false) => drop(session.query("ROLLBACK").await?),
                    Err(error) => {
                        session.query("ROLLBACK").await?;
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
            is_keyless: false,
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
