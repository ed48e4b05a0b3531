use std::fmt;

use walrelay_checkpoint::Seq;
use walrelay_event_router::Routed;
use walrelay_sink::{EventPosition, Record};

use crate::interface::event::SentEvent;
use crate::poison::DlqRecord;

/// What follows from a frame.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the largest is by far the most frequent, and a box would be an allocation per row"
)]
pub enum Step<'a> {
    /// Nothing is left to do with the frame: consume it.
    Consumed,
    /// As `Consumed`, and the server asks for a status update at once.
    Reply,
    /// Offer this record to the sink. Taken: call [`Core::sent`](super::Core::sent) and consume the frame.
    /// Full: leave the frame and give it to [`Core::frame`](super::Core::frame) again; nothing has changed.
    Send(Outgoing<'a>),
    /// The ring is full, or this record must be sent alone, or the keys that are parked are not known yet:
    /// come back with the same frame.
    Blocked,
    /// The schema [`Core::pending_schema`](super::Core::pending_schema) is needed: come back with the same
    /// frame when it was [learned](super::Core::learn) or [given up](super::Core::give_up_schema).
    AwaitsSchema,
}

/// A record to offer to the sink.
pub struct Outgoing<'a> {
    pub(super) content: Content<'a>,
    pub(super) seq: Seq,
    pub(super) position: EventPosition,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the largest is by far the most frequent, and a box would be an allocation per row"
)]
pub(super) enum Content<'a> {
    Event(Routed<'a>),
    DeadLetter(DlqRecord<'a>),
}

impl Outgoing<'_> {
    /// The record.
    pub fn record(&self) -> Record<'_> {
        match &self.content {
            Content::Event(routed) => routed.record(),
            Content::DeadLetter(dead_letter) => dead_letter.record(),
        }
    }

    /// The event's id as the row has it; `None` for a dead letter, or where the id is unknown.
    pub fn event_id(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Event(routed) => routed.event_id(),
            Content::DeadLetter(_) => None,
        }
    }

    /// The event that the record stands for.
    pub fn event(&self) -> SentEvent {
        SentEvent {
            id: self.position,
            dead_letter: matches!(self.content, Content::DeadLetter(_)),
        }
    }

    /// The number under which its delivery is to be reported, and for [`Core::sent`](super::Core::sent).
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

// Row values never reach a log.
impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("record", &self.record())
            .field("seq", &self.seq)
            .field("event", &self.event())
            .finish()
    }
}
