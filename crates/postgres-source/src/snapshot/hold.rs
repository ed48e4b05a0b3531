//! Holds the tables of a snapshot, so that no DDL hides rows from it.
//!
//! A snapshot sees no row of a table that is rewritten after it was taken: `ALTER TABLE` of a
//! column's type or with a volatile default gives the table a new file, whose rows belong to the
//! transaction of the ALTER.
//! <https://www.postgresql.org/docs/current/mvcc-caveats.html>
//!
//! Nor can it read a column that is dropped or renamed after it was taken: its catalogs have the
//! column, and a query of it fails.

use walrelay_relay::TableName;
use walrelay_walsender::{Session, quote_literal};

use crate::confirmation::count_rows;
use crate::error::{PostgresError, PublicationSetupError, SetupError};
use crate::script;

/// SQLSTATE `undefined_table`.
const UNDEFINED_TABLE: &str = "42P01";

/// Locks the table and its partitions for the rest of the session's transaction, and checks that
/// the transaction's snapshot finds its rows in them: same table, same files, same partitions, and
/// the columns of the snapshot.
///
/// # Errors
/// [`PostgresError::SnapshotOutdated`] if the table was changed after the snapshot was taken. The
/// rows must be read in a new snapshot.
pub(super) async fn hold(session: &mut Session, table: &TableName) -> Result<(), PostgresError> {
    let name = script::table(table);
    let outdated = || PostgresError::SnapshotOutdated(table.clone());
    // Takes ACCESS SHARE locks, as LOCK TABLE does, but needs no privilege on the whole table.
    let locked = session.query(&format!("SELECT FROM {name} LIMIT 0")).await;
    if let Err(error) = locked {
        if error.sqlstate() == Some(UNDEFINED_TABLE) {
            return Err(outdated());
        }
        return Err(PostgresError::from_rows(error));
    }
    // A query of a catalog returns the tables and files of the snapshot's moment. The functions return
    // those of now, which cannot change while they are locked.
    let changed = format!(
        "WITH RECURSIVE now AS (SELECT pg_catalog.to_regclass({literal})::pg_catalog.oid AS root), \
         tree AS (SELECT c.oid, c.relkind, c.relfilenode FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = {schema} AND c.relname = {table} \
         UNION ALL SELECT c.oid, c.relkind, c.relfilenode FROM tree \
         JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid AND tree.relkind = 'p' \
         AND NOT i.inhdetachpending \
         JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid) \
         SELECT count(*) AS rows FROM tree, now WHERE (tree.relkind = 'r' \
         AND pg_catalog.pg_relation_filenode(tree.oid) IS DISTINCT FROM tree.relfilenode) \
         OR (tree.oid <> now.root AND NOT EXISTS (SELECT FROM \
         pg_catalog.pg_partition_ancestors(tree.oid) AS a WHERE a.relid = now.root)) \
         OR EXISTS (SELECT FROM pg_catalog.pg_attribute AS a, \
         pg_catalog.pg_identify_object('pg_catalog.pg_class'::pg_catalog.regclass, tree.oid, 0) AS of_table, \
         pg_catalog.pg_identify_object('pg_catalog.pg_class'::pg_catalog.regclass, tree.oid, a.attnum) AS of_column \
         WHERE a.attrelid = tree.oid AND a.attnum > 0 AND NOT a.attisdropped \
         AND of_column.identity <> of_table.identity || '.' || pg_catalog.quote_ident(a.attname))",
        literal = quote_literal(&name),
        schema = quote_literal(&table.schema),
        table = quote_literal(&table.name),
    );
    match count_rows(session, &changed).await? {
        0 => Ok(()),
        _ => Err(outdated()),
    }
}

/// Returns the error for a table that the snapshot does not see as published.
pub(super) async fn unseen(
    session: &mut Session,
    publication: &str,
    table: &TableName,
) -> Result<PostgresError, PostgresError> {
    // The functions see publication and table as they are now: a table that was created after the
    // snapshot was taken may hold rows from before.
    let published = format!(
        "SELECT count(*) AS rows FROM pg_catalog.pg_get_publication_tables({}) AS p \
         WHERE p.relid = pg_catalog.to_regclass({})",
        quote_literal(publication),
        quote_literal(&script::table(table)),
    );
    Ok(match count_rows(session, &published).await? {
        0 => PostgresError::Setup(SetupError::Publication(PublicationSetupError::Lacks {
            publication: publication.to_owned(),
            tables: vec![table.clone()],
            gap: None,
        })),
        _ => PostgresError::SnapshotOutdated(table.clone()),
    })
}
