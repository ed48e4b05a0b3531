//! Opens connections: resolves, connects, asks a proxy for a tunnel, and speaks TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use walrelay_sink::CertificateFault;
use walrelay_sink_client::{certificate_fault, reset_on_close};

use crate::address::{Target, is_private};
use crate::config::{HttpConfig, HttpVersion};

/// Bytes of a proxy's answer at most.
const MAX_PROXY_ANSWER: usize = 8 << 10;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Stream for T {}

/// A connection to a server, with TLS if its URL asks for it.
pub(crate) type Connection = Pin<Box<dyn Stream>>;

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("the name cannot be resolved: {0}")]
    Resolve(io::Error),
    #[error("its address is private, and an event has chosen it")]
    Private,
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("the proxy makes no tunnel: {0}")]
    Proxy(String),
    #[error("the proxy refuses the relay (407)")]
    ProxyRefuses,
    #[error("{0}")]
    Certificate(CertificateFault),
    #[error("TLS fails: {0}")]
    Tls(io::Error),
    #[error("the server does not speak HTTP/2")]
    Version,
}

impl ConnectError {
    /// Returns what to do about the error, for the operator.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Resolve(_) | Self::Connect(_) => {
                "check url and proxy in [sink.http], and that the server runs and can be reached from here"
            }
            Self::Private => "set allow_private in [sink.http] if events may name such hosts",
            Self::Proxy(_) | Self::ProxyRefuses => {
                "check proxy in [sink.http], and the rules of the proxy"
            }
            Self::Certificate(fault) => fault.remedy,
            Self::Tls(_) => {
                "the cause names the fault of the certificate; ca_file in [sink.http] names the \
                 authority that is trusted, certificate_file and key_file the relay's own \
                 certificate"
            }
            Self::Version => "set http_version = \"1.1\" in [sink.http]",
        }
    }

    /// Returns the fault of the server's certificate, if that is the error.
    pub(crate) fn certificate_fault(&self) -> Option<CertificateFault> {
        match self {
            Self::Certificate(fault) => Some(fault.clone()),
            _ => None,
        }
    }

    /// Returns true if it is about this host, and not about the network or the proxy.
    pub(crate) fn is_of_host(&self) -> bool {
        matches!(self, Self::Resolve(_)) || self.is_configuration()
    }

    /// Returns true if waiting will not help.
    pub(crate) fn is_configuration(&self) -> bool {
        matches!(self, Self::Certificate(_) | Self::Tls(_) | Self::Version)
    }
}

/// Opens a connection to the target.
pub(crate) async fn connect(
    target: &Target,
    config: &HttpConfig,
) -> Result<Connection, ConnectError> {
    let tcp = match &config.proxy {
        None => {
            let checked = target.chosen && !config.allow_private;
            open((&target.host, target.port), checked).await?
        }
        Some(proxy) => {
            let mut tcp = open((&proxy.host, proxy.port), false).await?;
            if target.secure {
                tunnel(&mut tcp, target).await?;
            }
            tcp
        }
    };
    let Some(tls) = config.tls.as_ref().filter(|_| target.secure) else {
        return Ok(Box::pin(tcp));
    };
    let invalid = |_| ConnectError::Tls(io::Error::other("the host's name is invalid"));
    let name = ServerName::try_from(target.host.to_string()).map_err(invalid)?;
    let connector = TlsConnector::from(Arc::clone(tls));
    let stream = connector.connect(name, tcp).await;
    let stream = stream.map_err(|error| {
        certificate_fault(&target.to_string(), &error)
            .map_or(ConnectError::Tls(error), ConnectError::Certificate)
    })?;
    let spoken = stream.get_ref().1.alpn_protocol();
    if config.version == HttpVersion::Two && spoken != Some(b"h2") {
        return Err(ConnectError::Version);
    }
    Ok(Box::pin(stream))
}

/// Resolves the host and connects to the first of its addresses that answers. The addresses are
/// those that were checked: the name is resolved once.
async fn open(host: (&str, u16), checked: bool) -> Result<TcpStream, ConnectError> {
    let resolved = lookup_host(host).await.map_err(ConnectError::Resolve)?;
    let allowed = |address: &SocketAddr| !checked || !is_private(address.ip());
    let (addresses, private): (Vec<_>, Vec<_>) = resolved.partition(allowed);
    if addresses.is_empty() {
        return Err(if private.is_empty() {
            ConnectError::Resolve(io::ErrorKind::NotFound.into())
        } else {
            ConnectError::Private
        });
    }
    let tcp = TcpStream::connect(&*addresses).await;
    let tcp = tcp.map_err(ConnectError::Connect)?;
    // A request is written at once: do not wait for more bytes.
    tcp.set_nodelay(true).map_err(ConnectError::Connect)?;
    reset_on_close(&tcp).map_err(ConnectError::Connect)?;
    Ok(tcp)
}

async fn tunnel(tcp: &mut TcpStream, target: &Target) -> Result<(), ConnectError> {
    let failed = |error: io::Error| ConnectError::Proxy(error.to_string());
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    tcp.write_all(head.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    // One byte at a time: what follows the answer belongs to TLS.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= MAX_PROXY_ANSWER {
            return Err(ConnectError::Proxy("its answer is too long".to_owned()));
        }
        answer.push(tcp.read_u8().await.map_err(failed)?);
    }
    let status = answer.split(|byte| *byte == b' ').nth(1);
    match status.and_then(|status| std::str::from_utf8(status).ok()?.parse::<u16>().ok()) {
        Some(200..300) => Ok(()),
        Some(407) => Err(ConnectError::ProxyRefuses),
        Some(status) => Err(ConnectError::Proxy(format!("it answers {status}"))),
        None => Err(ConnectError::Proxy("its answer is not HTTP".to_owned())),
    }
}
