//! A client that publishes: connection, login, a channel in confirm mode. `consume` reads a queue, for
//! demonstrations; `stream` reads a stream, which removes nothing.

pub(crate) mod consume;
pub(crate) mod declare;
pub(crate) mod error;
pub(crate) mod publish;
pub(crate) mod read_back;
pub(crate) mod stream;
pub(crate) mod wire;

use std::fmt;
use std::io;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use walrelay_sink_client::{ConnectError, Connected, Servers, Stream, within};

use error::{ProtocolError, RabbitmqError};
use wire::{Frame, Method, Reason, put_member, put_method, put_short, put_sized};

/// The header of each message with its [`EventPosition`](walrelay_sink::EventPosition). The client
/// finds a returned message by it.
pub(crate) const POSITION_HEADER: &str = "walrelay.position";

/// The header with the record's key.
pub(crate) const KEY_HEADER: &str = "walrelay.key";

/// The number of channels that the client asks for: a closed one is replaced.
const CHANNELS: u16 = 2047;

/// The data of a login.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) servers: Servers,
    pub(crate) vhost: String,
    pub(crate) username: String,
    pub(crate) password: SecretString,
    /// The client's certificate names the user (SASL EXTERNAL).
    pub(crate) external: bool,
    pub(crate) heartbeat: Duration,
}

/// Without user and password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("servers", &self.servers)
            .field("vhost", &self.vhost)
            .finish_non_exhaustive()
    }
}

/// An open connection.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    /// Host and port.
    pub(crate) address: String,
    pub(crate) input: Input,
    /// The largest frame in bytes.
    pub(crate) frame_max: usize,
    /// The number of channels.
    pub(crate) channel_max: u16,
    /// The number of the channel that was opened last; zero: none was.
    pub(crate) last_channel: u16,
    /// Zero: there are no heartbeats.
    pub(crate) heartbeat: Duration,
    /// The server may confirm messages to a stream that it drops.
    pub(crate) may_drop_confirmed: bool,
    /// The server refuses to start at an offset of a queue that is no stream.
    pub(crate) refuses_offsets: bool,
}

/// Returns whether a server of this version confirms messages to a stream that it drops, after a change
/// of the stream's leader; `None` if the version cannot be read. RabbitMQ does before 4.0.
pub(crate) fn drops_confirmed(version: &str) -> Option<bool> {
    let major = version.split('.').next().unwrap_or_default();
    major.parse::<u32>().ok().map(|major| major < 4)
}

/// Returns whether a server of this version refuses a consumer with the argument `x-stream-offset` of a
/// queue that is no stream, before it accepts a message (`check_consume_arguments` of
/// `rabbit_amqqueue.erl`). RabbitMQ does since 3.10.0. Of other products it is not known.
fn refuses_offsets(product: &[u8], version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let version = parts.next().flatten().zip(parts.next().flatten());
    product == b"RabbitMQ" && version >= Some((3, 10))
}

/// Bytes from the server that are not decoded yet.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    consumed: usize,
}

impl Input {
    /// Returns the next frame, if it has arrived as a whole.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, ProtocolError> {
        let Self { bytes, consumed } = self;
        let rest = bytes.get(*consumed..).unwrap_or_default();
        Ok(wire::decode(rest)?.map(|(frame, length)| {
            *consumed += length;
            frame
        }))
    }

    /// Reads once from the server. Can be cancelled without loss.
    pub(crate) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        match from.read_buf(&mut self.bytes).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl Connected for Connection {
    fn address(&self) -> &str {
        &self.address
    }
}

/// Connects to the first host that answers, beginning with that of the number `first`, logs in and
/// opens the virtual host.
pub(crate) async fn connect(login: &Login, first: usize) -> Result<Connection, RabbitmqError> {
    let log_in = async |host: &str, port| {
        let (stream, address) = login.servers.open(host, port).await?;
        let mut connection = Connection {
            stream,
            address,
            input: Input::default(),
            frame_max: wire::MAX_FRAME as usize,
            channel_max: CHANNELS,
            last_channel: 0,
            heartbeat: login.heartbeat,
            may_drop_confirmed: true,
            refuses_offsets: false,
        };
        connection.log_in(login).await?;
        Ok(connection)
    };
    login.servers.connect(first, log_in).await
}

