use walrelay_sink::EventPosition;

/// Which event a record stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentEvent {
    /// The event.
    pub id: EventPosition,
    /// The record is a dead letter in place of the event. If the topic of dead letters refuses it, that
    /// says nothing of the event.
    pub dead_letter: bool,
}

/// Longest id of an event in a log line or an error, in characters.
const LONGEST_ID: usize = 100;

/// An event's id for logs and errors. An id is an identifier: no other value of a row is ever shown.
pub(crate) fn id_text(id: &[u8]) -> String {
    let text = String::from_utf8_lossy(id);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(LONGEST_ID).map(plain).collect()
}

/// For an error's text.
pub(crate) fn with_id(event_id: Option<&str>) -> String {
    event_id.map_or_else(String::new, |id| format!(" with the event id {id:?}"))
}
