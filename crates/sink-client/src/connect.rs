//! Connects to a server, by TLS or without.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use walrelay_failure::FailureWords;
use walrelay_sink::{CertificateFault, Disposition};

use crate::certificates::certificate_fault;

/// The reason why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The operating system refuses the connection, or it broke.
    #[error("{address}: {source}")]
    Io {
        /// Host and port.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The server did not answer in time.
    #[error("{address}: no answer for {seconds} s")]
    Timeout {
        /// Host and port.
        address: String,
        /// How long the client waited.
        seconds: u64,
    },
    /// The server's certificate is refused.
    #[error("{0}")]
    Certificate(CertificateFault),
    /// TLS fails for another reason, or the server refuses the client's certificate.
    #[error("{address}: TLS fails: {source}")]
    Handshake {
        /// Host and port.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The settings of hosts or TLS cannot be used.
    #[error("TLS cannot be used: {0}")]
    Settings(String),
}

impl ConnectError {
    /// Makes the error of a connection that broke, maybe because TLS refuses to go on.
    pub fn broken(address: String, source: io::Error) -> Self {
        if let Some(fault) = certificate_fault(&address, &source) {
            return Self::Certificate(fault);
        }
        // What TLS itself refuses; else the connection broke.
        let is_tls = source
            .get_ref()
            .is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>);
        if is_tls {
            Self::Handshake { address, source }
        } else {
            Self::Io { address, source }
        }
    }

    /// Returns the reaction to the error.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Settings(_) => Disposition::Configuration,
            _ => Disposition::Retryable,
        }
    }

    /// Returns the fault of the server's certificate, if that is the error.
    pub fn certificate_fault(&self) -> Option<&CertificateFault> {
        match self {
            Self::Certificate(fault) => Some(fault),
            _ => None,
        }
    }
}

/// An error of a client.
pub trait ClientError: std::error::Error + From<ConnectError> {
    /// Returns the words for the operator, of `check` and of the running relay.
    fn words(&self) -> FailureWords;
    /// Returns the reaction to the error.
    fn disposition(&self) -> Disposition;
    /// Returns the fault of the server's certificate, if that is the error.
    fn certificate_fault(&self) -> Option<&CertificateFault>;
}

/// Makes the operating system close this connection by a reset, however the process ends. Otherwise it
/// goes on to deliver the bytes that the server has not received, for minutes and long after another
/// relay has sent newer events ([ADR 58](../../../docs/adr/0058-a-connection-is-closed-by-a-reset.md)).
///
/// # Errors
/// That of `setsockopt`.
pub fn reset_on_close(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_zero_linger()
}

/// The bytes of a connection, with TLS or without.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The servers of a sink.
#[derive(Debug, Clone)]
pub struct Servers {
    /// Hosts and ports, which are tried in this order.
    pub hosts: Vec<(String, u16)>,
    /// `None`: no TLS.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The longest wait for a connection.
    pub timeout: Duration,
}

impl Servers {
    /// Connects to the first host that answers, beginning with that of the number `first`: `connect`
    /// opens a connection to a host and logs in. A host whose error is one of the configuration is the
    /// last that is tried.
    ///
    /// # Errors
    /// The error of the last host that was tried.
    pub async fn connect<C, E: ClientError>(
        &self,
        first: usize,
        connect: impl AsyncFn(&str, u16) -> Result<C, E>,
    ) -> Result<C, E> {
        let mut last = None;
        let (before, from) = self.hosts.split_at(first % self.hosts.len().max(1));
        for (host, port) in from.iter().chain(before) {
            match connect(host, *port).await {
                Ok(connection) => return Ok(connection),
                Err(error) if error.disposition() == Disposition::Configuration => {
                    return Err(error);
                }
                Err(error) => last = Some(error),
            }
        }
        let none = || ConnectError::Settings("no host is configured".to_owned()).into();
        Err(last.unwrap_or_else(none))
    }

    /// Opens a connection, with TLS if it is configured. Returns it with its address, host and port.
    ///
    /// # Errors
    /// If the host cannot be reached, or TLS fails.
    pub async fn open(
        &self,
        host: &str,
        port: u16,
    ) -> Result<(Box<dyn Stream>, String), ConnectError> {
        let (tcp, address) = self.open_tcp(host, port).await?;
        let stream = match &self.tls {
            None => Box::new(tcp),
            Some(tls) => self.secure(tls, tcp, host, &address).await?,
        };
        Ok((stream, address))
    }

    /// Opens a connection without TLS. Returns it with its address, host and port.
    ///
    /// # Errors
    /// If the host cannot be reached.
    pub async fn open_tcp(
        &self,
        host: &str,
        port: u16,
    ) -> Result<(TcpStream, String), ConnectError> {
        let address = format!("{host}:{port}");
        let io = |source| ConnectError::Io {
            address: address.clone(),
            source,
        };
        let tcp = within(self.timeout, &address, TcpStream::connect((host, port)))
            .await?
            .map_err(io)?;
        tcp.set_nodelay(true).map_err(io)?;
        reset_on_close(&tcp).map_err(io)?;
        Ok((tcp, address))
    }

    /// Begins TLS on a connection. The server's certificate must have the name of the host.
    ///
    /// # Errors
    /// If TLS fails.
    pub async fn secure(
        &self,
        tls: &Arc<rustls::ClientConfig>,
        tcp: TcpStream,
        host: &str,
        address: &str,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| ConnectError::Settings(format!("{host} is no name of a server")))?;
        let handshake = TlsConnector::from(Arc::clone(tls)).connect(name, tcp);
        let shaken = within(self.timeout, address, handshake).await?;
        Ok(Box::new(shaken.map_err(|source| {
            ConnectError::broken(address.to_owned(), source)
        })?))
    }

    /// Returns the addresses, which commas separate.
    pub fn names(&self) -> String {
        let names: Vec<String> = self.addresses().collect();
        names.join(",")
    }

    /// Returns host and port of each server.
    pub fn addresses(&self) -> impl Iterator<Item = String> {
        self.hosts
            .iter()
            .map(|(host, port)| format!("{host}:{port}"))
    }
}

/// Waits for the answer of a server, at most for `limit`.
///
/// # Errors
/// [`ConnectError::Timeout`] if none came.
pub async fn within<T>(
    limit: Duration,
    address: &str,
    call: impl Future<Output = T>,
) -> Result<T, ConnectError> {
    timeout(limit, call)
        .await
        .map_err(|_| ConnectError::Timeout {
            address: address.to_owned(),
            seconds: limit.as_secs(),
        })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[tokio::test]
    async fn a_connection_that_is_closed_delivers_nothing_any_more() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let servers = Servers {
            hosts: Vec::new(),
            tls: None,
            timeout: Duration::from_secs(60),
        };
        let (tcp, _) = servers.open_tcp("127.0.0.1", port).await.unwrap();
        let (mut server, _) = listener.accept().unwrap();
        // The server reads nothing, until the client's side can keep no more bytes.
        let mut written = 0;
        loop {
            tcp.writable().await.unwrap();
            match tcp.try_write(&[7; 16384]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        drop(tcp);
        let mut received = Vec::new();
        let end = server.read_to_end(&mut received).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
        assert!(
            received.len() < written,
            "{} of {written} arrived",
            received.len()
        );
    }
}
