//! A move of the outbox to another server, as the databases of both servers record it: a fence at the outbox
//! tables, and a row of `walrelay_state.move`.
//!
//! The fence is a trigger which refuses each insert. Creating it waits for all transactions that have inserted
//! into the table, so once it exists, every event is committed before the end of the WAL, the barrier. When the
//! slot has confirmed the barrier under the fence, the destination has acknowledged every event of the server.
//! Fence and record are part of the database: `pg_upgrade`, a physical copy and a dump that is made later carry
//! them, so the copy itself shows that nothing was written in between
//! (docs/adr/0070-a-move-is-fenced-in-the-database.md).

mod rows;
mod unfinished;

use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::catalog::row::{is_true, parsed, text};
use super::confirmation::insert_position;
use super::script::EmitFunction;
use super::sent_rows::account::relations;
use super::{epoch, kept, position_note, script, state_version};

pub use rows::{MissingRows, missing_rows, missing_rows_by_count};
pub use unfinished::{UnfinishedMove, find_unfinished_move};

/// The time that services wait behind one attempt to lift a fence, and the attempts.
const LIFT_TIMEOUT: &str = "SET LOCAL lock_timeout = '2s'";
const LIFT_ATTEMPTS: u32 = 15;
/// Pause between two attempts, in which services read.
const LIFT_PAUSE: Duration = Duration::from_millis(500);
/// SQLSTATE `lock_not_available`.
pub const LOCKED: &str = "55P03";
const FUNCTION: &str = "walrelay_state.refuse_while_moving";
pub(crate) const TABLE: &str = "walrelay_state.move";

/// The state of a move on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveState {
    /// The new server, which gets the rows by replication: its outbox is fenced until the switch.
    Prepared,
    /// The old server: its outbox is fenced, and its slot may not have confirmed everything.
    Fenced,
    /// The slot has confirmed the barrier under the fence.
    Drained,
    /// This server has the outbox now, and its fence is lifted.
    Switched,
}

impl MoveState {
    /// Returns the word that the table holds.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Fenced => "fenced",
            Self::Drained => "drained",
            Self::Switched => "switched",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Prepared, Self::Fenced, Self::Drained, Self::Switched];
        all.into_iter().find(|state| state.name() == name)
    }
}

/// The server on which a state was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MoveServer {
    /// Its `system_identifier`.
    pub system: String,
    /// Its timeline.
    pub timeline: u32,
}

/// The record of one server about a slot's move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MoveRecord {
    /// The state.
    pub state: MoveState,
    /// The server that wrote the record.
    pub server: MoveServer,
    /// Drained: every event was committed before it. Switched: the barrier of the former server.
    pub barrier: Option<Lsn>,
    /// Switched: the `system_identifier` of the former server.
    pub former: Option<String>,
    /// The gate of `outbox.emit` was fenced, too. It may have been made since.
    pub has_gate: bool,
    /// When the state was recorded, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The records of a slot's move in one database. A copy of the other server's database has those of both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MoveRecords(Vec<MoveRecord>);

impl MoveRecords {
    /// Returns the record of the server with this `system_identifier`.
    pub fn find(&self, system: &str) -> Option<&MoveRecord> {
        self.0.iter().find(|record| record.server.system == system)
    }

    /// Returns the record of this server itself. That of the server which it was copied from, or promoted from, is
    /// another one.
    pub fn own(&self, here: &MoveServer) -> Option<&MoveRecord> {
        self.find(&here.system)
            .filter(|record| record.server == *here)
    }

    /// Returns the last record of another server whose outbox was fenced: this database is a copy of its, or of one
    /// that has its rows.
    pub fn copied(&self, here: &MoveServer) -> Option<&MoveRecord> {
        let fenced = |record: &&MoveRecord| {
            record.server != *here && matches!(record.state, MoveState::Fenced | MoveState::Drained)
        };
        self.0.iter().find(fenced)
    }

    /// Returns true if the outbox was drained without the gate of `outbox.emit`: it was made since, or its writers were
    /// stopped (`--emitters-stopped`).
    pub fn drained_without_gate(&self, here: &MoveServer) -> bool {
        let record = self.own(here).or_else(|| self.copied(here));
        record.is_some_and(|record| record.state == MoveState::Drained && !record.has_gate)
    }

    /// Returns the state for which a relay of this server must wait for the switch: what is in the log here may have
    /// been sent from the former server. A standby that was promoted during the drain has events that were not.
    pub fn awaited(&self, here: &MoveServer) -> Option<MoveState> {
        if let Some(own) = self.own(here) {
            return Some(own.state).filter(|state| *state == MoveState::Prepared);
        }
        let mut unfinished = self.0.iter().filter(|record| match record.state {
            MoveState::Drained => true,
            MoveState::Fenced => record.server.system != here.system,
            MoveState::Prepared | MoveState::Switched => false,
        });
        unfinished.next().map(|record| record.state)
    }

