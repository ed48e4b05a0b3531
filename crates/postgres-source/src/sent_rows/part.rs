//! Counts the rows of a whole partition, to which those belong that no account can have.

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session};

use super::account::is_finite;
use super::compare::AccountedTable;
use super::hashed::bucket;
use crate::catalog::row::parsed;
use crate::script;

/// The rows of a partition, in a bucket or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PartRows {
    /// All rows, those of its own partitions, too.
    pub(crate) rows: u64,
    /// Rows that belong to no bucket, such as those of `-infinity`.
    pub(crate) timeless: u64,
    /// Rows that the publication of no slot has.
    pub(crate) uncarried: u64,
    /// The first and the last bucket of which it has rows. `None`: it has none.
    pub(crate) ends: Option<(i64, i64)>,
}

impl AccountedTable {
    /// Counts the rows of a partition, and finds their buckets. Without ONLY, because a partition may be
    /// partitioned itself: its rows are those of its own partitions.
    pub(crate) async fn rows_of(
        &self,
        session: &mut Session,
        part: &TableName,
    ) -> Result<PartRows, Error> {
        let carried = self
            .slots
            .iter()
            .map(|account| format!("(\n{}\n) IS TRUE", account.rows()));
        let sql = format!(
            "SELECT count(*) AS rows, count(*) FILTER (WHERE is_finite IS NOT TRUE) AS timeless, \
             count(*) FILTER (WHERE NOT is_carried) AS uncarried, min(bucket) AS first, max(bucket) AS last \
             FROM (SELECT {finite} AS is_finite, {carried} AS is_carried, CASE WHEN {finite} THEN {bucket} END AS bucket \
             FROM {from}) AS rows",
            finite = is_finite(&self.columns),
            carried = carried.collect::<Vec<_>>().join(" OR "),
            bucket = bucket(&self.columns),
            from = script::table(part),
        );
        let rows = session.query(&sql).await?;
        let row = rows.first();
        // A number that cannot be read keeps the partition.
        let count = |name: &str| {
            row.as_ref()
                .and_then(|row| parsed(row, name))
                .unwrap_or(u64::MAX)
        };
        let end = |name: &str| row.as_ref().and_then(|row| parsed(row, name));
        Ok(PartRows {
            rows: count("rows"),
            timeless: count("timeless"),
            uncarried: count("uncarried"),
            ends: end("first").zip(end("last")),
        })
    }
}
