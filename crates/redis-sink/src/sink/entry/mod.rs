//! A record as an entry of a stream.

use std::fmt;

use walrelay_sink::{EventPosition, Poison, Record, dlq_headers};

use crate::client::error::ProtocolError;
use crate::client::resp::{Reply, put_count, put_string};

const ID: &[u8] = b"id";
const KEY: &[u8] = b"key";
const PAYLOAD: &[u8] = b"payload";
const POSITION: &[u8] = b"position";
const TIMESTAMP: &[u8] = b"timestamp";
/// The prefix of the fields that are headers.
const HEADER: &str = "header.";

/// The id of an entry, in the server's order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryId {
    /// Milliseconds, if the server makes the id.
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl From<EventPosition> for EntryId {
    fn from(position: EventPosition) -> Self {
        Self {
            first: position.published_lsn().get(),
            second: position.row,
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.second)
    }
}

impl EntryId {
    fn parse(text: &[u8]) -> Option<Self> {
        let (first, second) = std::str::from_utf8(text).ok()?.split_once('-')?;
        Some(Self {
            first: first.parse().ok()?,
            second: second.parse().ok()?,
        })
    }

    /// Returns the id that follows; the greatest one follows itself, which no server accepts.
    pub(super) fn following(self) -> Self {
        match (self.second.checked_add(1), self.first.checked_add(1)) {
            (Some(second), _) => Self { second, ..self },
            (None, Some(first)) => Self { first, second: 0 },
            (None, None) => self,
        }
    }
}

/// The id that an entry gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NewId {
    /// This one.
    Explicit(EntryId),
    /// This one, behind the newest. Not left to the server (`*`): it would store what is sent late by an
    /// old connection, too.
    Behind(EntryId),
    /// One of the server's clock.
    Clock,
}

/// Returns the bytes of an entry: those of the record, of its event's id and of the stream's name.
pub(super) fn size(record: &Record<'_>) -> u64 {
    let id = record.event_id.map_or(0, <[u8]>::len);
    (record.payload_bytes() + id + record.topic.len()) as u64
}

/// Checks what the server can store. Returns the bytes of the entry, or the class of the poison and the reason.
pub(super) fn check(record: &Record<'_>, max_message: u64) -> Result<u64, (Poison, String)> {
    if record.topic.is_empty() {
        return Err((Poison::Unroutable, "the stream has no name".to_owned()));
    }
    let size = size(record);
    if size > max_message {
        let why = format!("the event has {size} bytes, max_message_size is {max_message}");
        return Err((Poison::Oversize, why));
    }
    Ok(size)
}

/// Appends `XADD` of a record. `exists`: the stream is known to exist, and is not made again if it does not.
pub(super) fn put_xadd(out: &mut Vec<u8>, record: &Record<'_>, id: NewId, exists: bool) {
    let position = record.position.to_string();
    let timestamp = record.timestamp_ms.map(|millis| millis.to_string());
    let own = [
        (ID, record.event_id),
        (KEY, record.key),
        (PAYLOAD, record.value),
        (POSITION, Some(position.as_bytes())),
        (TIMESTAMP, timestamp.as_deref().map(str::as_bytes)),
    ];
    // Most clients read an entry as a map: of a repeated name the last header counts.
    let headers = record.headers.iter().enumerate();
    let headers = headers.filter(|(at, header)| {
        let later = record.headers.get(at + 1..).unwrap_or_default();
        later.iter().all(|later| later.name != header.name)
    });
    let headers = headers.filter_map(|(_, header)| Some((header.name, header.value?)));
    let own = || {
        own.iter()
            .filter_map(|(name, value)| Some((*name, (*value)?)))
    };
    let fields = own().count() + headers.clone().count();
    put_count(out, 3 + usize::from(exists) + 2 * fields);
    put_string(out, b"XADD");
    put_string(out, record.topic.as_bytes());
    if exists {
        put_string(out, b"NOMKSTREAM");
    }
    match id {
        NewId::Explicit(id) | NewId::Behind(id) => put_string(out, id.to_string().as_bytes()),
        NewId::Clock => put_string(out, b"*"),
    }
    for (name, value) in own() {
        put_string(out, name);
        put_string(out, value);
    }
    for (name, value) in headers {
        put_string(out, format!("{HEADER}{name}").as_bytes());
        put_string(out, value);
    }
}

