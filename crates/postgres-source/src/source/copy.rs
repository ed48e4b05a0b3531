//! [`CopySource`]: reads a slot through temporary copies, so that nothing is confirmed in the slot
//! itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;
use walrelay_lsn::{CommitEnd, Lsn, RelationId};
use walrelay_relay::{Chain, Opened, Resume, SlotCheck, Source, TableName, TablePlace};
use walrelay_walsender::{ConnInfo, Session, SessionKind, SlotOptions, StartReplication};

use super::inspections::OwnSlotChecks;
use super::one_task::OneTask;
use super::stream::Stream;
use crate::bookmarks::copy_slot;
use crate::catalog::{REPLAY_COPY, Wanted, describe, inspect, place, slot};
use crate::deadline::bounded;
use crate::epoch::find_epoch;
use crate::error::{PostgresError, SetupError, SlotSetupError};
use crate::setup::{Action, Moment, plan};

/// The slot to copy, and what is needed to read a copy.
#[derive(Debug, Clone)]
pub struct Original {
    /// The address of the server.
    pub info: ConnInfo,
    /// The slot that is copied. Nothing is confirmed in it here; its own reader may move it on.
    pub slot: String,
    /// Name of the publication.
    pub publication: String,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Messages of `pg_logical_emit_message` are read too.
    pub messages: bool,
    /// `wal_sender_timeout` of the sessions.
    pub wal_sender_timeout: Duration,
}

/// Reads a slot through temporary copies. Each stream reads a new copy, which ends with its
/// connection. After a lost connection the next copy starts at the original's position again, and
/// events that were acknowledged are skipped.
#[derive(Debug)]
pub struct CopySource {
    original: Original,
    /// The setup of the database to check; `None`: the caller has created it.
    wanted: Option<Wanted>,
    /// The slot whose relay publishes the events: their positions have its epoch.
    relay_slot: String,
    /// Prefix of the copies' names.
    name: String,
    /// The stream starts here, or at the slot's position if that is later.
    start: Lsn,
    /// A missing slot is an error.
    must_exist: bool,
    /// A slot that has moved beyond `start` is an error.
    must_hold_start: bool,
    /// Number of copies made; part of their names.
    copies: u32,
    /// PID of the stream's walsender; 0 before the first stream.
    walsender: Arc<AtomicI32>,
    control: Option<Session>,
    /// No other process can read a temporary slot.
    slot_checks: OwnSlotChecks,
    /// The query for the place of a table: when it was started, the table, and its place.
    placing: OneTask<(Instant, RelationId, Result<TablePlace, PostgresError>)>,
}

impl CopySource {
    /// Creates a source without a copy. `name`: the prefix of the copies' names.
    pub fn new(original: Original, name: &str) -> Self {
        Self {
            relay_slot: original.slot.clone(),
            original,
            wanted: None,
            name: name.to_owned(),
            start: Lsn::ZERO,
            must_exist: false,
            must_hold_start: false,
            copies: 0,
            walsender: Arc::default(),
            control: None,
            slot_checks: OwnSlotChecks::default(),
            placing: OneTask::default(),
        }
    }

    /// Creates a source for `walrelay run` with a sink that confirms nothing: the configured slot,
    /// after the checks of a relay's setup. Creates nothing that outlives the connection. If the
    /// slot is missing, a temporary slot at the end of the WAL replaces it.
    pub fn from_configured(info: ConnInfo, wanted: Wanted, wal_sender_timeout: Duration) -> Self {
        let original = Original {
            info,
            slot: wanted.slot.clone(),
            publication: wanted.publication.clone(),
            tables: wanted.tables.clone(),
            messages: wanted.messages.is_some(),
            wal_sender_timeout,
        };
        Self {
            wanted: Some(wanted),
            ..Self::new(
                original,
                &format!("walrelay_print_{:08x}", fastrand::u32(..)),
            )
        }
    }

