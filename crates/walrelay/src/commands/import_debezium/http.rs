//! The configuration of a connector from Kafka Connect's REST interface.

use std::time::Duration;

use ureq::http::Uri;

use crate::http::{Roots, agent, basic};

/// How long the whole answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// No configuration is larger.
const MOST_BYTES: u64 = 4 << 20;

/// Why there is no answer. The URL is shown without user and password.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// It is none.
    #[error("the URL cannot be read")]
    Url,
    /// Nobody answered, or not in time.
    #[error("{url} cannot be read: {reason}")]
    Request {
        /// Without user and password.
        url: String,
        /// The client's words.
        reason: String,
    },
    /// The answer is an error.
    #[error("{url} answered with status {status}")]
    Status {
        /// Without user and password.
        url: String,
        /// Of HTTP.
        status: u16,
    },
}

/// Whether the argument is a URL and not the name of a file.
pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// GETs `text`, with basic authentication if the URL has user and password. Redirections are not
/// followed: they could lead the password elsewhere.
pub(super) fn get(text: &str) -> Result<String, HttpError> {
    let target = Target::parse(text)?;
    let shown = target.url.clone();
    let failed = |error: &ureq::Error| HttpError::Request {
        url: shown.clone(),
        reason: error.to_string(),
    };
    let roots = if target.secure {
        Roots::System
    } else {
        Roots::None
    };
    let agent = agent(PATIENCE, roots);
    let mut request = agent.get(&target.url).header("Accept", "application/json");
    if let Some(authorization) = &target.authorization {
        request = request.header("Authorization", authorization);
    }
    let mut answer = request.call().map_err(|error| failed(&error))?;
    let status = answer.status().as_u16();
    if status != 200 {
        return Err(HttpError::Status { url: shown, status });
    }
    answer
        .body_mut()
        .with_config()
        .limit(MOST_BYTES)
        .read_to_string()
        .map_err(|error| failed(&error))
}

/// Where to ask, and as whom.
struct Target {
    url: String,
    secure: bool,
    authorization: Option<String>,
}

impl Target {
    fn parse(text: &str) -> Result<Self, HttpError> {
        let (scheme, rest) = text.split_once("://").ok_or(HttpError::Url)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        // An @ further on belongs to a password that was not encoded; it must not be shown.
        if host.is_empty() || path.contains('@') {
            return Err(HttpError::Url);
        }
        let path = path.split('#').next().unwrap_or_default();
        let url = format!("{scheme}://{host}{path}");
        url.parse::<Uri>().map_err(|_| HttpError::Url)?;
        let authorization = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            basic(&decoded(name), &decoded(password))
        });
        Ok(Self {
            secure: scheme == "https",
            url,
            authorization,
        })
    }
}

/// Undoes percent-encoding; what is none stays as it is.
fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = text
            .get(at + 1..at + 3)
            .filter(|digits| byte == b'%' && digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(code.unwrap_or(byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_are_not_part_of_what_is_shown() {
        let target = Target::parse("https://u%40x:p%3Aw@h:8083/connectors/a/config#x").unwrap();
        assert_eq!(target.url, "https://h:8083/connectors/a/config");
        // u@x:p:w
        assert_eq!(target.authorization.as_deref(), Some("Basic dUB4OnA6dw=="));
        assert!(target.secure);
        let target = Target::parse("http://h/c").unwrap();
        assert!(target.authorization.is_none() && !target.secure);
        for text in [
            "http://",
            "http://u:p/w@h/c",
            "http://u:p@/c",
            "http://a b/c",
        ] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn encoding_is_undone() {
        assert_eq!(decoded("a%40%C3%9F%25%2f%c3%bc"), "a@ß%/ü".as_bytes());
        assert_eq!(decoded("%zz%4"), b"%zz%4");
        assert_eq!(decoded("%ß"), "%ß".as_bytes());
    }
}
