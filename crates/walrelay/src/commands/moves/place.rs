//! One of the two servers of a move.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::SlotRow;
use walrelay_postgres_source::epoch::{Epoch, find_epoch};
use walrelay_postgres_source::moves::{
    Emitters, LOCKED, MoveRecord, MoveRecords, MoveServer, MoveState, all_relations, find_emitters,
    find_move, lock_move, unfenced,
};
use walrelay_postgres_source::script::EmitFunction;
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, quote_ident};

use crate::cli::{AdminArgs, ConfigArgs};
use crate::commands::EnvVars;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{admin_info, sql_session};

/// The time that a step waits for another one, such as one that was killed.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);
/// SQLSTATE of a missing right.
pub(super) const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// A server, and the connection of a role that owns its outbox.
pub(super) struct Place {
    pub(super) server: Server,
    admin: ConnInfo,
}

/// The state of a server: its record of the move, its outbox and its slot.
pub(super) struct PlaceState {
    /// The server itself.
    pub(super) here: MoveServer,
    pub(super) records: MoveRecords,
    /// What a fence must be at: the outbox tables, and the gate of `outbox.emit` if that writes the relay's prefix.
    pub(super) fenced: Vec<TableName>,
    /// The functions that write events as messages, if messages are events.
    pub(super) emitters: Option<Emitters>,
    /// Outbox tables and partitions without a fence.
    pub(super) unfenced: Vec<TableName>,
    pub(super) slot: Option<SlotRow>,
    /// The name of the database.
    database: Option<String>,
    /// The epoch that the positions of its events have.
    pub(super) epoch: Epoch,
    /// The end of its log.
    pub(super) flushed: Lsn,
    has_publication: bool,
    /// An UPDATE may make a row an event: the publication carries updates, of rows that fit a filter.
    makes_events_of_updates: bool,
    in_recovery: bool,
}

impl Place {
    pub(super) fn load(
        config: &ConfigArgs,
        admin: Option<&AdminArgs>,
        env: EnvVars<'_>,
    ) -> Result<Self, Vec<Failure>> {
        let server = Server::load(config, env)?;
        if server.config.source.tables.is_empty() {
            let what = "only an outbox of tables can be moved: [source] names none";
            let failure = Failure::new("move-tables", Exit::Config, what);
            return Err(vec![failure.remedy(
                "stop your services, run walrelay run --until caught-up, and run walrelay init on the new server",
            )]);
        }
        let url = admin.and_then(|admin| admin.admin_url.as_ref());
        let admin = match url {
            Some(url) => admin_info(url.expose_secret(), &server.info, env)?,
            None => server.info.clone(),
        };
        Ok(Self { server, admin })
    }

    /// Loads the configuration of the former server. Overrides of slot and publication count for both servers: one file
    /// may serve several relays.
    pub(super) fn load_former(
        path: &Path,
        new: &ConfigArgs,
        env: EnvVars<'_>,
    ) -> Result<Self, Vec<Failure>> {
        let of_both = |set: &&String| {
            ["source.slot=", "source.publication="]
                .iter()
                .any(|key| set.starts_with(key))
        };
        let config = ConfigArgs {
            config: path.to_owned(),
            set: new.set.iter().filter(of_both).cloned().collect(),
        };
        Self::load(&config, None, env)
    }

    /// Fails unless the other server's configuration is of the same outbox: its record shows nothing of other events.
    pub(super) fn check_same_outbox(&self, new: &Self) -> Result<(), Failure> {
        let sorted = |place: &Self| {
            let mut tables = place.tables().to_vec();
            tables.sort_unstable();
            tables
        };
        let slots = (self.server.slot(), new.server.slot());
        if slots.0 == slots.1 && sorted(self) == sorted(new) {
            return Ok(());
        }
        let what = format!(
            "--from is of another outbox: its slot is {}, that of the new server is {}, or its tables are others",
            slots.0, slots.1
        );
        Err(Failure::new("move-same-server", Exit::Usage, what)
            .remedy("name the configuration of the relay that this one goes on for: the same [source] slot and tables"))
    }

    /// Connects as the owner of the outbox.
    pub(super) async fn connect(&self) -> Result<Session, Failure> {
        sql_session(&self.admin).await
    }

    /// Connects, and locks other steps of a move of this slot out until the session ends.
    pub(super) async fn connect_locked(&self) -> Result<Session, Failure> {
        let mut session = self.connect().await?;
        self.lock(&mut session, self.server.slot()).await?;
        Ok(session)
    }

    /// Locks other sessions that make the slot out until this one, which holds no other lock, ends.
    pub(super) async fn lock_slot(&self, session: &mut Session) -> Result<(), Failure> {
        let name = format!("slot {}", self.server.slot());
        self.lock(session, &name).await
    }

    async fn lock(&self, session: &mut Session, name: &str) -> Result<(), Failure> {
        match lock_move(session, name, LOCK_PATIENCE).await {
            Ok(()) => Ok(()),
            Err(error) if error.sqlstate() == Some(LOCKED) => {
                let what = "another step of this move works on the server";
                Err(Failure::new("move-busy", Exit::Temporary, what).remedy(
                    "wait until it has ended, and see where it came with walrelay move plan",
                ))
            }
            Err(error) => Err(failure(error)),
        }
    }

    pub(super) fn tables(&self) -> &[TableName] {
        &self.server.config.source.tables
    }

