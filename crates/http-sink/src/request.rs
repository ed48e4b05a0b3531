//! Makes the request of a record.
//!
//! Headers of an event become headers of the request. `ce_NAME`, as CloudEvents names attributes in
//! Kafka, becomes `ce-NAME`, whose value is percent-encoded as the HTTP binding of CloudEvents
//! says. Values of other headers are sent as they are, except bytes that no value may have, which
//! are percent-encoded. A header with the value null is left out.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Method, Request, Uri};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use walrelay_sink::{Header, Poison, Record, RecordKind, dlq_headers};

use crate::address::Target;
use crate::config::{HttpConfig, HttpVersion};
use crate::signature::signature;

/// The characters that a value of a header cannot have. All bytes beyond ASCII are encoded too.
const VALUE: &AsciiSet = CONTROLS;
/// The characters of [`VALUE`] and those that the HTTP binding of CloudEvents (3.1.3.2) encodes.
const ATTRIBUTE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Headers that the request itself has. An event's header of such a name is refused.
const RESERVED: [&str; 13] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers of an event at most: a map of headers has room for some 24,000 names, and ends the process
/// with more. Servers accept far fewer.
const MAX_HEADERS: usize = 1_000;

/// Returns the name of an event's header in a request.
pub(crate) fn header_name(name: &str) -> Result<HeaderName, String> {
    let attribute = name.strip_prefix("ce_").map(|name| format!("ce-{name}"));
    let name = attribute.as_deref().unwrap_or(name);
    let parsed = HeaderName::from_bytes(name.as_bytes());
    // The name may be a value of the row, so the error must not show it.
    let parsed = parsed.map_err(|_| "a header has a name that HTTP does not allow".to_owned())?;
    let lower = parsed.as_str();
    if RESERVED.contains(&lower) || lower.starts_with("webhook-") {
        return Err("a header has a name that the request needs itself".to_owned());
    }
    Ok(parsed)
}

/// Returns bytes as the value of a header that no log shows.
fn encoded(bytes: &[u8], set: &'static AsciiSet) -> HeaderValue {
    let text = percent_encode(bytes, set).to_string();
    // A recipient removes blanks at both ends.
    let inner = text.trim_matches(' ');
    let text = if inner.len() < text.len() {
        let start = text.len() - text.trim_start_matches(' ').len();
        let end = text.len() - start - inner.len();
        format!("{}{inner}{}", "%20".repeat(start), "%20".repeat(end))
    } else {
        text
    };
    // Every byte is printable ASCII or a blank.
    let mut value = HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

/// Checks that the headers of a record can be those of a request. Those of a dead letter that cannot be
/// are left out: what cannot be written stops the relay.
pub(crate) fn check_headers(record: &Record<'_>) -> Result<(), (Poison, String)> {
    if record.kind == RecordKind::DeadLetter {
        return Ok(());
    }
    let count = record.headers.len();
    if count > MAX_HEADERS {
        let why = format!("the event has {count} headers, a request accepts {MAX_HEADERS}");
        return Err((Poison::Oversize, why));
    }
    let named = |header: &Header<'_>| header_name(header.name).map(drop);
    let all = record.headers.iter().try_for_each(named);
    all.map_err(|why| (Poison::Rejected, why))
}

/// Returns the headers of a record that the request has: all of an event, whose headers were checked; of
/// a dead letter the relay's own and the first [`MAX_HEADERS`] others.
fn sent_headers<'r>(record: &Record<'r>) -> impl Iterator<Item = &'r Header<'r>> {
    let mut room = MAX_HEADERS;
    record.headers.iter().filter(move |header| {
        if header.name.starts_with(dlq_headers::PREFIX) {
            return true;
        }
        let fits = room > 0;
        room = room.saturating_sub(1);
        fits
    })
}

