//! Decides whether all rows of a partition count as sent.

use walrelay_relay::TableName;
use walrelay_walsender::Session;

use super::error::prune_error;
use super::marked::MarkedRows;
use super::{OldPartition, PruneError, Pruning};
use crate::confirmation::count_rows;
use crate::script;
use crate::sent_rows::part::PartRows;
use crate::sent_rows::policy::{PartitionRows, Proof, Reason, Verdict};

impl Pruning {
    /// Checks that all rows of the partition count as sent, and settles resolved dead letters for which other
    /// relays wait. If some rows do not count as sent, waits until the slots have confirmed what is written by
    /// now, and checks again. `marked`: the conditions for marked rows, if rows are marked.
    pub(super) async fn check_sent_patiently(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &OldPartition,
        marked: Option<&MarkedRows>,
    ) -> Result<Proof, PruneError> {
        let verdict = self.verdict(session, table, part, marked).await?;
        if let Verdict::Unsettled { resolved, .. } = &verdict {
            let accounted = self.accounted(session, table).await?.with_part(part.oid);
            accounted.mark_settled(session, resolved).await?;
        }
        match self.proof(session, table, part, verdict).await {
            Err(PruneError::Unaccounted(found)) if !self.is_waited(&found) => {
                self.wait_all_confirmed(session).await?;
                self.check_sent(session, table, part, marked).await
            }
            // A service deleted rows between both looks.
            Err(PruneError::Uncompared { .. }) => {
                self.check_sent(session, table, part, marked).await
            }
            checked => checked,
        }
    }

    /// Returns the proof that all rows of the partition count as sent, and that none has an open dead
    /// letter. `marked`: see [`check_sent_patiently`](Self::check_sent_patiently).
    pub(super) async fn check_sent(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &OldPartition,
        marked: Option<&MarkedRows>,
    ) -> Result<Proof, PruneError> {
        let verdict = self.verdict(session, table, part, marked).await?;
        self.proof(session, table, part, verdict).await
    }

    /// Decides about the rows of the partition.
    async fn verdict(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &OldPartition,
        marked: Option<&MarkedRows>,
    ) -> Result<Verdict<Reason>, PruneError> {
        let rows = match marked {
            Some(marked) => marked.unsent_rows(session, table, part).await?,
            None => self.accounted_rows(session, table, part).await?,
        };
        Ok(rows.verdict())
    }

    /// Returns the proof of a decision, or the reason why the partition stays.
    async fn proof(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &OldPartition,
        verdict: Verdict<Reason>,
    ) -> Result<Proof, PruneError> {
        let name = part.name.clone();
        let reason = match verdict {
            Verdict::Sent(proof) => return Ok(proof),
            Verdict::OpenDeadLetters { rows, .. } => {
                return Err(PruneError::DeadLetters { part: name, rows });
            }
            Verdict::Unsettled { reason, .. } | Verdict::Stays(reason) => reason,
        };
        Err(match reason {
            Reason::Unmarked(rows) => PruneError::Unmarked { part: name, rows },
            Reason::Timeless(rows) => PruneError::Timeless { part: name, rows },
            Reason::Uncarried(rows) => PruneError::Uncarried { part: name, rows },
            Reason::Uncompared(rows) => PruneError::Uncompared { part: name, rows },
            Reason::Differs(buckets) => {
                let accounted = self.accounted(session, table).await?.with_part(part.oid);
                let named = self.named(session, &accounted, &name, buckets).await?;
                PruneError::Unaccounted(named.into_iter().collect())
            }
        })
    }

    /// Reads what the policy must know of a partition whose rows are accounted.
    async fn accounted_rows(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &OldPartition,
    ) -> Result<PartitionRows, PruneError> {
        let accounted = self.accounted(session, table).await?.with_part(part.oid);
        let found = accounted.rows_of(session, &part.name).await;
        // Who may not read a partition by its name is no member of its owner.
        let found = found.map_err(|error| prune_error(error, table, None))?;
        let PartRows {
            rows,
            timeless,
            uncarried,
            ends,
        } = found;
        let (mut buckets, mut open) = (Vec::new(), 0);
        if let Some(ends) = ends.filter(|_| timeless == 0 && uncarried == 0) {
            let dead_rows = self.dead_letter_rows(session, &accounted, ends).await?;
            let detached = (!part.attached).then_some(&part.name);
            buckets = accounted
                .compare(session, ends, detached, &dead_rows)
                .await?;
            if let Some(condition) = &dead_rows.open {
                let name = script::table(&part.name);
                let count = format!("SELECT count(*) AS rows FROM {name} WHERE {condition}");
                open = count_rows(session, &count).await?;
            }
        }
        Ok(PartitionRows::Accounted {
            rows,
            timeless,
            uncarried,
            buckets,
            open,
        })
    }
}
