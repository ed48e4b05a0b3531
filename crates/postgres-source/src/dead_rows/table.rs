//! The table of the keys of dead letters' rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use walrelay_lsn::{Lsn, Xid};
use walrelay_relay::KeyedTable;
use walrelay_sink::{EventPosition, PublishedLsn};
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::DeadKey;
use crate::catalog::row::{is_true, parsed, text};
use crate::dead_letters::LetterOrigin;
use crate::kept;
use crate::script::array;
use crate::sent_keys::RowKey;
use crate::state_version;
use crate::unmarked::{STORED_KEY, row_columns, stored_key};

pub(super) const TABLE: &str = "walrelay_state.dead";
pub(super) const NAME: &str = "dead";
/// The version of a stored key, in SQL: one that is stored again, or marked, has another one.
pub(super) const VERSION: &str = "(id::text || ' ' || xmin::text)";
/// Keys that one query returns, at most.
const PAGE: usize = 1_000;
/// Memory of the keys of one query.
const PAGE_BYTES: usize = 64 << 20;

/// Returns SQL that creates the table. It holds keys of rows, so only its owner may read it, and `role`: the
/// relay's role, if another one creates the table.
pub fn create_sql(role: Option<&str>) -> String {
    let schema = state_version::create_sql();
    let create = format!(
        "{schema}\n\
         GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\n\
         CREATE TABLE IF NOT EXISTS {TABLE} (\n    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n    \
         slot        name NOT NULL,        -- the relay's slot\n    \
         system      text NOT NULL DEFAULT '', -- the cluster of the event, as in its dead letter\n    \
         store       text NOT NULL DEFAULT '', -- the sink and the topic that have the dead letter\n    \
         lsn         pg_lsn NOT NULL,      -- the event's position, as in its dead letter\n    \
         \"row\"       bigint NOT NULL,\n    \
         relation    oid NOT NULL,         -- the table or partition that the log names\n    \
         \"table\"     text[] NOT NULL,      -- schema and name of the outbox table\n    \
         key_columns text[] NOT NULL,\n    row_columns text[] NOT NULL,      -- the columns that the hash covers, '', the time zone\n    \
         xid         bigint NOT NULL,      -- the transaction that inserted the row; 0: a snapshot read it\n    \
         key         text[] NOT NULL,\n    hash        text NOT NULL,        -- of the row as it was inserted\n    \
         marked_hash text,                 -- of the row as mark_dead left it\n    \
         marked      boolean NOT NULL DEFAULT false,\n    \
         attempts    integer NOT NULL DEFAULT 1,\n    \
         error       text NOT NULL,        -- the cause of the dead letter\n    \
         run         text NOT NULL,        -- the process that made the last attempt\n    \
         since       timestamptz NOT NULL DEFAULT now(),\n    UNIQUE (slot, system, lsn, \"row\"),\n    \
         UNIQUE (slot, hash, id)           -- finds the keys of changed rows by their hashes\n);\n\
         DO $do$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute\n    \
         WHERE attrelid = '{TABLE}'::pg_catalog.regclass AND attname = 'store' AND NOT attisdropped) THEN\n    \
         ALTER TABLE {TABLE} -- of an earlier version\n    \
         ADD COLUMN IF NOT EXISTS system text NOT NULL DEFAULT '', ADD COLUMN store text NOT NULL DEFAULT '',\n    \
         DROP CONSTRAINT IF EXISTS dead_slot_lsn_row_key, ADD UNIQUE (slot, system, lsn, \"row\"); END IF; END $do$;\n\
         GRANT SELECT (slot) ON {TABLE} TO PUBLIC;"
    );
    let grant = role.map(|role| {
        let role = quote_ident(role);
        format!("\nGRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO {role};")
    });
    create + &grant.unwrap_or_default()
}

/// A stored key.
pub(super) struct StoredRow {
    pub(super) id: u64,
    pub(super) origin: LetterOrigin,
    pub(super) marked: bool,
    pub(super) table: KeyedTable,
    pub(super) key: RowKey,
    /// The hash of the row as it was inserted.
    inserted: String,
    /// See [`VERSION`].
    pub(super) version: String,
}

