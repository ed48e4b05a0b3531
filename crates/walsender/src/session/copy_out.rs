//! Reads the rows of `COPY … TO STDOUT` one by one.

use postgres_protocol::message::backend::{COPY_DATA_TAG, Message};
use postgres_protocol::message::frontend;

use super::query::Session;
use crate::error::{Error, ServerError};
use crate::framing::buffer::STREAM_CHUNK;
use crate::framing::messages::{self, HEADER, MessageKind};
use crate::framing::wire::{Allowance, Incoming};

/// The next item of a [`CopyOut`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyItem<'a> {
    /// The data of one CopyData message. Postgres sends one row in each, with the line end of the
    /// text format.
    Row(&'a [u8]),
    /// All rows were sent, and the command has ended.
    End,
}

/// The rows of a `COPY … TO STDOUT`. The server sends them as fast as they are read, so memory does
/// not grow with rows that are not read.
///
/// # Cancel safety
/// [`read`](Self::read) may be dropped at any await and called again.
#[derive(Debug)]
pub struct CopyOut {
    session: Session,
    /// Length in bytes of the message that was peeked last; 0 after it was consumed.
    peeked: usize,
    ended: bool,
    failure: Option<Error>,
}

impl Session {
    /// Runs `COPY … TO STDOUT`. [`CopyOut::into_session`] returns the session.
    ///
    /// # Errors
    /// [`Error::Server`] if the server refuses the command, [`Error::Protocol`] if the statement is
    /// no `COPY … TO STDOUT`. The session is closed then.
    pub async fn copy_out(mut self, sql: &str) -> Result<CopyOut, Error> {
        match self.begin_copy(sql).await {
            Ok(()) => {
                self.wire.read_buffer.set_chunk(STREAM_CHUNK);
                Ok(CopyOut {
                    session: self,
                    peeked: 0,
                    ended: false,
                    failure: None,
                })
            }
            Err(error) => {
                self.close().await;
                Err(error)
            }
        }
    }

    async fn begin_copy(&mut self, sql: &str) -> Result<(), Error> {
        self.settle().await?;
        self.wire
            .queue("the statement", |out| frontend::query(sql, out))?;
        self.pending_answers += 1;
        self.wire.flush().await?;
        match self.wire.receive(&mut Allowance::answer()).await? {
            Incoming::Message(Message::CopyOutResponse(_)) => Ok(()),
            Incoming::Message(Message::ErrorResponse(body)) => {
                Err(ServerError::parse(body.fields()).into())
            }
            _ => Err(Error::protocol("the statement copies nothing out")),
        }
    }
}

impl CopyOut {
    /// Borrows the next row from the buffer, where it stays until [`consume`](Self::consume).
    /// `Ok(None)`: call [`read`](Self::read) first.
    ///
    /// # Errors
    /// [`Error::Server`], [`Error::Protocol`], or the error of an earlier `read`.
    pub fn peek(&mut self) -> Result<Option<CopyItem<'_>>, Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let total = loop {
            if self.ended {
                return Ok(Some(CopyItem::End));
            }
            let unread = self.session.wire.read_buffer.unread();
            let whole = match messages::copy_header(unread) {
                Ok(header) => header.filter(|(_, total)| unread.len() >= *total),
                Err(error) => return Err(self.fail(error)),
            };
            let Some((tag, total)) = whole else {
                return Ok(None);
            };
            if tag == COPY_DATA_TAG {
                break total;
            }
            if let Err(error) = self.other_message(tag, total) {
                return Err(self.fail(error));
            }
        };
        self.peeked = total;
        let message = &self.session.wire.read_buffer.unread()[..total];
        Ok(Some(CopyItem::Row(&message[HEADER..])))
    }

    /// Consumes the row that was peeked last. Does nothing without one.
    pub fn consume(&mut self) {
        self.session.wire.read_buffer.advance(self.peeked);
        self.peeked = 0;
    }

    /// Reads once from the socket. Returns the number of bytes, at least 1.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Closed`].
    pub async fn read(&mut self) -> Result<usize, Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let read = self.session.wire.fill().await;
        read.map_err(|error| self.fail(error))
    }

    /// Returns the session. If the rows were not read up to [`CopyItem::End`], the next command
    /// reads and discards the rest.
    pub fn into_session(self) -> Session {
        self.session
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.failure = Some(error.clone());
        error
    }

    #[cold]
    fn other_message(&mut self, tag: u8, total: usize) -> Result<(), Error> {
        match messages::other_kind(tag) {
            Some(MessageKind::Failed) => {
                let message = &self.session.wire.read_buffer.unread()[..total];
                return Err(messages::server_error(message));
            }
            Some(MessageKind::Ready) => {
                self.session.pending_answers = self.session.pending_answers.saturating_sub(1);
                self.ended = true;
            }
            Some(_) => {}
            None => return Err(messages::unknown(tag, "among the rows of a COPY")),
        }
        self.session.wire.read_buffer.advance(total);
        Ok(())
    }
}