    /// Creates a source for `walrelay replay`: the slot that `wanted` names, from `start` on, after
    /// the checks of a relay's setup. With `must_hold_start`, a slot that has moved beyond `start`
    /// is a [`PostgresError::ReplayGone`]. `relay_slot`: the slot whose relay publishes the events.
    pub fn from_kept(
        info: ConnInfo,
        wanted: Wanted,
        relay_slot: &str,
        wal_sender_timeout: Duration,
        start: Lsn,
        must_hold_start: bool,
    ) -> Self {
        Self {
            name: format!("{REPLAY_COPY}{:08x}", fastrand::u32(..)),
            start,
            must_exist: true,
            must_hold_start,
            relay_slot: relay_slot.to_owned(),
            ..Self::from_configured(info, wanted, wal_sender_timeout)
        }
    }

    /// Returns the PID of the stream's walsender; 0 before the first stream.
    pub fn walsender(&self) -> Arc<AtomicI32> {
        Arc::clone(&self.walsender)
    }

    /// Returns the control connection, or a new one.
    async fn control(&mut self) -> Result<Session, PostgresError> {
        Ok(match self.control.take() {
            Some(control) => control,
            None => Session::connect(&self.original.info, SessionKind::Sql, &[]).await?,
        })
    }

    /// Returns the name of the current copy.
    fn copy(&self) -> String {
        format!("{}_{}", self.name, self.copies)
    }

    /// Returns whether there is a slot to copy.
    ///
    /// # Errors
    /// Also if the database is not set up as a relay needs it.
    async fn has_slot(&self, control: &mut Session) -> Result<bool, PostgresError> {
        let Some(wanted) = &self.wanted else {
            return Ok(true);
        };
        let facts = bounded("reading the catalogs", inspect(control, wanted)).await?;
        let plan = plan(wanted, &facts, Moment::Print)?;
        if self.must_exist && plan.actions.contains(&Action::CreateSlot) {
            return Err(SetupError::Slot(SlotSetupError::Missing {
                slot: wanted.slot.clone(),
                gap: None,
            })
            .into());
        }
        Ok(!plan.actions.contains(&Action::CreateSlot))
    }

    /// Creates the temporary slot that the stream reads.
    async fn create_temporary(
        &self,
        has_slot: bool,
        replication: &mut Session,
    ) -> Result<(), PostgresError> {
        let (slot, copy) = (&self.original.slot, self.copy());
        if has_slot {
            replication.query(&copy_slot(slot, &copy, true)).await?;
            if self.wanted.is_some() {
                info!(
                    slot,
                    copy, "reading a temporary copy of the slot: nothing is confirmed in the slot"
                );
            }
            return Ok(());
        }
        // Postgres waits for all transactions that are open now, so there is no deadline.
        info!(
            slot,
            "the slot does not exist: reading a temporary one, which begins now; Postgres waits for \
             open transactions first"
        );
        let options = SlotOptions {
            temporary: true,
            ..SlotOptions::default()
        };
        replication.create_logical_slot(&copy, options).await?;
        Ok(())
    }

    async fn confirmed(&self, control: &mut Session) -> Result<Lsn, PostgresError> {
        let copy = slot(control, &self.copy()).await?;
        // With several hosts the two connections may reach different servers.
        let copy = copy.ok_or_else(|| PostgresError::TwoServers(self.original.slot.clone()))?;
        Ok(copy.confirmed.unwrap_or(Lsn::ZERO))
    }

    /// Returns the error that a stream which starts at `position` lacks the start of the range to read.
    pub(super) fn missing(&self, resume: Option<&Resume>, position: Lsn) -> Option<PostgresError> {
        let start = self.first(resume);
        (position > start).then(|| PostgresError::ReplayGone {
            slot: self.original.slot.clone(),
            start,
            position,
        })
    }

    /// Returns the position from which on the stream is needed.
    fn first(&self, resume: Option<&Resume>) -> Lsn {
        let known = resume.map_or(Lsn::ZERO, |resume| resume.confirmed.lsn());
        self.start.max(known)
    }

