//! What a role may do, asked before it is needed.

use walrelay_walsender::{Error, Session, quote_literal};

use super::Wanted;
use super::row::{is_true, text};
use crate::postgres::script;

/// What the session's role lacks to create the publication, in words; empty where nothing is missing.
///
/// Source: the documentation of CREATE PUBLICATION, "Notes": CREATE on the database, and ownership of
/// each table.
pub(crate) async fn lacking_to_publish(
    session: &mut Session,
    wanted: &Wanted,
) -> Result<Vec<String>, Error> {
    let mut lacking = Vec::new();
    let rows = session
        .query(
            "SELECT current_database() AS database, \
             pg_catalog.has_database_privilege(current_database(), 'CREATE') AS creates",
        )
        .await?;
    if let Some(row) = rows.first()
        && !is_true(&row, "creates")
    {
        lacking.push(format!("CREATE on database {}", text(&row, "database")));
    }
    for table in &wanted.tables {
        let sql = format!(
            "SELECT FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass({}) \
             AND NOT pg_catalog.pg_has_role(relowner, 'USAGE')",
            quote_literal(&script::table(table))
        );
        if !session.query(&sql).await?.is_empty() {
            lacking.push(format!("ownership of table {table}"));
        }
    }
    Ok(lacking)
}
