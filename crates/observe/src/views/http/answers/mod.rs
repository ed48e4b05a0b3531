//! The response for each path of the HTTP endpoint.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap,
    HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use walrelay_sink::EventPosition;

use super::page::{PAGE, Page, RUNBOOK};
use crate::event_jobs::{EventJob, NotBegun};
use crate::sections;
use crate::{DlqAccess, EventJobs, METRICS_TYPE, Pipelines, Telemetry, metrics_text};

/// The path by which a dead letter is sent again.
const REDRIVE: &str = "/api/dead-letters/redrive";
/// The path by which an event is looked for.
const WHERE: &str = "/api/event/where";
/// The path by which the rows of an event are sent again.
const RESEND: &str = "/api/event/resend";
/// The paths that begin work, by POST, each with the header that a request must have. No page of another
/// site can send it: a browser asks first (CORS), and is refused.
const ACTIONS: [(&str, &str); 3] = [
    (REDRIVE, "x-walrelay-redrive"),
    (WHERE, "x-walrelay-where"),
    (RESEND, "x-walrelay-resend"),
];
/// The header by which a browser tells where a request comes from (Fetch Metadata).
const FETCH_SITE: &str = "sec-fetch-site";
/// Open event streams at most.
const MOST_STREAMS: usize = 16;
/// Interval at which an event stream checks for an urgent change.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time between two events of a stream.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) type Answer = Response<Either<Full<Bytes>, Events>>;

/// Answers requests from the telemetry of the pipelines.
pub(super) struct Answers {
    pipelines: Pipelines,
    token: Option<SecretString>,
    /// The address that is listened on, and the configured names of the endpoint.
    address: IpAddr,
    hosts: Vec<String>,
    /// `/readyz` answers 200 while the relay stands by.
    standby_ready: bool,
    /// One permit for each event stream.
    streams: Arc<Semaphore>,
}

impl Answers {
    pub(super) fn new(pipelines: Pipelines, config: &sections::Http) -> Self {
        Self {
            pipelines,
            token: config.token.clone(),
            address: config.listen.ip(),
            hosts: config.hosts.clone(),
            standby_ready: config.standby_ready,
            streams: Arc::new(Semaphore::new(MOST_STREAMS)),
        }
    }

    /// Answers one request. Errors become responses with a status of 4xx or 5xx.
    pub(super) fn answer<B>(&self, request: &Request<B>) -> Answer {
        let path = request.uri().path();
        let is_health = matches!(path, "/healthz" | "/readyz");
        let action = ACTIONS.iter().find(|(action, _)| *action == path);
        let method_fits = match action {
            Some(_) => *request.method() == Method::POST,
            None => matches!(*request.method(), Method::GET | Method::HEAD),
        };
        let answer = if !method_fits {
            let allowed = action.map_or("GET, HEAD", |_| "POST");
            let refusal = text(StatusCode::METHOD_NOT_ALLOWED, &format!("only {allowed}"));
            with(refusal, ALLOW, allowed)
        } else if is_health || self.is_allowed(request.headers()) {
            // Scrapers and probes may use any name.
            if is_health || path == "/metrics" || self.token.is_some() || self.is_named_by(request)
            {
                let query = request.uri().query();
                let refusal = action.and_then(|(_, header)| refusal(request.headers(), header));
                match (path, refusal) {
                    ("/api/dead-letters" | REDRIVE | RESEND, _) if self.token.is_none() => text(
                        StatusCode::FORBIDDEN,
                        "keys are shown and events sent again only with http.token_file; without it: walrelay dlq, \
                         walrelay resend",
                    ),
                    ("/api/event" | WHERE, _)
                        if self.token.is_none() && !self.address.is_loopback() =>
                    {
                        text(
                            StatusCode::FORBIDDEN,
                            "events are looked for only with http.token_file, or if http.listen is a loopback address; \
                             otherwise: walrelay where",
                        )
                    }
                    (_, Some(why)) => text(StatusCode::FORBIDDEN, &why),
                    _ => self.answer_path(path, query),
                }
            } else {
                text(
                    StatusCode::FORBIDDEN,
                    "the request's Host or Origin is no address of this endpoint: add its name to http.hosts, \
                     or set http.token_file",
                )
            }
        } else {
            let refusal = text(
                StatusCode::UNAUTHORIZED,
                "a token is needed: http.token_file",
            );
            let challenge = "Basic realm=\"walrelay\", charset=\"UTF-8\"";
            with(refusal, WWW_AUTHENTICATE, challenge)
        };
        let answer = with(answer, X_CONTENT_TYPE_OPTIONS, "nosniff");
        let answer = with(answer, REFERRER_POLICY, "no-referrer");
        with(answer, CACHE_CONTROL, "no-store")
    }

