use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustls::pki_types::{UnixTime, pem};
use rustls::{CertificateError, OtherError};

use crate::conninfo::Host;

/// The reason why a TLS connection could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}", .path.display())]
    File { path: PathBuf, source: io::Error },
    /// A file is not in PEM form.
    #[error("{} is not a PEM file: {}", .path.display(), pem_problem(.reason))]
    Pem {
        path: PathBuf,
        /// The error. Its text is not shown, because it may quote a line of a private key.
        reason: pem::Error,
    },
    /// A file contains no certificate.
    #[error("{} holds no certificate (BEGIN CERTIFICATE)", .path.display())]
    NoCertificate { path: PathBuf },
    /// A certificate in the file of root certificates cannot be used.
    #[error("{}: certificate {number} cannot be trusted", .path.display())]
    RootCertificate {
        path: PathBuf,
        /// The number of the certificate in the file, from 1.
        number: usize,
        source: rustls::Error,
    },
    /// `sslmode=verify-ca` without root certificates.
    #[error(
        "sslmode=verify-ca needs root certificates: neither sslrootcert is given nor is there a \
         ~/.postgresql/root.crt (with sslmode=verify-full those of the operating system are taken)"
    )]
    NoRootCertificates,
    /// The operating system has no certificates to trust.
    #[error("the operating system's certificate store holds no usable certificate")]
    EmptySystemStore {
        /// The first error while reading the store, if any.
        source: Option<rustls_native_certs::Error>,
    },
    /// Group or others have access to the private key.
    #[error(
        "private key {} has mode {mode:04o}: group and others must have no access (chmod 600), or, \
         if root owns it, the group may read it (chmod 640)",
        .path.display()
    )]
    KeyPermissions { path: PathBuf, mode: u32 },
    /// The private key is protected by a passphrase.
    #[error(
        "private key {} is encrypted, which is not supported: decrypt it (openssl pkey -in … -out …) \
         and protect it by its permissions",
        .path.display()
    )]
    KeyEncrypted { path: PathBuf },
    /// A file contains no private key.
    #[error("{} holds no private key (PKCS#8, PKCS#1 or SEC1 in PEM)", .path.display())]
    NoKey { path: PathBuf },
    /// The client's certificate and key do not belong together, or one of them cannot be used.
    #[error(
        "client certificate {} and private key {}", .certificate.display(), .key.display()
    )]
    ClientKeyPair {
        certificate: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
    /// The cryptography provider does not support TLS 1.2 and 1.3.
    #[error("the cryptography provider cannot do TLS 1.2 and 1.3")]
    Provider { source: rustls::Error },
    /// The host is a unix socket, where servers do not offer TLS.
    #[error("{host} is a unix socket: there is no TLS on it")]
    UnixSocket { host: String },
    /// No certificate can contain the host's name, so it cannot be verified.
    #[error("{host}: no certificate can hold this host name, so sslmode=verify-full must fail")]
    HostName { host: String },
    /// The server's certificate was not issued by a trusted authority.
    #[error(
        "{host}: the server's certificate was issued by none of the authorities in {roots}, nor is it \
         one of these"
    )]
    UnknownIssuer { host: String, roots: String },
    /// The server's certificate is for other hosts.
    #[error("{host}: the server's certificate is not for this name{}", listed(.presented))]
    WrongHost {
        host: String,
        /// The names in the certificate, as far as they are known.
        presented: Vec<String>,
    },
    /// The server's certificate, or one above it, has expired.
    #[error("{host}: the server's certificate expired{}", ago(.not_after.as_ref()))]
    Expired {
        host: String,
        /// The end of its validity, if known.
        not_after: Option<SystemTime>,
    },
    /// The server's certificate, or one above it, is not valid yet; one of the clocks may be wrong.
    #[error("{host}: the server's certificate is not valid yet{}; is the clock right?", ahead(.not_before.as_ref()))]
    NotYetValid {
        host: String,
        /// The start of its validity, if known.
        not_before: Option<SystemTime>,
    },
    /// The server's certificate has X.509 version 1, which has no extensions.
    #[error(
        "{host}: the server's certificate is of X.509 version 1, which cannot be verified: issue one \
         of version 3 with the host's name as subjectAltName (openssl x509 -req needs -extfile or \
         -copy_extensions for that)"
    )]
    Version1 { host: String },
    /// The server's certificate was refused for another reason.
    #[error("{host}: the server's certificate is refused")]
    Certificate { host: String, source: rustls::Error },
    /// The handshake failed: client and server support no common version or algorithm, or one of
    /// them violated the protocol.
    #[error("{host}: TLS handshake failed")]
    Protocol {
        host: String,
        /// The error, or the server's alert.
        source: rustls::Error,
    },
    /// The connection broke during the handshake.
    #[error("{host}: the connection broke during the TLS handshake")]
    Handshake { host: String, source: io::Error },
}

