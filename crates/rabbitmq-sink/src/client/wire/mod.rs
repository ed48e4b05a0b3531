//! Frames, methods and tables of AMQP 0-9-1: decoding with bounds; `reader` has the values, `encode` the
//! encoding.
//!
//! Source: the AMQP 0-9-1 specification, sections 2.3 and 4.2, and RabbitMQ's extensions
//! (`confirm.select`, `basic.nack`, `connection.blocked`).

mod encode;
mod reader;
#[cfg(test)]
mod tests;

use super::error::ProtocolError;

pub(crate) use encode::{put_frame, put_member, put_method, put_short, put_sized};
pub(crate) use reader::{Reader, Value};

/// The protocol header, which a client sends first.
pub(crate) const PROTOCOL_HEADER: &[u8; 8] = b"AMQP\0\0\x09\x01";
/// The longest short string in bytes.
pub(crate) const MAX_SHORT: usize = 255;
/// The largest frame in bytes that this client accepts, and offers in `connection.tune-ok`.
pub(crate) const MAX_FRAME: u32 = 128 * 1024;
/// The bytes of a frame around its payload.
pub(crate) const FRAME_OVERHEAD: usize = 8;

const FRAME_END: u8 = 0xCE;

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
