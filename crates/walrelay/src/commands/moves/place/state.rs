//! [`PlaceState`]: the state of a server in a move, and the checks of it.

use std::fmt::Write as _;

use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::SlotRow;
use walrelay_postgres_source::epoch::Epoch;
use walrelay_postgres_source::moves::{Emitters, MoveRecord, MoveRecords, MoveServer, MoveState};
use walrelay_relay::TableName;
use walrelay_walsender::quote_ident;

use super::Place;

/// The state of a server: its record of the move, its outbox and its slot.
pub(in crate::commands::moves) struct PlaceState {
    /// The server itself.
    pub(in crate::commands::moves) here: MoveServer,
    pub(in crate::commands::moves) records: MoveRecords,
    /// What a fence must be at: the outbox tables, and the gate of `outbox.emit` if that writes the relay's prefix.
    pub(in crate::commands::moves) fenced: Vec<TableName>,
    /// The functions that write events as messages, if messages are events.
    pub(in crate::commands::moves) emitters: Option<Emitters>,
    /// Outbox tables and partitions without a fence.
    pub(in crate::commands::moves) unfenced: Vec<TableName>,
    pub(in crate::commands::moves) slot: Option<SlotRow>,
    /// The name of the database.
    pub(super) database: Option<String>,
    /// The epoch that the positions of its events have.
    pub(in crate::commands::moves) epoch: Epoch,
    /// The end of its log.
    pub(in crate::commands::moves) flushed: Lsn,
    pub(super) has_publication: bool,
    /// An UPDATE may make a row an event: the publication carries updates, of rows that fit a filter.
    pub(super) makes_events_of_updates: bool,
    pub(super) in_recovery: bool,
}

impl PlaceState {
    /// Returns the record of the former server, if this database is a copy of its.
    pub(in crate::commands::moves) fn copied(&self) -> Option<&MoveRecord> {
        let copied = self.records.copied(&self.here);
        // A server with a record of its own may have got the other one by a subscription.
        copied.filter(|_| self.own().is_none())
    }

    /// Returns the record of this server itself.
    pub(in crate::commands::moves) fn own(&self) -> Option<&MoveRecord> {
        self.records.own(&self.here)
    }

    /// Returns the state that this server itself has recorded.
    pub(in crate::commands::moves) fn state(&self) -> Option<MoveState> {
        self.own().map(|own| own.state)
    }

    /// Returns true if this server itself was drained, and its fence has stood since.
    pub(in crate::commands::moves) fn is_drained(&self) -> bool {
        self.state() == Some(MoveState::Drained) && self.unfenced.is_empty()
    }

    /// Fails if the outbox of this server is not fenced whole.
    pub(in crate::commands::moves) fn check_fence(&self, remedy: &str) -> Result<(), Failure> {
        if self.unfenced.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.unfenced.iter().map(ToString::to_string).collect();
        let what = format!(
            "{} can be written: nothing shows that every event of it is delivered",
            names.join(", ")
        );
        Err(Failure::new("move-unfenced", Exit::Config, what).remedy(remedy))
    }

    /// Fails if messages are events that a fence does not refuse.
    pub(in crate::commands::moves) fn check_emitters(&self) -> Result<(), Failure> {
        let Some(emitters) = self.emitters.filter(|emitters| !emitters.are_gated) else {
            return Ok(());
        };
        let stopped =
            "stop the services that write messages, until the switch, and say --emitters-stopped";
        let (why, remedy) = if emitters.are_own {
            let replace = "replace both by the SQL of walrelay init --dry-run";
            ("of this version", format!("{replace}; or {stopped}"))
        } else {
            // Replaced, they would no longer write the events of the relay whose prefix they have.
            ("for its prefix", stopped.to_owned())
        };
        let what = format!(
            "[source.messages] is set, and outbox.emit or outbox.emit_all of this database is not the function {why}, \
             which a fence makes fail"
        );
        Err(Failure::new("move-messages", Exit::Usage, what).remedy(remedy))
    }

