//! The identity of an event in a stream: whether a message is the event, or another one with its id.
//!
//! Its source, its position and its content identify an event. The subject of a message proves nothing
//! by itself: a stream (`subject_transform`), an account (mappings) and the configuration can change it.

use walrelay_sink::{EventPosition, Record, RecordKind, dlq_headers};

use super::jetstream::KeptMessage;
use super::message::{KEY, MESSAGE_ID, NULL, POSITION, SOURCE, SUBJECT, headers, line};

/// The bytes between the places where records of the WAL can start.
const RECORD_ALIGNMENT: u64 = 8;

/// Returns true if the message that a stream has under the id of this record is the record. `source`:
/// where the record's position is from; `None` for a replay, or a row that is sent again.
///
/// Two of three must be equal: the position, the value, and the subject that was published to.
///
/// - A position alone proves nothing: two slots of one database count the rows of a transaction each for
///   itself. It does not count if the message is from another slot.
/// - A row that is sent again from its table has another position. So has the row of a snapshot that
///   starts again.
/// - The value alone proves nothing: two tables can have the same ids and the same values.
///
/// The keys must be equal, unless both messages are from one source. At the position, a message without a
/// key contradicts none. A dead letter is read from its own subject, so it must have that.
pub(crate) fn is_same(record: &Record<'_>, source: Option<&str>, kept: &KeptMessage) -> bool {
    let their_source = line(&kept.headers, SOURCE);
    let slots = their_source
        .and_then(slot_of)
        .zip(source.and_then(|source| slot_of(source.as_bytes())));
    let is_foreign = slots.is_some_and(|(theirs, ours)| theirs != ours);
    let is_at_position = stored_position(kept) == Some(record.position) && !is_foreign;
    let evidence = [
        is_at_position,
        has_value(record, kept),
        has_subject(record, kept),
    ];
    let their_key = line(&kept.headers, KEY);
    let is_of_key = their_key == line(&headers(record), KEY);
    let may_be_of_key = is_at_position && (their_key.is_none() || slots.is_some());
    let may_be_there = record.kind == RecordKind::Event || has_subject(record, kept);
    may_be_there
        && (is_of_key || may_be_of_key)
        && evidence.into_iter().filter(|agrees| *agrees).count() >= 2
}

/// Returns true if a message of a stream, of whatever id, is this record with its id.
pub(crate) fn is_repeat(record: &Record<'_>, source: Option<&str>, kept: &KeptMessage) -> bool {
    let ours = headers(record);
    let id = line(&ours, MESSAGE_ID);
    id.is_some() && id == line(&kept.headers, MESSAGE_ID) && is_same(record, source, kept)
}

/// Returns true if a message is from a snapshot, whose rows are one byte before a record of the WAL.
pub(crate) fn is_of_snapshot(kept: &KeptMessage) -> bool {
    stored_position(kept).is_some_and(|position| position.lsn % RECORD_ALIGNMENT != 0)
}

/// Returns true if a message has the value of a record.
fn has_value(record: &Record<'_>, kept: &KeptMessage) -> bool {
    let is_null = line(&kept.headers, NULL).is_some();
    record.value.is_none() == is_null && record.value.unwrap_or_default() == kept.payload
}

/// Returns true if a message was published to the subject of a record. Earlier versions did not note
/// the subject that they published to.
fn has_subject(record: &Record<'_>, kept: &KeptMessage) -> bool {
    let subject = line(&kept.headers, SUBJECT).unwrap_or(kept.subject.as_bytes());
    record.topic.as_bytes() == subject
}

/// The likeness of a message of a stream to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// The record itself.
    Same,
    /// Perhaps the record, with other content or another id, or one of both without a source.
    Unclear,
    Other,
}

/// Compares a message of a stream, of whatever id, with a record of this source. They are the same if
/// system, slot, position and id are equal, and the value or the subject is; without an id timeline, value
/// and key must be equal.
pub(crate) fn likeness(record: &Record<'_>, source: Option<&str>, kept: &KeptMessage) -> Likeness {
    if stored_position(kept) != Some(record.position) {
        return Likeness::Other;
    }
    let ours = headers(record);
    let their_source = line(&kept.headers, SOURCE);
    let is_of_slot =
        their_source.and_then(slot_of) == source.and_then(|source| slot_of(source.as_bytes()));
    let id = line(&ours, MESSAGE_ID);
    let is_same = match id {
        Some(_) => is_of_slot && (has_value(record, kept) || has_subject(record, kept)),
        None => {
            their_source == source.map(str::as_bytes)
                && has_value(record, kept)
                && line(&kept.headers, KEY) == line(&ours, KEY)
        }
    };
    if is_same && id == line(&kept.headers, MESSAGE_ID) {
        return Likeness::Same;
    }
    let is_dead_letter = line(&kept.headers, dlq_headers::CLASS).is_some();
    let may_be = match source {
        Some(_) => is_of_slot || their_source.is_none(),
        // The record is of a sink that began with a snapshot.
        None => their_source.is_some(),
    };
    if may_be && !is_dead_letter {
        return Likeness::Unclear;
    }
    Likeness::Other
}

