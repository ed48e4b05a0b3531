//! A client that publishes, and reads the answers to it.

pub(crate) mod blocking;
pub(crate) mod credentials;
pub(crate) mod error;
pub(crate) mod exchange;
pub(crate) mod identity;
pub(crate) mod jetstream;
pub(crate) mod message;
pub(crate) mod read_back;
pub(crate) mod wire;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use walrelay_sink_client::{ConnectError, Connected, Servers, Stream, within};

use credentials::Credentials;
use error::{NatsError, ProtocolError};
use wire::{Operation, decode};

/// The data of a login.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) servers: Servers,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<SecretString>,
    pub(crate) token: Option<SecretString>,
    /// A user's JWT and the key that signs the server's nonce.
    pub(crate) credentials: Option<Arc<Credentials>>,
}

/// Without user and secrets.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

/// The facts that the server sends of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    pub(crate) version: String,
    /// The most bytes of headers and payload.
    pub(crate) max_payload: u64,
    headers: bool,
    tls_required: bool,
    tls_available: bool,
    nonce: Option<String>,
}

impl ServerInfo {
    /// Parses the argument of `INFO`.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, ProtocolError> {
        let wrong = ProtocolError("no JSON object about itself");
        let value: Value = serde_json::from_slice(json).map_err(|_| wrong)?;
        let members = value.as_object().ok_or(wrong)?;
        let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
        let is = |name: &str| members.get(name).and_then(Value::as_bool) == Some(true);
        let max_payload = members.get("max_payload").and_then(Value::as_u64);
        Ok(Self {
            version: text("version").unwrap_or_default(),
            max_payload: max_payload.unwrap_or(u64::MAX),
            headers: is("headers"),
            tls_required: is("tls_required"),
            tls_available: is("tls_available"),
            nonce: text("nonce"),
        })
    }
}

/// An open connection.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    /// Host and port.
    pub(crate) address: String,
    pub(crate) input: Input,
    pub(crate) info: ServerInfo,
    /// The subject below which answers to this connection arrive.
    pub(crate) inbox: String,
}

/// Bytes from the server that are not decoded yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    consumed: usize,
}

impl Input {
    /// Reads more bytes. Can be cancelled.
    pub(crate) async fn fill(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        self.bytes.reserve(self.bytes.len().clamp(8 << 10, 1 << 20));
        match stream.read_buf(&mut self.bytes).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Takes the next operation; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Operation<'_>>, ProtocolError> {
        let rest = self.bytes.get(self.consumed..).unwrap_or_default();
        let Some((operation, length)) = decode(rest)? else {
            return Ok(None);
        };
        self.consumed += length;
        Ok(Some(operation))
    }

    fn is_empty(&self) -> bool {
        self.consumed == self.bytes.len()
    }
}

impl Connected for Connection {
    fn address(&self) -> &str {
        &self.address
    }
}

/// Connects to the first host that answers, beginning with that of the number `first`, and logs in.
pub(crate) async fn connect(login: &Login, first: usize) -> Result<Connection, NatsError> {
    let connect = async |host: &str, port| connect_to(login, host, port).await;
    login.servers.connect(first, connect).await
}

async fn connect_to(login: &Login, host: &str, port: u16) -> Result<Connection, NatsError> {
    let servers = &login.servers;
    let limit = servers.timeout;
    let (mut tcp, address) = servers.open_tcp(host, port).await?;
    let mut input = Input::default();
    let greeting = within(limit, &address, greeting(&mut input, &mut tcp));
    let info = greeting.await?.map_err(|error| error.at(&address))?;
    let stream: Box<dyn Stream> = match &servers.tls {
        None if info.tls_required => return Err(mismatch(&address, "the server demands TLS")),
        None => Box::new(tcp),
        Some(_) if !info.tls_required && !info.tls_available => {
            return Err(mismatch(&address, "the server does not offer TLS"));
        }
        Some(_) if !input.is_empty() => {
            return Err(protocol(&address, ProtocolError("bytes before TLS")));
        }
        Some(tls) => servers.secure(tls, tcp, host, &address).await?,
    };
    let random: String = (0..22).map(|_| fastrand::alphanumeric()).collect();
    let mut connection = Connection {
        stream,
        address,
        input,
        info,
        inbox: format!("_INBOX.{random}"),
    };
    let address = connection.address.clone();
    within(limit, &address, connection.log_in(login)).await??;
    Ok(connection)
}

/// The reason why a read failed.
enum ReadError {
    Io(io::Error),
    Protocol(ProtocolError),
}

impl ReadError {
    fn at(self, address: &str) -> NatsError {
        match self {
            Self::Io(source) => io_error(address, source),
            Self::Protocol(error) => protocol(address, error),
        }
    }
}

