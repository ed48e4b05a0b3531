//! Frames, methods and tables of AMQP 0-9-1: encoding, and decoding with bounds.
//!
//! Source: the AMQP 0-9-1 specification, sections 2.3 and 4.2, and RabbitMQ's extensions
//! (`confirm.select`, `basic.nack`, `connection.blocked`).

use super::error::ProtocolError;

/// The protocol header, which a client sends first.
pub(crate) const PROTOCOL_HEADER: &[u8; 8] = b"AMQP\0\0\x09\x01";
/// The longest short string in bytes.
pub(crate) const MAX_SHORT: usize = 255;
/// The largest frame in bytes that this client accepts, and offers in `connection.tune-ok`.
pub(crate) const MAX_FRAME: u32 = 128 * 1024;
/// The bytes of a frame around its payload.
pub(crate) const FRAME_OVERHEAD: usize = 8;

const FRAME_END: u8 = 0xCE;
/// The deepest nesting of tables and arrays that is read.
const MAX_DEPTH: u32 = 16;

/// A frame from the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Method {
        channel: u16,
        method: Method<'a>,
    },
    /// The properties of a message's content.
    Header {
        channel: u16,
        /// Bytes of the body.
        body: u64,
        position: Option<&'a [u8]>,
        key: Option<&'a [u8]>,
        message_id: Option<&'a [u8]>,
        /// The flags and values of all properties.
        properties: &'a [u8],
    },
    Body {
        channel: u16,
        bytes: &'a [u8],
    },
    Heartbeat,
}

/// A method from the server. Methods that this client has no use for are [`Method::Other`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Method<'a> {
    Start {
        product: Option<&'a [u8]>,
        version: Option<&'a [u8]>,
        mechanisms: &'a [u8],
    },
    Tune {
        channel_max: u16,
        frame_max: u32,
        heartbeat: u16,
    },
    OpenOk,
    Close(Reason<'a>),
    CloseOk,
    Blocked {
        reason: &'a [u8],
    },
    Unblocked,
    ChannelOpenOk,
    ChannelFlow {
        active: bool,
    },
    ChannelClose(Reason<'a>),
    ChannelCloseOk,
    ExchangeDeclareOk,
    QueueDeclareOk {
        messages: u32,
    },
    QueueBindOk,
    ConfirmSelectOk,
    QosOk,
    ConsumeOk,
    /// The server has ended a consumer.
    Cancel,
    CancelOk,
    Deliver {
        consumer: &'a [u8],
        tag: u64,
        routing_key: &'a [u8],
    },
    Return {
        code: u16,
    },
    Ack {
        tag: u64,
        multiple: bool,
    },
    Nack {
        tag: u64,
        multiple: bool,
    },
    Other {
        class: u16,
        method: u16,
    },
}

/// The reason for which the server closes a channel or a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reason<'a> {
    pub(crate) code: u16,
    pub(crate) text: &'a [u8],
    /// The class and method of the client that caused it; zeros if none did.
    pub(crate) cause: (u16, u16),
}

/// Decodes the first frame of `bytes`, and returns the number of its bytes; `None` if it is not
/// there as a whole.
///
/// # Errors
/// If the bytes are no frame, or one that is longer than [`MAX_FRAME`].
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, ProtocolError> {
    if let Some(head) = bytes.first_chunk::<4>()
        && head == b"AMQP"
    {
        return Err(ProtocolError::Version);
    }
    let mut head = Reader { rest: bytes };
    let (Ok(kind), Ok(channel), Ok(length)) = (head.u8(), head.u16(), head.u32()) else {
        return Ok(None);
    };
    if !matches!(kind, 1..=3 | 8) {
        return Err(ProtocolError::Malformed("a frame of an unknown type"));
    }
    if length > MAX_FRAME {
        return Err(ProtocolError::Malformed("a frame that is too long"));
    }
    let length = length as usize;
    let (Some(payload), Some(end)) = (head.rest.get(..length), head.rest.get(length)) else {
        return Ok(None);
    };
    if *end != FRAME_END {
        return Err(ProtocolError::Malformed("a frame without its end"));
    }
    let mut payload = Reader { rest: payload };
    let frame = match kind {
        1 => Frame::Method {
            channel,
            method: method(&mut payload)?,
        },
        2 => header(channel, &mut payload)?,
        3 => Frame::Body {
            channel,
            bytes: payload.rest,
        },
        _ => Frame::Heartbeat,
    };
    Ok(Some((frame, FRAME_OVERHEAD + length)))
}

