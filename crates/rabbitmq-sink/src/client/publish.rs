//! A record as `basic.publish`.

use std::collections::HashSet;

use walrelay_sink::{Header, Poison, Record, RecordKind, dlq_headers};

use super::wire::{
    FRAME_OVERHEAD, MAX_FRAME, MAX_SHORT, put_frame, put_member, put_method, put_short, put_sized,
};
use super::{KEY_HEADER, POSITION_HEADER};

/// Basic content, and the flags of the properties headers, delivery-mode, message-id and timestamp.
const CLASS_BASIC: u16 = 60;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
/// `delivery-mode` of a persistent message.
const PERSISTENT: u8 = 2;

/// The property `content-type`.
const CONTENT_TYPE: u16 = 1 << 15;
/// The name of the header that becomes the property `content-type`.
const CONTENT_TYPE_HEADER: &str = "content-type";

/// Headers that are lists of further routing keys (`header_routes` of `rabbit_basic.erl`): the server
/// closes the channel if they are texts, as all headers of a record are.
const ROUTES: [&str; 2] = ["CC", "BCC"];

/// So few headers are compared each with each: that is faster than a set of their names.
const FEW_HEADERS: usize = 16;

/// The longest value of a header, and the longest key, of a dead letter whose headers do not fit into a frame.
const SHORTENED: usize = 8 << 10;

/// Returns whether the key and the headers of a record have at most so many bytes. A row can have as many
/// headers as its JSON has members, so they are counted before anything else is done with them.
fn headers_fit(record: &Record<'_>, limit: usize) -> bool {
    // Two lengths and a type.
    let size = |name: &str, value: Option<&[u8]>| 6 + name.len() + value.map_or(0, <[u8]>::len);
    let mut left = limit.checked_sub(size(KEY_HEADER, record.key));
    for header in record.headers {
        left = left.and_then(|left| left.checked_sub(size(header.name, header.value)));
        if left.is_none() {
            return false;
        }
    }
    left.is_some()
}

/// The address of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address<'a> {
    pub(crate) exchange: &'a str,
    pub(crate) routing_key: &'a str,
}

/// The address of dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeadLetterAddress {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
}

/// Returns the address of a record: that of dead letters, if the record is one.
pub(crate) fn address<'a>(record: &Record<'a>, dead: &'a DeadLetterAddress) -> Address<'a> {
    if record.kind == RecordKind::DeadLetter {
        return Address {
            exchange: &dead.exchange,
            routing_key: &dead.routing_key,
        };
    }
    Address {
        exchange: record.topic,
        routing_key: record.routing_key.unwrap_or_default(),
    }
}

/// Checks what AMQP can carry. Returns the bytes that count for the limit, or the class of the poison and the reason.
pub(crate) fn check(
    record: &Record<'_>,
    dead: &DeadLetterAddress,
    max_message: u64,
) -> Result<u64, (Poison, String)> {
    let Address {
        exchange,
        routing_key,
    } = address(record, dead);
    let size = record.value.map_or(0, <[u8]>::len) as u64;
    if size > max_message {
        let why = format!("the value has {size} bytes, max_message_size is {max_message}");
        return Err((Poison::Oversize, why));
    }
    // What a dead letter cannot have is left out: what cannot be written stops the relay.
    let is_event = record.kind != RecordKind::DeadLetter;
    if is_event && !headers_fit(record, MAX_FRAME as usize) {
        let why = format!("key and headers have more than {MAX_FRAME} bytes, the frame of AMQP");
        return Err((Poison::Oversize, why));
    }
    let id = record.event_id.filter(|_| is_event).unwrap_or_default();
    let names = record.headers.iter().map(|header| header.name);
    let names = names.filter(|_| is_event);
    if names.clone().any(|name| ROUTES.contains(&name)) {
        let why = "the header CC or BCC, which is a list in AMQP, is a text";
        return Err((Poison::Rejected, why.to_owned()));
    }
    let longest = names.map(str::len).max();
    for (what, length, poison) in [
        ("exchange", exchange.len(), Poison::Unroutable),
        ("routing key", routing_key.len(), Poison::Unroutable),
        ("event id", id.len(), Poison::Rejected),
        ("name of a header", longest.unwrap_or(0), Poison::Rejected),
    ] {
        if length > MAX_SHORT {
            let why = format!("the {what} has {length} bytes, AMQP accepts {MAX_SHORT}");
            return Err((poison, why));
        }
    }
    Ok(size)
}

