use std::fmt;

use crate::{EventPosition, Header, Record, RecordKind};

/// An owned copy of a [`Record`], for a sink that has accepted the record and cannot send it yet.
///
/// The copy takes two allocations, because a whole window of records may be held.
pub struct HeldRecord {
    kind: RecordKind,
    partition: Option<i32>,
    timestamp_ms: Option<i64>,
    position: EventPosition,
    topic: usize,
    routing_key: Length,
    key: Length,
    value: Length,
    event_id: Length,
    /// The lengths of names and values.
    headers: Box<[(usize, Length)]>,
    /// Topic, routing key, key, value, event id, and the name and value of each header, concatenated.
    bytes: Box<[u8]>,
}

/// The length of a part that may be null.
type Length = Option<usize>;

impl HeldRecord {
    /// Copies a record.
    pub fn new(record: &Record<'_>) -> Self {
        let id = record.event_id.map_or(0, <[u8]>::len);
        let address = record.topic.len() + record.routing_key.map_or(0, str::len);
        let mut bytes = Vec::with_capacity(address + record.payload_bytes() + id);
        let mut put = |part: Option<&[u8]>| {
            bytes.extend_from_slice(part.unwrap_or_default());
            part.map(<[u8]>::len)
        };
        put(Some(record.topic.as_bytes()));
        let routing_key = put(record.routing_key.map(str::as_bytes));
        let (key, value) = (put(record.key), put(record.value));
        let event_id = put(record.event_id);
        let header = |header: &Header<'_>| {
            put(Some(header.name.as_bytes()));
            (header.name.len(), put(header.value))
        };
        let headers = record.headers.iter().map(header).collect();
        Self {
            kind: record.kind,
            partition: record.partition,
            timestamp_ms: record.timestamp_ms,
            position: record.position,
            topic: record.topic.len(),
            routing_key,
            key,
            value,
            event_id,
            headers,
            bytes: bytes.into(),
        }
    }

    /// Calls `call` with the record, which is equal to the one that was copied.
    pub fn with<T>(&self, call: impl FnOnce(&Record<'_>) -> T) -> T {
        let mut rest = &*self.bytes;
        let mut take = |length: usize| {
            let (part, behind) = rest.split_at(length);
            rest = behind;
            part
        };
        // The bytes are those of a `str`.
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
        let topic = text(take(self.topic));
        let routing_key = self.routing_key.map(|length| text(take(length)));
        let (key, value) = (self.key.map(&mut take), self.value.map(&mut take));
        let event_id = self.event_id.map(&mut take);
        let header = |(name, value): &(usize, Length)| Header {
            name: text(take(*name)),
            value: value.map(&mut take),
        };
        let headers: Vec<Header<'_>> = self.headers.iter().map(header).collect();
        call(&Record {
            kind: self.kind,
            topic,
            routing_key,
            partition: self.partition,
            timestamp_ms: self.timestamp_ms,
            key,
            value,
            headers: &headers,
            event_id,
            position: self.position,
        })
    }
}

/// Shows lengths, as [`Record`]'s does.
impl fmt::Debug for HeldRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|record| f.debug_tuple("HeldRecord").field(record).finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_record_is_unchanged() {
        let headers = [
            Header {
                name: "h",
                value: Some(b""),
            },
            Header {
                name: "n",
                value: None,
            },
        ];
        let full = Record {
            kind: RecordKind::DeadLetter,
            topic: "t",
            routing_key: Some("r"),
            partition: Some(4),
            timestamp_ms: Some(7),
            key: Some(b"key"),
            value: None,
            headers: &headers,
            event_id: Some(b"id"),
            position: EventPosition::in_first_epoch(8, 1),
        };
        let empty = Record {
            topic: "t",
            value: Some(b""),
            ..Record::default()
        };
        for record in [full, empty] {
            HeldRecord::new(&record).with(|held| {
                assert_eq!((held.topic, held.partition), ("t", record.partition));
                assert_eq!(held.kind, record.kind);
                assert_eq!(held.routing_key, record.routing_key);
                assert_eq!(held.timestamp_ms, record.timestamp_ms);
                assert_eq!((held.key, held.value), (record.key, record.value));
                assert_eq!(
                    (held.event_id, held.position),
                    (record.event_id, record.position)
                );
                let of = |record: &Record<'_>| -> Vec<(String, Option<Vec<u8>>)> {
                    let headers = record.headers.iter();
                    headers
                        .map(|h| (h.name.to_owned(), h.value.map(<[u8]>::to_vec)))
                        .collect()
                };
                assert_eq!(of(held), of(&record));
            });
        }
        let shown = format!("{:?}", HeldRecord::new(&full));
        assert!(shown.contains("key_bytes: Some(3)"), "{shown}");
    }
}
