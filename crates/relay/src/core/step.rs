use std::fmt;

use walrelay_checkpoint::Seq;
use walrelay_event_router::Routed;
use walrelay_sink::{Record, TransactionEnd};

use crate::event::SentEvent;
use crate::poison::DlqRecord;
use crate::table::TableName;

/// The caller's task after [`Core::frame`](super::Core::frame). The task to consume the frame waits while
/// [`Core::is_inside_batch`](super::Core::is_inside_batch): pass the same frame again instead.
#[derive(Debug)]
pub enum Step<'r, 'a> {
    /// Consume the frame; nothing else is to do.
    Consumed,
    /// Consume the frame; the server asks for a status update at once.
    Reply,
    /// Tell the sink that a transaction ended, and consume the frame.
    Committed(TransactionEnd),
    /// Offer this record to the sink. If the sink takes it, call [`Core::sent`](super::Core::sent)
    /// and consume the frame. If the sink is full, pass the same frame to
    /// [`Core::frame`](super::Core::frame) again later.
    Send(Outgoing<'r, 'a>),
    /// Pass the same frame again later: the ring is full, or this record must be sent alone, or the
    /// parked keys are not known yet.
    Blocked,
    /// Pass the same frame again when the schema
    /// [`Core::pending_schema`](super::Core::pending_schema) is [learned](super::Core::learn) or
    /// [given up](super::Core::give_up_schema).
    AwaitsSchema,
    /// Pass the same frame again when the table [`Core::unresolved`](super::Core::unresolved) is
    /// [placed](super::Core::place).
    AwaitsPlace,
}

/// The outcome of placing a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// The table's rows are those of this outbox table.
    Outbox(TableName),
    /// The table's rows, which the WAL has under this name, are passed over.
    PassedOver(TableName),
}

/// The place of the record that a frame yields. A record is large, so the core makes it where the
/// caller reads it: moving it costs some 80 instructions a row.
#[derive(Default)]
pub struct RecordSpace<'a> {
    pub(super) routed: Routed<'a>,
    pub(super) dead_letter: Option<DlqRecord<'a>>,
}

// Shows no row values, which must not be logged.
impl fmt::Debug for RecordSpace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSpace").finish_non_exhaustive()
    }
}

/// A record to offer to the sink.
pub struct Outgoing<'r, 'a> {
    pub(super) content: Content<'r, 'a>,
    pub(super) seq: Seq,
}

pub(super) enum Content<'r, 'a> {
    Event(&'r Routed<'a>),
    DeadLetter(&'r DlqRecord<'a>),
}

impl Outgoing<'_, '_> {
    /// Returns the record for the sink.
    pub fn record(&self) -> Record<'_> {
        match self.content {
            Content::Event(routed) => routed.record(),
            Content::DeadLetter(dead_letter) => dead_letter.record(),
        }
    }

    /// Returns the event that the record stands for.
    pub fn event(&self) -> SentEvent {
        SentEvent {
            id: self.record().position,
            dead_letter: matches!(self.content, Content::DeadLetter(_)),
        }
    }

    /// Returns the sequence number for the delivery report and for
    /// [`Core::sent`](super::Core::sent).
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

// Shows no row values, which must not be logged.
impl fmt::Debug for Outgoing<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("record", &self.record())
            .field("seq", &self.seq)
            .field("event", &self.event())
            .finish()
    }
}
