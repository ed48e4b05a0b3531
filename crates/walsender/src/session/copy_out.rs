//! The rows of `COPY … TO STDOUT`, one by one.

use postgres_protocol::message::backend::{
    COMMAND_COMPLETE_TAG, COPY_DATA_TAG, COPY_DONE_TAG, ERROR_RESPONSE_TAG, Message,
    NOTICE_RESPONSE_TAG, NOTIFICATION_RESPONSE_TAG, PARAMETER_STATUS_TAG, READY_FOR_QUERY_TAG,
};
use postgres_protocol::message::frontend;

use super::query::Session;
use crate::error::{Error, ServerError};
use crate::framing::buffer::STREAM_CHUNK;
use crate::framing::messages::{self, HEADER, MAX_MESSAGE};
use crate::framing::wire::Incoming;

/// What comes next of a [`CopyOut`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyItem<'a> {
    /// The data of one CopyData message. Postgres sends one row in each, with the line end of the text format.
    Row(&'a [u8]),
    /// All rows were sent, and the command has ended.
    End,
}

/// The rows of a `COPY … TO STDOUT`, which the server sends as fast as they are read: what is not read stays in
/// the server and in the socket.
///
/// # Cancel safety
/// [`read`](Self::read) may be dropped at any await and called again.
#[derive(Debug)]
pub struct CopyOut {
    session: Session,
    /// The length of the row last peeked, with its header; 0 after it was consumed.
    peeked: usize,
    ended: bool,
    failure: Option<Error>,
}

impl Session {
    /// Runs `COPY … TO STDOUT`. The session becomes the rows, and is given back after the last one.
    ///
    /// # Errors
    /// [`Error::Server`] if the server refuses the command; the session is closed then.
    pub async fn copy_out(mut self, sql: &str) -> Result<CopyOut, Error> {
        match self.begin_copy(sql).await {
            Ok(()) => {
                self.wire.inbox.set_chunk(STREAM_CHUNK);
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
        self.owed += 1;
        self.wire.flush().await?;
        match self.wire.receive(MAX_MESSAGE).await? {
            Incoming::Message(Message::CopyOutResponse(_)) => Ok(()),
            Incoming::Message(Message::ErrorResponse(body)) => {
                Err(ServerError::parse(body.fields()).into())
            }
            _ => Err(Error::protocol("the statement copies nothing out")),
        }
    }
}

impl CopyOut {
    /// The next row, borrowed from the buffer; it stays there until [`consume`](Self::consume). `Ok(None)`:
    /// [`read`](Self::read) first.
    ///
    /// # Errors
    /// [`Error::Server`], [`Error::Protocol`], or what a `read` failed with.
    pub fn peek(&mut self) -> Result<Option<CopyItem<'_>>, Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let total = loop {
            if self.ended {
                return Ok(Some(CopyItem::End));
            }
            let unread = self.session.wire.inbox.unread();
            let whole = match messages::header(unread) {
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
        let message = &self.session.wire.inbox.unread()[..total];
        Ok(Some(CopyItem::Row(&message[HEADER..])))
    }

    /// Drops the row last peeked. Without one it does nothing.
    pub fn consume(&mut self) {
        self.session.wire.inbox.advance(self.peeked);
        self.peeked = 0;
    }

    /// Reads once from the socket and returns how many bytes came, at least 1.
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

    /// The session, for the next command. Before [`CopyItem::End`], the rows that are left are read and thrown
    /// away by that command.
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
        let wire = &mut self.session.wire;
        match tag {
            NOTICE_RESPONSE_TAG
            | PARAMETER_STATUS_TAG
            | NOTIFICATION_RESPONSE_TAG
            | COPY_DONE_TAG
            | COMMAND_COMPLETE_TAG => {}
            READY_FOR_QUERY_TAG => {
                self.session.owed = self.session.owed.saturating_sub(1);
                self.ended = true;
            }
            ERROR_RESPONSE_TAG => {
                return Err(messages::server_error(&wire.inbox.unread()[..total]));
            }
            other => {
                return Err(Error::protocol(format!(
                    "message {:?} among the rows of a COPY",
                    char::from(other)
                )));
            }
        }
        self.session.wire.inbox.advance(total);
        Ok(())
    }
}
