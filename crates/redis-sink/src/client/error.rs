//! Errors of a connection.

use std::io;

use walrelay_sink::Disposition;

/// The bytes of the server are not RESP2, or answer another command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(crate) struct ProtocolError(pub(crate) &'static str);

/// The reason why there is no connection, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
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
    /// The server does not speak RESP2.
    #[error("{address}: {reason}")]
    Protocol {
        /// Host and port.
        address: String,
        /// The violation.
        reason: String,
    },
    /// The server takes no commands at the moment, or another one does.
    #[error("{address}: {code}: {why}")]
    NotReady {
        /// Host and port.
        address: String,
        /// The first word of the error reply.
        code: String,
        /// What it means.
        why: &'static str,
    },
    /// User or password are refused, or missing.
    #[error("{address}: the server refuses the login: {code}")]
    Denied {
        /// Host and port.
        address: String,
        /// The first word of the error reply.
        code: String,
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
}

impl RedisError {
    /// Returns the reaction to the error.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Denied { .. } | Self::Tls(_) => Disposition::Configuration,
            _ => Disposition::Retryable,
        }
    }
}