/// Returns the system and the slot of a source, without the timeline: a promotion makes another one,
/// and the positions of both can be compared.
fn slot_of(source: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = source.splitn(3, |byte| *byte == b'/');
    let (system, _, slot) = (parts.next()?, parts.next()?, parts.next()?);
    Some((system, slot))
}

/// Returns true if a message of a stream is one of the slot of this source.
pub(crate) fn is_of(kept: &KeptMessage, source: &str) -> bool {
    let of_kept = line(&kept.headers, SOURCE).and_then(slot_of);
    of_kept.is_some() && of_kept == slot_of(source.as_bytes())
}

/// Returns the position of an event in a stream; `None` if the message is none of the slot of this
/// source, or a dead letter, which may be stored behind later events.
pub(crate) fn position_of(kept: &KeptMessage, source: &str) -> Option<EventPosition> {
    if !is_of(kept, source) || line(&kept.headers, dlq_headers::CLASS).is_some() {
        return None;
    }
    stored_position(kept)
}

/// Returns the position in the headers of a message, of whatever source.
pub(crate) fn stored_position(kept: &KeptMessage) -> Option<EventPosition> {
    let position = std::str::from_utf8(line(&kept.headers, POSITION)?).ok()?;
    position.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::message::put_predecessor;

    const OURS: Option<&str> = Some("7/1/s");
    const MOVED: EventPosition = EventPosition::in_first_epoch(9, 9);

    const OTHER: Option<&[u8]> = Some(b"other");

    fn event() -> Record<'static> {
        Record {
            topic: "t.a",
            key: Some(b"k"),
            value: Some(b"v"),
            event_id: Some(b"1"),
            position: EventPosition::in_first_epoch(7, 1),
            ..Record::default()
        }
    }

    /// Makes the message of a record in its stream.
    fn kept(record: &Record<'_>, source: Option<&str>) -> KeptMessage {
        let mut headers = headers(record);
        put_predecessor(&mut headers, source, None);
        KeptMessage {
            subject: record.topic.to_owned(),
            headers,
            payload: record.value.unwrap_or_default().to_vec(),
        }
    }

    /// Makes a message with the id and these headers.
    fn foreign(subject: &str, headers: &str, payload: &[u8]) -> KeptMessage {
        KeptMessage {
            subject: subject.to_owned(),
            headers: format!("NATS/1.0\r\nNats-Msg-Id: 1\r\n{headers}\r\n").into_bytes(),
            payload: payload.to_vec(),
        }
    }

    /// All of these have the id of the event: the stream says so.
    #[test]
    #[expect(clippy::too_many_lines, reason = "a list of cases")]
    fn a_message_with_the_id_is_the_event_or_another_one() {
        let event = event();
        let with = |change: fn(&mut Record<'static>)| {
            let mut changed = event;
            change(&mut changed);
            changed
        };
        let mapped = |mut kept: KeptMessage| {
            kept.subject = "mapped.x".to_owned();
            kept
        };
        let moved = with(|it| it.position = MOVED);
        let valued = with(|it| it.value = OTHER);
        let elsewhere = with(|it| it.topic = "t.b");
        let moved_elsewhere = with(|it| (it.position, it.topic) = (MOVED, "t.b"));
        let valued_elsewhere = with(|it| (it.value, it.topic) = (OTHER, "t.b"));
        let keyed = with(|it| it.key = OTHER);
        let moved_keyed = with(|it| (it.position, it.key) = (MOVED, OTHER));
        let keyless = with(|it| it.key = None);
        let at = "walrelay.position: 0/7 1\r\n";
        for (what, kept, expected) in [
            ("the event", kept(&event, OURS), true),
            (
                "a stream maps the subject",
                mapped(kept(&event, OURS)),
                true,
            ),
            (
                "a row that is sent again is mapped",
                mapped(kept(&moved, OURS)),
                true,
            ),
            (
                "the configured subject changed",
                kept(&elsewhere, OURS),
                true,
            ),
            ("the configured value changed", kept(&valued, OURS), true),
            ("the configured key changed", kept(&keyed, OURS), true),
            ("the key became configured", kept(&keyless, OURS), true),
            (
                "the server was promoted",
                kept(&elsewhere, Some("7/2/s")),
                true,
            ),
            ("a replay has stored it", kept(&elsewhere, None), true),
            (
                "an earlier version, mapped",
                foreign("mapped.x", &format!("{at}walrelay.key: k\r\n"), b"v"),
                true,
            ),
            ("without a key, mapped", foreign("mapped.x", at, b"v"), true),
            ("of another program", foreign("t.a", "", b"v"), false),
            ("a row that is sent again", kept(&moved, OURS), true),
            (
                "of another slot, but equal",
                kept(&moved, Some("7/1/t")),
                true,
            ),
            (
                "other value at another position",
                kept(&with(|it| (it.position, it.value) = (MOVED, OTHER)), OURS),
                false,
            ),
            (
                "another table of one snapshot",
                kept(&moved_elsewhere, OURS),
                false,
            ),
            (
                "nothing but the position",
                kept(&valued_elsewhere, OURS),
                false,
            ),
            (
                "another slot's row at this position",
                kept(&elsewhere, Some("7/1/t")),
                false,
            ),
            (
                "another system's row at this position",
                kept(&elsewhere, Some("8/1/s")),
                false,
            ),
            (
                "another slot's value at this position",
                kept(&valued, Some("7/1/t")),
                false,
            ),
            ("another key", kept(&moved_keyed, OURS), false),
            ("another key, without a source", kept(&keyed, None), false),
            (
                "a tombstone",
                kept(&with(|it| (it.position, it.value) = (MOVED, None)), OURS),
                false,
            ),
            ("another program's value", foreign("t.a", "", b"w"), false),
            ("another program's subject", foreign("t.b", "", b"v"), false),
        ] {
            assert_eq!(is_same(&event, OURS, &kept), expected, "{what}");
        }
        // A dead letter is looked for under its own subject.
        let dead = |topic| Record {
            kind: RecordKind::DeadLetter,
            topic,
            ..event
        };
        let (here, there) = (kept(&dead("t.a"), OURS), kept(&dead("t.b"), OURS));
        assert!(is_same(&dead("t.a"), OURS, &here) && !is_same(&dead("t.a"), OURS, &there));
        // An empty value is no tombstone.
        let empty = with(|it| (it.position, it.value) = (MOVED, Some(b"".as_slice())));
        let tombstone = with(|it| it.value = None);
        assert!(!is_same(&tombstone, OURS, &kept(&empty, OURS)));
        // A replay knows the position of its event, and no slot.
        for (what, kept, expected) in [
            ("the event", kept(&event, OURS), true),
            ("its subject changed since", kept(&elsewhere, OURS), true),
            ("its value changed since", mapped(kept(&valued, OURS)), true),
            ("another event", kept(&moved_elsewhere, OURS), false),
            (
                "another key",
                kept(&with(|it| (it.key, it.topic) = (OTHER, "t.b")), OURS),
                false,
            ),
        ] {
            assert_eq!(is_same(&event, None, &kept), expected, "a replay: {what}");
        }
    }

    #[test]
    fn only_a_message_of_the_same_slot_and_position_is_proof_of_an_event() {
        use Likeness::{Other, Same, Unclear};
        let record = event();
        let without_id = Record {
            event_id: None,
            ..record
        };
        let elsewhere = |record: Record<'static>| Record {
            topic: "t.b",
            key: None,
            ..record
        };
        let mapped = |record: Record<'static>| Record {
            topic: "t.b",
            ..record
        };
        let changed = |record: Record<'static>| Record {
            value: None,
            ..record
        };
        for (record, kept, expected) in [
            (record, kept(&record, OURS), Same),
            (record, kept(&record, Some("7/2/s")), Same),
            (record, kept(&changed(record), OURS), Same),
            (record, kept(&elsewhere(record), OURS), Same),
            (record, kept(&changed(elsewhere(record)), OURS), Unclear),
            (record, kept(&record, Some("8/1/s")), Other),
            (record, kept(&record, Some("7/1/t")), Other),
            (record, kept(&record, None), Unclear),
            (record, kept(&without_id, OURS), Unclear),
            (without_id, kept(&record, OURS), Unclear),
            (without_id, kept(&without_id, OURS), Same),
            (without_id, kept(&mapped(without_id), OURS), Same),
            (without_id, kept(&elsewhere(without_id), OURS), Unclear),
            (without_id, kept(&without_id, Some("7/2/s")), Unclear),
            (without_id, kept(&changed(without_id), OURS), Unclear),
        ] {
            let position = EventPosition::in_first_epoch(7, 2);
            let next = Record { position, ..record };
            assert_eq!(likeness(&record, OURS, &kept), expected, "{record:?}");
            assert_eq!(likeness(&next, OURS, &kept), Other, "{record:?}");
        }
        assert_eq!(likeness(&record, None, &kept(&record, None)), Same);
        assert_eq!(likeness(&record, None, &kept(&record, OURS)), Unclear);
    }
}
