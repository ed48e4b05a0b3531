//! A client that writes commands and reads their replies.

pub(crate) mod blocking;
pub(crate) mod cluster;
pub(crate) mod error;
pub(crate) mod link;
pub(crate) mod refusal;
pub(crate) mod resp;
pub(crate) mod sentinel;

use std::fmt;
use std::io;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use walrelay_sink_client::{ConnectError, Servers, Stream, within};

use cluster::Cluster;
use error::{ProtocolError, RedisError};
use refusal::{Refusal, code, meaning};
use resp::{Reply, decode, put_command};
use sentinel::Sentinel;

/// The data of a login.
#[derive(Debug)]
pub(crate) struct Login {
    /// The servers, some nodes of the cluster, or the sentinels.
    pub(crate) servers: Servers,
    /// `None`: `servers` are no sentinels.
    pub(crate) sentinel: Option<Sentinel>,
    /// `None`: `servers` are no nodes of a cluster.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) credentials: Credentials,
}

/// A user and a password.
#[derive(Clone)]
pub(crate) struct Credentials {
    /// The user of an access control list; `None`: the default user.
    pub(crate) username: Option<String>,
    /// `None`: the client does not log in.
    pub(crate) password: Option<SecretString>,
}

/// Without user and password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Appends the command of a login. Returns the number of its replies.
    fn put(&self, out: &mut Vec<u8>) -> usize {
        let Some(password) = &self.password else {
            return 0;
        };
        let mut arguments = vec!["AUTH"];
        arguments.extend(self.username.as_deref());
        arguments.push(password.expose_secret());
        put_command(out, &arguments);
        1
    }
}

/// An open connection.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    /// Host and port.
    pub(crate) address: String,
    /// Bytes from the server that are not decoded yet.
    input: Vec<u8>,
}

/// Connects to the first host that answers, beginning with that of the number `first`, and logs in.
/// If the hosts are sentinels, each is asked for the master until one can be used.
async fn connect(login: &Login, first: usize) -> Result<Connection, RedisError> {
    let connect = async |host: &str, port| match &login.sentinel {
        None => {
            let mut connection = Connection::open(&login.servers, host, port).await?;
            connection.log_in(login).await?;
            Ok(connection)
        }
        Some(sentinel) => {
            let (host, port) = sentinel.look_up(&login.servers, host, port).await?;
            let mut connection = Connection::open(&login.servers, &host, port).await?;
            connection.log_in(login).await?;
            sentinel::see_master(&mut connection, login.servers.timeout).await?;
            Ok(connection)
        }
    };
    login.servers.connect(first, connect).await
}

impl Connection {
    /// Connects to a host.
    async fn open(servers: &Servers, host: &str, port: u16) -> Result<Self, RedisError> {
        let (stream, address) = servers.open(host, port).await?;
        Ok(Self {
            stream,
            address,
            input: Vec::new(),
        })
    }

