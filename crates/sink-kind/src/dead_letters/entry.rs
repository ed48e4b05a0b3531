//! Parses the records among which dead letters are kept.

use super::interface::{DlqRecord, Outcome};
use crate::topics::ReadRecord;
use walrelay_sink::dlq_shape;
use walrelay_sink::{EventPosition, dlq_headers};

/// The record that resolves a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// The slot of the dead letter.
    pub slot: String,
    /// The cluster of the dead letter; `None` if it names none.
    pub system: Option<String>,
    /// The event's position in the slot.
    pub id: EventPosition,
    /// How the dead letter was resolved.
    pub outcome: Outcome,
}

/// A record among dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DlqEntry {
    /// A dead letter.
    DlqRecord(Box<DlqRecord>),
    /// The resolution of a dead letter.
    Resolution(Resolution),
    /// Neither, and why: a record of another program, or one without the required headers.
    Foreign(&'static str),
}

impl DlqEntry {
    /// Parses a record.
    pub fn from_record(record: ReadRecord) -> Self {
        Self::read(record).unwrap_or_else(Self::Foreign)
    }

    fn read(record: ReadRecord) -> Result<Self, &'static str> {
        let position = record.position();
        let ours = RelayHeaders(&record.headers);
        let class = ours.text(dlq_headers::CLASS)?;
        // Dead letters of earlier versions kept such headers of their event.
        if let (Some(resolves), None) = (ours.text(dlq_headers::RESOLVES)?, class) {
            return resolution(resolves, &ours).map(Self::Resolution);
        }
        let class = class.ok_or("it has no header of a dead letter")?;
        let id = EventPosition::from_parts(
            ours.text(dlq_headers::LSN)?.ok_or("it has no LSN")?,
            ours.text(dlq_headers::ROW)?.ok_or("it has no row")?,
        )
        .ok_or("its LSN or row cannot be read")?;
        let omitted_bytes = ours.number(dlq_headers::VALUE_BYTES)?;
        let (value, unrestored) = match ours.text(dlq_headers::VALUE_AT)? {
            Some(_) if omitted_bytes.is_some() => (None, None),
            Some(value_at) => match dlq_shape::restore(record.value.as_deref(), value_at) {
                Ok(value) => (value, None),
                Err(why) => (None, Some(why)),
            },
            None => (record.value, None),
        };
        let found = DlqRecord {
            id,
            slot: ours
                .text(dlq_headers::SLOT)?
                .ok_or("it has no slot")?
                .to_owned(),
            system: ours.text(dlq_headers::SYSTEM)?.map(str::to_owned),
            class: class.to_owned(),
            cause: ours.text(dlq_headers::CAUSE)?.map(str::to_owned),
            xid: ours.number(dlq_headers::XID)?,
            commit_time: ours.text(dlq_headers::COMMIT_TIME)?.map(str::to_owned),
            table: ours.text(dlq_headers::TABLE)?.map(str::to_owned),
            event_id: ours.bytes(dlq_headers::EVENT_ID).map(<[u8]>::to_vec),
            topic: ours.text(dlq_headers::TOPIC)?.map(str::to_owned),
            partition: ours.number(dlq_headers::PARTITION)?,
            timestamp_ms: ours.number(dlq_headers::TIMESTAMP)?,
            omitted_bytes,
            is_exact: true,
            unrestored,
            key: record.key,
            value,
            headers: Vec::new(),
            position,
        };
        let mut headers = record.headers;
        headers.retain(|(name, _)| !name.starts_with(dlq_headers::PREFIX));
        Ok(Self::DlqRecord(Box::new(DlqRecord { headers, ..found })))
    }
}