/// Returns the id of an event, the same in each attempt and each process: that of the row, or else
/// the position in the WAL.
fn webhook_id(record: &Record<'_>) -> HeaderValue {
    match record.event_id {
        Some(id) if !id.is_empty() => encoded(id, ATTRIBUTE),
        _ => {
            let id = format!(
                "{:X}-{}",
                record.position.published_lsn().get(),
                record.position.row
            );
            encoded(id.as_bytes(), ATTRIBUTE)
        }
    }
}

/// Makes the request of a record, whose headers were checked.
pub(crate) fn request(
    record: &Record<'_>,
    target: &Target,
    config: &HttpConfig,
    now: SystemTime,
) -> Request<Full<Bytes>> {
    let body = record.value.map(Bytes::copy_from_slice).unwrap_or_default();
    let id = webhook_id(record);
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = request_target(target, config);
    let headers = request.headers_mut();
    for header in sent_headers(record) {
        if let (Ok(name), Some(value)) = (header_name(header.name), header.value) {
            let set = if name.as_str().starts_with("ce-") {
                ATTRIBUTE
            } else {
                VALUE
            };
            headers.append(name, encoded(value, set));
        }
    }
    if config.version == HttpVersion::One {
        // The authority was parsed from a URL, so it is the value of a header.
        if let Ok(host) = HeaderValue::from_str(&target.authority) {
            headers.insert(HOST, host);
        }
    }
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("walrelay/", env!("CARGO_PKG_VERSION"))),
    );
    headers
        .entry(CONTENT_TYPE)
        .or_insert_with(|| config.content_type.clone());
    if let (Some(name), Some(key)) = (&config.key_header, record.key) {
        headers.insert(name.clone(), encoded(key, ATTRIBUTE));
    }
    if let Some(authorization) = &config.authorization {
        headers.insert(AUTHORIZATION, authorization.clone());
    }
    if !config.secrets.is_empty() {
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signed = signature(
            &config.secrets,
            id.to_str().unwrap_or_default(),
            seconds,
            &body,
        );
        let signed = encoded(signed.as_bytes(), VALUE);
        headers.insert(HeaderName::from_static("webhook-signature"), signed);
        headers.insert(HeaderName::from_static("webhook-timestamp"), seconds.into());
    }
    headers.insert(HeaderName::from_static("webhook-id"), id);
    request
}

