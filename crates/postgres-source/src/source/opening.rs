//! Opening the stream of a slot: both connections, the catalogs, START_REPLICATION, and the check
//! that the stream continues what was relayed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{
    Ancestor, Chain, Continuity, HolderKind, Opened, Predecessor, Resume, WalStream as _,
};
use walrelay_walsender::{
    Error, ErrorClass, Host, ReplicationStream, Session, SessionKind, StartReplication,
    StatusUpdate, SystemIdentity,
};

use super::PostgresSource;
use super::inspections::Inspections;
use super::stream::Stream;
use crate::catalog::{
    Facts, SlotReader, SlotRow, describe, inspect, is_synchronous, is_walsender, slot, slot_reader,
};
use crate::deadline::{bounded, bounded_by};
use crate::epoch::find_epoch;
use crate::error::{Gap, PostgresError, SetupError};
use crate::last_error;
use crate::moves::{MoveRecords, MoveServer, find_move};
use crate::position_note::{self, Access, Noted, Standing};
use crate::publication_note::{self, LastLook, check_noted};
use crate::run_note;
use crate::sent_rows::account::{self, OpenedAccount};
use crate::setup::{
    Action, Moment, Prepared, Setup, UNDO_DEADLINE, Unfinished, plan, unlock_setup, wait_for_lock,
    wal_level,
};
use crate::snapshot::{LockThread, unread};
use crate::state_file::Position;

/// Interval of the queries for the reader of a busy slot.
const BUSY_INTERVAL: Duration = Duration::from_millis(200);
/// The time that a busy slot's reader is queried before START_REPLICATION is tried again.
const BUSY_DEADLINE: Duration = Duration::from_secs(30);

/// Both connections with the server's answers.
pub(super) struct Connected {
    pub(super) control: Session,
    pub(super) replication: Session,
    /// The facts of before the setup.
    pub(super) facts: Facts,
    pub(super) system: SystemIdentity,
    ancestors: Vec<Ancestor>,
    moment: Moment,
    /// True if there is no slot, and a snapshot is to be read first.
    snapshot: bool,
    /// The server that the outbox was moved from.
    former: Option<String>,
    /// The epoch of the slot's positions.
    pub(super) epoch: u8,
}