fn resolution(resolves: &str, ours: &RelayHeaders<'_>) -> Result<Resolution, &'static str> {
    let (slot, id) = resolves
        .split_once(' ')
        .ok_or("what it resolves cannot be read")?;
    let outcome = match ours.text(dlq_headers::RESOLUTION)? {
        Some(dlq_headers::REDRIVEN) => Outcome::Redriven,
        Some(dlq_headers::DROPPED) => Outcome::Dropped,
        _ => return Err("how it was resolved cannot be read"),
    };
    Ok(Resolution {
        slot: slot.to_owned(),
        system: ours.text(dlq_headers::SYSTEM)?.map(str::to_owned),
        id: id.parse().map_err(|_| "what it resolves cannot be read")?,
        outcome,
    })
}

/// The headers that the relay added. The last header of a name counts: the relay's headers follow
/// the original record's.
struct RelayHeaders<'a>(&'a [(String, Option<Vec<u8>>)]);

impl<'a> RelayHeaders<'a> {
    fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        let (_, value) = self.0.iter().rfind(|(n, _)| n == name)?;
        value.as_deref()
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, &'static str> {
        self.bytes(name)
            .map(std::str::from_utf8)
            .transpose()
            .map_err(|_| "a header is not UTF-8")
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, &'static str> {
        self.text(name)?
            .map(str::parse)
            .transpose()
            .map_err(|_| "a header is no number")
    }
}

#[cfg(test)]
mod tests {
    use crate::topics::Position;

    use super::*;

