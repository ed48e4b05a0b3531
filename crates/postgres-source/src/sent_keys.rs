//! Marks rows by their keys: those whose records the relay saw acknowledged, and whose commits the
//! slot has confirmed (docs/adr/0041-rows-are-marked-by-key.md).
//!
//! Such a row was carried, whatever the publication says now. Each row is found by the columns of a
//! unique index, compared by their types, and by its `xmin`: a row that was inserted later with the
//! key of a deleted one is another event. A row that is not found like this, because it was updated,
//! or inserted inside a savepoint, makes the keys incomplete, so that the catching-up finds it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use walrelay_lsn::{Lsn, RelationId, Xid};
use walrelay_relay::{KeyedTable, SentKey, SentKeys, SentRows, TableName};
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::catalog::row::{is_true, parsed, text};
use super::confirmed::{ConfirmedError, count_changed};
use super::script;

/// Bytes of keys by which one transaction marks rows: some 2,000 rows.
const BATCH: usize = 128 << 10;

/// The way in which rows are marked.
pub(super) struct MarkByKey<'a> {
    pub(super) sent: &'a SentRows,
    /// The tables, each with the condition for its unsent rows.
    pub(super) tables: &'a [(TableName, String)],
    /// The SQL assignments of `UPDATE … SET`.
    pub(super) set: &'a str,
    pub(super) lock_timeout: Duration,
}

/// A table whose rows are marked.
struct Target<'a> {
    condition: &'a str,
    table: &'a TableName,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned.
    from: String,
    /// The columns of the key and the types of their arrays.
    columns: Vec<(String, String)>,
}

