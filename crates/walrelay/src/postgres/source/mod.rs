//! The replication connection of one slot, with an ordinary control connection beside it.

mod copy;
mod initial;
mod inspections;
mod range;
mod readers;
mod resend;
mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{
    Ancestor, Chain, Continuity, Looked, Opened, Predecessor, Resume, SlotOwner, Source,
};
use walrelay_walsender::{
    ConnInfo, Error, ErrorClass, ReplicationStream, Session, SessionKind, StartReplication,
    SystemIdentity,
};

use super::catalog::{ServerFacts, SlotFacts, SlotReader, Wanted, describe, inspect, reader, slot};
use super::deadline::bounded;
use super::error::{Gap, PostgresError, SetupError};
use super::retention::{Retention, RetentionWatch};
use super::setup::{Moment, Prepared, plan, prepare};
use super::snapshot::{SnapshotProgress, settings as snapshot_settings};
use super::state_file::{Position, StateWriter};
pub(crate) use copy::{CopySource, Original};
use initial::{InitialSnapshot, looked_at_snapshot};
use inspections::{Inspection, Inspections};
pub(crate) use range::{Range, RangeSource, Reading, first_commit};
use readers::Readers;
pub(crate) use resend::ResendSource;
use stream::Stream;

/// How often a relay that waits for a busy slot queries its reader, and for how long before it tries to start
/// replication again.
const BUSY_INTERVAL: Duration = Duration::from_millis(200);
const BUSY_DEADLINE: Duration = Duration::from_secs(30);

/// How a source behaves.
#[derive(Debug, Clone)]
pub(crate) struct SourceOptions {
    /// `wal_sender_timeout` of the replication session. The server's own may be long, or off: a relay
    /// whose machine has vanished would keep the slot for as long, and a connection that is dead would
    /// go unnoticed while the server decodes.
    pub(crate) wal_sender_timeout: Duration,
    /// A file that holds how far the relay has come, written before a position is confirmed.
    pub(crate) state_file: Option<PathBuf>,
    /// Whether the first connection may go on over a gap in the log.
    pub(crate) accept_gap: bool,
    /// Warn if more bytes of WAL than this are kept for the slot; 0 for never.
    pub(crate) retained_wal_warning: u64,
}

/// Opens the replication connection of one slot, with an ordinary control connection beside it.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and all combinations can be"
)]
pub(crate) struct PostgresSource {
    info: ConnInfo,
    wanted: Wanted,
    wal_sender_timeout: Duration,
    /// Of the stream, with the control connection; begun anew with each stream.
    inspections: Inspections,
    state_file: Option<StateWriter>,
    /// Until the first stream is open.
    accept_gap: bool,
    /// Whether there was a gap to accept.
    accepted: bool,
    /// Whether a stream was open.
    started: bool,
    /// When the server of the last stream was started, in its own words.
    server_start: Option<String>,
    /// Up to where everything is acknowledged, as far as the source was told; shared with the
    /// stream, whose errors name it.
    relayed: Arc<AtomicU64>,
    /// Another process read the slot when it was tried last.
    found_busy: bool,
    readers: Readers,
    /// The process that serves the stream, 0 before there is one.
    walsender: Arc<AtomicI32>,
    watch: RetentionWatch,
    /// A snapshot that is being read.
    snapshot: Option<InitialSnapshot>,
    snapshot_progress: Arc<SnapshotProgress>,
}

/// Both connections, and the answers over them.
struct Connected {
    control: Session,
    replication: Session,
    server: ServerFacts,
    system: SystemIdentity,
    ancestors: Vec<Ancestor>,
    moment: Moment,
    /// There is no slot: a snapshot comes first.
    snapshot: bool,
}

impl PostgresSource {
    /// A source that has not connected yet.
    pub(crate) fn new(info: ConnInfo, wanted: Wanted, options: SourceOptions) -> Self {
        Self {
            watch: RetentionWatch::new(wanted.slot.clone(), options.retained_wal_warning),
            readers: Readers::new(info.application_name.clone()),
            info,
            wanted,
            wal_sender_timeout: options.wal_sender_timeout,
            inspections: Inspections::default(),
            state_file: options.state_file.map(StateWriter::new),
            accept_gap: options.accept_gap,
            accepted: false,
            started: false,
            server_start: None,
            relayed: Arc::default(),
            found_busy: false,
            walsender: Arc::default(),
            snapshot: None,
            snapshot_progress: Arc::default(),
        }
    }

    /// Shows there how far a snapshot has come.
    pub(crate) fn with_progress(self, snapshot_progress: Arc<SnapshotProgress>) -> Self {
        Self {
            snapshot_progress,
            ..self
        }
    }