impl StoredRow {
    /// Returns true if this is the row of a sent event's key in this table. A row of a snapshot names no transaction.
    pub(super) fn is_of(&self, table: &KeyedTable, key: &RowKey) -> bool {
        let unknown = Xid::new(0);
        let (stored, sent) = (self.key.xid, key.xid);
        self.table.table == table.table
            && self.table.columns == table.columns
            && self.inserted == key.hash
            && self.key.values == key.values
            && (stored == sent || stored == unknown || sent == unknown)
    }
}

/// Writes a condition for the rows that were marked, and have one of the keys at these indexes. A row whose key was
/// stored again has its mark still.
pub(super) fn marked_with(keys: &[RowKey], indexes: &[usize]) -> String {
    let hashes = indexes.iter().filter_map(|at| keys.get(*at));
    let hashes = array(hashes.map(|key| key.hash.as_str()));
    format!(
        "(marked OR marked_hash IS NOT NULL) AND hash = ANY ({}::text[])",
        quote_literal(&hashes)
    )
}

/// Writes the statement that stores keys. `store`: the place of their dead letters.
pub(super) fn insert_sql(
    (slot, store): (&str, &str),
    run: &str,
    table: &KeyedTable,
    keys: &[DeadKey],
) -> String {
    let texts = |values: &[String]| {
        let array = array(values.iter().map(String::as_str));
        format!("{}::text[]", quote_literal(&array))
    };
    let name = [table.table.schema.clone(), table.table.name.clone()];
    let values = keys.iter().map(|dead| {
        // PostgreSQL has no text with a zero character.
        let reason = dead.reason.replace('\0', "");
        let values = [
            quote_literal(slot),
            quote_literal(&dead.system),
            quote_literal(store),
            quote_literal(&dead.event.published_lsn().to_string()),
            dead.event.row.to_string(),
            table.relation.get().to_string(),
            texts(&name),
            texts(&table.columns),
            texts(&row_columns(table)),
            dead.key.xid.to_string(),
            texts(&dead.key.values),
            quote_literal(&dead.key.hash),
            quote_literal(&reason),
            quote_literal(run),
        ];
        let event = (dead.event, Arc::clone(&dead.system));
        (event, format!("({})", values.join(", ")))
    });
    // A statement may name each event once: the newest key of an event counts.
    let values: BTreeMap<_, String> = values.collect();
    let values: Vec<String> = values.into_values().collect();
    format!(
        "INSERT INTO {TABLE} AS known (slot, system, store, lsn, \"row\", relation, \"table\", key_columns, \
         row_columns, xid, key, hash, error, run) VALUES {} ON CONFLICT (slot, system, lsn, \"row\") DO UPDATE SET \
         attempts = CASE WHEN known.hash <> excluded.hash OR known.key <> excluded.key THEN 1 \
         ELSE known.attempts + (known.run <> excluded.run)::int END, \
         marked_hash = CASE WHEN known.hash = excluded.hash AND known.key = excluded.key \
         THEN known.marked_hash END, \
         marked = false, store = excluded.store, relation = excluded.relation, \"table\" = excluded.\"table\", \
         key_columns = excluded.key_columns, row_columns = excluded.row_columns, xid = excluded.xid, \
         key = excluded.key, hash = excluded.hash, error = excluded.error, run = excluded.run",
        values.join(", ")
    )
}

/// Returns true if the table exists.
pub(super) async fn exists(session: &mut Session) -> Result<bool, Error> {
    kept::has_table(session, NAME).await
}

/// Returns the columns that the table lacks, because an earlier version created it.
pub async fn missing_columns(session: &mut Session) -> Result<Vec<String>, Error> {
    let sql = format!(
        "SELECT name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace, \
         pg_catalog.unnest(ARRAY['system', 'store']) AS name \
         WHERE n.nspname = 'walrelay_state' AND c.relname = '{NAME}' AND c.relkind = 'r' \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = name)"
    );
    let rows = session.query(&sql).await?;
    Ok(rows.iter().map(|row| text(&row, "name")).collect())
}

/// Returns true if keys of a slot are stored. The table exists.
pub(super) async fn has_keys(session: &mut Session, slot: &str) -> Result<bool, Error> {
    let slot = quote_literal(slot);
    let any = format!("SELECT FROM {TABLE} WHERE slot = {slot} LIMIT 1");
    Ok(!session.query(&any).await?.is_empty())
}

/// Returns true if the table exists, and this session may read it: another relay may have created it.
pub(super) async fn may_read(session: &mut Session) -> Result<bool, Error> {
    may(session, &["SELECT"]).await
}

