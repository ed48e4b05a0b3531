//! Events as they stand in the log, and why one of them is no record.

use std::fmt;
use std::sync::Arc;

use walrelay_event_router::{MessageError, Messages, PlanError, RouteError};
use walrelay_pgoutput::{Begin, Insert, LogicalMessage};

use crate::poison::id_text;
use crate::{CoreError, TableName};

/// An event as it stands in the log.
#[derive(Clone, Copy)]
pub(crate) enum Written<'a> {
    Row(Insert<'a>),
    Message(LogicalMessage<'a>),
}

/// As errors and dead letters name the table that messages are rows of.
pub(crate) fn messages_table(messages: &Messages) -> TableName {
    TableName {
        schema: Messages::SCHEMA.to_owned(),
        name: messages.prefix().to_owned(),
    }
}

/// Why an event cannot be routed: by itself, or because its table cannot.
pub(crate) enum RowError {
    Route(RouteError),
    Plan(Arc<PlanError>),
    Message(MessageError),
}

impl RowError {
    pub(crate) fn at(self, table: &TableName, begin: &Begin, event_id: Option<&[u8]>) -> CoreError {
        let table = table.clone();
        match self {
            RowError::Route(error) => CoreError::Route {
                table,
                event_id: event_id.map(id_text),
                xid: begin.xid,
                commit: begin.final_lsn,
                source: Box::new(error),
            },
            RowError::Plan(error) => CoreError::Plan {
                table,
                source: Box::new(PlanError::clone(&error)),
            },
            RowError::Message(source) => CoreError::Message {
                prefix: table.name,
                xid: begin.xid,
                commit: begin.final_lsn,
                source,
            },
        }
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::Route(error) => error.fmt(f),
            RowError::Plan(error) => error.fmt(f),
            RowError::Message(error) => error.fmt(f),
        }
    }
}
