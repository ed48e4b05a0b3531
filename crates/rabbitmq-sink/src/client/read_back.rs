//! A message of a stream as the record that it was made of.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use walrelay_sink_kind::topics::ReadRecord;

use super::error::ProtocolError;
use super::wire::{Reader, Value};
use super::{KEY_HEADER, POSITION_HEADER};

/// The header that the server adds to each message of a stream.
const OFFSET_HEADER: &str = "x-stream-offset";

/// A message that a stream has delivered.
pub(crate) struct Delivered {
    pub(crate) record: ReadRecord,
    /// A hash of the event, its position and its value.
    pub(crate) fingerprint: u64,
    /// Bytes of properties and body.
    pub(crate) size: usize,
}

/// Makes the record of the properties and the body of a message; `None` if no stream has sent it.
///
/// # Errors
/// If the properties are none.
pub(crate) fn delivered(
    stream: &str,
    properties: &[u8],
    body: Vec<u8>,
) -> Result<Option<Delivered>, ProtocolError> {
    let size = properties.len() + body.len();
    let mut record = ReadRecord {
        topic: stream.to_owned(),
        value: Some(body),
        ..ReadRecord::default()
    };
    let mut offset = None;
    let mut from = Reader { rest: properties };
    let (flags, message_id) = from.properties(|from| {
        from.table(|name, value| match (name, value) {
            (name, Value::Integer(at)) if name == OFFSET_HEADER.as_bytes() => offset = Some(at),
            (name, value) => take_header(&mut record, name, value),
        })
    })?;
    record.event_id = message_id.map(<[u8]>::to_vec);
    // The timestamp follows.
    if flags >> 6 & 1 == 1 {
        let seconds = i64::try_from(from.u64()?).ok();
        record.timestamp_ms = seconds.and_then(|seconds| seconds.checked_mul(1000));
    }
    let Some(offset) = offset.filter(|offset| *offset >= 0) else {
        return Ok(None);
    };
    record.offset = offset;
    let mut hasher = DefaultHasher::new();
    (&record.event_id, record.event_position, &record.value).hash(&mut hasher);
    Ok(Some(Delivered {
        fingerprint: hasher.finish(),
        record,
        size,
    }))
}

fn take_header(record: &mut ReadRecord, name: &[u8], value: Value<'_>) {
    let bytes = match value {
        Value::Bytes(bytes) => Some(bytes.to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Boolean(value) => Some(value.to_string().into_bytes()),
        Value::Void => None,
        Value::Other => return,
    };
    let name = String::from_utf8_lossy(name).into_owned();
    match &*name {
        KEY_HEADER => record.key = bytes,
        POSITION_HEADER => {
            let text = bytes.as_deref().map(std::str::from_utf8);
            let text = text.and_then(Result::ok);
            record.event_position = text.and_then(|text| text.parse().ok());
        }
        _ => record.headers.push((name, bytes)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walrelay_sink::{EventPosition, Header, Record};

    use super::*;
    use crate::client::publish::{Address, put_publish};
    use crate::client::wire::{Frame, decode, put_short, put_sized};

    /// Adds the header of the stream to properties that have headers.
    fn stored(properties: &[u8], offset: i64) -> Vec<u8> {
        let (flags, mut rest) = (
            &properties[..2],
            Reader {
                rest: &properties[2..],
            },
        );
        let mut out = flags.to_vec();
        if flags[0] & 0x80 != 0 {
            put_short(&mut out, rest.short_string().unwrap());
        }
        let table = rest.long_string().unwrap();
        put_sized(&mut out, |out| {
            out.extend_from_slice(table);
            put_short(out, OFFSET_HEADER.as_bytes());
            out.push(b'l');
            out.extend_from_slice(&offset.to_be_bytes());
        });
        out.extend_from_slice(rest.rest);
        out
    }

    fn read_back(sent: &Record<'_>) -> Delivered {
        let mut out = Vec::new();
        let address = Address {
            exchange: "e",
            routing_key: "k",
        };
        put_publish(&mut out, 1, sent, address, 1 << 17).unwrap();
        let (_, method) = decode(&out).unwrap().unwrap();
        let (frame, _) = decode(&out[method..]).unwrap().unwrap();
        let Frame::Header { properties, .. } = frame else {
            panic!("{frame:?}");
        };
        let body = sent.value.unwrap_or_default().to_vec();
        assert!(matches!(delivered("s", properties, body.clone()), Ok(None)));
        let found = delivered("s", &stored(properties, 7), body).unwrap();
        found.expect("an offset")
    }

    #[test]
    fn a_record_is_read_back() {
        let header = |name, value| Header { name, value };
        let headers = [
            header("content-type", Some(b"text/plain".as_slice())),
            header("bytes", Some(b"\xff")),
            header("null", None),
        ];
        let sent = Record {
            topic: "e",
            key: Some(b"\xff5"),
            value: Some(b"v"),
            headers: &headers,
            event_id: Some(b"i"),
            timestamp_ms: Some(12_345),
            position: EventPosition::in_first_epoch(16, 2),
            ..Record::default()
        };
        let headers = headers.iter();
        let expected = ReadRecord {
            topic: "s".to_owned(),
            offset: 7,
            timestamp_ms: Some(12_000),
            event_id: Some(b"i".to_vec()),
            event_position: Some(sent.position),
            key: sent.key.map(<[u8]>::to_vec),
            value: sent.value.map(<[u8]>::to_vec),
            headers: headers
                .map(|it| (it.name.to_owned(), it.value.map(<[u8]>::to_vec)))
                .collect(),
            ..ReadRecord::default()
        };
        let read = read_back(&sent);
        assert_eq!(read.record, expected);
        let other = read_back(&Record {
            value: Some(b"w"),
            ..sent
        });
        assert_ne!(read.fingerprint, other.fingerprint);
    }

    proptest! {
        #[test]
        fn no_properties_panic(bytes: Vec<u8>) {
            let _ = delivered("s", &bytes, Vec::new());
        }
    }
}