/// Returns the target of the request line: the path, or the whole URL for HTTP/2 and for a proxy that
/// does not tunnel.
fn request_target(target: &Target, config: &HttpConfig) -> Uri {
    let whole = config.version == HttpVersion::Two || (config.proxy.is_some() && !target.secure);
    let mut parts = hyper::http::uri::Parts::default();
    parts.path_and_query = Some(target.path.clone());
    if whole && let Ok(authority) = target.authority.parse::<Authority>() {
        parts.authority = Some(authority);
        let secure = target.secure;
        parts.scheme = Some(if secure { Scheme::HTTPS } else { Scheme::HTTP });
    }
    Uri::from_parts(parts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use walrelay_sink::EventPosition;

    use super::*;
    use crate::config::test_config;
    use crate::signature::SigningSecret;

    fn config() -> HttpConfig {
        test_config("https://h:8/x?y")
    }

    fn request_of(record: &Record<'_>, config: &HttpConfig) -> Request<Full<Bytes>> {
        let target = config.url.target("t").unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
        request(record, &target, config, now)
    }

    fn header<'a>(request: &'a Request<Full<Bytes>>, name: &str) -> Vec<&'a str> {
        let values = request.headers().get_all(name).iter();
        values.map(|value| value.to_str().unwrap()).collect()
    }

    #[test]
    fn headers_of_the_event_become_headers_of_the_request() {
        let headers = [
            ("ce_type", Some("a b\"%ü".as_bytes())),
            ("content-type", Some(b"text/plain; x=\"%\"".as_slice())),
            ("Twice", Some(b"1")),
            ("twice", Some(b" 2\r\n\xff ")),
            ("none", None),
        ];
        let headers = headers.map(|(name, value)| Header { name, value });
        let record = Record {
            key: Some(b"k 1"),
            headers: &headers,
            event_id: Some("ü".as_bytes()),
            ..Record::default()
        };
        check_headers(&record).unwrap();
        let mut config = config();
        config.key_header = Some(HeaderName::from_static("x-key"));
        let request = request_of(&record, &config);
        assert_eq!(header(&request, "ce-type"), ["a%20b%22%25%C3%BC"]);
        assert_eq!(header(&request, "content-type"), ["text/plain; x=\"%\""]);
        assert_eq!(header(&request, "twice"), ["1", "%202%0D%0A%FF%20"]);
        assert_eq!(header(&request, "none"), <[&str; 0]>::default());
        assert_eq!(header(&request, "x-key"), ["k%201"]);
        assert_eq!(header(&request, "webhook-id"), ["%C3%BC"]);
        assert_eq!(header(&request, "host"), ["h:8"]);
        assert_eq!(request.uri(), "/x?y");
        assert!(!request.headers().contains_key("webhook-signature"));
        config.version = HttpVersion::Two;
        let request = request_of(&record, &config);
        assert!(!request.headers().contains_key("host"));
        assert_eq!(request.uri(), "https://h:8/x?y");
    }

    #[test]
    fn a_name_that_no_header_can_have_is_refused_without_being_shown() {
        for name in [
            "",
            "a b",
            "secret\r\n",
            "Host",
            "webhook-id",
            "transfer-encoding",
            "ü",
        ] {
            let value = Some(b"1".as_slice());
            let headers = [Header { name, value }];
            let record = Record {
                headers: &headers,
                ..Record::default()
            };
            let (poison, why) = check_headers(&record).expect_err(name);
            assert_eq!(poison, Poison::Rejected);
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn more_headers_than_a_request_takes_are_refused_and_a_dead_letter_has_the_first() {
        let names: Vec<String> = (0..30_000).map(|number| format!("h{number}")).collect();
        let value = Some(b"1".as_slice());
        let mut headers: Vec<Header<'_>> =
            names.iter().map(|name| Header { name, value }).collect();
        headers.push(Header {
            name: "no name",
            value,
        });
        headers.push(Header {
            name: dlq_headers::CLASS,
            value,
        });
        let record = Record {
            headers: &headers,
            ..Record::default()
        };
        assert_eq!(check_headers(&record).unwrap_err().0, Poison::Oversize);
        let most = Record {
            headers: &headers[..MAX_HEADERS],
            ..record
        };
        check_headers(&most).unwrap();
        assert!(request_of(&most, &config()).headers().contains_key("h999"));
        let dead_letter = Record {
            kind: RecordKind::DeadLetter,
            ..record
        };
        check_headers(&dead_letter).unwrap();
        let request = request_of(&dead_letter, &config());
        assert_eq!(header(&request, dlq_headers::CLASS), ["1"]);
        assert!(request.headers().contains_key("h999"));
        assert!(!request.headers().contains_key("h1000"));
    }

    #[test]
    fn an_event_without_an_id_has_its_position_as_id_and_is_signed() {
        let mut config = config();
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        config.secrets = SigningSecret::parse_all(secret).unwrap();
        let record = Record {
            value: Some(br#"{"test": 2432232314}"#),
            position: EventPosition::in_first_epoch(0x1_6B37, 2),
            ..Record::default()
        };
        let request = request_of(&record, &config);
        assert_eq!(header(&request, "webhook-id"), ["16B37-2"]);
        assert_eq!(header(&request, "content-type"), ["application/json"]);
        let id = Some(b"msg_p5jXN8AQM9LWM0D4loKWxJek".as_slice());
        let request = request_of(
            &Record {
                event_id: id,
                ..record
            },
            &config,
        );
        assert_eq!(header(&request, "webhook-timestamp"), ["1614265330"]);
        assert_eq!(
            header(&request, "webhook-signature"),
            ["v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="]
        );
    }
}
