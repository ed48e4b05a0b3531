//! Connects to one of several hosts and logs in.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;

use super::auth::authenticate;
use super::query::{Session, note_parameter};
use crate::conninfo::{ConnInfo, Host, Keepalives, SslMode, TargetSessionAttrs};
use crate::error::{Error, ErrorClass, ServerError};
use crate::framing::wire::{Allowance, Incoming, Transport, Wire};
use crate::tls::TlsContext;

/// Timeouts that a server, a database or a role may have set, and that would end a session of a
/// relay or its transactions: all of them off.
/// <https://www.postgresql.org/docs/current/runtime-config-client.html>
const TIMEOUTS_OFF: [(&str, &str); 4] = [
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
];
/// The first major version that knows `transaction_timeout`. It ends a walsender, too, in the middle
/// of a transaction that takes long to send.
const WITH_TRANSACTION_TIMEOUT: u32 = 17;

/// The kind of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionKind {
    /// A session for SQL only.
    Sql,
    /// A session for replication commands and SQL (`replication=database`). The session occupies
    /// one of the server's `max_wal_senders`, and the role needs REPLICATION.
    Replication,
}

impl Session {
    /// Connects and logs in. Tries the hosts of `info` in order, with every address of a name, each
    /// for `connect_timeout` at most, until a server is accepted by `target_session_attrs`.
    ///
    /// `settings` are run-time parameters in the startup message, such as `("wal_sender_timeout",
    /// "5s")`. The message also sets `client_encoding`, `DateStyle`, `IntervalStyle`,
    /// `extra_float_digits`, `bytea_output` and `lc_monetary`, so that values have one text form, makes
    /// rows that a policy hides an error, and turns off the timeouts that the server or the role may have
    /// set, unless `settings` or the `options` of `info` name them.
    ///
    /// With `sslmode=prefer` the connection is unencrypted if the server reports that it has no
    /// TLS. Unlike libpq, a failed attempt is not repeated without encryption.
    ///
    /// A password file is read only if `info` names one: the caller must set
    /// [`passfile`](ConnInfo::passfile) to use `PGPASSFILE` or `~/.pgpass`.
    ///
    /// # Errors
    /// The error of the attempt if there was only one; [`Error::NoServer`] lists several. A server
    /// that refuses the login ends the search, as in libpq.
    pub async fn connect(
        info: &ConnInfo,
        kind: SessionKind,
        settings: &[(&str, &str)],
    ) -> Result<Self, Error> {
        // Boxed, because the future is large: it contains all steps from the resolver to the login.
        Box::pin(connect(info, kind, settings)).await
    }
}

/// Tries all addresses of all hosts in order.
async fn connect(
    info: &ConnInfo,
    kind: SessionKind,
    settings: &[(&str, &str)],
) -> Result<Session, Error> {
    let plan = Plan {
        info,
        kind,
        settings,
        tls: TlsContext::new(info)?,
    };
    let mut attempts = Vec::new();
    let wanted = info.target_session_attrs;
    if wanted == TargetSessionAttrs::PreferStandby {
        let standby = TargetSessionAttrs::Standby;
        if let Some(session) = plan.try_all(standby, &mut attempts).await? {
            return Ok(session);
        }
        // Without a standby, the second round tries and reports every host again.
        attempts.clear();
    }
    match plan.try_all(wanted, &mut attempts).await? {
        Some(session) => Ok(session),
        None => Err(sum_up(attempts)),
    }
}

/// Makes one error of the attempts: a single one is returned as it is, several as
/// [`Error::NoServer`].
fn sum_up(mut attempts: Vec<Error>) -> Error {
    if attempts.len() == 1 {
        return attempts.remove(0);
    }
    let attempts = attempts.into();
    Error::NoServer { attempts }
}

struct Plan<'a> {
    info: &'a ConnInfo,
    kind: SessionKind,
    settings: &'a [(&'a str, &'a str)],
    tls: Option<TlsContext>,
}

