//! The account of sent rows in the database: for each slot, table and time bucket the number of
//! acknowledged rows and the sum of their hashes (docs/adr/0056-an-account-of-sent-rows.md).
//!
//! `walrelay_state.accounts` has the position `through` which each slot has counted: sums are added
//! only if they continue it, so each row counts once, however often the server sends it. Each opening of a
//! stream has another token (`opening`), so a statement that a killed relay has left adds nothing later.

use walrelay_lsn::Lsn;
use walrelay_relay::{AccountColumns, BucketSum, Counted, RowSum, TableName};
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::hashed::HashedRows;
use crate::catalog::Wanted;
use crate::catalog::row::{parsed, text};
use crate::{script, state_version};

const INSUFFICIENT_PRIVILEGE: &str = "42501";
/// The account, and the objects that it is made of.
const TABLES: [&str; 2] = ["walrelay_state.account", "walrelay_state.accounts"];

/// Returns SQL that creates the tables, which every role may read. `role`: the relay's role, if
/// another one creates them.
pub fn create_sql(role: Option<&str>) -> String {
    let [account, accounts] = TABLES;
    let schema = state_version::create_sql();
    let create = format!(
        "{schema}\n\
         CREATE TABLE IF NOT EXISTS {account} (\n    slot          name,   -- the relay's slot\n    \
         relation      oid,    -- the table or partition that the log names\n    \
         columns       text[], -- the hashed columns, and that of the age\n    \
         bucket        bigint, -- ten minutes of the age, numbered since 1970\n    \
         rows          bigint NOT NULL,  -- acknowledged rows, and the sums of both halves of their hashes\n    \
         high          numeric NOT NULL,\n    low           numeric NOT NULL,\n    \
         diverted      bigint NOT NULL,  -- the same of rows that became dead letters\n    \
         diverted_high numeric NOT NULL,\n    diverted_low  numeric NOT NULL,\n    \
         diverted_to   text[], -- the topics or streams of these dead letters; empty: settled\n    \
         PRIMARY KEY (slot, relation, columns, bucket)\n) WITH (fillfactor = 50);\n\
         CREATE TABLE IF NOT EXISTS {accounts} (\n    slot        name PRIMARY KEY,\n    \
         system      text NOT NULL,   -- the system identifier of the log\n    \
         publication name NOT NULL,\n    through     pg_lsn NOT NULL, -- what is counted\n    \
         opening     uuid NOT NULL DEFAULT gen_random_uuid() -- the stream that counts: each one has another\n) WITH (fillfactor = 50);\n\
         GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\nGRANT SELECT ON {account}, {accounts} TO PUBLIC;"
    );
    let grant = role.map(|role| {
        let role = quote_ident(role);
        format!("\nGRANT INSERT, UPDATE, DELETE ON {account}, {accounts} TO {role};")
    });
    create + &grant.unwrap_or_default()
}

/// Checks whether the tables exist, and this role may write them on this server.
pub async fn may_write(session: &mut Session) -> Result<bool, Error> {
    let sql = "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'walrelay_state' AND c.relname IN ('account', 'accounts') AND c.relkind = 'r' \
         AND NOT pg_catalog.pg_is_in_recovery() AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
         AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT') \
         AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') AND pg_catalog.has_table_privilege(c.oid, 'DELETE')";
    Ok(session.query(sql).await?.iter().count() == TABLES.len())
}

