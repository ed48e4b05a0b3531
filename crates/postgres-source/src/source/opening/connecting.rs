//! Connects both sessions, reads the catalogs, and carries out the setup of the slot.

use std::sync::Arc;

use tokio::time::sleep;
use tracing::debug;
use walrelay_lsn::Lsn;
use walrelay_relay::{Ancestor, Resume};
use walrelay_walsender::{Error, Session, SessionKind};

use super::busy_slot::BUSY_INTERVAL;
use super::{Connected, PostgresSource};
use crate::catalog::{Facts, SlotRow, inspect, slot_reader};
use crate::deadline::{bounded, bounded_by};
use crate::epoch::find_epoch;
use crate::error::PostgresError;
use crate::moves::{MoveRecords, MoveServer, find_move};
use crate::position_note::Noted;
use crate::publication_note;
use crate::setup::{
    Action, Moment, Prepared, Setup, UNDO_DEADLINE, Unfinished, plan, unlock_setup, wait_for_lock,
    wal_level,
};
use crate::snapshot::LockThread;

impl PostgresSource {
    pub(super) async fn connect(
        &mut self,
        resume: Option<&Resume>,
    ) -> Result<Connected, PostgresError> {
        let mut control =
            Session::connect(&self.info, SessionKind::Sql, &publication_note::SETTINGS).await?;
        self.undo_last_setup(&mut control).await?;
        self.wait_until_free(&mut control).await?;
        let facts = bounded("reading the catalogs", inspect(&mut control, &self.wanted)).await?;
        // A relay that was killed has left a walsender, which makes the slot: Postgres waits for
        // transactions.
        let is_made = |slot: &SlotRow| slot.kind != "logical" || slot.confirmed.is_some();
        let is_unfinished = facts.publication.as_ref().is_some_and(|of| of.unfinished);
        if is_unfinished && facts.slot.as_ref().is_some_and(|slot| !is_made(slot)) {
            let reader = slot_reader(&mut control, &self.wanted.slot).await?;
            return Err(self.slot_busy(reader, None));
        }
        if let Some(state_file) = &self.state_file {
            state_file.check_owner(&self.wanted.slot, &facts.server.database)?;
        }
        // Before the replication connection: wal_level = minimal allows no walsender, and a server without a
        // free one is retried.
        wal_level(&facts)?;
        let millis = self.wal_sender_timeout.as_millis().to_string();
        let settings = [("wal_sender_timeout", millis.as_str())];
        let mut replication =
            Session::connect(&self.info, SessionKind::Replication, &settings).await?;
        let system = bounded("IDENTIFY_SYSTEM", replication.identify_system()).await?;
        let moved = self.find_move(&mut control).await?;
        let here = MoveServer {
            system: system.system_id.clone(),
            timeline: system.timeline,
        };
        if let Some(state) = moved.awaited(&here) {
            let error = PostgresError::AwaitsSwitch {
                slot: self.wanted.slot.clone(),
                state,
            };
            // The first time the relay shows the reason. Then its events must not wait for the next attempt.
            if !std::mem::replace(&mut self.awaits_switch, true) {
                return Err(error);
            }
            while self.find_move(&mut control).await? == moved {
                sleep(BUSY_INTERVAL).await;
            }
            return Box::pin(self.connect(resume)).await;
        }
        self.awaits_switch = false;
        let former = moved.former_of(&here);
        let ancestors = self
            .ancestors(&mut replication, system.timeline, resume)
            .await?;
        let noted = Noted::find(&mut control, &self.wanted.slot, self.wanted.create);
        let noted = bounded("reading the noted position", noted).await?;
        let (wanted, system_id) = (&self.wanted, &system.system_id);
        publication_note::note_found(&mut control, wanted, &facts, &noted, system_id).await;
        let moment = self.moment(resume, &ancestors, noted.position_in(&system.system_id));
        let same_cluster = resume.is_some_and(|resume| resume.system_id == system.system_id);
        if let Some(last) = self.last_look.as_ref().filter(|_| same_cluster) {
            last.note_change(&mut control, &self.wanted, &facts).await;
        }
        let (mut control, snapshot) = self
            .prepare(control, &mut replication, &facts, moment)
            .await?;
        // A new slot may have another epoch than a dropped one of its name.
        let epoch = find_epoch(&mut control, &self.wanted.slot);
        let epoch = bounded("reading the epoch", epoch).await?.number;
        Ok(Connected {
            control,
            replication,
            facts,
            system,
            ancestors,
            moment,
            snapshot,
            former,
            epoch,
        })
    }