/// Reads the `INFO` that a server sends first.
async fn greeting(
    input: &mut Input,
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<ServerInfo, ReadError> {
    loop {
        match input.next().map_err(ReadError::Protocol)? {
            Some(Operation::Info(json)) => {
                return ServerInfo::parse(json).map_err(ReadError::Protocol);
            }
            Some(_) => return Err(ReadError::Protocol(ProtocolError("no INFO"))),
            None => input.fill(stream).await.map_err(ReadError::Io)?,
        }
    }
}

impl Connection {
    /// Logs in, and subscribes to the answers.
    async fn log_in(&mut self, login: &Login) -> Result<(), NatsError> {
        if !self.info.headers {
            let error = ProtocolError("that it has no message headers: NATS 2.2 is needed");
            return Err(protocol(&self.address, error));
        }
        let hello = hello(login, &self.info);
        let out = format!("CONNECT {hello}\r\nSUB {}.* 1\r\nPING\r\n", self.inbox);
        self.write(out.as_bytes()).await?;
        loop {
            match self.input.next() {
                Ok(Some(Operation::Pong)) => return Ok(()),
                Ok(Some(Operation::Ping)) => {}
                Ok(Some(Operation::Info(json))) => {
                    let info = ServerInfo::parse(json);
                    self.info = info.map_err(|error| protocol(&self.address, error))?;
                    continue;
                }
                Ok(Some(Operation::Error(text))) => return Err(ended(&self.address, text)),
                Ok(Some(Operation::Ok | Operation::Message { .. })) => continue,
                Ok(None) => {
                    let filled = self.input.fill(&mut self.stream).await;
                    filled.map_err(|source| self.io(source))?;
                    continue;
                }
                Err(error) => return Err(protocol(&self.address, error)),
            }
            self.write(b"PONG\r\n").await?;
        }
    }

    async fn write(&mut self, out: &[u8]) -> Result<(), NatsError> {
        let written = async {
            self.stream.write_all(out).await?;
            self.stream.flush().await
        };
        written.await.map_err(|source| self.io(source))
    }

    /// Sends a request, and returns status and payload of the first answer.
    pub(crate) async fn request(
        &mut self,
        subject: &str,
        body: &[u8],
        limit: Duration,
    ) -> Result<(Option<u16>, Vec<u8>), NatsError> {
        let address = self.address.clone();
        let token: String = (0..22).map(|_| fastrand::alphanumeric()).collect();
        let reply = format!("{}.{token}", self.inbox);
        let mut out = Vec::new();
        message::put_request(&mut out, subject, &reply, body);
        let exchange = async {
            self.write(&out).await?;
            loop {
                let mut pong = false;
                match self
                    .input
                    .next()
                    .map_err(|error| protocol(&self.address, error))?
                {
                    Some(Operation::Message {
                        subject,
                        status,
                        payload,
                    }) if subject == reply.as_bytes() => return Ok((status, payload.to_vec())),
                    // The server says that the user may not send the request.
                    Some(Operation::Error(text)) if is_permission(text) => {
                        return Ok((Some(403), Vec::new()));
                    }
                    Some(Operation::Error(text)) => return Err(ended(&self.address, text)),
                    Some(Operation::Ping) => pong = true,
                    Some(_) => {}
                    None => {
                        let filled = self.input.fill(&mut self.stream).await;
                        filled.map_err(|source| self.io(source))?;
                    }
                }
                if pong {
                    self.write(b"PONG\r\n").await?;
                }
            }
        };
        within(limit, &address, exchange).await?
    }

    fn io(&self, source: io::Error) -> NatsError {
        io_error(&self.address, source)
    }
}

/// Makes the argument of `CONNECT`.
fn hello(login: &Login, info: &ServerInfo) -> Value {
    let mut hello = json!({
        "verbose": false,
        "pedantic": false,
        "tls_required": login.servers.tls.is_some(),
        "name": "walrelay",
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": 1,
        "headers": true,
        "no_responders": true,
        "echo": false,
    });
    let mut set = |name: &str, value: String| hello[name] = Value::String(value);
    if let Some(user) = &login.username {
        set("user", user.clone());
    }
    if let Some(password) = &login.password {
        set("pass", password.expose_secret().to_owned());
    }
    if let Some(token) = &login.token {
        set("auth_token", token.expose_secret().to_owned());
    }
    if let Some(credentials) = &login.credentials {
        let nonce = info.nonce.as_deref().unwrap_or_default();
        set("sig", credentials.sign(nonce.as_bytes()));
        match &credentials.jwt {
            Some(jwt) => set("jwt", jwt.expose_secret().to_owned()),
            None => set("nkey", credentials.public_key.clone()),
        }
    }
    hello
}

/// Makes the error of an `-ERR` after which the server ends the connection. Its text may have a
/// subject, so it is not shown.
pub(crate) fn ended(address: &str, text: &[u8]) -> NatsError {
    let address = address.to_owned();
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    if text.starts_with("authorization violation")
        || text.starts_with("authentication timeout")
        || text.starts_with("account authentication expired")
        || text.starts_with("user authentication")
    {
        return NatsError::Denied { address };
    }
    let known = [
        ("stale connection", "it has heard nothing of the relay"),
        ("slow consumer", "the relay reads too slowly"),
        (
            "maximum connections",
            "it has too many connections (max_connections)",
        ),
        ("maximum account", "the account has too many connections"),
        ("maximum payload", "a message is larger than max_payload"),
        (
            "maximum control line",
            "a subject is longer than max_control_line",
        ),
        ("secure connection", "it demands TLS"),
        ("server shutdown", "it shuts down"),
        ("connection throttling", "it has too many new connections"),
        (
            "permissions violation",
            "the user may not subscribe to _INBOX.>",
        ),
    ];
    let known = known.iter().find(|(start, _)| text.starts_with(start));
    let why = known.map_or("its reason is not known to the relay", |(_, why)| why);
    NatsError::Closed { address, why }
}

/// Returns true if the text of an `-ERR` refuses one operation, and the connection stays.
pub(crate) fn is_permission(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    text.starts_with("permissions violation")
}

/// Makes the error of bytes that are not the protocol.
pub(crate) fn protocol(address: &str, error: ProtocolError) -> NatsError {
    NatsError::Protocol {
        address: address.to_owned(),
        reason: error.to_string(),
    }
}

fn mismatch(address: &str, what: &'static str) -> NatsError {
    NatsError::TlsMismatch {
        address: address.to_owned(),
        what,
    }
}

/// Returns the error of a connection that broke.
pub(crate) fn io_error(address: &str, source: io::Error) -> NatsError {
    let address = address.to_owned();
    ConnectError::broken(address, source).into()
}
