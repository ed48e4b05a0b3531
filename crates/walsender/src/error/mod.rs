//! The errors of this crate, and their classes.

mod class;
mod server;

use std::borrow::Cow;
use std::io;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

pub use class::ErrorClass;
pub use server::ServerError;

use crate::conninfo::{ConnInfoError, TargetSessionAttrs};
use crate::tls::TlsError;
use crate::version::ServerVersion;

/// An error of a connection to a server.
///
/// [`Error::class`] decides what to do about it. An error can be cloned, because a stream that has
/// failed returns the same error again. No variant contains a password. Messages of the server are
/// passed on unchanged.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// An I/O error: no such host, connection refused, reset …
    #[error("{host}: {doing}")]
    Io {
        /// The server, as [`Host`](crate::Host) displays it.
        host: Arc<str>,
        doing: &'static str,
        source: Arc<io::Error>,
    },
    /// Connecting took longer than `connect_timeout`.
    #[error("{host}: no session within {after:?}")]
    Timeout { host: Arc<str>, after: Duration },
    /// The server did not answer a command within the [limit](crate::Session::limit_answers).
    #[error("{host}: no answer within {after:?}")]
    NoAnswer { host: Arc<str>, after: Duration },
    /// TLS could not be set up: its files, the handshake, or a certificate that is not trusted.
    #[error(transparent)]
    Tls(Arc<TlsError>),
    /// The connection string demands encryption and the server has none.
    #[error("{host}: the server does not offer TLS and sslmode demands it")]
    TlsNotOffered { host: Arc<str> },
    /// The server asked for something that the connection string does not allow.
    #[error("{host}: the server asked for {asked}, which is not allowed: {remedy}")]
    AuthMethodRefused {
        host: Arc<str>,
        asked: &'static str,
        remedy: &'static str,
    },
    /// The server asked for a password and there is none.
    #[error(
        "{host}: the server asks for a password and neither the connection string nor a password file has one for this host, database and user"
    )]
    PasswordMissing { host: Arc<str> },
    /// SCRAM failed: the server may be an impostor.
    #[error("{host}: SCRAM authentication: {problem}")]
    Scram {
        host: Arc<str>,
        problem: &'static str,
        /// The error of the SCRAM exchange, if there is one.
        source: Option<Arc<io::Error>>,
    },
    /// `channel_binding=require` cannot be satisfied.
    #[error("{host}: channel_binding=require: {problem}")]
    ChannelBinding {
        host: Arc<str>,
        problem: &'static str,
    },
    /// The server is not one that `target_session_attrs` asks for.
    #[error("{host}: the session is {found}, target_session_attrs={wanted}")]
    WrongServer {
        host: Arc<str>,
        wanted: TargetSessionAttrs,
        found: &'static str,
    },
    /// None of several hosts or addresses could be used.
    #[error("no server would do: {}", listed(.attempts))]
    NoServer { attempts: Arc<[Error]> },
    /// The server answered with an error.
    #[error(transparent)]
    Server(Arc<ServerError>),
    /// The server is too old for failover slots.
    #[error("a failover slot needs Postgres 17; the server is {server}")]
    FailoverTooOld { server: ServerVersion },
    /// The server sent something that the documented protocol does not allow.
    #[error("protocol error: {what}")]
    Protocol { what: Cow<'static, str> },
    /// The server ended the connection or the stream without a reason.
    #[error("{what}")]
    Closed { what: &'static str },
    /// The connection string, or the password file that it names, cannot be used.
    #[error(transparent)]
    ConnInfo(Arc<ConnInfoError>),
    /// A command or a setting cannot be sent, because it contains a NUL character.
    #[error("{what} contains a NUL character, which Postgres does not accept")]
    Nul { what: &'static str },
}

impl Error {
    /// Returns the SQLSTATE, if the server answered with an error.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Server(error) => Some(&error.sqlstate),
            _ => None,
        }
    }

    /// Returns the server's error, if it answered with one.
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            Self::Server(error) => Some(error),
            _ => None,
        }
    }

    /// Returns true if pgoutput does not find the publication in the catalogs of the change that it decodes: an
    /// error (`get_publication_oid` in `pg_publication.c`), since Postgres 18 a warning (`LoadPublications` in
    /// `pgoutput.c`).
    pub fn lacks_publication(&self) -> bool {
        let routine = self.server().and_then(|error| error.routine.as_deref());
        matches!(routine, Some("get_publication_oid" | "LoadPublications"))
    }

    /// Returns true if a policy would hide rows from the statement, which `row_security = off` makes an error
    /// (`check_enable_rls` in `rls.c`). Its SQLSTATE is that of a missing right, and its message may be in any language.
    pub fn is_of_row_security(&self) -> bool {
        let routine = self.server().and_then(|error| error.routine.as_deref());
        routine == Some("check_enable_rls")
    }

    /// Returns the class of the error, which decides what to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Server(error) => error.class(),
            Self::Io { source, .. } => class_of_io(source),
            Self::Timeout { .. }
            | Self::NoAnswer { .. }
            | Self::WrongServer { .. }
            | Self::Closed { .. } => ErrorClass::ServerUnavailable,
            Self::Tls(error) if error.is_transient() => ErrorClass::ServerUnavailable,
            Self::Tls(_)
            | Self::TlsNotOffered { .. }
            | Self::AuthMethodRefused { .. }
            | Self::PasswordMissing { .. }
            | Self::Scram { .. }
            | Self::ChannelBinding { .. }
            | Self::FailoverTooOld { .. }
            | Self::ConnInfo(_)
            | Self::Nul { .. } => ErrorClass::Configuration,
            Self::Protocol { .. } => ErrorClass::Protocol,
            // Retryable if any of the hosts may become available.
            Self::NoServer { attempts } => {
                let classes = attempts.iter().map(Error::class);
                let retryable = classes.clone().find(|class| class.is_retryable());
                let first = retryable.or_else(|| classes.clone().next());
                first.unwrap_or(ErrorClass::Unknown)
            }
        }
    }

    /// Returns true if a retry with back-off can help. See [`ErrorClass::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.class().is_retryable()
    }

    /// Returns true if the system gives this process no more file descriptors, of which a connection needs one
    /// (`EMFILE`, `ENFILE`).
    pub fn lacks_descriptors(&self) -> bool {
        match self {
            Self::Io { source, .. } => matches!(source.raw_os_error(), Some(23 | 24)),
            Self::NoServer { attempts } => attempts.iter().any(Self::lacks_descriptors),
            _ => false,
        }
    }

    /// Returns true if the server denies the login, or TLS fails: the password or a certificate has expired or
    /// was changed, say. For a client that was connected before, that may pass without a change of its
    /// configuration.
    pub fn refuses_login(&self) -> bool {
        match self {
            Self::Server(error) => error.sqlstate.starts_with("28"),
            Self::Io { source, .. } => class_of_io(source) == ErrorClass::Configuration,
            Self::NoServer { attempts } => attempts.iter().any(Self::refuses_login),
            Self::Tls(_)
            | Self::TlsNotOffered { .. }
            | Self::AuthMethodRefused { .. }
            | Self::PasswordMissing { .. }
            | Self::Scram { .. }
            | Self::ChannelBinding { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn protocol(what: impl Into<Cow<'static, str>>) -> Self {
        Self::Protocol { what: what.into() }
    }

    /// Creates a protocol error from postgres-protocol's error about a message that it cannot
    /// parse.
    pub(crate) fn malformed(what: &str, source: &io::Error) -> Self {
        Self::protocol(format!("{what}: {source}"))
    }
}

impl From<ServerError> for Error {
    fn from(error: ServerError) -> Self {
        Self::Server(Arc::new(error))
    }
}

impl From<ConnInfoError> for Error {
    fn from(error: ConnInfoError) -> Self {
        Self::ConnInfo(Arc::new(error))
    }
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Tls(Arc::new(error))
    }
}

/// Returns the class of an I/O error. All are retryable, except that a server refuses the client's
/// certificate: in TLS 1.3 the server reports that only after the handshake.
fn class_of_io(error: &io::Error) -> ErrorClass {
    use rustls::AlertDescription as Alert;
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied,
        )) => ErrorClass::Configuration,
        _ => ErrorClass::ServerUnavailable,
    }
}

