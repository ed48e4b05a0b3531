//! Rows that count as sent because the relay has marked them, and no key of an open dead letter is stored for them.

use tokio::time::sleep;
use walrelay_relay::TableName;
use walrelay_walsender::{Session, quote_ident};

use super::error::prune_error;
use super::{Evidence, OldPartition, PruneError, Pruning};
use crate::catalog::row::parsed;
use crate::confirmation::count_rows;
use crate::dead_rows::{ResolvedKeys, keys_elsewhere, rows_of_open};
use crate::script;
use crate::sent_rows::policy::PartitionRows;
use crate::snapshot::unsent_condition;

/// The conditions by which rows of a table are marked. They hold for a round over its partitions, and the batches of its
/// rows: keys that are stored meanwhile are read.
#[derive(Debug)]
pub(super) struct MarkedRows {
    /// The condition for unsent rows. It may name the table, and end in a comment.
    unsent: String,
    /// The condition for rows of open dead letters.
    open: String,
}

impl MarkedRows {
    /// Returns a condition for rows that count as sent.
    pub(super) fn sent(&self) -> String {
        // On a line of its own, because it may end in a comment.
        format!("(\n{}\n) IS FALSE AND {} IS FALSE", self.unsent, self.open)
    }

    /// Counts the rows of a partition that do not count as sent.
    pub(super) async fn unsent_rows(
        &self,
        session: &mut Session,
        table: &TableName,
        part: &OldPartition,
    ) -> Result<PartitionRows, PruneError> {
        // The condition may name the table.
        let sql = format!(
            "SELECT count(*) FILTER (WHERE unsent) AS unsent, count(*) FILTER (WHERE open AND NOT unsent) AS open FROM \
             (SELECT (\n{}\n) IS NOT FALSE AS unsent, {} IS NOT FALSE AS open FROM {} AS {}) AS rows",
            self.unsent,
            self.open,
            script::table(&part.name),
            quote_ident(&table.name)
        );
        let rows = session.query(&sql).await;
        let rows = rows.map_err(|error| prune_error(error, table, None))?;
        let row = rows.first();
        // A number that cannot be read keeps the partition.
        let count = |name| {
            row.as_ref()
                .and_then(|row| parsed(row, name))
                .unwrap_or(u64::MAX)
        };
        Ok(PartitionRows::Marked {
            unmarked: count("unsent"),
            open: count("open"),
        })
    }
}

impl Pruning {
    /// Reads which stored keys are those of resolved dead letters. `deletes`: the keys of dropped ones are deleted.
    pub(super) async fn resolved_keys(
        &self,
        session: &mut Session,
        deletes: bool,
    ) -> Result<ResolvedKeys, PruneError> {
        match &self.evidence {
            Evidence::Marks {
                slot, dead_letters, ..
            } => Ok(ResolvedKeys::read(session, slot, dead_letters, deletes).await?),
            Evidence::Account { .. } => Ok(ResolvedKeys::default()),
        }
    }

    /// Returns the reasons why rows of dead letters stay in all tables.
    pub(super) async fn problems_of_keys(
        &self,
        session: &mut Session,
        resolved: ResolvedKeys,
    ) -> Result<Vec<PruneError>, PruneError> {
        let mut problems: Vec<_> = resolved.unread.map(PruneError::from).into_iter().collect();
        if let Evidence::Marks {
            slot, dead_letters, ..
        } = &self.evidence
        {
            let elsewhere = keys_elsewhere(session, slot, dead_letters.store()).await?;
            problems.extend(elsewhere.into_iter().map(PruneError::from));
        }
        Ok(problems)
    }

    /// Returns the conditions by which the rows of a table are marked; `None` if they are accounted.
    ///
    /// # Errors
    /// [`PruneError::LostKeys`] if a row of an open dead letter cannot be found.
    pub(super) async fn marked_rows(
        &self,
        session: &mut Session,
        table: &TableName,
        resolved: &ResolvedKeys,
    ) -> Result<Option<MarkedRows>, PruneError> {
        let Evidence::Marks {
            selection, slot, ..
        } = &self.evidence
        else {
            return Ok(None);
        };
        let unsent = unsent_condition(session, table, selection).await?;
        let open = rows_of_open(session, slot, table, resolved).await??;
        Ok(Some(MarkedRows { unsent, open }))
    }

    /// Deletes the marked rows for which the condition `old` holds, in batches.
    pub(super) async fn delete_marked(
        &self,
        session: &mut Session,
        table: &TableName,
        marked: &MarkedRows,
        old: &str,
        deleted: &mut impl FnMut(u64),
    ) -> Result<(), PruneError> {
        let from = self.from(session, table).await?;
        let name = script::table(table);
        let sql = format!(
            "WITH batch AS (SELECT tableoid AS walrelay_part, ctid AS walrelay_place FROM {from} WHERE {old} AND {sent} \
             LIMIT {limit} FOR UPDATE SKIP LOCKED), gone AS (DELETE FROM {from} USING batch \
             WHERE {name}.ctid = batch.walrelay_place AND {name}.tableoid = batch.walrelay_part RETURNING 1) \
             SELECT count(*) AS rows FROM gone",
            sent = marked.sent(),
            limit = self.batch,
        );
        loop {
            let rows = count_rows(session, &sql).await?;
            deleted(rows);
            // Locked rows are skipped, so a batch smaller than the limit need not be the last one.
            if rows == 0 {
                return Ok(());
            }
            sleep(self.pause).await;
        }
    }
}
