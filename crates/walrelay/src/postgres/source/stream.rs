//! The walsender's stream, with errors that name slot and gap; before it, the rows of a snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use walrelay_lsn::Lsn;
use walrelay_relay::WalStream;
use walrelay_walsender::{Error, ErrorClass, Frame, ReplicationStream, Socket, StatusUpdate};

use crate::postgres::error::{Gap, PostgresError};
use crate::postgres::snapshot::RowStream;

/// What a relay of a slot reads.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, and the log's frames are read through it"
)]
pub(crate) enum Stream {
    /// The log from the slot on.
    Wal(SlotStream),
    /// The rows before the slot.
    Rows(Box<RowStream>),
}

/// The walsender's stream, with this module's error.
#[derive(Debug)]
pub(crate) struct SlotStream {
    stream: ReplicationStream,
    place: Place,
}

impl Stream {
    /// `relayed`: the LSN up to which everything is acknowledged, which errors name.
    pub(super) fn of_slot(stream: ReplicationStream, slot: &str, relayed: Arc<AtomicU64>) -> Self {
        let slot = slot.to_owned();
        let place = Place { slot, relayed };
        Self::Wal(SlotStream { stream, place })
    }
}

/// Where a stream is, for its errors.
#[derive(Debug)]
struct Place {
    slot: String,
    relayed: Arc<AtomicU64>,
}

impl Place {
    fn error(&self, source: Error) -> PostgresError {
        if source.class() != ErrorClass::WalGone {
            return source.into();
        }
        PostgresError::WalGone {
            slot: self.slot.clone(),
            gap: Gap {
                from: Some(Lsn::new(self.relayed.load(Ordering::Relaxed))),
                to: None,
            },
            source,
        }
    }
}

impl WalStream for Stream {
    type Error = PostgresError;

    fn is_snapshot(&self) -> bool {
        matches!(self, Self::Rows(_))
    }

    fn socket(&self) -> Socket {
        match self {
            Self::Wal(stream) => stream.socket(),
            Self::Rows(stream) => stream.socket(),
        }
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        match self {
            Self::Wal(stream) => stream.peek(),
            Self::Rows(stream) => stream.peek(),
        }
    }

    #[inline]
    fn consume(&mut self) {
        match self {
            Self::Wal(stream) => stream.consume(),
            Self::Rows(stream) => stream.consume(),
        }
    }

    async fn read(&mut self) -> Result<usize, PostgresError> {
        match self {
            Self::Wal(stream) => stream.read().await,
            Self::Rows(stream) => stream.read().await,
        }
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        match self {
            Self::Wal(stream) => stream.queue_status(update),
            Self::Rows(stream) => stream.queue_status(update),
        }
    }

    async fn flush(&mut self) -> Result<(), PostgresError> {
        match self {
            Self::Wal(stream) => stream.flush().await,
            Self::Rows(stream) => stream.flush().await,
        }
    }

    async fn finish(self) -> Result<(), PostgresError> {
        match self {
            Self::Wal(stream) => stream.finish().await,
            Self::Rows(stream) => stream.finish().await,
        }
    }
}

impl WalStream for SlotStream {
    type Error = PostgresError;

    fn socket(&self) -> Socket {
        self.stream.socket()
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        let place = &self.place;
        self.stream.peek().map_err(|error| place.error(error))
    }

    fn consume(&mut self) {
        self.stream.consume();
    }

    async fn read(&mut self) -> Result<usize, PostgresError> {
        let read = self.stream.read().await;
        read.map_err(|error| self.place.error(error))
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        self.stream.queue_status(update);
    }

    async fn flush(&mut self) -> Result<(), PostgresError> {
        let flushed = self.stream.flush().await;
        flushed.map_err(|error| self.place.error(error))
    }

    async fn finish(self) -> Result<(), PostgresError> {
        Ok(self.stream.finish().await?)
    }
}