    /// Makes a connection of a stream that a test serves.
    #[cfg(test)]
    pub(crate) fn over(stream: impl Stream + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            address: "test:1".to_owned(),
            input: Vec::new(),
        }
    }

    async fn log_in(&mut self, login: &Login) -> Result<(), RedisError> {
        let mut out = Vec::new();
        let replies = login.credentials.put(&mut out) + 1;
        put_command(&mut out, &["PING"]);
        let replies = self.call(&out, replies, login.servers.timeout).await?;
        for reply in replies {
            let Reply::Error(text) = reply else {
                continue;
            };
            // The user may not use PING, which is no reason to end.
            let is_ping = meaning(&text) == Refusal::Denied && text.starts_with(b"NOPERM");
            if !is_ping {
                return Err(self.refused(&text));
            }
        }
        Ok(())
    }

    /// Makes the error of a server that accepts no commands, or not from this user.
    fn refused(&self, text: &[u8]) -> RedisError {
        refused(&self.address, text)
    }

    /// Makes the error of a server that accepts no commands.
    pub(crate) fn not_ready(&self, text: &[u8], refusal: Refusal) -> RedisError {
        not_ready(&self.address, text, refusal)
    }

    /// Sends commands and reads this number of replies. After an error, or if it is cancelled, the
    /// connection cannot be used any more.
    pub(crate) async fn call(
        &mut self,
        commands: &[u8],
        replies: usize,
        limit: Duration,
    ) -> Result<Vec<Reply>, RedisError> {
        let address = self.address.clone();
        let exchange = async {
            // The server reads whatever it has to write, so nothing need be read meanwhile.
            let sent = async {
                self.stream.write_all(commands).await?;
                self.stream.flush().await
            };
            let mut ended = sent.await.err().map(|source| self.io(source));
            let mut read = Vec::with_capacity(replies.min(4_096));
            let mut consumed = 0;
            loop {
                let rest = self.input.get(consumed..).unwrap_or_default();
                let decoded = decode(rest).map_err(|error| self.protocol(error))?;
                let Some((reply, length)) = decoded else {
                    self.input.drain(..consumed);
                    consumed = 0;
                    // A server that ends the connection may have said why.
                    if let Err(error) = self.fill().await {
                        let ended = ended.take().unwrap_or(error);
                        return Err(match read.last() {
                            Some(Reply::Error(text)) => self.refused(text),
                            _ => ended,
                        });
                    }
                    continue;
                };
                consumed += length;
                read.push(reply);
                if read.len() == replies && ended.is_none() {
                    self.input.drain(..consumed);
                    return Ok(read);
                }
            }
        };
        within(limit, &address, exchange).await?
    }

    /// Waits until the server ends the connection. Can be cancelled.
    pub(crate) async fn ended(&mut self) -> RedisError {
        match self.fill().await {
            Err(error) => error,
            Ok(()) => self.protocol(ProtocolError("a reply to no command")),
        }
    }

    async fn fill(&mut self) -> Result<(), RedisError> {
        // A reply may be large.
        self.input.reserve(self.input.len().clamp(8 << 10, 1 << 20));
        match self.stream.read_buf(&mut self.input).await {
            Ok(0) => Err(self.io(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(source) => Err(self.io(source)),
        }
    }

    fn io(&self, source: io::Error) -> RedisError {
        let address = self.address.clone();
        ConnectError::broken(address, source).into()
    }

    /// Makes the error of a reply that has no meaning.
    pub(crate) fn protocol(&self, error: ProtocolError) -> RedisError {
        protocol(&self.address, error)
    }
}

/// Makes the error of a server that accepts no commands, or not from this user.
pub(crate) fn refused(address: &str, text: &[u8]) -> RedisError {
    match meaning(text) {
        Refusal::Denied => RedisError::Denied {
            address: address.to_owned(),
            code: code(text),
        },
        refusal => not_ready(address, text, refusal),
    }
}

/// Makes the error of a reply that has no meaning.
pub(crate) fn protocol(address: &str, error: ProtocolError) -> RedisError {
    RedisError::Protocol {
        address: address.to_owned(),
        reason: error.to_string(),
    }
}

/// Makes the error of a server that accepts no commands.
pub(crate) fn not_ready(address: &str, text: &[u8], refusal: Refusal) -> RedisError {
    let why = match refusal {
        Refusal::Wait(why, _) | Refusal::Reconnect(why) | Refusal::Configuration(why) => why,
        Refusal::Moved => "another node of the cluster has the slot, or is getting it",
        _ => "the server refuses the command",
    };
    RedisError::NotReady {
        address: address.to_owned(),
        code: code(text),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of a call whose server sends this and ends the connection, before or after it has
    /// read the command.
    fn error_of(answer: &'static [u8], is_read: bool) -> RedisError {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime
            .unwrap()
            .block_on(async {
                let (near, mut far) = tokio::io::duplex(64);
                let mut connection = Connection::over(near);
                far.write_all(answer).await.unwrap();
                if is_read {
                    let mut command = [0; 4];
                    let serve = async {
                        far.read_exact(&mut command).await.unwrap();
                        drop(far);
                    };
                    let limit = Duration::from_secs(60);
                    return tokio::join!(connection.call(b"PING", 2, limit), serve).0;
                }
                drop(far);
                connection.call(b"PING", 2, Duration::from_secs(60)).await
            })
            .unwrap_err()
    }

    #[test]
    fn a_server_that_ends_the_connection_says_why() {
        for is_read in [false, true] {
            let full = error_of(b"-ERR max number of clients reached\r\n", is_read);
            assert!(matches!(full, RedisError::NotReady { .. }), "{full}");
            assert!(full.to_string().contains("maxclients"), "{full}");
            let denied = error_of(b"-NOAUTH Authentication required.\r\n", is_read);
            assert!(matches!(denied, RedisError::Denied { .. }), "{denied}");
            for unknown in [&b""[..], b"-ERR max", b"+OK\r\n"] {
                let error = error_of(unknown, is_read);
                assert!(matches!(error, RedisError::Connect(_)), "{error}");
            }
        }
    }
}
