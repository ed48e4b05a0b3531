//! The messages of a replication stream, as pure functions over bytes.
//!
//! Source: PostgreSQL documentation, "Message Formats" (CopyData and what may come between) and
//! "Streaming Replication Protocol" (XLogData `w`, primary keepalive `k`, standby status `r`).
//!
//! Nothing here allocates, except for an error that is returned.

use postgres_protocol::message::backend::{
    self, COMMAND_COMPLETE_TAG, COPY_DATA_TAG, COPY_DONE_TAG, ERROR_RESPONSE_TAG,
    NOTICE_RESPONSE_TAG, NOTIFICATION_RESPONSE_TAG, PARAMETER_STATUS_TAG, READY_FOR_QUERY_TAG,
};
use walrelay_lsn::{CommitEnd, Lsn};

use crate::error::{Error, ServerError};

/// The longest message that is believed: Postgres builds each in one allocation of less than 1 GiB
/// (`MaxAllocSize`), and the length counts itself.
pub const MAX_MESSAGE: usize = (1 << 30) + 4;

/// The tag and the length.
pub(crate) const HEADER: usize = 5;
/// `w`, start, end, clock.
const XLOG_DATA: usize = 25;
/// `k`, end, clock, whether to reply.
const KEEPALIVE: usize = 18;
/// A whole standby status update with its header: `r`, three positions, clock, whether to reply.
pub(crate) const STATUS_UPDATE: usize = HEADER + 34;

/// One message of the stream that means something to a relay, borrowed from the bytes it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// What the output plugin wrote.
    XLogData {
        /// Where the WAL that this speaks of begins. Not a position to confirm.
        start: Lsn,
        /// The end of WAL on the server as it knew it then. Not a position to confirm either.
        end: Lsn,
        /// The server's clock, in microseconds since the beginning of 2000 (UTC).
        sent_at: i64,
        /// The output plugin's message.
        body: &'a [u8],
    },
    /// The server is alive.
    Keepalive {
        /// How far the server has decoded: everything before it that concerns this slot has been
        /// sent.
        wal_end: Lsn,
        /// The server's clock, in microseconds since the beginning of 2000 (UTC).
        sent_at: i64,
        /// Whether the server wants a status update now, or else it will end the connection.
        reply_requested: bool,
    },
}

/// How far a relay has come, as the server is to know it (`r`, standby status update).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusUpdate {
    /// The end of what was received. Shown in `pg_stat_replication.write_lsn`; the server relies on
    /// nothing of it.
    pub written: Lsn,
    /// What is safe: the server makes it the slot's `confirmed_flush_lsn`, forgets what is before
    /// it, and never sends that again. [`Lsn::ZERO`] in it means "nothing to confirm".
    pub flushed: CommitEnd,
    /// Shown in `pg_stat_replication.replay_lsn`, and what `synchronous_commit=remote_apply` waits
    /// for.
    pub applied: CommitEnd,
    /// The client's clock in microseconds since the beginning of 2000 (UTC), from which the server
    /// computes `reply_time`.
    pub clock_us_since_2000: i64,
    /// Whether the server is to answer with a keepalive at once. Set it in periodic updates, never
    /// in the answer to a keepalive: they would be sent to and fro without end.
    pub reply_requested: bool,
}

/// A [`Frame`] by positions instead of references, so that a buffer can be asked first and
/// borrowed from later.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    XLogData {
        start: Lsn,
        end: Lsn,
        sent_at: i64,
    },
    Keepalive {
        wal_end: Lsn,
        sent_at: i64,
        reply_requested: bool,
    },
    /// Something that may come at any time and is not for us: a notice, a changed parameter.
    Aside,
    /// An ErrorResponse.
    Failed,
    /// CopyDone.
    CopyDone,
    /// CommandComplete: a server that shuts down sends it without a CopyDone before it.
    CommandComplete,
    /// ReadyForQuery.
    Ready,
}

/// One whole message at the beginning of some bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) kind: Kind,
    /// Its length in bytes, header and all.
    pub(crate) total: usize,
}

