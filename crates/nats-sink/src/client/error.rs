//! Errors of a connection.

use walrelay_failure::FailureWords;
use walrelay_sink::{CertificateFault, Disposition};
use walrelay_sink_client::{ClientError, ConnectError};

/// The bytes of the server are not the NATS protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(crate) struct ProtocolError(pub(crate) &'static str);

/// The reason why there is no connection, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server does not speak the NATS protocol.
    #[error("{address}: {reason}")]
    Protocol {
        /// Host and port.
        address: String,
        /// The violation.
        reason: String,
    },
    /// The server has ended the connection.
    #[error("{address}: the server ended the connection: {why}")]
    Closed {
        /// Host and port.
        address: String,
        /// The reason.
        why: &'static str,
    },
    /// The login is refused, or missing.
    #[error("{address}: the server refuses the login")]
    Denied {
        /// Host and port.
        address: String,
    },
    /// The server wants TLS and the configuration has none, or the other way round.
    #[error("{address}: {what}")]
    TlsMismatch {
        /// Host and port.
        address: String,
        /// What the server wants.
        what: &'static str,
    },
    /// The file of credentials cannot be used.
    #[error("{file}: {why}")]
    Credentials {
        /// The file.
        file: String,
        /// The reason.
        why: String,
    },
}

impl ClientError for NatsError {
    fn words(&self) -> FailureWords {
        self.table()
    }

    fn disposition(&self) -> Disposition {
        match self {
            Self::Denied { .. } | Self::TlsMismatch { .. } | Self::Credentials { .. } => {
                Disposition::Configuration
            }
            Self::Connect(error) => error.disposition(),
            _ => Disposition::Retryable,
        }
    }

    fn certificate_fault(&self) -> Option<&CertificateFault> {
        match self {
            Self::Connect(error) => error.certificate_fault(),
            _ => None,
        }
    }
}
