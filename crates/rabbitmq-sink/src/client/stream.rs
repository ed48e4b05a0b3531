//! A consumer of one stream, which removes nothing. It has a connection of its own, so that what is
//! not read yet waits on the server.
//!
//! # The end of a stream
//! AMQP does not tell it, and no time that passes without a message shows it. The consumer asks for an
//! answer (`basic.qos`) behind each acknowledgement. A channel of RabbitMQ works off one method after
//! the other, and reads on in a stream when it gets an acknowledgement, until the credit is used up or
//! nothing more is committed (`settle` and `stream_entries` of `rabbit_stream_queue.erl`). So if fewer
//! messages than the prefetch come before the answer, all that were committed have come.
//!
//! The first messages of a consumer come when the stream has told the channel that it has some. A second
//! consumer on the channel waits for the same. If a message is known to be there, it begins there: the
//! stream tells the channel, which then sends all of its consumers what they are to get. Otherwise it
//! begins behind the last message. Up to RabbitMQ 3.11.7 its end (`basic.cancel-ok`) then comes behind
//! what the writer of the stream has told about the first one; later servers do not ask the writer, so
//! a stream counts as empty only if it stays so for a while, and no message is counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink_client::within;

use super::declare::{PASSIVE, put_queue_declare};
use super::error::{ProtocolError, RabbitmqError};
use super::read_back::{Delivered, delivered};
use super::wire::{Frame, Method, Reason, put_member, put_method, put_short, put_sized};
use super::{
    Connection, Login, closed, connect, io_error, protocol, put_channel_open_only, put_close,
    put_qos, reply_name,
};

/// The most messages that are sent before they are acknowledged, and the rest of what the server writes
/// as one chunk.
const PREFETCH: u16 = 256;
/// The most from the last chunk on: more than are written until an answer comes, or the end is not found.
const PREFETCH_AT_END: u16 = 10_000;
/// A stream that seems empty is watched for so long: its messages are counted every 5 s
/// (`stream_tick_interval`), at first this long after a change of its leader.
const WATCHED: Duration = Duration::from_secs(11);
const CHANNEL: u16 = 1;
/// The tags of the consumer, and of the one that waits for the writer of the stream.
const READER: &[u8] = b"r";
const WAITER: &[u8] = b"w";

/// The place at which reading starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartOffset {
    First,
    /// Behind the last message.
    Next,
    /// The first message of the last chunk.
    LastChunk,
    /// The first chunk that was written at this time or later, in seconds since 1970.
    Since(u64),
    /// This offset, or the first existing one.
    Offset(i64),
}

/// The reason why a stream is not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error(transparent)]
    Connection(#[from] RabbitmqError),
    #[error("{0}: no queue has this name")]
    Missing(String),
    #[error(
        "{0}: the queue is no stream, and reading it would remove its messages from its consumers"
    )]
    NoStream(String),
    #[error(
        "{0}: it is not known that the server refuses to read queues that are no streams as streams, as RabbitMQ \
         does since 3.10"
    )]
    Version(String),
    #[error("{0}: the node has no replica of the stream that runs")]
    NoReplica(String),
    #[error("{address}: the server closed the channel: {code} {}", reply_name(*code))]
    Refused { address: String, code: u16 },
    #[error("{0}: the server ended the reading, as it does when a stream is deleted")]
    Ended(String),
    #[error("{0}: the server has messages of the stream, and sends none")]
    Silent(String),
}

/// A message of which not all frames were read yet.
#[derive(Default)]
struct Partial {
    is_of_reader: bool,
    tag: u64,
    properties: Vec<u8>,
    body: Vec<u8>,
    missing: Option<u64>,
}

/// A consumer of a stream.
pub(crate) struct StreamConsumer {
    connection: Connection,
    stream: String,
    /// The longest wait for a sign of the server.
    patience: Duration,
    partial: Partial,
    /// Delivered, and not [read](Self::read) yet.
    pending: VecDeque<Delivered>,
    pending_bytes: usize,
    /// The answers that are to come.
    awaited: u32,
    /// The second consumer exists, and has got a message.
    has_waiter: bool,
    has_waited: bool,
    /// The number of messages in the last answer to `queue.declare`.
    messages: u32,
    /// The messages that are not acknowledged, and the tag of the last one.
    unacknowledged: u32,
    last_tag: u64,
    /// The messages since the last acknowledgement was sent.
    in_round: u32,
    is_at_end: bool,
    prefetch: u16,
}

