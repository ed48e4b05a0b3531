//! A slot that is read by temporary copies, so that nothing is confirmed in the slot itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tracing::info;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Looked, Opened, Resume, Source, TableName};
use walrelay_walsender::{ConnInfo, Session, SessionKind, SlotOptions, StartReplication};

use super::inspections::OwnLooks;
use super::stream::Stream;
use crate::postgres::bookmarks::copy_slot;
use crate::postgres::catalog::{Wanted, describe, inspect, slot};
use crate::postgres::deadline::bounded;
use crate::postgres::error::{PostgresError, SetupError};
use crate::postgres::setup::{Action, Moment, plan};

/// What a copy is made of, and read with.
#[derive(Debug, Clone)]
pub(crate) struct Original {
    pub(crate) info: ConnInfo,
    /// The slot that is copied. It is never read itself, so it stays where it is.
    pub(crate) slot: String,
    pub(crate) publication: String,
    pub(crate) tables: Vec<TableName>,
    pub(crate) messages: bool,
    pub(crate) wal_sender_timeout: Duration,
}

/// Each stream reads a temporary copy of its own, which goes with its connection. A lost connection
/// so begins again from the original, and what was handed over already is passed over.
#[derive(Debug)]
pub(crate) struct CopySource {
    original: Original,
    /// What the database must be like; `None`: the caller has made it so.
    wanted: Option<Wanted>,
    /// Of the copies.
    name: String,
    /// Where the stream begins, if the slot is before it.
    start: Lsn,
    /// Without the slot there is nothing to read.
    must_exist: bool,
    copies: u32,
    /// The process that serves the stream.
    walsender: Arc<AtomicI32>,
    control: Option<Session>,
    /// A temporary slot goes with its session: no other process can read it.
    looks: OwnLooks,
}

impl CopySource {
    /// `name`: what the copies' names begin with.
    pub(crate) fn new(original: Original, name: &str) -> Self {
        Self {
            original,
            wanted: None,
            name: name.to_owned(),
            start: Lsn::ZERO,
            must_exist: false,
            copies: 0,
            walsender: Arc::default(),
            control: None,
            looks: OwnLooks::default(),
        }
    }

    /// For `walrelay run` with a sink that confirms nothing: the configured slot, after the checks that a
    /// relay makes. Nothing that outlives the connection is created. Where there is no slot, a
    /// temporary one begins at the end of the log.
    pub(crate) fn of_configured(
        info: ConnInfo,
        wanted: Wanted,
        wal_sender_timeout: Duration,
    ) -> Self {
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

    /// For `walrelay replay`: the slot that `wanted` names, from `start` on, after the checks that a relay makes.
    pub(crate) fn of_kept(
        info: ConnInfo,
        wanted: Wanted,
        wal_sender_timeout: Duration,
        start: Lsn,
    ) -> Self {
        Self {
            name: format!("walrelay_replay_{:08x}", fastrand::u32(..)),
            start,
            must_exist: true,
            ..Self::of_configured(info, wanted, wal_sender_timeout)
        }
    }

    /// The process that serves the stream, 0 before there is one.
    pub(crate) fn walsender(&self) -> Arc<AtomicI32> {
        Arc::clone(&self.walsender)
    }

    async fn control(&mut self) -> Result<Session, PostgresError> {
        Ok(match self.control.take() {
            Some(control) => control,
            None => Session::connect(&self.original.info, SessionKind::Sql, &[]).await?,
        })
    }

    fn copy(&self) -> String {
        format!("{}_{}", self.name, self.copies)
    }

    /// Whether there is a slot to copy.
    ///
    /// # Errors
    /// The database is not as a relay needs it.
    async fn has_slot(&self, control: &mut Session) -> Result<bool, PostgresError> {
        let Some(wanted) = &self.wanted else {
            return Ok(true);
        };
        let facts = bounded("reading the catalogs", inspect(control, wanted)).await?;
        let plan = plan(wanted, &facts, Moment::Print)?;
        if self.must_exist && plan.actions.contains(&Action::CreateSlot) {
            return Err(SetupError::SlotMissing {
                slot: wanted.slot.clone(),
                gap: None,
            }
            .into());
        }
        Ok(!plan.actions.contains(&Action::CreateSlot))
    }

    /// Makes the temporary slot that the stream reads.
    async fn make(&self, has_slot: bool, replication: &mut Session) -> Result<(), PostgresError> {
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
        // Takes as long as the oldest transaction that is open now, so without limit.
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
        Ok(copy.and_then(|copy| copy.confirmed).unwrap_or(Lsn::ZERO))
    }
}

impl Source for CopySource {
    type Stream = Stream;
    type Error = PostgresError;

    async fn open(&mut self, resume: Option<&Resume>) -> Result<Opened<Stream>, PostgresError> {
        // The original has not moved by what this process read: what was acknowledged is passed over by the server.
        let known = resume.map_or(Lsn::ZERO, |resume| resume.confirmed.lsn());
        let start = self.start.max(known);
        // The server may not have noticed the end of the connection before: another name each time.
        self.copies += 1;
        let copy = self.copy();
        let millis = self.original.wal_sender_timeout.as_millis().to_string();
        let timeout = [("wal_sender_timeout", millis.as_str())];
        let mut control = self.control().await?;
        let has_slot = self.has_slot(&mut control).await?;
        let info = &self.original.info;
        let mut replication = Session::connect(info, SessionKind::Replication, &timeout).await?;
        let system = replication.identify_system().await?;
        self.make(has_slot, &mut replication).await?;
        let walsender = replication.backend_pid();
        let stream = replication
            .start_replication(&StartReplication {
                slot: copy.clone(),
                start,
                publications: vec![self.original.publication.clone()],
                messages: self.original.messages,
                proto_version: 1,
            })
            .await?;
        self.walsender.store(walsender, Ordering::Relaxed);
        let confirmed = self.confirmed(&mut control).await?.max(start);
        let tables = describe(&mut control, &self.original.tables).await?;
        self.control = Some(control);
        Ok(Opened {
            stream: Stream::of_slot(stream, &copy, Arc::default()),
            system_id: system.system_id,
            timeline: system.timeline,
            // Nobody promotes or reads a copy that is this session's own.
            server_start: String::new(),
            ancestors: Vec::new(),
            predecessor: None,
            flushed: system.flushed,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: Some(self.original.wal_sender_timeout),
            tables,
        })
    }

    fn look(&mut self) {
        self.looks.ask();
    }

    async fn looked(&mut self, _: bool) -> Result<Looked, PostgresError> {
        Ok(self.looks.answer().await)
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        let mut control = self.control().await?;
        let confirmed = self.confirmed(&mut control).await?;
        self.control = Some(control);
        Ok(confirmed)
    }
}
