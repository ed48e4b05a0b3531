//! Deletes rows that count as sent, and removes them from the account. Each function that deletes, or
//! forgets a dead letter, asks for the [`Proof`] of the policy.

use walrelay_relay::{RowSum, TableName};
use walrelay_walsender::{Error, Session, quote_literal};

use super::account::{array, is_finite};
use super::compare::{AccountedTable, SETTLED, SlotAccount};
use super::hashed::{HashedRows, halves, hash};
use super::policy::{Proof, ResolvedRows};
use crate::catalog::row::parsed;
use crate::confirmation::count_rows;
use crate::script;

impl AccountedTable {
    /// Counts rows as sent whose dead letters are all resolved. Returns false, and changes nothing, if a
    /// bucket has other rows of dead letters than were compared: a row that was written since may have become one.
    pub(crate) async fn settle_diverted(
        &self,
        session: &mut Session,
        proof: &Proof,
    ) -> Result<bool, Error> {
        let merge = "rows = account.rows + known.diverted, high = account.high + known.diverted_high, \
                     low = account.low + known.diverted_low, \
                     diverted = 0, diverted_high = 0, diverted_low = 0, diverted_to = NULL";
        self.change_resolved(session, proof.resolved(), merge).await
    }

    /// Marks rows as settled whose dead letters are all resolved, if these are the rows that were compared.
    pub(crate) async fn mark_settled(
        &self,
        session: &mut Session,
        resolved: &[ResolvedRows],
    ) -> Result<bool, Error> {
        let mark = format!("diverted_to = {SETTLED}");
        self.change_resolved(session, resolved, &mark).await
    }

    /// Changes accounts of rows whose dead letters are all resolved, if these are the rows that were compared.
    async fn change_resolved(
        &self,
        session: &mut Session,
        resolved: &[ResolvedRows],
        change: &str,
    ) -> Result<bool, Error> {
        if resolved.is_empty() {
            return Ok(true);
        }
        let compared = resolved.iter().filter_map(|rows| {
            let slot = quote_literal(&self.slots.get(rows.slot)?.slot);
            let (bucket, RowSum { rows, high, low }) = (rows.bucket, rows.sum);
            Some(format!(
                "({slot}::name, {bucket}::int8, {rows}::numeric, {high}::numeric, {low}::numeric)"
            ))
        });
        // The lock reads the newest rows, and keeps them: the snapshot of the statement may be older.
        let sql = format!(
            "WITH compared (slot, bucket, rows, high, low) AS (VALUES {compared}), \
             known AS MATERIALIZED (SELECT slot, relation, columns, bucket, diverted, diverted_high, diverted_low \
             FROM walrelay_state.account WHERE {account} \
             AND (slot, bucket) IN (SELECT slot, bucket FROM compared) FOR UPDATE), \
             total AS (SELECT slot, bucket, sum(diverted) AS rows, sum(diverted_high) AS high, sum(diverted_low) AS low \
             FROM known GROUP BY slot, bucket), \
             same AS (SELECT count(*) AS rows FROM total JOIN compared USING (slot, bucket, rows, high, low)), \
             changed AS (UPDATE walrelay_state.account AS account SET {change} \
             FROM known, same WHERE same.rows = {all} AND account.slot = known.slot AND account.relation = known.relation \
             AND account.columns = known.columns AND account.bucket = known.bucket AND known.diverted <> 0) \
             SELECT rows FROM same",
            compared = compared.collect::<Vec<_>>().join(", "),
            account = self.account(),
            all = resolved.len(),
        );
        Ok(count_rows(session, &sql).await? == resolved.len() as u64)
    }

    /// Writes a query of part (`tableoid`) and place (`ctid`) of a bucket's rows that are deleted.
    /// `kept`: a condition for rows that stay.
    pub(crate) fn places(&self, bucket: i64, kept: Option<&str>) -> String {
        let kept = kept.map_or_else(String::new, |kept| format!(" AND (\n{kept}\n) IS NOT TRUE"));
        format!(
            "SELECT tableoid::int8 AS part, ctid::text AS place FROM {} WHERE\n{}{kept}",
            self.from,
            self.deletable(bucket),
        )
    }

    /// Writes a condition for the rows of a bucket that the own slot carries.
    fn deletable(&self, bucket: i64) -> String {
        let own = self.slots.first();
        let own = own.map_or("true".to_owned(), SlotAccount::rows);
        format!("{} AND (\n{own}\n) IS TRUE", self.in_bucket(bucket))
    }

    /// Deletes rows of a bucket by their places, but those that are locked, and removes them from the
    /// accounts. Returns their number.
    ///
    /// A place means the row that was compared only while the snapshot of the comparison is held: the caller
    /// commits after it has seen that.
    pub(crate) async fn delete(
        &self,
        session: &mut Session,
        proof: &Proof,
        part: i64,
        places: &[String],
    ) -> Result<u64, Error> {
        let Some((bucket, _)) = proof.buckets() else {
            return Ok(0);
        };
        let name = script::table(&self.table);
        let sql = format!(
            "WITH batch AS (SELECT ctid AS walrelay_place FROM {from} \
             WHERE ctid = ANY ('{{{places}}}'::tid[]) AND tableoid = {part} AND\n{rows}\nFOR UPDATE SKIP LOCKED), \
             deleted AS (DELETE FROM {from} WHERE {name}.ctid = ANY (ARRAY(SELECT walrelay_place FROM batch)) \
             AND {name}.tableoid = {part} RETURNING {hash} AS hash{flags}), \
             gone AS (SELECT deleted.*, {halves} FROM deleted), \
             {subtract} SELECT count(*) AS rows FROM gone",
            from = self.from,
            places = places
                .iter()
                .map(|place| format!("\"{place}\""))
                .collect::<Vec<_>>()
                .join(","),
            rows = self.deletable(bucket),
            hash = hash(&self.columns),
            halves = halves(),
            flags = self.flags(),
            subtract = self.subtract(&bucket.to_string()),
        );
        let rows = session.query(&sql).await?;
        Ok(rows
            .first()
            .and_then(|row| parsed(&row, "rows"))
            .unwrap_or(0))
    }