impl MarkByKey<'_> {
    /// Marks the rows that a slot at `confirmed` has confirmed. Returns their number.
    ///
    /// A row that is locked, or whose transaction is not visible yet although the slot has confirmed
    /// it, is marked by a later call. A row that was marked before is left alone.
    pub(super) async fn run(
        &self,
        session: &mut Session,
        confirmed: Lsn,
    ) -> Result<u64, ConfirmedError> {
        let mut marked = 0;
        // Given back at the end: else they would be taken again at once.
        let mut left = self.sent.take(Lsn::ZERO, 0);
        let result = loop {
            let taken = self.sent.take(confirmed, BATCH);
            if taken.keys.is_empty() {
                break Ok(marked);
            }
            match self.batch(session, &taken.keys).await {
                Ok((rows, later)) => {
                    marked += rows;
                    left.keys.push(later);
                }
                Err(error) => {
                    // If the connection is lost, this fails as well.
                    let _ = session.query("ROLLBACK").await;
                    if is_of_the_keys(&error) {
                        self.sent.set_incomplete();
                    } else {
                        self.sent.give_back(taken);
                    }
                    break Err(error);
                }
            }
        };
        self.sent.give_back(left);
        result
    }

    /// Marks the rows of these keys. Returns their number, and the keys of rows that are left.
    async fn batch(
        &self,
        session: &mut Session,
        taken: &[SentKeys],
    ) -> Result<(u64, SentKeys), ConfirmedError> {
        let mut later = SentKeys::default();
        // A snapshot of before: what is in progress by it may be invisible to the change.
        let in_progress = in_progress(session).await?;
        let mut by_relation: HashMap<RelationId, Vec<SentKey<'_>>> = HashMap::new();
        for key in taken.iter().flat_map(SentKeys::iter) {
            if in_progress.contains(key.xid) {
                later.push(&key);
            } else {
                by_relation.entry(key.relation).or_default().push(key);
            }
        }
        let mut marked = 0;
        for (relation, keys) in by_relation {
            let Some(keyed) = self.sent.table(relation) else {
                continue;
            };
            let Some(target) = self.target(session, relation, &keyed).await? else {
                continue;
            };
            let (rows, left) = self.mark(session, &target, &keys).await?;
            marked += rows;
            for key in left.iter().filter_map(|at| keys.get(*at)) {
                later.push(key);
            }
        }
        Ok((marked, later))
    }

    /// Returns the table of a relation; `None` if it is none of the tables any more, or its key is
    /// none.
    async fn target(
        &self,
        session: &mut Session,
        relation: RelationId,
        keyed: &KeyedTable,
    ) -> Result<Option<Target<'_>>, Error> {
        let mut tables = self.tables.iter();
        let Some((table, condition)) = tables.find(|(table, _)| *table == keyed.table) else {
            return Ok(None);
        };
        let names: Vec<String> = keyed
            .columns
            .iter()
            .map(|name| quote_literal(name))
            .collect();
        let names = format!("ARRAY[{}]::text[]", names.join(", "));
        // A row is known by the key only if no other row of the whole table can have it.
        let sql = format!(
            "SELECT c.relkind = 'p' AS partitioned, pg_catalog.format_type(a.atttypid, -1) || '[]' AS type, \
             a.attname AS name, EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid \
              AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL \
              AND NOT EXISTS (SELECT FROM pg_catalog.unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) AS k(number) \
               JOIN pg_catalog.pg_attribute b ON b.attrelid = c.oid AND b.attnum = k.number \
               WHERE b.attname::text <> ALL ({names}) OR NOT b.attnotnull)) AS is_unique \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
             AND a.attname::text = ANY ({names}) WHERE c.oid = pg_catalog.to_regclass({table}) \
             AND (c.oid = {relation} OR {relation} IN (SELECT relid FROM pg_catalog.pg_partition_tree(c.oid)))",
            table = quote_literal(&script::table(table)),
            relation = relation.get(),
        );
        let found = session.query(&sql).await?;
        let types: HashMap<String, String> = found
            .iter()
            .map(|row| (text(&row, "name"), text(&row, "type")))
            .collect();
        let columns = keyed.columns.iter().map(|name| {
            let array = types.get(name)?;
            Some((quote_ident(name), array.clone()))
        });
        let columns: Option<Vec<_>> = columns.collect();
        let row = found.first().filter(|row| is_true(row, "is_unique"));
        let (Some(columns), Some(row)) = (columns, row) else {
            // The rows may still be confirmed ones of the table.
            self.sent.set_incomplete();
            return Ok(None);
        };
        let only = if is_true(&row, "partitioned") {
            ""
        } else {
            "ONLY "
        };
        Ok(Some(Target {
            condition,
            table,
            from: format!("{only}{}", script::table(table)),
            columns,
        }))
    }

    /// Marks the table's rows of these keys. Returns their number, and the indexes of the keys whose
    /// rows are still unsent.
    async fn mark(
        &self,
        session: &mut Session,
        target: &Target<'_>,
        keys: &[SentKey<'_>],
    ) -> Result<(u64, BTreeSet<usize>), ConfirmedError> {
        let Target {
            condition,
            from,
            columns,
            table,
        } = target;
        let begin = [
            "BEGIN".to_owned(),
            format!(
                "SET LOCAL lock_timeout = {}",
                self.lock_timeout.as_millis().max(1)
            ),
        ];
        session.query_all(&begin).await?;
        let name = script::table(table);
        let arrays = arrays(columns, keys);
        let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        // The function of several arrays has no name that a schema could qualify.
        let unnested: Vec<String> = arrays
            .iter()
            .map(|array| format!("pg_catalog.unnest({array})"))
            .collect();
        let unnested = unnested.join(", ");
        let xids = xids(keys);
        let mut same = format!(
            "({names}, xmin::text) IN (SELECT * FROM ROWS FROM ({unnested}, {xids}) AS keys)"
        );
        if let [array] = arrays.as_slice() {
            same = format!("{names} = ANY ({array}) AND {same}");
        } else {
            // The server takes the table for small beside so many keys.
            session.query("SET LOCAL enable_seqscan = off").await?;
        }
        // The condition and the assignments are on lines of their own, because they may end in a
        // comment. The condition may name the table, so there is no alias of it.
        let change = format!(
            "WITH batch AS (SELECT tableoid AS walrelay_part, ctid AS walrelay_place FROM {from} \
             WHERE (\n{condition}\n) AND {same} FOR UPDATE SKIP LOCKED), changed AS (UPDATE {from} SET {set}\n FROM batch \
             WHERE {name}.ctid = batch.walrelay_place AND {name}.tableoid = batch.walrelay_part \
             RETURNING (\n{condition}\n) AS unchanged) \
             SELECT count(*) AS rows, count(*) FILTER (WHERE unchanged) AS unchanged FROM changed",
            set = self.set,
        );
        let marked = count_changed(session, &change, table).await?;
        session.query("COMMIT").await?;
        if marked == keys.len() as u64 {
            return Ok((marked, BTreeSet::new()));
        }
        let numbered: Vec<String> = (1..=columns.len())
            .map(|at| format!("walrelay_{at}"))
            .collect();
        let joined = columns.iter().zip(&numbered);
        let joined: Vec<String> = joined
            .map(|((column, _), number)| format!("{name}.{column} = {number}"))
            .collect();
        let rows = format!(
            "SELECT walrelay_key AS key, (\n{condition}\n) AS unsent, {name}.xmin::text = walrelay_xid AS same \
             FROM {from}, ROWS FROM ({unnested}, {xids}) WITH ORDINALITY \
             AS keys({}, walrelay_xid, walrelay_key) WHERE {}",
            numbered.join(", "),
            joined.join(" AND "),
        );
        let rows = session.query(&rows).await?;
        let mut left = BTreeSet::new();
        for row in rows.iter() {
            if !is_true(&row, "unsent") {
                continue;
            }
            if is_true(&row, "same") {
                let key = parsed::<usize>(&row, "key").and_then(|key| key.checked_sub(1));
                left.extend(key);
            } else {
                self.sent.set_incomplete();
            }
        }
        // Keys without a row: it was deleted, has another key now, or is not visible yet.
        if rows.len() < keys.len() {
            self.sent.set_incomplete();
        }
        Ok((marked, left))
    }
}

