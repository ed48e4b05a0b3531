//! Errors of a connection.

use walrelay_failure::FailureWords;
use walrelay_sink::{CertificateFault, Disposition};
use walrelay_sink_client::{ClientError, ConnectError};

/// The bytes of the server are not AMQP 0-9-1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("the server speaks another version of AMQP")]
    Version,
    #[error("the server sent {0}")]
    Malformed(&'static str),
    #[error("the server sent the method {0}.{1} where it has no meaning")]
    Unexpected(u16, u16),
}

/// The reason why there is no connection, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RabbitmqError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server does not speak AMQP 0-9-1.
    #[error("{address}: {reason}")]
    Protocol {
        /// Host and port.
        address: String,
        /// The violation.
        reason: String,
    },
    /// The server closed the connection and gave a reason.
    #[error("{address}: the server closed the connection: {code} {text}")]
    Closed {
        /// Host and port.
        address: String,
        /// The reply code of AMQP.
        code: u16,
        /// The reply text.
        text: String,
    },
    /// User, password or virtual host are refused.
    #[error("{address}: the server refuses the login: {text}")]
    Denied {
        /// Host and port.
        address: String,
        /// The reply text.
        text: String,
    },
    /// The objects that `declare` asks for cannot be declared.
    #[error("{address}: {what} cannot be declared: {code} {why}")]
    Declare {
        /// Host and port.
        address: String,
        /// The exchange or queue.
        what: String,
        /// The reply code of AMQP.
        code: u16,
        /// The reason.
        why: &'static str,
    },
}

impl ClientError for RabbitmqError {
    fn words(&self) -> FailureWords {
        self.table()
    }

    fn disposition(&self) -> Disposition {
        match self {
            Self::Denied { .. } | Self::Declare { .. } => Disposition::Configuration,
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
