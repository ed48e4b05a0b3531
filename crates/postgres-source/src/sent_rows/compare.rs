//! Reads the rows that a table has, and those that are accounted as sent, for the [policy](super::policy).
//!
//! One snapshot has both: rows, and the account of the rows that were acknowledged by then. While it
//! is held, no version of a row that it sees is removed, so other transactions delete exactly these.

use std::time::Duration;

use walrelay_relay::{BucketSum, RowSum, TableName};
use walrelay_walsender::{Error, Row, Session, quote_ident, quote_literal};

use super::account::{array, identifies_rows, is_finite, key_columns, relations, unpublished_key};
use super::hashed::{HashedRows, bucket};
use super::policy::{BucketRows, Candidate, Counts, Difference, SlotRows};
use crate::catalog::row::{is_true, json, parsed, text};
use crate::script;

/// Seconds that a comparison of the age column may differ from its bucket: the time zone of a
/// session decides about a `timestamp`. The bucket is compared as well; this is for an index.
const TIME_ZONES: i64 = 86_400;

/// The columns of the account, for the rows that were sent and for those that became dead letters.
const SENT: [&str; 3] = ["rows", "high", "low"];
const DIVERTED: [&str; 3] = ["diverted", "diverted_high", "diverted_low"];
/// `diverted_to` of rows whose dead letters are settled: a later dead letter adds its store again.
pub(super) const SETTLED: &str = "'{}'::text[]";

/// The reason why the rows of a table are not compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAccount {
    /// The table does not exist.
    #[error("table {0} does not exist")]
    Table(TableName),
    /// The table's rows cannot be distinguished from each other.
    #[error(
        "rows of {0} stay: no column identifies a row of table {0}: it has no primary key, or a DEFERRABLE one, and the route names no id"
    )]
    Key(TableName),
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
pub(super) struct SlotAccount {
    pub(super) slot: String,
    /// The row filter of the publication, as SQL.
    filter: Option<String>,
}

/// A table with the accounts of the slots that carry its rows.
#[derive(Debug, Clone)]
pub(crate) struct AccountedTable {
    pub(crate) table: TableName,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned: children by INHERITS are
    /// published under their own names.
    pub(super) from: String,
    /// The type of the age column.
    age_type: String,
    /// The columns of the account. Only the age, which identifies no row, if nothing is accounted.
    pub(crate) columns: Vec<String>,
    /// The relay's own slot first.
    pub(super) slots: Vec<SlotAccount>,
    /// OIDs as SQL of an `IN` list.
    pub(super) relations: String,
}

/// The conditions for rows of dead letters of the own slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeadLetterRows {
    /// Rows of dead letters, open or resolved.
    pub(crate) known: Option<String>,
    /// Rows of open dead letters.
    pub(crate) open: Option<String>,
}