/// The headers do not fit into a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeadersTooLong(pub(crate) usize);

/// Appends the frames that publish a record, persistent and mandatory. Appends nothing if its
/// headers do not fit into one frame, as AMQP demands. A dead letter is then written without the headers
/// of its event.
pub(crate) fn put_publish(
    out: &mut Vec<u8>,
    channel: u16,
    record: &Record<'_>,
    Address {
        exchange,
        routing_key,
    }: Address<'_>,
    frame_max: usize,
) -> Result<(), HeadersTooLong> {
    let start = out.len();
    put_method(out, channel, (CLASS_BASIC, 40), |out| {
        out.extend_from_slice(&[0, 0]);
        put_short(out, exchange.as_bytes());
        put_short(out, routing_key.as_bytes());
        // mandatory
        out.push(1);
    });
    let value = record.value.unwrap_or_default();
    let header = out.len();
    put_frame(out, 2, channel, |out| {
        // The rest of the frame has the other properties.
        put_properties(
            out,
            record,
            value.len() as u64,
            frame_max.saturating_sub(1 << 10),
        );
    });
    let length = out.len() - header;
    if length > frame_max {
        out.truncate(start);
        return Err(HeadersTooLong(length));
    }
    for chunk in value.chunks(frame_max - FRAME_OVERHEAD) {
        put_frame(out, 3, channel, |out| out.extend_from_slice(chunk));
    }
    Ok(())
}

fn put_properties(out: &mut Vec<u8>, record: &Record<'_>, body: u64, limit: usize) {
    out.extend_from_slice(&CLASS_BASIC.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&body.to_be_bytes());
    let seconds = record
        .timestamp_ms
        .and_then(|millis| u64::try_from(millis / 1000).ok());
    let mut flags = HEADERS | DELIVERY_MODE;
    let content_type = content_type(record);
    if content_type.is_some() {
        flags |= CONTENT_TYPE;
    }
    let id = record.event_id.filter(|id| id.len() <= MAX_SHORT);
    if id.is_some() {
        flags |= MESSAGE_ID;
    }
    if seconds.is_some() {
        flags |= TIMESTAMP;
    }
    out.extend_from_slice(&flags.to_be_bytes());
    if let Some(text) = content_type {
        put_short(out, text);
    }
    put_sized(out, |out| {
        let is_shortened = record.kind == RecordKind::DeadLetter && !headers_fit(record, limit);
        let is_too_long = |value: Option<&[u8]>| {
            is_shortened && value.is_some_and(|value| value.len() > SHORTENED)
        };
        let superseded = superseded(record.headers);
        for (at, header) in record.headers.iter().enumerate() {
            let is_left_out = [POSITION_HEADER, KEY_HEADER].contains(&header.name)
                || ROUTES.contains(&header.name)
                || header.name.len() > MAX_SHORT
                || (is_shortened && !header.name.starts_with(dlq_headers::PREFIX))
                || is_too_long(header.value);
            if !is_left_out && !superseded(at) {
                put_member(out, header.name, header.value);
            }
        }
        if record.key.is_some() && !is_too_long(record.key) {
            put_member(out, KEY_HEADER, record.key);
        }
        let position = record.position.to_string();
        put_member(out, POSITION_HEADER, Some(position.as_bytes()));
    });
    out.push(PERSISTENT);
    if let Some(id) = id {
        put_short(out, id);
    }
    if let Some(seconds) = seconds {
        out.extend_from_slice(&seconds.to_be_bytes());
    }
}