    /// Fails if an UPDATE may make a row an event: a fence refuses only inserts, because marks are updates.
    fn check_publication(&self, place: &Place) -> Result<(), Failure> {
        if !self.makes_events_of_updates {
            return Ok(());
        }
        let name = &place.server.config.source.publication;
        let what = format!(
            "publication {name} carries updates and has a row filter: an UPDATE that makes a row fit is an event, \
             which no fence refuses"
        );
        let name = quote_ident(name);
        Err(Failure::new("move-publication", Exit::Config, what)
            .remedy(format!("ALTER PUBLICATION {name} SET (publish = 'insert')")))
    }

    /// Fails if the slot is not that of a relay of this database. Slots of a server share their names, and a switch
    /// replaces this one.
    fn check_slot(&self) -> Result<(), Failure> {
        let Some(slot) = &self.slot else {
            return Ok(());
        };
        if slot.database == self.database && slot.plugin.as_deref() == Some("pgoutput") {
            return Ok(());
        }
        let what = format!(
            "slot {} of this server is a {} slot of {}, and not of this outbox",
            slot.name,
            slot.kind,
            slot.database.as_deref().unwrap_or("no database")
        );
        Err(Failure::new("move-slot", Exit::Config, what).remedy(
            "drop the slot only if nothing reads it any more; otherwise run walrelay move abort on both servers, and begin \
             again with another name in [source] slot",
        ))
    }

    /// Fails if the server cannot be switched to: a standby, one without a publication, or with a slot of another
    /// relay.
    pub(in crate::commands::moves) fn check_new(&self, place: &Place) -> Result<(), Failure> {
        if self.in_recovery {
            let what = "this server is a standby";
            return Err(Failure::new("move-standby", Exit::Config, what)
                .remedy("promote it first: the fence keeps its outbox closed meanwhile"));
        }
        if !self.has_publication {
            let name = &place.server.config.source.publication;
            let what = format!("publication {name} is missing on this server");
            return Err(Failure::new("move-publication", Exit::Config, what)
                .remedy("run walrelay init with this configuration"));
        }
        self.check_publication(place)?;
        self.check_slot()?;
        if let Some(pid) = self.slot.as_ref().and_then(|slot| slot.active_pid) {
            let what = format!(
                "slot {} of this server is being read by server process {pid}",
                place.server.slot()
            );
            return Err(Failure::new("move-busy", Exit::Temporary, what)
                .remedy("stop the relay of this server, and start it after the switch"));
        }
        Ok(())
    }

    /// Fails if the server cannot be drained: a standby, or one without a slot that is intact.
    pub(in crate::commands::moves) fn check_old(&self, place: &Place) -> Result<(), Failure> {
        let slot = place.server.slot();
        if self.in_recovery {
            let what = "this server is a standby: its outbox cannot be fenced";
            return Err(Failure::new("move-standby", Exit::Config, what)
                .remedy("drain the primary; the relay may read the standby's slot"));
        }
        if self.slot.as_ref().is_none_or(SlotRow::is_lost) {
            let what = format!(
                "slot {slot} is missing or lost: nothing shows which events were delivered"
            );
            return Err(Failure::new("move-slot", Exit::Config, what)
                .remedy("see to the relay first: walrelay check"));
        }
        self.check_publication(place)?;
        if self.state() == Some(MoveState::Prepared) {
            let what = "this server was prepared as the new one";
            return Err(Failure::new("move-state", Exit::Usage, what)
                .remedy("drain the old server; walrelay move abort gives the preparation up"));
        }
        if let Some(copied) = self
            .copied()
            .filter(|copied| copied.server.system != self.here.system)
        {
            let what = format!(
                "this server is a copy of one whose outbox is {}",
                copied.state.name()
            );
            return Err(Failure::new("move-state", Exit::Usage, what)
                .remedy("run walrelay move switch here, or walrelay move abort"));
        }
        Ok(())
    }

