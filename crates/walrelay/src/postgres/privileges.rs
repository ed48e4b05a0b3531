use walrelay_walsender::{Error, Session};

use super::{Wanted, script};

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
            "SELECT current_database() AS database, current_user AS role, \
             pg_catalog.has_database_privilege(current_database(), 'CREATE') AS creates",
        )
        .await?;
    if let Some(row) = rows.iter().next()
        && row.get("creates") != Some("t")
    {
        let database = row.get("database").unwrap_or_default();
        lacking.push(format!("CREATE on database {database}"));
    }
    for table in &wanted.tables {
        let regclass = walrelay_walsender::quote_literal(&script::table(table));
        let sql = format!(
            "SELECT FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass({regclass}) \
             AND NOT pg_catalog.pg_has_role(relowner, 'USAGE')"
        );
        if !session.query(&sql).await?.is_empty() {
            lacking.push(format!("ownership of table {table}"));
        }
    }
    Ok(lacking)
}
