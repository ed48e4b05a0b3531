//! The record of what each slot carries, in a table of the database: every process compares with
//! what the first one saw, and a restart forgets nothing.
//!
//! It has a row for each table of a slot (`part` 0) and for each part of it, with the catalog rows
//! that decide what the slot carries of it, or a word in place of them: `beginning` if something
//! else than walrelay made the slot, `gap` if a relay went on over an accepted gap, `moved` if
//! something else than a relay moved the slot, `accepted` if the user says that all rows of before
//! were sent. A walrelay that makes the slot begins the record
//! anew.

use std::fmt;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::noted;
use crate::catalog::row::text;

/// The table of the record. Not in the outbox's schema: a publication may publish that as a whole.
const TABLE: &str = "walrelay_state.carried";

/// Returns SQL that creates the table, which everybody may read. `role`: the relay's role, if
/// another one creates the table.
pub fn create_sql(role: Option<&str>) -> String {
    let create = format!(
        "CREATE SCHEMA IF NOT EXISTS walrelay_state;\n\
         CREATE TABLE IF NOT EXISTS {TABLE} (\n    slot    name, -- the relay's slot\n    \
         \"table\" text, -- an outbox table of it\n    part    oid,  -- the table itself (0), or one of its parts\n    \
         state   text NOT NULL, -- the catalog rows that decide what is carried\n    \
         PRIMARY KEY (slot, \"table\", part)\n);\n\
         GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\nGRANT SELECT ON {TABLE} TO PUBLIC;"
    );
    let grant = role.map(|role| {
        let role = quote_ident(role);
        format!("\nGRANT INSERT, UPDATE, DELETE ON {TABLE} TO {role};")
    });
    create + &grant.unwrap_or_default()
}

/// Checks whether the table exists, and this role may write it on this server.
pub async fn exists(session: &mut Session) -> Result<bool, Error> {
    let privileges = "pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
         AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT') \
         AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') AND pg_catalog.has_table_privilege(c.oid, 'DELETE')";
    is_there(session, privileges).await
}

/// Checks whether the table exists, on a primary, and fulfils the condition.
async fn is_there(session: &mut Session, condition: &str) -> Result<bool, Error> {
    let sql = format!(
        "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'walrelay_state' AND c.relname = 'carried' AND c.relkind = 'r' \
         AND NOT pg_catalog.pg_is_in_recovery() AND ({condition})"
    );
    Ok(!session.query(&sql).await?.is_empty())
}

/// SQL that takes the lock under which objects of the schema `walrelay_state` are created, until the
/// transaction ends. Workers of one process create them at the same time.
pub(crate) const LOCK: &str = "DO $do$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(\
     pg_catalog.hashtextextended('walrelay_state.carried', 0)); END $do$;";

/// Creates the table, also within an open transaction.
pub(crate) async fn create(session: &mut Session) -> Result<(), Error> {
    let sql = create_sql(None);
    session.query(&format!("{LOCK}\n{sql}")).await?;
    Ok(())
}

/// The reason why the record does not show that the slot carried all rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The catalog rows are others than those that are recorded.
    Changed,
    /// The relay went on over an accepted gap.
    Gap,
    /// The slot was moved, or made anew, by something else than a relay.
    Moved,
    /// Nothing is known of the slot's beginning.
    Beginning,
}

impl Doubt {
    /// Returns the doubt for a recorded state that is not the one that was found.
    fn from_state(state: &str) -> Self {
        match state {
            "gap" => Self::Gap,
            "moved" => Self::Moved,
            "beginning" => Self::Beginning,
            _ => Self::Changed,
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "its publication or its partitions were changed",
            Self::Gap => "its slot has passed over a gap that was accepted",
            Self::Moved => {
                "its slot was moved, or made anew, while no relay that notes its positions ran"
            }
            Self::Beginning => "its slot was not made by walrelay run or init",
        })
    }
}

/// Compares states of a table's parts with the record, and records those that are new.
///
/// A table that is not recorded is in doubt if `known_beginning` is false. A state that the user
/// has set to `accepted` becomes the one that is found.
pub(super) async fn compare(
    session: &mut Session,
    slot: &str,
    table: &TableName,
    states: &[(u32, String)],
    known_beginning: bool,
) -> Result<Option<Doubt>, Error> {
    let values = states.iter().map(|(part, state)| {
        let state = quote_literal(state);
        format!("({part}::oid, {state}::text)")
    });
    let sql = format!(
        "WITH found (part, state) AS (VALUES {values}), \
         known AS (SELECT part, state FROM {TABLE} WHERE slot = {slot} AND \"table\" = {table}), \
         compared AS (SELECT part, found.state, known.part IS NULL AS is_new, \
          coalesce(known.state, CASE WHEN {known_beginning} OR EXISTS (SELECT FROM known) THEN found.state \
           ELSE 'beginning' END) AS recorded FROM found LEFT JOIN known USING (part)), \
         new AS (INSERT INTO {TABLE} SELECT {slot}, {table}, part, recorded FROM compared WHERE is_new \
          ON CONFLICT DO NOTHING), \
         accepted AS (UPDATE {TABLE} c SET state = found.state FROM found \
          WHERE slot = {slot} AND \"table\" = {table} AND c.part = found.part AND c.state = 'accepted'), \
         gone AS (DELETE FROM {TABLE} c WHERE slot = {slot} AND \"table\" = {table} AND part <> 0 \
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = c.part)) \
         SELECT max(CASE recorded WHEN 'beginning' THEN 'beginning' WHEN 'gap' THEN 'gap' \
          WHEN 'moved' THEN 'moved' ELSE 'changed' END) AS doubt \
         FROM compared WHERE recorded NOT IN (state, 'accepted')",
        values = values.collect::<Vec<_>>().join(", "),
        slot = quote_literal(slot),
        table = quote_literal(&table.to_string()),
    );
    let rows = session.query(&sql).await?;
    let row = rows.first();
    let state = row.as_ref().and_then(|row| row.get("doubt"));
    Ok(state.map(Doubt::from_state))
}