    /// Answers a path. `query`: names the pipeline of its documents, if there are several.
    fn answer_path(&self, path: &str, query: Option<&str>) -> Answer {
        let of_pipeline = |answer: &dyn Fn(&Arc<Telemetry>) -> Answer| {
            let named = self.pipelines.named(query);
            named.map_or_else(|why| text(StatusCode::NOT_FOUND, &why), answer)
        };
        match path {
            "/healthz" => text(StatusCode::OK, "ok"),
            "/readyz" => self.readiness(),
            "/metrics" => match metrics_text(&self.pipelines) {
                Ok(body) => full(StatusCode::OK, METRICS_TYPE, body),
                Err(_) => text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the metrics cannot be written",
                ),
            },
            "/api/status" => of_pipeline(&|telemetry| {
                let mut report = telemetry.report();
                report.config = telemetry.config().to_vec();
                report.sample = telemetry.last_sample();
                json(StatusCode::OK, &report)
            }),
            "/api/history" => of_pipeline(&|telemetry| json(StatusCode::OK, &telemetry.history())),
            "/api/events" => of_pipeline(&|telemetry| self.events(telemetry)),
            "/api/dead-letters" => of_pipeline(&|telemetry| {
                let access = telemetry.dead_letter_access();
                access.map_or_else(no_dead_letters, |access| {
                    json(StatusCode::OK, &access.list())
                })
            }),
            REDRIVE => of_pipeline(&|telemetry| {
                let access = telemetry.dead_letter_access();
                access.map_or_else(no_dead_letters, |access| redrive(access, query))
            }),
            "/api/event" => of_pipeline(&|telemetry| {
                let jobs = telemetry.event_jobs();
                jobs.map_or_else(no_event_jobs, |jobs| json(StatusCode::OK, &jobs.answer()))
            }),
            WHERE | RESEND => of_pipeline(&|telemetry| {
                let jobs = telemetry.event_jobs();
                jobs.map_or_else(no_event_jobs, |jobs| begin(jobs, path, query))
            }),
            "/" => document(&PAGE),
            "/runbook" => document(&RUNBOOK),
            _ => text(
                StatusCode::NOT_FOUND,
                "there are /, /runbook, /metrics, /healthz, /readyz, /api/status, /api/history, /api/events, \
                 /api/dead-letters, /api/event",
            ),
        }
    }

    fn readiness(&self) -> Answer {
        let readiness = self.pipelines.readiness(self.standby_ready);
        let status = if readiness.ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        json(status, &readiness)
    }

    fn events(&self, telemetry: &Arc<Telemetry>) -> Answer {
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many event streams are open",
            );
        };
        let events = Events::new(Arc::clone(telemetry), permit);
        let answer = Response::new(Either::Right(events));
        with(answer, CONTENT_TYPE, "text/event-stream")
    }

    /// Returns true if the request names this endpoint, so that it comes from no page of another
    /// site. A site can make its own name lead to any address (DNS rebinding), and the browser then
    /// takes this endpoint for the site.
    fn is_named_by<B>(&self, request: &Request<B>) -> bool {
        let header = |name| request.headers().get(name).map(HeaderValue::to_str);
        // The target of a request in the absolute form takes the place of Host (RFC 9112, 3.2.2).
        let host = match (request.uri().authority(), header(HOST)) {
            (Some(target), _) => Some(target.clone()),
            (None, Some(Ok(host))) => host.parse::<Authority>().ok(),
            (None, _) => None,
        };
        let origin = header(ORIGIN).map(|origin| origin.ok()?.parse::<Uri>().ok());
        let origin_is_ours = origin.is_none_or(|origin| {
            origin.is_some_and(|origin| origin.host().is_some_and(|host| self.has_name(host)))
        });
        origin_is_ours && host.is_some_and(|host| self.has_name(host.host()))
    }

    /// Returns true if this is a name or an address of the endpoint.
    fn has_name(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => {
                address.is_loopback() || address == self.address || self.address.is_unspecified()
            }
            Err(_) => host == "localhost" || self.hosts.contains(&host),
        }
    }

    /// Returns true if no token is configured, or the request has it.
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

/// Returns the token of the header `Authorization`: a bearer token (RFC 6750), or the password of
/// basic authentication (RFC 7617).
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

