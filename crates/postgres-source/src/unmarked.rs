//! The table of rows that were sent and could not be marked yet, such as rows that were locked. The
//! process that has the slot works it off.

use serde::Deserialize;
use walrelay_lsn::{RelationId, Xid};
use walrelay_relay::{KeyedTable, TableName};
use walrelay_walsender::{Error, Row, Session, quote_ident, quote_literal};

use super::catalog::row::{is_true, json, parsed, text};
use super::kept;
use super::position_note;
use super::script;
use super::script::array;
use super::sent_keys::RowKey;
use super::state_version;

/// Not in the outbox's schema: a publication may publish that as a whole.
const TABLE: &str = "walrelay_state.unmarked";
/// Rows inserted by one statement, at most.
const INSERTED: usize = 500;
/// Memory of the keys of one query.
const PAGE_BYTES: usize = 64 << 20;

/// Returns SQL that creates the table. It holds keys of rows, so only its owner may read it, and
/// `role`: the relay's role, if another one creates the table.
pub fn create_sql(role: Option<&str>) -> String {
    let schema = state_version::create_sql();
    let create = format!(
        "{schema}\n\
         GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\n\
         CREATE TABLE IF NOT EXISTS {TABLE} (\n    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n    \
         slot        name NOT NULL,        -- the relay's slot\n    \
         relation    oid NOT NULL,         -- the table or partition that the log names\n    \
         \"table\"     text[] NOT NULL,      -- schema and name of the outbox table\n    \
         key_columns text[] NOT NULL,\n    row_columns text[] NOT NULL,      -- the columns that the hash covers, '', the time zone\n    \
         xid         bigint NOT NULL,      -- the transaction that inserted the row; 0: a snapshot read it\n    \
         key         text[] NOT NULL,\n    hash        text NOT NULL,        -- of the row as it was inserted\n    \
         since       timestamptz NOT NULL DEFAULT now()\n);"
    );
    let grant = role.map(|role| {
        let role = quote_ident(role);
        format!("\nGRANT SELECT, INSERT, DELETE ON {TABLE} TO {role};")
    });
    create + &grant.unwrap_or_default()
}

/// A stored key.
pub(super) struct StoredKey {
    pub(super) id: u64,
    pub(super) table: KeyedTable,
    pub(super) key: RowKey,
}

/// The columns of a stored key but its hash, as [`stored_key`] reads them.
pub(super) const STORED_KEY: &str = "relation, pg_catalog.to_json(\"table\") AS \"table\", \
     pg_catalog.to_json(key_columns) AS key_columns, pg_catalog.to_json(row_columns) AS row_columns, xid, \
     pg_catalog.to_json(key) AS key";

/// The schema and the name of a table.
#[derive(Deserialize)]
struct Names(String, String);

/// Reads a key with its table from a row of [`STORED_KEY`] and `hash`.
pub(super) fn stored_key(row: &Row<'_>) -> Option<(KeyedTable, RowKey)> {
    let Names(schema, name) = json(row, "table")?;
    let mut row_columns: Vec<String> = json(row, "row_columns")?;
    let mut time_zone = String::new();
    if let Some(at) = row_columns.iter().position(String::is_empty) {
        time_zone = row_columns.drain(at..).nth(1).unwrap_or_default();
    }
    let table = KeyedTable {
        relation: RelationId::new(parsed(row, "relation")?),
        table: TableName::new(schema, name),
        columns: json(row, "key_columns")?,
        row_columns,
        time_zone,
    };
    let key = RowKey {
        xid: Xid::new(parsed(row, "xid")?),
        hash: text(row, "hash"),
        values: json(row, "key")?,
    };
    Some((table, key))
}

/// Returns the value of the column `row_columns`: the names, and after an empty one, which no column has, the time zone.
/// The tables of earlier versions have no other column for it.
pub(super) fn row_columns(table: &KeyedTable) -> Vec<String> {
    let mut columns = table.row_columns.clone();
    if !table.time_zone.is_empty() {
        columns.extend([String::new(), table.time_zone.clone()]);
    }
    columns
}

/// Stores keys of a slot's rows. Creates the table if it is missing and `create` is true.
pub(super) async fn store(
    session: &mut Session,
    slot: &str,
    create: bool,
    table: &KeyedTable,
    keys: &[RowKey],
) -> Result<(), Error> {
    if create {
        let missing = format!("SELECT pg_catalog.to_regclass('{TABLE}') IS NULL AS missing");
        let rows = session.query(&missing).await?;
        if rows.first().is_some_and(|row| is_true(&row, "missing")) {
            session
                .query(&format!("{} {}", position_note::LOCK, create_sql(None)))
                .await?;
        }
    }
    let texts = |values: &[String]| {
        let array = array(values.iter().map(String::as_str));
        format!("{}::text[]", quote_literal(&array))
    };
    let name = [table.table.schema.clone(), table.table.name.clone()];
    let common = [
        quote_literal(slot),
        table.relation.get().to_string(),
        texts(&name),
        texts(&table.columns),
        texts(&row_columns(table)),
    ]
    .join(", ");
    for keys in keys.chunks(INSERTED) {
        let rows = keys.iter().map(|key| {
            let (values, hash) = (texts(&key.values), quote_literal(&key.hash));
            format!("({}, {values}, {hash})", key.xid)
        });
        let sql = format!(
            "INSERT INTO {TABLE} (slot, relation, \"table\", key_columns, row_columns, xid, key, hash) \
             SELECT {common}, stored.* FROM (VALUES {}) AS stored",
            rows.collect::<Vec<_>>().join(", ")
        );
        session.query(&sql).await?;
    }
    Ok(())
}