/// Lists the failures, each with its chain of causes, because a list has no single source.
fn listed(attempts: &[Error]) -> String {
    let chain = |error: &Error| {
        let first: &dyn std::error::Error = error;
        let reasons = iter::successors(Some(first), |error| error.source());
        reasons
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": ")
    };
    attempts.iter().map(chain).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(host: &str) -> Error {
        Error::Io {
            host: host.into(),
            doing: "connecting",
            source: Arc::new(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    fn no_password() -> Error {
        Error::PasswordMissing {
            host: "db2:5432".into(),
        }
    }

    #[test]
    fn errors_are_small_enough_to_return() {
        assert!(size_of::<Error>() <= 64, "{}", size_of::<Error>());
    }

    /// The error of a policy, and that of a missing right, as a German server writes them.
    #[test]
    fn a_policy_is_told_from_a_missing_right_in_any_language() {
        let error = |message: &str, routine: &str| {
            Error::Server(Arc::new(ServerError {
                sqlstate: "42501".to_owned(),
                message: message.to_owned(),
                routine: Some(routine.to_owned()),
                ..ServerError::default()
            }))
        };
        let policy = "Anfrage würde von Policy für Sicherheit auf Zeilenebene für Tabelle »outbox« betroffen sein";
        assert!(error(policy, "check_enable_rls").is_of_row_security());
        let right = "keine Berechtigung für Tabelle outbox";
        assert!(!error(right, "aclcheck_error").is_of_row_security());
    }

    #[test]
    fn a_list_names_each_host_with_its_reason() {
        let error = Error::NoServer {
            attempts: [refused("db1:5432"), no_password()].into(),
        };
        let text = error.to_string();
        assert!(
            text.contains("db1:5432: connecting: connection refused"),
            "{text}"
        );
        assert!(
            text.contains("db2:5432: the server asks for a password"),
            "{text}"
        );
    }

    #[test]
    fn a_list_is_retried_if_any_of_it_may_pass() {
        let class = |attempts: &[Error]| {
            Error::NoServer {
                attempts: attempts.into(),
            }
            .class()
        };
        assert_eq!(
            class(&[no_password(), refused("a")]),
            ErrorClass::ServerUnavailable
        );
        assert_eq!(
            class(&[refused("a"), no_password()]),
            ErrorClass::ServerUnavailable
        );
        assert_eq!(
            class(&[no_password(), no_password()]),
            ErrorClass::Configuration
        );
    }
}