impl Plan<'_> {
    /// Tries all hosts. Returns `Ok(None)` if none was accepted; the reasons are appended to
    /// `attempts`.
    async fn try_all(
        &self,
        wanted: TargetSessionAttrs,
        attempts: &mut Vec<Error>,
    ) -> Result<Option<Session>, Error> {
        for host in &self.info.hosts {
            let targets = match self.targets(host).await {
                Ok(targets) => targets,
                Err(error) => {
                    attempts.push(error);
                    continue;
                }
            };
            for target in targets {
                let attempt = self.open(host, target, wanted);
                let error = match self.within_timeout(host, attempt).await {
                    Ok(session) => return Ok(Some(session)),
                    Err(error) => error,
                };
                tracing::debug!(host = %host, error = %error, "no session");
                let ends = ends_search(&error);
                attempts.push(error);
                if ends {
                    return Err(sum_up(std::mem::take(attempts)));
                }
            }
        }
        Ok(None)
    }

    async fn within_timeout<T>(
        &self,
        host: &Host,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let after = self.info.connect_timeout;
        // Boxed, because the future is large.
        let finished = timeout(after, Box::pin(attempt)).await;
        finished.unwrap_or_else(|_| {
            let host = host.to_string().into();
            Err(Error::Timeout { host, after })
        })
    }

    /// Resolves the addresses of a host; `None` stands for its unix socket.
    async fn targets(&self, host: &Host) -> Result<Vec<Option<SocketAddr>>, Error> {
        let Some((name, port)) = host.tcp_target() else {
            return Ok(vec![None]);
        };
        let failed = |error| io_error(host, "resolving the host name", error);
        let resolve = async {
            let addresses = lookup_host((name.as_str(), port)).await.map_err(failed)?;
            Ok(addresses.map(Some).collect::<Vec<_>>())
        };
        let targets = self.within_timeout(host, resolve).await?;
        if targets.is_empty() {
            let none = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            return Err(failed(none));
        }
        Ok(targets)
    }

    /// Makes one attempt: socket, TLS, login, and the check of `target_session_attrs`.
    async fn open(
        &self,
        host: &Host,
        target: Option<SocketAddr>,
        wanted: TargetSessionAttrs,
    ) -> Result<Session, Error> {
        let failed = |error| io_error(host, "connecting", error);
        let transport = if let Some(address) = target {
            let socket = TcpStream::connect(address).await.map_err(failed)?;
            set_tcp_options(&socket, self.info.keepalives)
                .map_err(|error| io_error(host, "setting up the socket", error))?;
            self.encrypt(host, socket).await?
        } else {
            let path = host.socket_path().unwrap_or_default();
            Transport::Unix(UnixStream::connect(path).await.map_err(failed)?)
        };
        let name: Arc<str> = host.to_string().into();
        let mut wire = Wire::new(transport, Arc::clone(&name));
        self.queue_startup(&mut wire)?;
        let mut allowance = Allowance::login();
        authenticate(&mut wire, self.info, host, &mut allowance).await?;
        let mut session = until_ready(wire, host, &mut allowance).await?;
        if session.server_version().major >= WITH_TRANSACTION_TIMEOUT
            && !self.is_in_options("transaction_timeout")
        {
            // Not in the startup message: older servers refuse a parameter that they do not know.
            session.query("SET transaction_timeout = 0").await?;
        }
        let Some(difference) = mismatch(&mut session, wanted).await? else {
            return Ok(session);
        };
        session.close().await;
        Err(Error::WrongServer {
            host: name,
            wanted,
            found: difference,
        })
    }

    /// Returns true if the `options` of the connection string name this setting.
    fn is_in_options(&self, name: &str) -> bool {
        let options = self.info.options.as_deref();
        options.is_some_and(|options| options.contains(name))
    }

    /// Asks the server for TLS and sets it up, as `sslmode` demands.
    async fn encrypt(&self, host: &Host, mut socket: TcpStream) -> Result<Transport, Error> {
        let Some(tls) = &self.tls else {
            return Ok(Transport::Tcp(socket));
        };
        let failed = |error| io_error(host, "asking for TLS", error);
        let mut request = bytes::BytesMut::new();
        frontend::ssl_request(&mut request);
        socket.write_all(&request).await.map_err(failed)?;
        let mut answer = [0];
        if socket.read(&mut answer).await.map_err(failed)? == 0 {
            return Err(Error::Closed {
                what: "the server closed the connection when asked for TLS",
            });
        }
        match answer[0] {
            // A server without a free process answers so. The error's text is not shown, because
            // the sender is not authenticated (CVE-2024-10977).
            b'E' => Err(Error::Closed {
                what: "the server answered with an error when asked for TLS",
            }),
            // More bytes than the answer are an error: they would be treated as decrypted data,
            // although anybody could have sent them (CVE-2021-23222).
            b'S' if socket.try_read(&mut [0]).is_ok_and(|read| read > 0) => Err(Error::protocol(
                "unencrypted data after the answer to the request for TLS; the connection may \
                     be under attack",
            )),
            b'S' => {
                let stream = tls.handshake(host, socket).await?;
                Ok(Transport::Tls(Box::new(stream)))
            }
            // The session is not encrypted, and what follows belongs to it: a server whose first process was killed
            // meanwhile sends its last error.
            b'N' if self.info.ssl_mode == SslMode::Prefer => Ok(Transport::Tcp(socket)),
            b'N' => {
                let host = host.to_string().into();
                Err(Error::TlsNotOffered { host })
            }
            _ => Err(Error::protocol(
                "the answer to the request for TLS is not Postgres'",
            )),
        }
    }

    /// Queues the startup message. Its parameters make the text form of values independent of the
    /// defaults of server and role. `TimeZone` is not set, because a `timestamptz` contains its
    /// offset. A session that compares texts with those of another one sets it.
    fn queue_startup(&self, wire: &mut Wire) -> Result<(), Error> {
        let info = self.info;
        let application_name = info.shown_application_name();
        let mut parameters = vec![
            ("user", info.user.as_str()),
            ("database", info.dbname.as_str()),
            ("application_name", application_name.as_str()),
            ("client_encoding", "UTF8"),
            // A role's setting may suppress warnings; `ReplicationStream` needs one.
            ("client_min_messages", "warning"),
            // Statements lock rows that others change, and go on with the newest version.
            ("default_transaction_isolation", "read committed"),
            ("DateStyle", "ISO"),
            ("IntervalStyle", "postgres"),
            ("extra_float_digits", "3"),
            ("bytea_output", "hex"),
            // A decimal point in any locale of the database.
            ("lc_monetary", "C"),
            // Rows that a policy hides are an error: the log has them, and a row that is not seen must not count as
            // sent or gone. <https://www.postgresql.org/docs/current/ddl-rowsecurity.html>
            ("row_security", "off"),
        ];
        let others = TIMEOUTS_OFF.into_iter();
        parameters.extend(others.filter(|(name, _)| !self.is_in_options(name)));
        if self.kind == SessionKind::Replication {
            parameters.push(("replication", "database"));
        }
        if let Some(options) = &info.options {
            parameters.push(("options", options));
        }
        parameters.extend_from_slice(self.settings);
        wire.queue("a parameter of the connection", |out| {
            frontend::startup_message(parameters, out)
        })
    }
}