    /// Returns the `system_identifier` of the former server if the outbox was moved from it to this one: every event
    /// of it was delivered before. A promoted standby has that of its former primary.
    pub fn former_of(&self, here: &MoveServer) -> Option<String> {
        let own = self.own(here);
        let switched = own.filter(|record| record.state == MoveState::Switched);
        switched.and_then(|record| record.former.clone())
    }
}

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

/// Waits until no other step of a move of this slot works on the database, and locks others out until the session
/// ends. A step that was killed holds the lock until the server has ended its statement.
///
/// # Errors
/// [`LOCKED`] after this time.
pub async fn lock_move(session: &mut Session, slot: &str, patience: Duration) -> Result<(), Error> {
    let lock = format!(
        "SELECT pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended({}, 0))",
        quote_literal(&format!("walrelay move {slot}"))
    );
    let limit = |limit: u128| format!("SET lock_timeout = {limit}");
    session.query(&limit(patience.as_millis().max(1))).await?;
    session.query(&lock).await?;
    session.query(&limit(0)).await?;
    Ok(())
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

/// The functions that write events as messages, as a fence meets them. A database has one of each, and so one prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emitters {
    /// The table that both write to exists, and one of them writes messages with this prefix. The gate of functions
    /// with another prefix is of another relay.
    pub have_gate: bool,
    /// Both functions are those of this version, for this prefix, and write to it.
    pub are_gated: bool,
    /// Replacing both harms no other relay: each that exists writes messages with this prefix, and one does.
    pub are_own: bool,
}

