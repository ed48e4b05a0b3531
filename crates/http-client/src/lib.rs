//! The HTTP client for single requests: to a schema registry, Kafka Connect, an OpenTelemetry
//! collector, a management interface, a running relay. Events that a sink posts have a client of
//! their own.
//!
//! # Contents
//! - [`agent`]: a client with a time limit, and the certificates it trusts ([`Roots`]).
//! - [`one_url`], [`basic`]: a URL of a configuration, and the header of user and password.
//!
//! # Invariants
//! - Redirects are not followed: credentials reach the configured host alone.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The root certificates that the client trusts.
#[derive(Debug)]
pub enum Roots {
    /// No certificates: for requests without TLS.
    None,
    /// The operating system's root certificates, as for Postgres with `sslrootcert=system`.
    System,
    /// The certificates to trust.
    These(Vec<Certificate<'static>>),
}

impl Roots {
    /// Reads the certificates of a PEM file.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let pem = std::fs::read(path)?;
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut certificates = Vec::new();
        for item in parse_pem(&pem) {
            let item = item.map_err(|_| wrong("it is not PEM"))?;
            if let PemItem::Certificate(certificate) = item {
                certificates.push(certificate);
            }
        }
        if certificates.is_empty() {
            return Err(wrong("there is no certificate in it"));
        }
        Ok(Self::These(certificates))
    }

    fn certificates(self) -> Vec<Certificate<'static>> {
        match self {
            Self::None => Vec::new(),
            Self::These(certificates) => certificates,
            Self::System => {
                let found = rustls_native_certs::load_native_certs().certs;
                let owned = found.iter().map(|c| Certificate::from_der(c).to_owned());
                owned.collect()
            }
        }
    }
}

/// Creates an agent; `timeout` limits each request as a whole.
///
/// Redirects are not followed, as they could send credentials to another host. A status other than
/// 2xx is not an error.
pub fn agent(timeout: Duration, roots: Roots) -> Agent {
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots.certificates()))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .build();
    Agent::config_builder()
        .timeout_global(Some(timeout))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .proxy(None)
        .user_agent(concat!("walrelay/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .build()
        .new_agent()
}

/// Returns the value of the header `Authorization` for HTTP basic authentication (RFC 7617).
pub fn basic(user: &[u8], password: &[u8]) -> String {
    use base64::Engine as _;
    let plain = [user, b":", password].concat();
    let encoded = base64::engine::general_purpose::STANDARD.encode(plain);
    format!("Basic {encoded}")
}

/// Checks the URL of a server, and returns it without a slash at its end. The error says what is
/// expected.
pub fn one_url(url: &str) -> Result<String, String> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
    let why = match rest {
        None => "a URL begins with http:// or https://",
        Some(rest) if rest.contains('@') => {
            "write user and password as the keys `user` and `password`, or `password_file`, not \
             into the URL"
        }
        Some(rest) if rest.is_empty() || rest.starts_with(['/', ':']) || rest.contains(odd) => {
            "its form is http://host:8081, with a path if need be"
        }
        Some(_) => return Ok(url.trim_end_matches('/').to_owned()),
    };
    Err(why.to_owned())
}
