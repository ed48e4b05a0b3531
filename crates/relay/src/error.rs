use std::error::Error;
use std::fmt;

use walrelay_checkpoint::LedgerError;
use walrelay_event_router::{MessageError, PlanError, RouteError};
use walrelay_lsn::{Lsn, Xid};
use walrelay_pgoutput::DecodeError;
use walrelay_sink::{DeliveryError, Disposition};

use crate::{LogError, SchemaError, SentEvent, TableName};

/// What the machine refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// A message of the server is not what the protocol says. Never skipped: what cannot be read
    /// may be an event.
    #[error("a message from Postgres at {lsn} cannot be decoded")]
    Decode {
        /// Position of the message.
        lsn: Lsn,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// A table is not shaped as the router's options say.
    #[error("table {table} cannot be routed")]
    Plan {
        /// The table.
        table: TableName,
        /// What is missing.
        #[source]
        source: Box<PlanError>,
    },
    /// A row cannot be made a record.
    #[error(
        "a row of {table}{} cannot be routed, in transaction {xid} that commits at {commit}",
        with_id(event_id.as_deref())
    )]
    Route {
        /// The table.
        table: TableName,
        /// The event's id, where it can be read.
        event_id: Option<String>,
        /// The transaction.
        xid: Xid,
        /// Where its commit record starts, for finding it in the log.
        commit: Lsn,
        /// Why.
        #[source]
        source: Box<RouteError>,
    },
    /// A message of the configured prefix cannot be made a record.
    #[error(
        "a message of prefix {prefix:?} is no event, in transaction {xid} that commits at {commit}"
    )]
    Message {
        /// The prefix.
        prefix: String,
        /// The transaction.
        xid: Xid,
        /// Where its commit record starts, for finding it in the log.
        commit: Lsn,
        /// Why.
        #[source]
        source: MessageError,
    },
    /// A message of the configured prefix belongs to no transaction. Nothing could be confirmed for
    /// it, so it would be lost sooner or later.
    #[error(
        "a message of prefix {prefix:?} at {lsn} was emitted outside its transaction \
         (pg_logical_emit_message(false, …)), so it cannot be an event"
    )]
    NotTransactional {
        /// The prefix.
        prefix: String,
        /// Where it is in the log.
        lsn: Lsn,
    },
    /// A row of an outbox table was updated, and [`OnUpdate::Stop`](crate::OnUpdate::Stop) is set.
    #[error(
        "a row of outbox table {table} was updated in transaction {xid} that commits at {commit}"
    )]
    Update {
        /// The table.
        table: TableName,
        /// The transaction.
        xid: Xid,
        /// Where its commit record starts, for finding it in the log.
        commit: Lsn,
    },
    /// The publication carries a table that the configuration does not name. Passing over its rows
    /// would lose events if it is, say, a partition of the outbox.
    #[error("the publication carries table {table}, which the configuration does not name")]
    ForeignTable {
        /// The table.
        table: TableName,
    },
    /// There is no schema for the values of a subject, though it was asked for long enough.
    #[error("there is no schema for the values of subject {subject:?}")]
    Schema {
        /// The subject.
        subject: String,
        /// Why.
        #[source]
        source: SchemaError,
    },
    /// Messages came in an order the protocol excludes.
    #[error("Postgres sent {what} at {lsn}, which the protocol excludes there")]
    Sequence {
        /// What came.
        what: &'static str,
        /// Where.
        lsn: Lsn,
    },
    /// The ledger refused: a bug, or a server that goes backwards.
    #[error("the ledger of acknowledgements refused at {lsn}")]
    Ledger {
        /// Where.
        lsn: Lsn,
        /// What it refused.
        #[source]
        source: LedgerError,
    },
}

impl CoreError {
    /// What the error asks for.
    pub fn disposition(&self) -> Disposition {
        match self {
            CoreError::Plan { .. } | CoreError::ForeignTable { .. } | CoreError::Schema { .. } => {
                Disposition::Configuration
            }
            CoreError::Decode { .. }
            | CoreError::Route { .. }
            | CoreError::Message { .. }
            | CoreError::NotTransactional { .. }
            | CoreError::Update { .. }
            | CoreError::Sequence { .. }
            | CoreError::Ledger { .. } => Disposition::Fatal,
        }
    }
}

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
        /// What it stands for, where that is known.
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
        unproven: std::time::Duration,
    },
    /// Nothing came from Postgres for so long that the connection must be dead.
    #[error("nothing was received from Postgres for {silent_for:?}, though a reply was asked for")]
    Silent {
        /// How long.
        silent_for: std::time::Duration,
    },
}

fn with_id(event_id: Option<&str>) -> String {
    event_id.map_or_else(String::new, |id| format!(" with the event id {id:?}"))
}

fn undelivered(event: Option<SentEvent>, event_id: Option<&str>) -> String {
    let Some(SentEvent { id, dead_letter }) = event else {
        return "a record was not delivered".to_owned();
    };
    let what = if dead_letter { "dead letter" } else { "record" };
    let named = with_id(event_id);
    let (row, lsn) = (id.row, Lsn::new(id.lsn));
    format!("a {what}{named} was not delivered, row {row} of the transaction that commits at {lsn}")
}

impl<S: crate::SourceError, K: Error + 'static> PipelineError<S, K> {
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
