//! The endpoint's thread and listener.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info};

use super::answers::Answers;
use crate::config;
use crate::telemetry::{SlotMonitor, Telemetry, metrics_registry};

/// Connections at a time; one more is closed at once.
const MOST_CONNECTIONS: usize = 64;
/// How long a client may take for a TLS handshake, and for the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 16 << 10;
/// How long a connection lives. Browsers open event streams anew by themselves.
const CONNECTION_LIFE: Duration = Duration::from_secs(600);
/// How much lower the priority of the thread is than the pipeline's: nice(2).
const NICER: i32 = 10;

/// Why the endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// The address is taken, or is no address of this machine.
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("{} cannot be used", file.display())]
    Tls {
        file: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The system gives no thread.
    #[error("cannot start the endpoint's thread")]
    Thread(#[source] io::Error),
}

/// The endpoint, which is served until this is dropped.
#[derive(Debug)]
pub(crate) struct Endpoint {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Binds the address and starts the thread, which watches the slot, too.
    pub(crate) fn start(
        config: &config::Http,
        telemetry: Arc<Telemetry>,
        monitor: Option<SlotMonitor>,
    ) -> Result<Self, EndpointError> {
        let address = config.listen;
        let listening = |source| EndpointError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listening)?;
        listener.set_nonblocking(true).map_err(listening)?;
        let bound = listener.local_addr().map_err(listening)?;
        let tls = match &config.tls {
            Some((certificate, key)) => Some(acceptor(certificate, key)?),
            None => None,
        };
        let metrics = metrics_registry(&telemetry);
        let answers = Answers::new(Arc::clone(&telemetry), metrics, config.token.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(EndpointError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || {
                be_nicer();
                runtime.block_on(async move {
                    let seconds = async {
                        let mut ticks = tokio::time::interval(Duration::from_secs(1));
                        loop {
                            ticks.tick().await;
                            telemetry.end_second();
                        }
                    };
                    let watched = async {
                        match monitor {
                            Some(monitor) => monitor.watch(&telemetry).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = serve(listener, tls, Arc::new(answers)) => {}
                        () = seconds => {}
                        () = watched => {}
                        _ = stopped => {}
                    }
                });
            })
            .map_err(EndpointError::Thread)?;
        let scheme = if config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        info!(listen = %bound, url = format!("{scheme}://{bound}/"), "the HTTP endpoint listens");
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the endpoint's thread panicked");
        }
    }
}

/// Lowers the priority of this thread. Where that is not possible it keeps the one that it has.
fn be_nicer() {
    #[cfg(target_os = "linux")]
    // On Linux a priority is a thread's (setpriority(2), "C library/kernel differences").
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICER)
    {
        debug!(%error, "the endpoint's thread keeps its priority");
    }
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, answers: Arc<Answers>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the HTTP endpoint cannot listen"),
    };
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                // Out of file descriptors, or a client that is gone already.
                debug!(%error, "a connection was not accepted");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            continue;
        };
        let (tls, answers) = (tls.clone(), Arc::clone(&answers));
        tokio::spawn(async move {
            let _place = place;
            let served = async {
                match tls {
                    None => serve_connection(connection, answers).await,
                    Some(tls) => match timeout(HEAD_DEADLINE, tls.accept(connection)).await {
                        Ok(Ok(connection)) => serve_connection(connection, answers).await,
                        Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
                        Err(_) => debug!("a TLS handshake took too long"),
                    },
                }
            };
            // A client that reads nothing ends here.
            let _ = timeout(CONNECTION_LIFE, served).await;
        });
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
