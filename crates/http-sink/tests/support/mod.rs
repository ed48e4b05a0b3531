//! A server for the tests of the sink, with faults.

#![allow(
    dead_code,
    clippy::expect_used,
    reason = "each test binary uses a part of it, and a test may panic"
)]

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use hyper::header::HeaderMap;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use walrelay_http_sink::{HttpConfig, HttpOptions, HttpVersion, UrlTemplate};
use walrelay_sink::Poison;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::lock;

/// A value that the server answers with 422.
pub(crate) const BAD: &[u8] = b"\0bad";

/// A request as it was received.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// What the server does with a request.
pub(crate) enum Reaction {
    /// Stores it and answers with this status.
    Store(u16),
    /// Answers with a status and headers.
    Answer(u16, Vec<(&'static str, String)>),
    /// Stores it and closes the connection without an answer.
    Break,
    /// Answers nothing, and keeps the connection open.
    Never,
    /// Stores it, answers 200, and never ends the body of the answer.
    SlowBody,
}

type React = dyn Fn(usize, &Received) -> Reaction + Send + Sync;

struct Shared {
    react: Box<React>,
    /// All requests.
    received: Mutex<Vec<Received>>,
    stored: Mutex<Vec<Received>>,
    paused: watch::Sender<bool>,
    /// Counts the ends of all connections; odd: the server is away.
    ended: watch::Sender<u64>,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    version: HttpVersion,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Stores each request and answers 200; 422 for [`BAD`] ones.
    pub(crate) fn start(version: HttpVersion) -> Self {
        Self::reacting(version, None, |_, received| {
            if received.body.starts_with(BAD) {
                Reaction::Answer(422, Vec::new())
            } else {
                Reaction::Store(200)
            }
        })
    }

    /// Reacts to each request, by its number.
    pub(crate) fn reacting(
        version: HttpVersion,
        tls: Option<Arc<rustls::ServerConfig>>,
        react: impl Fn(usize, &Received) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            react: Box::new(react),
            received: Mutex::default(),
            stored: Mutex::default(),
            paused: watch::Sender::new(false),
            ended: watch::Sender::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, version, tls, serving) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            address,
            version,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks/{{topic}}", self.address)
    }

    pub(crate) fn config(&self, bounds: Bounds) -> HttpConfig {
        config(&self.url(), self.version, bounds)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        lock(&self.shared.received).clone()
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        let stored = lock(&self.shared.stored);
        let text = |received: &Received| String::from_utf8_lossy(&received.body).into_owned();
        stored.iter().map(text).collect()
    }

    /// Ends all connections.
    pub(crate) fn end_connections(&self) {
        self.shared.ended.send_modify(|ended| *ended += 2);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let joined = self.thread.take().map(thread::JoinHandle::join);
        assert!(thread::panicking() || joined.is_none_or(|joined| joined.is_ok()));
    }
}

/// Settings with short pauses.
pub(crate) fn config(url: &str, version: HttpVersion, bounds: Bounds) -> HttpConfig {
    let options = HttpOptions {
        max_in_flight_records: u64::from(bounds.records),
        max_in_flight_bytes: bounds.bytes,
        backoff_initial: Duration::from_millis(5),
        backoff_max: Duration::from_millis(100),
        retry_for: Duration::ZERO,
        dead_letters: "dead".to_owned(),
    };
    let mut config = HttpConfig::new(UrlTemplate::parse(url).expect("a URL"), options);
    config.version = version;
    config.timeout = Duration::from_secs(2);
    config.key_header = Some(hyper::header::HeaderName::from_static("x-key"));
    config
}

async fn serve(
    listener: TcpListener,
    version: HttpVersion,
    tls: Option<Arc<rustls::ServerConfig>>,
    shared: Arc<Shared>,
) {
    listener.set_nonblocking(true).expect("a listener");
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    let mut ended = shared.ended.subscribe();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            changed = ended.changed() => {
                changed.expect("the server lives");
                connections.abort_all();
                while connections.join_next().await.is_some() {}
            }
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                if *shared.ended.borrow() % 2 == 1 {
                    continue;
                }
                let (shared, tls) = (Arc::clone(&shared), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => connection(stream, version, shared).await,
                        Some(tls) => {
                            if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
                                connection(stream, version, shared).await;
                            }
                        }
                    }
                });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    version: HttpVersion,
    shared: Arc<Shared>,
) {
    let service = service_fn(move |request| respond(request, Arc::clone(&shared)));
    let io = TokioIo::new(stream);
    match version {
        HttpVersion::One => drop(http1::Builder::new().serve_connection(io, service).await),
        HttpVersion::Two => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            // Its tasks end with the connection's future.
            drop(
                builder
                    .max_concurrent_streams(100)
                    .serve_connection(io, service)
                    .await,
            );
        }
    }
}

/// The answer's body: whole, or without an end.
enum Answer {
    Whole(Full<Bytes>),
    Endless,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => std::pin::Pin::new(body).poll_frame(context),
            Self::Endless => std::task::Poll::Pending,
        }
    }
}

async fn respond(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Answer>, std::io::Error> {
    let broken = || std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|_| broken())?
        .to_bytes()
        .to_vec();
    let received = Received {
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body,
    };
    let number = {
        let mut all = lock(&shared.received);
        all.push(received.clone());
        all.len() - 1
    };
    let mut paused = shared.paused.subscribe();
    paused
        .wait_for(|paused| !*paused)
        .await
        .map_err(|_| broken())?;
    let store = |received| lock(&shared.stored).push(received);
    let (status, headers, body) = match (shared.react)(number, &received) {
        Reaction::Store(status) => {
            store(received);
            (status, Vec::new(), Answer::Whole(Full::from("taken")))
        }
        Reaction::Answer(status, headers) => (status, headers, Answer::Whole(Full::default())),
        Reaction::Break => {
            store(received);
            return Err(broken());
        }
        Reaction::Never => std::future::pending().await,
        Reaction::SlowBody => {
            store(received);
            (200, Vec::new(), Answer::Endless)
        }
    };
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    Ok(response.body(body).expect("a response"))
}

impl Destination for Server {
    fn factory(&self, bounds: Bounds) -> walrelay_sink::AnySinkFactory {
        let config = self.config(bounds);
        walrelay_sink::any_factory(walrelay_http_sink::HttpSinkFactory::new(
            config,
            Arc::default(),
        ))
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        let stored = lock(&self.shared.stored);
        let path = format!("/hooks/{topic}");
        let of_topic = stored.iter().filter(|received| received.path == path);
        let header = |received: &Received, name: &str| {
            let value = received.headers.get(name)?;
            Some(value.to_str().expect("ASCII").to_owned())
        };
        let stored = of_topic.map(|received| Stored {
            key: header(received, "x-key").map(String::into_bytes),
            value: Some(received.body.clone()),
            id: header(received, "webhook-id").expect("an id"),
        });
        stored.collect()
    }

    fn pause(&self) {
        self.shared.paused.send_replace(true);
    }

    fn resume(&self) {
        self.shared.paused.send_replace(false);
    }

    fn kill(&self) {
        self.shared.ended.send_modify(|ended| *ended += 1);
    }

    fn start(&self) {
        self.kill();
    }

    fn refusals(&self) -> Vec<Refusal> {
        vec![Refusal {
            poison: Poison::Rejected,
            spoil: |event| event.value.splice(0..0, BAD.iter().copied()).for_each(drop),
        }]
    }
}