/// Returns true if the table exists.
pub(super) async fn exists(session: &mut Session) -> Result<bool, Error> {
    kept::has_table(session, "unmarked").await
}

/// Returns an SQL expression that tells whether the key of a row of this table is stored, by its `column`. If that is
/// none of the key's, every row of the transaction counts.
pub(super) fn has_row_sql(slot: &str, table: &TableName, column: &str) -> String {
    let name = array([&*table.schema, &*table.name].into_iter());
    let quoted = quote_ident(column);
    let column = quote_literal(column);
    let stored = format!(
        "FROM {TABLE} AS stored WHERE stored.slot = {} AND stored.\"table\" = {}::text[] AND {column}",
        quote_literal(slot),
        quote_literal(&name),
    );
    // The subqueries do not depend on the row, so the server reads the keys once, and hashes them.
    format!(
        "(pg_catalog.format('%s', {table}.{quoted}) = ANY (SELECT \
         stored.key[pg_catalog.array_position(stored.key_columns, {column})] {stored} = ANY (stored.key_columns)) \
         OR {table}.xmin::text = ANY (SELECT stored.xid::text {stored} <> ALL (stored.key_columns)))",
        // Stored keys have a column `id` of their own.
        table = script::table(table),
    )
}

/// Returns true if this session may read the table.
pub(super) async fn is_readable(session: &mut Session) -> Result<bool, Error> {
    let sql = format!(
        "SELECT pg_catalog.has_schema_privilege('walrelay_state', 'USAGE') \
         AND pg_catalog.has_table_privilege('{TABLE}', 'SELECT') AS readable"
    );
    if !exists(session).await? {
        return Ok(false);
    }
    let rows = session.query(&sql).await?;
    Ok(rows.first().is_some_and(|row| is_true(&row, "readable")))
}

/// The place after which stored keys are read.
#[derive(Debug, Default)]
pub(super) struct After<'a> {
    /// The id of the last key before.
    pub(super) id: u64,
    /// Tables whose keys are read after another id.
    pub(super) tables: Vec<(&'a TableName, u64)>,
    /// Tables whose keys are not read.
    pub(super) left_out: Vec<&'a TableName>,
}

impl After<'_> {
    /// Writes the condition for the keys after this place.
    fn sql(&self) -> String {
        let is_of = |table: &TableName| {
            let (schema, name) = (quote_literal(&table.schema), quote_literal(&table.name));
            format!("\"table\" = ARRAY[{schema}, {name}]")
        };
        let first = self.tables.iter().map(|(_, id)| *id).min();
        // The first condition is that of the index.
        let mut conditions = vec![format!("id > {}", first.unwrap_or(self.id).min(self.id))];
        let ids = self.tables.iter();
        let ids = ids.map(|(table, id)| format!("WHEN {} THEN {id} ", is_of(table)));
        let ids: String = ids.collect();
        if !ids.is_empty() {
            conditions.push(format!("id > CASE {ids}ELSE {} END", self.id));
        }
        let left_out = self.left_out.iter();
        conditions.extend(left_out.map(|table| format!("NOT {}", is_of(table))));
        conditions.join(" AND ")
    }
}

/// Queries the first keys of a slot after a place, in the order of their ids.
pub(super) async fn page(
    session: &mut Session,
    slot: &str,
    after: &After<'_>,
    limit: usize,
) -> Result<Vec<StoredKey>, Error> {
    let sql = format!(
        "SELECT id, {STORED_KEY}, hash FROM {TABLE} WHERE slot = {} AND {} ORDER BY id LIMIT {limit}",
        quote_literal(slot),
        after.sql()
    );
    let rows = session.query_within(&sql, PAGE_BYTES).await?;
    let keys = rows.iter().filter_map(|row| {
        let (table, key) = stored_key(&row)?;
        Some(StoredKey {
            id: parsed(&row, "id")?,
            table,
            key,
        })
    });
    Ok(keys.collect())
}

/// Deletes keys: their rows are marked, or are gone.
pub(super) async fn delete(session: &mut Session, ids: &[u64]) -> Result<(), Error> {
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let sql = format!(
        "DELETE FROM {TABLE} WHERE id = ANY ('{{{}}}')",
        ids.join(",")
    );
    session.query(&sql).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_begins_at_the_first_place_of_a_table() {
        let [one, other] = ["o'ne", "other"].map(|name| TableName::new("s", name));
        let after = After {
            id: 7,
            tables: vec![(&one, 3)],
            left_out: vec![&other],
        };
        assert_eq!(
            after.sql(),
            "id > 3 AND id > CASE WHEN \"table\" = ARRAY['s', 'o''ne'] THEN 3 ELSE 7 END \
             AND NOT \"table\" = ARRAY['s', 'other']"
        );
        assert_eq!(After::default().sql(), "id > 0");
    }
}
