//! Sizes and ages of the outbox tables, for the metrics of a running relay.
//!
//! # Invariants
//! - Sizes are those of the statistics and of the files. No table is scanned for them.
//! - An age is read only if the planner reads one row of an index for it: the plan is looked at first.
//! - Each statement is bounded by a second, and waits a tenth of it for a lock.

use serde_json::Value;
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind, quote_ident};

use crate::catalog::Selection;
use crate::catalog::row::parsed;
use crate::error::PostgresError;
use crate::script;
use crate::snapshot::unsent_condition;
use crate::unseen;

/// Settings of the session. The head of an index may have many entries of deleted rows, which a statement passes over.
const SETTINGS: [(&str, &str); 3] = [
    ("statement_timeout", "1s"),
    ("lock_timeout", "100ms"),
    ("default_transaction_read_only", "on"),
];
/// Nodes of a plan that reads the first rows of indexes.
const ALLOWED: [&str; 6] = [
    "Limit",
    "Result",
    "Append",
    "Merge Append",
    "Index Scan",
    "Index Only Scan",
];

/// The tables that are looked at.
#[derive(Debug, Clone)]
pub struct OutboxWatch {
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Names of the age column, the preferred one first.
    pub ages: Vec<String>,
    /// The selection of unmarked rows, where rows are marked.
    pub marks: Option<Selection>,
}

/// The age of the oldest row of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Oldest {
    /// In seconds; `None`: there is no such row, or it is not known.
    pub seconds: Option<f64>,
    /// Why it is not known.
    pub unknown: Option<String>,
}

/// Sizes and ages of an outbox table, with its partitions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OutboxStats {
    /// `schema.table`.
    pub table: String,
    /// Rows by the statistics.
    pub rows: Option<u64>,
    /// Bytes of the table with its indexes and TOAST.
    pub bytes: Option<u64>,
    /// Dead rows by the statistics.
    pub dead_rows: Option<u64>,
    /// Seconds since the last vacuum; `None`: none since the statistics started.
    pub vacuum_seconds: Option<f64>,
    /// The oldest row.
    pub oldest: Oldest,
    /// The oldest row without a mark; `None`: rows are not marked.
    pub oldest_unmarked: Option<Oldest>,
}

/// Reads sizes and ages of each table, over its own connection.
///
/// # Errors
/// If the server does not answer, or a look at the catalogs takes longer than a second.
pub async fn outbox_stats(
    info: &ConnInfo,
    watch: &OutboxWatch,
) -> Result<Vec<OutboxStats>, PostgresError> {
    let mut session = Session::connect(info, SessionKind::Sql, &SETTINGS).await?;
    let mut all = Vec::new();
    for table in &watch.tables {
        all.push(stats(&mut session, table, watch).await?);
    }
    session.close().await;
    Ok(all)
}

async fn stats(
    session: &mut Session,
    table: &TableName,
    watch: &OutboxWatch,
) -> Result<OutboxStats, PostgresError> {
    let sizes = session.query(&sizes_sql(table)).await?;
    let mut stats = OutboxStats {
        table: table.to_string(),
        ..OutboxStats::default()
    };
    if let Some(row) = sizes.first() {
        stats.rows = parsed(&row, "rows");
        stats.bytes = parsed(&row, "bytes");
        stats.dead_rows = parsed(&row, "dead");
        stats.vacuum_seconds = parsed(&row, "vacuum");
    }
    let columns = unseen::columns(session, table).await?;
    let why = match &columns {
        None => Some("the table does not exist".to_owned()),
        Some(columns) if !columns.is_readable => Some(format!(
            "this role may not read it: {}",
            script::grant_select(std::slice::from_ref(table), "…")
        )),
        Some(_) => None,
    };
    let columns = columns.unwrap_or_default();
    let age = watch.ages.iter().find(|age| columns.times.contains(age));
    let Some(age) = age.filter(|_| why.is_none()) else {
        let names = || format!("it has no column {} of a time", watch.ages.join(" or "));
        stats.oldest = unknown(&why.unwrap_or_else(names));
        stats.oldest_unmarked = watch.marks.as_ref().map(|_| stats.oldest.clone());
        return Ok(stats);
    };
    let from = script::rows_of(table, columns.is_partitioned);
    let index = format!(
        "no index serves it: CREATE INDEX ON {} ({})",
        script::table(table),
        quote_ident(age)
    );
    stats.oldest = oldest(session, &oldest_sql(&from, age, None), &index).await?;
    if let Some(marks) = &watch.marks {
        let unsent = unsent_condition(session, table, marks).await?;
        let sql = oldest_sql(&from, age, Some(&unsent));
        let index = format!("{index} WHERE {unsent}");
        stats.oldest_unmarked = Some(oldest(session, &sql, &index).await?);
    }
    Ok(stats)
}