    /// Looks at the server over a connection of its own.
    pub(super) async fn look_once(&self) -> Result<PlaceState, Failure> {
        let mut session = self.connect().await?;
        let look = self.look(&mut session).await?;
        session.close().await;
        Ok(look)
    }

    /// Looks at the server, and changes nothing.
    pub(super) async fn look(&self, session: &mut Session) -> Result<PlaceState, Failure> {
        let system = self.server.identify().await?;
        let source = &self.server.config.source;
        let publication = format!(
            "SELECT pg_catalog.pg_is_in_recovery() AS in_recovery, EXISTS (SELECT FROM pg_catalog.pg_publication \
             WHERE pubname = {publication}) AS publication, EXISTS (SELECT FROM pg_catalog.pg_publication p \
             JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = {publication} AND p.pubupdate \
             AND coalesce(pg_catalog.pg_partition_root(r.prrelid)::oid, r.prrelid) IN (SELECT coalesce(pg_catalog.pg_partition_root(\
             c.oid)::oid, c.oid) FROM pg_catalog.pg_class c WHERE c.oid IN ({outbox})) AND pg_catalog.to_jsonb(r) ->> 'prqual' IS NOT NULL) AS updates, pg_catalog.current_database() AS database, (SELECT system_identifier FROM pg_catalog.pg_control_system()) AS system",
            publication = walrelay_walsender::quote_literal(&source.publication),
            outbox = all_relations(&source.tables),
        );
        let rows = session.query(&publication).await?;
        let is = |name| rows.first().is_some_and(|row| row.get(name) == Some("t"));
        let (in_recovery, has_publication) = (is("in_recovery"), is("publication"));
        let text = |name| {
            rows.first()
                .and_then(|row| row.get(name).map(str::to_owned))
        };
        let (admins, database) = (text("system"), text("database"));
        if admins.as_ref() != Some(&system.system_id) {
            let what = "the administrator's connection and the relay's reach different servers";
            return Err(Failure::new("move-same-server", Exit::Usage, what)
                .remedy("see --admin-url, and [source] url: both must name one server, and no list of hosts"));
        }
        let emitters = match &source.messages {
            Some(prefix) => Some(find_emitters(session, prefix).await?),
            None => None,
        };
        let gate = emitters.filter(|emitters| emitters.have_gate);
        let gate = gate.map(|_| EmitFunction::gate());
        let fenced: Vec<TableName> = source.tables.iter().cloned().chain(gate).collect();
        let here = MoveServer {
            system: system.system_id,
            timeline: system.timeline,
        };
        let records = find_move(session, &source.slot).await?;
        // Those that the fence of a drained server must be at.
        let closed = if records.drained_without_gate(&here) {
            &source.tables
        } else {
            &fenced
        };
        Ok(PlaceState {
            unfenced: unfenced(session, &source.slot, closed)
                .await
                .map_err(failure)?,
            here,
            records,
            fenced,
            emitters,
            slot: self.server.find_slot(session).await?,
            database,
            epoch: find_epoch(session, &source.slot).await?,
            flushed: system.flushed,
            has_publication,
            makes_events_of_updates: is("updates"),
            in_recovery,
        })
    }
}

impl PlaceState {
    /// Returns the record of the former server, if this database is a copy of its.
    pub(super) fn copied(&self) -> Option<&MoveRecord> {
        let copied = self.records.copied(&self.here);
        // A server with a record of its own may have got the other one by a subscription.
        copied.filter(|_| self.own().is_none())
    }

    /// Returns the record of this server itself.
    pub(super) fn own(&self) -> Option<&MoveRecord> {
        self.records.own(&self.here)
    }

    /// Returns the state that this server itself has recorded.
    pub(super) fn state(&self) -> Option<MoveState> {
        self.own().map(|own| own.state)
    }

    /// Returns true if this server itself was drained, and its fence has stood since.
    pub(super) fn is_drained(&self) -> bool {
        self.state() == Some(MoveState::Drained) && self.unfenced.is_empty()
    }

    /// Fails if the outbox of this server is not fenced whole.
    pub(super) fn check_fence(&self, remedy: &str) -> Result<(), Failure> {
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
    pub(super) fn check_emitters(&self) -> Result<(), Failure> {
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
    pub(super) fn check_new(&self, place: &Place) -> Result<(), Failure> {
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
    pub(super) fn check_old(&self, place: &Place) -> Result<(), Failure> {
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
    pub(super) fn obstacles(&self, place: &Place) -> Vec<Failure> {
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
    pub(super) fn next_epoch(
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
    pub(super) fn text(&self, place: &Place) -> String {
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

/// Makes the failure of a statement that changes a fence.
pub(super) fn failure(error: Error) -> Failure {
    let is_denied = error.sqlstate() == Some(INSUFFICIENT_PRIVILEGE);
    let failure = Failure::from(error);
    if is_denied {
        return failure.remedy(
            "name a role with --admin-url that owns the outbox tables, and outbox.emit_gate if that exists, and may change what is in the schema \
             walrelay_state: GRANT ALL ON SCHEMA walrelay_state TO ROLE; GRANT ALL ON ALL TABLES IN SCHEMA walrelay_state \
             TO ROLE; GRANT ALL ON ALL SEQUENCES IN SCHEMA walrelay_state TO ROLE",
        );
    }
    failure
}
