//! Errors of a connection.

use std::io;

use walrelay_sink::Disposition;

/// The bytes of the server are not the NATS protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(crate) struct ProtocolError(pub(crate) &'static str);

/// The reason why there is no connection, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// The operating system refuses the connection, or it broke.
    #[error("{address}: {source}")]
    Io {
        /// Host and port.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The server did not answer in time.
    #[error("{address}: no answer for {seconds} s")]
    Timeout {
        /// Host and port.
        address: String,
        /// How long the client waited.
        seconds: u64,
    },
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
    /// The server's certificate is refused, or the server refuses the client's.
    #[error("{address}: TLS fails: {source}")]
    Handshake {
        /// Host and port.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The TLS settings cannot be used.
    #[error("TLS cannot be used: {0}")]
    Tls(String),
    /// The file of credentials cannot be used.
    #[error("{file}: {why}")]
    Credentials {
        /// The file.
        file: String,
        /// The reason.
        why: String,
    },
}

impl NatsError {
    /// Returns the reaction to the error.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Denied { .. }
            | Self::Tls(_)
            | Self::TlsMismatch { .. }
            | Self::Credentials { .. } => Disposition::Configuration,
            _ => Disposition::Retryable,
        }
    }
}
