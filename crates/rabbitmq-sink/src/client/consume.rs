//! A consumer of one queue, for demonstrations: it acknowledges nothing, so the server forgets a
//! message as soon as it has sent it.

use std::fmt;
use std::time::Duration;

use tokio::runtime::{self, Runtime};
use tokio::time::timeout;
use walrelay_sink_client::Servers;

use super::declare::{Declare, declare};
use super::error::{ProtocolError, RabbitmqError};
use super::wire::{Frame, Method, put_method, put_short, put_sized};
use super::{Connection, Login, closed, connect, io_error, protocol};

/// The time that connecting may take, and each answer of the server.
const LIMIT: Duration = Duration::from_secs(10);
const NO_ACK: u8 = 1 << 1;

/// A message that was read from a queue.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct QueuedMessage {
    /// Its routing key.
    pub routing_key: String,
    /// The property `message-id`.
    pub message_id: Option<String>,
    /// The key of the event.
    pub key: Option<Vec<u8>>,
    /// The body.
    pub body: Vec<u8>,
}

/// Omits the values.
impl fmt::Debug for QueuedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedMessage").finish_non_exhaustive()
    }
}

/// The place that [`QueueReader`] reads.
#[derive(Debug, Clone, Copy)]
pub struct QueueAddress<'a> {
    /// The host of the server, without TLS.
    pub host: &'a str,
    /// The port.
    pub port: u16,
    /// The user.
    pub username: &'a str,
    /// The password.
    pub password: &'a str,
    /// The topic exchange to which the queue is bound.
    pub exchange: &'a str,
    /// The quorum queue.
    pub queue: &'a str,
}

/// Reads the messages of a queue, and removes them. For demonstrations: a message is lost if its
/// reader is.
pub struct QueueReader {
    runtime: Runtime,
    connection: Connection,
    channel: u16,
    next: Partial,
}

impl fmt::Debug for QueueReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueReader").finish_non_exhaustive()
    }
}

/// A message of which all frames so far were read.
#[derive(Default)]
struct Partial {
    message: QueuedMessage,
    /// Bytes of the body that are still to come; `None` before the content header.
    missing: Option<u64>,
}

impl QueueReader {
    /// Connects, declares exchange and queue if they do not exist, as the sink does by `declare`, and
    /// starts to read.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses it.
    pub fn open(address: QueueAddress<'_>) -> Result<Self, RabbitmqError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let name = format!("{}:{}", address.host, address.port);
        let runtime = runtime.map_err(|source| io_error(&name, source))?;
        let login = Login {
            servers: Servers {
                hosts: vec![(address.host.to_owned(), address.port)],
                tls: None,
                timeout: LIMIT,
            },
            vhost: "/".to_owned(),
            username: address.username.to_owned(),
            password: address.password.into(),
            external: false,
            heartbeat: Duration::ZERO,
        };
        let (connection, channel) = runtime.block_on(async {
            let mut connection = connect(&login, 0).await?;
            let wanted = Declare {
                exchange: address.exchange.to_owned(),
                queue: address.queue.to_owned(),
                routing_key: None,
            };
            declare(&mut connection, &wanted, LIMIT).await?;
            connection.consume(address.queue).await
        })?;
        Ok(Self {
            runtime,
            connection,
            channel,
            next: Partial::default(),
        })
    }

    /// Waits for the next message, at most `limit`.
    ///
    /// # Errors
    /// If the connection or the channel has ended.
    pub fn next(&mut self, limit: Duration) -> Result<Option<QueuedMessage>, RabbitmqError> {
        let Self {
            runtime,
            connection,
            channel,
            next,
        } = self;
        // A read that is cancelled by the limit loses nothing.
        let read =
            runtime.block_on(async { timeout(limit, connection.read(*channel, next)).await });
        read.ok().transpose()
    }
}

impl Connection {
    /// Begins to consume a queue; returns the connection and the channel.
    async fn consume(mut self, queue: &str) -> Result<(Self, u16), RabbitmqError> {
        let asked = self.ask_and_keep(
            LIMIT,
            |method| matches!(method, Method::ConsumeOk),
            |out, channel| {
                put_method(out, channel, (60, 20), |out| {
                    out.extend_from_slice(&[0, 0]);
                    put_short(out, queue.as_bytes());
                    // The server chooses the consumer's tag.
                    put_short(out, b"");
                    out.push(NO_ACK);
                    put_sized(out, |_| ());
                });
            },
        );
        let asked = asked.await?;
        asked.map_err(|refused| self.not_declared("the consumer of", queue, refused))?;
        let channel = self.last_channel;
        Ok((self, channel))
    }

    /// Reads frames until a message has arrived as a whole.
    async fn read(
        &mut self,
        channel: u16,
        next: &mut Partial,
    ) -> Result<QueuedMessage, RabbitmqError> {
        loop {
            while let Some(frame) = self
                .input
                .next()
                .map_err(|error| protocol(&self.address, &error))?
            {
                if let Some(message) = next.take(frame, channel, &self.address)? {
                    return Ok(message);
                }
            }
            let filled = self.input.fill(&mut self.stream).await;
            filled.map_err(|source| io_error(&self.address, source))?;
        }
    }
}

impl Partial {
    /// Adds a frame; returns the message if it is the last one.
    fn take(
        &mut self,
        frame: Frame<'_>,
        wanted: u16,
        address: &str,
    ) -> Result<Option<QueuedMessage>, RabbitmqError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match frame {
            Frame::Method {
                channel: 0,
                method: Method::Close(reason),
            } => return Err(closed(address, &reason)),
            Frame::Method { channel, method } if channel == wanted => match method {
                Method::Deliver { routing_key, .. } => {
                    *self = Self::default();
                    self.message.routing_key = text(routing_key);
                }
                // The queue was deleted, or the channel closed.
                Method::Cancel | Method::ChannelClose(_) => {
                    let error = ProtocolError::Malformed("the end of the consumer");
                    return Err(protocol(address, &error));
                }
                _ => {}
            },
            Frame::Header {
                channel,
                body,
                key,
                message_id,
                ..
            } if channel == wanted => {
                self.message.key = key.map(<[u8]>::to_vec);
                self.message.message_id = message_id.map(text);
                self.missing = Some(body);
            }
            Frame::Body { channel, bytes } if channel == wanted => {
                self.message.body.extend_from_slice(bytes);
                let length = bytes.len() as u64;
                self.missing = self.missing.map(|missing| missing.saturating_sub(length));
            }
            _ => {}
        }
        let is_whole = self.missing == Some(0);
        Ok(is_whole.then(|| std::mem::take(self).message))
    }
}
