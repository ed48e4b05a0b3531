//! [`HttpConfig`]: the settings of the sink, with certificates and secrets read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use walrelay_sink::SinkOptions;

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

/// The files of TLS, all in PEM.
#[derive(Debug, Clone, Default)]
pub struct ClientFiles {
    /// The certificates to trust; `None`: those of the operating system.
    pub ca: Option<PathBuf>,
    /// The relay's certificate with its chain, and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
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
    /// Keys that may wait to be sent again before all keys wait.
    pub max_retrying_keys: u32,
    /// The time from the begin of a request until the status of its answer.
    pub timeout: Duration,
    /// The longest time that `Retry-After` is honoured for.
    pub retry_after_max: Duration,
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
            max_retrying_keys: 100,
            timeout: Duration::from_secs(30),
            retry_after_max: Duration::from_secs(300),
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
    pub fn with_tls(mut self, files: &ClientFiles) -> Result<Self, HttpError> {
        let mut roots = RootCertStore::empty();
        match &files.ca {
            Some(file) => {
                for certificate in certificates(file)? {
                    roots
                        .add(certificate)
                        .map_err(|error| HttpError::file(file, error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(HttpError::Tls)?
            .with_root_certificates(roots);
        let mut tls = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| HttpError::file(key, error))?;
                builder
                    .with_client_auth_cert(certificates(chain)?, private)
                    .map_err(|error| HttpError::file(chain, error))?
            }
        };
        tls.alpn_protocols = match self.version {
            HttpVersion::One => vec![b"http/1.1".to_vec()],
            HttpVersion::Two => vec![b"h2".to_vec()],
        };
        self.tls = Some(Arc::new(tls));
        Ok(self)
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| HttpError::file(file, error))?;
    if certificates.is_empty() {
        return Err(HttpError::file(file, "there is no certificate in it"));
    }
    Ok(certificates)
}