    type Headers = Vec<(String, Option<Vec<u8>>)>;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        pairs
            .iter()
            .map(|(n, v)| ((*n).to_owned(), Some(v.as_bytes().to_vec())))
            .collect()
    }

    fn record(headers: Headers) -> ReadRecord {
        ReadRecord {
            topic: "letters".to_owned(),
            partition: 2,
            offset: 7,
            timestamp_ms: Some(1),
            key: Some(b"secret-key".to_vec()),
            value: Some(b"secret-value".to_vec()),
            headers,
            ..ReadRecord::default()
        }
    }

    const FULL: &[(&str, &str)] = &[
        ("id", "secret-header"),
        // A header of the event with a name of the relay's: the relay's own follows it.
        (dlq_headers::CLASS, "imposter"),
        (dlq_headers::RESOLVES, "orders 0/1 0"),
        (dlq_headers::RESOLUTION, "dropped"),
        (dlq_headers::CLASS, "rejected"),
        (dlq_headers::CAUSE, "it is refused"),
        (dlq_headers::SLOT, "orders"),
        (dlq_headers::SYSTEM, "7"),
        (dlq_headers::LSN, "1/16B3748"),
        (dlq_headers::ROW, "3"),
        (dlq_headers::XID, "771"),
        (dlq_headers::COMMIT_TIME, "2026-01-02T03:04:05.678900Z"),
        (dlq_headers::TABLE, "public.outbox"),
        (dlq_headers::EVENT_ID, "e-1"),
        (dlq_headers::TOPIC, "orders.events"),
        (dlq_headers::TIMESTAMP, "1767323045678"),
        (dlq_headers::PARTITION, "4"),
    ];

    fn dead_letter_of(headers: Headers) -> DlqRecord {
        match DlqEntry::from_record(record(headers)) {
            DlqEntry::DlqRecord(dead_letter) => *dead_letter,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_dead_letter_is_read() {
        let dead_letter = dead_letter_of(headers(FULL));
        assert_eq!(dead_letter.id.to_string(), "1/16B3748 3");
        assert_eq!(
            (dead_letter.slot.as_str(), dead_letter.class.as_str()),
            ("orders", "rejected")
        );
        assert_eq!(dead_letter.system.as_deref(), Some("7"));
        assert_eq!(dead_letter.cause.as_deref(), Some("it is refused"));
        assert_eq!(dead_letter.xid, Some(771));
        assert_eq!(
            dead_letter.commit_time.as_deref(),
            Some("2026-01-02T03:04:05.678900Z")
        );
        assert_eq!(dead_letter.table.as_deref(), Some("public.outbox"));
        assert_eq!(dead_letter.event_id.as_deref(), Some(&b"e-1"[..]));
        assert_eq!(dead_letter.topic.as_deref(), Some("orders.events"));
        assert_eq!(dead_letter.timestamp_ms, Some(1_767_323_045_678));
        assert_eq!(
            (dead_letter.partition, dead_letter.omitted_bytes),
            (Some(4), None)
        );
        assert_eq!(dead_letter.headers, headers(&[("id", "secret-header")]));
        assert_eq!(
            dead_letter.position,
            Position {
                partition: 2,
                offset: 7
            }
        );
        assert_eq!(dead_letter.payload_bytes(), 10 + 12 + 2 + 13);
        let shown = format!(
            "{dead_letter:?} {:?}",
            DlqEntry::from_record(record(headers(FULL)))
        );
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn optional_headers_may_be_missing() {
        let mut minimal = headers(&[
            (dlq_headers::CLASS, "unroutable"),
            (dlq_headers::SLOT, "orders"),
            (dlq_headers::LSN, "0/1"),
            (dlq_headers::ROW, "0"),
            (dlq_headers::VALUE_BYTES, "70000000"),
        ]);
        minimal.push((dlq_headers::EVENT_ID.to_owned(), None));
        let dead_letter = dead_letter_of(minimal);
        assert_eq!(
            (
                dead_letter.topic,
                dead_letter.event_id,
                dead_letter.partition
            ),
            (None, None, None)
        );
        assert_eq!(dead_letter.omitted_bytes, Some(70_000_000));
        assert_eq!(dead_letter.headers, []);
    }

    #[test]
    fn a_resolution_is_read() {
        let given = headers(&[
            (dlq_headers::RESOLVES, "orders 1/16B3748 3"),
            (dlq_headers::RESOLUTION, "dropped"),
        ]);
        let DlqEntry::Resolution(found) = DlqEntry::from_record(record(given)) else {
            panic!("no resolution");
        };
        assert_eq!(
            (found.slot.as_str(), found.outcome),
            ("orders", Outcome::Dropped)
        );
        assert_eq!(found.id.to_string(), "1/16B3748 3");
    }

    #[test]
    fn any_other_record_is_foreign_with_a_reason() {
        let without = |name: &str| {
            let mut headers = headers(FULL);
            headers.retain(|(n, _)| n != name);
            headers
        };
        let with = |name: &str, value: &[u8]| {
            let mut headers = headers(FULL);
            headers.push((name.to_owned(), Some(value.to_vec())));
            headers
        };
        for (given, expected) in [
            (headers(&[]), "no header of a dead letter"),
            (headers(&[("id", "x")]), "no header of a dead letter"),
            (without(dlq_headers::LSN), "no LSN"),
            (without(dlq_headers::ROW), "no row"),
            (without(dlq_headers::SLOT), "no slot"),
            (with(dlq_headers::LSN, b"16"), "cannot be read"),
            (with(dlq_headers::ROW, b"-1"), "cannot be read"),
            (with(dlq_headers::XID, b"x"), "no number"),
            (with(dlq_headers::PARTITION, b""), "no number"),
            (with(dlq_headers::CAUSE, b"\xff"), "not UTF-8"),
            (
                headers(&[
                    (dlq_headers::RESOLVES, "orders"),
                    (dlq_headers::RESOLUTION, "redriven"),
                ]),
                "cannot be read",
            ),
            (
                headers(&[(dlq_headers::RESOLVES, "orders 1/2")]),
                "how it was resolved",
            ),
            (
                headers(&[
                    (dlq_headers::RESOLVES, "s x"),
                    (dlq_headers::RESOLUTION, "redriven"),
                ]),
                "what it resolves",
            ),
        ] {
            match DlqEntry::from_record(record(given)) {
                DlqEntry::Foreign(why) => {
                    assert!(why.contains(expected), "{why} is not {expected}");
                }
                other => panic!("{expected}: {other:?}"),
            }
        }
    }
}
