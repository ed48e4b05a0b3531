//! Rows of an outbox table for which there is no evidence that they were sent, for `walrelay stuck`.
//!
//! Reads only. The session's `statement_timeout` bounds each query.

use std::time::Duration;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use crate::catalog::row::{is_true, parsed};
use crate::catalog::{Filters, PublishedTable, Selection, published_tables};
use crate::dead_letters::{Compared, DeadLetters, DeadLettersError};
use crate::error::PostgresError;
use crate::script::array;
use crate::snapshot::unsent_condition;
use crate::{script, unmarked};

/// Names of the column with an event's type, in the presets' tables and others.
const TYPES: [&str; 2] = ["event_type", "type"];

/// The rows that are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSpan {
    /// The rows are older than this.
    pub older_than: Duration,
    /// The rows are not older than this; `None`: all.
    pub since: Option<Duration>,
    /// Rows that are returned, at most: the oldest ones.
    pub limit: usize,
}

/// A row without evidence that its event was sent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnseenRow {
    /// Its time, in milliseconds since 1970.
    pub at_ms: i64,
    /// The event's id; `None` if it is NULL.
    pub id: Option<String>,
    /// The event's type; `None` if the table has no such column, or it is NULL.
    pub kind: Option<String>,
    /// The publication carries the table, and its row filter the row.
    pub is_published: bool,
    /// It has an open dead letter.
    pub has_dead_letter: bool,
}

/// A table, as the queries need it.
#[derive(Debug)]
pub struct UnseenTable {
    table: TableName,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned.
    from: String,
    /// The column with the event's id.
    id: String,
    kind: Option<String>,
    age: String,
    /// A condition for rows that the publication carries.
    published: String,
    /// A condition for rows with an open dead letter.
    dead: String,
    /// A condition for rows whose dead letter was redriven or dropped.
    resolved: Option<String>,
    /// A condition for the blocks that are looked at.
    blocks: String,
}

/// The reason why rows of a table are not looked at.
#[derive(Debug, thiserror::Error)]
pub enum UnseenError {
    /// A statement failed.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// The dead letters cannot be read.
    #[error(transparent)]
    DeadLetters(#[from] DeadLettersError),
    /// The table does not exist, or has no column of the id.
    #[error("table {0} does not exist, or lacks the column of the event's id")]
    Table(TableName),
    /// The table has no column of a row's age.
    #[error("table {0} has no column that tells a row's age")]
    Age(TableName),
}

impl From<Error> for UnseenError {
    fn from(error: Error) -> Self {
        Self::Postgres(error.into())
    }
}

impl UnseenTable {
    /// Reads the columns of a table, and those that the publication carries. `dead_letters`: those that were read.
    pub async fn read(
        session: &mut Session,
        table: &TableName,
        publication: &str,
        id: &str,
        ages: &[String],
        dead_letters: &DeadLetters,
    ) -> Result<Self, UnseenError> {
        let dead_letters = (dead_letters, Compared::All);
        Self::read_with(session, table, publication, id, ages, dead_letters).await
    }

    /// Does what [`read`](Self::read) does, and compares rows with a part of the dead letters.
    pub(crate) async fn read_with(
        session: &mut Session,
        table: &TableName,
        publication: &str,
        id: &str,
        ages: &[String],
        (dead_letters, compared): (&DeadLetters, Compared),
    ) -> Result<Self, UnseenError> {
        let columns = columns(session, table).await?;
        let Some(columns) = columns.filter(|columns| columns.names.iter().any(|name| name == id))
        else {
            return Err(UnseenError::Table(table.clone()));
        };
        let is_partitioned = columns.is_partitioned;
        let has = |name: &str| columns.names.iter().any(|column| column == name);
        let age = ages.iter().find(|name| columns.times.contains(name));
        let age = age.ok_or_else(|| UnseenError::Age(table.clone()))?;
        let kind = TYPES.into_iter().find(|name| has(name));
        let published = published_tables(session, publication, Filters::Shown).await?;
        Ok(Self {
            table: table.clone(),
            from: script::rows_of(table, is_partitioned),
            id: id.to_owned(),
            kind: kind.map(str::to_owned),
            age: age.clone(),
            published: published_condition(&published, table, is_partitioned),
            dead: dead_letters
                .open_rows(table, compared)?
                .unwrap_or_else(|| "false".to_owned()),
            resolved: dead_letters.resolved_rows(table, compared)?,
            blocks: String::new(),
        })
    }

