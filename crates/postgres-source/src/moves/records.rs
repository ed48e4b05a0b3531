//! The records of a move in `walrelay_state.move`, and what follows from them for a relay of a server.

use serde::Serialize;
use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session, quote_literal};

use super::TABLE;
use crate::catalog::row::{is_true, parsed, text};
use crate::script::EmitFunction;

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
}
