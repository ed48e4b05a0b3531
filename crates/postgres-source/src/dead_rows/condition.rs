//! The rows of open dead letters, as an SQL condition: a row that is one is not sent, whatever its columns say.

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::table::{TABLE, exists};
use crate::catalog::row::text;
use crate::script;

/// Returns an SQL condition for rows of a table, or of one of its partitions, that have the key of an open dead letter of
/// a slot; `None` if there is none. It is NULL if it cannot tell.
///
/// Keys are compared by the types of their columns, so the text of a time in another time zone is the same key.
///
/// # Errors
/// Also if the keys may not be read: without them an unsent row may count as sent.
pub(crate) async fn rows_of_open(
    session: &mut Session,
    slot: &str,
    table: &TableName,
) -> Result<Option<String>, Error> {
    if !exists(session).await? {
        return Ok(None);
    }
    // Another relay may have created the table, and every role may read this column.
    let slot = quote_literal(slot);
    let any = format!("SELECT FROM {TABLE} WHERE slot = {slot} LIMIT 1");
    if session.query(&any).await?.is_empty() {
        return Ok(None);
    }
    let name = script::array([table.schema.as_str(), table.name.as_str()].into_iter());
    // The table may have had another name.
    let of_table = format!(
        "slot = {slot} AND (\"table\" = {}::text[] OR relation = pg_catalog.to_regclass({of})::oid \
         OR relation IN (SELECT relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass({of}))))",
        quote_literal(&name),
        of = quote_literal(&script::table(table)),
    );
    let sql = format!(
        "SELECT keys.number, keys.name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type FROM \
         (SELECT DISTINCT key_columns FROM {TABLE} WHERE {of_table}) AS dead, \
         pg_catalog.unnest(dead.key_columns) WITH ORDINALITY AS keys(name, number) \
         LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = pg_catalog.to_regclass({}) \
         AND a.attname::text = keys.name AND a.attnum > 0 ORDER BY dead.key_columns, keys.number",
        quote_literal(&script::table(table))
    );
    let rows = session.query(&sql).await?;
    let mut keys: Vec<Vec<(String, String)>> = Vec::new();
    for row in rows.iter() {
        if text(&row, "number") == "1" {
            keys.push(Vec::new());
        }
        if let Some(key) = keys.last_mut() {
            key.push((text(&row, "name"), text(&row, "type")));
        }
    }
    let conditions: Vec<String> = keys.iter().map(|key| condition(key, &of_table)).collect();
    Ok((!conditions.is_empty()).then(|| format!("({})", conditions.join(" OR "))))
}

/// Writes the condition of the dead letters whose keys have these columns, each with its type. Without a type the column
/// is gone, and no row can be told from those of dead letters.
fn condition(key: &[(String, String)], of_table: &str) -> String {
    if key.iter().any(|(_, of)| of.is_empty()) {
        return "NULL::boolean".to_owned();
    }
    let columns: Vec<String> = key.iter().map(|(name, _)| quote_ident(name)).collect();
    let values = key.iter().enumerate();
    let values = values.map(|(at, (_, of))| format!("walrelay_dead.key[{}]::{of}", at + 1));
    let values: Vec<String> = values.collect();
    let names = script::array(key.iter().map(|(name, _)| name.as_str()));
    // OFFSET 0: no key of other columns is converted to these types.
    format!(
        "({}) IN (SELECT {} FROM (SELECT key FROM {TABLE} WHERE {of_table} AND key_columns = {}::text[] OFFSET 0) \
         AS walrelay_dead)",
        columns.join(", "),
        values.join(", "),
        quote_literal(&names),
    )
}
