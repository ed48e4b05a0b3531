use walrelay_checkpoint::LedgerError;
use walrelay_event_router::{MessageError, PlanError, RouteError};
use walrelay_lsn::{Lsn, Xid};
use walrelay_pgoutput::DecodeError;
use walrelay_sink::Disposition;

use crate::interface::event::with_id;
use crate::interface::schemas::SchemaError;
use crate::interface::table::TableName;

/// Why the core cannot go on.
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
    pub(super) fn of_ledger(lsn: Lsn) -> impl FnOnce(LedgerError) -> Self {
        move |source| Self::Ledger { lsn, source }
    }

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