    /// Looks only at rows of these blocks, the second one excluded, of the table and of each partition.
    #[must_use]
    pub(crate) fn within_blocks(mut self, (from, to): (u64, u64)) -> Self {
        self.blocks = format!(" AND ctid >= '({from},0)'::tid AND ctid < '({to},0)'::tid");
        self
    }

    /// Returns the rows that are not marked, whose keys are not stored as acknowledged, and whose dead letters were
    /// not resolved: a redriven event was sent, and a dropped one is not to be sent.
    pub async fn unmarked(
        &self,
        session: &mut Session,
        marks: &Selection,
        slot: &str,
        span: &RowSpan,
    ) -> Result<Vec<UnseenRow>, UnseenError> {
        let unsent = unsent_condition(session, &self.table, marks).await?;
        // Not `IS NOT FALSE`: a partial index on unsent rows serves the condition as it is.
        let mut condition = format!("(\n{unsent}\n)");
        if unmarked::is_readable(session).await? {
            let stored = unmarked::has_row_sql(slot, &self.table, &self.id);
            condition = format!("{condition} AND NOT {stored}");
        }
        if let Some(resolved) = &self.resolved {
            condition = format!("{condition} AND ({resolved}) IS NOT TRUE");
        }
        self.rows(session, &condition, span).await
    }

    /// Returns the rows that have an open dead letter.
    pub async fn dead(
        &self,
        session: &mut Session,
        span: &RowSpan,
    ) -> Result<Vec<UnseenRow>, UnseenError> {
        if self.dead == "false" {
            return Ok(Vec::new());
        }
        self.rows(session, &self.dead, span).await
    }

    /// Returns the rows of these events.
    pub async fn with_ids(
        &self,
        session: &mut Session,
        ids: &[String],
        span: &RowSpan,
    ) -> Result<Vec<UnseenRow>, UnseenError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let condition = self.has_id(ids);
        self.rows(session, &condition, span).await
    }

    /// Returns the rows that the publication leaves out now.
    pub async fn unpublished(
        &self,
        session: &mut Session,
        span: &RowSpan,
    ) -> Result<Vec<UnseenRow>, UnseenError> {
        if self.published == "true" {
            return Ok(Vec::new());
        }
        let condition = format!("(\n{}\n) IS NOT TRUE", self.published);
        self.rows(session, &condition, span).await
    }

    /// Writes a condition for the rows of these events: as the log shows their ids.
    pub(crate) fn has_id(&self, ids: &[String]) -> String {
        let ids = array(ids.iter().map(String::as_str));
        format!(
            "pg_catalog.format('%s', {}) = ANY ({}::text[])",
            quote_ident(&self.id),
            quote_literal(&ids)
        )
    }

    /// Writes the values of an [`UnseenRow`].
    pub(crate) fn values(&self) -> String {
        let kind = self.kind.as_deref().map_or_else(
            || "NULL::text".to_owned(),
            |kind| format!("{}::text", quote_ident(kind)),
        );
        format!(
            "CASE WHEN {id} IS NOT NULL THEN pg_catalog.format('%s', {id}) END AS seen_id, {kind} AS seen_kind, \
             (EXTRACT(epoch FROM {age}::timestamptz) * 1000)::int8 AS at_ms, (\n{published}\n) IS TRUE AS published, \
             (\n{dead}\n) IS TRUE AS dead",
            id = quote_ident(&self.id),
            age = quote_ident(&self.age),
            published = self.published,
            dead = self.dead,
        )
    }

    /// Reads the rows of an answer with [`values`](Self::values).
    pub(crate) fn parse(rows: &walrelay_walsender::Rows) -> Vec<UnseenRow> {
        let rows = rows.iter().map(|row| UnseenRow {
            at_ms: parsed(&row, "at_ms").unwrap_or(0),
            id: row.get("seen_id").map(str::to_owned),
            kind: row.get("seen_kind").map(str::to_owned),
            is_published: is_true(&row, "published"),
            has_dead_letter: is_true(&row, "dead"),
        });
        rows.collect()
    }

