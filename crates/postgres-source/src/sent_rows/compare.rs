//! Compares the rows that a table has with those that are accounted as sent, and deletes the rows of
//! a bucket that are equal.
//!
//! One snapshot has both: rows, and the account of the rows that were acknowledged by then. While it
//! is held, no version of a row that it sees is removed, so other transactions delete exactly these.

use std::time::Duration;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Row, Session, quote_ident, quote_literal};

use super::account::{array, is_finite, relations};
use super::hashed::{HashedRows, bucket, halves, hash};
use crate::catalog::row::{is_true, json, parsed, text};
use crate::confirmed::count_rows;
use crate::script;

/// Seconds that a comparison of the age column may differ from its bucket: the time zone of a
/// session decides about a `timestamp`. The bucket is compared as well; this is for an index.
const TIME_ZONES: i64 = 86_400;

/// The columns of the account, for the rows that were sent and for those that became dead letters.
const SENT: [&str; 3] = ["rows", "high", "low"];
const DIVERTED: [&str; 3] = ["diverted", "diverted_high", "diverted_low"];

/// The reason why the rows of a table are not compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAccount {
    /// The table does not exist.
    #[error("table {0} does not exist")]
    Table(TableName),
    /// No relay keeps an account for this slot.
    #[error("no relay of slot {0} has accounted the rows that it sent")]
    Slot(String),
    /// The tables of the account are missing.
    #[error("table walrelay_state.account does not exist, or the relay's role may not write it")]
    Missing,
}

/// The reason why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// A statement failed.
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// There is no account.
    #[error(transparent)]
    None(#[from] NoAccount),
}

/// A slot whose account must agree, and the rows that its publication does not leave out.
#[derive(Debug, Clone)]
struct SlotAccount {
    slot: String,
    /// The row filter of the publication, as SQL.
    filter: Option<String>,
}

/// A table with the accounts of the slots that carry its rows.
#[derive(Debug, Clone)]
pub(crate) struct AccountedTable {
    pub(crate) table: TableName,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned: children by INHERITS are
    /// published under their own names.
    from: String,
    /// The type of the age column.
    age_type: String,
    /// The columns of the account. Only the age if nothing is accounted.
    pub(crate) columns: Vec<String>,
    /// The relay's own slot first.
    slots: Vec<SlotAccount>,
    /// OIDs as SQL of an `IN` list.
    relations: String,
}

/// A bucket whose rows are not those that are accounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Difference {
    /// The number of the bucket.
    pub bucket: i64,
    /// Rows of the table.
    pub present: i64,
    /// Rows of the account.
    pub accounted: i64,
}

/// The rows of a bucket, counted and not compared yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) counts: Difference,
    /// Each account has as many rows as the table.
    pub(crate) counts_agree: bool,
}

/// The result of an exact comparison of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compared {
    pub(crate) counts: Difference,
    /// The rows are those of each account.
    pub(crate) is_equal: bool,
    /// Some of them became dead letters of the own slot.
    pub(crate) has_diverted: bool,
    /// The rows of open dead letters.
    pub(crate) open: u64,
}

/// The conditions for rows of dead letters of the own slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeadLetterRows {
    /// Rows of dead letters, open or resolved.
    pub(crate) known: Option<String>,
    /// Rows of open dead letters.
    pub(crate) open: Option<String>,
}

/// Numbers that are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    rows: i64,
    high: i128,
    low: i128,
}

impl Sums {
    fn read(row: &Row<'_>, prefix: &str, suffix: &str) -> Self {
        let name = |stem: &str| format!("{prefix}{stem}{suffix}");
        Self {
            rows: parsed(row, &name("rows")).unwrap_or(0),
            high: parsed(row, &name("high")).unwrap_or(0),
            low: parsed(row, &name("low")).unwrap_or(0),
        }
    }
}