impl PostgresSource {
    async fn connect(&mut self, resume: Option<&Resume>) -> Result<Connected, PostgresError> {
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
        let epoch = find_epoch(&mut control, &self.wanted.slot);
        let epoch = bounded("reading the epoch", epoch).await?.number;
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
        let will_read = plan(&self.wanted, &facts, moment)
            .is_ok_and(|plan| plan.actions.contains(&Action::Snapshot));
        if will_read {
            control = self.connect_by_thread().await?;
        }
        // A stop drops this future, and undoes the setup.
        let setup = self.setup.insert(Setup::new(
            control,
            self.info.clone(),
            Arc::clone(&self.slot_wait),
        ));
        let prepared = setup.prepare(&self.wanted, moment, &facts, &mut replication);
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
    pub(super) async fn undo_anew(&mut self) -> Result<(), PostgresError> {
        let undone = async {
            let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
            self.undo_last_setup(&mut control).await
        };
        bounded_by(UNDO_DEADLINE, "undoing an unfinished setup", undone).await
    }

    /// Undoes the rest of the last attempt's setup, if that was not possible before.
    pub(super) async fn undo_last_setup(
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

    /// Queries the reader of the slot. If the slot was busy in the last attempt, waits until it is
    /// free. All queries use this one connection, because two new connections each time would cost
    /// the primary more than the reading relay does. Stops waiting after [`BUSY_DEADLINE`], so that
    /// the server reports the reader itself, and at once if the reader changes, so that the
    /// pipeline learns of it.
    async fn wait_until_free(&mut self, control: &mut Session) -> Result<(), PostgresError> {
        let until = Instant::now() + BUSY_DEADLINE;
        loop {
            let found =
                bounded("reading the slot", slot_reader(control, &self.wanted.slot)).await?;
            let Some(reader) = found else {
                return Ok(());
            };
            let new = self.readers.record(&reader);
            self.forget_look_of(&reader);
            if !self.found_busy || Instant::now() >= until {
                return Ok(());
            }
            if new {
                return Err(self.slot_busy(Some(reader), None));
            }
            sleep(BUSY_INTERVAL).await;
        }
    }

    /// Forgets the last look at the publication if another process reads the slot: that one has compared
    /// since, and noted what is accepted.
    fn forget_look_of(&mut self, reader: &SlotReader) {
        if !self.readers.is_own(reader.pid) {
            self.last_look = None;
        }
    }

    fn slot_busy(&self, reader: Option<SlotReader>, source: Option<Error>) -> PostgresError {
        PostgresError::SlotBusy {
            slot: self.wanted.slot.clone(),
            kind: reader
                .as_ref()
                .map_or(HolderKind::Unknown, |reader| self.readers.kind(reader)),
            reader: reader.map(Box::new),
            source,
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

    /// Checks that the stream continues the position in the state file. Returns the position to write into
    /// the file before anything is streamed, and whether the file shows that everything before the slot's
    /// position was relayed.
    async fn continue_file(
        &mut self,
        opened: &Opened<Stream>,
        database: String,
        control: &mut Session,
    ) -> Result<(Option<Position>, bool), PostgresError> {
        let Some(state_file) = &self.state_file else {
            return Ok((None, false));
        };
        let mut is_proved = false;
        let here = Position {
            system_id: opened.system_id.clone(),
            timeline: opened.timeline,
            database,
            slot: self.wanted.slot.clone(),
            confirmed: opened.confirmed.lsn(),
            sink_cluster: state_file.kept().and_then(|kept| kept.sink_cluster.clone()),
        };
        let position = match state_file.kept() {
            None => here,
            Some(kept) => match kept.resume(self.server_start.clone()).continued_by(opened) {
                Ok(Continuity::Same) => {
                    is_proved = true;
                    Position {
                        timeline: opened.timeline,
                        ..kept.clone()
                    }
                }
                // If this process has streamed before, the pipeline logs it.
                Ok(Continuity::HandedOver { from, to, by }) => {
                    if !self.started {
                        info!(%from, %to, %by, "another relay has read the slot since the state file was written");
                    }
                    here
                }
                Ok(Continuity::Promoted { parted }) => {
                    is_proved = true;
                    // If this process has streamed before, the pipeline logs it.
                    if !self.started && parted < kept.confirmed {
                        warn!(
                            from = %parted,
                            to = %kept.confirmed,
                            "the promoted server has not got all that was relayed of the old one: \
                             events of this range may be of transactions that it does not have"
                        );
                    }
                    here
                }
                // If this process has streamed before, the pipeline logs it.
                // The switch has noted the position of the slot, so the note shows whether it was moved since.
                Ok(Continuity::Moved) => {
                    if !self.started {
                        info!(
                            former = kept.system_id,
                            now = opened.system_id,
                            "the outbox was moved to this server: its database shows that every event of the former \
                             one was delivered under a fence"
                        );
                    }
                    here
                }
                Err(error) if self.accept_gap => {
                    warn!(slot = self.wanted.slot, "accepted by --accept-gap: {error}");
                    position_note::forget(control, &self.wanted.slot).await?;
                    self.accepted = true;
                    here
                }
                Err(error) => return Err(error.into()),
            },
        };
        Ok((Some(position), is_proved))
    }

    /// Checks that the slot is not beyond the position that is noted of it. Returns whether everything
    /// before the slot's position was relayed, as far as the note shows. If it was not, and the gap is
    /// accepted, the first note of the stream records that.
    fn continue_note(
        &mut self,
        opened: &Opened<Stream>,
        noted: &Noted,
    ) -> Result<bool, PostgresError> {
        let slot = &self.wanted.slot;
        let to = opened.confirmed.lsn();
        match noted.compare(to, &opened.system_id, &opened.ancestors) {
            Standing::Continues if noted.position.is_none() && !self.started => {
                info!(slot, position = %to, "no position of the slot was noted before: it is read from where it is");
            }
            // Where the role may not write the note, nothing is compared.
            Standing::Continues if noted.access == Access::None => return Ok(false),
            Standing::Continues => {}
            Standing::OtherCluster => warn!(
                slot,
                position = %to,
                "the noted position is of another cluster: the slot is read from where it is, and \
                 changes before it are unknown"
            ),
            Standing::Promoted { from } => warn!(
                slot,
                %from,
                %to,
                "a standby was promoted that has the slot's position and not yet the note of it: \
                 changes committed in this range count as relayed from the former primary"
            ),
            Standing::PassedOver { from } => {
                let error = SetupError::SlotPassedOver {
                    slot: slot.clone(),
                    from,
                    to,
                };
                if !self.accept_gap {
                    return Err(error.into());
                }
                warn!(slot, "accepted by --accept-gap: {error}");
                self.accepted = true;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks that the publication is unchanged since the slot was read last.
    fn continue_publication(
        &mut self,
        facts: &Facts,
        noted: &Noted,
        opened: &Opened<Stream>,
        walsender: i32,
    ) -> Result<(), PostgresError> {
        // What another relay has read meanwhile, it has compared and noted.
        let last = self.last_look.as_ref();
        let mut same = match last.filter(|_| opened.predecessor.is_none()) {
            Some(last) => last.check(&self.wanted, facts),
            None => Ok(()),
        };
        // A standby cannot note that the change is accepted.
        if same.is_ok() && !facts.server.in_recovery {
            same = check_noted(&self.wanted, facts, noted, &opened.system_id);
        }
        match same {
            Err(error) if !self.accept_gap => return Err(error.into()),
            Err(error) => {
                warn!(slot = self.wanted.slot, "accepted by --accept-gap: {error}");
                self.accepted_publication = true;
            }
            Ok(()) => {}
        }
        if let Some(look) = LastLook::new(facts, walsender.into()) {
            self.last_look = Some(look);
        }
        Ok(())
    }

    /// Notes the contents of the publication, if this role may.
    async fn note_carried(&self, control: &mut Session, noted: &Noted) {
        let Some(last) = &self.last_look else {
            return;
        };
        let note = publication_note::note(control, &self.wanted, noted, &last.carried);
        let reason = match timeout(publication_note::NOTE_LIMIT, note).await {
            Ok(Ok(true)) => return,
            // The warning about the position says it.
            Ok(Ok(false)) if noted.access == Access::None => return,
            Ok(Ok(false)) => "the role may not, or the slot's name is too long".to_owned(),
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if !self.started {
            warn!(
                slot = self.wanted.slot,
                reason,
                "what the publication carries cannot be noted in walrelay_state: a change of it while no relay runs is not \
                 noticed. As a user who may: walrelay init --role ROLE of this version"
            );
        }
    }

    /// Begins the notes of the stream, if this role may note positions.
    async fn begin_notes(
        &mut self,
        opened: &Opened<Stream>,
        noted: &Noted,
        host: &Host,
        is_synchronous: bool,
        is_proved: bool,
    ) {
        let may = noted.access != Access::None;
        if !may {
            self.notes.stop();
            if !std::mem::replace(&mut self.logged_unnoted, true) {
                warn!(
                    slot = self.wanted.slot,
                    "this role may not note the slot's positions in walrelay_state: a slot that something else moves, or \
                     recreates, while no relay runs is not noticed. As a user who may: walrelay init --role ROLE"
                );
            }
            return;
        }
        // Where the role may not, the notes log why.
        let opening = self
            .notes
            .open(&self.info, host, opened, is_synchronous, is_proved);
        opening.await;
    }

    pub(super) async fn attempt(
        &mut self,
        resume: Option<&Resume>,
    ) -> Result<Opened<Stream>, PostgresError> {
        // Another relay that shares the file may have written it.
        let by_file = self.load_file().await?;
        let connected = self.connect(resume).await?;
        if connected.snapshot {
            return self.begin_snapshot(connected).await;
        }
        self.open_slot(connected, resume, by_file).await
    }

    /// Starts the stream of the slot. `by_file`: another relay has written the state file.
    async fn open_slot(
        &mut self,
        connected: Connected,
        resume: Option<&Resume>,
        mut by_file: bool,
    ) -> Result<Opened<Stream>, PostgresError> {
        let Connected {
            mut control,
            replication,
            mut facts,
            system,
            ..
        } = connected;
        let server = facts.server.clone();
        let walsender = replication.backend_pid();
        let gap = Gap {
            from: connected.moment.known(),
            to: server.wal_end,
        };
        let stream = self.start(replication, &mut control, gap).await?;
        // Whatever fails from here on: the walsender that this process leaves is no other relay.
        self.readers.started(walsender);
        // Read the slot again: no other process can move it now, and the stream begins at its
        // position.
        let slot = bounded("reading the slot", slot(&mut control, &self.wanted.slot))
            .await?
            .ok_or_else(|| self.slot_gone())?;
        // With several hosts, or an address that moves, the two connections may reach different
        // servers. Then a position of one server would be confirmed to the other.
        if slot.active_pid != Some(i64::from(walsender)) {
            // A walsender that has failed already frees the slot and stays connected. Its error is
            // read from the stream.
            let here = is_walsender(&mut control, walsender);
            if slot.active_pid.is_some() || !bounded("looking for the walsender", here).await? {
                return Err(PostgresError::TwoServers(self.wanted.slot.clone()));
            }
        }
        // The slot's last reader may have written the file since.
        by_file |= self.load_file().await?;
        let confirmed = slot.confirmed.unwrap_or(Lsn::ZERO);
        debug!(slot = self.wanted.slot, %confirmed, host = %self.info.redacted(), "started");
        let name = self.info.shown_application_name();
        let is_synchronous = is_synchronous(&mut control, &name);
        let is_synchronous = bounded("reading a setting", is_synchronous).await?;
        if is_synchronous {
            warn!(
                "synchronous_standby_names makes this relay a synchronous standby: commits wait until it \
                 has confirmed them, and hang while no relay runs. Name the standbys there, without the \
                 relay's application_name"
            );
        }
        // This process may have read the snapshot.
        if !self.started
            && !self.snapshot_progress.is_acknowledged()
            && let Ok(Some(unread)) = unread(&mut control, &self.wanted).await
        {
            warn!(remedy = unread.remedy(), "{unread}");
        }
        self.watch_retention(&server, &slot);
        // The setup, or another relay, may have made the publication since.
        facts = bounded("reading the catalogs", inspect(&mut control, &self.wanted)).await?;
        let described = describe(&mut control, &self.wanted.tables);
        let tables = bounded("reading the columns of the tables", described).await?;
        // Under the slot: a switch refuses while it is being read.
        let epoch = find_epoch(&mut control, &self.wanted.slot);
        let epoch = bounded("reading the epoch", epoch).await?;
        self.former_run.set_epoch(epoch.number);
        if epoch.number > 0 && !self.started {
            info!(
                epoch = epoch.number,
                "positions are published with the epoch of a move"
            );
        }
        let mut opened = Opened {
            stream: Stream::from_slot(
                stream,
                &self.wanted.slot,
                Some(&self.wanted.publication),
                Arc::clone(&self.relayed),
            ),
            system_id: system.system_id,
            timeline: system.timeline,
            slot: Some(self.wanted.slot.clone()),
            server_start: server.start,
            ancestors: connected.ancestors,
            flushed: system.flushed,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: Some(self.wal_sender_timeout),
            tables,
            predecessor: self.readers.predecessor(),
            former: connected.former,
            epoch: epoch.number,
        };
        // The setup, or another relay, may have noted a position since.
        let noted = Noted::find(&mut control, &self.wanted.slot, self.wanted.create);
        let noted = bounded("reading the noted position", noted).await?;
        let by_itself = matches!(connected.moment, Moment::Relayed { upto } if confirmed <= upto);
        let accepted = self.accepted;
        let continued = async {
            let database = server.database;
            self.continue_publication(&facts, &noted, &opened, walsender)?;
            let (position, in_file) = self.continue_file(&opened, database, &mut control).await?;
            if resume.is_some_and(|resume| resume.continued_by(&opened).is_err()) {
                // The pipeline stops at the slot's position: note and file stay as they are.
                return Ok(None);
            }
            let mut is_proved = by_itself || in_file || self.accepted != accepted;
            if !is_proved && !server.in_recovery {
                is_proved = self.continue_note(&opened, &noted)?;
            }
            if let (Some(state_file), Some(position)) = (&mut self.state_file, position) {
                state_file.set(position).await?;
            }
            Ok(Some(is_proved))
        };
        match continued.await {
            Ok(Some(is_proved)) if !server.in_recovery => {
                if noted.access != Access::None {
                    self.open_account(&mut control, &opened.system_id).await;
                } else if let Some(account) = &self.account {
                    // Sums are written with the notes.
                    account.begin(None);
                }
                self.note_carried(&mut control, &noted).await;
                let host = control.host().clone();
                let notes = self.begin_notes(&opened, &noted, &host, is_synchronous, is_proved);
                notes.await;
            }
            Ok(_) => {
                self.notes.stop();
                if let Some(account) = &self.account {
                    account.begin(None);
                }
            }
            Err(error) => {
                // The next relay would count a walsender that is left as the reader that moved the slot.
                let _ = bounded("ending the stream", opened.stream.finish()).await;
                return Err(error);
            }
        }
        if !self.started {
            self.find_last_error(&mut control, confirmed).await;
        }
        if !self.started || opened.predecessor.is_some() {
            self.find_former_run(&mut control, confirmed).await;
        }
        self.inspections = Inspections::over(control);
        if by_file && self.started {
            // The file's position covers the slot's, or `continue_file` would have failed.
            opened.predecessor.get_or_insert(Predecessor::StateFile);
        }
        self.set_streaming(&opened, walsender);
        // The server ends a stream of which it has heard nothing for `wal_sender_timeout`, and the queries
        // above took a part of that. If this fails, the stream says so.
        opened.stream.queue_status(StatusUpdate::NO_POSITION);
        let _ = bounded("the first status", opened.stream.flush()).await;
        Ok(opened)
    }

    /// Looks for the error with which the last run ended, so that views show it until the slot has moved.
    async fn find_last_error(&self, control: &mut Session, confirmed: Lsn) {
        let find = last_error::find(control, &self.wanted.slot, self.state_path.as_deref());
        match timeout(publication_note::NOTE_LIMIT, find).await {
            Ok(Ok(Some(error))) if !error.is_passed(Some(confirmed)) => {
                info!(remedy = error.remedy, "the last run {}", error.text());
                let _ = self.last_error.set(error);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => debug!(error = %Chain(&error), "the last error cannot be read"),
            Err(_) => debug!("the last error cannot be read: no answer"),
        }
    }

    /// Looks for the note of the run before, or of the relay that has read the slot meanwhile. The sink is made
    /// after it, so that it compares what its streams had with what they have before it writes.
    async fn find_former_run(&self, control: &mut Session, confirmed: Lsn) {
        let find = run_note::find(control, &self.wanted.slot, self.state_path.as_deref());
        match timeout(publication_note::NOTE_LIMIT, find).await {
            Ok(Ok(note)) => self.former_run.found(note, confirmed),
            Ok(Err(error)) => {
                debug!(error = %Chain(&error), "the note of the run before cannot be read");
            }
            Err(_) => debug!("the note of the run before cannot be read: no answer"),
        }
    }

    /// Begins or continues the account of sent rows. Without it the stream goes on, and its rows stay.
    async fn open_account(&mut self, control: &mut Session, system: &str) {
        let Some(account) = &self.account else {
            return;
        };
        let (slot, publication) = (&self.wanted.slot, &self.wanted.publication);
        let opened = async {
            if !account::ensure(control, self.wanted.create).await? {
                return Ok(None);
            }
            let opened = account::open(control, slot, system, publication).await?;
            Ok::<_, Error>(Some(opened))
        };
        let through = match bounded("reading the account of sent rows", opened).await {
            Ok(Some(OpenedAccount { through, opening })) => {
                self.notes.opening = opening;
                Some(through)
            }
            not_opened => {
                warn!(
                    slot,
                    error = not_opened.err().map(|error| Chain(&error).to_string()),
                    "sent rows cannot be accounted in walrelay_state: events go on, and rows that are sent until the \
                     next connection are not deleted. A role that may create nothing there needs walrelay init \
                     --role ROLE of this version"
                );
                None
            }
        };
        account.begin(through);
    }

    /// Records that this process streams, by this walsender.
    fn set_streaming(&mut self, opened: &Opened<Stream>, walsender: i32) {
        self.readers.streaming(walsender);
        self.walsender.store(walsender, Ordering::Relaxed);
        self.server_start = Some(opened.server_start.clone());
        let confirmed = opened.confirmed.lsn().get();
        self.relayed.fetch_max(confirmed, Ordering::Relaxed);
        let accepted = self.accepted || self.accepted_publication;
        if std::mem::take(&mut self.accept_gap) && !accepted {
            info!("there is no gap in the log: --accept-gap changes nothing");
        }
        self.started = true;
    }

    /// Starts the stream from the slot's position, over the replication session.
    ///
    /// `gap`: the range that is not relayed if the server has removed the slot's WAL.
    async fn start(
        &mut self,
        replication: Session,
        control: &mut Session,
        gap: Gap,
    ) -> Result<ReplicationStream, PostgresError> {
        let command = StartReplication {
            slot: self.wanted.slot.clone(),
            // Zero: the server starts at the slot's position. It would skip events up to a higher
            // position.
            start: Lsn::ZERO,
            publication: self.wanted.publication.clone(),
            messages: self.wanted.messages.is_some(),
        };
        let started = replication.start_replication(&command);
        match bounded("START_REPLICATION", started).await {
            Err(PostgresError::Wal(error)) if error.class() == ErrorClass::SlotInUse => {
                // The query for the reader may fail: the reader only completes the error's text.
                let found = slot_reader(control, &self.wanted.slot);
                let reader = bounded("reading the slot", found).await.ok().flatten();
                if let Some(reader) = &reader {
                    self.readers.record(reader);
                    self.forget_look_of(reader);
                }
                Err(self.slot_busy(reader, Some(error)))
            }
            Err(PostgresError::Wal(source)) if source.class() == ErrorClass::WalGone => {
                let slot = self.wanted.slot.clone();
                Err(PostgresError::WalGone { slot, gap, source })
            }
            started => started,
        }
    }

    /// Reads the state file, if one is configured. Returns whether its position is ahead of the
    /// known one.
    async fn load_file(&mut self) -> Result<bool, PostgresError> {
        match &mut self.state_file {
            Some(state_file) if !self.accepted => Ok(state_file.load().await?),
            _ => Ok(false),
        }
    }

    pub(super) fn slot_gone(&self) -> SetupError {
        SetupError::SlotGone {
            slot: self.wanted.slot.clone(),
            gap: Gap {
                from: Some(self.relayed()),
                to: None,
            },
        }
    }
}
