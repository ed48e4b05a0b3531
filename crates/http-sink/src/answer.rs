//! Decides what an answer, or its absence, means for a record.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use walrelay_sink::{Disposition, Poison};

/// The result of an attempt to send a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server has taken the event.
    Delivered,
    /// The event is to be sent again.
    Again(Again),
    /// The server refuses this event.
    Refused {
        poison: Poison,
        reason: String,
        /// True if the refusal cannot pass.
        certain: bool,
    },
    /// The server would refuse every event: the configuration must be changed.
    Stop(String),
}

/// The reason why an event is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Again {
    pub(crate) what: String,
    pub(crate) remedy: &'static str,
    pub(crate) disposition: Disposition,
    /// The time that the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
}

/// Returns what a status means.
pub(crate) fn of_status(status: StatusCode, retry_after: Option<&str>, now: SystemTime) -> Outcome {
    let code = status.as_u16();
    let stop = |advice: &str| Outcome::Stop(format!("the server answers {code}; {advice}"));
    match code {
        200..=299 => Outcome::Delivered,
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
        }),
        _ => Outcome::Refused {
            poison: if code == 413 {
                Poison::Oversize
            } else {
                Poison::Rejected
            },
            reason: format!("the server answers {code}"),
            certain: false,
        },
    }
}

/// Parses `Retry-After` (RFC 9110, 10.2.3): seconds, or a date.
fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_of(code: u16) -> Outcome {
        of_status(
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
                Outcome::Refused { poison, certain: false, .. } if poison == expected
            );
            assert!(refused, "{code}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, expected) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:27 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
        ] {
            let parsed = parse_retry_after(value, now);
            assert_eq!(parsed, expected.map(Duration::from_secs), "{value}");
        }
    }
}
