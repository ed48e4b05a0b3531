//! Deletes the rows of old buckets that count as sent by the account, under one snapshot for each.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_walsender::{Error, Session, SessionKind};

use super::{Evidence, PruneError, Pruning, limit_idle, roll_back};
use crate::catalog::row::{parsed, text};
use crate::confirmation::begin_snapshot;
use crate::sent_rows::compare::{AccountedTable, DeadLetterRows};
use crate::sent_rows::policy::{Difference, Estimate, Verdict};

/// The interval of the statements that keep the session with the snapshot from being idle for
/// [`LONGEST_IDLE`](super::LONGEST_IDLE).
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Waits for work that does not use the session, and keeps its transaction alive meanwhile, however long a batch takes:
/// the server ends it only if this process is suspended or cut off.
///
/// # Errors
/// If the session failed: its snapshot is gone.
async fn keep_alive<T>(session: &mut Session, work: impl Future<Output = T>) -> Result<T, Error> {
    let mut work = pin!(work);
    loop {
        if let Ok(done) = timeout(KEEP_ALIVE, &mut work).await {
            return Ok(done);
        }
        session.query("SELECT").await?;
    }
}

impl Pruning {
    /// Deletes the rows of each old bucket whose rows are those that were accounted as sent. Adds to `problems` the
    /// buckets that differ, and why the dead letters of some buckets cannot be read: their rows stay.
    pub(super) async fn delete_accounted(
        &self,
        session: &mut Session,
        accounted: &AccountedTable,
        deleted: &mut impl FnMut(u64),
        problems: &mut Vec<PruneError>,
    ) -> Result<(), PruneError> {
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
        let (mut differ, mut empty) = (Vec::new(), Vec::new());
        let mut deleting = None;
        let (mut unread, mut failed) = (None, None);
        for one in candidates {
            let bucket = one.counts.bucket;
            match one.estimate() {
                Estimate::Gone => {
                    empty.push(bucket);
                    continue;
                }
                Estimate::Differs(difference) => {
                    differ.push(difference);
                    continue;
                }
                Estimate::MayBeSent => {}
            }
            // Only these need the dead letters, which were not read.
            if unread.is_some() && accounted.has_diverted(session, (bucket, bucket)).await? {
                continue;
            }
            let deleting = match &mut deleting {
                Some(deleting) => deleting,
                none => none.insert(Session::connect(&self.info, SessionKind::Sql, &[]).await?),
            };
            match self
                .delete_bucket(session, deleting, accounted, bucket, deleted)
                .await
            {
                Ok(Ok(())) => {}
                Ok(Err(difference)) => differ.push(difference),
                Err(error) => {
                    let error = roll_back(session, error).await?;
                    if !error.is_of_dead_letters() {
                        failed = Some(error);
                        break;
                    }
                    unread = Some(error);
                }
            }
        }
        if let Some(deleting) = deleting {
            deleting.close().await;
        }
        accounted.forget_empty(session, &empty).await?;
        self.waited.borrow_mut().clone_from(&differ);
        let differ = self
            .named(session, accounted, &accounted.table, differ)
            .await?;
        problems.extend(differ.map(|differ| PruneError::Unaccounted(vec![differ])));
        problems.extend(unread);
        failed.map_or(Ok(()), Err)
    }

    /// Compares a bucket under one snapshot, and deletes exactly the rows that the snapshot sees.
    /// Returns the difference if they are not those of the account.
    async fn delete_bucket(
        &self,
        session: &mut Session,
        deleting: &mut Session,
        accounted: &AccountedTable,
        bucket: i64,
        deleted: &mut impl FnMut(u64),
    ) -> Result<Result<(), Difference>, PruneError> {
        begin_snapshot(session, self.lock_timeout).await?;
        session.query(&limit_idle("LOCAL")).await?;
        let buckets = (bucket, bucket);
        let dead_rows = self.dead_letter_rows(session, accounted, buckets).await?;
        let compared = accounted
            .compare(session, buckets, None, &dead_rows)
            .await?;
        let Some(rows) = compared.first() else {
            // Another process may have deleted all rows since they were counted.
            session.query("ROLLBACK").await?;
            return Ok(Ok(()));
        };
        let (proof, kept) = match rows.verdict() {
            Verdict::Sent(proof) => (proof, None),
            Verdict::OpenDeadLetters {
                others: Some(others),
                ..
            } => (others, dead_rows.known),
            Verdict::OpenDeadLetters { others: None, .. } => {
                session.query("ROLLBACK").await?;
                return Ok(Ok(()));
            }
            Verdict::Unsettled { resolved, reason } => {
                // If other rows became dead letters since, the next run compares the bucket again.
                keep_alive(session, accounted.mark_settled(deleting, &resolved)).await??;
                session.query("ROLLBACK").await?;
                return Ok(Err(reason));
            }
            Verdict::Stays(difference) => {
                session.query("ROLLBACK").await?;
                return Ok(Err(difference));
            }
        };
        if !keep_alive(session, accounted.settle_diverted(deleting, &proof)).await?? {
            // The next run compares the bucket again.
            session.query("ROLLBACK").await?;
            return Ok(Ok(()));
        }
        let cursor = format!(
            "DECLARE walrelay_places NO SCROLL CURSOR FOR {}",
            accounted.places(bucket, kept.as_deref())
        );
        session.query(&cursor).await?;
        let fetch = format!("FETCH {} FROM walrelay_places", self.batch);
        let limits = format!(
            // Rows stay locked until the answer of the other session, and no longer if this process is cut off.
            "SET lock_timeout = {}; {}",
            self.lock_timeout.as_millis().max(1),
            limit_idle("SESSION")
        );
        deleting.query(&limits).await?;
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
                deleting.query("BEGIN").await?;
                let delete = accounted.delete(deleting, &proof, part, &places);
                let gone = keep_alive(session, delete).await??;
                // Places mean these rows if the snapshot is still held: without its session, vacuum may have
                // removed some, and other rows may have taken their places. An error drops `deleting`, which
                // rolls back.
                session.query("SELECT").await?;
                keep_alive(session, deleting.query("COMMIT")).await??;
                deleted(gone);
            }
            keep_alive(session, sleep(self.pause)).await?;
        }
        session.query("COMMIT").await?;
        Ok(Ok(()))
    }

    /// Returns the conditions for rows of dead letters, if rows of these buckets became any: only
    /// then they are read.
    pub(crate) async fn dead_letter_rows(
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
        keep_alive(session, dead_letters.read()).await??;
        Ok(DeadLetterRows {
            known: dead_letters.known_rows(&accounted.table)?,
            open: dead_letters.rows(&accounted.table)?,
        })
    }
}
