//! Marks rows by their keys: those whose records the relay saw acknowledged
//! (docs/adr/0054-mark-first-confirm-then.md).
//!
//! Each row is found by the columns of a unique index, compared by their types. It is the row that was
//! sent if it hashes to the same value as the insert in the log. Any other row of that key is another
//! event, such as an outbox row that was updated since. The transaction that wrote the row (`xmin`) does
//! not tell: it may have updated the row after the insert, a savepoint has a number of its own, and a
//! snapshot does not know it. It decides only if a column that was hashed is gone.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::sleep;
use walrelay_lsn::Xid;
use walrelay_relay::{KeyedTable, SentKey, TableName};
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::catalog::row::{is_true, parsed, text};
use super::confirmation::{ConfirmedError, count_changed, counted_sql};
use super::mark_error::MarkError;
use super::script;

/// Attempts to see the commits of all rows, and the delay between two of them.
const VISIBLE_ATTEMPTS: u32 = 5;
const VISIBLE_DELAY: Duration = Duration::from_millis(20);

/// A key of a table's row.
#[derive(Clone)]
pub(super) struct RowKey {
    /// The transaction that inserted the row; 0 for a row of a snapshot.
    pub(super) xid: Xid,
    /// The row's hash, in hexadecimal digits.
    pub(super) hash: String,
    /// The values of the key as text.
    pub(super) values: Vec<String>,
}

impl RowKey {
    /// Copies a key of the queue.
    pub(super) fn new(key: &SentKey<'_>) -> Self {
        let values = key.values().map(String::from_utf8_lossy);
        let mut hash = String::new();
        for byte in key.hash() {
            // Writing to a string does not fail.
            let _ = write!(hash, "{byte:02x}");
        }
        Self {
            xid: key.xid,
            hash,
            values: values.map(Into::into).collect(),
        }
    }
}

/// The way in which rows are marked.
pub(super) struct MarkByKey<'a> {
    /// The tables, each with the condition for its unsent rows.
    pub(super) tables: &'a [(TableName, String)],
    /// The SQL assignments of `UPDATE … SET`.
    pub(super) set: &'a str,
    /// Locked rows are waited for, up to the session's `lock_timeout`.
    pub(super) waits: bool,
}

/// The result of an attempt to mark rows.
#[derive(Debug, Default)]
pub(super) struct Marked {
    /// The number of rows that were marked.
    pub(super) rows: u64,
    /// The indexes of the keys whose rows cannot be marked yet: they are locked, or not visible.
    pub(super) later: Vec<usize>,
    /// The indexes of the keys whose rows were changed since, so that they are other events.
    pub(super) changed: Vec<usize>,
    /// Why a row among `later` cannot be marked, if it is neither locked nor invisible: for example because the
    /// table has no unique index for the key.
    pub(super) failed: Option<MarkError>,
    /// The keys are those of a part of the table, or a part of its key: no later key of it can be used either.
    pub(super) is_partial: bool,
}

/// The table of keys, as it is now.
pub(super) enum FoundTable<'a> {
    Target(Target<'a>),
    /// The table, or the partition, was dropped with its rows.
    Dropped,
    /// The rows cannot be told apart: the table is none of the outbox any more, or has no unique index for the key.
    NoKey {
        /// It has a primary key of more columns than the log has, or its partitions have one of their own: the log will not
        /// have a key of the table either.
        is_partial: bool,
    },
}

/// A table whose rows are marked.
pub(super) struct Target<'a> {
    pub(super) condition: &'a str,
    pub(super) table: &'a TableName,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned.
    pub(super) from: String,
    /// The columns of the key and the types of their arrays.
    columns: Vec<(String, String)>,
    /// An SQL condition for a row that is the one that was sent.
    pub(super) is_sent: String,
    /// The hash of a row in SQL; `None` if a hashed column is gone.
    pub(super) hash: Option<String>,
}