impl AccountedTable {
    /// Reads what must be known for a comparison. `age`: the age column.
    pub(crate) async fn read(
        session: &mut Session,
        table: &TableName,
        slots: &[String],
        age: &str,
    ) -> Result<Self, AccountError> {
        if !super::account::may_write(session).await? {
            return Err(NoAccount::Missing.into());
        }
        let name = quote_literal(&script::table(table));
        let sql = format!(
            "SELECT c.relkind = 'p' AS partitioned, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = {} \
             AND NOT a.attisdropped WHERE c.oid = pg_catalog.to_regclass({name})",
            quote_literal(age)
        );
        let found = session.query(&sql).await?;
        let found = found.first();
        let found = found.ok_or_else(|| NoAccount::Table(table.clone()))?;
        let (partitioned, age_type) = (is_true(&found, "partitioned"), text(&found, "type"));
        let relations = relations(table);
        let mut accounts = Vec::new();
        for slot in slots {
            let filter = if session.server_version().major >= 15 {
                "(SELECT pg_catalog.pg_get_expr(r.prqual, r.prrelid) FROM pg_catalog.pg_publication_rel r \
                 JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE p.pubname = a.publication \
                 AND r.prrelid = pg_catalog.to_regclass("
                    .to_owned()
                    + &name
                    + "))"
            } else {
                "NULL".to_owned()
            };
            let sql = format!(
                "SELECT {filter} AS filter FROM walrelay_state.accounts a WHERE a.slot = {}",
                quote_literal(slot)
            );
            let rows = session.query(&sql).await?;
            let row = rows.first();
            let row = row.ok_or_else(|| NoAccount::Slot(slot.clone()))?;
            accounts.push(SlotAccount {
                slot: slot.clone(),
                filter: row.get("filter").map(str::to_owned),
            });
        }
        let own = slots.first().map(String::as_str).unwrap_or_default();
        // Columns that the table has no more identify no row.
        let sql = format!(
            "SELECT pg_catalog.to_json(columns) AS columns FROM walrelay_state.account WHERE slot = {slot} \
             AND relation IN ({relations}) AND columns[pg_catalog.array_upper(columns, 1)] = {age} \
             AND NOT EXISTS (SELECT FROM pg_catalog.unnest(columns) AS name WHERE name NOT IN \
              (SELECT attname::text FROM pg_catalog.pg_attribute WHERE attrelid = {name}::pg_catalog.regclass \
               AND attnum > 0 AND NOT attisdropped)) GROUP BY columns ORDER BY count(*) DESC LIMIT 1",
            slot = quote_literal(own),
            age = quote_literal(age),
        );
        let rows = session.query(&sql).await?;
        let columns = rows.first().and_then(|row| json(&row, "columns"));
        let only = if partitioned { "" } else { "ONLY " };
        Ok(Self {
            table: table.clone(),
            from: format!("{only}{}", script::table(table)),
            age_type,
            columns: columns.unwrap_or_else(|| vec![age.to_owned()]),
            slots: accounts,
            relations,
        })
    }

    /// Counts what is accounted of a detached partition as the table's.
    pub(crate) fn with_part(mut self, oid: u32) -> Self {
        let part = format!(" UNION SELECT {oid}::pg_catalog.oid");
        self.relations.push_str(&part);
        self
    }

    /// Returns the first bucket that is not wholly older than `keep`.
    pub(crate) async fn limit(&self, session: &mut Session, keep: Duration) -> Result<i64, Error> {
        let age = format!(
            "(pg_catalog.now() - pg_catalog.make_interval(secs => {}))::{}",
            keep.as_secs_f64(),
            self.age_type
        );
        let sql = format!(
            "SELECT pg_catalog.floor(EXTRACT(epoch FROM {age}) / {})::int8 AS bucket",
            walrelay_relay::BUCKET_SECONDS
        );
        let rows = session.query(&sql).await?;
        Ok(rows
            .first()
            .and_then(|row| parsed(&row, "bucket"))
            .unwrap_or(i64::MIN))
    }

