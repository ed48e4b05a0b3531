//! The HTTP endpoint: its thread, its listener and its limits.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info};

use super::answers::Answers;
use super::open_connections::{OpenConnections, Watched};
use crate::Pipelines;
use crate::background::Background;
use crate::sections;

/// Open connections at most.
const MOST_CONNECTIONS: usize = 64;
/// The share of the process' file descriptors that connections may take: one in so many. The others
/// are left for Postgres and the sink, so that no client prevents a reconnect.
const DESCRIPTOR_SHARE: u64 = 4;
/// Timeout of the TLS handshake, and of reading a request's head.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 16 << 10;
/// Longest life of a connection. Browsers reopen event streams by themselves.
const CONNECTION_LIFE: Duration = Duration::from_secs(600);
/// Niceness of the endpoint's thread, so that the pipeline has priority (nice(2)).
const NICER: i32 = 10;

/// The reason why the endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address is in use, or is no address of this machine.
    #[error("cannot listen on {address}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("{} cannot be used", file.display())]
    Tls {
        /// The PEM file.
        file: PathBuf,
        /// The operating system's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The system cannot start a thread or its runtime.
    #[error("cannot start the endpoint's thread")]
    Thread(#[source] io::Error),
}

/// Binds the address and starts the endpoint's thread, which also runs the `monitors` of the
/// pipelines.
pub fn start_endpoint<M: Future<Output = ()> + Send + 'static>(
    config: &sections::Http,
    pipelines: Pipelines,
    monitors: Vec<M>,
) -> Result<Background, EndpointError> {
    let address = config.listen;
    let listening = |source| EndpointError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(listening)?;
    listener.set_nonblocking(true).map_err(listening)?;
    let bound = listener.local_addr().map_err(listening)?;
    let (scheme, tls) = match &config.tls {
        Some((certificate, key)) => ("https", Some(acceptor(certificate, key)?)),
        None => ("http", None),
    };
    let answers = Answers::new(pipelines.clone(), config);
    let endpoint = Background::start("http", move || {
        be_nicer();
        async move {
            let seconds = async {
                let mut ticks = tokio::time::interval(Duration::from_secs(1));
                loop {
                    ticks.tick().await;
                    pipelines.iter().for_each(|one| one.end_second());
                }
            };
            for monitor in monitors {
                tokio::spawn(monitor);
            }
            tokio::select! {
                () = serve(listener, tls, Arc::new(answers)) => {}
                () = seconds => {}
            }
        }
    })
    .map_err(EndpointError::Thread)?;
    info!(listen = %bound, url = format!("{scheme}://{bound}/"), "the HTTP endpoint listens");
    Ok(endpoint)
}

/// Lowers the priority of this thread, where the system allows it.
fn be_nicer() {
    #[cfg(target_os = "linux")]
    // On Linux, setpriority(2) changes one thread ("C library/kernel differences").
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICER)
    {
        debug!(%error, "the endpoint's thread keeps its priority");
    }
}

/// Returns how many connections may be open.
fn most_connections() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.map(|limit| limit / DESCRIPTOR_SHARE);
    let share = share.and_then(|share| usize::try_from(share).ok());
    share.map_or(MOST_CONNECTIONS, |share| share.clamp(1, MOST_CONNECTIONS))
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, answers: Arc<Answers>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the HTTP endpoint cannot listen"),
    };
    let connections = Arc::new(OpenConnections::new(most_connections()));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No file descriptor is free, or the client has gone already.
                debug!(%error, "a connection was not accepted");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let connection = connections.add();
        let stream = Watched {
            stream,
            connection: Arc::clone(&connection),
        };
        let (tls, answers, connections) =
            (tls.clone(), Arc::clone(&answers), Arc::clone(&connections));
        tokio::spawn(async move {
            let served = async {
                match tls {
                    None => serve_connection(stream, answers).await,
                    Some(tls) => match timeout(HEAD_DEADLINE, tls.accept(stream)).await {
                        Ok(Ok(stream)) => serve_connection(stream, answers).await,
                        Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
                        Err(_) => debug!("a TLS handshake took too long"),
                    },
                }
            };
            tokio::select! {
                _ = timeout(CONNECTION_LIFE, served) => {}
                () = connection.lost() => debug!("a connection without progress gives way"),
            }
            connections.remove(&connection);
        });
        // So that a request that is there already is answered before others are accepted.
        yield_now().await;
    }
}

async fn serve_connection(connection: impl AsyncRead + AsyncWrite + Unpin, answers: Arc<Answers>) {
    let service = service_fn(|request| {
        let answer = answers.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(connection), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "a connection to the endpoint ended");
    }
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, EndpointError> {
    type Cause = Box<dyn std::error::Error + Send + Sync>;
    let of = |file: &Path, source: Cause| EndpointError::Tls {
        file: file.to_owned(),
        source,
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| of(certificate, error.into()))?;
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| of(key, error.into()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(chain, key_der)
        })
        .map_err(|error| of(certificate, error.into()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