/// Looks at the functions that write events with this prefix as messages.
pub async fn find_emitters(session: &mut Session, prefix: &str) -> Result<Emitters, Error> {
    let gate = quote_literal(&script::table(&EmitFunction::gate()));
    let exists = format!("SELECT pg_catalog.to_regclass({gate}) IS NOT NULL AS there");
    let rows = session.query(&exists).await?;
    let has_gate = rows.first().is_some_and(|row| is_true(&row, "there"));
    let mut are_gated = has_gate;
    let (mut own, mut others) = (0, 0);
    for function in EmitFunction::ALL {
        let rows = session.query(function.find()).await?;
        let body = rows.first();
        let body = body.and_then(|row| row.get("prosrc").map(str::to_owned));
        match &body {
            Some(body) if EmitFunction::writes(body, prefix) => own += 1,
            Some(_) => others += 1,
            None => {}
        }
        are_gated &= body.is_some_and(|body| function.is(&body, prefix));
    }
    Ok(Emitters {
        have_gate: has_gate && own > 0,
        are_gated,
        are_own: own > 0 && others == 0,
    })
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

/// Returns the transaction ID behind those of all transactions that have begun to write.
pub async fn next_transaction(session: &mut Session) -> Result<u64, Error> {
    let next = snapshot_bound(session, "xmax").await?;
    Ok(next.unwrap_or(u64::MAX))
}

/// Returns a position behind every transaction before this ID; `None` if one has not ended. Those of all databases
/// count, and prepared ones.
pub async fn position_behind(session: &mut Session, next: u64) -> Result<Option<Lsn>, Error> {
    let oldest = snapshot_bound(session, "xmin").await?;
    if oldest.is_none_or(|oldest| oldest < next) {
        return Ok(None);
    }
    insert_position(session).await.map(Some)
}

async fn snapshot_bound(session: &mut Session, bound: &str) -> Result<Option<u64>, Error> {
    let sql =
        format!("SELECT pg_catalog.pg_snapshot_{bound}(pg_catalog.pg_current_snapshot()) AS bound");
    let rows = session.query(&sql).await?;
    Ok(rows.first().and_then(|row| parsed(&row, "bound")))
}

/// Executes statements that lift a fence in one transaction, in attempts: nothing waits behind one of them for long.
async fn lifting(session: &mut Session, mut statements: Vec<String>) -> Result<(), Error> {
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

/// Reads the records of a slot's move, newest first. None if this role may not read them.
pub async fn find_move(session: &mut Session, slot: &str) -> Result<MoveRecords, Error> {
    let exists = "SELECT coalesce(pg_catalog.has_schema_privilege('walrelay_state', 'USAGE') \
         AND pg_catalog.has_table_privilege(c.oid, 'SELECT'), false) AS may FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'walrelay_state' AND c.relname = 'move' AND c.relkind = 'r'";
    let rows = session.query(exists).await?;
    if !rows.first().is_some_and(|row| is_true(&row, "may")) {
        return Ok(MoveRecords::default());
    }
    let gate = EmitFunction::gate();
    let sql = format!(
        "SELECT state, system, timeline, barrier, former, (1000 * extract(epoch FROM at))::int8 AS at_ms, EXISTS (SELECT FROM pg_catalog.jsonb_each(relations) AS name \
         WHERE name.value = pg_catalog.jsonb_build_array({}, {})) AS has_gate FROM {TABLE} WHERE slot = {} \
         ORDER BY at DESC",
        quote_literal(&gate.schema),
        quote_literal(&gate.name),
        quote_literal(slot)
    );
    let rows = session.query(&sql).await?;
    let records = rows.iter().filter_map(|row| {
        Some(MoveRecord {
            state: MoveState::from_name(row.get("state")?)?,
            server: MoveServer {
                system: text(&row, "system"),
                timeline: parsed(&row, "timeline")?,
            },
            barrier: parsed(&row, "barrier"),
            former: row.get("former").map(str::to_owned),
            has_gate: is_true(&row, "has_gate"),
            at_ms: parsed(&row, "at_ms").unwrap_or_default(),
        })
    });
    Ok(MoveRecords(records.collect()))
}

/// Records that the slot of this server has confirmed the barrier under the fence. Returns false if the record is no
/// longer that of a fenced server.
pub async fn record_drained(
    session: &mut Session,
    slot: &str,
    server: &MoveServer,
    barrier: Lsn,
) -> Result<bool, Error> {
    let sql = format!(
        "UPDATE {TABLE} SET state = 'drained', barrier = '{barrier}', at = now() \
         WHERE slot = {} AND system = {} AND state = 'fenced' RETURNING slot",
        quote_literal(slot),
        quote_literal(&server.system),
    );
    Ok(!session.query(&sql).await?.is_empty())
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
    statements.extend(epoch::record_sql(slot, epoch, &server.system, position));
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
    let relation = "pg_catalog.to_regclass(pg_catalog.format('%I.%I', name.value ->> 0, name.value ->> 1))::oid";
    let others = "account.relation = name.key::oid";
    let from = format!(
        "{TABLE} AS moved, pg_catalog.jsonb_each(moved.relations) AS name WHERE moved.slot = {slot} \
         AND moved.system = {}",
        quote_literal(former)
    );
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

/// A subscription that fills an outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its name.
    pub name: String,
    /// The slot on the publisher. Its confirmed position is what was applied.
    pub slot: String,
    /// The initial copy of the outbox tables has ended.
    pub is_copied: bool,
}

/// Returns the subscriptions of this database that fill these tables.
pub async fn subscriptions(
    session: &mut Session,
    tables: &[TableName],
) -> Result<Vec<Subscription>, Error> {
    // Columns but the connection string are public (pg_subscription).
    let sql = format!(
        "SELECT s.subname AS name, coalesce(s.subslotname, '') AS slot, bool_and(r.srsubstate = 'r') AS is_copied \
         FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid \
         WHERE r.srrelid IN ({}) GROUP BY s.subname, s.subslotname ORDER BY 1",
        all_relations(tables)
    );
    let rows = session.query(&sql).await?;
    let found = rows.iter().map(|row| Subscription {
        name: text(&row, "name"),
        slot: text(&row, "slot"),
        is_copied: is_true(&row, "is_copied"),
    });
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_waits_on_a_copy_of_a_drained_server_and_on_no_server_whose_events_are_its_own() {
        let server = |(system, timeline): (&str, u32)| MoveServer {
            system: system.to_owned(),
            timeline,
        };
        let record = |state, of| MoveRecord {
            state,
            server: server(of),
            barrier: None,
            former: Some("7".to_owned()),
            has_gate: false,
            at_ms: 0,
        };
        let (old, promoted, other) = (("7", 1), ("7", 2), ("8", 1));
        for (state, of, here, waits) in [
            (MoveState::Fenced, old, old, false),
            (MoveState::Drained, old, old, false),
            // Promoted before the drain had ended: its slot has events that were not sent.
            (MoveState::Fenced, old, promoted, false),
            (MoveState::Drained, old, promoted, true),
            (MoveState::Fenced, old, other, true),
            (MoveState::Drained, old, other, true),
            (MoveState::Prepared, other, other, true),
            (MoveState::Prepared, other, old, false),
            (MoveState::Switched, other, other, false),
        ] {
            let records = MoveRecords(vec![record(state, of)]);
            let awaited = records.awaited(&server(here));
            assert_eq!(awaited, waits.then_some(state), "{state:?} {of:?} {here:?}");
            if waits {
                let unfinished = records.unfinished(&server(here)).expect("a state");
                let is_own = state == MoveState::Prepared;
                assert_eq!((unfinished.state, unfinished.is_own), (state, is_own));
            }
            let former = records.former_of(&server(here));
            let is_moved = state == MoveState::Switched && of == here;
            assert_eq!(former.is_some(), is_moved, "{state:?} {of:?} {here:?}");
        }
    }

    #[test]
    fn each_slot_has_a_trigger_whose_name_is_short_enough() {
        let names = ["a", "b", &"x".repeat(63)].map(trigger);
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
    }
}
