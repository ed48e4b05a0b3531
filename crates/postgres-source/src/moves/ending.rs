//! The end of a move: by a switch, given up, or with a drain that failed.

use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session, quote_literal};

use super::fence::{lift_sql, lifting};
use super::{MoveRecord, MoveServer, MoveState, TABLE};
use crate::{epoch, kept, position_note};

/// Lifts the fence without a move, and forgets the records: also that of the server which this one is a copy of.
pub async fn abort_move(session: &mut Session, slot: &str) -> Result<(), Error> {
    let mut statements = lift_sql(session, slot).await?;
    statements.push(format!(
        "DELETE FROM {TABLE} WHERE slot = {}",
        quote_literal(slot)
    ));
    lifting(session, statements).await
}

/// Lifts the fence of a drain that failed, and records what stood before it: the record of a former switch, or none.
pub async fn undo_fence(
    session: &mut Session,
    slot: &str,
    server: &MoveServer,
    before: Option<&MoveRecord>,
) -> Result<(), Error> {
    let mut statements = lift_sql(session, slot).await?;
    let own = format!(
        "WHERE slot = {} AND system = {}",
        quote_literal(slot),
        quote_literal(&server.system)
    );
    let switched = before.filter(|before| before.state == MoveState::Switched);
    if let Some(MoveRecord {
        barrier, former, ..
    }) = switched
    {
        statements.push(format!(
            "UPDATE {TABLE} SET state = 'switched', barrier = {}, former = {}, at = now() {own}",
            lsn_or_null(*barrier),
            former
                .as_deref()
                .map_or_else(|| "NULL".to_owned(), quote_literal),
        ));
    } else {
        // The first fence of a database that could not be raised has made no table.
        if kept::has_table(session, "move").await? {
            statements.push(format!("DELETE FROM {TABLE} {own}"));
        }
    }
    lifting(session, statements).await
}

/// Writes a position for SQL.
fn lsn_or_null(lsn: Option<Lsn>) -> String {
    lsn.map_or_else(|| "NULL".to_owned(), |lsn| format!("'{lsn}'"))
}

/// Ends a move on the new server, whose slot is at `position`, in one transaction: the note of the position, the
/// account of sent rows, the record, and last the fence, which is lifted.
///
/// `drained`: the record of the former server. `epoch`: that of the positions of this server's events.
pub async fn finish_move(
    session: &mut Session,
    slot: &str,
    server: &MoveServer,
    drained: &MoveRecord,
    (position, epoch): (Lsn, u8),
) -> Result<(), Error> {
    position_note::forget(session, slot).await?;
    position_note::made(session, slot).await?;
    position_note::set_system(session, slot, &server.system).await?;
    let mut statements = vec!["SET LOCAL synchronous_commit = local".to_owned()];
    statements
        .extend(continue_account(session, slot, server, &drained.server.system, position).await?);
    statements.extend(continue_keys(session, slot, &drained.server.system).await?);
    let drained_slots = format!(
        "SELECT slot FROM {TABLE} WHERE state = 'drained' AND system <> {}",
        quote_literal(&server.system)
    );
    let begin = (&*server.system, position);
    statements.extend(epoch::record_sql(slot, epoch, begin, &drained_slots));
    // The former server's record was of use for the account; a later copy of this server would take it for its own.
    statements.push(format!(
        "DELETE FROM {TABLE} WHERE slot = {} AND system <> {}",
        quote_literal(slot),
        quote_literal(&server.system)
    ));
    statements.extend(lift_sql(session, slot).await?);
    let barrier = lsn_or_null(drained.barrier);
    statements.push(format!(
        "INSERT INTO {TABLE} (slot, state, system, timeline, barrier, former) VALUES ({}, 'switched', {system}, \
         {timeline}, {barrier}, {former}) ON CONFLICT (slot, system) DO UPDATE SET state = excluded.state, \
         timeline = excluded.timeline, barrier = excluded.barrier, former = excluded.former, at = now()",
        quote_literal(slot),
        system = quote_literal(&server.system),
        timeline = server.timeline,
        former = quote_literal(&drained.server.system),
    ));
    lifting(session, statements).await
}