    /// Plans the setup and carries it out. Returns the control session, and whether a snapshot is to be read first.
    async fn prepare(
        &mut self,
        mut control: Session,
        replication: &mut Session,
        facts: &Facts,
        moment: Moment,
    ) -> Result<(Session, bool), PostgresError> {
        let will_read = plan(&self.wanted, facts, moment)
            .is_ok_and(|plan| plan.actions.contains(&Action::Snapshot));
        if will_read {
            control = self.connect_by_thread().await?;
        }
        // A stop drops this future, and undoes the setup.
        let setup = self.setup.insert(Setup::new(
            control,
            self.info.clone(),
            Arc::clone(&self.findings.slot_wait),
        ));
        let prepared = setup.prepare(&self.wanted, moment, facts, replication);
        let prepared = prepared.await;
        if prepared.is_err() {
            let undone = setup.unfinished.undo(&self.wanted, &mut setup.control);
            if undone.await.is_ok() {
                setup.unfinished = Unfinished::default();
            }
        }
        let Some(setup) = self.setup.take() else {
            unreachable!("the setup was inserted above")
        };
        self.unfinished = setup.unfinished;
        let (mut control, Prepared { gap, snapshot }) = (setup.control, prepared?);
        if self.lock_thread.is_some() && !snapshot {
            // Another relay has made the slot meanwhile.
            control =
                Session::connect(&self.info, SessionKind::Sql, &publication_note::SETTINGS).await?;
            self.lock_thread = None;
        }
        if gap.is_some() {
            self.accepted = true;
            // The file's position is before the new slot's.
            if let Some(state_file) = &mut self.state_file {
                state_file.forget();
            }
        }
        Ok((control, snapshot))
    }

    async fn find_move(&self, control: &mut Session) -> Result<MoveRecords, PostgresError> {
        let found = find_move(control, &self.wanted.slot);
        bounded("reading the record of a move", found).await
    }

    /// Connects a control session that its own thread drives: it will hold the lock of a snapshot.
    async fn connect_by_thread(&mut self) -> Result<Session, PostgresError> {
        let thread = LockThread::start().map_err(PostgresError::Thread)?;
        Ok(self.lock_thread.insert(thread).connect(&self.info).await?)
    }

    /// Undoes the rest of the last attempt's setup, over a new session.
    pub(in crate::source) async fn undo_anew(&mut self) -> Result<(), PostgresError> {
        let undone = async {
            let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
            self.undo_last_setup(&mut control).await
        };
        bounded_by(UNDO_DEADLINE, "undoing an unfinished setup", undone).await
    }

    /// Undoes the rest of the last attempt's setup, if that was not possible before.
    pub(in crate::source) async fn undo_last_setup(
        &mut self,
        control: &mut Session,
    ) -> Result<(), PostgresError> {
        if self.unfinished.is_nothing() {
            return Ok(());
        }
        let slot = &self.wanted.slot;
        wait_for_lock(control, slot).await?;
        self.unfinished.undo(&self.wanted, control).await?;
        self.unfinished = Unfinished::default();
        unlock_setup(control, slot).await?;
        Ok(())
    }

    /// Returns the moment of the inspection, with the relayed position limited to the history that
    /// a server with these ancestors shares.
    fn moment(
        &self,
        resume: Option<&Resume>,
        ancestors: &[Ancestor],
        noted: Option<Lsn>,
    ) -> Moment {
        let in_common = |known: &Resume| known.in_common(ancestors).lsn();
        match resume {
            Some(resume) if self.started => Moment::Relayed {
                upto: in_common(resume),
            },
            // An unfinished snapshot counts as nothing relayed.
            _ => Moment::Start {
                known: self.kept().map(|kept| in_common(&kept.resume(None))),
                noted,
                accept_gap: self.accept_gap,
            },
        }
    }

    /// Returns the ancestors of the server's timeline. If it is the timeline of the last stream and state
    /// file, only the note needs them: a history that cannot be read counts as none.
    async fn ancestors(
        &self,
        replication: &mut Session,
        timeline: u32,
        resume: Option<&Resume>,
    ) -> Result<Vec<Ancestor>, PostgresError> {
        let of_process = resume.map(|resume| resume.timeline);
        let of_file = self.kept().map(|kept| kept.timeline);
        let promoted = [of_process, of_file]
            .into_iter()
            .flatten()
            .any(|known| known != timeline);
        let history = replication.timeline_history(timeline);
        match bounded("TIMELINE_HISTORY", history).await {
            Err(PostgresError::Wal(Error::Server(error))) if !promoted => {
                debug!(timeline, %error, "the history of the timeline cannot be read");
                Ok(Vec::new())
            }
            history => history,
        }
    }
}
