//! The messages of a replication stream, as pure functions over bytes.
//!
//! Source: PostgreSQL documentation, "Message Formats" (CopyData and other messages) and "Streaming
//! Replication Protocol" (XLogData `w`, primary keepalive `k`, standby status `r`).
//!
//! Only errors are allocated.

use postgres_protocol::message::backend::{
    self, COMMAND_COMPLETE_TAG, COPY_DATA_TAG, COPY_DONE_TAG, ERROR_RESPONSE_TAG,
    NOTICE_RESPONSE_TAG, NOTIFICATION_RESPONSE_TAG, PARAMETER_STATUS_TAG, READY_FOR_QUERY_TAG,
};
use walrelay_lsn::{CommitEnd, Lsn};

use crate::error::{Error, ServerError};

/// The limit of a message's length field: every accepted value is below it. Postgres builds a
/// message in one allocation of less than 1 GiB (`MaxAllocSize`), and the length counts its own 4
/// bytes.
pub const MAX_MESSAGE: usize = (1 << 30) + 4;

/// Bytes of a message beside the data of a COPY: an error, a notice, a parameter.
const LONGEST_OTHER: usize = 1 << 20;
/// Size of a message's header: tag and length.
pub(crate) const HEADER: usize = 5;
/// Size of the fixed part of XLogData: `w`, start, end, clock.
const XLOG_DATA: usize = 25;
/// Size of a keepalive: `k`, end, clock, whether to reply.
const KEEPALIVE: usize = 18;
/// Size of a standby status update with its header: `r`, three positions, clock, whether to reply.
pub(crate) const STATUS_UPDATE: usize = HEADER + 34;

/// A frame: an XLogData message or a keepalive of the stream, borrowed from the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A message of the output plugin.
    XLogData {
        /// The start of the WAL data in this message. Must not be confirmed.
        start: Lsn,
        /// The server's end of WAL at the time of sending. Must not be confirmed either.
        end: Lsn,
        /// The server's clock, in microseconds since the beginning of 2000 (UTC).
        sent_at: i64,
        /// The output plugin's message.
        body: &'a [u8],
    },
    /// A primary keepalive message.
    Keepalive {
        /// The position that the server has decoded up to: all changes before it for this slot have
        /// been sent.
        wal_end: Lsn,
        /// The server's clock, in microseconds since the beginning of 2000 (UTC).
        sent_at: i64,
        /// True if the server asks for a status update at once. Without one it ends the connection.
        reply_requested: bool,
    },
}

/// A standby status update (`r`): the positions that a relay reports to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusUpdate {
    /// The end of what was received. Shown in `pg_stat_replication.write_lsn`; the server does not
    /// use it otherwise.
    pub written: Lsn,
    /// The position to confirm: it becomes the slot's `confirmed_flush_lsn`. The server removes WAL
    /// before it and never sends it again. [`Lsn::ZERO`] means "nothing to confirm".
    pub flushed: CommitEnd,
    /// Shown in `pg_stat_replication.replay_lsn`; `synchronous_commit=remote_apply` waits for it.
    pub applied: CommitEnd,
    /// The client's clock in microseconds since the beginning of 2000 (UTC), shown as
    /// `pg_stat_replication.reply_time`.
    pub clock_us_since_2000: i64,
    /// True if the server must answer with a keepalive at once. Set it in periodic updates, never
    /// in the answer to a keepalive: both sides would reply for ever.
    pub reply_requested: bool,
}

impl StatusUpdate {
    /// Says that the client is there, and confirms nothing.
    pub const NO_POSITION: Self = Self {
        written: Lsn::ZERO,
        flushed: CommitEnd::from_slot(Lsn::ZERO),
        applied: CommitEnd::from_slot(Lsn::ZERO),
        clock_us_since_2000: 0,
        reply_requested: false,
    };
}

/// The kind of a message. It borrows nothing from the buffer; [`frame`] reads the fields.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MessageKind {
    XLogData,
    Keepalive,
    /// A message that may arrive at any time and is ignored: a notice, a changed parameter.
    Ignored,
    /// An ErrorResponse message.
    Failed,
    /// CopyDone, or CommandComplete: a server that shuts down sends the latter without the former.
    Ended,
    /// A ReadyForQuery message.
    Ready,
}

/// Kind and length of a whole message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) kind: MessageKind,
    /// The length in bytes, with the header.
    pub(crate) total: usize,
}

