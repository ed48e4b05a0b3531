//! [`PostgresSource`]: the replication connection of one slot, with a control connection alongside it.

mod copy;
mod held_slot;
mod initial;
mod inspections;
mod notes;
mod one_task;
mod opening;
mod range;
mod readers;
mod resend;
mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use tracing::warn;
use walrelay_lsn::{CommitEnd, Lsn, RelationId};
use walrelay_relay::{Chain, Opened, Resume, SentAccount, SentRows, SlotCheck, SlotOwner, Source};
use walrelay_sink::SinkStats;
use walrelay_walsender::{ConnInfo, ErrorClass, Session, SessionKind};

use super::catalog::{RetainedWal, ServerFacts, SlotRow, Wanted, slot};
use super::deadline::bounded;
use super::error::PostgresError;
use super::last_error::FoundError;
use super::publication_note::LastLook;
use super::retention::RetentionWatch;
use super::run_note::FormerRun;
use super::setup::{Moment, Setup, SlotWait, Unfinished, plan};
use super::snapshot::{LockThread, SnapshotProgress};
use super::state_file::{Position, StateWriter};
pub use copy::{CopySource, Original};
pub use held_slot::HeldSlot;
use initial::InitialSnapshot;
use inspections::{Inspection, Inspections};
use notes::{ClusterNote, Notes};
pub use range::{Range, RangeSource, Reading, first_commit};
use readers::Readers;
pub use resend::ResendSource;
use stream::Stream;

/// Options of a [`PostgresSource`].
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// `wal_sender_timeout` of the replication session. The server's own may be long, or off: then
    /// a relay whose machine has failed would keep the slot that long, and a dead connection would
    /// go unnoticed while the server decodes.
    pub wal_sender_timeout: Duration,
    /// The file of the acknowledged position, written before the position is confirmed to the slot.
    pub state_file: Option<PathBuf>,
    /// True if the first connection may continue after a gap in the WAL.
    pub accept_gap: bool,
    /// Warn if more bytes of WAL than this are kept for the slot; 0 disables the warning.
    pub retained_wal_warning: u64,
    /// Where to put what the source finds.
    pub findings: SourceFindings,
}

/// The facts that a source finds while it reads, shared with the views.
#[derive(Debug, Clone, Default)]
pub struct SourceFindings {
    /// Progress of the snapshot.
    pub snapshot: Arc<SnapshotProgress>,
    /// What the creation of the slot waits for.
    pub slot_wait: Arc<SlotWait>,
    /// The error with which the last run ended.
    pub last_error: Arc<FoundError>,
    /// The note of the run before.
    pub former_run: Arc<FormerRun>,
}

/// Opens the replication connection of one slot, with a control connection alongside it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub struct PostgresSource {
    info: ConnInfo,
    wanted: Wanted,
    wal_sender_timeout: Duration,
    /// The inspections alongside the current stream. They own the control connection.
    inspections: Inspections,
    state_file: Option<StateWriter>,
    /// The path of the state file.
    state_path: Option<PathBuf>,
    findings: SourceFindings,
    /// The positions that are noted in the database.
    notes: Notes,
    /// The sums of acknowledged rows, which are written with the notes.
    account: Option<Arc<SentAccount>>,
    /// The rows that are marked before their positions are confirmed; `None`: no rows are marked.
    sent_rows: Option<Arc<SentRows>>,
    /// The highest position before which all rows were marked, or stored as unmarked; at first that of
    /// the opened stream.
    marked: CommitEnd,
    /// True if a gap may be accepted; reset when the first stream is open.
    accept_gap: bool,
    /// A gap was accepted.
    accepted: bool,
    /// A stream was open.
    started: bool,
    /// It is logged that this role may not note positions.
    logged_unnoted: bool,
    /// The start time of the last stream's server, as the server prints it.
    server_start: Option<String>,
    /// The LSN up to which everything is acknowledged, by the last `persist_position`. Shared with the
    /// stream, whose errors name it.
    relayed: Arc<AtomicU64>,
    /// The last attempt failed because another process read the slot.
    found_busy: bool,
    /// The last attempt failed because this server was not switched to.
    awaits_switch: bool,
    readers: Readers,
    /// What the publication carries was changed, which is accepted.
    accepted_publication: bool,
    /// The last look at the catalogs: the publication carried the tables then.
    last_look: Option<LastLook>,
    /// PID of the stream's walsender; 0 before the first stream.
    walsender: Arc<AtomicI32>,
    watch: RetentionWatch,
    /// The setup that is being carried out.
    setup: Option<Setup>,
    /// The remains of a setup that failed and could not be undone.
    unfinished: Unfinished,
    /// The thread that drives the control session of a setup that ends with a snapshot.
    lock_thread: Option<LockThread>,
    /// The snapshot that is being read.
    snapshot: Option<InitialSnapshot>,
}