impl Connection {
    async fn log_in(&mut self, login: &Login) -> Result<(), RabbitmqError> {
        let limit = login.servers.timeout;
        let mechanism: &[u8] = if login.external {
            b"EXTERNAL"
        } else {
            b"PLAIN"
        };
        self.send(wire::PROTOCOL_HEADER).await?;
        let offered = self.answer(0, limit, |method| match method {
            Method::Start {
                product,
                version,
                mechanisms,
            } => {
                let version = version.and_then(|text| std::str::from_utf8(text).ok());
                let refuses_offsets =
                    refuses_offsets(product.unwrap_or_default(), version.unwrap_or_default());
                let is_offered = mechanisms
                    .split(|byte| *byte == b' ')
                    .any(|offered| offered == mechanism);
                Ok((
                    version.and_then(drops_confirmed),
                    refuses_offsets,
                    is_offered,
                ))
            }
            other => Err(other),
        });
        let (drops_confirmed, refuses_offsets, is_offered) = offered.await?;
        self.may_drop_confirmed = drops_confirmed.unwrap_or(true);
        self.refuses_offsets = refuses_offsets;
        if !is_offered {
            let text = String::from_utf8_lossy(mechanism);
            let text = format!("the server does not offer the mechanism {text}");
            return Err(RabbitmqError::Denied {
                address: self.address.clone(),
                text,
            });
        }
        let mut out = Vec::new();
        put_method(&mut out, 0, (10, 11), |out| {
            put_sized(out, client_properties);
            put_short(out, mechanism);
            put_sized(out, |out| {
                if !login.external {
                    out.push(0);
                    out.extend_from_slice(login.username.as_bytes());
                    out.push(0);
                    out.extend_from_slice(login.password.expose_secret().as_bytes());
                }
            });
            put_short(out, b"en_US");
        });
        self.send(&out).await?;
        let tuned = self.answer(0, limit, |method| match method {
            Method::Tune {
                channel_max,
                frame_max,
                heartbeat,
            } => Ok((channel_max, frame_max, heartbeat)),
            other => Err(other),
        });
        let (channels, frame, heartbeat) = tuned.await?;
        // Zero is no limit, and for heartbeats none.
        if channels > 0 {
            self.channel_max = self.channel_max.min(channels);
        }
        if frame > 0 {
            self.frame_max = self.frame_max.min(frame.max(4096) as usize);
        }
        let wanted = u16::try_from(login.heartbeat.as_secs()).unwrap_or(u16::MAX);
        let heartbeat = if heartbeat == 0 {
            wanted
        } else {
            heartbeat.min(wanted)
        };
        self.heartbeat = Duration::from_secs(heartbeat.into());
        let mut out = Vec::new();
        let (channel_max, frame_max) = (self.channel_max, self.frame_max as u32);
        put_method(&mut out, 0, (10, 31), |out| {
            out.extend_from_slice(&channel_max.to_be_bytes());
            out.extend_from_slice(&frame_max.to_be_bytes());
            out.extend_from_slice(&heartbeat.to_be_bytes());
        });
        put_method(&mut out, 0, (10, 40), |out| {
            put_short(out, login.vhost.as_bytes());
            out.extend_from_slice(&[0, 0]);
        });
        self.send(&out).await?;
        self.answer(0, limit, |method| match method {
            Method::OpenOk => Ok(()),
            other => Err(other),
        })
        .await
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), RabbitmqError> {
        let io = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        io.await.map_err(|source| io_error(&self.address, source))
    }

    /// Waits for a method of this channel that `take` takes. Others end the connection. Those of
    /// other channels are ignored, but a close of the connection.
    pub(crate) async fn answer<T>(
        &mut self,
        wanted: u16,
        limit: Duration,
        take: impl for<'m> Fn(Method<'m>) -> Result<T, Method<'m>>,
    ) -> Result<T, RabbitmqError> {
        let Self {
            stream,
            address,
            input,
            ..
        } = self;
        let name = address.clone();
        let answer = async {
            loop {
                match input.next().map_err(|error| protocol(address, &error))? {
                    Some(Frame::Method {
                        channel: 0,
                        method: Method::Close(reason),
                    }) => return Err(closed(address, &reason)),
                    Some(Frame::Method { channel, method }) if channel == wanted => {
                        let error = ProtocolError::Malformed("an answer that was not asked for");
                        return take(method).map_err(|_| protocol(address, &error));
                    }
                    Some(_) => continue,
                    None => {}
                }
                let filled = input.fill(stream).await;
                filled.map_err(|source| io_error(address, source))?;
            }
        };
        within(limit, &name, answer).await?
    }
}

pub(crate) fn protocol(address: &str, error: &ProtocolError) -> RabbitmqError {
    RabbitmqError::Protocol {
        address: address.to_owned(),
        reason: error.to_string(),
    }
}