    /// Writes CTEs that remove the rows `gone` from the account of each slot. `bucket`: the bucket's
    /// number, or a column of `gone`.
    fn subtract(&self, bucket: &str) -> String {
        let slots: Vec<String> = self
            .slots
            .iter()
            .enumerate()
            .map(|(number, account)| {
                format!("({}::name, in_{number})", quote_literal(&account.slot))
            })
            .collect();
        format!(
            "total AS (SELECT slot, {bucket}::int8 AS bucket, count(*) AS rows, sum(high) AS high, sum(low) AS low \
             FROM gone, LATERAL (VALUES {slots}) AS carried (slot, is_in) WHERE is_in GROUP BY 1, 2), \
             target AS (SELECT DISTINCT ON (slot, bucket) slot, bucket, relation, columns FROM walrelay_state.account \
             WHERE {account} AND bucket IN (SELECT bucket FROM total) ORDER BY slot, bucket, relation), \
             changed AS (UPDATE walrelay_state.account AS known SET rows = known.rows - total.rows, \
             high = known.high - total.high, low = known.low - total.low FROM total JOIN target USING (slot, bucket) \
             WHERE known.slot = target.slot AND known.bucket = target.bucket AND known.relation = target.relation \
             AND known.columns = target.columns)",
            slots = slots.join(", "),
            account = self.account(),
        )
    }

    /// Takes all rows of a detached partition, which is about to be dropped, out of the accounts.
    pub(crate) async fn take_out(
        &self,
        session: &mut Session,
        proof: &Proof,
        part: &TableName,
    ) -> Result<(), Error> {
        if proof.buckets().is_none() {
            return Ok(());
        }
        // Without ONLY: a partition may be partitioned itself.
        let from = script::table(part);
        let rows = HashedRows {
            from: &from,
            columns: &self.columns,
            condition: &is_finite(&self.columns),
            more: &self.flags(),
        };
        let sql = format!(
            "WITH gone AS ({}), {} SELECT",
            rows.rows(),
            self.subtract("gone.bucket"),
        );
        session.query(&sql).await.map(drop)
    }

    /// Forgets accounts of these buckets that have no row left: of the own slot those without a row
    /// in the table, and all whose sums are zero.
    pub(crate) async fn forget_empty(
        &self,
        session: &mut Session,
        buckets: &[i64],
    ) -> Result<(), Error> {
        let own = self.slots.first().map(|own| quote_literal(&own.slot));
        let numbers: Vec<String> = buckets.iter().map(i64::to_string).collect();
        let sql = format!(
            "DELETE FROM walrelay_state.account WHERE relation IN ({}) AND (slot = {} AND bucket = ANY ('{{{}}}'::int8[]) \
             OR rows = 0 AND high = 0 AND low = 0 AND diverted = 0 AND diverted_high = 0 AND diverted_low = 0)",
            self.relations,
            own.unwrap_or_default(),
            numbers.join(","),
        );
        session.query(&sql).await.map(drop)
    }

    /// Makes the rows that a bucket has the account of each slot: the user says that they were sent.
    /// Rows of dead letters that are open in the store `read` stay accounted as such.
    pub(crate) async fn accept(
        &self,
        session: &mut Session,
        number: i64,
        columns: &[String],
        open: Option<&str>,
        read: &str,
    ) -> Result<(), Error> {
        for (position, account) in self.slots.iter().enumerate() {
            let slot = quote_literal(&account.slot);
            // For another slot these rows are no dead letters.
            let open = open.filter(|_| position == 0).unwrap_or("false");
            let rows = HashedRows {
                from: &self.from,
                columns,
                condition: &format!(
                    "{} AND (\n{}\n) IS TRUE",
                    self.in_bucket(number),
                    account.rows()
                ),
                more: &format!(", (\n{open}\n) IS TRUE AS open"),
            };
            let sums = |filter: &str| {
                ["high", "low"]
                    .map(|half| format!("coalesce(sum({half}) FILTER (WHERE {filter}), 0)"))
            };
            let (sent, diverted) = (sums("NOT open").join(", "), sums("open").join(", "));
            let sql = format!(
                "DELETE FROM walrelay_state.account WHERE slot = {slot} AND relation IN ({relations}) \
                 AND bucket = {number}; \
                 INSERT INTO walrelay_state.account SELECT {slot}, {table}::pg_catalog.regclass::pg_catalog.oid, {columns}, \
                 {number}, count(*) FILTER (WHERE NOT open), {sent}, count(*) FILTER (WHERE open), {diverted}, \
                 CASE WHEN bool_or(open) THEN {store} END FROM ({rows}) AS present HAVING count(*) > 0",
                relations = self.relations,
                table = quote_literal(&script::table(&self.table)),
                columns = array(columns),
                store = array(&[read.to_owned()]),
                rows = rows.rows(),
            );
            session.query(&sql).await?;
        }
        Ok(())
    }
}
