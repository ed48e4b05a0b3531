//! The fence: triggers at the outbox tables that refuse inserts.

use std::time::Duration;

use tokio::time::sleep;
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::{LOCKED, MoveServer, MoveState, TABLE};
use crate::catalog::row::text;
use crate::confirmation::insert_position;
use crate::script::EmitFunction;
use crate::sent_rows::account::relations;
use crate::{position_note, script, state_version};

/// The time that services wait behind one attempt to lift a fence, and the attempts.
const LIFT_TIMEOUT: &str = "SET LOCAL lock_timeout = '2s'";
const LIFT_ATTEMPTS: u32 = 15;
/// Pause between two attempts, in which services read.
const LIFT_PAUSE: Duration = Duration::from_millis(500);
const FUNCTION: &str = "walrelay_state.refuse_while_moving";

/// Returns SQL that creates schema, table and function. Every role may read the record: a relay of any role must
/// know of it.
fn create_sql() -> String {
    let schema = state_version::create_sql();
    format!(
        "{schema}\n\
         GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\n\
         CREATE TABLE IF NOT EXISTS {TABLE} (\n    slot      name NOT NULL,    -- the relay's slot\n    \
         state     text NOT NULL,    -- prepared, fenced, drained or switched\n    \
         system    text NOT NULL,    -- the system identifier of the server that wrote this\n    \
         timeline  bigint NOT NULL,\n    \
         barrier   pg_lsn,           -- every event of the former server was committed before it\n    \
         former    text,             -- the system identifier of the former server\n    \
         relations jsonb NOT NULL DEFAULT '{{}}', -- the names of the outbox tables and partitions, by their OIDs\n    \
         at        timestamptz NOT NULL DEFAULT now(),\n    \
         PRIMARY KEY (slot, system) -- a copy, or a subscription, has the rows of both servers\n);\n\
         GRANT SELECT ON {TABLE} TO PUBLIC;\n\
         CREATE OR REPLACE FUNCTION {FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $fence$\n\
         BEGIN\n    \
         RAISE EXCEPTION 'the outbox %.% is being moved to another server', TG_TABLE_SCHEMA, TG_TABLE_NAME\n        \
         USING ERRCODE = 'object_not_in_prerequisite_state',\n        \
         HINT = 'Try again later. \"walrelay move abort\" lifts the fence.';\n\
         END $fence$;"
    )
}

/// Returns the name of the trigger at each outbox table. Each slot has its own: the outbox of several relays is
/// open only when the last of them is switched.
fn trigger(slot: &str) -> String {
    format!("walrelay_move_{:016x}", position_note::number_of(slot))
}

/// Returns the SQL of a slot's fence, for `--dry-run`.
pub fn fence_sql(slot: &str, tables: &[TableName], state: MoveState) -> Vec<String> {
    let trigger = quote_ident(&trigger(slot));
    let fences = tables.iter().flat_map(|table| {
        // outbox.emit writes no row.
        let each = if *table == EmitFunction::gate() {
            "STATEMENT"
        } else {
            "ROW"
        };
        let table = script::table(table);
        let create = format!(
            "CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT ON {table} FOR EACH {each} EXECUTE FUNCTION {FUNCTION}()"
        );
        // Rows that a subscription applies are no events of this server.
        let always = (state != MoveState::Prepared).then(|| format!("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}"));
        [Some(create), always].into_iter().flatten()
    });
    fences.collect()
}