/// Returns the error of a connection that the server has closed.
pub(crate) fn closed(address: &str, reason: &Reason<'_>) -> RabbitmqError {
    let address = address.to_owned();
    match reason.code {
        // ACCESS_REFUSED by the login, NOT_ALLOWED by the opening of the virtual host.
        403 | 530 if matches!(reason.cause, (0, 0) | (10, _)) => RabbitmqError::Denied {
            address,
            text: printable(reason.text),
        },
        // CONNECTION_FORCED by an operator, who may say why.
        320 => RabbitmqError::Closed {
            address,
            code: 320,
            text: printable(reason.text),
        },
        code => RabbitmqError::Closed {
            address,
            code,
            text: reply_name(code).to_owned(),
        },
    }
}

/// Returns a text of the server without control characters. Only for texts that have no part of a
/// message.
pub(crate) fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Returns the name of a reply code. The server's reply text may have a part of a message, such as
/// its routing key, so it is not shown.
pub(crate) fn reply_name(code: u16) -> &'static str {
    match code {
        311 => "CONTENT_TOO_LARGE",
        402 => "INVALID_PATH",
        403 => "ACCESS_REFUSED",
        404 => "NOT_FOUND",
        405 => "RESOURCE_LOCKED",
        406 => "PRECONDITION_FAILED",
        501 => "FRAME_ERROR",
        502 => "SYNTAX_ERROR",
        503 => "COMMAND_INVALID",
        504 => "CHANNEL_ERROR",
        505 => "UNEXPECTED_FRAME",
        506 => "RESOURCE_ERROR",
        530 => "NOT_ALLOWED",
        540 => "NOT_IMPLEMENTED",
        541 => "INTERNAL_ERROR",
        _ => "an unknown code",
    }
}

/// Returns the error of a connection that broke.
pub(crate) fn io_error(address: &str, source: io::Error) -> RabbitmqError {
    let address = address.to_owned();
    ConnectError::broken(address, source).into()
}

/// Appends what the client says about itself. The capabilities decide what the server sends.
fn client_properties(out: &mut Vec<u8>) {
    put_member(out, "product", Some(b"walrelay"));
    put_member(out, "version", Some(env!("CARGO_PKG_VERSION").as_bytes()));
    put_short(out, b"capabilities");
    out.push(b'F');
    put_sized(out, |out| {
        for name in [
            "publisher_confirms",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "authentication_failure_close",
        ] {
            put_short(out, name.as_bytes());
            out.extend_from_slice(b"t\x01");
        }
    });
}

/// Appends what opens a channel in confirm mode: its last answer is `confirm.select-ok`.
pub(crate) fn put_channel_open(out: &mut Vec<u8>, channel: u16) {
    put_channel_open_only(out, channel);
    put_method(out, channel, (85, 10), |out| out.push(0));
}

/// Appends `channel.open`.
pub(crate) fn put_channel_open_only(out: &mut Vec<u8>, channel: u16) {
    put_method(out, channel, (20, 10), |out| put_short(out, b""));
}

/// Appends `basic.qos` for later consumers. It has an answer.
pub(crate) fn put_qos(out: &mut Vec<u8>, channel: u16, prefetch: u16) {
    put_method(out, channel, (60, 10), |out| {
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&prefetch.to_be_bytes());
        out.push(0);
    });
}

/// Appends `connection.close`.
pub(crate) fn put_close(out: &mut Vec<u8>) {
    put_method(out, 0, (10, 50), |out| {
        out.extend_from_slice(&200_u16.to_be_bytes());
        put_short(out, b"");
        out.extend_from_slice(&[0; 4]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_drop_no_confirmed_messages_from_version_4_on() {
        for (version, drops) in [
            ("3.10.8", Some(true)),
            ("3.13.7", Some(true)),
            ("4.0.0-rc.1", Some(false)),
            ("4.2.1", Some(false)),
            ("", None),
        ] {
            assert_eq!(drops_confirmed(version), drops, "{version}");
        }
    }

    #[test]
    fn offsets_of_other_queues_are_refused_from_version_3_10_on() {
        for (product, version, refuses) in [
            ("RabbitMQ", "3.9.29", false),
            ("RabbitMQ", "3.10.8", true),
            ("RabbitMQ", "4.0.0-rc.1", true),
            ("RabbitMQ", "5", false),
            ("RabbitMQ", "", false),
            ("LavinMQ", "4.0.0", false),
        ] {
            let found = refuses_offsets(product.as_bytes(), version);
            assert_eq!(found, refuses, "{product} {version}");
        }
    }
}
