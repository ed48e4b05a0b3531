//! [`Client`]: sends requests and keeps connections.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Semaphore;
use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout};
use walrelay_sink::lock;

use crate::address::Target;
use crate::config::{HttpConfig, HttpVersion};
use crate::connect::{ConnectError, connect};
use crate::stream_body::StreamBody;

/// Bytes of an answer's body that are read so that its connection can be used again.
const MAX_ANSWER: usize = 64 << 10;
/// The time for which they are read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for which an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

type RequestBody = Full<Bytes>;
type One = http1::SendRequest<RequestBody>;
type Two = http2::SendRequest<StreamBody>;
/// Scheme, host and port: the same for requests that may share a connection.
type ServerId = (bool, Arc<str>, u16);

/// The reason why no answer came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendFailure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the connection ended before the answer")]
    Broken(#[source] hyper::Error),
    #[error("no answer came within {0:?}")]
    TimedOut(Duration),
}

/// Sends requests to any number of servers.
#[derive(Clone)]
pub(crate) struct Client(Arc<Inner>);

struct Inner {
    config: Arc<HttpConfig>,
    /// Connections of HTTP/1.1 that no request uses.
    idle: Mutex<Kept<One>>,
    /// The connection of HTTP/2. The lock is held while one is opened.
    shared: Mutex<Kept<SharedConnection>>,
    /// Bodies of answers that are read. With more, connections are closed instead.
    bodies: Arc<Semaphore>,
}

/// The connection of HTTP/2 to a server. Requests share it.
type SharedConnection = Arc<tokio::sync::Mutex<Option<Open>>>;

/// An open connection of HTTP/2.
#[derive(Clone)]
struct Open {
    sender: Two,
    /// When the server answered a request over it last, or when it was opened.
    answered: Arc<Mutex<Instant>>,
}

impl Client {
    pub(crate) fn new(config: Arc<HttpConfig>) -> Self {
        // Events may choose any number of servers.
        let most = 2 * config.max_in_flight as usize;
        Self(Arc::new(Inner {
            config,
            idle: Mutex::new(Kept::new(most)),
            shared: Mutex::new(Kept::new(most)),
            bodies: Arc::new(Semaphore::new(most)),
        }))
    }

    /// Sends the request and returns the head of the answer. Sends it twice if the server has closed a
    /// connection that was kept.
    pub(crate) async fn send(
        &self,
        target: &Target,
        request: Request<RequestBody>,
    ) -> Result<hyper::http::response::Parts, SendFailure> {
        let limit = self.0.config.timeout;
        let answered = match self.0.config.version {
            HttpVersion::One => timeout(limit, self.send_one(target, request)).await.ok(),
            HttpVersion::Two => self.send_two(target, request, limit).await,
        };
        if let Some(answered) = answered {
            return answered;
        }
        self.forget(target);
        Err(SendFailure::TimedOut(limit))
    }

    async fn send_one(
        &self,
        target: &Target,
        request: Request<RequestBody>,
    ) -> Result<hyper::http::response::Parts, SendFailure> {
        let server = server_id(target);
        if let Some(mut kept) = self.kept(&server) {
            // An error may mean that the server has closed the connection while it was idle. Then
            // the request is sent again, under the same id, by a connection of its own.
            if let Ok(answer) = kept.send_request(request.clone()).await {
                return Ok(self.read_body(answer, Some((server, kept))));
            }
        }
        let stream = connect(target, &self.0.config).await?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(SendFailure::Broken)?;
        // It ends with the server's close, or when `sender` is dropped.
        tokio::spawn(async move { drop(connection.await) });
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(SendFailure::Broken)?;
        Ok(self.read_body(answer, Some((server, sender))))
    }

    /// Sends the request over the connection that all requests to the server share. The time for the answer starts
    /// with the request's stream: until then the request waits as long as the server answers others. Returns `None` if
    /// the time is over.
    async fn send_two(
        &self,
        target: &Target,
        request: Request<RequestBody>,
        limit: Duration,
    ) -> Option<Result<hyper::http::response::Parts, SendFailure>> {
        let mut open = match timeout(limit, self.open_two(target)).await.ok()? {
            Ok(open) => open,
            Err(error) => return Some(Err(error)),
        };
        let (has_stream, gets_stream) = oneshot::channel();
        let request = request.map(|body| StreamBody::new(body, has_stream));
        let mut answer = pin!(open.sender.send_request(request));
        let mut gets_stream = pin!(gets_stream);
        let queued = Instant::now();
        let early = loop {
            let until = queued.max(*lock(&open.answered)) + limit;
            if until <= Instant::now() {
                return None;
            }
            tokio::select! {
                biased;
                answer = &mut answer => break Some(answer),
                _ = &mut gets_stream => break None,
                () = sleep_until(until.into()) => {}
            }
        };
        let answer = match early {
            Some(answer) => answer,
            None => timeout(limit, answer).await.ok()?,
        };
        if answer.is_ok() {
            *lock(&open.answered) = Instant::now();
        }
        let answer = answer.map_err(SendFailure::Broken);
        Some(answer.map(|answer| self.read_body(answer, None)))
    }

