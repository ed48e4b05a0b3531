//! [`HttpConfig`]: the settings of the sink, with certificates and secrets read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use rustls::ClientConfig;
use walrelay_sink::SinkOptions;
use walrelay_sink_client::TlsFiles;

use crate::address::UrlTemplate;
use crate::error::HttpError;
use crate::signature::SigningSecret;

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1: a connection for each request in flight.
    One,
    /// HTTP/2: one connection to a server.
    Two,
}

/// A proxy: `http://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Proxy {
    /// Parses the URL of a proxy.
    ///
    /// # Errors
    /// If the text has another form. The message names the form, and not the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || "its form is http://host:port, without a user and a path".to_owned();
        let uri: Uri = text.parse().map_err(|_| form())?;
        let authority = uri.authority().ok_or_else(form)?;
        let is_plain = uri.scheme_str() == Some("http")
            && !authority.as_str().contains('@')
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none();
        match authority.port_u16() {
            Some(port) if is_plain && !authority.host().is_empty() => Ok(Self {
                host: authority.host().trim_matches(['[', ']']).to_owned(),
                port,
            }),
            _ => Err(form()),
        }
    }
}

/// The settings of the sink.
#[derive(Clone)]
pub struct HttpConfig {
    /// The URL of events.
    pub url: UrlTemplate,
    /// The URL of dead letters; `None`: as of events.
    pub dead_letter_url: Option<UrlTemplate>,
    /// The version of HTTP.
    pub version: HttpVersion,
    /// Requests in flight at most.
    pub max_in_flight: u32,
    /// The time from the start of a request until the status of its answer.
    pub timeout: Duration,
    /// The longest time that `Retry-After` is honoured for.
    pub retry_after_max: Duration,
    /// The time without a success after which the events of a destination that rows choose are given up, while
    /// it cannot be reached or answers that it cannot do it now; `None`: they wait for it.
    pub unavailable_for: Option<Duration>,
    /// The media type of events that have no header `content-type`.
    pub content_type: HeaderValue,
    /// The header that gets the key.
    pub key_header: Option<hyper::header::HeaderName>,
    /// The value of `authorization`, marked as sensitive.
    pub authorization: Option<HeaderValue>,
    /// The secrets that requests are signed with.
    pub secrets: Vec<SigningSecret>,
    /// The proxy.
    pub proxy: Option<Proxy>,
    /// True if a host that an event chooses may have a private address.
    pub allow_private: bool,
    /// TLS; `None` if no URL needs it.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The settings that other sections decide.
    pub options: SinkOptions,
}

/// Omits the secrets.
impl fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpConfig")
            .field("url", &self.url)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl HttpConfig {
    /// Creates the settings with defaults, for a URL and what other sections decide.
    pub fn new(url: UrlTemplate, options: SinkOptions) -> Self {
        Self {
            url,
            dead_letter_url: None,
            version: HttpVersion::One,
            max_in_flight: 32,
            timeout: Duration::from_secs(30),
            retry_after_max: Duration::from_secs(300),
            unavailable_for: None,
            content_type: HeaderValue::from_static("application/json"),
            key_header: None,
            authorization: None,
            secrets: Vec::new(),
            proxy: None,
            allow_private: false,
            tls: None,
            options,
        }
    }

    /// Reads the files of TLS, and uses TLS with `https`. Certificates are verified always.
    ///
    /// # Errors
    /// If a file cannot be read, or does not have what it is for.
    pub fn with_tls(mut self, files: &TlsFiles) -> Result<Self, HttpError> {
        let mut tls = files.client_config()?;
        tls.alpn_protocols = match self.version {
            HttpVersion::One => vec![b"http/1.1".to_vec()],
            HttpVersion::Two => vec![b"h2".to_vec()],
        };
        self.tls = Some(Arc::new(tls));
        Ok(self)
    }
}

/// Returns a configuration of this URL, for one record at a time.
#[cfg(test)]
pub(crate) fn test_config(url: &str) -> HttpConfig {
    let second = Duration::from_secs(1);
    let options = SinkOptions {
        max_in_flight_records: 1,
        max_in_flight_bytes: 1,
        max_retrying_bytes: 64 << 20,
        max_retrying_keys: 100,
        backoff_initial: second,
        backoff_max: second,
        retry_for: second,
        dead_letters: "dead".to_owned(),
    };
    HttpConfig::new(UrlTemplate::parse(url).unwrap(), options)
}
