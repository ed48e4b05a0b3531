//! A move that has not ended on a server, for `check`, `status` and the page.

use std::fmt;

use walrelay_pgoutput::PgTimestamp;
use walrelay_walsender::{Error, Session};

use super::{MoveRecord, MoveRecords, MoveServer, MoveState, find_move};
use crate::catalog::row::{parsed, text};

/// A move that has not ended on this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedMove {
    /// The recorded state.
    pub state: MoveState,
    /// This server has recorded it. Otherwise the database is a copy of one that has.
    pub is_own: bool,
    /// The time of the record, in milliseconds since 1970.
    pub since_ms: u64,
}

impl UnfinishedMove {
    /// Returns how an operator finishes the move, and how it is given up.
    pub fn remedy(&self) -> &'static str {
        self.state.remedy(self.is_own)
    }
}

impl fmt::Display for UnfinishedMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = i64::try_from(self.since_ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        let since = PgTimestamp::from_unix_micros(micros).unwrap_or(PgTimestamp::new(0));
        let of = if self.is_own {
            ""
        } else {
            "the database is a copy: "
        };
        let state = self.state.name();
        write!(
            f,
            "{of}the outbox is being moved ({state} since {since}): inserts into it fail here"
        )
    }
}

impl MoveState {
    /// Returns how an operator goes on from this state, and how the move is given up. `is_own`: this server has
    /// recorded the state. Otherwise its database is a copy of one that has.
    pub fn remedy(self, is_own: bool) -> &'static str {
        match (self, is_own) {
            (Self::Prepared, _) => {
                "go on: run walrelay move drain on the old server, then walrelay move switch --from here, and the relay \
                 of this server starts by itself; or give up: walrelay move abort on both servers"
            }
            (Self::Fenced, true) => {
                "go on: run walrelay move drain again; or give up: walrelay move abort lifts the fence"
            }
            (Self::Fenced, false) => {
                "this copy was made before the drain ended: drain the old server and copy it again; or give up: \
                 walrelay move abort"
            }
            (Self::Drained, true) => {
                "go on: run walrelay move switch on the new server; or give up, if no other server was switched to: \
                 walrelay move abort lifts the fence"
            }
            (Self::Drained, false) => {
                "go on: run walrelay move switch with this configuration, and the relay starts by itself; or give up: \
                 stop the relay of this copy, and run walrelay move abort on the old server"
            }
            (Self::Switched, _) => "nothing is left to do: see walrelay move verify",
        }
    }
}

impl MoveRecords {
    /// Returns the move that has not ended on this server.
    pub fn unfinished(&self, here: &MoveServer) -> Option<UnfinishedMove> {
        let of = |record: &MoveRecord, is_own| UnfinishedMove {
            state: record.state,
            is_own,
            since_ms: record.at_ms,
        };
        match self.own(here) {
            Some(own) if own.state == MoveState::Switched => None,
            Some(own) => Some(of(own, true)),
            None => self.copied(here).map(|copied| of(copied, false)),
        }
    }
}

/// Reads the move of a slot's outbox that has not ended on this server. None on a standby, and if this role may not
/// read the record.
pub async fn find_unfinished_move(
    session: &mut Session,
    slot: &str,
) -> Result<Option<UnfinishedMove>, Error> {
    let records = find_move(session, slot).await?;
    if records == MoveRecords::default() {
        return Ok(None);
    }
    let may = "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') \
         AND NOT pg_catalog.pg_is_in_recovery() AS may";
    let rows = session.query(may).await?;
    if rows.first().is_none_or(|row| row.get("may") != Some("t")) {
        return Ok(None);
    }
    // The name of a WAL segment begins with the timeline, in eight hexadecimal digits.
    let here = "SELECT system_identifier AS system, ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(\
         pg_catalog.pg_current_wal_flush_lsn()), 8))::bit(32)::int8 AS timeline FROM pg_catalog.pg_control_system()";
    let rows = session.query(here).await?;
    let here = rows.first().and_then(|row| {
        Some(MoveServer {
            system: text(&row, "system"),
            timeline: parsed(&row, "timeline")?,
        })
    });
    Ok(here.and_then(|here| records.unfinished(&here)))
}