/// Returns true if the reply to `XRANGE` has the entry of this record: its position, id, key and payload
/// are equal. An event that is rendered in another way counts as another one, and is repeated.
pub(super) fn is_stored(reply: &Reply, record: &Record<'_>) -> Result<bool, ProtocolError> {
    let wrong = ProtocolError("something else than entries");
    let Reply::Array(Some(entries)) = reply else {
        return Err(wrong);
    };
    let entry = match &**entries {
        [] => return Ok(false),
        [entry] => entry,
        _ => return Err(wrong),
    };
    let (_, fields) = parts(entry).ok_or(wrong)?;
    let position = record.position.to_string();
    let told_apart =
        |name: &&str| value(fields, format!("{HEADER}{name}").as_bytes()) == header(record, name);
    Ok(TOLD_APART.iter().all(told_apart)
        && value(fields, POSITION) == Some(position.as_bytes())
        && value(fields, ID) == record.event_id
        && value(fields, KEY) == record.key
        && value(fields, PAYLOAD) == record.value)
}

/// Returns the id of an entry, and its fields: names and values by turns.
fn parts(entry: &Reply) -> Option<(&[u8], &[Reply])> {
    let Reply::Array(Some(entry)) = entry else {
        return None;
    };
    match &**entry {
        [Reply::String(Some(id)), Reply::Array(Some(fields))] => Some((id, fields)),
        _ => None,
    }
}

/// Returns the value of a field.
fn value<'f>(fields: &'f [Reply], name: &[u8]) -> Option<&'f [u8]> {
    let mut pairs = fields.chunks_exact(2);
    pairs.find_map(|pair| match pair {
        [Reply::String(Some(field)), Reply::String(value)] if field == name => value.as_deref(),
        _ => None,
    })
}

/// Returns true if two records of a stream are the same event.
pub(super) fn is_same(one: &Record<'_>, other: &Record<'_>) -> bool {
    (one.position, one.event_id, one.key, one.value)
        == (other.position, other.event_id, other.key, other.value)
        && TOLD_APART
            .iter()
            .all(|name| header(one, name) == header(other, name))
}

/// The headers that tell an event, its dead letter, that of another slot or cluster and the resolution apart. They may
/// have equal positions, ids, keys and values.
const TOLD_APART: [&str; 4] = [
    dlq_headers::CLASS,
    dlq_headers::SLOT,
    dlq_headers::SYSTEM,
    dlq_headers::RESOLVES,
];

/// Returns the value of a record's last header of this name.
fn header<'r>(record: &Record<'r>, name: &str) -> Option<&'r [u8]> {
    let mut headers = record.headers.iter().rev();
    headers.find(|header| header.name == name)?.value
}

/// An entry of a stream as a record that was read.
#[derive(Debug)]
pub(crate) struct ReadEntry {
    pub(crate) id: EntryId,
    pub(crate) event_id: Option<Vec<u8>>,
    pub(crate) position: Option<EventPosition>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) timestamp_ms: Option<i64>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl ReadEntry {
    /// Returns the bytes of the record.
    pub(crate) fn size(&self) -> usize {
        let length = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| name.len() + length(value));
        length(&self.key) + length(&self.value) + headers.sum::<usize>()
    }
}