/// Returns SQL by which the account of sent rows, if the database has one, goes on on this server: under the fence
/// nothing was inserted since it was written. Tables have other OIDs after a restored dump.
async fn continue_account(
    session: &mut Session,
    slot: &str,
    server: &MoveServer,
    former: &str,
    position: Lsn,
) -> Result<Vec<String>, Error> {
    if !kept::has_table(session, "accounts").await? {
        return Ok(Vec::new());
    }
    let slot = quote_literal(slot);
    let relation = RELATION;
    let others = "account.relation = name.key::oid";
    let from = former_relations(&slot, former);
    Ok(vec![
        // All are deleted before the first is inserted (ORDER BY), because OIDs may be swapped.
        format!(
            "WITH former AS (DELETE FROM walrelay_state.account AS account USING {from} AND account.slot = {slot} \
             AND {others} AND {relation} IS NOT NULL RETURNING account.*, {relation} AS now) \
             INSERT INTO walrelay_state.account SELECT slot, now, columns, bucket, rows, high, low, diverted, \
             diverted_high, diverted_low, diverted_to FROM former ORDER BY now"
        ),
        format!(
            "UPDATE walrelay_state.accounts SET system = {}, through = '{position}', opening = DEFAULT \
             WHERE slot = {slot}",
            quote_literal(&server.system)
        ),
    ])
}

/// The OID that a table of the former server has here, by its name.
const RELATION: &str =
    "pg_catalog.to_regclass(pg_catalog.format('%I.%I', name.value ->> 0, name.value ->> 1))::oid";

/// Writes what follows FROM or USING: the OIDs of the former server's tables, each with the name. `slot`: quoted.
fn former_relations(slot: &str, former: &str) -> String {
    format!(
        "{TABLE} AS moved, pg_catalog.jsonb_each(moved.relations) AS name WHERE moved.slot = {slot} \
         AND moved.system = {}",
        quote_literal(former)
    )
}

/// Returns SQL that gives the stored keys of rows the OIDs that their tables have on this server. Their transactions have
/// no meaning here, so they become unknown ones.
async fn continue_keys(
    session: &mut Session,
    slot: &str,
    former: &str,
) -> Result<Vec<String>, Error> {
    let slot = quote_literal(slot);
    let from = former_relations(&slot, former);
    let changed = format!(
        "{from} AND stored.slot = {slot} AND stored.relation = name.key::oid AND {RELATION} IS NOT NULL \
         AND ({RELATION} <> stored.relation OR stored.xid <> 0)"
    );
    let tables = [
        (
            "unmarked",
            format!(
                "WITH former AS (DELETE FROM walrelay_state.unmarked AS stored USING {changed} \
                 RETURNING stored.*, {RELATION} AS now) INSERT INTO walrelay_state.unmarked \
                 (slot, relation, \"table\", key_columns, row_columns, xid, key, hash, since) \
                 SELECT slot, now, \"table\", key_columns, row_columns, 0, key, hash, since FROM former"
            ),
        ),
        (
            "dead",
            format!(
                "UPDATE walrelay_state.dead AS stored SET relation = {RELATION}, xid = 0 FROM {changed}"
            ),
        ),
    ];
    let mut statements = Vec::new();
    for (table, sql) in tables {
        // Another relay's role may have created the table, for keys of its own: then this role need not see any.
        let may_read = format!(
            "SELECT FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass('walrelay_state.{table}') \
             AND pg_catalog.has_column_privilege(c.oid, 'slot', 'SELECT')"
        );
        let keys = format!("SELECT FROM walrelay_state.{table} WHERE slot = {slot} LIMIT 1");
        if kept::has_table(session, table).await?
            && !session.query(&may_read).await?.is_empty()
            && !session.query(&keys).await?.is_empty()
        {
            statements.push(sql);
        }
    }
    Ok(statements)
}
