//! The replication stream: frames in, status updates out.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use crate::error::{Error, ServerError};
use crate::framing::buffer::STREAM_CHUNK;
use crate::framing::messages::{self, Frame, MessageKind, STATUS_UPDATE, StatusUpdate};
use crate::framing::wire::{Socket, Wire};

/// A replication stream.
///
/// [`read`](Self::read) reads a batch of bytes; [`peek`](Self::peek) and [`consume`](Self::consume)
/// iterate over the frames in it without copying or allocating.
/// [`queue_status`](Self::queue_status) and [`flush`](Self::flush) report positions to the server.
///
/// # Cancel safety
/// `read` and `flush` may be dropped at any await and called again: nothing that was read is lost,
/// and the next `flush` completes a half-written update.
///
/// # Ordering
/// Frames are in the order in which the server sent them. `peek` returns a failure (an error of the
/// server, the end of the stream, a protocol error) only after every whole frame before it has been
/// consumed, and returns it again in every later call.
#[derive(Debug)]
pub struct ReplicationStream {
    wire: Wire,
    /// Length in bytes of the message that was peeked last; 0 after it was consumed.
    peeked: usize,
    /// The error that ended the stream, after the frames in the buffer.
    failure: Option<Error>,
    /// The last update that was queued, because positions must not go back.
    reported: Option<StatusUpdate>,
    /// True if a status update was ever queued, so that the write buffer, unless empty, ends with
    /// one.
    status_queued: bool,
}

impl ReplicationStream {
    pub(crate) fn new(mut wire: Wire) -> Self {
        wire.read_buffer.set_chunk(STREAM_CHUNK);
        Self {
            wire,
            peeked: 0,
            failure: None,
            reported: None,
            status_queued: false,
        }
    }