/// The certificate has X.509 version 1, which has no host names and cannot be verified.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is of version 1")]
pub(super) struct Version1;

impl TlsError {
    /// Returns true if a retry may succeed, because the connection broke. Any other error needs a
    /// change of the configuration, a certificate or a clock.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Handshake { .. })
    }

    pub(super) fn from_handshake(host: &Host, roots: Option<&str>, source: io::Error) -> Self {
        use CertificateError as Problem;
        let host = host.to_string();
        let tls = source.get_ref().and_then(|inner| inner.downcast_ref());
        let Some(tls) = tls.cloned() else {
            return Self::Handshake { host, source };
        };
        let source: rustls::Error = tls;
        let rustls::Error::InvalidCertificate(problem) = &source else {
            return Self::Protocol { host, source };
        };
        let (not_after, not_before) = match problem {
            Problem::ExpiredContext { not_after, .. } => (system_time(*not_after), None),
            Problem::NotValidYetContext { not_before, .. } => (None, system_time(*not_before)),
            _ => (None, None),
        };
        let presented = match problem {
            Problem::NotValidForNameContext { presented, .. } => presented.clone(),
            _ => Vec::new(),
        };
        let roots = roots.unwrap_or("no file").to_owned();
        match problem {
            Problem::UnknownIssuer => Self::UnknownIssuer { host, roots },
            Problem::NotValidForName | Problem::NotValidForNameContext { .. } => {
                Self::WrongHost { host, presented }
            }
            Problem::Expired | Problem::ExpiredContext { .. } => Self::Expired { host, not_after },
            Problem::NotValidYet | Problem::NotValidYetContext { .. } => {
                Self::NotYetValid { host, not_before }
            }
            Problem::Other(OtherError(inner)) if inner.is::<Version1>() => Self::Version1 { host },
            _ => Self::Certificate { host, source },
        }
    }
}

fn system_time(time: UnixTime) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(time.as_secs()))
}

/// Describes the error without the file's content, which may be a private key.
fn pem_problem(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "an END line is missing",
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "the base64 between BEGIN and END is malformed",
        _ => "unreadable",
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        " (it holds no subjectAltName; the common name does not count)".to_owned()
    } else {
        format!(" but for {}", names.join(", "))
    }
}

fn ago(time: Option<&SystemTime>) -> String {
    let age = time.and_then(|time| SystemTime::now().duration_since(*time).ok());
    age.map_or_else(String::new, |age| format!(" {} ago", rough(age)))
}

fn ahead(time: Option<&SystemTime>) -> String {
    let wait = time.and_then(|time| time.duration_since(SystemTime::now()).ok());
    wait.map_or_else(String::new, |wait| format!(", only in {}", rough(wait)))
}

/// Writes a duration in one unit.
fn rough(time: Duration) -> String {
    match time.as_secs() {
        secs @ 0..120 => format!("{secs} s"),
        secs @ 120..7_200 => format!("{} min", secs / 60),
        secs @ 7_200..172_800 => format!("{} h", secs / 3_600),
        secs => format!("{} days", secs / 86_400),
    }
}