    /// Returns what is in the way of the next step on this server.
    pub(in crate::commands::moves) fn obstacles(&self, place: &Place) -> Vec<Failure> {
        let is_new = self.state() == Some(MoveState::Prepared)
            || self
                .copied()
                .is_some_and(|copied| copied.state == MoveState::Drained);
        let checked = if is_new {
            self.check_new(place)
        } else if self.is_drained() {
            // The slot may be dropped by now.
            Ok(())
        } else {
            self.check_old(place)
        };
        checked.err().into_iter().collect()
    }

    /// Returns the epoch of this server's positions once it is switched to.
    ///
    /// `former`: the epoch of the former server. `position`: that of this server's slot.
    pub(in crate::commands::moves) fn next_epoch(
        &self,
        former: u8,
        drained: &MoveRecord,
        position: Lsn,
    ) -> Result<u8, Failure> {
        let next = self.epoch.after_switch(former, drained.barrier, position);
        next.map_err(|error| {
            Failure::new("move-epochs", Exit::Config, error.to_string()).remedy(
                "let the log of the new server begin behind the old one's: pg_resetwal -l, before its first start",
            )
        })
    }

    /// Describes how positions go on; `None` if they have no epoch and get none.
    fn positions(&self) -> Option<String> {
        let number = self.epoch.number;
        let drained = self
            .copied()
            .filter(|copied| copied.state == MoveState::Drained);
        let next = drained
            .and_then(|drained| {
                self.epoch
                    .after_switch(number, drained.barrier, self.flushed)
                    .ok()
            })
            .unwrap_or(number);
        if next > number {
            return Some(format!(
                "the log begins lower than the former one's end: the switch raises their epoch to {next}"
            ));
        }
        (number > 0).then(|| format!("of epoch {number}"))
    }

    /// Describes the state for people.
    pub(in crate::commands::moves) fn text(&self, place: &Place) -> String {
        let tables: Vec<String> = place.tables().iter().map(ToString::to_string).collect();
        let mut text = format!("Outbox         {}\n", tables.join(", "));
        let _ = writeln!(
            text,
            "Inserts        {}",
            if self.unfenced.is_empty() {
                "refused by the fence of a move"
            } else {
                "accepted"
            }
        );
        let slot = match &self.slot {
            Some(slot) => match slot.confirmed {
                Some(confirmed) => format!("{}, confirmed to {confirmed}", slot.name),
                None => slot.name.clone(),
            },
            None => format!("{}, which does not exist", place.server.slot()),
        };
        let _ = writeln!(text, "Slot           {slot}");
        if let Some(positions) = self.positions() {
            let _ = writeln!(text, "Positions      {positions}");
        }
        let state = match (self.state(), self.copied()) {
            (Some(state), _) => format!("{} ({})", state.name(), next_step(state, true)),
            (None, Some(record)) => format!(
                "this database is a copy of server {}, which is {} ({})",
                record.server.system,
                record.state.name(),
                next_step(record.state, false)
            ),
            (None, None) => format!("none is recorded ({STEPS})"),
        };
        let _ = writeln!(text, "Move           {state}");
        let obstacles = self.obstacles(place);
        for failure in &obstacles {
            let _ = writeln!(text, "In the way     {} [{}]", failure.what, failure.id);
        }
        if obstacles.is_empty() {
            text.push_str("Nothing is in the way of the next step.\n");
        }
        text
    }
}

const STEPS: &str = "drain the old server, then switch the new one";

/// Returns the step that follows on this server, or on a copy of it.
fn next_step(state: MoveState, own: bool) -> &'static str {
    match (state, own) {
        (MoveState::Prepared, _) => "drain the old server, then switch this one with --from",
        (MoveState::Fenced, true) => "run walrelay move drain again, or abort",
        (MoveState::Fenced, false) => {
            "it was copied before the drain ended: run walrelay move abort"
        }
        (MoveState::Drained, true) => {
            "copy it or let the new server catch up, and switch the new one"
        }
        (MoveState::Drained, false) => "run walrelay move switch",
        (MoveState::Switched, _) => "complete: look with walrelay move verify",
    }
}