impl PostgresSource {
    /// Creates a source that has not connected yet.
    pub fn new(info: ConnInfo, wanted: Wanted, options: SourceOptions) -> Self {
        Self {
            watch: RetentionWatch::new(wanted.slot.clone(), options.retained_wal_warning),
            readers: Readers::new(info.shown_application_name()),
            info,
            notes: Notes::new(wanted.clone()),
            account: None,
            wanted,
            sent_rows: None,
            marked: CommitEnd::from_slot(Lsn::ZERO),
            wal_sender_timeout: options.wal_sender_timeout,
            inspections: Inspections::default(),
            state_path: options.state_file.clone(),
            state_file: options.state_file.map(StateWriter::new),
            findings: options.findings,
            accept_gap: options.accept_gap,
            accepted: false,
            started: false,
            logged_unnoted: false,
            server_start: None,
            relayed: Arc::default(),
            found_busy: false,
            awaits_switch: false,
            accepted_publication: false,
            last_look: None,
            walsender: Arc::default(),
            setup: None,
            unfinished: Unfinished::default(),
            lock_thread: None,
            snapshot: None,
        }
    }

    /// Writes these sums before it confirms the position up to which they count.
    #[must_use]
    pub fn with_account(mut self, account: Option<Arc<SentAccount>>) -> Self {
        self.notes.account.clone_from(&account);
        self.account = account;
        self
    }

    /// Keeps the id of the sink's cluster in the state file and in the database. A sink with another cluster
    /// confirms nothing, unless a gap may be accepted.
    #[must_use]
    pub fn with_sink(mut self, sink: Arc<SinkStats>) -> Self {
        let accepts = self.accept_gap;
        let state_file = self.state_file.take();
        self.notes.cluster = ClusterNote::new(Arc::clone(&sink), accepts);
        self.state_file = state_file.map(|file| file.with_sink(sink, accepts));
        self
    }

    /// Confirms a position only after the rows up to there are marked, see [`SentRows::settled`].
    #[must_use]
    pub fn with_sent_rows(self, sent_rows: Option<Arc<SentRows>>) -> Self {
        Self { sent_rows, ..self }
    }

    /// Returns the PID of the stream's walsender; 0 before the first stream.
    pub fn walsender(&self) -> Arc<AtomicI32> {
        Arc::clone(&self.walsender)
    }

    /// Returns the position in the state file, if there is one.
    fn kept(&self) -> Option<&Position> {
        self.state_file.as_ref().and_then(StateWriter::kept)
    }

    fn relayed(&self) -> Lsn {
        Lsn::new(self.relayed.load(Ordering::Relaxed))
    }

    fn watch_retention(&mut self, server: &ServerFacts, slot: &SlotRow) {
        self.watch.log(&RetainedWal::new(server, slot));
    }

    async fn confirmed(&self, control: &mut Session) -> Result<Lsn, PostgresError> {
        let found = bounded("reading the slot", slot(control, &self.wanted.slot)).await?;
        found
            .and_then(|slot| slot.confirmed)
            .ok_or_else(|| self.slot_gone().into())
    }

    async fn open_stream(
        &mut self,
        resume: Option<&Resume>,
    ) -> Result<Opened<Stream>, PostgresError> {
        self.inspections = Inspections::default();
        self.notes.close();
        // The future of the last attempt was dropped. Drop its control session, which releases the
        // lock; `connect` undoes the rest over a new session.
        if let Some(setup) = self.setup.take() {
            self.unfinished = setup.unfinished;
        }
        if let Some(opened) = self.continue_snapshot().await? {
            return Ok(opened);
        }
        let result = match self.attempt(resume).await {
            // The slot may have been lost between the inspection and START_REPLICATION. A second
            // attempt then finds that in the catalogs.
            Err(PostgresError::WalGone { .. }) => self.attempt(resume).await,
            result => result,
        };
        self.found_busy = matches!(result, Err(PostgresError::SlotBusy { .. }));
        result
    }
}