impl StreamConsumer {
    /// Starts to read, and waits until a message has arrived or none seems to be. If the node of the first
    /// host has no replica, the others are asked. `known`: the offset of a message that is there; with it,
    /// none is there if none has come.
    pub(crate) async fn open(
        login: &Arc<Login>,
        stream: &str,
        place: StartOffset,
        known: Option<i64>,
        patience: Duration,
    ) -> Result<Self, StreamError> {
        let mut host = 0;
        loop {
            let opened = Self::open_at(login, host, stream, (place, known), patience).await;
            host += 1;
            match opened {
                Err(StreamError::NoReplica(_)) if host < login.servers.hosts.len() => {}
                opened => return opened,
            }
        }
    }

    async fn open_at(
        login: &Arc<Login>,
        host: usize,
        stream: &str,
        (place, known): (StartOffset, Option<i64>),
        patience: Duration,
    ) -> Result<Self, StreamError> {
        let connection = connect(login, host).await?;
        if !connection.refuses_offsets {
            return Err(StreamError::Version(connection.address));
        }
        let mut consumer = Self {
            connection,
            stream: stream.to_owned(),
            patience,
            partial: Partial::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            awaited: 0,
            has_waiter: false,
            has_waited: false,
            messages: 0,
            unacknowledged: 0,
            last_tag: 0,
            in_round: 0,
            is_at_end: false,
            prefetch: match place {
                StartOffset::LastChunk => PREFETCH_AT_END,
                _ => PREFETCH,
            },
        };
        let mut out = Vec::new();
        put_channel_open_only(&mut out, CHANNEL);
        put_qos(&mut out, CHANNEL, consumer.prefetch);
        put_consume(&mut out, stream, READER, place);
        consumer.ask(&out, 3).await?;
        while consumer.awaited > 0 {
            consumer.event().await?;
        }
        consumer.settle(known).await?;
        Ok(consumer)
    }

    /// Waits until the first messages have arrived, or none seems to be.
    async fn settle(&mut self, known: Option<i64>) -> Result<(), StreamError> {
        let mut out = Vec::new();
        let place = known.map_or(StartOffset::Next, StartOffset::Offset);
        put_consume(&mut out, &self.stream, WAITER, place);
        self.has_waiter = true;
        self.ask(&out, 1).await?;
        if known.is_some() {
            while self.pending.is_empty() && !self.has_waited {
                self.event().await?;
            }
            out.clear();
            put_qos(&mut out, CHANNEL, self.prefetch);
            self.ask(&out, 1).await?;
            return self.event_or_answers().await;
        }
        self.event_or_answers().await?;
        if self.pending.is_empty() {
            out.clear();
            self.has_waiter = false;
            put_cancel(&mut out);
            self.ask(&out, 1).await?;
            self.event_or_answers().await?;
        }
        if self.pending.is_empty() {
            self.count().await?;
        }
        Ok(())
    }

    /// Asks for the number of messages, and waits for it or for a message.
    async fn count(&mut self) -> Result<(), StreamError> {
        let mut out = Vec::new();
        put_queue_declare(&mut out, CHANNEL, &self.stream, PASSIVE, |_| ());
        self.ask(&out, 1).await?;
        self.event_or_answers().await
    }

    /// Watches a stream that seems empty, until there is a message or it is known that there is none.
    ///
    /// # Errors
    /// If the server counts messages in the stream and sends none.
    pub(crate) async fn watch(&mut self) -> Result<(), StreamError> {
        let message = async {
            while self.pending.is_empty() {
                self.next_event().await?;
            }
            Ok(())
        };
        if let Ok(message) = tokio::time::timeout(WATCHED, message).await {
            return message;
        }
        self.count().await?;
        if self.pending.is_empty() && self.messages > 0 {
            return Err(StreamError::Silent(self.connection.address.clone()));
        }
        Ok(())
    }

    /// Waits until all answers or a message have arrived.
    async fn event_or_answers(&mut self) -> Result<(), StreamError> {
        while self.pending.is_empty() && self.awaited > 0 {
            self.event().await?;
        }
        Ok(())
    }

    /// Waits for a message.
    pub(crate) async fn wait(&mut self) -> Result<(), StreamError> {
        while self.pending.is_empty() {
            self.event().await?;
        }
        Ok(())
    }

    /// Returns the first message that was not read yet.
    pub(crate) fn first(&self) -> Option<&Delivered> {
        self.pending.front()
    }

