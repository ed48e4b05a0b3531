//! The rights that marking rows needs (`[source] mark_sent`, `mark_dead`).

use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::assigned::assigned_columns;
use super::catalog::Wanted;
use super::catalog::row::{is_true, text};
use super::{kept, position_note, script, unseen};

/// A right that the session's role lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRight {
    /// What the role may not do.
    pub what: String,
    /// The SQL that grants it; `None`: `walrelay init` creates the table.
    pub grant: Option<String>,
}

/// Returns the right to see all rows of the outbox tables, if policies hide any from this role: they cannot be marked, or
/// compared with those that were sent. Old rows are deleted with their partitions, which have policies of their own.
pub async fn hidden_rows(
    session: &mut Session,
    wanted: &Wanted,
    role: &str,
) -> Result<Vec<MissingRight>, Error> {
    let mut missing = Vec::new();
    for table in &wanted.tables {
        let oid = unseen::oid_sql(table);
        let parts = if wanted.age.is_empty() {
            String::new()
        } else {
            format!(" OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree({oid}))")
        };
        let sql = format!(
            "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE (c.oid = {oid}{parts}) \
             AND pg_catalog.row_security_active(c.oid) ORDER BY c.oid <> {oid}, 1 LIMIT 1"
        );
        let hidden = session.query(&sql).await?;
        if let Some(row) = hidden.first() {
            let name = text(&row, "name");
            missing.push(MissingRight {
                what: format!("see all rows of {name}, which has row-level security"),
                grant: Some(format!("ALTER ROLE {} BYPASSRLS;", quote_ident(role))),
            });
        }
    }
    Ok(missing)
}

/// Returns the rights to mark rows that this role lacks: for rows of the outbox tables, and for keys of rows that
/// cannot be marked at once.
pub async fn missing_mark_rights(
    session: &mut Session,
    wanted: &Wanted,
    role: &str,
) -> Result<Vec<MissingRight>, Error> {
    let mut missing = Vec::new();
    if wanted.marks.is_none() {
        return Ok(missing);
    }
    missing.extend(hidden_rows(session, wanted, role).await?);
    let role = quote_ident(role);
    let sets = wanted.marks.iter().chain(&wanted.dead_marks);
    let columns: Vec<String> = sets.flat_map(|set| assigned_columns(set)).collect();
    for table in &wanted.tables {
        let columns: Vec<String> = columns.iter().map(|column| quote_literal(column)).collect();
        let sql = format!(
            "SELECT pg_catalog.has_table_privilege(c.oid, 'SELECT') AND NOT EXISTS (SELECT FROM \
             pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             AND a.attname::text = ANY (ARRAY[{}]::text[]) \
             AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'UPDATE')) AS may \
             FROM pg_catalog.pg_class c WHERE c.oid = {}",
            columns.join(", "),
            unseen::oid_sql(table)
        );
        let rows = session.query(&sql).await?;
        if rows.first().is_some_and(|row| !is_true(&row, "may")) {
            missing.push(MissingRight {
                what: format!("read and mark rows of {table}"),
                grant: Some(format!(
                    "GRANT SELECT, UPDATE ON {} TO {role};",
                    script::table(table)
                )),
            });
        }
    }
    let tables = [
        ("unmarked", "SELECT, INSERT, DELETE", wanted.marks.is_some()),
        (
            "dead",
            "SELECT, INSERT, UPDATE, DELETE",
            wanted.dead_marks.is_some(),
        ),
    ];
    for (name, rights, _) in tables.into_iter().filter(|(_, _, is_used)| *is_used) {
        let each = rights.split(", ").map(|right| {
            format!(
                "pg_catalog.has_table_privilege(c.oid, {})",
                quote_literal(right)
            )
        });
        let each: Vec<String> = each.collect();
        let sql = format!(
            "SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND {} AS may FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = 'walrelay_state' AND c.relname = {}",
            each.join(" AND "),
            quote_literal(name)
        );
        let rows = session.query(&sql).await?;
        let is_missing = rows.is_empty();
        let may = match rows.first() {
            Some(row) => is_true(&row, "may"),
            None => {
                wanted.create
                    && position_note::may_create(session, name).await?
                    && (name != "dead" || !kept::is_published(session).await?)
            }
        };
        if !may {
            missing.push(MissingRight {
                what: format!(
                    "{} walrelay_state.{name}",
                    if is_missing { "create" } else { "write" }
                ),
                grant: (!is_missing).then(|| {
                    format!(
                        "GRANT USAGE ON SCHEMA walrelay_state TO {role}; GRANT {rights} ON walrelay_state.{name} TO {role};"
                    )
                }),
            });
        }
    }
    Ok(missing)
}