impl Source for PostgresSource {
    type Stream = Stream;
    type Error = PostgresError;

    async fn open(&mut self, resume: Option<&Resume>) -> Result<Opened<Stream>, PostgresError> {
        // On the heap: it is large.
        let opened = Box::pin(self.open_stream(resume)).await?;
        self.marked = opened.confirmed;
        Ok(opened)
    }

    async fn undo_open(&mut self) {
        let undone = match self.setup.take() {
            Some(mut setup) => {
                let undone = setup.unfinished.undo(&self.wanted, &mut setup.control);
                undone.await
            }
            None if self.unfinished.is_nothing() => return,
            None => self.undo_anew().await,
        };
        if let Err(error) = undone {
            warn!(
                error = %Chain(&error),
                publication = self.wanted.publication,
                "the interrupted setup is not undone: if the publication is left without its slot, drop it \
                 before the next start"
            );
        }
    }

    fn persist_position(
        &mut self,
        mut position: CommitEnd,
        soon: CommitEnd,
    ) -> Result<CommitEnd, PostgresError> {
        if let Some(settled) = self.sent_rows.as_ref().and_then(|rows| rows.settled()) {
            position = position.min(settled.max(self.marked));
        }
        self.marked = self.marked.max(position);
        // No slot exists before the snapshot is complete, so there is nothing to confirm in.
        if self.snapshot.is_some() {
            return Ok(position);
        }
        self.relayed
            .fetch_max(position.lsn().get(), Ordering::Relaxed);
        let position = self.notes.persist_position(position, soon)?;
        match &mut self.state_file {
            Some(state_file) => Ok(state_file.persist_position(position)?),
            None => Ok(position),
        }
    }

    fn check_slot(&mut self, unresolved: Option<RelationId>) {
        // The thread of a snapshot's lock proves unasked.
        if self.snapshot.is_none() {
            let last = self.last_look.as_ref();
            self.inspections
                .start(&self.info, &self.wanted, last, unresolved);
        }
    }

    async fn slot_checked(&mut self, blocked: bool) -> Result<SlotCheck, PostgresError> {
        if let Some(snapshot) = &mut self.snapshot {
            return snapshot.slot_checked().await;
        }
        let Inspection {
            asked_at,
            facts,
            place,
            is_synchronous,
        } = self.inspections.ended().await;
        if let Some(is_synchronous) = is_synchronous {
            self.notes.set_synchronous(is_synchronous);
        }
        let facts = match facts {
            Ok(facts) => facts,
            // A server that shuts down waits for its walsenders, and this walsender waits until its
            // client reads.
            Err(PostgresError::Wal(error))
                if blocked && error.class() == ErrorClass::ServerUnavailable =>
            {
                return Err(error.into());
            }
            Err(error) => {
                let reason = Chain(&error).to_string();
                return Ok(SlotCheck::Failed { reason });
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
        let carried_at = self.last_look.as_ref().map(|last| last.at);
        let carries = plan(&self.wanted, &facts, moment);
        carries.map_err(|error| error.carried_at(carried_at))?;
        if let Some(last) = &mut self.last_look {
            last.renew(&self.wanted, &facts)?;
        } else {
            let reader = self.walsender.load(Ordering::Relaxed).into();
            self.last_look = LastLook::new(&facts, reader);
        }
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
            state_file.set_timeline(timeline);
        }
        Ok(SlotCheck::Answered {
            asked_at,
            owner,
            timeline,
            place,
        })
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        if self.snapshot.is_some() {
            if !self.findings.snapshot.is_acknowledged() {
                return Ok(Lsn::ZERO);
            }
            self.continue_snapshot().await?;
        }
        // The server, or a device in between, may have closed the idle control connection. Then use
        // a new one.
        if let Some(mut control) = self.inspections.session.take()
            && let Ok(confirmed) = self.confirmed(&mut control).await
        {
            self.inspections.session = Some(control);
            return Ok(confirmed);
        }
        let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let confirmed = self.confirmed(&mut control).await?;
        self.inspections.session = Some(control);
        Ok(confirmed)
    }
}