    async fn rows(
        &self,
        session: &mut Session,
        condition: &str,
        span: &RowSpan,
    ) -> Result<Vec<UnseenRow>, UnseenError> {
        let age = quote_ident(&self.age);
        let before = |age: Duration| {
            format!(
                "pg_catalog.now() - pg_catalog.make_interval(secs => {})",
                age.as_secs_f64()
            )
        };
        let since = span.since.map_or_else(String::new, |since| {
            format!(" AND {age} >= {}", before(since))
        });
        let sql = format!(
            "SELECT {} FROM {} WHERE {age} < {} AND {age} > '-infinity'{since}{blocks} AND (\n{condition}\n) ORDER BY {age} LIMIT {}",
            self.values(),
            self.from,
            before(span.older_than),
            span.limit,
            blocks = self.blocks,
        );
        Ok(Self::parse(&session.query(&sql).await?))
    }
}

/// Writes a condition for the rows that the publication carries of a table.
fn published_condition(
    published: &[PublishedTable],
    table: &TableName,
    is_partitioned: bool,
) -> String {
    let own = published.iter().find(|of| of.table == *table);
    match own {
        Some(of) => of.row_filter.clone().unwrap_or_else(|| "true".to_owned()),
        // Rows of a partitioned table may be carried under the names of its partitions.
        None if is_partitioned && !published.is_empty() => "true".to_owned(),
        None => "false".to_owned(),
    }
}

/// The columns of a table, as far as this role may know them: the catalogs need no privilege.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub(crate) is_partitioned: bool,
    /// This role may read the rows.
    pub(crate) is_readable: bool,
    pub(crate) names: Vec<String>,
    /// Those that hold a time.
    pub(crate) times: Vec<String>,
}

/// Writes a query of the table's OID. `to_regclass` would need USAGE on the schema.
pub(crate) fn oid_sql(table: &TableName) -> String {
    format!(
        "(SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relname = {})",
        quote_literal(&table.schema),
        quote_literal(&table.name)
    )
}

/// Queries the columns of a table; `None` if it does not exist.
pub(crate) async fn columns(
    session: &mut Session,
    table: &TableName,
) -> Result<Option<Columns>, Error> {
    let sql = format!(
        "SELECT c.relkind = 'p' AS partitioned, pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') \
         AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS readable, pg_catalog.json_agg(a.attname) AS columns, \
         coalesce(pg_catalog.json_agg(a.attname) FILTER (WHERE coalesce(nullif(t.typbasetype, 0), t.oid) \
         IN ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype)), '[]') AS times \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 \
         AND NOT a.attisdropped JOIN pg_catalog.pg_type t ON t.oid = a.atttypid WHERE c.oid = {} GROUP BY 1, 2",
        oid_sql(table)
    );
    let rows = session.query(&sql).await?;
    Ok(rows.first().map(|row| Columns {
        is_partitioned: is_true(&row, "partitioned"),
        is_readable: is_true(&row, "readable"),
        names: crate::catalog::row::json(&row, "columns").unwrap_or_default(),
        times: crate::catalog::row::json(&row, "times").unwrap_or_default(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_table_that_is_not_published_are_named_as_such() {
        let table = TableName::new("public", "outbox");
        let of = |name: &str, filter: Option<&str>| PublishedTable {
            table: TableName::new("public", name),
            columns: None,
            row_filter: filter.map(str::to_owned),
        };
        for (published, is_partitioned, expected) in [
            (vec![of("outbox", None)], false, "true"),
            (vec![of("outbox", Some("(id > 3)"))], false, "(id > 3)"),
            (vec![of("other", None)], false, "false"),
            (vec![of("outbox_1", None)], true, "true"),
            (vec![], true, "false"),
        ] {
            let condition = published_condition(&published, &table, is_partitioned);
            assert_eq!(condition, expected);
        }
    }
}