/// Fences the outbox tables, and records that. Returns a position behind every event that was committed before.
///
/// `state`: [`MoveState::Fenced`] refuses also rows that a subscription applies, [`MoveState::Prepared`] does not.
///
/// # Errors
/// `55P03` if a transaction that has inserted into a table does not end within this time.
pub async fn raise_fence(
    session: &mut Session,
    slot: &str,
    tables: &[TableName],
    server: &MoveServer,
    state: MoveState,
    lock_timeout: Duration,
) -> Result<Lsn, Error> {
    let mut statements = vec![
        // The fence must outlive a crash of the server.
        "SET LOCAL synchronous_commit = local".to_owned(),
        format!(
            "SET LOCAL lock_timeout = {}",
            lock_timeout.as_millis().max(1)
        ),
        position_note::LOCK.to_owned(),
        create_sql(),
    ];
    statements.extend(fence_sql(slot, tables, state));
    let names = format!(
        "SELECT coalesce(jsonb_object_agg(c.oid::text, jsonb_build_array(n.nspname, c.relname)), '{{}}') \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({})",
        all_relations(tables)
    );
    statements.push(format!(
        "INSERT INTO {TABLE} AS known (slot, state, system, timeline, relations) VALUES ({}, '{}', {}, {}, ({names})) \
         ON CONFLICT (slot, system) DO UPDATE SET state = excluded.state, \
         timeline = excluded.timeline, barrier = NULL, former = NULL, relations = excluded.relations, at = now()",
        quote_literal(slot),
        state.name(),
        quote_literal(&server.system),
        server.timeline,
    ));
    in_transaction(session, &statements).await?;
    insert_position(session).await
}

/// Executes statements that lift a fence in one transaction, in attempts: nothing waits behind one of them for long.
pub(super) async fn lifting(
    session: &mut Session,
    mut statements: Vec<String>,
) -> Result<(), Error> {
    statements.insert(0, LIFT_TIMEOUT.to_owned());
    let mut attempts = 1;
    loop {
        match in_transaction(session, &statements).await {
            Err(error) if error.sqlstate() == Some(LOCKED) && attempts < LIFT_ATTEMPTS => {
                attempts += 1;
                sleep(LIFT_PAUSE).await;
            }
            ended => return ended,
        }
    }
}

/// Executes statements in one transaction.
async fn in_transaction(session: &mut Session, statements: &[String]) -> Result<(), Error> {
    let [begin, commit] = ["BEGIN", "COMMIT"].map(str::to_owned);
    let whole = [&[begin], statements, &[commit]].concat();
    let done = session.query_all(&whole).await;
    if done.is_err() {
        let _ = session.query("ROLLBACK").await;
    }
    done.map(drop)
}

/// Writes a subquery of the OIDs of all these tables and their partitions.
pub fn all_relations(tables: &[TableName]) -> String {
    let of_each: Vec<String> = tables.iter().map(relations).collect();
    of_each.join(" UNION ")
}

/// Returns the tables, and partitions, that have no fence of this slot which refuses the inserts of this session.
pub async fn unfenced(
    session: &mut Session,
    slot: &str,
    tables: &[TableName],
) -> Result<Vec<TableName>, Error> {
    let sql = format!(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({}) AND NOT EXISTS \
         (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = {trigger} \
         AND t.tgenabled IN ('O', 'A') AND t.tgfoid = pg_catalog.to_regproc('{FUNCTION}')) ORDER BY 1, 2",
        all_relations(tables),
        trigger = quote_literal(&trigger(slot)),
    );
    let rows = session.query(&sql).await?;
    let names = rows
        .iter()
        .map(|row| TableName::new(text(&row, "nspname"), text(&row, "relname")));
    Ok(names.collect())
}

/// Returns SQL that lifts the fence of a slot, wherever it is: the configuration may have changed since it was raised.
pub async fn lift_sql(session: &mut Session, slot: &str) -> Result<Vec<String>, Error> {
    let trigger = trigger(slot);
    // Triggers of partitions are dropped with that of their root.
    let sql = format!(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE t.tgname = {} AND t.tgparentid = 0 \
         AND t.tgfoid = pg_catalog.to_regproc('{FUNCTION}') ORDER BY 1, 2",
        quote_literal(&trigger)
    );
    let rows = session.query(&sql).await?;
    let lifts = rows.iter().map(|row| {
        let table = TableName::new(text(&row, "nspname"), text(&row, "relname"));
        format!(
            "DROP TRIGGER IF EXISTS {} ON {}",
            quote_ident(&trigger),
            script::table(&table)
        )
    });
    Ok(lifts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_a_trigger_whose_name_is_short_enough() {
        let names = ["a", "b", &"x".repeat(63)].map(trigger);
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
    }
}
