//! A running replication stream: frames in, status updates out.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use crate::error::{Error, ServerError};
use crate::framing::buffer::STREAM_CHUNK;
use crate::framing::messages::{self, Frame, Kind, STATUS_UPDATE, StatusUpdate};
use crate::framing::wire::{Socket, Wire};

/// A replication stream.
///
/// One [`read`](Self::read) brings a batch of bytes; [`peek`](Self::peek) and
/// [`consume`](Self::consume) walk the frames in it, without copying or allocating.
/// [`queue_status`](Self::queue_status) and [`flush`](Self::flush) report positions to the server.
///
/// # Cancel safety
/// `read` and `flush` may be dropped at any await and called again: nothing that was read is lost, and
/// the next `flush` completes a half-written update.
///
/// # Ordering
/// Frames come in the order in which the server sent them. `peek` reports a failure (an error of the
/// server, the end of the stream, bytes that are not the protocol) only after every whole frame before
/// it has been consumed, and again in every later call.
#[derive(Debug)]
pub struct ReplicationStream {
    wire: Wire,
    /// The length of the frame last peeked, with its header; 0 after it was consumed.
    peeked: usize,
    /// Why nothing more can come behind what is in the buffer.
    failure: Option<Error>,
    /// The last positions reported, for they must not go back.
    reported: Option<StatusUpdate>,
    /// Whether the last thing in the outbox is a status update.
    status_queued: bool,
}

impl ReplicationStream {
    pub(crate) fn new(mut wire: Wire) -> Self {
        wire.inbox.set_chunk(STREAM_CHUNK);
        Self {
            wire,
            peeked: 0,
            failure: None,
            reported: None,
            status_queued: false,
        }
    }

    /// The next whole frame, borrowed from the buffer; it stays there until
    /// [`consume`](Self::consume), so that a caller that cannot take it now may come back for it.
    /// `Ok(None)`: [`read`](Self::read) first.
    ///
    /// # Errors
    /// [`Error::Server`], [`Error::Closed`], [`Error::Protocol`], or what a `read` failed with; see
    /// "Ordering" above.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, Error> {
        let layout = loop {
            match messages::layout(self.wire.inbox.unread()) {
                Ok(Some(layout)) => match layout.kind {
                    Kind::XLogData { .. } | Kind::Keepalive { .. } => break layout,
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
        let message = &self.wire.inbox.unread()[..layout.total];
        Ok(messages::frame(message, layout.kind))
    }

    /// Drops the frame last peeked. Without one it does nothing.
    #[inline]
    pub fn consume(&mut self) {
        self.wire.inbox.advance(self.peeked);
        self.peeked = 0;
    }

    /// Passes over what is not for us, or makes the end of the stream of it.
    #[cold]
    fn other_message(&mut self, total: usize, kind: Kind) -> Result<(), Error> {
        let message = &self.wire.inbox.unread()[..total];
        if let Some(error) = messages::end_of_stream(message, kind) {
            return Err(self.fail(error));
        }
        if message[0] == b'N'
            && let Ok(Some(Message::NoticeResponse(notice))) = Message::parse(&mut message.into())
        {
            let notice = ServerError::parse(notice.fields());
            // Since 18 the server skips a missing publication with this warning ("skipped loading
            // publication"), and its rows with it. Before 18, and here, it is an error.
            if notice.severity == "WARNING" && notice.sqlstate.as_str() == "55000" {
                return Err(self.fail(Error::Server(Arc::new(notice))));
            }
            notice.log(&self.wire.host);
        }
        self.wire.inbox.advance(total);
        Ok(())
    }

    /// Nothing behind this point counts any more.
    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.wire.inbox.clear();
        self.peeked = 0;
        self.failure = Some(error.clone());
        error
    }

    /// Reads once from the socket and returns how many bytes came, at least 1. Through TLS, where
    /// data comes in records of 16 KiB, it takes all that can be had without waiting, up to the
    /// room there is.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Closed`]. Frames that came before are still there for
    /// [`peek`](Self::peek).
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
            // No suspension from here on, so that nothing can be dropped in between.
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

    /// What kind of socket the server is connected by.
    pub fn socket(&self) -> Socket {
        self.wire.socket()
    }

    /// How many bytes have been read and not been consumed.
    pub fn buffered(&self) -> usize {
        self.wire.inbox.unread().len()
    }

    /// Makes `update` the next thing to be written by [`flush`](Self::flush). An update that was
    /// queued before and has not begun to be written is replaced; its wish for a reply is kept.
    ///
    /// Positions never go back: the greatest ever given is reported. `written` is never less than
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
        let outbox = self.wire.outbox();
        // Two can be there at most: one half written, and one behind it.
        if self.status_queued && outbox.len() >= STATUS_UPDATE {
            let behind = outbox.len() - STATUS_UPDATE;
            update.reply_requested |= outbox[outbox.len() - 1] != 0;
            outbox.truncate(behind);
        }
        outbox.extend_from_slice(&messages::status_update(&update));
        self.status_queued = true;
        self.reported = Some(update);
    }

    /// Writes what is queued.
    ///
    /// # Errors
    /// [`Error::Io`]. What the server said before it closed the connection may still be there to be
    /// read.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.wire.flush().await
    }

    /// Ends the stream in order: writes what is queued, says CopyDone, reads on (and throws away)
    /// until the server has ended the command and released the slot, and says good-bye.
    ///
    /// A server in the middle of a large transaction sends it to its end first, so put a timeout
    /// around this. What is thrown away was not confirmed; it will come again.
    ///
    /// # Errors
    /// Whatever ended the stream otherwise. It cannot be known then whether the last update arrived.
    pub async fn finish(mut self) -> Result<(), Error> {
        frontend::copy_done(self.wire.outbox());
        self.flush().await?;
        loop {
            while let Some(layout) = messages::layout(self.wire.inbox.unread())? {
                match layout.kind {
                    Kind::Ready => {
                        self.wire.terminate().await;
                        return Ok(());
                    }
                    Kind::Failed => {
                        let message = &self.wire.inbox.unread()[..layout.total];
                        if let Some(error) = messages::end_of_stream(message, layout.kind) {
                            return Err(error);
                        }
                    }
                    _ => {}
                }
                self.wire.inbox.advance(layout.total);
            }
            self.read().await?;
        }
    }
}
