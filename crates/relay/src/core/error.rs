use walrelay_checkpoint::LedgerError;
use walrelay_event_router::{MessageError, PlanError, RouteError};
use walrelay_lsn::{Lsn, Xid};
use walrelay_pgoutput::DecodeError;
use walrelay_sink::{Disposition, MAX_EVENT_LSN};

use crate::event::with_id;
use crate::interface::schemas::SchemaError;
use crate::poison::ReservedPart;
use crate::table::TableName;

/// The reason why the core cannot process a frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// A message cannot be decoded as the protocol defines it. Never skipped: the message may be an
    /// event.
    #[error("a message from Postgres at {lsn} cannot be decoded")]
    Decode {
        /// Position of the message.
        lsn: Lsn,
        /// The decoder's reason.
        #[source]
        source: DecodeError,
    },
    /// A table does not fit the router's options.
    #[error("table {table} cannot be routed")]
    Plan {
        /// The table.
        table: TableName,
        /// The router's reason, found when it made the table's plan.
        #[source]
        source: Box<PlanError>,
    },
    /// A row cannot be turned into a record.
    #[error(
        "a row of {table}{} cannot be routed, in transaction {xid} that commits at {commit}",
        with_id(event_id.as_deref())
    )]
    Route {
        /// The table.
        table: TableName,
        /// The event's id, if it can be read.
        event_id: Option<String>,
        /// The transaction.
        xid: Xid,
        /// The start of its commit record, to find the transaction in the WAL.
        commit: Lsn,
        /// The router's reason, found in the row.
        #[source]
        source: Box<RouteError>,
    },
    /// An event has a topic or a header that is reserved for dead letters.
    #[error(
        "a row of {table}{} makes no event: {part}, in transaction {xid} that commits at {commit}",
        with_id(event_id.as_deref())
    )]
    OfDeadLetters {
        /// The part of the event that is reserved for dead letters.
        part: ReservedPart,
        /// The table.
        table: TableName,
        /// The event's id, if it can be read.
        event_id: Option<String>,
        /// The transaction.
        xid: Xid,
        /// The start of its commit record, to find the transaction in the WAL.
        commit: Lsn,
    },
    /// A message of the configured prefix cannot be turned into a record.
    #[error(
        "a message of prefix {prefix:?} is no event, in transaction {xid} that commits at {commit}"
    )]
    Message {
        /// The prefix.
        prefix: String,
        /// The transaction.
        xid: Xid,
        /// The start of its commit record, to find the transaction in the WAL.
        commit: Lsn,
        /// The reader's reason.
        #[source]
        source: MessageError,
    },
    /// A message of the configured prefix belongs to no transaction. No commit stands for the
    /// message, so its position could be confirmed before its record is acknowledged.
    #[error(
        "a message of prefix {prefix:?} at {lsn} was emitted outside its transaction \
         (pg_logical_emit_message(false, …)), so it cannot be an event"
    )]
    NotTransactional {
        /// The prefix.
        prefix: String,
        /// Position of the message.
        lsn: Lsn,
    },
    /// A commit is beyond the positions that can be published: the byte above them has the epoch.
    #[error(
        "the commit at {lsn} is beyond {MAX_EVENT_LSN}, the highest position that an event may have"
    )]
    PositionTooHigh {
        /// The start of the commit record.
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
        /// The start of its commit record, to find the transaction in the WAL.
        commit: Lsn,
    },
    /// A table of the WAL is no outbox by its name or OID, and may have been one: it has the columns
    /// that the router reads, or it is gone, so that nothing is known of it.
    #[error(
        "the stream has rows of table {table}, which may be events: the configuration does not name it, and {}",
        if *gone {
            "no table has its OID any more"
        } else {
            "it has the columns that the router reads"
        }
    )]
    UnknownTable {
        /// The table, by its name in the WAL.
        table: TableName,
        /// The catalogs do not have it any more.
        gone: bool,
    },
    /// A table of the WAL is above an outbox table in its partition tree: the publication
    /// published rows of the outbox under that name, and rows of other partitions, too.
    #[error(
        "the stream has rows of table {table}, of which outbox table {partition} is a partition"
    )]
    AboveOutbox {
        /// The table, by its name in the WAL.
        table: TableName,
        /// The outbox table.
        partition: TableName,
    },
    /// There is no schema for the values of a subject, or it cannot be requested: the requests were
    /// given up.
    #[error("there is no schema for the values of subject {subject:?}")]
    Schema {
        /// The subject.
        subject: String,
        /// The registry's answer.
        #[source]
        source: SchemaError,
    },
    /// The sink's position ([`Sink::durable_before`](walrelay_sink::Sink::durable_before)) is none of
    /// the server's WAL, so nothing is known about what the sink has of it.
    #[error(
        "the sink says that it has everything up to {position}, but {} {at}",
        if *cut {
            "a transaction of the stream ends across it, at"
        } else {
            "the server's WAL ends at"
        }
    )]
    SinkPosition {
        /// The sink's answer.
        position: Lsn,
        /// The end of the transaction, or of the WAL.
        at: Lsn,
        /// True if the position is inside a commit record; otherwise it is beyond the WAL's end.
        cut: bool,
    },
    /// Messages arrived in an order that the protocol excludes.
    #[error("Postgres sent {what} at {lsn}, which the protocol excludes there")]
    Sequence {
        /// The kind of message that arrived.
        what: &'static str,
        /// Position of the message.
        lsn: Lsn,
    },
    /// The ledger returned an error: a bug, or a server whose positions go backwards.
    #[error("the ledger of acknowledgements refused at {lsn}")]
    Ledger {
        /// Position of the message, or the highest position received.
        lsn: Lsn,
        /// The ledger's error.
        #[source]
        source: LedgerError,
    },
}

impl CoreError {
    pub(super) fn from_ledger(lsn: Lsn) -> impl FnOnce(LedgerError) -> Self {
        move |source| Self::Ledger { lsn, source }
    }

    /// Returns the reaction: to stop, or to wait for a change of the configuration. No core error
    /// is retried.
    pub fn disposition(&self) -> Disposition {
        match self {
            CoreError::Plan { .. }
            | CoreError::UnknownTable { .. }
            | CoreError::AboveOutbox { .. }
            | CoreError::Schema { .. } => Disposition::Configuration,
            CoreError::Decode { .. }
            | CoreError::Route { .. }
            | CoreError::OfDeadLetters { .. }
            | CoreError::Message { .. }
            | CoreError::NotTransactional { .. }
            | CoreError::PositionTooHigh { .. }
            | CoreError::Update { .. }
            | CoreError::SinkPosition { .. }
            | CoreError::Sequence { .. }
            | CoreError::Ledger { .. } => Disposition::Fatal,
        }
    }
}
