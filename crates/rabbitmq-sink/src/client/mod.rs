//! A client that publishes: connection, login, a channel in confirm mode. `consume` reads a queue, for
//! demonstrations.

pub(crate) mod consume;
pub(crate) mod declare;
pub(crate) mod error;
pub(crate) mod publish;
pub(crate) mod tls;
pub(crate) mod wire;

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use walrelay_sink::Disposition;

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
    /// Hosts and ports, which are tried in this order.
    pub(crate) hosts: Vec<(String, u16)>,
    /// `None`: no TLS.
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    pub(crate) vhost: String,
    pub(crate) username: String,
    pub(crate) password: SecretString,
    /// The client's certificate names the user (SASL EXTERNAL).
    pub(crate) external: bool,
    pub(crate) heartbeat: Duration,
    /// The longest wait for a connection, and for each answer of the login.
    pub(crate) timeout: Duration,
}

/// Without user and password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("hosts", &self.hosts)
            .field("tls", &self.tls.is_some())
            .field("vhost", &self.vhost)
            .finish_non_exhaustive()
    }
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

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
}

/// Bytes from the server that are not decoded yet.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    consumed: usize,
}

impl Input {
    /// Returns the next frame, if it is there as a whole.
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

/// Connects to the first host that answers, logs in and opens the virtual host.
pub(crate) async fn connect(login: &Login) -> Result<Connection, RabbitmqError> {
    let mut last = None;
    for (host, port) in &login.hosts {
        match connect_to(login, host, *port).await {
            Ok(connection) => return Ok(connection),
            Err(error) if error.disposition() == Disposition::Configuration => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| RabbitmqError::Tls("no host is configured".to_owned())))
}

async fn connect_to(login: &Login, host: &str, port: u16) -> Result<Connection, RabbitmqError> {
    let address = format!("{host}:{port}");
    let io = |source| RabbitmqError::Io {
        address: address.clone(),
        source,
    };
    let limit = login.timeout;
    let tcp = within(limit, &address, TcpStream::connect((host, port)))
        .await?
        .map_err(io)?;
    tcp.set_nodelay(true).map_err(io)?;
    let stream: Box<dyn Stream> = match &login.tls {
        None => Box::new(tcp),
        Some(tls) => {
            let name = ServerName::try_from(host.to_owned())
                .map_err(|_| RabbitmqError::Tls(format!("{host} is no name of a server")))?;
            let handshake = TlsConnector::from(Arc::clone(tls)).connect(name, tcp);
            let shaken = within(limit, &address, handshake).await?;
            Box::new(shaken.map_err(|source| handshake_error(&address, source))?)
        }
    };
    let mut connection = Connection {
        stream,
        address,
        input: Input::default(),
        frame_max: wire::MAX_FRAME as usize,
        channel_max: CHANNELS,
        last_channel: 0,
        heartbeat: login.heartbeat,
    };
    connection.log_in(login).await?;
    Ok(connection)
}

async fn within<T>(
    limit: Duration,
    address: &str,
    call: impl Future<Output = T>,
) -> Result<T, RabbitmqError> {
    timeout(limit, call)
        .await
        .map_err(|_| RabbitmqError::Timeout {
            address: address.to_owned(),
            seconds: limit.as_secs(),
        })
}

impl Connection {
    async fn log_in(&mut self, login: &Login) -> Result<(), RabbitmqError> {
        let limit = login.timeout;
        let mechanism: &[u8] = if login.external {
            b"EXTERNAL"
        } else {
            b"PLAIN"
        };
        self.send(wire::PROTOCOL_HEADER).await?;
        let offered = self.answer(0, limit, |method| match method {
            Method::Start { mechanisms } => Ok(mechanisms
                .split(|byte| *byte == b' ')
                .any(|offered| offered == mechanism)),
            other => Err(other),
        });
        if !offered.await? {
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
        let source = io.await;
        source.map_err(|source| RabbitmqError::Io {
            address: self.address.clone(),
            source,
        })
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
                let io = |source| RabbitmqError::Io {
                    address: address.clone(),
                    source,
                };
                input.fill(stream).await.map_err(io)?;
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
    text.chars().filter(|it| !it.is_control()).collect()
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

fn handshake_error(address: &str, source: io::Error) -> RabbitmqError {
    let address = address.to_owned();
    // What TLS itself refuses; else the connection broke.
    if source
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
    {
        RabbitmqError::Handshake { address, source }
    } else {
        RabbitmqError::Io { address, source }
    }
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
fn put_channel_open_only(out: &mut Vec<u8>, channel: u16) {
    put_method(out, channel, (20, 10), |out| put_short(out, b""));
}

/// Appends `connection.close`.
pub(crate) fn put_close(out: &mut Vec<u8>) {
    put_method(out, 0, (10, 50), |out| {
        out.extend_from_slice(&200_u16.to_be_bytes());
        put_short(out, b"");
        out.extend_from_slice(&[0; 4]);
    });
}
