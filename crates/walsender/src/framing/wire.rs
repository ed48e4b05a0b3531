//! A socket with its buffers for reading and writing.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use postgres_protocol::message::backend::{COPY_DATA_TAG, Message};
use postgres_protocol::message::frontend;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::buffer::{ReadBuffer, SESSION_CHUNK};
use super::messages;
use crate::error::{Error, ServerError};

/// Bytes that the server may send during one login: it has a dozen messages of some hundred bytes.
const LOGIN_BYTES: usize = 256 * 1024;
/// Memory of the answer to one command, in bytes: some 100,000 rows of a catalog.
const ANSWER_BYTES: usize = 32 << 20;

/// The bytes that a server may still send before an answer counts as one without end.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// Bytes left for the whole answer.
    left: usize,
    /// Bytes of one message that is no CopyData.
    longest: usize,
}

impl Allowance {
    /// Creates the allowance for a login.
    pub(crate) fn login() -> Self {
        Self::from_bytes(LOGIN_BYTES)
    }

    /// Creates the allowance for the answer to a command.
    pub(crate) fn answer() -> Self {
        Self::from_bytes(ANSWER_BYTES)
    }

    /// Creates the allowance for an answer that is held in memory and may be of this size, in
    /// bytes.
    pub(crate) fn from_bytes(bytes: usize) -> Self {
        Self {
            left: bytes,
            longest: bytes,
        }
    }

    /// Creates the allowance for answers that are discarded message by message, such as the rest of
    /// a COPY.
    pub(crate) fn discarded() -> Self {
        Self {
            left: usize::MAX,
            longest: ANSWER_BYTES,
        }
    }

    /// Takes bytes of the allowance: those of a message, or of memory that is kept for it.
    ///
    /// # Errors
    /// [`Error::Protocol`] if that many are not left.
    pub(crate) fn spend(&mut self, bytes: usize) -> Result<(), Error> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| self.exceeded())?;
        Ok(())
    }

    /// Checks a message before it has arrived.
    fn check(&self, tag: u8, total: usize) -> Result<(), Error> {
        if total > self.left || (tag != COPY_DATA_TAG && total > self.longest) {
            return Err(self.exceeded());
        }
        Ok(())
    }

    #[cold]
    fn exceeded(&self) -> Error {
        let most = self.longest;
        Error::protocol(format!(
            "the server sends more than {most} bytes where an answer has less; it may not be the server that it \
             claims to be"
        ))
    }
}

/// The kind of socket of a connection, encrypted or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// TCP, to this machine or another one.
    Tcp,
    /// A Unix-domain socket, always on the same machine.
    Unix,
}

/// The socket, or the TLS stream over it.
#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls the same method of the inner stream.
macro_rules! delegate {
    ($self:ident.$method:ident($($argument:ident),*)) => {
        match $self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).$method($($argument),*),
            Transport::Unix(stream) => Pin::new(stream).$method($($argument),*),
            Transport::Tls(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Transport {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        delegate!(self.poll_read(cx, buf))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        delegate!(self.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self.poll_shutdown(cx))
    }
}

/// A message of a server outside a replication stream.
pub(crate) enum Incoming {
    Message(Message),
    /// CopyBothResponse, which postgres-protocol cannot parse.
    CopyBoth,
}

/// A connection. Every future of it is cancel-safe: it can be dropped at any await and called
/// again.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) transport: Transport,
    pub(crate) host: Arc<str>,
    pub(crate) read_buffer: ReadBuffer,
    /// The bytes to write, to append to.
    pub(crate) write_buffer: BytesMut,
    /// True if the transport may hold bytes that it has not written to the socket yet.
    unflushed: bool,
    /// The last warning of a publication whose rows the server has left out.
    pub(crate) skipped_publication: Option<ServerError>,
}

impl Wire {
    pub(crate) fn new(transport: Transport, host: Arc<str>) -> Self {
        Self {
            transport,
            host,
            read_buffer: ReadBuffer::new(SESSION_CHUNK),
            write_buffer: BytesMut::new(),
            unflushed: false,
            skipped_publication: None,
        }
    }

    pub(crate) fn socket(&self) -> Socket {
        match self.transport {
            Transport::Tcp(_) | Transport::Tls(_) => Socket::Tcp,
            Transport::Unix(_) => Socket::Unix,
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self.transport, Transport::Tls(_))
    }

    /// Returns true if nothing has arrived that is not read, nor the end of the connection. Does
    /// not wait.
    pub(crate) fn is_quiet(&self) -> bool {
        let socket = match &self.transport {
            Transport::Tcp(stream) => SockRef::from(stream),
            Transport::Unix(stream) => SockRef::from(stream),
            Transport::Tls(stream) => SockRef::from(stream.get_ref().0),
        };
        let peeked = socket.peek(&mut [MaybeUninit::uninit()]);
        let nothing = peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        nothing && self.read_buffer.unread().is_empty()
    }