    /// Reads messages of about so many bytes, or fewer if the end is reached. Returns those that
    /// [`wait`](Self::wait) or [`open`](Self::open) found, too.
    pub(crate) async fn read(&mut self, bytes: usize) -> Result<VecDeque<Delivered>, StreamError> {
        self.is_at_end = false;
        if self.awaited == 0 {
            let mut out = Vec::new();
            if self.unacknowledged > 0 {
                let tag = self.last_tag;
                put_method(&mut out, CHANNEL, (60, 80), |out| {
                    out.extend_from_slice(&tag.to_be_bytes());
                    // multiple
                    out.push(1);
                });
            }
            let mut answers = 1;
            // The channel of RabbitMQ 3.10 crashes if it gets this before it has sent `basic.consume-ok`.
            if std::mem::take(&mut self.has_waiter) {
                put_cancel(&mut out);
                answers += 1;
            }
            put_qos(&mut out, CHANNEL, self.prefetch);
            (self.unacknowledged, self.in_round) = (0, 0);
            self.ask(&out, answers).await?;
        }
        while self.awaited > 0 && self.pending_bytes < bytes {
            self.event().await?;
        }
        self.is_at_end = self.awaited == 0 && self.in_round < self.prefetch.into();
        self.pending_bytes = 0;
        Ok(std::mem::take(&mut self.pending))
    }

    /// Returns true if the last call of [`read`](Self::read) has reached the end of what was committed.
    pub(crate) fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Ends the connection.
    pub(crate) async fn close(mut self) {
        let mut out = Vec::new();
        put_close(&mut out);
        // It is not used any more.
        let _ = within(self.patience, "", self.connection.send(&out)).await;
    }

    async fn ask(&mut self, methods: &[u8], answers: u32) -> Result<(), StreamError> {
        self.awaited += answers;
        let address = self.connection.address.clone();
        let sent = within(self.patience, &address, self.connection.send(methods)).await;
        sent.map_err(RabbitmqError::from)??;
        Ok(())
    }

    /// Reads until one more answer or message has arrived.
    async fn event(&mut self) -> Result<(), StreamError> {
        let address = self.connection.address.clone();
        let event = within(self.patience, &address, self.next_event()).await;
        event.map_err(RabbitmqError::from)?
    }

    async fn next_event(&mut self) -> Result<(), StreamError> {
        loop {
            let Connection {
                input,
                stream,
                address,
                ..
            } = &mut self.connection;
            let malformed = |error: &ProtocolError| protocol(address, error);
            let Some(frame) = input.next().map_err(|error| malformed(&error))? else {
                let filled = input.fill(stream).await;
                filled.map_err(|source| io_error(address, source))?;
                continue;
            };
            match frame {
                Frame::Method {
                    channel: 0,
                    method: Method::Close(reason),
                } => return Err(closed(address, &reason).into()),
                Frame::Method {
                    channel: CHANNEL,
                    method,
                } => match method {
                    Method::Deliver { consumer, tag, .. } => {
                        self.partial = Partial {
                            is_of_reader: consumer == READER,
                            tag,
                            ..Partial::default()
                        };
                    }
                    Method::ChannelClose(reason) => return Err(refused(address, &reason)),
                    Method::Cancel => return Err(StreamError::Ended(address.clone())),
                    Method::QueueDeclareOk { messages } => {
                        (self.messages, self.awaited) = (messages, self.awaited.saturating_sub(1));
                        return Ok(());
                    }
                    Method::ChannelOpenOk
                    | Method::QosOk
                    | Method::ConsumeOk
                    | Method::CancelOk => {
                        self.awaited = self.awaited.saturating_sub(1);
                        return Ok(());
                    }
                    _ => {
                        let error = ProtocolError::Malformed("an answer that was not asked for");
                        return Err(malformed(&error).into());
                    }
                },
                Frame::Header {
                    channel: CHANNEL,
                    body,
                    properties,
                    ..
                } => {
                    self.partial.properties = properties.to_vec();
                    self.partial.missing = Some(body);
                }
                Frame::Body {
                    channel: CHANNEL,
                    bytes,
                } => {
                    self.partial.body.extend_from_slice(bytes);
                    let missing = self.partial.missing;
                    let left = missing.and_then(|left| left.checked_sub(bytes.len() as u64));
                    let error = ProtocolError::Malformed("a body without its header");
                    self.partial.missing = Some(left.ok_or_else(|| malformed(&error))?);
                }
                _ => {}
            }
            if self.partial.missing == Some(0) {
                let whole = std::mem::take(&mut self.partial);
                if whole.is_of_reader {
                    let message = delivered(&self.stream, &whole.properties, whole.body);
                    let message = message.map_err(|error| malformed(&error))?;
                    // Without an acknowledgement the server puts the message back where it was.
                    let none = || StreamError::NoStream(address.clone());
                    let message = message.ok_or_else(none)?;
                    self.pending_bytes += message.size;
                    self.pending.push_back(message);
                    self.unacknowledged += 1;
                    self.in_round += 1;
                    self.last_tag = whole.tag;
                } else {
                    self.has_waited = true;
                }
                return Ok(());
            }
        }
    }
}

