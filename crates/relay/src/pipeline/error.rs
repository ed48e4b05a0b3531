use std::error::Error;
use std::time::Duration;

use walrelay_lsn::{Lsn, Xid};
use walrelay_sink::{DeliveryError, Disposition, SinkFactory};

pub use walrelay_failure::Chain;

use super::continuity::LogError;
use crate::core::CoreError;
use crate::event::{SentEvent, with_id};
use crate::interface::source::{Source, SourceError};
use crate::table::TableName;

/// The reason why a pipeline stopped, or why one of its attempts ended. `S` is the source's error,
/// `K` that of the sink factory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError<S: Error + 'static, K: Error + 'static> {
    /// Connecting to Postgres or reading from it failed.
    #[error("the replication connection failed")]
    Source(#[source] S),
    /// The server has refused a login for minutes that it accepted before.
    #[error("Postgres has refused the relay's login for minutes, which it accepted before")]
    StillRefused(#[source] S),
    /// The server has failed twice in the middle of a transaction, before which everything is
    /// acknowledged. It will fail there again, and what was sent of the transaction would be
    /// repeated each time.
    #[error(
        "Postgres cannot send transaction {xid}, which commits at {commit}: it has failed twice after \
         {rows} of its rows{}",
        next_row(tables)
    )]
    Unsendable {
        /// The transaction's number, which is the `xmin` of its rows.
        xid: Xid,
        /// The start of the transaction's commit record.
        commit: Lsn,
        /// The number of rows that were received of the transaction.
        rows: u64,
        /// The tables, by their names in the WAL, one of which the row is of. Empty: not known.
        tables: Vec<TableName>,
        /// The server's error.
        #[source]
        source: S,
    },
    /// The core could not process the replication stream.
    #[error("the replication stream cannot be carried")]
    Core(#[from] CoreError),
    /// The sink could not be created.
    #[error("the sink could not be opened")]
    Sink(#[source] K),
    /// A record was not delivered. Nothing from its transaction on is confirmed.
    #[error("{}", undelivered(*event, event_id.as_deref()))]
    Delivery {
        /// The event that the record stands for, if it is known.
        event: Option<SentEvent>,
        /// The event's id, known only if the sink refused the record in `try_send`.
        event_id: Option<String>,
        /// The reason, and the topic of the record.
        #[source]
        source: DeliveryError,
    },
    /// The stream does not continue the WAL that this process has read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The server was promoted: positions of the old timeline are not valid on the new one.
    #[error("the server's timeline changed from {before} to {now}")]
    OtherTimeline {
        /// The timeline of the last connection.
        before: u32,
        /// The timeline now.
        now: u32,
    },
    /// Another process reads the slot, or may read it: for longer than `wal_sender_timeout` there
    /// was no proof that the server still has our walsender. This process was suspended, or both
    /// connections were silent.
    #[error(
        "the slot may be read by another relay: that this one reads it was last seen {unproven:?} ago"
    )]
    Displaced {
        /// The time since the last proof.
        unproven: Duration,
    },
    /// Nothing was received from Postgres for so long that the connection is considered dead.
    #[error("nothing was received from Postgres for {silent_for:?}, though a reply was asked for")]
    Silent {
        /// The time for which nothing was received.
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
    /// Returns the kind of failure in one word, for metrics.
    pub fn cause(&self) -> &'static str {
        match self {
            PipelineError::Source(_) | PipelineError::StillRefused(_) => "connection",
            PipelineError::Core(_) | PipelineError::Unsendable { .. } => "stream",
            PipelineError::Sink(_) => "sink",
            PipelineError::Delivery { .. } => "delivery",
            PipelineError::Log(_) => "log",
            PipelineError::OtherTimeline { .. } => "promotion",
            PipelineError::Displaced { .. } => "displaced",
            PipelineError::Silent { .. } => "silence",
        }
    }

    /// Returns the reaction: to retry, to wait for a change of the configuration, or to stop.
    /// `sink` classifies errors of the sink factory.
    pub fn disposition(&self, sink: impl Fn(&K) -> Disposition) -> Disposition {
        match self {
            PipelineError::Source(error) | PipelineError::StillRefused(error) => {
                error.disposition()
            }
            PipelineError::Core(error) => error.disposition(),
            PipelineError::Sink(error) => sink(error),
            PipelineError::Delivery { source, .. } => source.disposition,
            // `OtherTimeline` is retryable: the next attempt reads the new timeline from the slot.
            PipelineError::Silent { .. }
            | PipelineError::Displaced { .. }
            | PipelineError::OtherTimeline { .. } => Disposition::Retryable,
            PipelineError::Log(_) | PipelineError::Unsendable { .. } => Disposition::Fatal,
        }
    }
}

/// Names the table of a row that the server cannot send. Several tables: the server announces a
/// table once on a connection, so rows of all these may follow.
fn next_row(tables: &[TableName]) -> String {
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    match names.as_slice() {
        [] => ", before it named a table".to_owned(),
        [table] => format!(", at a row of table {table}"),
        _ => format!(", at a row of one of the tables {}", names.join(", ")),
    }
}