/// Returns true if the error ends the search, so that no other host is tried. As in libpq a refused
/// login ends the search: the others would refuse it, too, and each attempt counts as a failed
/// login. A missing or wrong certificate does not, because it concerns only that server.
fn ends_search(error: &Error) -> bool {
    !matches!(error, Error::Tls(_) | Error::TlsNotOffered { .. })
        && matches!(
            error.class(),
            ErrorClass::AccessDenied | ErrorClass::Configuration
        )
}

/// Sets TCP options: no delay of small messages, keepalives, and a user timeout on Linux.
///
/// TCP sends keepalives only while no data is unacknowledged, but a relay's status updates are when
/// the peer is dead. So the user timeout limits the wait for their TCP acknowledgement, which
/// otherwise takes a quarter of an hour.
fn set_tcp_options(socket: &TcpStream, keepalives: Option<Keepalives>) -> io::Result<()> {
    socket.set_nodelay(true)?;
    if let Some(Keepalives {
        idle,
        interval,
        retries,
    }) = keepalives
    {
        let probes = TcpKeepalive::new().with_time(idle);
        let probes = probes.with_interval(interval).with_retries(retries);
        let socket = SockRef::from(socket);
        socket.set_tcp_keepalive(&probes)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(idle.saturating_add(interval.saturating_mul(retries))))?;
    }
    Ok(())
}

/// Receives the messages between AuthenticationOk and the first ReadyForQuery, and makes the
/// session.
async fn until_ready(
    mut wire: Wire,
    host: &Host,
    allowance: &mut Allowance,
) -> Result<Session, Error> {
    let mut parameters = Vec::new();
    let mut backend_pid = 0;
    loop {
        match wire.receive(allowance).await? {
            Incoming::Message(Message::ParameterStatus(body)) => {
                let text = |part: io::Result<&str>| {
                    part.map(str::to_owned)
                        .map_err(|error| Error::malformed("ParameterStatus", &error))
                };
                note_parameter(&mut parameters, text(body.name())?, text(body.value())?)?;
            }
            Incoming::Message(Message::BackendKeyData(body)) => backend_pid = body.process_id(),
            Incoming::Message(Message::ReadyForQuery(_)) => break,
            Incoming::Message(Message::ErrorResponse(body)) => {
                return Err(ServerError::parse(body.fields()).into());
            }
            _ => return Err(Error::protocol("unexpected message after the login")),
        }
    }
    Session::new(wire, host.clone(), parameters, backend_pid)
}

/// Asks the server what it is; returns that if `wanted` does not accept it, and `None` if it is
/// accepted.
async fn mismatch(
    session: &mut Session,
    wanted: TargetSessionAttrs,
) -> Result<Option<&'static str>, Error> {
    use TargetSessionAttrs::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
    Ok(match wanted {
        Any | PreferStandby => None,
        Primary => in_recovery(session).await?.then_some("on a standby"),
        Standby => (!in_recovery(session).await?).then_some("on a primary"),
        ReadWrite => read_only(session).await?.then_some("read-only"),
        ReadOnly => (!read_only(session).await?).then_some("read-write"),
    })
}

async fn in_recovery(session: &mut Session) -> Result<bool, Error> {
    // Reported since version 14, but not by every connection pooler.
    if let Some(value) = session.parameter("in_hot_standby") {
        return Ok(value == "on");
    }
    let rows = session
        .query("SELECT pg_catalog.pg_is_in_recovery()")
        .await?;
    Ok(rows.first().and_then(|row| row.get(0)) == Some("t"))
}

async fn read_only(session: &mut Session) -> Result<bool, Error> {
    if in_recovery(session).await? {
        return Ok(true);
    }
    if let Some(value) = session.parameter("default_transaction_read_only") {
        return Ok(value == "on");
    }
    let rows = session.query("SHOW transaction_read_only").await?;
    Ok(rows.first().and_then(|row| row.get(0)) == Some("on"))
}

fn io_error(host: &Host, doing: &'static str, error: io::Error) -> Error {
    Error::Io {
        host: host.to_string().into(),
        doing,
        source: Arc::new(error),
    }
}
