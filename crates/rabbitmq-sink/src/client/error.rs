//! Errors of a connection.

use std::io;

use walrelay_sink::Disposition;

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
    /// The server's certificate is refused, or the server refuses the client's.
    #[error("{address}: TLS fails: {source}")]
    Handshake {
        /// Host and port.
        address: String,
        /// The cause.
        source: io::Error,
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
    /// The TLS settings cannot be used.
    #[error("TLS cannot be used: {0}")]
    Tls(String),
}

impl RabbitmqError {
    /// Returns the reaction to the error.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Denied { .. } | Self::Declare { .. } | Self::Tls(_) => Disposition::Configuration,
            _ => Disposition::Retryable,
        }
    }
}