impl AccountedTable {
    /// Returns true if rows must be in the accounts of other slots, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.slots.len() > 1
    }

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
        // Columns that the table has no more identify no row, nor does a part of its key.
        let sql = format!(
            "SELECT pg_catalog.to_json(columns) AS columns FROM walrelay_state.account WHERE slot = {slot} \
             AND relation IN ({relations}) AND columns[pg_catalog.array_upper(columns, 1)] = {age} \
             AND NOT EXISTS (SELECT FROM pg_catalog.unnest(columns) AS name WHERE name NOT IN \
              (SELECT attname::text FROM pg_catalog.pg_attribute WHERE attrelid = {name}::pg_catalog.regclass \
               AND attnum > 0 AND NOT attisdropped)) \
             AND NOT EXISTS (SELECT FROM ({key}) AS key WHERE key.name <> ALL (columns)) AND pg_catalog.array_upper(columns, 1) > 1 GROUP BY columns ORDER BY count(*) DESC LIMIT 1",
            slot = quote_literal(own),
            age = quote_literal(age),
            key = key_columns(table),
        );
        let rows = session.query(&sql).await?;
        let columns = rows.first().and_then(|row| json(&row, "columns"));
        Ok(Self {
            table: table.clone(),
            from: script::rows_of(table, partitioned),
            age_type,
            columns: columns.unwrap_or_else(|| vec![age.to_owned()]),
            slots: accounts,
            relations,
        })
    }

    /// Returns true if the account has columns that identify a row.
    pub(crate) fn identifies_rows(&self) -> bool {
        identifies_rows(&self.columns)
    }

    /// Returns the columns of the table's key that the publication of the own slot does not carry.
    pub(crate) async fn unpublished_key(
        &self,
        session: &mut Session,
    ) -> Result<Vec<String>, Error> {
        match self.slots.first() {
            Some(own) => unpublished_key(session, &own.slot, &self.table).await,
            None => Ok(Vec::new()),
        }
    }

    /// Counts what is accounted of a detached partition, and of its own partitions, as the table's.
    pub(crate) fn with_part(mut self, oid: u32) -> Self {
        let part = format!(
            " UNION SELECT {oid}::pg_catalog.oid \
             UNION SELECT relid FROM pg_catalog.pg_partition_tree({oid}::pg_catalog.regclass)"
        );
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
        self.candidates_from(session, None, limit).await
    }

    /// Counts the rows and the accounts of each bucket from `first` on and before `limit` that has any. With `first`,
    /// an index on the age bounds the rows that are read.
    pub(crate) async fn candidates_from(
        &self,
        session: &mut Session,
        first: Option<i64>,
        limit: i64,
    ) -> Result<Vec<Candidate>, Error> {
        let (mut present, mut accounted, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for (number, account) in self.slots.iter().enumerate() {
            let (filter, slot) = (account.rows(), quote_literal(&account.slot));
            present.push(format!(
                ", count(*) FILTER (WHERE\n{filter}\n) AS present_{number}"
            ));
            accounted.push(format!(
                ", sum(rows + diverted) FILTER (WHERE slot = {slot}) AS accounted_{number}"
            ));
            counts.push(format!(", present_{number}, accounted_{number}"));
        }
        let sql = format!(
            "SELECT bucket{counts} FROM (SELECT {bucket} AS bucket{present} FROM {from} WHERE \
             {rows} GROUP BY 1) AS p FULL JOIN (SELECT bucket{accounted} FROM walrelay_state.account \
             WHERE {account} GROUP BY 1) AS a USING (bucket) WHERE bucket < {limit} AND bucket >= {from_bucket} \
             ORDER BY bucket",
            counts = counts.concat(),
            bucket = bucket(&self.columns),
            present = present.concat(),
            accounted = accounted.concat(),
            from = self.from,
            rows = match first {
                Some(first) => self.between((first, limit.saturating_sub(1))),
                None => format!("{} AND {}", self.older(limit), is_finite(&self.columns)),
            },
            account = self.account(),
            from_bucket = first.unwrap_or(i64::MIN),
        );
        let rows = session.query_within(&sql, 64 << 20).await?;
        let candidates = rows.iter().filter_map(|row| {
            let count = |name: &str, slot| parsed(&row, &format!("{name}_{slot}")).unwrap_or(0);
            let slots = (0..self.slots.len()).map(|slot| Counts {
                present: count("present", slot),
                accounted: count("accounted", slot),
            });
            let bucket = parsed(&row, "bucket").unwrap_or(0);
            Candidate::new(bucket, &slots.collect::<Vec<_>>())
        });
        Ok(candidates.collect())
    }

    /// Adds up the rows of these buckets and those of each account, by one statement, so under one
    /// snapshot. `part`: a detached partition, whose rows count as the table's. Returns the buckets that
    /// have rows.
    pub(crate) async fn compare(
        &self,
        session: &mut Session,
        buckets: (i64, i64),
        part: Option<&TableName>,
        dead_letters: &DeadLetterRows,
    ) -> Result<Vec<BucketRows>, Error> {
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
            accounted.push(format!(
                ", bool_and(coalesce(diverted_to = {SETTLED}, false)) FILTER (WHERE slot = {slot} AND diverted <> 0) \
                 AS a_settled_{number}"
            ));
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
        // Without ONLY: a partition may be partitioned itself.
        let part = part.map(script::table);
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
        Ok(found.iter().map(|row| self.bucket_rows(&row)).collect())
    }

    fn bucket_rows(&self, row: &Row<'_>) -> BucketRows {
        let slots = (0..self.slots.len()).map(|slot| SlotRows {
            present: bucket_sum(row, "", slot),
            accounted: bucket_sum(row, "a_", slot),
            is_settled: is_true(row, &format!("a_settled_{slot}")),
        });
        BucketRows {
            number: parsed(row, "bucket").unwrap_or(0),
            slots: slots.collect(),
            open: parsed(row, "open").unwrap_or(0),
        }
    }

    /// Returns the stores to which dead letters of these buckets' rows were written.
    pub(crate) async fn stores(
        &self,
        session: &mut Session,
        buckets: &[i64],
    ) -> Result<Vec<String>, Error> {
        let buckets: Vec<String> = buckets.iter().map(i64::to_string).collect();
        let sql = format!(
            "SELECT DISTINCT store FROM walrelay_state.account, pg_catalog.unnest(diverted_to) AS store \
             WHERE {} AND bucket = ANY ('{{{}}}'::int8[]) ORDER BY store",
            self.own_diverted(),
            buckets.join(","),
        );
        let rows = session.query(&sql).await?;
        Ok(rows.iter().map(|row| text(&row, "store")).collect())
    }

    /// Returns the buckets that have rows of dead letters in other stores than `read`.
    pub(crate) async fn dead_letters_elsewhere(
        &self,
        session: &mut Session,
        read: &str,
    ) -> Result<Vec<Difference>, Error> {
        let sql = format!(
            "SELECT bucket, sum(diverted)::int8 AS diverted FROM walrelay_state.account WHERE {} \
             AND NOT diverted_to <@ {} GROUP BY bucket ORDER BY bucket",
            self.own_diverted(),
            array(&[read.to_owned()]),
        );
        let rows = session.query(&sql).await?;
        let buckets = rows.iter().map(|row| Difference {
            bucket: parsed(&row, "bucket").unwrap_or(0),
            lost_dead_letters: parsed(&row, "diverted").unwrap_or(0),
            ..Difference::default()
        });
        Ok(buckets.collect())
    }

    /// Writes a condition for accounts of the own slot with rows that became dead letters.
    fn own_diverted(&self) -> String {
        let own = self.slots.first().map(|own| quote_literal(&own.slot));
        format!(
            "slot = {} AND relation IN ({}) AND diverted <> 0",
            own.unwrap_or_default(),
            self.relations,
        )
    }

    /// Returns whether rows of these buckets became dead letters of the own slot.
    pub(crate) async fn has_diverted(
        &self,
        session: &mut Session,
        buckets: (i64, i64),
    ) -> Result<bool, Error> {
        let sql = format!(
            "SELECT FROM walrelay_state.account WHERE {} AND bucket BETWEEN {} AND {} LIMIT 1",
            self.own_diverted(),
            buckets.0,
            buckets.1,
        );
        Ok(!session.query(&sql).await?.is_empty())
    }

    /// Writes for each slot whether it carries a row: `, … AS in_0`.
    pub(super) fn flags(&self) -> String {
        let flags = self.slots.iter().enumerate();
        let flags = flags
            .map(|(number, account)| format!(", (\n{}\n) IS TRUE AS in_{number}", account.rows()));
        flags.collect::<Vec<_>>().concat()
    }

    /// Writes a condition for the rows of a bucket.
    pub(super) fn in_bucket(&self, number: i64) -> String {
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

    /// Writes a condition for the accounts of this table. An account of the age alone identifies no row.
    pub(super) fn account(&self) -> String {
        let slots = self
            .slots
            .iter()
            .map(|account| quote_literal(&account.slot));
        format!(
            "slot IN ({}) AND relation IN ({}) AND columns = {} AND pg_catalog.array_upper(columns, 1) > 1",
            slots.collect::<Vec<_>>().join(", "),
            self.relations,
            array(&self.columns),
        )
    }
}

impl SlotAccount {
    /// Returns a condition for the rows that the slot carries.
    pub(super) fn rows(&self) -> String {
        self.filter.clone().unwrap_or_else(|| "true".to_owned())
    }
}

/// Reads the sums of a slot's rows. `prefix`: that of the names of these columns.
fn bucket_sum(row: &Row<'_>, prefix: &str, slot: usize) -> BucketSum {
    let sum = |kind: &str| RowSum {
        rows: parsed(row, &format!("{prefix}rows_{kind}{slot}")).unwrap_or(0),
        high: parsed(row, &format!("{prefix}high_{kind}{slot}")).unwrap_or(0),
        low: parsed(row, &format!("{prefix}low_{kind}{slot}")).unwrap_or(0),
    };
    BucketSum {
        sent: sum("s"),
        diverted: sum("d"),
    }
}
