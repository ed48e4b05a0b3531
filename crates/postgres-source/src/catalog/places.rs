//! The place of a table of the WAL in the current catalogs.

use walrelay_lsn::RelationId;
use walrelay_relay::{TableName, TablePlace};
use walrelay_walsender::{Error, Session, quote_literal};

use super::row::{is_true, parsed};

/// Queries the place of a table by its OID, which it keeps when it is renamed, attached or detached.
/// `tables`: the configured outboxes.
pub async fn place(
    session: &mut Session,
    tables: &[TableName],
    id: RelationId,
) -> Result<TablePlace, Error> {
    let rows = session.query(&place_sql(tables, id)).await?;
    let row = rows.first();
    let named = |column: &str| {
        let number: Option<usize> = row.as_ref().and_then(|row| parsed(row, column));
        number.and_then(|number| tables.get(number).cloned())
    };
    let exists = row.as_ref().is_some_and(|row| is_true(row, "exists"));
    Ok(match (named("outbox"), named("below")) {
        (Some(outbox), _) => TablePlace::Outbox(outbox),
        (None, Some(partition)) => TablePlace::Above(partition),
        (None, None) if exists => TablePlace::Other,
        (None, None) => TablePlace::Gone,
    })
}

/// Returns a query of one row: whether a table has the OID, and the numbers of the first configured
/// table that is this table or above it, and of the first one below it.
///
/// A role that may only replicate can run it. `pg_partition_ancestors` returns the table itself, too,
/// and no row for a table that does not exist or belongs to no partition tree.
fn place_sql(tables: &[TableName], id: RelationId) -> String {
    let configured = tables.iter().enumerate().map(|(number, table)| {
        let (schema, name) = (quote_literal(&table.schema), quote_literal(&table.name));
        format!("({number}, {schema}, {name})")
    });
    // VALUES needs a row: messages alone have no tables.
    let configured: Vec<String> = configured
        .chain(["(NULL, NULL, NULL)".to_owned()])
        .collect();
    let ancestors =
        |of: &str| format!("SELECT a.relid FROM pg_catalog.pg_partition_ancestors({of}) a");
    let oid = format!("{}::pg_catalog.oid", id.get());
    format!(
        "WITH configured AS (SELECT t.number, c.oid FROM (VALUES {configured}) t (number, schema, name) \
          JOIN pg_catalog.pg_namespace n ON n.nspname = t.schema \
          JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.name) \
         SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = {oid}) AS exists, \
         (SELECT min(number) FROM configured WHERE oid = {oid} OR oid IN ({above})) AS outbox, \
         (SELECT min(number) FROM configured WHERE {oid} IN ({below})) AS below",
        configured = configured.join(", "),
        above = ancestors(&oid),
        below = ancestors("configured.oid"),
    )
}
