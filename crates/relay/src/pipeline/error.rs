use std::error::Error;
use std::fmt;
use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_sink::{DeliveryError, Disposition, SinkFactory};

use super::continuity::LogError;
use crate::core::CoreError;
use crate::interface::event::{SentEvent, with_id};
use crate::interface::source::{Source, SourceError};

/// Why a pipeline stopped, or why one attempt of it ended. `S` is the source's error, `K` the
/// sink factory's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError<S: Error + 'static, K: Error + 'static> {
    /// Connecting to Postgres or reading from it failed.
    #[error("the replication connection failed")]
    Source(#[source] S),
    /// What came from Postgres cannot be carried.
    #[error("the replication stream cannot be carried")]
    Core(#[from] CoreError),
    /// The sink could not be made.
    #[error("the sink could not be opened")]
    Sink(#[source] K),
    /// A record was not delivered, and everything after it was not confirmed.
    #[error("{}", undelivered(*event, event_id.as_deref()))]
    Delivery {
        /// The event that it stands for, where that is known.
        event: Option<SentEvent>,
        /// That event's id: known where the sink refused the record on the spot.
        event_id: Option<String>,
        /// Why, and to which topic.
        #[source]
        source: DeliveryError,
    },
    /// The stream does not continue what this process has read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The server was promoted: positions of the old timeline mean nothing on the new one.
    #[error("the server's timeline changed from {before} to {now}")]
    OtherTimeline {
        /// As it was at the last connection.
        before: u32,
        /// As it is now.
        now: u32,
    },
    /// Another process reads the slot, or may read it: for longer than `wal_sender_timeout` nothing has shown
    /// that the server still has our walsender. This process was stopped, or both connections were silent.
    #[error(
        "the slot may be read by another relay: that this one reads it was last seen {unproven:?} ago"
    )]
    Displaced {
        /// Since the last proof.
        unproven: Duration,
    },
    /// Nothing came from Postgres for so long that the connection must be dead.
    #[error("nothing was received from Postgres for {silent_for:?}, though a reply was asked for")]
    Silent {
        /// How long.
        silent_for: Duration,
    },
}

pub(crate) type PipelineResult<T, S, F> =
    Result<T, PipelineError<<S as Source>::Error, <F as SinkFactory>::Error>>;

fn undelivered(event: Option<SentEvent>, event_id: Option<&str>) -> String {
    let Some(SentEvent { id, dead_letter }) = event else {
        return "a record was not delivered".to_owned();
    };
    let what = if dead_letter { "dead letter" } else { "record" };
    let named = with_id(event_id);
    let (row, lsn) = (id.row, Lsn::new(id.lsn));
    format!("a {what}{named} was not delivered, row {row} of the transaction that commits at {lsn}")
}

impl<S: SourceError, K: Error + 'static> PipelineError<S, K> {
    /// The kind of failure, in one word for metrics.
    pub fn cause(&self) -> &'static str {
        match self {
            PipelineError::Source(_) => "connection",
            PipelineError::Core(_) => "stream",
            PipelineError::Sink(_) => "sink",
            PipelineError::Delivery { .. } => "delivery",
            PipelineError::Log(_) => "log",
            PipelineError::OtherTimeline { .. } => "promotion",
            PipelineError::Displaced { .. } => "displaced",
            PipelineError::Silent { .. } => "silence",
        }
    }

    /// What the error asks for; `sink` classifies the sink factory's own.
    pub fn disposition(&self, sink: impl Fn(&K) -> Disposition) -> Disposition {
        match self {
            PipelineError::Source(error) => error.disposition(),
            PipelineError::Core(error) => error.disposition(),
            PipelineError::Sink(error) => sink(error),
            PipelineError::Delivery { source, .. } => source.disposition,
            // A new timeline is read again from the slot: an attempt of its own.
            PipelineError::Silent { .. }
            | PipelineError::Displaced { .. }
            | PipelineError::OtherTimeline { .. } => Disposition::Retryable,
            PipelineError::Log(_) => Disposition::Fatal,
        }
    }
}

/// An error with its causes on one line, for a log.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
