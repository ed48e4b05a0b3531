//! Writing a dead letter.

use walrelay_event_router::{PartialRow, Routed};
use walrelay_pgoutput::Begin;
use walrelay_sink::dlq_headers as names;
use walrelay_sink::{Header, Poison, Record};

use super::decisions::Diverted;
use super::policy::{Class, PoisonPolicy};
use crate::interface::table::TableName;

/// The row that a dead letter is written for.
#[expect(
    clippy::large_enum_variant,
    reason = "the largest is by far the most frequent, and a box would be an allocation per row"
)]
pub(crate) enum Body<'a> {
    /// It could be routed.
    Routed(Routed<'a>),
    /// It could not. With headers that it brings itself.
    Partial(PartialRow<'a>, Vec<Header<'a>>),
}

impl<'a> Body<'a> {
    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        match self {
            Body::Routed(routed) => routed.key(),
            Body::Partial(partial_row, _) => partial_row.key,
        }
    }

    pub(crate) fn topic(&self) -> Option<&str> {
        match self {
            Body::Routed(routed) => Some(routed.topic()),
            Body::Partial(..) => None,
        }
    }

    fn value(&self) -> Option<&'a [u8]> {
        match self {
            Body::Routed(routed) => routed.value(),
            Body::Partial(partial_row, _) => partial_row.value,
        }
    }

    pub(crate) fn event_id(&self) -> Option<&'a [u8]> {
        match self {
            Body::Routed(routed) => routed.event_id(),
            Body::Partial(partial_row, _) => partial_row.event_id,
        }
    }
}

/// What a dead letter says beyond the row. The core keeps it, the record borrows it.
#[derive(Debug, Default)]
pub(crate) struct DlqHeaders {
    topic: String,
    /// Name and value, in the order in which they are written.
    headers: Vec<(&'static str, String)>,
}

impl DlqHeaders {
    pub(crate) fn of(
        policy: &PoisonPolicy,
        diverted: &Diverted,
        begin: &Begin,
        table: &TableName,
        body: &Body<'_>,
    ) -> Self {
        let mut headers = vec![
            (names::CLASS, diverted.class.name().to_owned()),
            (names::CAUSE, diverted.cause.to_string()),
            (names::SLOT, policy.slot.to_string()),
            (names::LSN, begin.final_lsn.to_string()),
            (names::ROW, diverted.id.row.to_string()),
            (names::XID, begin.xid.to_string()),
            (names::COMMIT_TIME, begin.commit_time.to_string()),
            (names::TABLE, table.to_string()),
        ];
        if let Some(topic) = body.topic() {
            headers.push((names::TOPIC, topic.to_owned()));
        }
        if omits_value(diverted.class)
            && let Some(value) = body.value()
        {
            headers.push((names::VALUE_BYTES, value.len().to_string()));
        }
        Self {
            topic: policy.topic.to_string(),
            headers,
        }
    }
}

/// The value of an event that is too large for its topic is too large for the topic of dead letters, or should
/// be: the dead letter refers to it.
fn omits_value(class: Class) -> bool {
    class == Class::Poison(Poison::Oversize)
}

/// A dead letter, borrowed from the row and from the core.
pub(crate) struct DlqRecord<'a> {
    topic: &'a str,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: Vec<Header<'a>>,
}

impl<'a> DlqRecord<'a> {
    pub(crate) fn new(dlq_headers: &'a DlqHeaders, class: Class, body: &Body<'a>) -> Self {
        let mut headers = match body {
            Body::Routed(routed) => routed.headers().to_vec(),
            Body::Partial(partial_row, more) => [&partial_row.headers()[..], more].concat(),
        };
        headers.extend(dlq_headers.headers.iter().map(|(name, value)| Header {
            name,
            value: Some(value.as_bytes()),
        }));
        headers.push(Header {
            name: names::EVENT_ID,
            value: body.event_id(),
        });
        Self {
            topic: &dlq_headers.topic,
            key: body.key(),
            value: body.value().filter(|_| !omits_value(class)),
            headers,
        }
    }

    pub(crate) fn record(&self) -> Record<'_> {
        Record {
            topic: self.topic,
            // With the key's other dead letters, and their resolutions.
            partition: None,
            timestamp_ms: None,
            key: self.key,
            value: self.value,
            headers: &self.headers,
        }
    }
}
