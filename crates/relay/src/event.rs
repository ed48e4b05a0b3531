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

/// Longest event id in a log line or an error, in characters.
const LONGEST_ID: usize = 100;

/// Writes an event's id for logs and errors: shortened, and without control characters. The id is
/// the only value of a row that is ever shown.
pub(crate) fn id_text(id: &[u8]) -> String {
    let text = String::from_utf8_lossy(id);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(LONGEST_ID).map(plain).collect()
}

/// Writes the part of an error's text that names the event id; empty without an id.
pub(crate) fn with_id(event_id: Option<&str>) -> String {
    event_id.map_or_else(String::new, |id| format!(" with the event id {id:?}"))
}