    /// The process that serves the stream, 0 before there is one.
    pub(crate) fn walsender(&self) -> Arc<AtomicI32> {
        Arc::clone(&self.walsender)
    }

    /// What the state file says, if one is kept.
    fn kept(&self) -> Option<&Position> {
        self.state_file.as_ref().and_then(StateWriter::kept)
    }

    fn relayed(&self) -> Lsn {
        Lsn::new(self.relayed.load(Ordering::Relaxed))
    }

    async fn connect(&mut self, resume: Option<&Resume>) -> Result<Connected, PostgresError> {
        let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        self.until_free(&mut control).await?;
        let facts = bounded("reading the catalogs", inspect(&mut control, &self.wanted)).await?;
        if let Some(state_file) = &self.state_file {
            state_file.belongs_to(&self.wanted.slot, &facts.server.database)?;
        }
        let millis = self.wal_sender_timeout.as_millis().to_string();
        let mut settings = vec![("wal_sender_timeout", millis.as_str())];
        if self.wanted.snapshot.is_some() && facts.slot.is_none() {
            settings.extend(snapshot_settings(facts.server.major));
        }
        let mut replication =
            Session::connect(&self.info, SessionKind::Replication, &settings).await?;
        let system = bounded("IDENTIFY_SYSTEM", replication.identify_system()).await?;
        let ancestors = self
            .ancestors(&mut replication, system.timeline, resume)
            .await?;
        let moment = self.moment(resume, &ancestors);
        let prepared = prepare(&self.wanted, moment, &facts, &mut control, &mut replication);
        let Prepared { gap, snapshot } = prepared.await?;
        if gap.is_some() {
            self.accepted = true;
            // Its position is behind the new slot.
            if let Some(state_file) = &mut self.state_file {
                state_file.forget();
            }
        }
        Ok(Connected {
            control,
            replication,
            server: facts.server,
            system,
            ancestors,
            moment,
            snapshot,
        })
    }

    /// The moment, with positions that a server with these ancestors has.
    fn moment(&self, resume: Option<&Resume>, ancestors: &[Ancestor]) -> Moment {
        let in_common = |known: &Resume| known.in_common(ancestors).lsn();
        match resume {
            Some(resume) if self.started => Moment::Relayed {
                upto: in_common(resume),
            },
            // Of a snapshot that was not completed nothing counts.
            _ => Moment::Start {
                known: self.kept().map(|kept| in_common(&kept.resume(None))),
                accept_gap: self.accept_gap,
            },
        }
    }

    /// Queries the reader of the slot. If the slot was busy in the last attempt, waits until it is free, over
    /// this one connection: two new ones for each query would cost the primary more than the relay that
    /// reads. Stops waiting after a while, so that the server reports the reader itself, and at once if the
    /// reader is a new one, so that the pipeline learns of it.
    async fn until_free(&mut self, control: &mut Session) -> Result<(), PostgresError> {
        let until = Instant::now() + BUSY_DEADLINE;
        loop {
            let found = bounded("reading the slot", reader(control, &self.wanted.slot)).await?;
            let Some(reader) = found else {
                return Ok(());
            };
            let new = self.readers.saw(&reader);
            if !self.found_busy || Instant::now() >= until {
                return Ok(());
            }
            if new {
                return Err(self.busy(Some(reader), None));
            }
            sleep(BUSY_INTERVAL).await;
        }
    }

    fn busy(&self, reader: Option<SlotReader>, source: Option<Error>) -> PostgresError {
        PostgresError::SlotBusy {
            slot: self.wanted.slot.clone(),
            own: reader
                .as_ref()
                .is_some_and(|reader| self.readers.is_own(reader.pid)),
            reader,
            source,
        }
    }

