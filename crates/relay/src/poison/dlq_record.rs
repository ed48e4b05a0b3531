//! Writing a dead letter.

use std::fmt;

use walrelay_event_router::{PartialRow, Routed};
use walrelay_pgoutput::Begin;
use walrelay_sink::dlq_headers as names;
use walrelay_sink::dlq_shape::ShapeFields;
use walrelay_sink::{EventPosition, Header, Poison, Record, RecordKind};

use super::decisions::Diverted;
use super::policy::{Class, PoisonPolicy};
use crate::table::TableName;

/// The row that a dead letter is written for.
#[derive(Clone)]
pub(crate) struct Body<'a> {
    /// The topic of a row that was routed.
    pub(crate) topic: Option<&'a str>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) event_id: Option<&'a [u8]>,
    partition: Option<i32>,
    timestamp_ms: Option<i64>,
    value: Option<&'a [u8]>,
    headers: Vec<Header<'a>>,
}

impl<'a> Body<'a> {
    pub(crate) fn from_routed(routed: &Routed<'a>) -> Self {
        let record = routed.record();
        Self {
            topic: Some(routed.topic()),
            key: routed.key(),
            event_id: routed.event_id(),
            partition: record.partition,
            timestamp_ms: record.timestamp_ms,
            value: routed.value(),
            headers: routed.headers().to_vec(),
        }
    }

    /// Returns the parts of a record that a sink gave back.
    pub(crate) fn from_record(record: &Record<'a>) -> Self {
        Self {
            topic: Some(record.topic),
            key: record.key,
            event_id: record.event_id,
            partition: record.partition,
            timestamp_ms: record.timestamp_ms,
            value: record.value,
            headers: record.headers.to_vec(),
        }
    }

    /// Returns the parts of a row that cannot be routed, and the headers that a message contains.
    pub(crate) fn from_partial(
        row: &PartialRow<'a>,
        message_headers: impl Iterator<Item = Header<'a>>,
    ) -> Self {
        Self {
            topic: None,
            key: row.key,
            event_id: row.event_id,
            partition: None,
            timestamp_ms: None,
            value: row.value,
            headers: row.headers().into_iter().chain(message_headers).collect(),
        }
    }
}

/// The topic of a dead letter and its headers `walrelay.dlq.…`. The core owns them, and
/// [`DlqRecord`] borrows them.
#[derive(Default)]
pub(crate) struct DlqHeaders {
    topic: String,
    /// Name and value, in the order in which they are written.
    headers: Vec<(&'static str, String)>,
    /// The value, if a template shapes it.
    value: Option<Vec<u8>>,
}

/// Not derived: the value is a row's.
impl fmt::Debug for DlqHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlqHeaders")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

impl DlqHeaders {
    /// Writes the headers. `system`: the cluster that the event was read from; empty if it is unknown.
    pub(crate) fn new(
        (policy, system): (&PoisonPolicy, &str),
        diverted: &Diverted,
        begin: &Begin,
        table: &TableName,
        body: &Body<'_>,
    ) -> Self {
        let mut headers = vec![
            (names::CLASS, diverted.class.name().to_owned()),
            (names::CAUSE, diverted.cause.to_string()),
            (names::SLOT, policy.slot.to_string()),
            (names::LSN, diverted.id.published_lsn().to_string()),
            (names::ROW, diverted.id.row.to_string()),
            (names::XID, begin.xid.to_string()),
            (names::COMMIT_TIME, begin.commit_time.to_string()),
            (names::TABLE, table.to_string()),
        ];
        if !system.is_empty() {
            headers.push((names::SYSTEM, system.to_owned()));
        }
        if let Some(topic) = body.topic {
            headers.push((names::TOPIC, topic.to_owned()));
        }
        if let Some(partition) = body.partition {
            headers.push((names::PARTITION, partition.to_string()));
        }
        if let Some(millis) = body.timestamp_ms {
            headers.push((names::TIMESTAMP, millis.to_string()));
        }
        if omits_value(diverted.class)
            && let Some(value) = body.value
        {
            headers.push((names::VALUE_BYTES, value.len().to_string()));
        }
        let shaped = policy.shape.as_ref().map(|(shape, now)| {
            shape.render(&ShapeFields {
                value: body.value.filter(|_| !omits_value(diverted.class)),
                key: body.key,
                event_id: body.event_id,
                topic: body.topic,
                table: &table.to_string(),
                class: diverted.class.name(),
                error: &diverted.cause,
                failed_at: &now().to_string(),
                attempts: ATTEMPTS,
            })
        });
        let value = shaped.map(|shaped| {
            headers.push((names::VALUE_AT, shaped.value_at));
            shaped.value
        });
        Self {
            topic: policy.topic.to_string(),
            headers,
            value,
        }
    }
}

/// The processes that gave an event up, as `mark_dead` counts them: a dead letter knows of its own.
const ATTEMPTS: u64 = 1;

/// Returns true if the dead letter has no value. A value that is too large for its topic is
/// expected to be too large for the topic of dead letters, too, so the dead letter only states its
/// size.
fn omits_value(class: Class) -> bool {
    class == Class::Poison(Poison::Oversize)
}

/// A dead letter that borrows from the row and from the core's [`DlqHeaders`].
pub(crate) struct DlqRecord<'a> {
    /// The record without its headers.
    record: Record<'a>,
    headers: Vec<Header<'a>>,
}

impl<'a> DlqRecord<'a> {
    pub(crate) fn new(
        dlq_headers: &'a DlqHeaders,
        (position, class): (EventPosition, Class),
        body: Body<'a>,
    ) -> Self {
        let mut headers = body.headers;
        // A row may have headers of any name, and readers would take these for the relay's.
        headers.retain(|header| !header.name.starts_with(names::PREFIX));
        headers.extend(dlq_headers.headers.iter().map(|(name, value)| Header {
            name,
            value: Some(value.as_bytes()),
        }));
        headers.push(Header {
            name: names::EVENT_ID,
            value: body.event_id,
        });
        Self {
            record: Record {
                kind: RecordKind::DeadLetter,
                topic: &dlq_headers.topic,
                routing_key: None,
                // The key chooses the partition, so that all dead letters of a key and their
                // resolutions are in one partition.
                partition: None,
                timestamp_ms: None,
                key: body.key,
                value: match &dlq_headers.value {
                    Some(shaped) => Some(shaped),
                    None => body.value.filter(|_| !omits_value(class)),
                },
                headers: &[],
                event_id: body.event_id,
                position,
            },
            headers,
        }
    }

    pub(crate) fn record(&self) -> Record<'_> {
        Record {
            headers: &self.headers,
            ..self.record
        }
    }
}
