//! Reading an event from the WAL, and the errors if it cannot become a record.

use std::fmt;
use std::sync::Arc;

use walrelay_event_router::{
    BatchEvent, Event, MessageError, MessageHeaders, Messages, PartialRow, PlanError, RouteError,
    Routed, Router, Row,
};
use walrelay_lsn::RelationId;
use walrelay_pgoutput::{Begin, Insert, LogicalMessage};
use walrelay_sink::{Poison, id_text};

use super::error::CoreError;

use crate::poison::{Body, ReservedPart};
use crate::table::TableName;

/// An event as it is in the WAL: an inserted row, a logical message, or an event of one.
#[derive(Clone, Copy)]
pub(super) enum WalEvent<'a> {
    Row(Insert<'a>),
    Message(LogicalMessage<'a>),
    OfBatch(BatchEvent<'a>),
}

impl<'a> WalEvent<'a> {
    pub(super) fn relation(&self) -> RelationId {
        match self {
            WalEvent::Row(insert) => insert.relation,
            WalEvent::Message(_) | WalEvent::OfBatch(_) => Messages::TABLES[0],
        }
    }

    /// Returns the row that the event is read from. `None`: the event is a message, and messages
    /// are not configured.
    #[inline]
    pub(super) fn row(
        &self,
        messages: Option<&'a mut Messages>,
        event: &Event,
    ) -> Option<EventRow<'a>> {
        if let WalEvent::Row(insert) = self {
            return Some(EventRow {
                insert: Ok(*insert),
                headers: None,
            });
        }
        Some(EventRow::from_message(messages?, self, event))
    }
}

/// The row that an event is read from.
pub(super) struct EventRow<'a> {
    /// The row; the error has the content of a message that is no event, and why it is none.
    insert: Result<Insert<'a>, (&'a [u8], MessageError)>,
    /// Headers that the message contains.
    headers: Option<MessageHeaders<'a>>,
}

impl<'a> EventRow<'a> {
    // Apart from `WalEvent::row`, so that the case of a row is inlined.
    #[inline(never)]
    fn from_message(messages: &'a mut Messages, wal_event: &WalEvent<'a>, event: &Event) -> Self {
        let (content, row) = match wal_event {
            WalEvent::Row(insert) => {
                return Self {
                    insert: Ok(*insert),
                    headers: None,
                };
            }
            WalEvent::Message(message) => {
                let content = message.content;
                (content, messages.read(content, event.commit_time))
            }
            WalEvent::OfBatch(part) => {
                (part.content(), messages.read_event(part, event.commit_time))
            }
        };
        match row {
            Ok(row) => Self {
                insert: Ok(row.insert),
                headers: Some(row.headers),
            },
            Err(error) => Self {
                insert: Err((content, error)),
                headers: None,
            },
        }
    }

    /// Reads the event into an empty `row`; a `Row` is large, so it is filled in place.
    /// `unroutable`: why the table has no plan.
    #[expect(
        clippy::inline_always,
        reason = "a call costs each row more than the match"
    )]
    #[inline(always)]
    pub(super) fn read(
        &self,
        router: &mut Router,
        unroutable: Option<&Arc<PlanError>>,
        event: &Event,
        row: &mut Row<'a>,
    ) -> Result<(), RowError> {
        match (&self.insert, unroutable) {
            (Err((_, error)), _) => Err(RowError::Message(error.clone())),
            (_, Some(cause)) => Err(RowError::Plan(Arc::clone(cause))),
            (Ok(insert), None) => router
                .read(insert.relation, &insert.tuple, event, row)
                .map_err(RowError::Route),
        }
    }

    #[inline]
    pub(super) fn add_headers(&self, routed: &mut Routed<'a>) {
        if let Some(headers) = &self.headers {
            routed.add_headers(headers.iter());
        }
    }

    /// Returns the parts of an unroutable row that its dead letter can contain.
    pub(super) fn partial<'b>(&self, router: &'b Router) -> Body<'b>
    where
        'a: 'b,
    {
        let partial_row = match self.insert {
            Ok(insert) => router.partial_row(insert.relation, &insert.tuple),
            // The whole content, so that an operator can still make an event of it.
            Err((content, _)) => PartialRow {
                value: Some(content),
                ..PartialRow::default()
            },
        };
        let headers = self.headers.iter().flat_map(MessageHeaders::iter);
        Body::from_partial(&partial_row, headers)
    }
}

/// Returns the table name that stands for messages in errors and dead letters.
pub(super) fn messages_table(messages: &Messages) -> TableName {
    TableName::new(Messages::SCHEMA, messages.prefix())
}

/// The reason why an event cannot be routed: its own content, or its table.
pub(super) enum RowError {
    Route(RouteError),
    Plan(Arc<PlanError>),
    Message(MessageError),
    /// The event has the topic or a header of a dead letter.
    OfDeadLetters(ReservedPart),
}

impl RowError {
    /// Returns the class of the event for the poison policy. `None`: no policy applies.
    pub(super) fn poison(&self) -> Option<Poison> {
        match self {
            RowError::Route(error) => error.poison(),
            RowError::Plan(error) => Some(error.poison()),
            RowError::Message(error) => Some(error.poison()),
            RowError::OfDeadLetters(_) => Some(Poison::Unroutable),
        }
    }

    pub(super) fn at(self, table: &TableName, begin: &Begin, event_id: Option<&[u8]>) -> CoreError {
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
            RowError::OfDeadLetters(part) => CoreError::OfDeadLetters {
                part,
                table,
                event_id: event_id.map(id_text),
                xid: begin.xid,
                commit: begin.final_lsn,
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
            RowError::OfDeadLetters(part) => part.fmt(f),
        }
    }
}