impl MarkByKey<'_> {
    /// Marks the rows of these keys. A row that was marked before, or is gone, needs no mark.
    pub(super) async fn mark(
        &self,
        session: &mut Session,
        keyed: &KeyedTable,
        keys: &[RowKey],
    ) -> Result<Marked, ConfirmedError> {
        let target = match self.target(session, keyed).await? {
            FoundTable::Target(target) => target,
            FoundTable::Dropped => return Ok(Marked::default()),
            FoundTable::NoKey { is_partial } => {
                return Ok(Marked {
                    later: (0..keys.len()).collect(),
                    failed: Some(MarkError::NoKey(keyed.table.clone())),
                    is_partial,
                    ..Marked::default()
                });
            }
        };
        let mut attempt = 1;
        let (later, visible) = loop {
            // A snapshot of before: what is in progress by it may be invisible to the change.
            let in_progress = in_progress(session).await?;
            let is_later = |at: &usize| {
                keys.get(*at)
                    .is_some_and(|key| in_progress.contains(key.xid))
            };
            let (later, visible): (Vec<usize>, Vec<usize>) = (0..keys.len()).partition(is_later);
            if later.is_empty() || attempt == VISIBLE_ATTEMPTS {
                break (later, visible);
            }
            attempt += 1;
            sleep(VISIBLE_DELAY).await;
        };
        let mut marked = Marked {
            later,
            ..Marked::default()
        };
        if !visible.is_empty() {
            self.mark_visible(session, &target, keys, &visible, &mut marked)
                .await?;
        }
        Ok(marked)
    }

    async fn mark_visible(
        &self,
        session: &mut Session,
        target: &Target<'_>,
        keys: &[RowKey],
        visible: &[usize],
        marked: &mut Marked,
    ) -> Result<(), ConfirmedError> {
        let Target {
            condition,
            from,
            table,
            ..
        } = target;
        let name = script::table(table);
        let same = target.same_keys(keys, visible);
        let is_sent = &target.is_sent;
        // The condition and the assignments are on lines of their own, because they may end in a
        // comment. The condition may name the table, so there is no alias of it.
        let change = format!(
            "WITH batch AS (SELECT {name}.tableoid AS walrelay_part, {name}.ctid AS walrelay_place \
             FROM {from}, {same} AND (\n{condition}\n) AND {is_sent} FOR UPDATE{skip}), \
             changed AS (UPDATE {from} SET {set}\n FROM batch \
             WHERE {name}.ctid = batch.walrelay_place AND {name}.tableoid = batch.walrelay_part \
             RETURNING (\n{condition}\n) AS unchanged) {counted}",
            skip = if self.waits { "" } else { " SKIP LOCKED" },
            set = self.set,
            counted = counted_sql("unchanged"),
        );
        let rows = count_changed(session, &change, table).await?;
        marked.rows = rows;
        if rows == visible.len() as u64 {
            return Ok(());
        }
        let unsent = format!(
            "SELECT walrelay_key AS key, {is_sent} AS same FROM {from}, {same} AND (\n{condition}\n)"
        );
        let unsent = session.query(&unsent).await?;
        for row in unsent.iter() {
            let key = parsed::<usize>(&row, "key").and_then(|key| visible.get(key.checked_sub(1)?));
            if is_true(&row, "same") {
                marked.later.extend(key);
            } else {
                marked.changed.extend(key);
            }
        }
        Ok(())
    }

    /// Returns the table of the keys, and gives the session the time zone in which they were hashed. A table that was
    /// renamed is found by its OID.
    pub(super) async fn target(
        &self,
        session: &mut Session,
        keyed: &KeyedTable,
    ) -> Result<FoundTable<'_>, Error> {
        set_time_zone(session, &keyed.time_zone).await?;
        let named = self.tables.iter().find(|(table, _)| *table == keyed.table);
        if let Some(named) = named
            && let Some(found) = find_in(session, named, keyed).await?
        {
            return Ok(found);
        }
        for table in self.tables {
            if let Some(found) = find_in(session, table, keyed).await? {
                return Ok(found);
            }
        }
        let sql = format!(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = {}) \
             OR pg_catalog.to_regclass({}) IS NOT NULL AS stays",
            keyed.relation.get(),
            quote_literal(&script::table(&keyed.table)),
        );
        let rows = session.query(&sql).await?;
        let stays = rows.first().is_none_or(|row| is_true(&row, "stays"));
        Ok(if stays {
            FoundTable::NoKey { is_partial: false }
        } else {
            FoundTable::Dropped
        })
    }
}

/// Gives the session this time zone; its first one if none is known.
async fn set_time_zone(session: &mut Session, time_zone: &str) -> Result<(), Error> {
    if time_zone.is_empty() {
        session.query("RESET TimeZone").await?;
    } else if session.parameter("TimeZone") != Some(time_zone) {
        let sql = format!("SET TimeZone TO {}", quote_literal(time_zone));
        session.query(&sql).await?;
    }
    Ok(())
}

/// Keeps the time zone that a session has, also if the server's configuration changes, and returns it.
pub(super) async fn keep_time_zone(session: &mut Session) -> Result<String, Error> {
    let sql = "SELECT pg_catalog.set_config('TimeZone', pg_catalog.current_setting('TimeZone'), false) AS zone";
    let rows = session.query(sql).await?;
    Ok(rows
        .first()
        .map_or_else(String::new, |row| text(&row, "zone")))
}