    pub(crate) fn io_error(&self, doing: &'static str, error: io::Error) -> Error {
        Error::Io {
            host: Arc::clone(&self.host),
            doing,
            source: Arc::new(error),
        }
    }

    /// Queues a message. `what` names it in the error if it contains a NUL character.
    pub(crate) fn queue(
        &mut self,
        what: &'static str,
        encode: impl FnOnce(&mut BytesMut) -> io::Result<()>,
    ) -> Result<(), Error> {
        let before = self.write_buffer.len();
        encode(&mut self.write_buffer).map_err(|_| {
            self.write_buffer.truncate(before);
            Error::Nul { what }
        })
    }

    /// Writes all queued messages.
    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        while !self.write_buffer.is_empty() {
            self.unflushed = true;
            match self.transport.write(&self.write_buffer).await {
                Ok(0) => return Err(self.io_error("writing", io::ErrorKind::WriteZero.into())),
                Ok(written) => self.write_buffer.advance(written),
                Err(error) => return Err(self.io_error("writing", error)),
            }
        }
        if self.unflushed {
            if let Err(error) = self.transport.flush().await {
                return Err(self.io_error("writing", error));
            }
            self.unflushed = false;
        }
        Ok(())
    }

    /// Reads once from the transport into the buffer. The end of the connection is
    /// [`Error::Closed`].
    pub(crate) async fn fill(&mut self) -> Result<usize, Error> {
        let read = self.transport.read_buf(self.read_buffer.room()).await;
        self.was_read(read)
    }

    /// Reads what is available without waiting, if the buffer has room without growing. For TLS,
    /// where a read returns one TLS record of at most 16 KiB.
    pub(crate) fn fill_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        if !self.read_buffer.has_room() {
            return Poll::Pending;
        }
        // Nothing is lost when this future is dropped: `read_buf` is cancel-safe.
        let read = pin!(self.transport.read_buf(self.read_buffer.room())).poll(cx);
        read.map(|read| self.was_read(read))
    }

    fn was_read(&self, read: io::Result<usize>) -> Result<usize, Error> {
        let closed = Error::Closed {
            what: "the server closed the connection",
        };
        match read {
            Ok(0) => Err(closed),
            Ok(read) => Ok(read),
            // rustls' error for a connection that ends without a close_notify, as Postgres does.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(closed),
            Err(error) => Err(self.io_error("reading", error)),
        }
    }

    /// Receives the next whole message, within what the answer may have. Notices are logged and
    /// skipped.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a message that exceeds the allowance, as soon as its length is known.
    pub(crate) async fn receive(&mut self, allowance: &mut Allowance) -> Result<Incoming, Error> {
        loop {
            let header = messages::header(self.read_buffer.unread())?;
            if let Some((tag, total)) = header {
                allowance.check(tag, total)?;
                if self.read_buffer.unread().len() >= total {
                    allowance.spend(total)?;
                    if let Some(message) = self.take(tag, total)? {
                        return Ok(message);
                    }
                    continue;
                }
            }
            self.fill().await?;
        }
    }

    /// Takes a whole message from the buffer. `None`: a notice or a notification, which is skipped.
    fn take(&mut self, tag: u8, total: usize) -> Result<Option<Incoming>, Error> {
        if tag == b'W' {
            self.read_buffer.advance(total);
            return Ok(Some(Incoming::CopyBoth));
        }
        let mut bytes = BytesMut::from(&self.read_buffer.unread()[..total]);
        self.read_buffer.advance(total);
        match Message::parse(&mut bytes) {
            Ok(Some(Message::NoticeResponse(notice))) => {
                let notice = ServerError::parse(notice.fields());
                notice.log(&self.host);
                if notice.skips_publication() {
                    self.skipped_publication = Some(notice);
                }
                Ok(None)
            }
            Ok(Some(Message::NotificationResponse(_))) => Ok(None),
            Ok(Some(message)) => Ok(Some(Incoming::Message(message))),
            Ok(None) => Err(Error::protocol("a message shorter than its length")),
            Err(error) => Err(Error::malformed("malformed message", &error)),
        }
    }

    /// Sends Terminate and shuts down the transport, without waiting for the server.
    pub(crate) async fn terminate(mut self) {
        frontend::terminate(&mut self.write_buffer);
        if self.flush().await.is_ok() {
            // The connection is over in any case.
            let _ = self.transport.shutdown().await;
        }
    }
}
