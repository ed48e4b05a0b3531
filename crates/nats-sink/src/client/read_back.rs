//! A message of a stream as the record that it was made of.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use walrelay_sink_kind::topics::ReadRecord;

use super::jetstream::StoredMessage;
use super::message::{
    DEAD_LETTER_ID, HEADERS, KEY, MESSAGE_ID, NULL, POSITION, SOURCE, SUBJECT, TIMESTAMP,
};

/// A message that was read.
#[derive(Debug)]
pub(crate) struct ReadBack {
    pub(crate) record: ReadRecord,
    /// The headers of a dead letter are those of its event, byte for byte. Headers of other messages are
    /// as they were sent: percent-encoding in them cannot be told from their own text.
    pub(crate) is_exact: bool,
    /// The id of a dead letter's event, as the message's own id has it; `None` if it has none.
    pub(crate) dead_letter_event: Option<Vec<u8>>,
}

/// Makes the record. `topic`: the name under which it is read.
pub(crate) fn read_back(topic: &str, message: StoredMessage) -> ReadBack {
    let StoredMessage {
        seq,
        stored_ms,
        kept,
    } = message;
    let mut record = ReadRecord {
        topic: topic.to_owned(),
        offset: i64::try_from(seq).unwrap_or(i64::MAX),
        written_ms: stored_ms,
        value: Some(kept.payload),
        ..ReadRecord::default()
    };
    let mut list = None;
    let mut dead_letter_event = None;
    for line in kept.headers.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = line.split_at(colon);
        let name = String::from_utf8_lossy(name);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let text = || std::str::from_utf8(value).ok();
        match &*name {
            MESSAGE_ID if value.starts_with(DEAD_LETTER_ID.as_bytes()) => {
                // Slot (letters, digits, `_`), cluster (digits) and position before the event's id have no slash but that in the LSN.
                let event = value.splitn(5, |byte| *byte == b'/').nth(4);
                dead_letter_event = event.filter(|id| !id.is_empty()).map(unescaped);
            }
            MESSAGE_ID => record.event_id = Some(unescaped(value)),
            KEY => record.key = Some(unescaped(value)),
            NULL => record.value = None,
            POSITION => record.event_position = text().and_then(|text| text.parse().ok()),
            TIMESTAMP => record.timestamp_ms = text().and_then(|text| text.parse().ok()),
            SOURCE | SUBJECT => {}
            HEADERS if list.is_none() => list = Some(value),
            name if name.to_ascii_lowercase().starts_with("nats-") => {}
            name => record.headers.push((name.to_owned(), Some(value.to_vec()))),
        }
    }
    let exact = list.and_then(|list| restored(list, &record.headers));
    let is_exact = exact.is_some();
    match exact {
        Some(exact) => record.headers = exact,
        // The lines are encoded as those of a dead letter that can be restored.
        None if list.is_some() => {
            for value in record
                .headers
                .iter_mut()
                .filter_map(|(_, value)| value.as_mut())
            {
                *value = unescaped(value);
            }
        }
        None => {}
    }
    ReadBack {
        record,
        is_exact,
        dead_letter_event,
    }
}

/// Names and values of headers.
type Headers = Vec<(String, Option<Vec<u8>>)>;

/// Restores the headers of a dead letter from the list of them ([`HEADERS`]) and the lines that it
/// counts; `None` if the list does not fit the lines.
fn restored(list: &[u8], lines: &[(String, Option<Vec<u8>>)]) -> Option<Headers> {
    let list = std::str::from_utf8(list).ok()?;
    let text = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
    let mut lines = lines.iter();
    let mut headers = Headers::new();
    for item in list.split(' ').filter(|item| !item.is_empty()) {
        if let Some(count) = item.strip_prefix('+') {
            let count: usize = count.parse().ok()?;
            let before = lines.len();
            let counted = lines.by_ref().take(count);
            headers.extend(
                counted.map(|(name, value)| (name.clone(), value.as_deref().map(unescaped))),
            );
            if before < count {
                return None;
            }
            continue;
        }
        let (name, value) = match item.split_once(':') {
            Some((name, value)) => (name, Some(text(value)?)),
            None => (item.strip_suffix('!')?, None),
        };
        headers.push((String::from_utf8(text(name)?).ok()?, value));
    }
    (lines.len() == 0).then_some(headers)
}

