//! Finds a text in a record: the id of the event, or a time.

use serde_json::Value;
use walrelay_sink::dlq_headers;
use walrelay_sink_kind::topics::ReadRecord;

use crate::cli::RecordPlace;

/// The header with the id of the replay that sent a record.
pub(crate) const REPLAY_HEADER: &str = "walrelay-replay";
/// The header with the id of the run of `resend` that sent a record.
pub(crate) const RESEND_HEADER: &str = "walrelay-resend";
/// Headers with the event id, of the presets and of polling relays.
const ID_HEADERS: [&str; 4] = ["id", "event_id", "x-outbox-event-id", "event-id"];

/// Returns the event id of a record as text: at the place of `--id`, or as the sink stores it, or in
/// the first of [`ID_HEADERS`] that the record has. A dead letter and its resolution are no event.
pub(crate) fn event_id(place: Option<&RecordPlace>, record: &ReadRecord) -> Option<String> {
    let of_dead_letters = [dlq_headers::CLASS, dlq_headers::RESOLVES];
    if of_dead_letters.iter().any(|name| has_header(record, name)) {
        return None;
    }
    match (place, &record.event_id) {
        (Some(place), _) => text_at(place, record),
        (None, Some(id)) => Some(String::from_utf8_lossy(id).into_owned()),
        (None, None) => ID_HEADERS
            .into_iter()
            .find_map(|name| header_text(record, name)),
    }
}

/// Returns true if a record has a header of this name.
pub(crate) fn has_header(record: &ReadRecord, name: &str) -> bool {
    record.headers.iter().any(|(found, _)| found == name)
}

/// Returns the text at a place; `None` if there is none, or null.
pub(crate) fn text_at(place: &RecordPlace, record: &ReadRecord) -> Option<String> {
    match place {
        RecordPlace::Header(name) => header_text(record, name),
        RecordPlace::Value(member) => {
            let value: Value = serde_json::from_slice(record.value.as_deref()?).ok()?;
            match value.get(member)? {
                Value::String(text) => Some(text.clone()),
                Value::Null => None,
                other => Some(other.to_string()),
            }
        }
    }
}

/// Returns the value of the first header of this name; `None` also if it is null.
pub(crate) fn header<'r>(record: &'r ReadRecord, name: &str) -> Option<&'r [u8]> {
    let (_, value) = record.headers.iter().find(|(found, _)| found == name)?;
    value.as_deref()
}

fn header_text(record: &ReadRecord, name: &str) -> Option<String> {
    Some(String::from_utf8_lossy(header(record, name)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_in_a_header_or_in_the_value() {
        let record = ReadRecord {
            topic: "t".to_owned(),
            value: Some(br#"{"event_id": 17, "other": null}"#.to_vec()),
            headers: vec![("event_id".to_owned(), Some(b"x".to_vec()))],
            ..ReadRecord::default()
        };
        assert_eq!(event_id(None, &record).as_deref(), Some("x"));
        let named = |name: &str| event_id(Some(&RecordPlace::Header(name.to_owned())), &record);
        assert_eq!(
            (named("event_id").as_deref(), named("id")),
            (Some("x"), None)
        );
        let stored = ReadRecord {
            event_id: Some(b"own".to_vec()),
            ..record.clone()
        };
        assert_eq!(event_id(None, &stored).as_deref(), Some("own"));
        let mut dead_letter = stored;
        let class = (dlq_headers::CLASS.to_owned(), Some(b"oversize".to_vec()));
        dead_letter.headers.push(class);
        assert_eq!(event_id(None, &dead_letter), None);
        let member = |name: &str| event_id(Some(&RecordPlace::Value(name.to_owned())), &record);
        assert_eq!(member("event_id").as_deref(), Some("17"));
        assert_eq!((member("other"), member("none")), (None, None));
    }
}