    /// The ancestors of the server's timeline, if it is not the timeline of the last stream or state file.
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
        if !promoted {
            return Ok(Vec::new());
        }
        let history = replication.timeline_history(timeline);
        let history = bounded("TIMELINE_HISTORY", history).await?;
        let ancestors = history.into_iter().map(|ancestor| Ancestor {
            timeline: ancestor.timeline,
            ended: ancestor.ended,
        });
        Ok(ancestors.collect())
    }

    /// Checks that the stream continues the state file, and writes the file: if that fails, nothing has
    /// been streamed.
    async fn continue_file(
        &mut self,
        opened: &Opened<Stream>,
        database: String,
    ) -> Result<(), PostgresError> {
        let Some(state_file) = &mut self.state_file else {
            return Ok(());
        };
        let here = Position {
            system_id: opened.system_id.clone(),
            timeline: opened.timeline,
            database,
            slot: self.wanted.slot.clone(),
            confirmed: opened.confirmed.lsn(),
        };
        let position = match state_file.kept() {
            None => here,
            Some(kept) => match kept.resume(self.server_start.clone()).continued_by(opened) {
                Ok(Continuity::Same) => Position {
                    timeline: opened.timeline,
                    ..kept.clone()
                },
                // If the process has streamed before, the pipeline logs this.
                Ok(Continuity::HandedOver { from, to, by }) => {
                    if !self.started {
                        info!(%from, %to, %by, "another relay has read the slot since the state file was written");
                    }
                    here
                }
                Ok(Continuity::Promoted { parted }) => {
                    // If the process has streamed before, the pipeline logs this.
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
                Err(error) if self.accept_gap => {
                    warn!(slot = self.wanted.slot, "accepted by --accept-gap: {error}");
                    self.accepted = true;
                    here
                }
                Err(error) => return Err(error.into()),
            },
        };
        Ok(state_file.set(position).await?)
    }

    async fn attempt(&mut self, resume: Option<&Resume>) -> Result<Opened<Stream>, PostgresError> {
        // Another relay with the same file may have written it.
        let mut by_file = self.load_file().await?;
        let Connected {
            mut control,
            replication,
            server,
            system,
            ancestors,
            moment,
            snapshot,
        } = self.connect(resume).await?;
        if snapshot {
            let snapshot = self.begin_snapshot(control, replication, server, system);
            return snapshot.await;
        }
        let walsender = replication.backend_pid();
        let gap = Gap {
            from: moment.known(),
            to: server.wal_end,
        };
        let stream = self.start(replication, &mut control, gap).await?;
        // Again, now that no other process can move it: the stream begins here.
        let slot = bounded("reading the slot", slot(&mut control, &self.wanted.slot))
            .await?
            .ok_or_else(|| self.gone())?;
        // Several hosts, or an address that moves: both connections must see the same slot, or the
        // position of one server would be confirmed to another.
        if slot.active_pid != Some(i64::from(walsender)) {
            return Err(PostgresError::TwoServers(self.wanted.slot.clone()));
        }
        // The last reader of the slot may have written it since.
        by_file |= self.load_file().await?;
        let confirmed = slot.confirmed.unwrap_or(Lsn::ZERO);
        debug!(slot = self.wanted.slot, %confirmed, host = %self.info.redacted(), "started");
        self.watch_retention(&server, &slot);
        let described = describe(&mut control, &self.wanted.tables);
        let tables = bounded("reading the columns of the tables", described).await?;
        self.inspections = Inspections::over(Some(control));
        let mut opened = Opened {
            stream: Stream::of_slot(stream, &self.wanted.slot, Arc::clone(&self.relayed)),
            system_id: system.system_id,
            timeline: system.timeline,
            server_start: server.start,
            ancestors,
            flushed: system.flushed,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: Some(self.wal_sender_timeout),
            tables,
            predecessor: self.readers.predecessor(),
        };
        self.continue_file(&opened, server.database).await?;
        if by_file && self.started {
            // The file reaches the slot's position, or it would not have been continued.
            opened.predecessor.get_or_insert(Predecessor::StateFile);
        }
        self.readers.streaming(walsender);
        self.walsender.store(walsender, Ordering::Relaxed);
        self.server_start = Some(opened.server_start.clone());
        self.relayed.fetch_max(confirmed.get(), Ordering::Relaxed);
        if std::mem::take(&mut self.accept_gap) && !self.accepted {
            info!("there is no gap in the log: --accept-gap changes nothing");
        }
        self.started = true;
        Ok(opened)
    }

    /// Starts the stream from the slot's position. The replication session goes with it.
    ///
    /// `gap`: what is not relayed if the server has no log for the slot.
    async fn start(
        &mut self,
        replication: Session,
        control: &mut Session,
        gap: Gap,
    ) -> Result<ReplicationStream, PostgresError> {
        let command = StartReplication {
            slot: self.wanted.slot.clone(),
            // A position ahead of the slot's would be honoured, and what lies between would be skipped
            // for good.
            start: Lsn::ZERO,
            publications: vec![self.wanted.publication.clone()],
            messages: self.wanted.messages.is_some(),
            proto_version: 1,
        };
        let started = replication.start_replication(&command);
        match bounded("START_REPLICATION", started).await {
            Err(PostgresError::Wal(error)) if error.class() == ErrorClass::SlotInUse => {
                // The reader is an addition to the error.
                let found = reader(control, &self.wanted.slot);
                let reader = bounded("reading the slot", found).await.ok().flatten();
                if let Some(reader) = &reader {
                    self.readers.saw(reader);
                }
                Err(self.busy(reader, Some(error)))
            }
            Err(PostgresError::Wal(source)) if source.class() == ErrorClass::WalGone => {
                let slot = self.wanted.slot.clone();
                Err(PostgresError::WalGone { slot, gap, source })
            }
            started => started,
        }
    }

    /// Reads the state file, if one is kept. Returns whether it goes further than what was known here.
    async fn load_file(&mut self) -> Result<bool, PostgresError> {
        match &mut self.state_file {
            Some(state_file) if !self.accepted => Ok(state_file.load().await?),
            _ => Ok(false),
        }
    }

    fn gone(&self) -> SetupError {
        SetupError::SlotGone {
            slot: self.wanted.slot.clone(),
            gap: Gap {
                from: Some(self.relayed()),
                to: None,
            },
        }
    }

    fn watch_retention(&mut self, server: &ServerFacts, slot: &SlotFacts) {
        self.watch.log(&Retention::of(server, slot));
    }

    async fn confirmed(&self, control: &mut Session) -> Result<Lsn, PostgresError> {
        let found = bounded("reading the slot", slot(control, &self.wanted.slot)).await?;
        found
            .and_then(|slot| slot.confirmed)
            .ok_or_else(|| self.gone().into())
    }
}

