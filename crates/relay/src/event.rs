use walrelay_sink::EventPosition;

/// The event that a record stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentEvent {
    /// The event.
    pub id: EventPosition,
    /// The record is a dead letter of the event. A refusal of the dead letter does not mean that
    /// the event is at fault.
    pub dead_letter: bool,
}

/// Writes the part of an error's text that names the event id; empty without an id.
pub(crate) fn with_id(event_id: Option<&str>) -> String {
    event_id.map_or_else(String::new, |id| format!(" with the event id {id:?}"))
}