    /// Opens a new copy. `wrap` makes the source's stream of that of the copy.
    pub(super) async fn open_as<S>(
        &mut self,
        resume: Option<&Resume>,
        wrap: impl FnOnce(Stream) -> S,
    ) -> Result<Opened<S>, PostgresError> {
        self.placing = OneTask::default();
        // The server skips what was acknowledged: the stream starts there.
        let start = self.first(resume);
        // The server may still have the previous copy, if it has not noticed that its connection
        // ended.
        self.copies += 1;
        let copy = self.copy();
        let millis = self.original.wal_sender_timeout.as_millis().to_string();
        let timeout = [("wal_sender_timeout", millis.as_str())];
        let mut control = self.control().await?;
        let has_slot = self.has_slot(&mut control).await?;
        let info = &self.original.info;
        let mut replication = Session::connect(info, SessionKind::Replication, &timeout).await?;
        let system = replication.identify_system().await?;
        self.create_temporary(has_slot, &mut replication).await?;
        // The copy has the position that the slot had when it was copied. START_REPLICATION from an
        // earlier position begins at the copy's position, without an error.
        let held = self.confirmed(&mut control).await?;
        if self.must_hold_start
            && let Some(missing) = self.missing(resume, held)
        {
            return Err(missing);
        }
        let walsender = replication.backend_pid();
        let stream = replication
            .start_replication(&StartReplication {
                slot: copy.clone(),
                start,
                publication: self.original.publication.clone(),
                messages: self.original.messages,
            })
            .await?;
        self.walsender.store(walsender, Ordering::Relaxed);
        let confirmed = held.max(start);
        let tables = describe(&mut control, &self.original.tables).await?;
        let epoch = find_epoch(&mut control, &self.relay_slot).await?;
        if let Some(since) = epoch.begin(&system.system_id)
            && confirmed < since
        {
            return Err(PostgresError::BeforeMove {
                slot: self.original.slot.clone(),
                start: confirmed,
                since,
            });
        }
        self.control = Some(control);
        Ok(Opened {
            former: None,
            stream: wrap(Stream::from_slot(stream, &copy, None, Arc::default())),
            system_id: system.system_id,
            timeline: system.timeline,
            slot: None,
            // No other process can read a temporary slot, and no promotion keeps one.
            server_start: String::new(),
            ancestors: Vec::new(),
            predecessor: None,
            epoch: epoch.number,
            flushed: system.flushed,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: Some(self.original.wal_sender_timeout),
            tables,
        })
    }
}

/// Returns the place of a table on the server that has this copy.
async fn place_of(
    info: ConnInfo,
    tables: Vec<TableName>,
    copy: String,
    id: RelationId,
) -> Result<TablePlace, PostgresError> {
    let mut session = Session::connect(&info, SessionKind::Sql, &[]).await?;
    if slot(&mut session, &copy).await?.is_none() {
        return Err(PostgresError::TwoServers(copy));
    }
    let place = place(&mut session, &tables, id).await?;
    session.close().await;
    Ok(place)
}

impl Source for CopySource {
    type Stream = Stream;
    type Error = PostgresError;

    async fn open(&mut self, resume: Option<&Resume>) -> Result<Opened<Stream>, PostgresError> {
        self.open_as(resume, |stream| stream).await
    }

    fn check_slot(&mut self, unresolved: Option<RelationId>) {
        match unresolved {
            None => self.slot_checks.request(),
            Some(id) => {
                let asked_at = Instant::now();
                let (info, tables) = (self.original.info.clone(), self.original.tables.clone());
                let placing = place_of(info, tables, self.copy(), id);
                let placing = bounded("reading the place of a table", placing);
                self.placing
                    .start(async move { (asked_at, id, placing.await) });
            }
        }
    }

    async fn slot_checked(&mut self, _: bool) -> Result<SlotCheck, PostgresError> {
        if !self.placing.is_started() {
            return Ok(self.slot_checks.answer().await);
        }
        let (asked_at, id, placed) = self.placing.ended().await;
        Ok(match placed {
            Ok(place) => OwnSlotChecks::ours(asked_at, Some((id, place))),
            Err(error) => SlotCheck::Failed {
                reason: Chain(&error).to_string(),
            },
        })
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        let mut control = self.control().await?;
        let confirmed = self.confirmed(&mut control).await?;
        self.control = Some(control);
        Ok(confirmed)
    }
}