impl Source for PostgresSource {
    type Stream = Stream;
    type Error = PostgresError;

    async fn open(&mut self, resume: Option<&Resume>) -> Result<Opened<Stream>, PostgresError> {
        self.inspections = Inspections::default();
        if let Some(opened) = self.continue_snapshot().await? {
            return Ok(opened);
        }
        let result = match self.attempt(resume).await {
            // The slot may have been lost between the look at it and the start: then the catalogs
            // say so now.
            Err(PostgresError::WalGone { .. }) => self.attempt(resume).await,
            result => result,
        };
        self.found_busy = matches!(result, Err(PostgresError::SlotBusy { .. }));
        result
    }

    fn note(&mut self, position: CommitEnd) -> Result<CommitEnd, PostgresError> {
        // Nothing is confirmed in a slot before the snapshot is complete.
        if self.snapshot.is_some() {
            return Ok(position);
        }
        self.relayed
            .fetch_max(position.lsn().get(), Ordering::Relaxed);
        match &mut self.state_file {
            Some(state_file) => Ok(state_file.note(position)?),
            None => Ok(position),
        }
    }

    fn look(&mut self) {
        let Some(snapshot) = &self.snapshot else {
            self.inspections.start(&self.info, &self.wanted);
            return;
        };
        let temporary = Wanted {
            slot: snapshot.temporary.clone(),
            ..self.wanted.clone()
        };
        self.inspections.start(&self.info, &temporary);
    }

    async fn looked(&mut self, blocked: bool) -> Result<Looked, PostgresError> {
        let Inspection { asked_at, facts } = self.inspections.ended().await;
        if self.snapshot.is_some() {
            return looked_at_snapshot(asked_at, facts);
        }
        let facts = match facts {
            Ok(facts) => facts,
            // A server that shuts down waits for its walsenders, and this walsender waits for us to read.
            Err(PostgresError::Wal(error))
                if blocked && error.class() == ErrorClass::ServerUnavailable =>
            {
                return Err(error.into());
            }
            Err(error) => {
                let reason = Chain(&error).to_string();
                return Ok(Looked::Failed { reason });
            }
        };
        if let Some(slot) = &facts.slot {
            self.watch_retention(&facts.server, slot);
            if blocked && slot.wal_status.as_deref() == Some("unreserved") {
                return Err(PostgresError::MakeWay(self.wanted.slot.clone()));
            }
        }
        let moment = Moment::Relayed {
            upto: self.relayed(),
        };
        plan(&self.wanted, &facts, moment)?;
        let active_pid = facts.slot.and_then(|slot| slot.active_pid);
        let owner = match active_pid {
            Some(pid) if self.readers.is_own(pid) => SlotOwner::Ours,
            Some(pid) => SlotOwner::Other { pid },
            None => SlotOwner::Nobody,
        };
        let timeline = facts.server.timeline;
        if owner == SlotOwner::Ours
            && let (Some(timeline), Some(state_file)) = (timeline, &mut self.state_file)
        {
            state_file.on_timeline(timeline);
        }
        Ok(Looked::Answered {
            asked_at,
            owner,
            timeline,
        })
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        if self.snapshot.is_some() {
            if !self.snapshot_progress.is_acknowledged() {
                return Ok(Lsn::ZERO);
            }
            self.continue_snapshot().await?;
        }
        // The control connection may have been idle for days, and closed by the server or by something in
        // between: then use a new one.
        if let Some(mut control) = self.inspections.take_session()
            && let Ok(confirmed) = self.confirmed(&mut control).await
        {
            self.inspections.keep_session(control);
            return Ok(confirmed);
        }
        let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let confirmed = self.confirmed(&mut control).await?;
        self.inspections.keep_session(control);
        Ok(confirmed)
    }
}
