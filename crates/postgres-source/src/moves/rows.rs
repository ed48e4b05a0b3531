//! Rows of a drained server that a new one, which gets its rows by replication, does not have.

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Rows, Session, quote_ident, quote_literal};

use crate::catalog;
use crate::catalog::row::{parsed, text};
use crate::script;

/// Keys that one query compares.
const PAGE: u32 = 1000;
/// The memory that a page of keys may take, in bytes.
const PAGE_BYTES: usize = 16 << 20;
/// Keys that are named.
const NAMED: usize = 3;

/// Rows of one table that the former server has, and this one has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRows {
    /// The table.
    pub table: TableName,
    /// Their number.
    pub rows: u64,
    /// Some of their primary keys, as JSON; none if the table has no primary key.
    pub examples: Vec<String>,
}

/// Finds rows of a table that `former` has and `here` has not. Equal numbers of rows show that there are none, unless
/// `former_prunes`: services may wait for the end of the move, and keys are compared slowly. A table without a primary
/// key is only counted.
///
/// # Errors
/// `42501` if a role may not read the table.
pub async fn missing_rows_by_count(
    here: &mut Session,
    former: &mut Session,
    table: &TableName,
    former_prunes: bool,
) -> Result<Option<MissingRows>, Error> {
    // A row that the former server's relay prunes meanwhile is counted there, and not here.
    let (there, own) = (count(former, table).await?, count(here, table).await?);
    if own == there && !former_prunes {
        return Ok(None);
    }
    // More rows here, because deletions were not replicated for example, hide rows that are missing.
    if !primary_key(former, table).await?.is_empty() {
        return missing_rows(here, former, table).await;
    }
    Ok((own < there).then(|| MissingRows {
        table: table.clone(),
        rows: there - own,
        examples: Vec::new(),
    }))
}

/// Finds rows of a table that `former` has and `here` has not, by their primary keys. A table without one has none.
///
/// # Errors
/// `42501` if a role may not read the table.
pub async fn missing_rows(
    here: &mut Session,
    former: &mut Session,
    table: &TableName,
) -> Result<Option<MissingRows>, Error> {
    let columns = primary_key(former, table).await?;
    if columns.is_empty() {
        return Ok(None);
    }
    let members = columns
        .iter()
        .map(|column| format!("{}, {}", quote_literal(column), quote_ident(column)));
    let key = members.collect::<Vec<_>>().join(", ");
    former
        .query("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY")
        .await?;
    let found = compare(here, former, table, &columns, &key).await;
    let ended = former.query("ROLLBACK").await;
    let (rows, examples) = found?;
    ended?;
    Ok((rows > 0).then(|| MissingRows {
        table: table.clone(),
        rows,
        examples,
    }))
}

/// Compares the keys page by page. Returns the number of missing rows, and some of their keys.
async fn compare(
    here: &mut Session,
    former: &mut Session,
    table: &TableName,
    columns: &[String],
    key: &str,
) -> Result<(u64, Vec<String>), Error> {
    let (mut rows, mut examples) = (0, Vec::new());
    let declare = format!(
        "DECLARE walrelay_keys NO SCROLL CURSOR FOR SELECT pg_catalog.jsonb_build_object({key}) AS key FROM {}",
        script::table(table)
    );
    former.query(&declare).await?;
    loop {
        let fetch = format!("FETCH {PAGE} FROM walrelay_keys");
        let page = keys(&former.query_within(&fetch, PAGE_BYTES).await?);
        if page.is_empty() {
            return Ok((rows, examples));
        }
        let absent = select(here, table, columns, &page, "NOT EXISTS").await?;
        // The former server may have pruned them meanwhile, and replicated that.
        let missing = select(former, table, columns, &absent, "EXISTS").await?;
        rows += missing.len() as u64;
        let left = NAMED.saturating_sub(examples.len());
        examples.extend(missing.into_iter().take(left));
    }
}

/// Returns those of the keys that the table has, or has not.
async fn select(
    session: &mut Session,
    table: &TableName,
    columns: &[String],
    wanted: &[String],
    condition: &str,
) -> Result<Vec<String>, Error> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let equal = columns.iter().map(|column| {
        let column = quote_ident(column);
        format!("present.{column} = wanted.{column}")
    });
    let sql = format!(
        "SELECT given.key FROM pg_catalog.jsonb_array_elements({}) AS given (key) \
         CROSS JOIN LATERAL pg_catalog.jsonb_populate_record(NULL::{table}, given.key) AS wanted \
         WHERE {condition} (SELECT FROM {table} AS present WHERE {})",
        quote_literal(&format!("[{}]", wanted.join(","))),
        equal.collect::<Vec<_>>().join(" AND "),
        table = script::table(table),
    );
    Ok(keys(&session.query_within(&sql, PAGE_BYTES).await?))
}

fn keys(rows: &Rows) -> Vec<String> {
    rows.iter().map(|row| text(&row, "key")).collect()
}

async fn count(session: &mut Session, table: &TableName) -> Result<u64, Error> {
    let sql = format!("SELECT count(*) AS rows FROM {}", script::table(table));
    let rows = session.query(&sql).await?;
    Ok(rows
        .first()
        .and_then(|row| parsed(&row, "rows"))
        .unwrap_or_default())
}

/// Returns the columns of the primary key; none without one.
async fn primary_key(session: &mut Session, table: &TableName) -> Result<Vec<String>, Error> {
    let facts = catalog::table(&session.query(&catalog::table_sql(table)).await?);
    Ok(facts.map_or_else(Vec::new, |facts| facts.primary_key))
}