/// Returns whether a later header has the name of the header with this index: a name stands once in a
/// table of AMQP, and the last header of the name counts. A row can have as many headers as its JSON has
/// members, so only few are compared each with each.
fn superseded<'a>(headers: &'a [Header<'a>]) -> impl Fn(usize) -> bool + 'a {
    let earlier: Option<HashSet<usize>> = (headers.len() > FEW_HEADERS).then(|| {
        let mut names = HashSet::with_capacity(headers.len());
        let latest_first = headers.iter().enumerate().rev();
        let repeats = latest_first.filter(|(_, header)| !names.insert(header.name));
        repeats.map(|(at, _)| at).collect()
    });
    move |at| {
        if let Some(earlier) = &earlier {
            return earlier.contains(&at);
        }
        let later = headers.get(at + 1..).unwrap_or_default();
        later.iter().any(|later| later.name == headers[at].name)
    }
}

/// Returns the value of the header `content-type`, if it is a short text.
fn content_type<'a>(record: &Record<'a>) -> Option<&'a [u8]> {
    let mut headers = record.headers.iter().rev();
    let header = headers.find(|header| header.name == CONTENT_TYPE_HEADER)?;
    let value = header.value?;
    (value.len() <= MAX_SHORT && std::str::from_utf8(value).is_ok()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(headers: &[Header<'_>], frame_max: usize) -> Result<Vec<u8>, HeadersTooLong> {
        let mut out = Vec::new();
        let record = Record {
            topic: "e",
            headers,
            ..Record::default()
        };
        let address = Address {
            exchange: "e",
            routing_key: "",
        };
        put_publish(&mut out, 1, &record, address, frame_max).map(|()| out)
    }

    /// With few headers and with many.
    #[test]
    fn the_last_header_of_a_name_counts() {
        for names in [FEW_HEADERS / 2, 2 * FEW_HEADERS] {
            let names: Vec<String> = (0..names).map(|number| format!("name-{number}")).collect();
            let with = |value: &'static [u8]| {
                names.iter().map(move |name| Header {
                    name,
                    value: Some(value),
                })
            };
            let headers: Vec<Header<'_>> = with(b"first").chain(with(b"last")).collect();
            let bytes = publish(&headers, 1 << 17).unwrap();
            let count = |part: &[u8]| bytes.windows(part.len()).filter(|it| *it == part).count();
            assert_eq!((count(b"first"), count(b"last")), (0, names.len()));
            assert_eq!(count(b"name-"), names.len());
        }
    }

    /// A dead letter has them too, and must be written: it is sent without them.
    #[test]
    fn a_hundred_thousand_headers_are_refused_before_anything_is_done_with_them() {
        let names: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
        let headers = names.iter().map(|name| Header { name, value: None });
        let headers: Vec<Header<'_>> = headers.collect();
        let dead = DeadLetterAddress::default();
        let key = vec![b'k'; MAX_FRAME as usize];
        let many = Record {
            topic: "e",
            headers: &headers,
            ..Record::default()
        };
        let long_key = Record {
            key: Some(&key),
            headers: &[],
            ..many
        };
        for event in [many, long_key] {
            let (poison, why) = check(&event, &dead, 1 << 20).unwrap_err();
            assert_eq!(poison, Poison::Oversize, "{why}");
        }
        let few = Record {
            headers: &headers[..1_000],
            ..many
        };
        assert!(check(&few, &dead, 1 << 20).is_ok());

        let class = Header {
            name: dlq_headers::CLASS,
            value: Some(b"oversize"),
        };
        let of_dead_letter = [&headers[..], &[class]].concat();
        let dead_letter = Record {
            kind: RecordKind::DeadLetter,
            key: Some(&key),
            headers: &of_dead_letter,
            ..many
        };
        assert!(check(&dead_letter, &dead, 1 << 20).is_ok());
        let mut out = Vec::new();
        let address = address(&dead_letter, &dead);
        put_publish(&mut out, 1, &dead_letter, address, 1 << 17).unwrap();
        let is_there = out.windows(8).any(|part| part == b"oversize");
        assert!(is_there && out.len() < 1_000, "{}", out.len());
    }
}