/// Looks for the rows of the keys in an outbox table. `None`: this table has not had them.
///
/// A partition that was dropped is none of the table's any more, and a restored database has other OIDs. Both have the
/// name of the key's table.
async fn find_in<'a>(
    session: &mut Session,
    (table, condition): &'a (TableName, String),
    keyed: &KeyedTable,
) -> Result<Option<FoundTable<'a>>, Error> {
    let names = names(&keyed.columns);
    let is_named = *table == keyed.table;
    // A row is known by the key only if no other row of the whole table can have it.
    let sql = format!(
        "SELECT c.relkind = 'p' AS partitioned, pg_catalog.format_type(a.atttypid, -1) || '[]' AS type, \
             a.attname AS name, EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid \
              AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL \
              AND NOT EXISTS (SELECT FROM pg_catalog.unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) AS k(number) \
               JOIN pg_catalog.pg_attribute b ON b.attrelid = c.oid AND b.attnum = k.number \
               WHERE b.attname::text <> ALL ({names}) OR NOT b.attnotnull)) AS is_unique, \
             EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid IN (c.oid, {relation}) \
              AND i.indisprimary AND i.indisvalid) AS has_primary \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
             AND a.attnum > 0 AND NOT a.attisdropped WHERE c.oid = pg_catalog.to_regclass({table}) \
             AND (c.oid = {relation} OR {relation} IN (SELECT relid FROM pg_catalog.pg_partition_tree(c.oid)) \
              OR {is_named} AND NOT EXISTS (SELECT FROM pg_catalog.pg_class d WHERE d.oid = {relation}))",
        table = quote_literal(&script::table(table)),
        relation = keyed.relation.get(),
    );
    let found = session.query(&sql).await?;
    if found.is_empty() {
        return Ok(None);
    }
    let types: HashMap<String, String> = found
        .iter()
        .map(|row| (text(&row, "name"), text(&row, "type")))
        .collect();
    let columns = keyed.columns.iter().map(|name| {
        let array = types.get(name)?;
        Some((quote_ident(name), array.clone()))
    });
    let columns: Option<Vec<_>> = columns.collect();
    let has_columns = columns.is_some();
    let holds = |what| found.first().is_some_and(|row| is_true(&row, what));
    let Some(columns) = columns.filter(|_| holds("is_unique")) else {
        // A key whose column was renamed is another one, which later rows have.
        let is_partial = has_columns && holds("has_primary");
        return Ok(Some(FoundTable::NoKey { is_partial }));
    };
    let name = script::table(table);
    Ok(Some(FoundTable::Target(Target {
        condition,
        table,
        from: script::rows_of(table, holds("partitioned")),
        columns,
        is_sent: is_sent(&name, &keyed.row_columns, &types),
        hash: row_hash(&name, &keyed.row_columns, &types),
    })))
}

impl Target<'_> {
    /// Writes the keys at these indexes as an item of `FROM`, and `WHERE …`: the table's rows of these
    /// keys. The item has the columns `walrelay_xid`, `walrelay_hash` and `walrelay_key`, a number from
    /// 1 on.
    pub(super) fn same_keys(&self, keys: &[RowKey], indexes: &[usize]) -> String {
        let keys: Vec<&RowKey> = indexes.iter().filter_map(|at| keys.get(*at)).collect();
        let arrays = self.columns.iter().enumerate().map(|(column, (_, of))| {
            let values = keys
                .iter()
                .map(|key| key.values.get(column).map_or("", String::as_str));
            format!("{}::{of}", quote_literal(&script::array(values)))
        });
        let arrays: Vec<String> = arrays.collect();
        // The function of several arrays has no name that a schema could qualify.
        let unnested = arrays
            .iter()
            .map(|array| format!("pg_catalog.unnest({array})"));
        let unnested: Vec<String> = unnested.collect();
        let xids: Vec<String> = keys.iter().map(|key| key.xid.to_string()).collect();
        let hashes = script::array(keys.iter().map(|key| key.hash.as_str()));
        let numbered = (1..=arrays.len()).map(|at| format!("walrelay_{at}"));
        let numbered: Vec<String> = numbered.collect();
        let name = script::table(self.table);
        let joined = self.columns.iter().zip(&numbered);
        let joined = joined.map(|((column, _), number)| format!("{name}.{column} = {number}"));
        let mut joined: Vec<String> = joined.collect();
        // The server estimates few rows by it, so that it uses the index.
        if let ([array], [(column, _)]) = (arrays.as_slice(), self.columns.as_slice()) {
            joined.push(format!("{name}.{column} = ANY ({array})"));
        }
        format!(
            "ROWS FROM ({}, pg_catalog.unnest('{{{}}}'::text[]), pg_catalog.unnest('{hashes}'::text[])) \
             WITH ORDINALITY AS keys({}, walrelay_xid, walrelay_hash, walrelay_key) WHERE {}",
            unnested.join(", "),
            xids.join(","),
            numbered.join(", "),
            joined.join(" AND "),
        )
    }
}