/// Begins to redrive the dead letter that the query names, as in `lsn=0/16B3748&row=0`.
fn redrive(access: &Arc<DlqAccess>, query: Option<&str>) -> Answer {
    let id = parameter(query, "lsn").zip(parameter(query, "row"));
    match id.and_then(|(lsn, row)| EventPosition::from_parts(lsn, row)) {
        None => text(
            StatusCode::BAD_REQUEST,
            "name a dead letter: ?lsn=0/16B3748&row=0",
        ),
        Some(id) if access.redrive(id) => text(
            StatusCode::ACCEPTED,
            "begun: /api/dead-letters has the result",
        ),
        Some(_) => text(StatusCode::CONFLICT, "another job runs: ask again"),
    }
}

/// Returns why a request may not begin work: it does not come from this page, or from a program of the
/// operator.
fn refusal(headers: &HeaderMap, header: &str) -> Option<String> {
    let site = headers.get(FETCH_SITE);
    if site.is_some_and(|site| site != "same-origin") {
        return Some("the request comes from a page of another site".to_owned());
    }
    (!headers.contains_key(header)).then(|| format!("the header {header} is missing"))
}

/// Returns a parameter of a query as it is written.
fn parameter<'q>(query: Option<&'q str>, name: &str) -> Option<&'q str> {
    let mut parts = query.unwrap_or_default().split('&');
    parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// Begins to look for the event that the query names, as in `id=17`, or to send its rows again: with
/// `confirm=1`, and otherwise a dry run.
fn begin(jobs: &Arc<EventJobs>, path: &str, query: Option<&str>) -> Answer {
    let id = parameter(query, "id").filter(|id| !id.is_empty());
    let id = id.and_then(|id| percent_decode_str(id).decode_utf8().ok());
    let Some(id) = id else {
        return text(StatusCode::BAD_REQUEST, "name an event: ?id=ID");
    };
    let job = match (path, parameter(query, "confirm")) {
        (RESEND, Some("1")) => EventJob::Resend,
        (RESEND, _) => EventJob::DryRun,
        _ => EventJob::Where,
    };
    match jobs.begin(job, &id) {
        Ok(()) => text(StatusCode::ACCEPTED, "begun: /api/event has the result"),
        Err(NotBegun::Busy) => text(StatusCode::CONFLICT, "another job runs: ask again"),
        Err(NotBegun::NoDryRun) => text(
            StatusCode::PRECONDITION_REQUIRED,
            "leave out confirm=1 first: that is a dry run",
        ),
        Err(NotBegun::NotLookedFor) => text(
            StatusCode::PRECONDITION_REQUIRED,
            "look for the event first: /api/event/where",
        ),
        Err(NotBegun::Undelivered) => text(
            StatusCode::CONFLICT,
            "the event is not sent again, because the relay, or a redrive of its dead letter, is to deliver it yet; look \
             again later",
        ),
    }
}

fn no_event_jobs() -> Answer {
    text(
        StatusCode::NOT_FOUND,
        "this relay answers no questions about events: walrelay where",
    )
}

fn no_dead_letters() -> Answer {
    text(
        StatusCode::NOT_FOUND,
        "the sink cannot read dead letters back",
    )
}

fn full(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(body.into())));
    *answer.status_mut() = status;
    with(answer, CONTENT_TYPE, kind)
}

/// Adds a header, whose value must be visible ASCII.
fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    let value = HeaderValue::from_static(value);
    answer.headers_mut().insert(name, value);
    answer
}

fn document(page: &'static Page) -> Answer {
    let answer = full(
        StatusCode::OK,
        "text/html; charset=utf-8",
        page.html.as_str(),
    );
    with(answer, CONTENT_SECURITY_POLICY, &page.policy)
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

/// A stream of server-sent events (HTML standard, section 9.2): the status each second, and at once
/// when the state of the pipeline or the reachability of the sink changes.
pub(super) struct Events {
    telemetry: Arc<Telemetry>,
    polls: Interval,
    /// When the last event was sent, and what it showed of [`Telemetry::urgent`].
    sent: Option<(Instant, (String, bool))>,
    _permit: OwnedSemaphorePermit,
}

impl Events {
    fn new(telemetry: Arc<Telemetry>, permit: OwnedSemaphorePermit) -> Self {
        let mut polls = interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            telemetry,
            polls,
            sent: None,
            _permit: permit,
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
            let now = std::task::ready!(self.polls.poll_tick(context));
            let urgent = self.telemetry.urgent();
            let due = self.sent.as_ref().is_none_or(|(at, last)| {
                now.duration_since(*at) >= EVENT_INTERVAL || *last != urgent
            });
            if due {
                self.sent = Some((now, urgent));
                return Poll::Ready(self.event().map(|event| Ok(Frame::data(event))));
            }
        }
    }
}

#[cfg(test)]
mod tests;