/// Parses the first [`Frame`] in `bytes`. Returns it with the number of bytes up to its end,
/// including ignored messages before it (notices, parameters). `Ok(None)` if the frame is not
/// complete.
///
/// # Errors
/// [`Error::Protocol`] for an impossible length, a message that a replication stream does not
/// allow, or a CopyData of unknown kind or wrong size. [`Error::Server`] for an ErrorResponse.
/// [`Error::Closed`] for a CopyDone or another message that ends the stream.
pub fn parse_frame(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Error> {
    let mut end = 0;
    while let Some(layout) = layout(&bytes[end..])? {
        let message = &bytes[end..end + layout.total];
        end += layout.total;
        if let Some(frame) = frame(message, layout.kind) {
            return Ok(Some((frame, end)));
        }
        if let Some(error) = end_of_stream(message, layout.kind) {
            return Err(error);
        }
    }
    Ok(None)
}

/// Returns tag and total length of the message at the start of `bytes`; `None` if its header is not
/// complete.
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

/// Returns the [`header`] of a message of a COPY. One that is no CopyData has a limit of its own: it is
/// parsed only when it is whole.
pub(crate) fn copy_header(bytes: &[u8]) -> Result<Option<(u8, usize)>, Error> {
    let header = header(bytes)?;
    match header {
        Some((tag, total)) if tag != COPY_DATA_TAG && total > LONGEST_OTHER => {
            Err(bad_length(tag, total))
        }
        header => Ok(header),
    }
}

#[cold]
fn bad_length(tag: u8, length: usize) -> Error {
    Error::protocol(format!("message {:?} of length {length}", char::from(tag)))
}

/// Returns the layout of the message at the start of `bytes`; `None` if the message is not
/// complete.
#[inline]
pub(crate) fn layout(bytes: &[u8]) -> Result<Option<Layout>, Error> {
    // Fast path for XLogData, by far the most frequent message: only comparisons.
    if let Some(head) = bytes.first_chunk::<{ HEADER + XLOG_DATA }>()
        && head[0] == COPY_DATA_TAG
        && head[HEADER] == b'w'
    {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        // The length counts itself, but not the tag.
        if (4 + XLOG_DATA..MAX_MESSAGE).contains(&length) && length < bytes.len() {
            return Ok(Some(Layout {
                kind: MessageKind::XLogData,
                total: length + 1,
            }));
        }
    }
    any_layout(bytes)
}

/// Returns the layout as [`layout`] does, for any message.
#[inline(never)]
fn any_layout(bytes: &[u8]) -> Result<Option<Layout>, Error> {
    let Some((tag, total)) = copy_header(bytes)? else {
        return Ok(None);
    };
    if bytes.len() < total {
        return Ok(None);
    }
    let kind = if tag == COPY_DATA_TAG {
        copy_data(&bytes[HEADER..total])?
    } else {
        other_kind(tag).ok_or_else(|| unknown(tag, "in a replication stream"))?
    };
    Ok(Some(Layout { kind, total }))
}

#[inline]
fn copy_data(body: &[u8]) -> Result<MessageKind, Error> {
    match body.first() {
        Some(b'w') if body.len() >= XLOG_DATA => Ok(MessageKind::XLogData),
        Some(b'k') if body.len() == KEEPALIVE => Ok(MessageKind::Keepalive),
        kind => Err(unknown_copy_data(kind, body.len())),
    }
}

#[cold]
fn unknown_copy_data(kind: Option<&u8>, len: usize) -> Error {
    Error::protocol(match kind {
        Some(&kind) => format!("CopyData of kind {:?} with {len} bytes", char::from(kind)),
        None => "empty CopyData".to_owned(),
    })
}

/// Returns the kind of a message that is no CopyData; `None` if a COPY does not allow it.
#[cold]
pub(crate) fn other_kind(tag: u8) -> Option<MessageKind> {
    match tag {
        NOTICE_RESPONSE_TAG | PARAMETER_STATUS_TAG | NOTIFICATION_RESPONSE_TAG => {
            Some(MessageKind::Ignored)
        }
        ERROR_RESPONSE_TAG => Some(MessageKind::Failed),
        COPY_DONE_TAG | COMMAND_COMPLETE_TAG => Some(MessageKind::Ended),
        READY_FOR_QUERY_TAG => Some(MessageKind::Ready),
        _ => None,
    }
}

/// Creates the error about a message that is not allowed in this place.
#[cold]
pub(crate) fn unknown(tag: u8, place: &str) -> Error {
    Error::protocol(format!("message {:?} {place}", char::from(tag)))
}

/// Returns the frame in `message`, which is one whole message of this kind; `None` if the kind is
/// no frame.
#[inline]
pub(crate) fn frame(message: &[u8], kind: MessageKind) -> Option<Frame<'_>> {
    match kind {
        MessageKind::XLogData => {
            let (head, body) = message.split_first_chunk::<{ HEADER + XLOG_DATA }>()?;
            Some(Frame::XLogData {
                start: Lsn::new(be_u64(head, HEADER + 1)),
                end: Lsn::new(be_u64(head, HEADER + 9)),
                sent_at: be_u64(head, HEADER + 17) as i64,
                body,
            })
        }
        MessageKind::Keepalive => {
            let whole = message.first_chunk::<{ HEADER + KEEPALIVE }>()?;
            Some(Frame::Keepalive {
                wal_end: Lsn::new(be_u64(whole, HEADER + 1)),
                sent_at: be_u64(whole, HEADER + 9) as i64,
                reply_requested: whole[HEADER + 17] != 0,
            })
        }
        _ => None,
    }
}

/// Returns the error if this message ends the stream.
#[cold]
pub(crate) fn end_of_stream(message: &[u8], kind: MessageKind) -> Option<Error> {
    match kind {
        MessageKind::Failed => Some(server_error(message)),
        MessageKind::Ended | MessageKind::Ready => Some(Error::Closed {
            what: "the server has ended the replication stream; it is probably shutting down",
        }),
        MessageKind::XLogData | MessageKind::Keepalive | MessageKind::Ignored => None,
    }
}

/// Parses an ErrorResponse.
pub(crate) fn server_error(message: &[u8]) -> Error {
    match backend::Message::parse(&mut message.into()) {
        Ok(Some(backend::Message::ErrorResponse(body))) => ServerError::parse(body.fields()).into(),
        _ => Error::protocol("malformed ErrorResponse"),
    }
}

/// Encodes a standby status update.
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

/// Reads the big-endian number at offset `at`. The size of `bytes` is constant, so that the
/// compiler can omit bounds checks.
#[inline]
fn be_u64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(number)
}