/// Parses the reply to `XRANGE`.
pub(crate) fn read_entries(reply: &Reply) -> Result<Vec<ReadEntry>, ProtocolError> {
    let wrong = ProtocolError("something else than entries");
    let Reply::Array(Some(entries)) = reply else {
        return Err(wrong);
    };
    let read = |entry| {
        let (id, fields) = parts(entry)?;
        let own = |name| value(fields, name).map(<[u8]>::to_vec);
        let text = |name| std::str::from_utf8(value(fields, name)?).ok();
        let timestamp = text(TIMESTAMP).and_then(|text| text.parse().ok());
        let headers = fields.chunks_exact(2).filter_map(|pair| match pair {
            [Reply::String(Some(name)), Reply::String(value)] => {
                let name = std::str::from_utf8(name).ok()?.strip_prefix(HEADER)?;
                Some((name.to_owned(), value.clone()))
            }
            _ => None,
        });
        Some(ReadEntry {
            id: EntryId::parse(id)?,
            event_id: own(ID),
            position: text(POSITION).and_then(|text| text.parse().ok()),
            key: own(KEY),
            value: own(PAYLOAD),
            timestamp_ms: timestamp,
            headers: headers.collect(),
        })
    };
    let entries = entries.iter().map(|entry| read(entry).ok_or(wrong));
    entries.collect()
}

/// The end of a stream, and what it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Newest {
    /// The newest id that the stream has ever had.
    pub(crate) id: EntryId,
    /// The last entry is an event that was appended behind a later one: others may have to follow it.
    pub(super) is_repeat: bool,
    pub(super) exists: bool,
    /// The number of entries that were ever added; `None`: the server does not say.
    pub(super) added: Option<u64>,
    /// The number of entries.
    pub(super) length: u64,
    /// The events of the first and of the last entry; `None`: there is no entry, or it is one of another
    /// client.
    pub(super) first: Option<EventPosition>,
    pub(super) last: Option<EventPosition>,
}

impl Newest {
    /// Returns the end of a stream that does not exist.
    pub(super) fn missing() -> Self {
        Self {
            added: Some(0),
            ..Self::default()
        }
    }
}

/// Finds a member of the reply to `XINFO STREAM`.
fn member<'r>(reply: &'r Reply, wanted: &[u8]) -> Option<&'r Reply> {
    let Reply::Array(Some(members)) = reply else {
        return None;
    };
    let mut pairs = members.chunks_exact(2);
    pairs.find_map(|pair| match pair {
        [Reply::String(Some(name)), member] if name == wanted => Some(member),
        _ => None,
    })
}

/// The numbers of the entries that a stream has, and has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) newest: EntryId,
    pub(crate) length: i64,
    /// Number of entries that the stream has lost.
    pub(crate) deleted: i64,
}

/// Returns the extent of a stream, of the reply to `XINFO STREAM`.
pub(crate) fn extent(reply: &Reply) -> Result<Extent, ProtocolError> {
    let number = |name| match member(reply, name) {
        Some(Reply::Integer(number)) => Some(*number),
        _ => None,
    };
    let length = number(b"length").filter(|length| *length >= 0);
    let length = length.ok_or(ProtocolError("no length of a stream"))?;
    let added = number(b"entries-added").unwrap_or_default();
    Ok(Extent {
        newest: newest(reply)?.id,
        length,
        deleted: added.saturating_sub(length).max(0),
    })
}

/// Returns the end of a stream, of the reply to `XINFO STREAM`.
pub(crate) fn newest(reply: &Reply) -> Result<Newest, ProtocolError> {
    let wrong = ProtocolError("no newest id of a stream");
    let id = match member(reply, b"last-generated-id") {
        Some(Reply::String(Some(id))) => EntryId::parse(id).ok_or(wrong)?,
        _ => return Err(wrong),
    };
    // It is null if all entries were deleted. Of an entry of another client nothing is known.
    let event = |name| {
        let (id, fields) = member(reply, name).and_then(parts)?;
        let position = std::str::from_utf8(value(fields, POSITION)?).ok()?;
        Some((EntryId::parse(id)?, position.parse::<EventPosition>().ok()?))
    };
    let last = event(b"last-entry");
    let number = |name| match member(reply, name) {
        Some(Reply::Integer(number)) => u64::try_from(*number).ok(),
        _ => None,
    };
    Ok(Newest {
        id,
        is_repeat: last.is_some_and(|(id, position)| id != position.into()),
        exists: true,
        added: number(b"entries-added"),
        length: number(b"length").unwrap_or_default(),
        first: event(b"first-entry").map(|(_, position)| position),
        last: last.map(|(_, position)| position),
    })
}

#[cfg(test)]
mod tests;
