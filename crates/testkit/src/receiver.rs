//! A receiver of HTTP requests that stores them, and misbehaves on command.

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

use crate::early::millis_now;
use crate::threads::lock;

/// A request as it was received.
#[derive(Debug, Clone)]
pub struct Received {
    /// The path of its URL.
    pub path: String,
    /// When its body was read, in milliseconds since 1970.
    pub at: i64,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Vec<u8>,
}

impl Received {
    /// Returns the value of a header; panics if it is not ASCII.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?;
        Some(value.to_str().expect("ASCII"))
    }
}

/// The reaction of the receiver to a request.
#[derive(Debug)]
pub enum Reaction {
    /// Stores it and answers with this status.
    Store(u16),
    /// Waits, then stores it and answers with this status.
    StoreAfter(Duration, u16),
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

/// A receiver of HTTP/1.1, or of HTTP/2 without a word about it before, on a thread of its own. What
/// it stores it keeps until it is dropped.
pub struct HttpReceiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl HttpReceiver {
    /// Starts a receiver of HTTP/1.1, or of HTTP/2 if `two`, which reacts to each request, by its
    /// number.
    pub fn start(
        two: bool,
        tls: Option<Arc<rustls::ServerConfig>>,
        react: impl Fn(usize, &Received) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        Self::with_streams(two.then_some(100), tls, react)
    }

    /// Starts a receiver of HTTP/2 with so many requests at a time on a connection; `None`: of HTTP/1.1.
    pub fn with_streams(
        streams: Option<u32>,
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
                    () = serve(listener, streams, tls, serving) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            address,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all requests, also those that were not stored.
    pub fn received(&self) -> Vec<Received> {
        lock(&self.shared.received).clone()
    }

    /// Returns the stored requests.
    pub fn stored(&self) -> Vec<Received> {
        lock(&self.shared.stored).clone()
    }

    /// Returns the number of stored requests for which this is true.
    pub fn count(&self, is: impl Fn(&Received) -> bool) -> usize {
        let stored = lock(&self.shared.stored);
        stored.iter().filter(|received| is(received)).count()
    }

    /// Returns the bodies of the stored requests as texts.
    pub fn bodies(&self) -> Vec<String> {
        let stored = lock(&self.shared.stored);
        let text = |received: &Received| String::from_utf8_lossy(&received.body).into_owned();
        stored.iter().map(text).collect()
    }

    /// Ends all connections.
    pub fn end_connections(&self) {
        self.shared.ended.send_modify(|ended| *ended += 2);
    }

    /// Answers nothing until [`resume`](Self::resume). Connections stay open.
    pub fn pause(&self) {
        self.shared.paused.send_replace(true);
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.shared.paused.send_replace(false);
    }

    /// Ends all connections, and closes new ones at once, until [`start_again`](Self::start_again).
    pub fn kill(&self) {
        self.shared.ended.send_modify(|ended| *ended += 1);
    }

    /// Takes connections again after [`kill`](Self::kill).
    pub fn start_again(&self) {
        self.shared.ended.send_modify(|ended| *ended += 1);
    }
}

impl std::fmt::Debug for HttpReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpReceiver")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Drop for HttpReceiver {
    fn drop(&mut self) {
        drop(self.stop.take());
        let joined = self.thread.take().map(thread::JoinHandle::join);
        assert!(thread::panicking() || joined.is_none_or(|joined| joined.is_ok()));
    }
}

async fn serve(
    listener: TcpListener,
    streams: Option<u32>,
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
                        None => connection(stream, streams, shared).await,
                        Some(tls) => {
                            if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
                                connection(stream, streams, shared).await;
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
    streams: Option<u32>,
    shared: Arc<Shared>,
) {
    let service = service_fn(move |request| respond(request, Arc::clone(&shared)));
    let io = TokioIo::new(stream);
    if let Some(streams) = streams {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // Its tasks end with the connection's future.
        drop(
            builder
                .max_concurrent_streams(streams)
                .serve_connection(io, service)
                .await,
        );
    } else {
        drop(http1::Builder::new().serve_connection(io, service).await);
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
        at: millis_now(),
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
        Reaction::StoreAfter(time, status) => {
            tokio::time::sleep(time).await;
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
