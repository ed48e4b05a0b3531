//! A slot that is read by throwaway copies.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Looked, Opened, Resume, SlotOwner, Source, TableName};
use walrelay_walsender::{ConnInfo, Session, SessionKind, StartReplication, quote_literal};

use crate::postgres::{PostgresError, Stream, describe};

/// What a copy is made of, and read with.
#[derive(Debug, Clone)]
pub(super) struct Original {
    pub(super) info: ConnInfo,
    /// The slot that is copied. It is never read itself, so it stays where it is.
    pub(super) slot: String,
    pub(super) publication: String,
    pub(super) tables: Vec<TableName>,
    pub(super) messages: bool,
    pub(super) wal_sender_timeout: Duration,
}

/// Each stream reads a temporary copy of its own, which goes with its connection. A lost connection
/// so begins again from the original, and what was handed over already is passed over.
#[derive(Debug)]
pub(super) struct CopySource {
    original: Original,
    /// Of the copies.
    name: String,
    copies: u32,
    /// The process that serves the stream.
    walsender: Arc<AtomicI32>,
    control: Option<Session>,
    /// When the look was started that nobody has asked about yet.
    look_at: Option<Instant>,
}

impl CopySource {
    /// `name`: what the copies' names begin with.
    pub(super) fn new(original: Original, name: &str) -> Self {
        Self {
            original,
            name: name.to_owned(),
            copies: 0,
            walsender: Arc::default(),
            control: None,
            look_at: None,
        }
    }

    /// The process that serves the stream, 0 before there is one.
    pub(super) fn walsender(&self) -> Arc<AtomicI32> {
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

    async fn confirmed(&self, control: &mut Session) -> Result<Lsn, PostgresError> {
        let name = quote_literal(&self.copy());
        let rows = control
            .query(&format!(
                "SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots \
                 WHERE slot_name = {name}"
            ))
            .await?;
        let text = rows.first().and_then(|row| row.get(0));
        Ok(text.and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::ZERO))
    }
}

impl Source for CopySource {
    type Stream = Stream;
    type Error = PostgresError;

    async fn open(&mut self, _: Option<&Resume>) -> Result<Opened<Stream>, PostgresError> {
        // The server may not have noticed the end of the connection before: another name each time.
        self.copies += 1;
        let copy = self.copy();
        let millis = self.original.wal_sender_timeout.as_millis().to_string();
        let timeout = [("wal_sender_timeout", millis.as_str())];
        let info = &self.original.info;
        let mut replication = Session::connect(info, SessionKind::Replication, &timeout).await?;
        let system = replication.identify_system().await?;
        replication
            .query(&format!(
                "SELECT pg_catalog.pg_copy_logical_replication_slot({}, {}, true)",
                quote_literal(&self.original.slot),
                quote_literal(&copy)
            ))
            .await?;
        let walsender = replication.backend_pid();
        let stream = replication
            .start_replication(&StartReplication {
                slot: copy.clone(),
                start: Lsn::ZERO,
                publications: vec![self.original.publication.clone()],
                messages: self.original.messages,
                proto_version: 1,
            })
            .await?;
        self.walsender.store(walsender, Ordering::Relaxed);
        let mut control = self.control().await?;
        let confirmed = self.confirmed(&mut control).await?;
        let tables = describe(&mut control, &self.original.tables).await?;
        self.control = Some(control);
        Ok(Opened {
            stream: Stream::of(stream, &copy),
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
        self.look_at.get_or_insert_with(Instant::now);
    }

    async fn looked(&mut self, _: bool) -> Result<Looked, PostgresError> {
        match self.look_at.take() {
            // A temporary slot goes with its session: no other process can read it.
            Some(asked_at) => Ok(Looked::Answered {
                asked_at,
                owner: SlotOwner::Ours,
                timeline: None,
            }),
            None => pending().await,
        }
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        let mut control = self.control().await?;
        let confirmed = self.confirmed(&mut control).await?;
        self.control = Some(control);
        Ok(confirmed)
    }
}
