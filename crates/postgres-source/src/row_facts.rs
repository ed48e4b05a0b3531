//! Finds what the outbox tables show of one event: its row, its age, and its mark.
//!
//! Reads only, and only tables with an index that starts with the id: no table is read as a whole.

use std::time::Duration;

use walrelay_relay::TableName;
use walrelay_walsender::{Session, quote_ident, quote_literal};

use crate::catalog::Selection;
use crate::catalog::row::{is_true, parsed};
use crate::error::PostgresError;
use crate::sent_rows::hashed;
use crate::snapshot::unsent_condition;
use crate::{script, unmarked};

/// Rows that are returned of a table, at most: an id need not be unique.
const MOST: usize = 10;

/// A row of an outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRow {
    /// The event's id, as the log and its record have it.
    pub id: String,
    /// Its time by the age column, in milliseconds since 1970; `None` without such a column or value.
    pub at_ms: Option<i64>,
    /// The bucket of the account of sent rows to which the row belongs; `None` without a time. It is not that of
    /// `at_ms` where the column has no time zone and the session has one.
    pub bucket: Option<i64>,
    /// It has the mark of `mark_sent`. `None`: rows are not marked.
    pub is_marked: Option<bool>,
    /// Its key is stored: its event was acknowledged, and the row is to be marked later.
    pub is_to_be_marked: bool,
}

/// The result of looking for an event in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// The rows with the id.
    Rows(Vec<KnownRow>),
    /// The table does not exist, or has no such column.
    Missing,
    /// No index starts with the column of the id, so the table is not read.
    NoIndex,
}

/// The facts of a table that the query needs.
struct Columns {
    is_partitioned: bool,
    has_index: bool,
    age: Option<String>,
}

/// Looks for the rows of an event. `id`: the column of the id, and its value as text. `ages`: names of the age
/// column, the preferred one first. `marks`: the selection of unmarked rows, where rows are marked. `slot`: that
/// whose relay marks them.
///
/// # Errors
/// Also if the id is no value of the column's type, or the server takes longer than `limit`.
pub async fn find_rows(
    session: &mut Session,
    table: &TableName,
    id: (&str, &str),
    ages: &[String],
    marks: Option<&Selection>,
    slot: &str,
    limit: Duration,
) -> Result<Look, PostgresError> {
    let (column, value) = id;
    let Some(columns) = columns(session, table, column, ages).await? else {
        return Ok(Look::Missing);
    };
    if !columns.has_index {
        return Ok(Look::NoIndex);
    }
    let unsent = match marks {
        Some(selection) => Some(unsent_condition(session, table, selection).await?),
        None => None,
    };
    let marked = unsent.map_or_else(
        || "NULL::boolean".to_owned(),
        // On lines of its own, because it may end in a comment.
        |unsent| format!("(\n{unsent}\n) IS FALSE"),
    );
    let to_be_marked = if marks.is_some() && unmarked::is_readable(session).await? {
        unmarked::has_row_sql(slot, table, column)
    } else {
        "false".to_owned()
    };
    let at = columns.age.map_or_else(
        || "NULL::int8 AS at_ms, NULL::int8 AS bucket".to_owned(),
        |age| {
            let bucket = hashed::bucket(std::slice::from_ref(&age));
            let age = quote_ident(&age);
            format!(
                "CASE WHEN pg_catalog.isfinite({age}) THEN (EXTRACT(epoch FROM {age}::timestamptz) * 1000)::int8 END AS at_ms, \
                 CASE WHEN pg_catalog.isfinite({age}) THEN {bucket} END AS bucket"
            )
        },
    );
    session
        .query(&format!(
            "BEGIN READ ONLY; SET LOCAL statement_timeout = {}",
            limit.as_millis().max(1)
        ))
        .await?;
    let sql = format!(
        "SELECT pg_catalog.format('%s', {id}) AS event, {at}, {marked} AS marked, {to_be_marked} AS to_be_marked FROM {} WHERE {id} = {} LIMIT {MOST}",
        script::rows_of(table, columns.is_partitioned),
        quote_literal(value),
        id = quote_ident(column),
    );
    let found = session.query(&sql).await;
    session.query("ROLLBACK").await?;
    let found = found?;
    let rows = found.iter().map(|row| KnownRow {
        id: row.get("event").unwrap_or_default().to_owned(),
        bucket: parsed(&row, "bucket"),
        at_ms: parsed(&row, "at_ms"),
        is_marked: row.get("marked").map(|_| is_true(&row, "marked")),
        is_to_be_marked: is_true(&row, "to_be_marked"),
    });
    Ok(Look::Rows(rows.collect()))
}

/// Returns whether rows are found by an index: one that begins with the column of the id. `None`: the table does not
/// exist, or has no such column.
///
/// # Errors
/// If the catalogs cannot be read.
pub async fn is_indexed(
    session: &mut Session,
    table: &TableName,
    column: &str,
) -> Result<Option<bool>, PostgresError> {
    let columns = columns(session, table, column, &[]).await?;
    Ok(columns.map(|columns| columns.has_index))
}

/// Queries whether the table has the column of the id, an index for it, and which age column it has.
async fn columns(
    session: &mut Session,
    table: &TableName,
    id: &str,
    ages: &[String],
) -> Result<Option<Columns>, PostgresError> {
    let (name, id) = (quote_literal(&script::table(table)), quote_literal(id));
    let names: Vec<String> = ages.iter().map(|age| quote_literal(age)).collect();
    let age = if names.is_empty() {
        "NULL".to_owned()
    } else {
        let names = names.join(", ");
        format!(
            "(SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attname IN ({names}) \
             AND NOT attisdropped AND atttypid IN ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype) \
             ORDER BY pg_catalog.array_position(ARRAY[{names}], attname::text) LIMIT 1)"
        )
    };
    let sql = format!(
        "SELECT c.relkind = 'p' AS partitioned, {age} AS age, EXISTS (SELECT FROM pg_catalog.pg_index i \
         WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid AND i.indpred IS NULL) AS indexed \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = {id} \
         AND a.attnum > 0 AND NOT a.attisdropped WHERE c.oid = pg_catalog.to_regclass({name})"
    );
    let rows = session.query(&sql).await?;
    Ok(rows.first().map(|row| Columns {
        is_partitioned: is_true(&row, "partitioned"),
        has_index: is_true(&row, "indexed"),
        age: row.get("age").map(str::to_owned),
    }))
}
