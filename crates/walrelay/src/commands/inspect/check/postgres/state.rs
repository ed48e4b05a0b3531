//! [`DatabaseState`]: the state that the checks of the database use, and the queries that read it.

use walrelay_lsn::Lsn;
use walrelay_postgres_source::epoch::find_epoch;
use walrelay_postgres_source::last_error::{self, LastError};
use walrelay_postgres_source::moves::{MoveServer, MoveState, UnfinishedMove, find_move};
use walrelay_postgres_source::run_note::{self, RunNote};
use walrelay_postgres_source::{
    Facts, Moment, Position, PostgresError, SetupError, SlotReader, Survey, Wanted, check_noted,
    inspect,
    position_note::{Access, Noted, Standing},
    slot_reader, survey,
};
use walrelay_relay::LogError;
use walrelay_walsender::{Ancestor, ConnInfo, Error, Session, SessionKind, SystemIdentity};

use super::POSTGRES_ANSWER_LIMIT;
use crate::commands::assembly::wanted;
use crate::config::PipelineConfig;

/// The identity of a server that allowed a replication connection, with the ancestors of its timeline.
pub(super) type Replication = Result<(SystemIdentity, Vec<Ancestor>), Error>;

/// The state that the checks of the database use.
pub(super) struct DatabaseState<'a> {
    pub(super) config: &'a PipelineConfig,
    /// The name of the relay's sessions as the server shows it.
    pub(super) application_name: String,
    pub(super) wanted: Wanted,
    pub(super) facts: Facts,
    pub(super) survey: Survey,
    /// The process that reads the slot.
    pub(super) reader: Option<SlotReader>,
    /// The moment of the setup as for `run`.
    pub(super) moment: Moment,
    /// The slot continues the position in the state file, as far as `run` compares them.
    pub(super) continued: Result<(), LogError>,
    /// The slot's position compared with its note, and what this role may do with the note. `None`: `run`
    /// notes no position.
    pub(super) noted: Option<(Standing, Access)>,
    /// The error with which the last run ended.
    pub(super) last_error: Option<LastError>,
    /// What the last run has noted of itself.
    pub(super) run: Option<RunNote>,
    /// The epoch of the slot's positions.
    pub(super) epoch: u8,
    /// The move that has not ended on this server, and the state for whose end its relay waits.
    pub(super) moved: (Option<UnfinishedMove>, Option<MoveState>),
    /// The publication carries what its relay has noted, as far as `run` compares it.
    pub(super) carried: Result<(), SetupError>,
}

impl<'a> DatabaseState<'a> {
    /// Reads the state, and whether the server allows a replication connection. `known` is the content of the
    /// state file.
    pub(super) async fn read(
        session: &mut Session,
        info: &ConnInfo,
        config: &'a PipelineConfig,
        known: Option<&Position>,
    ) -> Result<(Self, Replication), PostgresError> {
        let wanted = wanted(config);
        let facts = inspect(session, &wanted).await?;
        let survey = survey(session, &wanted).await?;
        let reader = slot_reader(session, &wanted.slot).await?;
        let state_file = config.source.state_file.as_deref();
        let last_error = last_error::find(session, &wanted.slot, state_file).await?;
        let run = run_note::find(session, &wanted.slot, state_file).await?;
        let epoch = find_epoch(session, &wanted.slot).await?.number;
        // After the slot: a running relay notes a position before the slot has it.
        let noted = Noted::find(session, &wanted.slot, wanted.create).await?;
        let replication = open_replication(info).await;
        let (system, ancestors) = match &replication {
            Ok((identity, ancestors)) => (identity.system_id.as_str(), ancestors.as_slice()),
            Err(_) => ("", [].as_slice()),
        };
        let moved = find_move(session, &wanted.slot).await?;
        let here = MoveServer {
            system: system.to_owned(),
            timeline: replication
                .as_ref()
                .map_or(0, |(identity, _)| identity.timeline),
        };
        let position = facts.slot.as_ref().and_then(|slot| slot.confirmed);
        // The relay of a slot that is read has compared them, and both go on meanwhile.
        let unread = facts
            .slot
            .as_ref()
            .is_some_and(|slot| slot.active_pid.is_none());
        let continued = match (known, position, &replication) {
            (Some(known), Some(position), Ok((identity, ancestors)))
                if unread && config.sink.confirms() =>
            {
                let former = moved.former_of(&here);
                known.continued_by_slot(identity, ancestors, position, former)
            }
            _ => Ok(()),
        };
        let standing = noted.compare(position.unwrap_or(Lsn::ZERO), system, ancestors);
        let is_noted = config.sink.confirms() && !facts.server.in_recovery;
        let carried = if is_noted {
            check_noted(&wanted, &facts, &noted, system)
        } else {
            Ok(())
        };
        let state = Self {
            config,
            application_name: info.shown_application_name(),
            survey,
            reader,
            wanted,
            moment: if config.sink.confirms() {
                Moment::Start {
                    known: known.map(|known| known.confirmed),
                    noted: noted.position_in(system),
                    accept_gap: false,
                }
            } else {
                Moment::Print
            },
            continued,
            noted: is_noted.then_some((standing, noted.access)),
            carried,
            moved: (moved.unfinished(&here), moved.awaited(&here)),
            last_error,
            run,
            epoch,
            facts,
        };
        Ok((state, replication))
    }
}

/// Opens and closes a replication connection. Returns the server's identity, with the ancestors of its
/// timeline if they can be read. It is called after the walsenders were counted, as it is one.
async fn open_replication(info: &ConnInfo) -> Replication {
    let mut replication = Session::connect(info, SessionKind::Replication, &[]).await?;
    replication.limit_answers(POSTGRES_ANSWER_LIMIT);
    let identity = replication.identify_system().await?;
    let ancestors = replication.timeline_history(identity.timeline).await;
    replication.close().await;
    Ok((identity, ancestors.unwrap_or_default()))
}
