//! [`Stream`]: the walsender's stream, with errors that name slot and gap, or the rows of a
//! snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use walrelay_lsn::Lsn;
use walrelay_relay::WalStream;
use walrelay_walsender::{Error, ErrorClass, Frame, ReplicationStream, Socket, StatusUpdate};

use crate::error::{Gap, PostgresError, PublicationSetupError, SetupError};
use crate::snapshot::RowStream;

/// The stream that a relay reads: WAL from a slot, or the rows of a snapshot.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "only one exists, and a box would cost an indirection per frame"
)]
pub enum Stream {
    /// The WAL from the slot's position on.
    Wal {
        stream: ReplicationStream,
        context: ErrorContext,
    },
    /// The rows of the snapshot before the slot.
    Rows(Box<RowStream>),
}

impl Stream {
    /// Creates the stream of a slot. `relayed`: the LSN up to which everything is acknowledged,
    /// which errors name, as they do the publication of a relay's own slot.
    pub(super) fn from_slot(
        stream: ReplicationStream,
        slot: &str,
        publication: Option<&str>,
        relayed: Arc<AtomicU64>,
    ) -> Self {
        let context = ErrorContext {
            slot: slot.to_owned(),
            publication: publication.map(str::to_owned),
            relayed,
        };
        Self::Wal { stream, context }
    }
}

/// Slot, publication and acknowledged position, for errors of the stream.
#[derive(Debug)]
pub struct ErrorContext {
    slot: String,
    /// `None`: the slot is a copy, whose errors have other remedies.
    publication: Option<String>,
    relayed: Arc<AtomicU64>,
}

impl ErrorContext {
    fn error(&self, source: Error) -> PostgresError {
        if let Some(publication) = self
            .publication
            .as_ref()
            .filter(|_| source.lacks_publication())
        {
            return PostgresError::Setup(SetupError::Publication(PublicationSetupError::NotYet {
                publication: publication.clone(),
                slot: self.slot.clone(),
                at: Lsn::new(self.relayed.load(Ordering::Relaxed)),
            }));
        }
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
            Self::Wal { stream, .. } => stream.socket(),
            Self::Rows(stream) => stream.socket(),
        }
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        match self {
            Self::Wal { stream, context } => stream.peek().map_err(|error| context.error(error)),
            Self::Rows(stream) => stream.peek(),
        }
    }

    #[inline]
    fn consume(&mut self) {
        match self {
            Self::Wal { stream, .. } => stream.consume(),
            Self::Rows(stream) => stream.consume(),
        }
    }

    async fn read(&mut self) -> Result<usize, PostgresError> {
        match self {
            Self::Wal { stream, context } => {
                let read = stream.read().await;
                read.map_err(|error| context.error(error))
            }
            Self::Rows(stream) => stream.read().await,
        }
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        match self {
            Self::Wal { stream, .. } => stream.queue_status(update),
            Self::Rows(stream) => stream.queue_status(update),
        }
    }

    async fn flush(&mut self) -> Result<(), PostgresError> {
        match self {
            Self::Wal { stream, context } => {
                let flushed = stream.flush().await;
                flushed.map_err(|error| context.error(error))
            }
            Self::Rows(stream) => stream.flush().await,
        }
    }

    async fn finish(self) -> Result<(), PostgresError> {
        match self {
            Self::Wal { stream, .. } => Ok(stream.finish().await?),
            Self::Rows(stream) => stream.finish().await,
        }
    }
}