    /// Returns the connection to a server, and opens one if there is none.
    async fn open_two(&self, target: &Target) -> Result<Open, SendFailure> {
        let server = server_id(target);
        let place = {
            let mut shared = lock(&self.0.shared);
            // A request has a clone of the place until its answer.
            let place = shared.take(&server, |_| true).unwrap_or_default();
            shared.put(server, Arc::clone(&place), Instant::now());
            place
        };
        let mut open = {
            let mut known = place.lock().await;
            let open = known.as_ref().filter(|open| !open.sender.is_closed());
            if let Some(open) = open {
                open.clone()
            } else {
                *known = None;
                let stream = connect(target, &self.0.config).await?;
                let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
                let (sender, connection) = handshake.map_err(SendFailure::Broken)?;
                tokio::spawn(async move { drop(connection.await) });
                let answered = Arc::new(Mutex::new(Instant::now()));
                known.insert(Open { sender, answered }).clone()
            }
        };
        open.sender.ready().await.map_err(SendFailure::Broken)?;
        Ok(open)
    }

    /// Reads the body of an answer, and keeps the connection if it can be used again.
    fn read_body(
        &self,
        answer: Response<Incoming>,
        connection: Option<(ServerId, One)>,
    ) -> hyper::http::response::Parts {
        let (head, body) = answer.into_parts();
        let client = self.clone();
        let Ok(permit) = Arc::clone(&self.0.bodies).try_acquire_owned() else {
            return head;
        };
        let read = async move {
            let _permit = permit;
            if !body.is_end_stream() {
                let whole = Limited::new(body, MAX_ANSWER).collect();
                if !matches!(timeout(ANSWER_TIMEOUT, whole).await, Ok(Ok(_))) {
                    return;
                }
            }
            if let Some((server, mut sender)) = connection
                && sender.ready().await.is_ok()
            {
                lock(&client.0.idle).put(server, sender, Instant::now());
            }
        };
        tokio::spawn(read);
        head
    }

    /// Takes a connection that was kept and is open.
    fn kept(&self, server: &ServerId) -> Option<One> {
        lock(&self.0.idle).take(server, One::is_ready)
    }

    /// Forgets the connections to a server that did not answer: the network may be cut.
    fn forget(&self, target: &Target) {
        let server = server_id(target);
        lock(&self.0.idle).remove(&server);
        let place = lock(&self.0.shared).take(&server, |_| true);
        // If the lock is held, a connection is being opened.
        if let Some(place) = place
            && let Ok(mut known) = place.try_lock()
        {
            *known = None;
        }
    }
}

/// Connections to servers, of which the one that was used longest ago is closed for another one.
struct Kept<T> {
    connections: VecDeque<(ServerId, T, Instant)>,
    most: usize,
}

impl<T> Kept<T> {
    fn new(most: usize) -> Self {
        Self {
            connections: VecDeque::new(),
            most,
        }
    }

    /// Keeps a connection that is used no more since `now`. Closes those that were idle for too long.
    fn put(&mut self, server: ServerId, connection: T, now: Instant) {
        let too_old = |(_, _, since): &(ServerId, T, Instant)| {
            now.saturating_duration_since(*since) >= IDLE_TIMEOUT
        };
        while self.connections.len() >= self.most.max(1)
            || self.connections.front().is_some_and(too_old)
        {
            self.connections.pop_front();
        }
        self.connections.push_back((server, connection, now));
    }

    /// Takes the connection to a server that was used last, and can be used again. Closes others to it
    /// that cannot.
    fn take(&mut self, server: &ServerId, is_usable: impl Fn(&T) -> bool) -> Option<T> {
        loop {
            let mut all = self.connections.iter();
            let at = all.rposition(|(known, ..)| known == server)?;
            let (_, connection, since) = self.connections.remove(at)?;
            if since.elapsed() < IDLE_TIMEOUT && is_usable(&connection) {
                return Some(connection);
            }
        }
    }

    fn remove(&mut self, server: &ServerId) {
        self.connections.retain(|(known, ..)| known != server);
    }
}

fn server_id(target: &Target) -> ServerId {
    (target.secure, Arc::clone(&target.host), target.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u16) -> ServerId {
        (true, Arc::from("h"), number)
    }

    #[test]
    fn kept_connections_are_bounded_and_not_old() {
        let mut kept = Kept::new(3);
        let now = Instant::now();
        for number in 0..5 {
            kept.put(server(number % 4), number, now);
        }
        assert_eq!(kept.connections.len(), 3);
        assert_eq!(kept.take(&server(1), |_| true), None, "it was used first");
        kept.put(server(0), 9, now);
        assert_eq!(kept.take(&server(0), |_| true), Some(9), "used last");
        assert_eq!(kept.take(&server(0), |_| false), None);
        assert_eq!(kept.connections.len(), 1);
        kept.put(server(7), 7, now + IDLE_TIMEOUT);
        assert_eq!(kept.connections.len(), 1);
        let Some(long_ago) = now.checked_sub(IDLE_TIMEOUT) else {
            return;
        };
        kept.put(server(8), 8, long_ago);
        assert_eq!(kept.take(&server(8), |_| true), None);
    }
}