/// Forgets what was recorded of a slot, and the note of its position: the slot is dropped, or about to be
/// created.
///
/// # Errors
/// Also if the slot is recorded and this role may not delete that: what is recorded would be taken
/// for the new slot's.
pub async fn forget(session: &mut Session, slot: &str) -> Result<(), Error> {
    delete(session, slot).await?;
    noted::forget(session, slot).await
}

/// Deletes what was recorded of a slot, also within the transaction that drops it. The note of its position
/// stays: a rollback would not restore it.
///
/// # Errors
/// As those of [`forget`].
pub async fn delete(session: &mut Session, slot: &str) -> Result<(), Error> {
    change(session, slot, &format!("DELETE FROM {TABLE}")).await
}

/// Records that the slot passes over rows: nothing of it counts as carried until the user accepts
/// it. To be called before the slot passes over them.
///
/// # Errors
/// Also if the slot is recorded and this role may not change that.
pub async fn gap(session: &mut Session, slot: &str) -> Result<(), Error> {
    change(session, slot, &format!("UPDATE {TABLE} SET state = 'gap'")).await
}

/// Records that the slot has passed over rows of these tables, unless a gap is recorded already.
pub(crate) async fn moved(
    session: &mut Session,
    slot: &str,
    tables: &[TableName],
) -> Result<(), Error> {
    if tables.is_empty() {
        return Ok(());
    }
    let slot = quote_literal(slot);
    let tables = tables.iter().map(|table| {
        let table = quote_literal(&table.to_string());
        format!("({slot}::name, {table}, 0::oid, 'moved')")
    });
    let tables = tables.collect::<Vec<_>>().join(", ");
    let undoubted = format!("SET state = 'moved' WHERE {TABLE}.state <> 'gap'");
    let sql = format!(
        "INSERT INTO {TABLE} VALUES {tables} ON CONFLICT (slot, \"table\", part) DO UPDATE {undoubted}; \
         UPDATE {TABLE} {undoubted} AND slot = {slot}"
    );
    // One transaction: the server gets both statements in one message.
    session.query(&sql).await?;
    Ok(())
}

/// Returns a table of which the slot is recorded to have passed over rows.
pub(super) async fn passed_over(
    session: &mut Session,
    slot: &str,
) -> Result<Option<(String, Doubt)>, Error> {
    let sql = format!(
        "SELECT \"table\", state FROM {TABLE} WHERE slot = {} AND state IN ('moved', 'gap') LIMIT 1",
        quote_literal(slot)
    );
    let rows = session.query(&sql).await?;
    Ok(rows
        .first()
        .map(|row| (text(&row, "table"), Doubt::from_state(&text(&row, "state")))))
}

/// Keeps the record of these slots as it is until the transaction ends.
///
/// # Errors
/// A serialization failure, if it was changed after the snapshot of the transaction.
pub(super) async fn hold(session: &mut Session, slots: &[String]) -> Result<(), Error> {
    let slots: Vec<String> = slots.iter().map(|slot| quote_literal(slot)).collect();
    let sql = format!(
        "SELECT FROM {TABLE} WHERE slot IN ({}) FOR SHARE",
        slots.join(", ")
    );
    session.query(&sql).await?;
    Ok(())
}

async fn change(session: &mut Session, slot: &str, change: &str) -> Result<(), Error> {
    let slot = quote_literal(slot);
    // A role that has nothing to do with the record needs no privilege if the slot is not in it.
    if is_there(session, "true").await? {
        let recorded = format!("SELECT FROM {TABLE} WHERE slot = {slot} LIMIT 1");
        if !session.query(&recorded).await?.is_empty() {
            let sql = format!("{change} WHERE slot = {slot}");
            session.query(&sql).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The migration of partitions makes the table for the role of the first migration.
    #[test]
    fn the_migration_of_partitions_ends_with_it() {
        let migration = include_str!("../../../../migrations/0003_outbox_partitioned.sql");
        let sql = create_sql(Some("walrelay"));
        assert!(migration.ends_with(&format!("{sql}\n")), "{sql}");
    }
}
