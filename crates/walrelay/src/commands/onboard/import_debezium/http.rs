//! Fetches the configuration of a connector from Kafka Connect's REST interface.

use std::time::Duration;

use ureq::http::Uri;

use walrelay_http_client::{Roots, agent, basic};

/// Timeout of the whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest configuration that is read.
const MOST_BYTES: u64 = 4 << 20;

/// A failed request. The URL is shown without user and password.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// The URL is not valid.
    #[error("the URL cannot be read")]
    Url,
    /// The server did not answer, or not in time.
    #[error("{url} cannot be read: {reason}")]
    Request { url: String, reason: String },
    /// The server answered with another status than 200.
    #[error("{url} answered with status {status}")]
    Status { url: String, status: u16 },
}

/// Returns true if the argument is a URL and not the name of a file.
pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Fetches the URL `text`, with basic authentication if it has user and password. Redirects are not
/// followed, as they could send the password to another host.
pub(super) fn get(text: &str) -> Result<String, HttpError> {
    let Target {
        url,
        secure,
        authorization,
    } = Target::parse(text)?;
    let failed = |error: ureq::Error| HttpError::Request {
        url: url.clone(),
        reason: error.to_string(),
    };
    let roots = if secure { Roots::System } else { Roots::None };
    let agent = agent(REQUEST_TIMEOUT, roots);
    let mut request = agent.get(&url).header("Accept", "application/json");
    if let Some(authorization) = &authorization {
        request = request.header("Authorization", authorization);
    }
    let mut answer = request.call().map_err(failed)?;
    let status = answer.status().as_u16();
    if status != 200 {
        return Err(HttpError::Status { url, status });
    }
    let body = answer.body_mut().with_config().limit(MOST_BYTES);
    body.read_to_string().map_err(failed)
}

/// A URL, split from its credentials.
struct Target {
    /// The URL without user and password.
    url: String,
    secure: bool,
    /// Value of the header `Authorization`.
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
        // An @ in the path may be part of a password that is not percent-encoded, which must not be
        // shown.
        if host.is_empty() || path.contains('@') {
            return Err(HttpError::Url);
        }
        let path = path.split('#').next().unwrap_or_default();
        let url = format!("{scheme}://{host}{path}");
        url.parse::<Uri>().map_err(|_| HttpError::Url)?;
        let authorization = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            basic(&percent_decode(name), &percent_decode(password))
        });
        Ok(Self {
            secure: scheme == "https",
            url,
            authorization,
        })
    }
}

/// Decodes percent-encoded bytes; invalid escapes stay as they are.
fn percent_decode(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
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
    fn percent_encoding_is_decoded() {
        assert_eq!(
            percent_decode("a%40%C3%9F%25%2f%c3%bc"),
            "a@ß%/ü".as_bytes()
        );
        assert_eq!(percent_decode("%zz%4"), b"%zz%4");
        assert_eq!(percent_decode("%ß"), "%ß".as_bytes());
    }
}
