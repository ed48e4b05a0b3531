//! The rows that a bucket has more than the account.

use walrelay_relay::RowSum;
use walrelay_walsender::{Error, Rows, Session, quote_literal};

use super::compare::AccountedTable;
use super::hashed::HashedRows;
use crate::catalog::row::parsed;

impl AccountedTable {
    /// Returns the sums of a bucket's rows for which the condition `known` does not hold, less those of the account.
    pub(crate) async fn extra(
        &self,
        session: &mut Session,
        bucket: i64,
        known: &str,
    ) -> Result<RowSum, Error> {
        let condition = self.in_bucket(bucket);
        let more = format!("{}, {known} AS known", self.flags());
        let rows = HashedRows {
            from: &self.from,
            columns: &self.columns,
            condition: &condition,
            more: &more,
        };
        let own = self.slots.first().map(|own| quote_literal(&own.slot));
        let sql = format!(
            "SELECT p.rows - a.rows AS rows, p.high - a.high AS high, p.low - a.low AS low FROM \
             (SELECT count(*) AS rows, coalesce(sum(high), 0) AS high, coalesce(sum(low), 0) AS low FROM ({rows}) AS rows \
             WHERE in_0 AND known IS NOT TRUE) AS p, \
             (SELECT coalesce(sum(rows + diverted), 0) AS rows, coalesce(sum(high + diverted_high), 0) AS high, \
             coalesce(sum(low + diverted_low), 0) AS low FROM walrelay_state.account WHERE {account} AND slot = {own} \
             AND bucket = {bucket}) AS a",
            rows = rows.rows(),
            account = self.account(),
            own = own.unwrap_or_default(),
        );
        let answer = session.query(&sql).await?;
        let answer = answer.first();
        Ok(answer.map_or_else(RowSum::default, |row| RowSum {
            rows: parsed(&row, "rows").unwrap_or(0),
            high: parsed(&row, "high").unwrap_or(0),
            low: parsed(&row, "low").unwrap_or(0),
        }))
    }

    /// Returns these values of the rows of a bucket that have this hash.
    pub(crate) async fn rows_with(
        &self,
        session: &mut Session,
        bucket: i64,
        hash: RowSum,
        values: &str,
    ) -> Result<Rows, Error> {
        let condition = self.in_bucket(bucket);
        let more = format!(", {values}");
        let rows = HashedRows {
            from: &self.from,
            columns: &self.columns,
            condition: &condition,
            more: &more,
        };
        let sql = format!(
            "SELECT * FROM ({}) AS rows WHERE high = {} AND low = {} LIMIT 1",
            rows.rows(),
            hash.high,
            hash.low,
        );
        session.query(&sql).await
    }
}