/// Reads the first message of the stream that is a [`Frame`], and how many bytes it ends after.
/// Notices and parameters before it are passed over; they count among those bytes.
///
/// `Ok(None)` if the bytes end before it is whole.
///
/// # Errors
/// [`Error::Protocol`] for a length that cannot be, a message that has no place in a replication
/// stream, a CopyData of unknown kind or too short for its kind. [`Error::Server`] for an
/// ErrorResponse. [`Error::Closed`] for a CopyDone and whatever else ends the stream.
pub fn parse_frame(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Error> {
    let mut passed = 0;
    while let Some(layout) = layout(&bytes[passed..])? {
        let message = &bytes[passed..passed + layout.total];
        passed += layout.total;
        if let Some(frame) = frame(message, layout.kind) {
            return Ok(Some((frame, passed)));
        }
        if let Some(error) = end_of_stream(message, layout.kind) {
            return Err(error);
        }
    }
    Ok(None)
}

/// The header of the message at the beginning, if there are enough bytes for one.
#[inline]
pub(crate) fn header(bytes: &[u8]) -> Result<Option<(u8, usize)>, Error> {
    let Some(&[tag, a, b, c, d]) = bytes.first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if (4..MAX_MESSAGE).contains(&length) {
        // The length counts itself, but not the tag.
        Ok(Some((tag, length + 1)))
    } else {
        Err(bad_length(tag, length))
    }
}

#[cold]
fn bad_length(tag: u8, length: usize) -> Error {
    Error::protocol(format!("message {:?} of length {length}", char::from(tag)))
}

/// What stands at the beginning; `None` if it is not whole.
#[inline]
pub(crate) fn layout(bytes: &[u8]) -> Result<Option<Layout>, Error> {
    // By far the most frequent, and nothing but comparisons.
    if let Some(head) = bytes.first_chunk::<{ HEADER + XLOG_DATA }>()
        && head[0] == COPY_DATA_TAG
        && head[HEADER] == b'w'
    {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        // The length counts itself, but not the tag.
        if (4 + XLOG_DATA..MAX_MESSAGE).contains(&length) && length < bytes.len() {
            return Ok(Some(Layout {
                kind: Kind::XLogData {
                    start: Lsn::new(be_u64(head, HEADER + 1)),
                    end: Lsn::new(be_u64(head, HEADER + 9)),
                    sent_at: be_u64(head, HEADER + 17) as i64,
                },
                total: length + 1,
            }));
        }
    }
    any_layout(bytes)
}

/// The same of any message.
#[inline(never)]
fn any_layout(bytes: &[u8]) -> Result<Option<Layout>, Error> {
    let Some((tag, total)) = header(bytes)? else {
        return Ok(None);
    };
    if bytes.len() < total {
        return Ok(None);
    }
    let kind = if tag == COPY_DATA_TAG {
        copy_data(&bytes[HEADER..total])?
    } else {
        between(tag)?
    };
    Ok(Some(Layout { kind, total }))
}

#[inline]
fn copy_data(body: &[u8]) -> Result<Kind, Error> {
    match body.first() {
        Some(b'w') => {
            if let Some(head) = body.first_chunk::<XLOG_DATA>() {
                return Ok(Kind::XLogData {
                    start: Lsn::new(be_u64(head, 1)),
                    end: Lsn::new(be_u64(head, 9)),
                    sent_at: be_u64(head, 17) as i64,
                });
            }
        }
        Some(b'k') => {
            if let Ok(whole) = <&[u8; KEEPALIVE]>::try_from(body) {
                return Ok(Kind::Keepalive {
                    wal_end: Lsn::new(be_u64(whole, 1)),
                    sent_at: be_u64(whole, 9) as i64,
                    reply_requested: whole[17] != 0,
                });
            }
        }
        _ => {}
    }
    Err(unknown_copy_data(body.first(), body.len()))
}

#[cold]
fn unknown_copy_data(kind: Option<&u8>, len: usize) -> Error {
    Error::protocol(match kind {
        Some(&kind) => format!("CopyData of kind {:?} with {len} bytes", char::from(kind)),
        None => "empty CopyData".to_owned(),
    })
}

#[cold]
fn between(tag: u8) -> Result<Kind, Error> {
    match tag {
        NOTICE_RESPONSE_TAG | PARAMETER_STATUS_TAG | NOTIFICATION_RESPONSE_TAG => Ok(Kind::Aside),
        ERROR_RESPONSE_TAG => Ok(Kind::Failed),
        COPY_DONE_TAG => Ok(Kind::CopyDone),
        COMMAND_COMPLETE_TAG => Ok(Kind::CommandComplete),
        READY_FOR_QUERY_TAG => Ok(Kind::Ready),
        other => Err(Error::protocol(format!(
            "message {:?} in a replication stream",
            char::from(other)
        ))),
    }
}

/// The frame in `message`, the whole bytes of one message of this kind.
#[inline]
pub(crate) fn frame(message: &[u8], kind: Kind) -> Option<Frame<'_>> {
    match kind {
        Kind::XLogData {
            start,
            end,
            sent_at,
        } => Some(Frame::XLogData {
            start,
            end,
            sent_at,
            body: &message[HEADER + XLOG_DATA..],
        }),
        Kind::Keepalive {
            wal_end,
            sent_at,
            reply_requested,
        } => Some(Frame::Keepalive {
            wal_end,
            sent_at,
            reply_requested,
        }),
        _ => None,
    }
}

/// Why the stream ends with this message; `None` if it does not.
#[cold]
pub(crate) fn end_of_stream(message: &[u8], kind: Kind) -> Option<Error> {
    match kind {
        Kind::Failed => Some(server_error(message)),
        Kind::CopyDone | Kind::CommandComplete | Kind::Ready => Some(Error::Closed {
            what: "the server has ended the replication stream; it is probably shutting down",
        }),
        Kind::XLogData { .. } | Kind::Keepalive { .. } | Kind::Aside => None,
    }
}

/// The ErrorResponse that these bytes are.
pub(crate) fn server_error(message: &[u8]) -> Error {
    match backend::Message::parse(&mut message.into()) {
        Ok(Some(backend::Message::ErrorResponse(body))) => ServerError::parse(body.fields()).into(),
        _ => Error::protocol("malformed ErrorResponse"),
    }
}

/// A standby status update as it goes over the wire.
pub(crate) fn status_update(update: &StatusUpdate) -> [u8; STATUS_UPDATE] {
    let mut message = [0; STATUS_UPDATE];
    message[0] = COPY_DATA_TAG;
    message[1..5].copy_from_slice(&(STATUS_UPDATE as u32 - 1).to_be_bytes());
    message[5] = b'r';
    message[6..14].copy_from_slice(&update.written.get().to_be_bytes());
    message[14..22].copy_from_slice(&update.flushed.lsn().get().to_be_bytes());
    message[22..30].copy_from_slice(&update.applied.lsn().get().to_be_bytes());
    message[30..38].copy_from_slice(&update.clock_us_since_2000.to_be_bytes());
    message[38] = u8::from(update.reply_requested);
    message
}

/// The number at `at`, a place that the compiler sees to be inside.
#[inline]
fn be_u64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(number)
}
