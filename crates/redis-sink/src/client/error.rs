//! Errors of a connection.

use walrelay_failure::FailureWords;
use walrelay_sink::{CertificateFault, Disposition};
use walrelay_sink_client::{ClientError, ConnectError};

/// The bytes of the server are not RESP2, or answer another command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(crate) struct ProtocolError(pub(crate) &'static str);

/// The reason why there is no connection, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server does not speak RESP2.
    #[error("{address}: {reason}")]
    Protocol {
        /// Host and port.
        address: String,
        /// The violation.
        reason: String,
    },
    /// The server accepts no commands at the moment, or another one does.
    #[error("{address}: {code}: {why}")]
    NotReady {
        /// Host and port.
        address: String,
        /// The first word of the error reply.
        code: String,
        /// What it means.
        why: &'static str,
    },
    /// Sentinel names no master that can be used.
    #[error("{address}: {reason}")]
    Sentinel {
        /// Host and port.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// The hosts are no nodes of a cluster whose slots can be read.
    #[error("{address}: {reason}")]
    Cluster {
        /// Host and port.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// User or password are refused, or missing.
    #[error("{address}: the server refuses the login: {code}")]
    Denied {
        /// Host and port.
        address: String,
        /// The first word of the error reply.
        code: String,
    },
}

impl ClientError for RedisError {
    fn words(&self) -> FailureWords {
        self.table()
    }

    fn disposition(&self) -> Disposition {
        match self {
            Self::Denied { .. } | Self::Sentinel { .. } | Self::Cluster { .. } => {
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
