//! Finds the rows that are no part of the account of sent rows, for `walrelay stuck`.
//!
//! The account has sums of rows. So the rows that a bucket has more are distinguished from the
//! others only if it is one: then the difference of the sums is its hash.

use std::time::Duration;

use walrelay_relay::{BUCKET_SECONDS, RowSum, TableName};
use walrelay_walsender::Session;

use super::{PruneError, Pruning};
use crate::sent_rows::policy::{Difference, Verdict};
use crate::unseen::{UnseenRow, UnseenTable};

/// The rows that a bucket has more than the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraRows {
    /// The time when the bucket starts, in milliseconds since 1970.
    pub from_ms: i64,
    /// The number of rows; negative if rows are missing.
    pub rows: i64,
    /// Rows that became dead letters which the store does not have any more, or which the relay of another slot
    /// has not settled. Then `rows` is 0.
    pub dead_letters: i64,
    /// The row, if it is one.
    pub row: Option<UnseenRow>,
}

impl Pruning {
    /// Returns the buckets whose rows are not those that were accounted as sent. `since`: not those of rows that
    /// are older. Reads all rows of this span.
    ///
    /// # Errors
    /// Also if there is no account.
    pub async fn differing(
        &self,
        session: &mut Session,
        table: &TableName,
        since: Option<Duration>,
    ) -> Result<Vec<Difference>, PruneError> {
        let accounted = self.accounted(session, table).await?;
        let limit = accounted.limit(session, self.keep).await?;
        let first = match since {
            Some(since) => Some(accounted.limit(session, since).await?),
            None => None,
        };
        let candidates = accounted.candidates_from(session, first, limit).await?;
        let numbers = candidates.iter().map(|one| one.counts.bucket);
        let Some(ends) = numbers.clone().min().zip(numbers.max()) else {
            return Ok(Vec::new());
        };
        let dead_rows = self.dead_letter_rows(session, &accounted, ends).await?;
        let compared = accounted.compare(session, ends, None, &dead_rows).await?;
        let differ = compared.iter().filter_map(|rows| match rows.verdict() {
            Verdict::Stays(difference) => Some(difference),
            Verdict::Unsettled { reason, .. } => Some(reason),
            Verdict::Sent(_) | Verdict::OpenDeadLetters { .. } => None,
        });
        Ok(differ.collect())
    }

    /// Returns true if the rows of this bucket, as [`KnownRow`](crate::KnownRow) names it, are exactly those that were
    /// accounted as sent.
    ///
    /// # Errors
    /// Also if there is no account.
    pub async fn is_accounted(
        &self,
        session: &mut Session,
        table: &TableName,
        bucket: i64,
    ) -> Result<bool, PruneError> {
        let accounted = self.accounted(session, table).await?;
        let buckets = (bucket, bucket);
        let dead_rows = self.dead_letter_rows(session, &accounted, buckets).await?;
        let compared = accounted
            .compare(session, buckets, None, &dead_rows)
            .await?;
        let rows = compared.first();
        Ok(rows.is_some_and(|rows| matches!(rows.verdict(), Verdict::Sent(_))))
    }

    /// Returns what these buckets have more than the account, without the rows of the events `known`.
    ///
    /// # Errors
    /// Also if there is no account.
    pub async fn extra_rows(
        &self,
        session: &mut Session,
        table: &UnseenTable,
        name: &TableName,
        buckets: &[Difference],
        known: &[String],
    ) -> Result<Vec<ExtraRows>, PruneError> {
        let accounted = self.accounted(session, name).await?;
        let mut found = Vec::new();
        let is_shared = accounted.is_shared();
        for one in buckets {
            let from_ms = one
                .bucket
                .saturating_mul(BUCKET_SECONDS)
                .saturating_mul(1000);
            if !one.rows_differ {
                found.push(ExtraRows {
                    from_ms,
                    rows: 0,
                    dead_letters: one.lost_dead_letters.saturating_add(one.unsettled),
                    row: None,
                });
                continue;
            }
            let sum = accounted
                .extra(session, one.bucket, &table.has_id(known))
                .await?;
            if sum == RowSum::default() {
                // The own account has these rows: that of another slot lacks some, unless they are behind the slot.
                if is_shared && known.is_empty() {
                    found.push(ExtraRows {
                        from_ms,
                        rows: one.present.saturating_sub(one.accounted),
                        dead_letters: 0,
                        row: None,
                    });
                }
                continue;
            }
            let row = if sum.rows == 1 {
                let values = table.values();
                let rows = accounted.rows_with(session, one.bucket, sum, &values);
                UnseenTable::parse(&rows.await?).pop()
            } else {
                None
            };
            found.push(ExtraRows {
                from_ms,
                rows: sum.rows,
                dead_letters: 0,
                row,
            });
        }
        Ok(found)
    }
}