/// Creates the tables where they are missing and the role may. Returns whether the role may write them.
pub(crate) async fn ensure(session: &mut Session, create: bool) -> Result<bool, Error> {
    if may_write(session).await? {
        return Ok(true);
    }
    if !create {
        return Ok(false);
    }
    let sql = format!("{}\n{}", crate::position_note::LOCK, create_sql(None));
    match session.query(&sql).await {
        Ok(_) => may_write(session).await,
        Err(error) if error.sqlstate() == Some(INSUFFICIENT_PRIVILEGE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The account of a slot, opened for a stream.
#[derive(Debug, Clone)]
pub(crate) struct OpenedAccount {
    /// The position that it has counted.
    pub(crate) through: Lsn,
    /// The token of this opening: only the last one adds sums.
    pub(crate) opening: String,
}

/// Begins or continues the account of a slot. What was counted of another server's log says nothing of this
/// one.
pub(crate) async fn open(
    session: &mut Session,
    slot: &str,
    system: &str,
    publication: &str,
) -> Result<OpenedAccount, Error> {
    let sql = format!(
        "INSERT INTO walrelay_state.accounts AS known VALUES ({}, {}, {}, '0/0') ON CONFLICT (slot) DO UPDATE \
         SET through = CASE known.system WHEN excluded.system THEN known.through ELSE '0/0' END, \
         system = excluded.system, publication = excluded.publication, opening = DEFAULT RETURNING through, opening",
        quote_literal(slot),
        quote_literal(system),
        quote_literal(publication),
    );
    let rows = session.query(&sql).await?;
    let row = rows.first();
    let through = row.and_then(|row| parsed(&row, "through"));
    Ok(OpenedAccount {
        through: through.unwrap_or(Lsn::ZERO),
        opening: row.map_or_else(String::new, |row| text(&row, "opening")),
    })
}

/// Adds sums to the account of a slot, if they continue what is counted, and no other stream was opened since
/// `opening`. `dead_letters`: the store to which this relay writes them. Returns whether they are in the account
/// now: an attempt whose answer was lost may have added them.
pub(crate) async fn add(
    session: &mut Session,
    slot: &str,
    opening: &str,
    dead_letters: Option<&str>,
    counted: &Counted,
) -> Result<bool, Error> {
    let opened = format!(
        "slot = {} AND opening = {}",
        quote_literal(slot),
        quote_literal(opening)
    );
    let added = add_sql(&opened, dead_letters, counted);
    if !session.query(&added).await?.is_empty() {
        return Ok(true);
    }
    let sql = format!("SELECT through FROM walrelay_state.accounts WHERE {opened}");
    let rows = session.query(&sql).await?;
    let through: Option<Lsn> = rows.first().and_then(|row| parsed(&row, "through"));
    Ok(through == Some(counted.to))
}

/// Writes SQL that adds sums to an account, and selects a row if they continue what is counted. `opened`: the
/// condition for the account.
///
/// A bucket keeps the name of each store, because the configuration may name another one later.
fn add_sql(opened: &str, dead_letters: Option<&str>, counted: &Counted) -> String {
    format!(
        "WITH continued AS (UPDATE walrelay_state.accounts SET through = '{to}' WHERE {opened} \
         AND through = '{from}' RETURNING slot), added AS ({insert} FROM continued, ({values}) AS sums ON CONFLICT \
         (slot, relation, columns, bucket) DO UPDATE SET rows = known.rows + excluded.rows, \
         high = known.high + excluded.high, low = known.low + excluded.low, \
         diverted = known.diverted + excluded.diverted, \
         diverted_high = known.diverted_high + excluded.diverted_high, \
         diverted_low = known.diverted_low + excluded.diverted_low, \
         diverted_to = CASE WHEN known.diverted_to @> excluded.diverted_to THEN known.diverted_to \
         ELSE known.diverted_to || excluded.diverted_to END) SELECT FROM continued",
        to = counted.to,
        from = counted.from,
        insert = "INSERT INTO walrelay_state.account AS known SELECT continued.slot, sums.*",
        values = values(counted, dead_letters),
    )
}

/// Writes the sums as rows of the account, without the slot.
fn values(counted: &Counted, dead_letters: Option<&str>) -> String {
    let rows = counted.sums.iter().map(|(bucket, sum)| {
        let BucketSum { sent, diverted } = sum;
        let sums =
            [sent, diverted].map(|RowSum { rows, high, low }| format!("{rows}, {high}, {low}"));
        let store = dead_letters.filter(|_| diverted.rows != 0);
        let store = store.map(|store| array(&[store.to_owned()]));
        format!(
            "({}::oid, {}, {}::int8, {}, {})",
            bucket.relation.get(),
            array(&bucket.columns),
            bucket.number,
            sums.join(", "),
            store.as_deref().unwrap_or("NULL::text[]"),
        )
    });
    format!("VALUES {}", rows.collect::<Vec<_>>().join(", "))
}

/// Writes names as an SQL array.
pub(crate) fn array(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| quote_literal(name)).collect();
    format!("ARRAY[{}]::text[]", names.join(", "))
}

/// Puts the sums of a snapshot, whose rows are all acknowledged, in the place of what was counted of
/// its tables: rows that the snapshot left out are in no account any more.
pub(crate) async fn replace(
    session: &mut Session,
    wanted: &Wanted,
    system: &str,
    point: Lsn,
    counted: Option<&Counted>,
) -> Result<(), Error> {
    let quoted = quote_literal(&wanted.slot);
    let mut statements = vec!["BEGIN".to_owned()];
    for table in &wanted.tables {
        statements.push(format!(
            "DELETE FROM walrelay_state.account WHERE slot = {quoted} AND relation IN ({})",
            relations(table)
        ));
    }
    statements.push(format!(
        "INSERT INTO walrelay_state.accounts VALUES ({quoted}, {}, {}, '{point}') ON CONFLICT (slot) DO UPDATE \
         SET through = excluded.through, system = excluded.system, publication = excluded.publication",
        quote_literal(system),
        quote_literal(&wanted.publication),
    ));
    if let Some(counted) = counted.filter(|counted| !counted.sums.is_empty()) {
        statements.push(format!(
            "INSERT INTO walrelay_state.account SELECT {quoted}, sums.* FROM ({}) AS sums",
            values(counted, wanted.dead_letters())
        ));
    }
    statements.push("COMMIT".to_owned());
    session.query_all(&statements).await?;
    Ok(())
}

/// Writes a subquery of the OIDs of a table and its partitions.
pub(crate) fn relations(table: &TableName) -> String {
    let name = quote_literal(&script::table(table));
    format!(
        "SELECT {name}::pg_catalog.regclass::pg_catalog.oid UNION \
         SELECT relid FROM pg_catalog.pg_partition_tree({name}::pg_catalog.regclass)"
    )
}

/// Returns true if more than the age, which is the last one, is among the columns of an account.
///
/// Rows of the same age are not the same rows, so an account of the age alone is none.
pub(crate) fn identifies_rows(columns: &[String]) -> bool {
    columns.len() > 1
}

/// Writes a query of the columns (`name`) of a table's replica identity, if that is an index. A DEFERRABLE primary key is
/// none.
pub(crate) fn key_columns(table: &TableName) -> String {
    format!(
        "SELECT a.attname::text AS name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_index i ON i.indrelid = c.oid \
         AND i.indimmediate AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident \
         ELSE false END \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
         AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) WHERE c.oid = pg_catalog.to_regclass({})",
        quote_literal(&script::table(table))
    )
}

/// Returns the columns of a table's key that the publication of a slot does not carry. Column lists came with Postgres 15.
pub(super) async fn unpublished_key(
    session: &mut Session,
    slot: &str,
    table: &TableName,
) -> Result<Vec<String>, Error> {
    if session.server_version().major < 15 {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT key.name FROM ({}) AS key JOIN walrelay_state.accounts a ON a.slot = {} \
         JOIN pg_catalog.pg_publication_tables t ON t.pubname = a.publication AND t.schemaname = {} \
         AND t.tablename = {} WHERE key.name <> ALL (t.attnames::text[])",
        key_columns(table),
        quote_literal(slot),
        quote_literal(&table.schema),
        quote_literal(&table.name),
    );
    let rows = session.query(&sql).await?;
    Ok(rows.iter().map(|row| text(&row, "name")).collect())
}

/// Reads the columns by which the relay will account a table's rows: those of the replica identity
/// and of the event's id, and the first age column. `None`: the table has no age column.
pub(crate) async fn columns_of(
    session: &mut Session,
    table: &TableName,
    wanted: &AccountColumns,
) -> Result<Option<Vec<String>>, Error> {
    let sql = format!(
        "SELECT attname AS name, attname IN ({}) AS key FROM pg_catalog.pg_attribute \
         WHERE attrelid = pg_catalog.to_regclass({}) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        key_columns(table),
        quote_literal(&script::table(table))
    );
    let rows = session.query(&sql).await?;
    let found: Vec<(String, bool)> = rows
        .iter()
        .map(|row| (text(&row, "name"), row.get("key") == Some("t")))
        .collect();
    let has = |name: &&String| found.iter().any(|(column, _)| column == *name);
    let Some(age) = wanted.age.iter().find(has) else {
        return Ok(None);
    };
    let hashed = found
        .iter()
        .filter(|(name, key)| name != age && (*key || Some(name) == wanted.id.as_ref()));
    let mut columns: Vec<String> = hashed.map(|(name, _)| name.clone()).collect();
    columns.push(age.clone());
    Ok(Some(columns))
}

/// Begins the account of a slot that is about to be made, if it has none. If the user says that
/// rows from before the slot may be deleted, those that are there now count as sent. A table of which
/// any account has rows had a slot before, so nothing is concluded for it.
pub async fn begin(session: &mut Session, wanted: &Wanted) -> Result<(), Error> {
    let Some(settings) = &wanted.account else {
        return Ok(());
    };
    if !ensure(session, wanted.create).await? {
        return Ok(());
    }
    let slot = &wanted.slot;
    // A slot that is made again has an account: rows of the time between are not accounted.
    let begun = format!(
        "INSERT INTO walrelay_state.accounts VALUES ({}, '', {}, '0/0') ON CONFLICT DO NOTHING RETURNING slot",
        quote_literal(slot),
        quote_literal(&wanted.publication)
    );
    if session.query(&begun).await?.is_empty() || !settings.before_slot {
        return Ok(());
    }
    for table in &wanted.tables {
        let known = format!(
            "SELECT FROM walrelay_state.account WHERE relation IN ({}) LIMIT 1",
            relations(table)
        );
        let columns = columns_of(session, table, &settings.columns).await?;
        let Some(columns) = columns.filter(|columns| identifies_rows(columns)) else {
            continue;
        };
        if session.query(&known).await?.is_empty() {
            let name = script::table(table);
            let all = HashedRows {
                from: &name,
                columns: &columns,
                condition: &is_finite(&columns),
                more: "",
            };
            session
                .query(&set_sql(slot, table, &columns, &all.rows()))
                .await?;
        }
    }
    Ok(())
}

/// Writes a condition for rows that have a bucket.
pub(crate) fn is_finite(columns: &[String]) -> String {
    let age = columns
        .last()
        .map(|age| quote_ident(age))
        .unwrap_or_default();
    format!("pg_catalog.isfinite({age})")
}

/// Writes SQL that makes the sums of these rows, by bucket, the account of the table.
pub(crate) fn set_sql(slot: &str, table: &TableName, columns: &[String], rows: &str) -> String {
    format!(
        "INSERT INTO walrelay_state.account SELECT {slot}, {table}::pg_catalog.regclass::pg_catalog.oid, {columns}, \
         bucket, count(*), sum(high), sum(low), 0, 0, 0, NULL FROM ({rows}) AS present GROUP BY bucket",
        slot = quote_literal(slot),
        table = quote_literal(&script::table(table)),
        columns = array(columns),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position_note;

    /// The migration of partitions makes the tables for the role of the first migration, then the
    /// sequences for the slot.
    #[test]
    fn the_migration_of_partitions_ends_with_them() {
        let migration = include_str!("../../../../migrations/0003_outbox_partitioned.sql");
        let role = Some("walrelay");
        let sql = [
            create_sql(role),
            position_note::create_sql("walrelay", role),
        ]
        .join("\n");
        assert!(migration.ends_with(&format!("{sql}\n")), "{sql}");
    }
}
