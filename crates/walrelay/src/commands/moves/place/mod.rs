//! One of the two servers of a move.

mod state;

use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::epoch::find_epoch;
use walrelay_postgres_source::moves::{
    LOCKED, MoveServer, all_relations, find_emitters, find_move, lock_move, unfenced,
};
use walrelay_postgres_source::script::EmitFunction;
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session};

use crate::cli::{AdminArgs, ConfigArgs};
use crate::commands::EnvVars;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{admin_info, sql_session};

pub(super) use self::state::PlaceState;

/// The time that a step waits for another one, such as one that was killed.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);
/// SQLSTATE of a missing right.
pub(super) const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// A server, and the connection of a role that owns its outbox.
pub(super) struct Place {
    pub(super) server: Server,
    admin: ConnInfo,
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