/// Undoes the percent-encoding of an id or a key, in which each `%` is encoded.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    while let Some((first, rest)) = text.split_first() {
        let digits = rest.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        text = match byte {
            Some(_) => rest.get(2..).unwrap_or_default(),
            None => rest,
        };
    }
    bytes
}

/// Returns true if a subject is one of a filter, whose tokens may be `*` and whose last one may be `>`.
pub(crate) fn is_of_subject(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    let mut filters = filter.split('.');
    loop {
        match (filters.next(), tokens.next()) {
            (None, None) | (Some(">"), Some(_)) => return true,
            (Some(filter), Some(token)) if filter == "*" || filter == token => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walrelay_sink::{EventPosition, Header, Record, RecordKind};

    use super::*;
    use crate::client::jetstream::KeptMessage;
    use crate::client::message;

    fn stored(record: &Record<'_>) -> ReadBack {
        let kept = KeptMessage {
            subject: record.topic.to_owned(),
            headers: message::headers(record),
            payload: record.value.unwrap_or_default().to_vec(),
        };
        let message = StoredMessage {
            seq: 7,
            stored_ms: Some(5),
            kept,
        };
        super::read_back("S", message)
    }

    fn read_back(record: &Record<'_>) -> ReadRecord {
        stored(record).record
    }

    #[test]
    fn a_record_is_read_back() {
        let headers = [
            Header {
                name: "event-type",
                value: Some("Paid: ü".as_bytes()),
            },
            Header {
                name: "null",
                value: None,
            },
        ];
        let sent = Record {
            topic: "events.Order",
            key: Some(b"5%\n"),
            value: None,
            headers: &headers,
            event_id: Some(b" e%41"),
            timestamp_ms: Some(-7),
            position: EventPosition::in_first_epoch(16, 2),
            ..Record::default()
        };
        let mut expected = ReadRecord {
            topic: "S".to_owned(),
            offset: 7,
            timestamp_ms: Some(-7),
            written_ms: Some(5),
            event_id: Some(b" e%41".to_vec()),
            event_position: Some(sent.position),
            key: Some(b"5%\n".to_vec()),
            value: None,
            headers: vec![("event-type".to_owned(), Some("Paid: ü".into()))],
            ..ReadRecord::default()
        };
        assert_eq!(read_back(&sent), expected);
        let empty = Record {
            key: None,
            value: Some(b""),
            event_id: None,
            ..sent
        };
        expected.value = Some(Vec::new());
        (expected.key, expected.event_id) = (None, None);
        assert_eq!(read_back(&empty), expected);
        let class = Header {
            name: walrelay_sink::dlq_headers::CLASS,
            value: Some(b"oversize"),
        };
        let dead_letter = Record {
            kind: RecordKind::DeadLetter,
            headers: &[class],
            ..sent
        };
        let read = read_back(&dead_letter);
        assert_eq!((read.event_id, read.headers.len()), (None, 1));
    }

    #[test]
    fn a_filter_has_wildcards() {
        for (filter, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.>", "a.b.c", true),
            (">", "a", true),
            ("a.>", "a", false),
            ("a.*", "a.b.c", false),
            ("a", "b", false),
        ] {
            assert_eq!(
                is_of_subject(filter, subject),
                expected,
                "{filter} {subject}"
            );
        }
    }

    /// A dead letter that its encoding would make too large is written without it, and says so. The id by
    /// which its row is kept is exact.
    #[test]
    fn a_dead_letter_of_large_headers_is_not_exact() {
        let percent = "%".repeat(30_000).into_bytes();
        let header = |name, value| Header {
            name,
            value: Some(value),
        };
        let headers = [
            header("walrelay.dlq.class", &b"rejected"[..]),
            header("walrelay.dlq.slot", b"orders"),
            header("note", &percent),
        ];
        let sent = Record {
            kind: RecordKind::DeadLetter,
            topic: "dead",
            headers: &headers,
            event_id: Some(b" 1%/\n"),
            ..Record::default()
        };
        let read = stored(&sent);
        assert!(!read.is_exact);
        assert_eq!(read.dead_letter_event.as_deref(), Some(&b" 1%/\n"[..]));
        assert_eq!(
            read.record.headers.last().unwrap().1.as_deref(),
            Some(&percent[..])
        );
    }

    proptest! {
        #[test]
        fn ids_and_keys_are_read_back(
            id in prop::collection::vec(any::<u8>(), 1..20),
            key in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let sent = Record {
                topic: "t",
                key: Some(&key),
                event_id: Some(&id),
                ..Record::default()
            };
            let read = read_back(&sent);
            prop_assume!(!id.starts_with(DEAD_LETTER_ID.as_bytes()));
            prop_assert_eq!((read.event_id, read.key), (Some(id), Some(key)));
        }

        #[test]
        fn no_headers_make_the_reader_panic(block in prop::collection::vec(any::<u8>(), 0..100)) {
            let kept = KeptMessage {
                subject: String::new(),
                headers: [&b"walrelay.key: %"[..], &block].concat(),
                payload: Vec::new(),
            };
            let message = StoredMessage { seq: 1, stored_ms: None, kept };
            super::read_back("t", message);
        }

        /// Whatever headers an event has, its dead letter has them in its own order.
        #[test]
        fn the_headers_of_a_dead_letter_are_exact(
            headers in prop::collection::vec(
                (
                    prop_oneof!["[a-z.:%\\- ]{0,5}", "\\PC{0,3}", "walrelay.key|Nats-x|walrelay.dlq.headers"],
                    prop::option::of(prop_oneof![
                        prop::collection::vec(any::<u8>(), 0..12),
                        "[%0-9A-F]{0,6}".prop_map(String::into_bytes),
                    ]),
                ),
                0..6,
            ),
            source in any::<bool>(),
        ) {
            let class = ("walrelay.dlq.class".to_owned(), Some(b"rejected".to_vec()));
            let headers: Headers = headers.into_iter().chain([class]).collect();
            let lent: Vec<Header<'_>> = headers
                .iter()
                .map(|(name, value)| Header { name, value: value.as_deref() })
                .collect();
            let sent = Record {
                kind: RecordKind::DeadLetter,
                topic: "dead",
                headers: &lent,
                ..Record::default()
            };
            let mut block = message::headers(&sent);
            if source {
                message::put_predecessor(&mut block, Some("7/1/s"), None);
            }
            let kept = |headers: &[u8]| StoredMessage {
                seq: 1,
                stored_ms: None,
                kept: KeptMessage {
                    subject: "dead".to_owned(),
                    headers: headers.to_vec(),
                    payload: Vec::new(),
                },
            };
            let read = super::read_back("dead", kept(&block));
            prop_assert!(read.is_exact);
            prop_assert_eq!(read.record.headers, headers);
            // With a line more or less, nothing is guessed.
            let end = block.len() - 2;
            let more = [&block[..end], b"more: 1\r\n\r\n"].concat();
            prop_assert!(!super::read_back("dead", kept(&more)).is_exact);
        }

        #[test]
        fn no_list_of_headers_makes_the_reader_panic(list in "[+0-9a-zA-Z:! _-]{0,30}") {
            let line = ("a".to_owned(), Some(b"b".to_vec()));
            restored(list.as_bytes(), &[line]);
        }
    }
}