fn method<'a>(from: &mut Reader<'a>) -> Result<Method<'a>, ProtocolError> {
    let (class, number) = (from.u16()?, from.u16()?);
    Ok(match (class, number) {
        (10, 10) => {
            from.take(2)?;
            let [product, version] = from.table_texts(["product", "version"])?;
            Method::Start {
                product,
                version,
                mechanisms: from.long_string()?,
            }
        }
        (10, 30) => Method::Tune {
            channel_max: from.u16()?,
            frame_max: from.u32()?,
            heartbeat: from.u16()?,
        },
        (10, 41) => Method::OpenOk,
        (10, 50) => Method::Close(reason(from)?),
        (10, 51) => Method::CloseOk,
        (10, 60) => Method::Blocked {
            reason: from.short_string()?,
        },
        (10, 61) => Method::Unblocked,
        (20, 11) => Method::ChannelOpenOk,
        (20, 20) => Method::ChannelFlow {
            active: from.u8()? & 1 == 1,
        },
        (20, 40) => Method::ChannelClose(reason(from)?),
        (20, 41) => Method::ChannelCloseOk,
        (40, 11) => Method::ExchangeDeclareOk,
        (50, 11) => {
            from.short_string()?;
            Method::QueueDeclareOk {
                messages: from.u32()?,
            }
        }
        (50, 21) => Method::QueueBindOk,
        (85, 11) => Method::ConfirmSelectOk,
        (60, 11) => Method::QosOk,
        (60, 21) => Method::ConsumeOk,
        (60, 30) => Method::Cancel,
        (60, 31) => Method::CancelOk,
        (60, 60) => {
            let (consumer, tag) = (from.short_string()?, from.u64()?);
            // Whether it is a repeat, and the exchange.
            from.take(1)?;
            from.short_string()?;
            Method::Deliver {
                consumer,
                tag,
                routing_key: from.short_string()?,
            }
        }
        (60, 50) => Method::Return { code: from.u16()? },
        (60, 80) => Method::Ack {
            tag: from.u64()?,
            multiple: from.u8()? & 1 == 1,
        },
        (60, 120) => Method::Nack {
            tag: from.u64()?,
            multiple: from.u8()? & 1 == 1,
        },
        (class, method) => Method::Other { class, method },
    })
}

fn reason<'a>(from: &mut Reader<'a>) -> Result<Reason<'a>, ProtocolError> {
    Ok(Reason {
        code: from.u16()?,
        text: from.short_string()?,
        cause: (from.u16()?, from.u16()?),
    })
}

/// Decodes a content header.
fn header<'a>(channel: u16, from: &mut Reader<'a>) -> Result<Frame<'a>, ProtocolError> {
    from.take(4)?;
    let body = from.u64()?;
    let properties = from.rest;
    let [mut position, mut key] = [None; 2];
    let (_, message_id) = from.properties(|from| {
        [position, key] = from.table_texts([super::POSITION_HEADER, super::KEY_HEADER])?;
        Ok(())
    })?;
    Ok(Frame::Header {
        channel,
        body,
        position,
        key,
        message_id,
        properties,
    })
}

/// A value of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A text or bytes.
    Bytes(&'a [u8]),
    Integer(i64),
    Boolean(bool),
    Void,
    /// A value of a type that this client has no use for.
    Other,
}

