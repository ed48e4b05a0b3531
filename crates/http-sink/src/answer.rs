//! Decides the meaning of an answer, or of its absence, for a record.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{AGE, DATE, HeaderMap};
use walrelay_sink::{Disposition, Poison, clock_offset};

/// The greatest age of a `Date`, in microseconds: it is cut to seconds, and servers renew it each
/// second.
const DATE_AGE: i64 = 2_000_000;

/// The result of an attempt to send a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server has taken the event.
    Delivered,
    /// The event is to be sent again.
    Again(Again),
    /// The event is refused.
    Refused {
        poison: Poison,
        reason: String,
        because_of: Fault,
    },
    /// The server would refuse every event: the configuration must be changed.
    Stop(String),
}

/// The thing at fault for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The event, for good.
    Event,
    /// The event or its key; another try may succeed.
    Key,
    /// The address, which the event's row has chosen; another try may succeed.
    Address,
}

impl Outcome {
    /// Makes a stop the refusal of one event, whose row has chosen the address.
    pub(crate) fn blaming_address(self) -> Self {
        match self {
            Self::Stop(reason) => Self::Refused {
                poison: Poison::Rejected,
                reason,
                because_of: Fault::Address,
            },
            other => other,
        }
    }
}

/// The reason why an event is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Again {
    pub(crate) what: String,
    pub(crate) remedy: &'static str,
    pub(crate) disposition: Disposition,
    /// The time that the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
    /// The destination is at fault, so its other events wait too.
    pub(crate) stops_lane: bool,
    /// The destination itself may be down, and not the proxy on the way to it.
    pub(crate) is_outage: bool,
}

/// Returns the meaning of a status.
pub(crate) fn to_outcome(
    status: StatusCode,
    retry_after: Option<&str>,
    now: SystemTime,
) -> Outcome {
    let code = status.as_u16();
    let stop = |advice: &str| Outcome::Stop(format!("the server answers {code}; {advice}"));
    match code {
        200..=299 => Outcome::Delivered,
        304 => stop(
            "that answers a request for a document, so the URL is no endpoint for events: correct \
             url in [sink.http]",
        ),
        300..=399 => {
            stop("it redirects, and no redirect is followed: set url in [sink.http] to the new URL")
        }
        401 | 403 => stop(
            "it refuses the relay: correct token, certificate_file or secrets in [sink.http], or the \
             rights that the server gives them",
        ),
        407 => stop("the proxy refuses the relay: correct proxy in [sink.http]"),
        404 => stop("there is no such endpoint: correct url in [sink.http], or the topic in it"),
        410 => stop("the endpoint is gone: correct url in [sink.http], or end this pipeline"),
        408 | 425 | 429 | 500.. => Outcome::Again(Again {
            what: format!("the server answers {code}"),
            remedy: if code == 429 {
                "lower max_in_flight in [sink.http], or raise the limit of the server"
            } else {
                "see the log of the server"
            },
            disposition: Disposition::Retryable,
            retry_after: retry_after.and_then(|value| parse_retry_after(value, now)),
            stops_lane: false,
            is_outage: true,
        }),
        _ => Outcome::Refused {
            poison: if code == 413 {
                Poison::Oversize
            } else {
                Poison::Rejected
            },
            reason: format!("the server answers {code}"),
            because_of: Fault::Key,
        },
    }
}

/// Returns the time in seconds by which the server's clock is ahead of this machine's, at least, by the
/// field `Date` (RFC 9110, 6.6.1) of an answer that came between `before` and `after` (microseconds
/// since 1970 by this machine's clock). `None` without a date, and for an answer out of a cache, whose
/// date is that of the first answer (RFC 9111, 5.1).
pub(crate) fn clock_offset_by(headers: &HeaderMap, before: i64, after: i64) -> Option<f64> {
    if headers.contains_key(AGE) {
        return None;
    }
    let date = headers.get(DATE)?.to_str().ok()?;
    let date = httpdate::parse_http_date(date).ok()?;
    let date = date.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let date = i64::try_from(date.as_micros()).ok()?;
    Some(clock_offset(before - DATE_AGE, date, after))
}

/// Parses `Retry-After` (RFC 9110, 10.2.3): seconds, or a date.
fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than a u64 can hold is for ever, too.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_of(code: u16) -> Outcome {
        to_outcome(
            StatusCode::from_u16(code).unwrap(),
            None,
            SystemTime::UNIX_EPOCH,
        )
    }

    #[test]
    fn each_class_of_status_has_its_meaning() {
        for code in [200, 201, 202, 204, 299] {
            assert_eq!(outcome_of(code), Outcome::Delivered, "{code}");
        }
        for code in [301, 302, 304, 307, 308, 401, 403, 404, 407, 410] {
            assert!(matches!(outcome_of(code), Outcome::Stop(_)), "{code}");
        }
        for code in [408, 425, 429, 500, 502, 503, 504, 599] {
            assert!(matches!(outcome_of(code), Outcome::Again(_)), "{code}");
        }
        for (code, expected) in [
            (400, Poison::Rejected),
            (409, Poison::Rejected),
            (413, Poison::Oversize),
            (422, Poison::Rejected),
        ] {
            let refused = matches!(
                outcome_of(code),
                Outcome::Refused { poison, because_of: Fault::Key, .. } if poison == expected
            );
            assert!(refused, "{code}");
        }
    }

    #[test]
    fn a_date_is_apart_beyond_its_age_and_the_time_of_the_request() {
        const SECOND: i64 = 1_000_000;
        // Thu, 01 Jan 1970 00:01:40 GMT is 100 s.
        let fields = |date: &'static str| {
            HeaderMap::from_iter([(DATE, hyper::header::HeaderValue::from_static(date))])
        };
        let at_100 = fields("Thu, 01 Jan 1970 00:01:40 GMT");
        let offset = |before: i64, after: i64| {
            clock_offset_by(&at_100, before * SECOND, after * SECOND).expect("it has a date")
        };
        for (before, after, expected) in [
            (100, 100, 0.0),
            (90, 100, 0.0),
            (102, 103, 0.0),
            (103, 104, -1.0),
            (60, 70, 30.0),
        ] {
            let found = offset(before, after);
            assert!((found - expected).abs() < 1e-9, "{before} {after}: {found}");
        }
        assert_eq!(clock_offset_by(&HeaderMap::new(), 0, 0), None);
        for unreadable in ["yesterday", "Thu, 01 Jan 9999999 00:00:00 GMT", ""] {
            assert_eq!(clock_offset_by(&fields(unreadable), 0, 0), None);
        }
        let mut cached = at_100.clone();
        cached.insert(AGE, hyper::header::HeaderValue::from_static("30"));
        assert_eq!(clock_offset_by(&cached, 0, 0), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, expected) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:27 GMT", Some(0)),
            ("99999999999999999999", Some(u64::MAX)),
            ("-1", None),
            ("", None),
            ("soon", None),
        ] {
            let parsed = parse_retry_after(value, now);
            assert_eq!(parsed, expected.map(Duration::from_secs), "{value}");
        }
    }
}