/// Writes a condition for a row of the table `name`: it has the hash of a key, see [`SentKey::hash`].
fn is_sent(name: &str, columns: &[String], types: &HashMap<String, String>) -> String {
    match row_hash(name, columns, types) {
        Some(hash) => format!("{hash} = walrelay_hash"),
        None => format!("{name}.xmin::text = walrelay_xid"),
    }
}

/// Writes the hash of a row of the table `name`; `None` if a column is gone.
fn row_hash(name: &str, columns: &[String], types: &HashMap<String, String>) -> Option<String> {
    let is_known = columns.iter().all(|column| types.contains_key(column));
    is_known.then(|| hash_of_columns(name, columns))
}

/// Writes the hash of these columns of a row of the table `name`, see [`walrelay_relay::row_hash`].
pub(super) fn hash_of_columns(name: &str, columns: &[String]) -> String {
    let values = columns.iter().map(|column| {
        let column = format!("{name}.{}", quote_ident(column));
        // As pgoutput sends the column: by its type's output function.
        let text = format!("pg_catalog.convert_to(pg_catalog.format('%s', {column}), 'UTF8')");
        // A record of NULLs is NULL by IS NULL, too.
        format!(
            "CASE WHEN pg_catalog.num_nulls({column}) = 1 THEN '\\x6e'::bytea \
             ELSE pg_catalog.convert_to('t' || pg_catalog.length({text}) || ':', 'UTF8') || {text} END"
        )
    });
    let values: Vec<String> = values.collect();
    format!(
        "pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256({}), 1, {}), 'hex')",
        values.join(" || "),
        walrelay_relay::HASH_BYTES
    )
}

/// Writes an array of names.
fn names(columns: &[String]) -> String {
    let names: Vec<String> = columns.iter().map(|name| quote_literal(name)).collect();
    format!("ARRAY[{}]::text[]", names.join(", "))
}

/// Transactions that may be invisible. A transaction is, from its commit record until its commit is
/// complete, which takes as long as a flush, or an answer of a synchronous standby.
pub(super) struct InProgress {
    xids: HashSet<Xid>,
    /// The first transaction that was not complete when the newest one was. It and later ones are not
    /// among `xids`.
    from: Xid,
    /// The transaction that starts next. Numbers wrap around, so one behind it is that of an old transaction.
    next: Xid,
}

impl InProgress {
    pub(super) fn contains(&self, xid: Xid) -> bool {
        let since = |xid: Xid| xid.get().wrapping_sub(self.from.get());
        // A snapshot has seen its rows.
        xid.get() != 0 && (since(xid) < since(self.next) || self.xids.contains(&xid))
    }
}

/// Reads which transactions may be invisible.
pub(super) async fn in_progress(session: &mut Session) -> Result<InProgress, Error> {
    let sql = "WITH now AS (SELECT pg_catalog.pg_current_snapshot() AS snapshot), \
               xids AS (SELECT pg_catalog.pg_snapshot_xmax(snapshot) AS xid FROM now UNION ALL \
               SELECT pg_catalog.pg_snapshot_xip(snapshot) FROM now) \
               SELECT (xid::text::numeric % 4294967296)::text AS xid, \
               ((pg_catalog.age('3'::pg_catalog.xid)::int8 + 3 + 4294967296) % 4294967296)::text AS next FROM xids";
    let rows = session.query(sql).await?;
    let next = rows.first().and_then(|row| parsed(&row, "next"));
    let mut xids = rows
        .iter()
        .filter_map(|row| parsed(&row, "xid").map(Xid::new));
    // There is always one.
    let from = xids.next().unwrap_or(Xid::new(0));
    Ok(InProgress {
        from,
        xids: xids.collect(),
        // Without it, every transaction may be in progress.
        next: Xid::new(next.unwrap_or_else(|| from.get().wrapping_sub(1))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transactions_that_have_started_and_are_not_complete_are_in_progress() {
        let xid = Xid::new;
        let in_progress = InProgress {
            xids: HashSet::from([xid(90)]),
            from: xid(100),
            next: xid(105),
        };
        for (number, expected) in [
            (0, false),
            (89, false),
            (90, true),
            (99, false),
            (100, true),
            (104, true),
            (105, false),
            // More than 2^31 transactions ago.
            (100 + (1 << 31) - 1_000, false),
        ] {
            assert_eq!(in_progress.contains(xid(number)), expected, "{number}");
        }
        let wrapped = InProgress {
            from: xid(u32::MAX - 1),
            next: xid(5),
            ..in_progress
        };
        assert!(wrapped.contains(xid(4)));
        assert!(!wrapped.contains(xid(5)));
    }
}
