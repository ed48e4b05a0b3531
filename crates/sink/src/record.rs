use std::fmt;

use crate::EventPosition;

/// The thing that a [`Record`] stands for. The relay says it: no header or topic does, because both may
/// come from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordKind {
    /// An event.
    #[default]
    Event,
    /// A dead letter: it has the headers [`dlq_headers`](crate::dlq_headers).
    DeadLetter,
    /// A record that resolves a dead letter.
    Resolution,
}

/// One message for the sink, borrowed from the row it was made of.
#[derive(Clone, Copy, Default)]
pub struct Record<'a> {
    /// What the record stands for.
    pub kind: RecordKind,
    /// The name of the topic; for other sinks than Kafka the first part of the record's address,
    /// such as an exchange or a URL.
    pub topic: &'a str,
    /// The second part of the address, for a sink that has one; `None` if its configuration gives
    /// no template of it.
    pub routing_key: Option<&'a str>,
    /// A fixed partition; `None`: the sink's partitioner chooses one by the key.
    pub partition: Option<i32>,
    /// Milliseconds since 1970-01-01 UTC; `None`: the time of production.
    pub timestamp_ms: Option<i64>,
    /// The key; `None` is Kafka's null key, and no order is kept among such records.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is Kafka's null value, a tombstone.
    pub value: Option<&'a [u8]>,
    /// The headers, sent in this order; names may repeat.
    pub headers: &'a [Header<'a>],
    /// The event's id, unchanged from the row: the same whenever the event is sent again. A dead
    /// letter has the id of its event. `None`: NULL, or the table has no id column.
    pub event_id: Option<&'a [u8]>,
    /// The position of the event that the record stands for: the same whenever the event is sent
    /// again. A dead letter has the position of its event. The position of a row of a snapshot
    /// identifies the row in that snapshot only.
    pub position: EventPosition,
}

/// A header of a [`Record`].
#[derive(Clone, Copy)]
pub struct Header<'a> {
    /// The header's name.
    pub name: &'a str,
    /// The header's bytes; `None` is a header that is present and null.
    pub value: Option<&'a [u8]>,
}

impl Record<'_> {
    /// Returns the bytes of key, value and headers, without the overhead of a queue.
    pub fn payload_bytes(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|h| h.name.len() + h.value.map_or(0, <[u8]>::len))
            .sum();
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + headers
    }
}

// Not derived: row values must not be logged.
impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("kind", &self.kind)
            .field("topic", &self.topic)
            .field("routing_key_bytes", &self.routing_key.map(str::len))
            .field("partition", &self.partition)
            .field("timestamp_ms", &self.timestamp_ms)
            .field("key_bytes", &self.key.map(<[u8]>::len))
            .field("value_bytes", &self.value.map(<[u8]>::len))
            .field("headers", &self.headers.len())
            .field("event_id_bytes", &self.event_id.map(<[u8]>::len))
            .field("position", &self.position)
            .finish()
    }
}

impl fmt::Debug for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("name", &self.name)
            .field("value_bytes", &self.value.map(<[u8]>::len))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_lengths_and_no_values() {
        let headers = [Header {
            name: "id",
            value: Some(b"secret-id"),
        }];
        let record = Record {
            topic: "outbox.event.Order",
            key: Some(b"secret-key"),
            value: Some(b"secret-value"),
            headers: &headers,
            event_id: Some(b"secret-id"),
            ..Record::default()
        };
        let shown = format!("{record:?} {:?}", headers[0]);
        assert!(!shown.contains("secret"), "{shown}");
        assert!(shown.contains("value_bytes: Some(12)"), "{shown}");
        assert_eq!(record.payload_bytes(), 10 + 12 + 2 + 9);
    }
}
