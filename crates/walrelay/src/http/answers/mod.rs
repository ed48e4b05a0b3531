//! What each path of the endpoint is answered with.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap,
    HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use prometheus_client::registry::Registry;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::page::PAGE;
use crate::telemetry::{METRICS_TYPE, Telemetry, metrics_text};

/// Event streams at a time.
const MOST_STREAMS: usize = 16;
/// How often an event stream looks whether something urgent has changed.
const LOOK: Duration = Duration::from_millis(200);
/// The longest time between two events.
const TICK: Duration = Duration::from_secs(1);

pub(super) type Answer = Response<Either<Full<Bytes>, Events>>;

/// What the answers are made from.
pub(super) struct Answers {
    telemetry: Arc<Telemetry>,
    metrics: Registry,
    token: Option<SecretString>,
    streams: Arc<AtomicUsize>,
}

impl Answers {
    pub(super) fn new(
        telemetry: Arc<Telemetry>,
        metrics: Registry,
        token: Option<SecretString>,
    ) -> Self {
        Self {
            telemetry,
            metrics,
            token,
            streams: Arc::default(),
        }
    }

    /// Never fails: what is wrong is a status.
    pub(super) fn answer<B>(&self, request: &Request<B>) -> Answer {
        let path = request.uri().path();
        let is_health = matches!(path, "/healthz" | "/readyz");
        let mut answer = if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            answer
        } else if is_health || self.is_allowed(request.headers()) {
            self.answer_path(path)
        } else {
            let mut answer = text(
                StatusCode::UNAUTHORIZED,
                "a token is needed: http.token_file",
            );
            let challenge = HeaderValue::from_static("Basic realm=\"walrelay\", charset=\"UTF-8\"");
            answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            answer
        };
        let headers = answer.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    fn answer_path(&self, path: &str) -> Answer {
        match path {
            "/healthz" => text(StatusCode::OK, "ok"),
            "/readyz" => self.readiness(),
            "/metrics" => match metrics_text(&self.metrics) {
                Ok(body) => full(StatusCode::OK, METRICS_TYPE, body),
                Err(_) => text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the metrics cannot be written",
                ),
            },
            "/api/status" => {
                let mut report = self.telemetry.report();
                report.config = self.telemetry.config().to_vec();
                json(StatusCode::OK, &report)
            }
            "/api/history" => json(StatusCode::OK, &self.telemetry.history()),
            "/api/events" => self.events(),
            "/" => {
                let mut answer = full(
                    StatusCode::OK,
                    "text/html; charset=utf-8",
                    PAGE.html.as_str(),
                );
                if let Ok(policy) = HeaderValue::from_str(&PAGE.policy) {
                    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
                }
                answer
            }
            _ => text(
                StatusCode::NOT_FOUND,
                "there are /, /metrics, /healthz, /readyz, /api/status, /api/history, /api/events",
            ),
        }
    }

    fn readiness(&self) -> Answer {
        let reason = self.telemetry.not_ready();
        let status = match reason {
            None => StatusCode::OK,
            Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        json(
            status,
            &Readiness {
                ready: reason.is_none(),
                reason,
            },
        )
    }

    fn events(&self) -> Answer {
        let taken = self.streams.fetch_add(1, SeqCst);
        let place = Place(Arc::clone(&self.streams));
        if taken >= MOST_STREAMS {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many event streams are open",
            );
        }
        let events = Events::new(Arc::clone(&self.telemetry), place);
        let mut answer = Response::new(Either::Right(events));
        let kind = HeaderValue::from_static("text/event-stream");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    }

    /// Whether the request has the token, where one is needed.
    fn is_allowed(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let token = token.expose_secret().trim().as_bytes();
        let given = headers
            .get(AUTHORIZATION)
            .and_then(|value| given_token(value.as_bytes()));
        given.is_some_and(|given| {
            aws_lc_rs::constant_time::verify_slices_are_equal(&given, token).is_ok()
        })
    }
}

/// The token of a bearer, or the password of HTTP basic authentication (RFC 6750, RFC 7617).
fn given_token(header: &[u8]) -> Option<Vec<u8>> {
    let at = header.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = header.split_at(at);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(rest.to_vec());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let plain = STANDARD.decode(rest).ok()?;
    let colon = plain.iter().position(|byte| *byte == b':')?;
    Some(plain[colon + 1..].to_vec())
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    reason: Option<String>,
}

fn full(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(body.into())));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn text(status: StatusCode, body: &str) -> Answer {
    full(status, "text/plain; charset=utf-8", format!("{body}\n"))
}

fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    match serde_json::to_string(body) {
        Ok(body) => full(status, "application/json", body),
        Err(_) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the answer cannot be written",
        ),
    }
}

/// A place among the event streams.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Server-sent events (HTML standard, section 9.2): the status each second, and at once when its state changes.
pub(super) struct Events {
    telemetry: Arc<Telemetry>,
    looks: Interval,
    sent: Option<(Instant, (String, bool))>,
    _place: Place,
}

impl Events {
    fn new(telemetry: Arc<Telemetry>, place: Place) -> Self {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            telemetry,
            looks,
            sent: None,
            _place: place,
        }
    }

    fn event(&self) -> Option<Bytes> {
        let mut report = self.telemetry.report();
        report.sample = self.telemetry.last_sample();
        let data = serde_json::to_string(&report).ok()?;
        Some(Bytes::from(format!("event: status\ndata: {data}\n\n")))
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let now = std::task::ready!(self.looks.poll_tick(context));
            let urgent = self.telemetry.urgent();
            let due = self
                .sent
                .as_ref()
                .is_none_or(|(at, last)| now.duration_since(*at) >= TICK || *last != urgent);
            if due {
                self.sent = Some((now, urgent));
                return Poll::Ready(self.event().map(|event| Ok(Frame::data(event))));
            }
        }
    }
}

#[cfg(test)]
mod tests;
