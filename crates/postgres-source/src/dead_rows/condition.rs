//! The rows of open dead letters, as an SQL condition: a row that is one is not sent, whatever its columns say.

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::resolved::ResolvedKeys;
use super::table::{NAME, TABLE, exists, has_keys, may_read};
use crate::catalog::row::{parsed, text};
use crate::script;

/// Stored keys of a table's open dead letters by which no row can be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "rows of {table} stay: walrelay_state.dead has the keys of {keys} dead letters by the columns {}, and the table has \
     no such columns now",
    .columns.join(", ")
)]
pub struct LostKeys {
    /// The table.
    pub table: TableName,
    /// The columns of the keys.
    pub columns: Vec<String>,
    /// The number of keys.
    pub keys: u64,
}

/// The columns of some stored keys of a table.
struct KeyColumns {
    /// The array of their names, as the server writes it.
    array: String,
    /// Each name with its type. Without a type the column is gone.
    columns: Vec<(String, String)>,
    /// The number of keys that have these columns.
    keys: u64,
}

impl KeyColumns {
    fn is_lost(&self) -> bool {
        self.columns.iter().any(|(_, of)| of.is_empty())
    }
}

/// The stored keys of a slot's open dead letters in a table.
struct StoredKeys {
    /// The condition for them.
    of_table: String,
    by_columns: Vec<KeyColumns>,
}

impl StoredKeys {
    /// Reads the columns of the keys, but not of those that are `resolved`.
    async fn read(
        session: &mut Session,
        slot: &str,
        table: &TableName,
        resolved: &ResolvedKeys,
    ) -> Result<Self, Error> {
        let name = script::array([table.schema.as_str(), table.name.as_str()].into_iter());
        // The table may have had another name.
        let of_table = format!(
            "slot = {} AND (\"table\" = {}::text[] OR relation = pg_catalog.to_regclass({of})::oid \
             OR relation IN (SELECT relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass({of})))){}",
            quote_literal(slot),
            quote_literal(&name),
            resolved.excluded(),
            of = quote_literal(&script::table(table)),
        );
        let sql = format!(
            "SELECT dead.key_columns::text AS columns, dead.keys, keys.number, keys.name, \
             pg_catalog.format_type(a.atttypid, a.atttypmod) AS type FROM \
             (SELECT key_columns, count(*) AS keys FROM {TABLE} WHERE {of_table} GROUP BY key_columns) AS dead, \
             pg_catalog.unnest(dead.key_columns) WITH ORDINALITY AS keys(name, number) \
             LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = pg_catalog.to_regclass({}) \
             AND a.attname::text = keys.name AND a.attnum > 0 ORDER BY dead.key_columns, keys.number",
            quote_literal(&script::table(table))
        );
        let rows = session.query(&sql).await?;
        let mut by_columns: Vec<KeyColumns> = Vec::new();
        for row in rows.iter() {
            if text(&row, "number") == "1" {
                by_columns.push(KeyColumns {
                    array: text(&row, "columns"),
                    columns: Vec::new(),
                    keys: parsed(&row, "keys").unwrap_or(0),
                });
            }
            if let Some(keys) = by_columns.last_mut() {
                keys.columns.push((text(&row, "name"), text(&row, "type")));
            }
        }
        Ok(Self {
            of_table,
            by_columns,
        })
    }

    /// Returns the keys of columns that the table does not have any more.
    fn lost(&self, table: &TableName) -> Option<LostKeys> {
        let lost = || self.by_columns.iter().filter(|keys| keys.is_lost());
        let columns = &lost().next()?.columns;
        Some(LostKeys {
            table: table.clone(),
            columns: columns.iter().map(|(name, _)| name.clone()).collect(),
            keys: lost().map(|keys| keys.keys).sum(),
        })
    }

    /// Writes the condition for the rows that have one of the keys. It is true of every row once a key of other columns
    /// is stored.
    fn condition(&self) -> String {
        let known = script::array(self.by_columns.iter().map(|keys| keys.array.as_str()));
        let others = format!(
            "EXISTS (SELECT FROM {TABLE} WHERE {} AND key_columns::text <> ALL ({}::text[]))",
            self.of_table,
            quote_literal(&known)
        );
        let same = self.by_columns.iter().map(|keys| self.same(keys));
        let conditions: Vec<String> = same.chain([others]).collect();
        format!("({})", conditions.join(" OR "))
    }

    /// Writes the condition for the rows that have one of these keys.
    fn same(&self, keys: &KeyColumns) -> String {
        let columns = keys.columns.iter().map(|(name, _)| quote_ident(name));
        let columns: Vec<String> = columns.collect();
        let values = keys.columns.iter().enumerate();
        let values = values.map(|(at, (_, of))| format!("walrelay_dead.key[{}]::{of}", at + 1));
        let values: Vec<String> = values.collect();
        // OFFSET 0: no key of other columns is converted to these types.
        format!(
            "({}) IN (SELECT {} FROM (SELECT key FROM {TABLE} WHERE {} AND key_columns = {}::text[] OFFSET 0) \
             AS walrelay_dead)",
            columns.join(", "),
            values.join(", "),
            self.of_table,
            quote_literal(&keys.array),
        )
    }
}

/// Returns an SQL condition for rows of a table, or of one of its partitions, that have the stored key of an open dead
/// letter of a slot. It is NULL if it cannot tell. It stays right while keys are stored: it is true of every row once it
/// does not know a key.
///
/// Keys are compared by the types of their columns, so the text of a time in another time zone is the same key.
///
/// # Errors
/// Also if the keys may not be read: without them an unsent row may count as sent.
pub(crate) async fn rows_of_open(
    session: &mut Session,
    slot: &str,
    table: &TableName,
    resolved: &ResolvedKeys,
) -> Result<Result<String, LostKeys>, Error> {
    if !exists(session).await? {
        let is_created = format!(
            "EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = 'walrelay_state' AND c.relname = '{NAME}')"
        );
        return Ok(Ok(is_created));
    }
    if !has_keys(session, slot).await? {
        // Every role may read this column: another relay may have created the table.
        let slot = quote_literal(slot);
        let any = format!("EXISTS (SELECT FROM {TABLE} WHERE slot = {slot})");
        return Ok(Ok(any));
    }
    let stored = StoredKeys::read(session, slot, table, resolved).await?;
    Ok(match stored.lost(table) {
        Some(lost) => Err(lost),
        None => Ok(stored.condition()),
    })
}

/// Returns the stored keys of a slot by which no row can be found any more, as far as this session may read them.
pub async fn lost_keys(
    session: &mut Session,
    slot: &str,
    tables: &[TableName],
) -> Result<Vec<LostKeys>, Error> {
    let mut lost = Vec::new();
    if may_read(session).await? && has_keys(session, slot).await? {
        for table in tables {
            let stored = StoredKeys::read(session, slot, table, &ResolvedKeys::default()).await?;
            lost.extend(stored.lost(table));
        }
    }
    Ok(lost)
}