    /// Counts the rows and the accounts of each bucket before `limit` that has any.
    pub(crate) async fn candidates(
        &self,
        session: &mut Session,
        limit: i64,
    ) -> Result<Vec<Candidate>, Error> {
        let slots = self.slots.iter().enumerate();
        let (mut present, mut accounted, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
        for (number, account) in slots {
            let (filter, slot) = (account.rows(), quote_literal(&account.slot));
            present.push(format!(
                ", count(*) FILTER (WHERE\n{filter}\n) AS present_{number}"
            ));
            accounted.push(format!(
                ", sum(rows + diverted) FILTER (WHERE slot = {slot}) AS accounted_{number}"
            ));
            pairs.push(format!(
                "(coalesce(present_{number}, 0), coalesce(accounted_{number}, 0))"
            ));
        }
        let sql = format!(
            "SELECT bucket, present, accounted, agree FROM (SELECT {bucket} AS bucket{present} FROM {from} WHERE \
             {older} AND {finite} GROUP BY 1) AS p FULL JOIN (SELECT bucket{accounted} FROM walrelay_state.account \
             WHERE {account} GROUP BY 1) AS a USING (bucket), LATERAL (SELECT bool_and(present = accounted) AS agree, \
             (array_agg(present ORDER BY present = accounted))[1] AS present, \
             (array_agg(accounted ORDER BY present = accounted))[1] AS accounted \
             FROM (VALUES {pairs}) AS pairs (present, accounted)) AS compared \
             WHERE bucket < {limit} AND (present > 0 OR accounted <> 0) ORDER BY bucket",
            bucket = bucket(&self.columns),
            present = present.concat(),
            accounted = accounted.concat(),
            from = self.from,
            older = self.older(limit),
            finite = is_finite(&self.columns),
            account = self.account(),
            pairs = pairs.join(", "),
        );
        let rows = session.query_within(&sql, 64 << 20).await?;
        let candidates = rows.iter().map(|row| Candidate {
            counts: Difference {
                bucket: parsed(&row, "bucket").unwrap_or(0),
                present: parsed(&row, "present").unwrap_or(0),
                accounted: parsed(&row, "accounted").unwrap_or(0),
            },
            counts_agree: is_true(&row, "agree"),
        });
        Ok(candidates.collect())
    }

    /// Compares the rows of these buckets with each account, by one statement, so under one snapshot.
    /// `part`: a detached partition, whose rows count as the table's. Returns the buckets that have
    /// rows.
    pub(crate) async fn compare(
        &self,
        session: &mut Session,
        buckets: (i64, i64),
        part: Option<&TableName>,
        dead_letters: &DeadLetterRows,
    ) -> Result<Vec<Compared>, Error> {
        let flag = |condition: &Option<String>, name: &str| {
            let condition = condition.as_deref().unwrap_or("false");
            format!(", (\n{condition}\n) IS TRUE AS {name}")
        };
        let more = [
            flag(&dead_letters.known, "known"),
            flag(&dead_letters.open, "open"),
            self.flags(),
        ];
        let mut present = vec!["count(*) FILTER (WHERE in_0 AND open) AS open".to_owned()];
        let mut accounted = Vec::new();
        for (number, account) in self.slots.iter().enumerate() {
            // Dead letters of other slots are in other stores: their own relays settle them.
            let diverted = if number == 0 { "known" } else { "false" };
            let slot = quote_literal(&account.slot);
            for (kind, rows, columns) in [
                ("s", format!("in_{number} AND NOT {diverted}"), SENT),
                ("d", format!("in_{number} AND {diverted}"), DIVERTED),
            ] {
                let suffix = format!("{kind}{number}");
                present.push(format!(
                    ", count(*) FILTER (WHERE {rows}) AS rows_{suffix}, sum(high) FILTER (WHERE {rows}) AS high_{suffix}, \
                     sum(low) FILTER (WHERE {rows}) AS low_{suffix}"
                ));
                for (name, column) in ["rows", "high", "low"].iter().zip(columns) {
                    accounted.push(format!(
                        ", sum({column}) FILTER (WHERE slot = {slot}) AS a_{name}_{suffix}"
                    ));
                }
            }
        }
        let part = part.map(|part| format!("ONLY {}", script::table(part)));
        let rows: Vec<String> = [Some(&self.from), part.as_ref()]
            .into_iter()
            .flatten()
            .map(|from| {
                let rows = HashedRows {
                    from,
                    columns: &self.columns,
                    condition: &self.between(buckets),
                    more: &more.concat(),
                };
                format!("({})", rows.rows())
            })
            .collect();
        let sql = format!(
            "SELECT present.*, accounts.* FROM (SELECT bucket, {present} FROM ({rows}) AS rows GROUP BY bucket) AS present \
             LEFT JOIN (SELECT bucket AS a_bucket{accounted} FROM walrelay_state.account WHERE {account} \
             AND bucket BETWEEN {from} AND {to} GROUP BY bucket) AS accounts ON a_bucket = bucket ORDER BY bucket",
            present = present.concat(),
            accounted = accounted.concat(),
            rows = rows.join(" UNION ALL "),
            account = self.account(),
            from = buckets.0,
            to = buckets.1,
        );
        let found = session.query_within(&sql, 64 << 20).await?;
        Ok(found.iter().map(|row| self.compared(&row)).collect())
    }

    fn compared(&self, row: &Row<'_>) -> Compared {
        let mut compared = Compared {
            counts: Difference {
                bucket: parsed(row, "bucket").unwrap_or(0),
                ..Difference::default()
            },
            is_equal: true,
            has_diverted: false,
            open: parsed(row, "open").unwrap_or(0),
        };
        for number in 0..self.slots.len() {
            for kind in ["s", "d"] {
                let suffix = format!("_{kind}{number}");
                let (present, accounted) =
                    (Sums::read(row, "", &suffix), Sums::read(row, "a_", &suffix));
                compared.is_equal &= present == accounted;
                if number == 0 {
                    compared.counts.present += present.rows;
                    compared.counts.accounted += accounted.rows;
                    compared.has_diverted |= kind == "d" && accounted != Sums::default();
                }
            }
        }
        compared
    }

    /// Returns whether rows of this bucket became dead letters of the own slot.
    pub(crate) async fn has_diverted(
        &self,
        session: &mut Session,
        buckets: (i64, i64),
    ) -> Result<bool, Error> {
        let own = self.slots.first().map(|own| quote_literal(&own.slot));
        let sql = format!(
            "SELECT FROM walrelay_state.account WHERE slot = {} AND relation IN ({}) AND bucket BETWEEN {} AND {} \
             AND diverted <> 0 LIMIT 1",
            own.unwrap_or_default(),
            self.relations,
            buckets.0,
            buckets.1,
        );
        Ok(!session.query(&sql).await?.is_empty())
    }

    /// Counts rows whose dead letters are all resolved as sent.
    pub(crate) async fn settle_diverted(
        &self,
        session: &mut Session,
        (first, last): (i64, i64),
    ) -> Result<(), Error> {
        let own = self.slots.first().map(|own| quote_literal(&own.slot));
        let sql = format!(
            "UPDATE walrelay_state.account SET rows = rows + diverted, high = high + diverted_high, \
             low = low + diverted_low, diverted = 0, diverted_high = 0, diverted_low = 0 \
             WHERE slot = {} AND {} AND bucket BETWEEN {first} AND {last} AND diverted <> 0",
            own.unwrap_or_default(),
            self.account(),
        );
        session.query(&sql).await.map(drop)
    }

    /// Writes a query of part (`tableoid`) and place (`ctid`) of a bucket's rows that are deleted.
    pub(crate) fn places(&self, number: i64, kept: Option<&str>) -> String {
        let own = self
            .slots
            .first()
            .map_or("true".to_owned(), SlotAccount::rows);
        let kept = kept.map_or_else(String::new, |kept| format!(" AND (\n{kept}\n) IS NOT TRUE"));
        format!(
            "SELECT tableoid::int8 AS part, ctid::text AS place FROM {} WHERE\n{} AND (\n{own}\n) IS TRUE{kept}",
            self.from,
            self.in_bucket(number),
        )
    }

    /// Deletes rows of a bucket by their places, but those that are locked, and takes them out of the
    /// accounts. Returns their number.
    pub(crate) async fn delete(
        &self,
        session: &mut Session,
        number: i64,
        part: i64,
        places: &[String],
    ) -> Result<u64, Error> {
        let name = script::table(&self.table);
        let sql = format!(
            "WITH batch AS (SELECT ctid AS walrelay_place FROM {from} \
             WHERE ctid = ANY ('{{{places}}}'::tid[]) AND tableoid = {part} FOR UPDATE SKIP LOCKED), \
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
            hash = hash(&self.columns),
            halves = halves(),
            flags = self.flags(),
            subtract = self.subtract(&number.to_string()),
        );
        let rows = session.query(&sql).await?;
        Ok(rows
            .first()
            .and_then(|row| parsed(&row, "rows"))
            .unwrap_or(0))
    }

    /// Writes CTEs that take the rows `gone` out of the account of each slot. `bucket`: the bucket's
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

    /// Counts the rows of a partition that belong to no bucket, such as those of `-infinity`.
    pub(crate) async fn timeless_rows(
        &self,
        session: &mut Session,
        part: &TableName,
    ) -> Result<u64, Error> {
        let sql = format!(
            "SELECT count(*) AS rows FROM ONLY {} WHERE {} IS NOT TRUE",
            script::table(part),
            is_finite(&self.columns),
        );
        count_rows(session, &sql).await
    }

    /// Returns the first and the last bucket of which a partition has rows. `None`: it has none.
    pub(crate) async fn buckets_of(
        &self,
        session: &mut Session,
        part: &TableName,
    ) -> Result<Option<(i64, i64)>, Error> {
        let sql = format!(
            "SELECT min(bucket) AS first, max(bucket) AS last FROM (SELECT {} AS bucket FROM ONLY {} WHERE {}) AS rows",
            bucket(&self.columns),
            script::table(part),
            is_finite(&self.columns),
        );
        let rows = session.query(&sql).await?;
        Ok(rows
            .first()
            .and_then(|row| Some((parsed(&row, "first")?, parsed(&row, "last")?))))
    }

    /// Takes all rows of a detached partition, which is about to be dropped, out of the accounts.
    pub(crate) async fn take_out(
        &self,
        session: &mut Session,
        part: &TableName,
    ) -> Result<(), Error> {
        let from = format!("ONLY {}", script::table(part));
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

    /// Makes the rows that a bucket has the account of the own slot: the user says that they were
    /// sent. Rows of open dead letters stay accounted as such.
    pub(crate) async fn accept(
        &self,
        session: &mut Session,
        number: i64,
        columns: &[String],
        open: Option<&str>,
    ) -> Result<(), Error> {
        for account in &self.slots {
            let slot = quote_literal(&account.slot);
            let open = open.unwrap_or("false");
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
                 {number}, count(*) FILTER (WHERE NOT open), {sent}, count(*) FILTER (WHERE open), {diverted} \
                 FROM ({rows}) AS present HAVING count(*) > 0",
                relations = self.relations,
                table = quote_literal(&script::table(&self.table)),
                columns = array(columns),
                rows = rows.rows(),
            );
            session.query(&sql).await?;
        }
        Ok(())
    }

    /// Writes for each slot whether it carries a row: `, … AS in_0`.
    fn flags(&self) -> String {
        let flags = self.slots.iter().enumerate();
        let flags = flags
            .map(|(number, account)| format!(", (\n{}\n) IS TRUE AS in_{number}", account.rows()));
        flags.collect::<Vec<_>>().concat()
    }

    /// Writes a condition for the rows of a bucket.
    fn in_bucket(&self, number: i64) -> String {
        self.between((number, number))
    }

    /// Writes a condition for the rows of these buckets.
    fn between(&self, (first, last): (i64, i64)) -> String {
        let age = self.columns.last().map(|age| quote_ident(age));
        let age = age.unwrap_or_default();
        let seconds = first.saturating_mul(walrelay_relay::BUCKET_SECONDS);
        format!(
            "{older} AND {age} >= pg_catalog.to_timestamp({since}) AND {finite} AND {bucket} BETWEEN {first} AND {last}",
            older = self.older(last.saturating_add(1)),
            since = seconds.saturating_sub(self.uncertainty()),
            finite = is_finite(&self.columns),
            bucket = bucket(&self.columns),
        )
    }

    /// Returns by how many seconds a comparison of the age with a time may differ from its bucket.
    fn uncertainty(&self) -> i64 {
        if self.age_type.ends_with("with time zone") {
            0
        } else {
            TIME_ZONES
        }
    }

    /// Writes a condition that rows of buckets before `limit` fulfil, and few others.
    fn older(&self, limit: i64) -> String {
        let age = self.columns.last().map(|age| quote_ident(age));
        let seconds = limit.saturating_mul(walrelay_relay::BUCKET_SECONDS);
        format!(
            "{} < pg_catalog.to_timestamp({})",
            age.unwrap_or_default(),
            seconds.saturating_add(self.uncertainty())
        )
    }

    /// Writes a condition for the accounts of this table.
    fn account(&self) -> String {
        let slots = self
            .slots
            .iter()
            .map(|account| quote_literal(&account.slot));
        format!(
            "slot IN ({}) AND relation IN ({}) AND columns = {}",
            slots.collect::<Vec<_>>().join(", "),
            self.relations,
            array(&self.columns),
        )
    }
}

impl SlotAccount {
    /// Returns a condition for the rows that the slot carries.
    fn rows(&self) -> String {
        self.filter.clone().unwrap_or_else(|| "true".to_owned())
    }
}