/// Returns the keys as SQL arrays, one for each column.
fn arrays(columns: &[(String, String)], keys: &[SentKey<'_>]) -> Vec<String> {
    let mut arrays = vec![String::from("{"); columns.len()];
    for (number, key) in keys.iter().enumerate() {
        for (array, value) in arrays.iter_mut().zip(key.values()) {
            array.push_str(if number == 0 { "\"" } else { ",\"" });
            for char in String::from_utf8_lossy(value).chars() {
                if matches!(char, '"' | '\\') {
                    array.push('\\');
                }
                array.push(char);
            }
            array.push('"');
        }
    }
    let types = columns.iter().map(|(_, array)| array);
    arrays
        .iter()
        .zip(types)
        .map(|(array, of)| format!("{}::{of}", quote_literal(&format!("{array}}}"))))
        .collect()
}

/// Returns the transactions of the keys, as an SQL function of texts.
fn xids(keys: &[SentKey<'_>]) -> String {
    let xids: Vec<String> = keys.iter().map(|key| key.xid.to_string()).collect();
    format!("pg_catalog.unnest('{{{}}}'::text[])", xids.join(","))
}

/// Returns true if the server refuses the keys themselves, so that they would be refused again: a column was
/// dropped, or has another type.
fn is_of_the_keys(error: &ConfirmedError) -> bool {
    let ConfirmedError::Sql(error) = error else {
        return matches!(error, ConfirmedError::InVain(_));
    };
    let state = error.sqlstate().unwrap_or_default();
    state.starts_with("22") || matches!(state, "42703" | "42804" | "42883" | "42704")
}

/// Transactions that may be invisible. A transaction is, from its commit record until its commit is
/// complete, which takes as long as a flush, or an answer of a synchronous standby.
struct InProgress {
    xids: HashSet<Xid>,
    /// The first transaction that was not complete when the newest one was. It and later ones are not
    /// among `xids`.
    from: Xid,
}

impl InProgress {
    fn contains(&self, xid: Xid) -> bool {
        // Transaction ids wrap around.
        xid.get().wrapping_sub(self.from.get()) < 1 << 31 || self.xids.contains(&xid)
    }
}

/// Reads which transactions may be invisible.
async fn in_progress(session: &mut Session) -> Result<InProgress, Error> {
    let sql = "WITH now AS (SELECT pg_catalog.pg_current_snapshot() AS snapshot), \
               xids AS (SELECT pg_catalog.pg_snapshot_xmax(snapshot) AS xid FROM now UNION ALL \
               SELECT pg_catalog.pg_snapshot_xip(snapshot) FROM now) \
               SELECT (xid::text::numeric % 4294967296)::text AS xid FROM xids";
    let rows = session.query(sql).await?;
    let mut xids = rows
        .iter()
        .filter_map(|row| parsed(&row, "xid").map(Xid::new));
    // There is always one.
    let from = xids.next().unwrap_or(Xid::new(0));
    Ok(InProgress {
        from,
        xids: xids.collect(),
    })
}