fn unknown(why: &str) -> Oldest {
    Oldest {
        seconds: None,
        unknown: Some(why.to_owned()),
    }
}

/// Returns a query of the sizes of a table with its partitions.
fn sizes_sql(table: &TableName) -> String {
    format!(
        "SELECT sum(CASE WHEN s.n_live_tup > 0 THEN s.n_live_tup ELSE greatest(c.reltuples, 0) END)::int8 AS rows, \
         sum(pg_catalog.pg_total_relation_size(c.oid))::int8 AS bytes, sum(s.n_dead_tup)::int8 AS dead, \
         EXTRACT(epoch FROM pg_catalog.now() - min(greatest(s.last_vacuum, s.last_autovacuum))) AS vacuum \
         FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid \
         WHERE c.relkind = 'r' AND c.oid IN (SELECT {oid} \
          UNION SELECT relid::oid FROM pg_catalog.pg_partition_tree({oid}))",
        oid = unseen::oid_sql(table)
    )
}

/// Returns a query of the age of the oldest row for which a condition holds.
fn oldest_sql(from: &str, age: &str, condition: Option<&str>) -> String {
    let age = quote_ident(age);
    // On lines of its own, because it may end in a comment.
    let condition = condition.map_or_else(String::new, |sql| format!(" AND (\n{sql}\n)"));
    format!(
        "SELECT EXTRACT(epoch FROM pg_catalog.now() - {age}::timestamptz) AS seconds FROM {from} \
         WHERE {age} > '-infinity'{condition} ORDER BY {age} LIMIT 1"
    )
}

/// Reads the age, if the plan of the query reads the first row of an index. `missing`: what to say if not.
async fn oldest(session: &mut Session, sql: &str, missing: &str) -> Result<Oldest, Error> {
    let settings = "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off";
    session.query(settings).await?;
    let found = oldest_by_index(session, sql, missing).await;
    session.query("ROLLBACK").await?;
    // The text of the server's error may hold a value of a row.
    Ok(match found {
        Ok(found) => found,
        Err(error) => unknown(&match error.sqlstate() {
            Some("57014") => "reading it took longer than a second: VACUUM the table".to_owned(),
            Some(code) => format!("the server refused the query: SQLSTATE {code}"),
            None => return Err(error),
        }),
    })
}

async fn oldest_by_index(session: &mut Session, sql: &str, missing: &str) -> Result<Oldest, Error> {
    let rows = session
        .query(&format!("EXPLAIN (FORMAT JSON) {sql}"))
        .await?;
    let plan = rows
        .first()
        .and_then(|row| row.get("QUERY PLAN").map(str::to_owned));
    let plan: Option<Value> = plan.and_then(|plan| serde_json::from_str(&plan).ok());
    let is_served = plan.is_some_and(|plan| reads_an_index(&plan[0]["Plan"]));
    if !is_served {
        return Ok(unknown(missing));
    }
    let rows = session.query(sql).await?;
    Ok(Oldest {
        seconds: rows.first().and_then(|row| parsed(&row, "seconds")),
        unknown: None,
    })
}

/// Returns true if a plan reads the first rows of indexes: no row is read to be passed over, and none is sorted. A second
/// condition of an index may be one that each entry is compared with, up to the whole index.
fn reads_an_index(plan: &Value) -> bool {
    let is_allowed = plan["Node Type"]
        .as_str()
        .is_some_and(|node| ALLOWED.contains(&node));
    let parts = plan["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    let condition = plan["Index Cond"].as_str().unwrap_or_default();
    let is_of_age = !condition.contains(" AND ");
    is_allowed && is_of_age && plan.get("Filter").is_none() && parts.iter().all(reads_an_index)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_plan_of_the_first_row_of_an_index_is_carried_out() {
        let limit = |part: Value| json!({ "Node Type": "Limit", "Plans": [part] });
        let index =
            json!({ "Node Type": "Index Only Scan", "Index Cond": "(created_at > '-infinity')" });
        let second = "((created_at > '-infinity') AND (sent_at IS NULL))";
        let second = json!({ "Node Type": "Index Only Scan", "Index Cond": second });
        let filtered = json!({ "Node Type": "Index Scan", "Filter": "(sent_at IS NULL)" });
        let parts = json!({ "Node Type": "Merge Append", "Plans": [index.clone(), index.clone()] });
        let one_part = json!({ "Node Type": "Merge Append", "Plans": [index.clone(), { "Node Type": "Seq Scan" }] });
        let sorted = json!({ "Node Type": "Sort", "Plans": [index.clone()] });
        for (expected, plan) in [
            (true, limit(index)),
            (true, limit(parts)),
            (false, limit(second)),
            (false, limit(filtered)),
            (false, limit(one_part)),
            (false, limit(sorted)),
            (false, json!({})),
        ] {
            assert_eq!(reads_an_index(&plan), expected, "{plan}");
        }
    }
}