    /// Borrows the next whole frame from the buffer, where it stays until
    /// [`consume`](Self::consume), so that a caller that cannot process it now can peek it again
    /// later. `Ok(None)`: call [`read`](Self::read) first.
    ///
    /// # Errors
    /// [`Error::Server`], [`Error::Closed`], [`Error::Protocol`], or the error of an earlier
    /// `read`; see "Ordering" above.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, Error> {
        let layout = loop {
            match messages::layout(self.wire.read_buffer.unread()) {
                Ok(Some(layout)) => match layout.kind {
                    MessageKind::XLogData | MessageKind::Keepalive => break layout,
                    _ => self.other_message(layout.total, layout.kind)?,
                },
                Ok(None) => {
                    self.peeked = 0;
                    return match &self.failure {
                        Some(failure) => Err(failure.clone()),
                        None => Ok(None),
                    };
                }
                Err(error) => return Err(self.fail(error)),
            }
        };
        self.peeked = layout.total;
        let message = &self.wire.read_buffer.unread()[..layout.total];
        Ok(messages::frame(message, layout.kind))
    }

    /// Consumes the frame that was peeked last. Does nothing without one.
    #[inline]
    pub fn consume(&mut self) {
        self.wire.read_buffer.advance(self.peeked);
        self.peeked = 0;
    }

    /// Skips a message that is no frame, or returns an error if the message ends the stream.
    #[cold]
    fn other_message(&mut self, total: usize, kind: MessageKind) -> Result<(), Error> {
        let message = &self.wire.read_buffer.unread()[..total];
        if let Some(error) = messages::end_of_stream(message, kind) {
            return Err(self.fail(error));
        }
        if message[0] == b'N'
            && let Ok(Some(Message::NoticeResponse(notice))) = Message::parse(&mut message.into())
        {
            let notice = ServerError::parse(notice.fields());
            if notice.skips_publication() {
                return Err(self.fail(Error::Server(Arc::new(notice))));
            }
            notice.log(&self.wire.host);
        }
        self.wire.read_buffer.advance(total);
        Ok(())
    }

    /// Stores the error and drops the rest of the buffer, which must not be used after it.
    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.wire.read_buffer.clear();
        self.peeked = 0;
        self.failure = Some(error.clone());
        error
    }

    /// Reads once from the socket. Returns the number of bytes, at least 1. With TLS, whose records
    /// have at most 16 KiB, it reads all records that are available without waiting and fit into
    /// the buffer.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Closed`]. [`peek`](Self::peek) still returns the frames that were
    /// read before.
    pub async fn read(&mut self) -> Result<usize, Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let mut total = match self.wire.fill().await {
            Ok(read) => read,
            Err(error) => {
                self.failure = Some(error.clone());
                return Err(error);
            }
        };
        if self.wire.is_encrypted() {
            // This never suspends, so the future cannot be dropped here and bytes are counted.
            while let Some(more) = poll_fn(|cx| {
                Poll::Ready(match self.wire.fill_more(cx) {
                    Poll::Ready(more) => Some(more),
                    Poll::Pending => None,
                })
            })
            .await
            {
                match more {
                    Ok(read) => total += read,
                    Err(error) => {
                        self.failure = Some(error);
                        break;
                    }
                }
            }
        }
        Ok(total)
    }

    /// Returns the kind of socket of the connection.
    pub fn socket(&self) -> Socket {
        self.wire.socket()
    }

    /// Queues `update` to be written by [`flush`](Self::flush). It replaces a queued update of
    /// which no byte was written yet; a requested reply is kept.
    ///
    /// Positions never go back: the greatest ever queued is reported. `written` is never less than
    /// `flushed`.
    pub fn queue_status(&mut self, update: StatusUpdate) {
        debug_assert!(
            update.written >= update.flushed.lsn(),
            "confirmed {} but received only {}",
            update.flushed,
            update.written
        );
        let mut update = update;
        if let Some(before) = &self.reported {
            update.written = update.written.max(before.written);
            update.flushed = update.flushed.max(before.flushed);
            update.applied = update.applied.max(before.applied);
        }
        update.written = update.written.max(update.flushed.lsn());
        let write_buffer = &mut self.wire.write_buffer;
        // The write buffer contains at most two updates: one half written, and one after it.
        if self.status_queued && write_buffer.len() >= STATUS_UPDATE {
            let behind = write_buffer.len() - STATUS_UPDATE;
            update.reply_requested |= write_buffer[write_buffer.len() - 1] != 0;
            write_buffer.truncate(behind);
        }
        write_buffer.extend_from_slice(&messages::status_update(&update));
        self.status_queued = true;
        self.reported = Some(update);
    }

    /// Writes queued updates.
    ///
    /// # Errors
    /// [`Error::Io`]. Messages that the server sent before it closed the connection may still be
    /// read.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.wire.flush().await
    }

    /// Ends the stream in order: writes queued updates, sends CopyDone, reads and discards messages
    /// until the server has ended the command and released the slot, and sends Terminate.
    ///
    /// A server that is sending a large transaction first sends it to its end, so use a timeout.
    /// The discarded messages were not confirmed, so they are sent again.
    ///
    /// # Errors
    /// The error that ended the stream otherwise. Then it is not known whether the last update
    /// arrived.
    pub async fn finish(mut self) -> Result<(), Error> {
        frontend::copy_done(&mut self.wire.write_buffer);
        self.flush().await?;
        loop {
            while let Some(layout) = messages::layout(self.wire.read_buffer.unread())? {
                match layout.kind {
                    MessageKind::Ready => {
                        self.wire.terminate().await;
                        return Ok(());
                    }
                    MessageKind::Failed => {
                        let message = &self.wire.read_buffer.unread()[..layout.total];
                        if let Some(error) = messages::end_of_stream(message, layout.kind) {
                            return Err(error);
                        }
                    }
                    _ => {}
                }
                self.wire.read_buffer.advance(layout.total);
            }
            self.read().await?;
        }
    }
}