/// Returns true if the table exists, and this session may read it and delete from it.
pub(super) async fn may_resolve(session: &mut Session) -> Result<bool, Error> {
    may(session, &["SELECT", "DELETE"]).await
}

/// Returns true if the table exists, and this session has these rights.
async fn may(session: &mut Session, rights: &[&str]) -> Result<bool, Error> {
    if !exists(session).await? {
        return Ok(false);
    }
    let has = |right: &&str| format!("pg_catalog.has_table_privilege('{TABLE}', '{right}')");
    let rights: Vec<String> = rights.iter().map(has).collect();
    let sql = format!(
        "SELECT pg_catalog.has_schema_privilege('walrelay_state', 'USAGE') AND {} AS may",
        rights.join(" AND ")
    );
    let rows = session.query(&sql).await?;
    Ok(rows.first().is_some_and(|row| is_true(&row, "may")))
}

/// Queries the first keys of a slot that fulfil a condition.
pub(super) async fn page(
    session: &mut Session,
    slot: &str,
    condition: &str,
) -> Result<Vec<StoredRow>, Error> {
    let sql = format!(
        "SELECT id, system, store, lsn, \"row\", marked, {STORED_KEY}, coalesce(marked_hash, hash) AS hash, hash AS inserted, \
         {VERSION} AS version FROM {TABLE} \
         WHERE slot = {} AND {condition} ORDER BY id LIMIT {PAGE}",
        quote_literal(slot)
    );
    let rows = session.query_within(&sql, PAGE_BYTES).await?;
    let rows = rows.iter().filter_map(|row| {
        let (table, key) = stored_key(&row)?;
        let lsn: Lsn = parsed(&row, "lsn")?;
        Some(StoredRow {
            id: parsed(&row, "id")?,
            origin: LetterOrigin {
                event: EventPosition::from_published(
                    PublishedLsn::from_published(lsn.get()),
                    parsed(&row, "row")?,
                ),
                system: text(&row, "system"),
                store: text(&row, "store"),
            },
            marked: is_true(&row, "marked"),
            table,
            key,
            inserted: text(&row, "inserted"),
            version: text(&row, "version"),
        })
    });
    Ok(rows.collect())
}

/// Notes that the row of a key needs no mark: it is gone, or was changed. The key stays until its dead letter is resolved:
/// a row that has it is not sent, whatever it looks like.
pub(super) async fn pass_over(session: &mut Session, id: u64) -> Result<(), Error> {
    session
        .query(&format!("UPDATE {TABLE} SET marked = true WHERE id = {id}"))
        .await?;
    Ok(())
}

/// Deletes a key: its dead letter is resolved, or its event was delivered.
pub(super) async fn delete(session: &mut Session, id: u64) -> Result<(), Error> {
    session
        .query(&format!("DELETE FROM {TABLE} WHERE id = {id}"))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use walrelay_lsn::RelationId;
    use walrelay_relay::TableName;

    use super::*;

    fn table(name: &str, column: &str) -> KeyedTable {
        KeyedTable {
            relation: RelationId::new(1),
            table: TableName::new("public", name),
            columns: vec![column.to_owned()],
            row_columns: vec![column.to_owned()],
            time_zone: String::new(),
        }
    }

    fn key(xid: u32) -> RowKey {
        RowKey {
            xid: Xid::new(xid),
            hash: "aa".to_owned(),
            values: vec!["7".to_owned()],
        }
    }

    #[test]
    fn a_stored_row_is_that_of_a_key_in_its_own_table_and_transaction() {
        let stored = StoredRow {
            id: 1,
            origin: LetterOrigin {
                event: EventPosition::from_published(PublishedLsn::from_published(8), 0),
                system: "7".to_owned(),
                store: "kafka dead".to_owned(),
            },
            marked: true,
            table: table("a", "id"),
            key: RowKey {
                hash: "marked".to_owned(),
                ..key(5)
            },
            inserted: "aa".to_owned(),
            version: String::new(),
        };
        assert!(stored.is_of(&table("a", "id"), &key(5)));
        assert!(stored.is_of(&table("a", "id"), &key(0)));
        assert!(!stored.is_of(&table("a", "id"), &key(6)));
        assert!(!stored.is_of(&table("b", "id"), &key(5)));
        assert!(!stored.is_of(&table("a", "key"), &key(5)));
    }
}