/// Returns why the server closed the channel. Its text may have the name of the queue, and is not shown.
fn refused(address: &str, reason: &Reason<'_>) -> StreamError {
    let text = String::from_utf8_lossy(reason.text);
    let address = address.to_owned();
    match reason.code {
        404 if text.contains("no queue '") => StreamError::Missing(address),
        // A queue of one connection, which no stream is.
        405 => StreamError::NoStream(address),
        406 if text.contains("of queue type ") => StreamError::NoStream(address),
        406 | 506 if text.contains("replica") => StreamError::NoReplica(address),
        code => StreamError::Refused { address, code },
    }
}

/// Appends `basic.cancel` of the second consumer.
fn put_cancel(out: &mut Vec<u8>) {
    put_method(out, CHANNEL, (60, 30), |out| {
        put_short(out, WAITER);
        out.push(0);
    });
}

/// Appends `basic.consume`, by which each message is to be acknowledged.
///
/// RabbitMQ refuses the argument `x-stream-offset` if the queue is no stream: it closes the channel
/// before it accepts a message.
fn put_consume(out: &mut Vec<u8>, stream: &str, tag: &[u8], place: StartOffset) {
    put_method(out, CHANNEL, (60, 20), |out| {
        out.extend_from_slice(&[0, 0]);
        put_short(out, stream.as_bytes());
        put_short(out, tag);
        out.push(0);
        put_sized(out, |out| {
            let name = "x-stream-offset";
            let mut number = |kind: u8, number: [u8; 8]| {
                put_short(out, name.as_bytes());
                out.push(kind);
                out.extend_from_slice(&number);
            };
            match place {
                StartOffset::First => put_member(out, name, Some(b"first")),
                StartOffset::Next => put_member(out, name, Some(b"next")),
                StartOffset::LastChunk => put_member(out, name, Some(b"last")),
                StartOffset::Since(seconds) => number(b'T', seconds.to_be_bytes()),
                StartOffset::Offset(offset) => number(b'l', offset.to_be_bytes()),
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use tokio::runtime;

    use super::*;
    use crate::scripted::Scripted;

    #[test]
    fn the_reason_of_a_refusal_is_known_by_its_text() {
        let address = "a".to_owned();
        for (code, text, expected) in [
            (
                404,
                "NOT_FOUND - no queue 'q' in vhost '/'",
                StreamError::Missing(address.clone()),
            ),
            (
                406,
                "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type \
                 rabbit_classic_queue",
                StreamError::NoStream(address.clone()),
            ),
            (
                405,
                "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q'",
                StreamError::NoStream(address.clone()),
            ),
            (
                406,
                "PRECONDITION_FAILED - queue 'q' does not have a replica on the local node",
                StreamError::NoReplica(address.clone()),
            ),
            (
                404,
                "NOT_FOUND - home node 'n' of durable queue 'q' is down or inaccessible",
                StreamError::Refused {
                    address: address.clone(),
                    code: 404,
                },
            ),
        ] {
            let reason = Reason {
                code,
                text: text.as_bytes(),
                cause: (60, 20),
            };
            let found = refused("a", &reason).to_string();
            assert_eq!(found, expected.to_string(), "{text}");
        }
    }

    #[test]
    fn a_server_that_may_take_the_messages_of_other_queues_is_not_asked() {
        // It says neither product nor version.
        let server = Scripted::start(|_, _| ());
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let login = Arc::new(server.login());
        let limit = Duration::from_secs(60);
        let opened = StreamConsumer::open(&login, "q", StartOffset::First, None, limit);
        let opened = runtime.unwrap().block_on(opened);
        let Err(error @ StreamError::Version(_)) = opened.map(|_| ()) else {
            panic!("it is asked");
        };
        assert!(error.to_string().contains("since 3.10"), "{error}");
    }
}
