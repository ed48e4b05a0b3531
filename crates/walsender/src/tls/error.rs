use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustls::pki_types::{UnixTime, pem};
use rustls::{CertificateError, OtherError};

use crate::conninfo::Host;

/// Why there is no encrypted connection.
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
        /// What is wrong; not shown as it is, since it may quote a line of a private key.
        reason: pem::Error,
    },
    /// A file holds no certificate.
    #[error("{} holds no certificate (BEGIN CERTIFICATE)", .path.display())]
    NoCertificate { path: PathBuf },
    /// A certificate in the file of root certificates cannot be used.
    #[error("{}: certificate {number} cannot be trusted", .path.display())]
    RootCertificate {
        path: PathBuf,
        /// Which of the file's certificates, from 1.
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
        /// The first thing that went wrong while reading it, if any.
        source: Option<rustls_native_certs::Error>,
    },
    /// The private key can be read by others.
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
    /// A file holds no private key.
    #[error("{} holds no private key (PKCS#8, PKCS#1 or SEC1 in PEM)", .path.display())]
    NoKey { path: PathBuf },
    /// The client's certificate and key do not go together, or one of them is unusable.
    #[error(
        "client certificate {} and private key {}", .certificate.display(), .key.display()
    )]
    ClientKeyPair {
        certificate: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
    /// The cryptography provider lacks what TLS 1.2 and 1.3 need.
    #[error("the cryptography provider cannot do TLS 1.2 and 1.3")]
    Provider { source: rustls::Error },
    /// TLS is for TCP only; the server does not offer it on a unix socket.
    #[error("{host} is a unix socket: there is no TLS on it")]
    UnixSocket { host: String },
    /// The host's name cannot stand in a certificate, so it cannot be verified.
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
        /// What the certificate is for, as far as it says so.
        presented: Vec<String>,
    },
    /// The server's certificate, or one above it, has expired.
    #[error("{host}: the server's certificate expired{}", ago(.not_after.as_ref()))]
    Expired {
        host: String,
        /// Until when it was valid, if known.
        not_after: Option<SystemTime>,
    },
    /// The server's certificate, or one above it, is not valid yet; one of the clocks may be wrong.
    #[error("{host}: the server's certificate is not valid yet{}; is the clock right?", ahead(.not_before.as_ref()))]
    NotYetValid {
        host: String,
        /// From when on it is valid, if known.
        not_before: Option<SystemTime>,
    },
    /// The server's certificate has the old form without extensions.
    #[error(
        "{host}: the server's certificate is of X.509 version 1, which cannot be verified: issue one \
         of version 3 with the host's name as subjectAltName (openssl x509 -req needs -extfile or \
         -copy_extensions for that)"
    )]
    Version1 { host: String },
    /// The server's certificate was refused for another reason.
    #[error("{host}: the server's certificate is refused")]
    Certificate { host: String, source: rustls::Error },
    /// The two sides could not agree, or one of them broke the rules of TLS.
    #[error("{host}: TLS handshake failed")]
    Protocol {
        host: String,
        /// What happened, or what the server's alert said.
        source: rustls::Error,
    },
    /// The connection broke during the handshake.
    #[error("{host}: the connection broke during the TLS handshake")]
    Handshake { host: String, source: io::Error },
}

/// The certificate is of version 1, which knows no names of hosts and cannot be verified.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is of version 1")]
pub(super) struct Version1;

impl TlsError {
    /// Whether the same attempt may succeed later: the connection broke. Everything else needs
    /// somebody to change a configuration, a certificate or a clock.
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

/// Without what the file holds: it may be a private key.
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

/// A length of time with one unit.
fn rough(time: Duration) -> String {
    match time.as_secs() {
        secs @ 0..120 => format!("{secs} s"),
        secs @ 120..7_200 => format!("{} min", secs / 60),
        secs @ 7_200..172_800 => format!("{} h", secs / 3_600),
        secs => format!("{} days", secs / 86_400),
    }
}