/// Reads values from bytes that may end anywhere.
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], ProtocolError> {
        let split = self.rest.split_at_checked(length);
        let (taken, rest) = split.ok_or(ProtocolError::Malformed("a frame that ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let bytes = self.take(N)?;
        bytes
            .try_into()
            .map_err(|_| ProtocolError::Malformed("a frame that ends too early"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn short_string(&mut self) -> Result<&'a [u8], ProtocolError> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// Reads a long string, a table or an array: the length in bytes, and the bytes.
    pub(crate) fn long_string(&mut self) -> Result<&'a [u8], ProtocolError> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// Reads the properties of a message up to its id, and with `headers` the table of headers, if there
    /// is one. Returns the flags of the properties, and the id.
    pub(crate) fn properties(
        &mut self,
        headers: impl FnOnce(&mut Self) -> Result<(), ProtocolError>,
    ) -> Result<(u16, Option<&'a [u8]>), ProtocolError> {
        let flags = self.u16()?;
        let has = |bit: u8| flags >> bit & 1 == 1;
        // content-type, content-encoding.
        for bit in [15, 14] {
            if has(bit) {
                self.short_string()?;
            }
        }
        if has(13) {
            headers(self)?;
        }
        // delivery-mode and priority; correlation-id, reply-to and expiration.
        for bit in [12, 11] {
            if has(bit) {
                self.take(1)?;
            }
        }
        for bit in [10, 9, 8] {
            if has(bit) {
                self.short_string()?;
            }
        }
        let message_id = if has(7) {
            Some(self.short_string()?)
        } else {
            None
        };
        Ok((flags, message_id))
    }

    /// Reads a table, and returns the texts that it has under these names.
    fn table_texts<const N: usize>(
        &mut self,
        wanted: [&str; N],
    ) -> Result<[Option<&'a [u8]>; N], ProtocolError> {
        let mut found = [None; N];
        self.table(|name, value| {
            for (wanted, found) in wanted.iter().zip(&mut found) {
                if name == wanted.as_bytes() {
                    *found = match value {
                        Value::Bytes(text) => Some(text),
                        _ => None,
                    };
                }
            }
        })?;
        Ok(found)
    }

    /// Reads a table, and calls `each` with its names and values.
    pub(crate) fn table(
        &mut self,
        mut each: impl FnMut(&'a [u8], Value<'a>),
    ) -> Result<(), ProtocolError> {
        let mut table = Reader {
            rest: self.long_string()?,
        };
        while !table.rest.is_empty() {
            let name = table.short_string()?;
            each(name, table.value(0)?);
        }
        Ok(())
    }

    /// Reads a value of a table.
    fn value(&mut self, depth: u32) -> Result<Value<'a>, ProtocolError> {
        if depth > MAX_DEPTH {
            return Err(ProtocolError::Malformed(
                "a table that is nested too deeply",
            ));
        }
        let length = match self.u8()? {
            b't' => return Ok(Value::Boolean(self.u8()? != 0)),
            b'b' => return Ok(Value::Integer(i8::from_be_bytes(self.array()?).into())),
            b'B' => return Ok(Value::Integer(self.u8()?.into())),
            b's' => return Ok(Value::Integer(i16::from_be_bytes(self.array()?).into())),
            b'u' => return Ok(Value::Integer(self.u16()?.into())),
            b'I' => return Ok(Value::Integer(i32::from_be_bytes(self.array()?).into())),
            b'i' => return Ok(Value::Integer(self.u32()?.into())),
            b'l' | b'L' | b'T' => return self.array().map(i64::from_be_bytes).map(Value::Integer),
            b'V' => return Ok(Value::Void),
            b'S' | b'x' => return self.long_string().map(Value::Bytes),
            b'f' => 4,
            b'D' => 5,
            b'd' => 8,
            b'A' => {
                let mut items = Reader {
                    rest: self.long_string()?,
                };
                while !items.rest.is_empty() {
                    items.value(depth + 1)?;
                }
                return Ok(Value::Other);
            }
            b'F' => {
                let mut table = Reader {
                    rest: self.long_string()?,
                };
                while !table.rest.is_empty() {
                    table.short_string()?;
                    table.value(depth + 1)?;
                }
                return Ok(Value::Other);
            }
            _ => return Err(ProtocolError::Malformed("a value of an unknown type")),
        };
        self.take(length)?;
        Ok(Value::Other)
    }
}

// === Encoding ===

/// Appends a method frame, whose arguments `arguments` writes.
pub(crate) fn put_method(
    out: &mut Vec<u8>,
    channel: u16,
    (class, method): (u16, u16),
    arguments: impl FnOnce(&mut Vec<u8>),
) {
    put_frame(out, 1, channel, |out| {
        out.extend_from_slice(&class.to_be_bytes());
        out.extend_from_slice(&method.to_be_bytes());
        arguments(out);
    });
}

/// Appends a frame of this type.
pub(crate) fn put_frame(
    out: &mut Vec<u8>,
    kind: u8,
    channel: u16,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    put_sized(out, payload);
    out.push(FRAME_END);
}

/// Appends a text of at most [`MAX_SHORT`] bytes; the rest of a longer one is cut off.
pub(crate) fn put_short(out: &mut Vec<u8>, text: &[u8]) {
    let text = text.get(..MAX_SHORT).unwrap_or(text);
    out.push(text.len() as u8);
    out.extend_from_slice(text);
}

/// Appends a length of four bytes and what `content` writes: a long string, a table or an array.
pub(crate) fn put_sized(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    content(out);
    let length = (out.len() - start - 4) as u32;
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

/// Appends a member of a table. Text is a string, other bytes are a byte array, `None` is void.
pub(crate) fn put_member(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    put_short(out, name.as_bytes());
    match value {
        None => out.push(b'V'),
        Some(bytes) => {
            out.push(if std::str::from_utf8(bytes).is_ok() {
                b'S'
            } else {
                b'x'
            });
            put_sized(out, |out| out.extend_from_slice(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(frame: &[u8]) -> Frame<'_> {
        let (decoded, length) = decode(frame).unwrap().unwrap();
        assert_eq!(length, frame.len());
        for end in 0..frame.len() {
            assert_eq!(decode(&frame[..end]), Ok(None), "{end}");
        }
        decoded
    }

    #[test]
    fn methods_are_decoded() {
        let mut out = Vec::new();
        put_method(&mut out, 1, (60, 120), |out| {
            out.extend_from_slice(&7_u64.to_be_bytes());
            out.push(1);
        });
        let method = Method::Nack {
            tag: 7,
            multiple: true,
        };
        assert_eq!(one(&out), Frame::Method { channel: 1, method });
        out.clear();
        put_method(&mut out, 0, (10, 50), |out| {
            out.extend_from_slice(&[1, 64]);
            put_short(out, b"CONNECTION_FORCED");
            out.extend_from_slice(&[0; 4]);
        });
        let reason = Reason {
            code: 320,
            text: b"CONNECTION_FORCED",
            cause: (0, 0),
        };
        assert_eq!(
            one(&out),
            Frame::Method {
                channel: 0,
                method: Method::Close(reason)
            }
        );
    }

    #[test]
    fn position_key_and_id_are_found_among_all_types_of_headers() {
        let mut out = Vec::new();
        put_frame(&mut out, 2, 1, |out| {
            out.extend_from_slice(&[0, 60, 0, 0]);
            out.extend_from_slice(&5_u64.to_be_bytes());
            out.extend_from_slice(&0xBF80_u16.to_be_bytes());
            put_short(out, b"text/plain");
            put_sized(out, |out| {
                put_member(out, "n", None);
                put_member(out, "b", Some(b"\xff"));
                put_short(out, b"t");
                out.push(b'F');
                put_sized(out, |out| {
                    put_short(out, b"i");
                    out.extend_from_slice(b"I\0\0\0\x01");
                });
                put_member(out, super::super::POSITION_HEADER, Some(b"0/1 7"));
                put_member(out, super::super::KEY_HEADER, Some(b"key"));
            });
            out.extend_from_slice(&[2, 0]);
            for text in [b"", b"", b"9", b"i"] as [&[u8]; 4] {
                put_short(out, text);
            }
        });
        let expected = Frame::Header {
            channel: 1,
            body: 5,
            position: Some(b"0/1 7"),
            key: Some(b"key"),
            message_id: Some(b"i"),
            // Behind class, weight and size, before the end of the frame.
            properties: &out[19..out.len() - 1],
        };
        assert_eq!(one(&out), expected);
    }

    #[test]
    fn what_is_no_amqp_is_refused() {
        assert_eq!(decode(b"AMQP\0\0\x09\x01"), Err(ProtocolError::Version));
        let long = [1, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert!(decode(&long).is_err(), "before its payload is there");
        assert!(decode(b"HTTP/1.1 400 Bad Request").is_err());
        assert!(decode(&[8, 0, 0, 0, 0, 0, 0, 0]).is_err(), "another end");
        let mut deep = Vec::new();
        put_frame(&mut deep, 2, 1, |out| {
            out.extend_from_slice(&[0; 12]);
            out.extend_from_slice(&0x2000_u16.to_be_bytes());
            let mut value = b"V".to_vec();
            for _ in 0..100 {
                let mut outer = b"A".to_vec();
                put_sized(&mut outer, |out| out.extend_from_slice(&value));
                value = outer;
            }
            put_sized(out, |out| {
                put_short(out, b"a");
                out.extend_from_slice(&value);
            });
        });
        assert!(decode(&deep).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }

        #[test]
        fn no_payload_panics(
            kind in 1..=3_u8,
            class in prop::sample::select(vec![10_u16, 20, 40, 50, 60, 85]),
            number in 10..=121_u16,
            payload in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut out = Vec::new();
            put_frame(&mut out, kind, 1, |out| {
                out.extend_from_slice(&class.to_be_bytes());
                out.extend_from_slice(&number.to_be_bytes());
                out.extend_from_slice(&payload);
            });
            if let Ok(decoded) = decode(&out) {
                prop_assert_eq!(decoded.unwrap().1, out.len());
            }
        }
    }
}
