//! The events of the suite, and the records made of them.

use walrelay_sink::{EventPosition, Header, Record, RecordKind, SendError, Sink};

/// An event, of which the suite makes a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The topic.
    pub topic: String,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The event's id: the header `id`.
    pub id: String,
    /// The value of another header.
    pub note: String,
    /// The position, which no other event of the run has. Later events have greater ones.
    pub position: EventPosition,
}

impl Event {
    /// Offers the event's record to a sink. The only place that makes records.
    pub(super) fn offer(&self, sink: &mut dyn Sink, seq: u64) -> Result<(), SendError> {
        let headers = [("id", &self.id), ("note", &self.note)];
        let headers = headers.map(|(name, value)| Header {
            name,
            value: Some(value.as_bytes()),
        });
        let record = Record {
            kind: RecordKind::Event,
            topic: &self.topic,
            routing_key: None,
            partition: None,
            timestamp_ms: None,
            key: Some(&self.key),
            value: Some(&self.value),
            headers: &headers,
            event_id: Some(self.id.as_bytes()),
            position: self.position,
        };
        sink.try_send(&record, seq)
    }

    /// Returns true if a record is that of the event.
    pub(super) fn is(&self, record: &Record<'_>) -> bool {
        let headers = record.headers.iter().map(|header| header.value);
        record.topic == self.topic
            && record.key == Some(&*self.key)
            && record.value == Some(&*self.value)
            && record.event_id == Some(self.id.as_bytes())
            && record.position == self.position
            && headers.eq([self.id.as_bytes(), self.note.as_bytes()].map(Some))
    }

    /// Bytes of key, value and headers.
    pub(super) fn bytes(&self) -> u64 {
        let names = "id".len() + "note".len();
        let bytes = self.key.len() + self.value.len() + self.id.len() + self.note.len() + names;
        bytes as u64
    }
}
