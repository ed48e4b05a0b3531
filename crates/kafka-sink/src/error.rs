use std::io;

use rdkafka::error::KafkaError as ClientError;
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::Disposition;

/// The reason why a Kafka client could not be created, or why the cluster refused it.
///
/// Contains names of servers and librdkafka's messages, never a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaError {
    /// librdkafka refused the configuration as a whole: an unreadable certificate, an invalid
    /// combination of properties.
    #[error("the Kafka client could not be made: {reason}")]
    Create {
        /// librdkafka's message without secrets.
        reason: String,
    },
    /// The operating system could not start a thread.
    #[error("the thread {name} could not be started")]
    Thread {
        /// The thread's name.
        name: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// No broker of `bootstrap.servers` could be reached in the time allowed.
    #[error(
        "no broker answers at {servers}: {detail}; check bootstrap.servers, the network, and that \
         security.protocol is the protocol of this port"
    )]
    Unreachable {
        /// `bootstrap.servers`.
        servers: String,
        /// The last error that the client reported.
        detail: String,
    },
    /// A broker answered and refused the credentials.
    #[error("the broker refused the credentials: {detail}; {remedy}")]
    Authentication {
        /// The client's or the broker's message.
        detail: String,
        /// What to check, for the mechanism in use.
        remedy: &'static str,
    },
    /// A broker answered and TLS failed.
    #[error("TLS to the broker failed: {detail}; {remedy}")]
    Tls {
        /// The client's message.
        detail: String,
        /// What is wrong with the certificate, and what to do.
        remedy: String,
    },
    /// There is no token for `sasl.mechanism=OAUTHBEARER`.
    #[error("there is no OAUTHBEARER token: {reason}")]
    Token {
        /// The message of the token source.
        reason: String,
    },
    /// A name in `bootstrap.servers` cannot be resolved.
    #[error("a broker's name could not be resolved: {detail}; check bootstrap.servers")]
    Resolve {
        /// The client's message.
        detail: String,
    },
    /// The in-process broker of [`embedded`](crate::embedded) could not be started.
    #[error("the embedded broker failed")]
    Embedded(#[source] ClientError),
    /// A consumer failed, or the brokers did not answer it.
    #[error("reading from the broker failed")]
    Tail(#[source] ClientError),
    /// A topic could not be created or deleted.
    #[error("topic {topic:?} could not be {change}: {code}")]
    Change {
        /// "created" or "deleted".
        change: &'static str,
        /// The topic's name.
        topic: String,
        /// The broker's error code.
        code: RDKafkaErrorCode,
    },
    /// A topic does not exist or cannot be read.
    #[error("topic {topic:?} cannot be read: {code}")]
    Topic {
        /// The topic's name.
        topic: String,
        /// The broker's error code.
        code: RDKafkaErrorCode,
    },
    /// A topic has records, and the brokers find none of them by its timestamp.
    #[error("topic {topic:?} has records, and the broker finds none of them by its timestamp")]
    NoTimes {
        /// The topic's name.
        topic: String,
    },
}

impl KafkaError {
    pub(crate) fn for_topic(topic: &str, code: RDKafkaErrorCode) -> Self {
        Self::Topic {
            topic: topic.to_owned(),
            code,
        }
    }

    /// Returns true if the principal may not read the topic.
    pub fn is_denied(&self) -> bool {
        let denied = RDKafkaErrorCode::TopicAuthorizationFailed;
        matches!(self, Self::Topic { code, .. } if *code == denied)
    }

    /// Returns how to react to the error.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Create { .. }
            | Self::Authentication { .. }
            | Self::Tls { .. }
            | Self::NoTimes { .. } => Disposition::Configuration,
            Self::Thread { .. }
            | Self::Unreachable { .. }
            | Self::Token { .. }
            | Self::Resolve { .. }
            | Self::Embedded(_)
            | Self::Tail(_)
            | Self::Change { .. }
            | Self::Topic { .. } => Disposition::Retryable,
        }
    }
}

/// Returns true if a broker refused the credentials.
pub(crate) fn is_refusal(code: Option<RDKafkaErrorCode>) -> bool {
    matches!(
        code,
        Some(
            RDKafkaErrorCode::Authentication
                | RDKafkaErrorCode::SaslAuthenticationFailed
                | RDKafkaErrorCode::UnsupportedSASLMechanism
                | RDKafkaErrorCode::IllegalSASLState
        )
    )
}

/// Returns true if the message is a TLS alert: the broker refuses the client's certificate or
/// requires one. In TLS 1.3 the alert comes after the handshake, and librdkafka reports a lost
/// connection.
pub(crate) fn is_alert(reason: &str) -> bool {
    reason.contains("SSL routines") && reason.contains("alert")
}

/// Returns the remedy for a refusal of the credentials. `uses_tokens`: the client authenticates by
/// OAUTHBEARER.
pub(crate) const fn refusal_remedy(uses_tokens: bool) -> &'static str {
    if uses_tokens {
        "check who issued the token, its audience and its end: token_file or token_command in \
         [sink.oauthbearer] is asked again by itself"
    } else {
        "check sasl.mechanism, sasl.username and sasl.password"
    }
}

/// The remedy for an error of TLS.
pub(crate) const TLS_REMEDY: &str = "check ssl.ca.location, the host name in bootstrap.servers against the \
     certificate, and the client certificate if one is asked for";

/// The remedy where no broker can be reached.
pub(crate) const REACH: Option<&str> = Some(
    "start the brokers, or repair the network: walrelay check from this machine tells address, TLS and login apart",
);

/// Returns the remedy for an error that librdkafka reports, by its code and its message; `None` for
/// errors without one of their own. `uses_tokens`: the client authenticates by OAUTHBEARER.
pub(crate) fn remedy(
    code: Option<RDKafkaErrorCode>,
    reason: &str,
    uses_tokens: bool,
) -> Option<&'static str> {
    if is_refusal(code) {
        return Some(refusal_remedy(uses_tokens));
    }
    if code == Some(RDKafkaErrorCode::SSL) || is_alert(reason) {
        return Some(TLS_REMEDY);
    }
    remedy_of_port(reason)
}

/// The words of [`probe`](crate::probe()) for connections that are closed without an error.
pub(crate) const CLOSED_AT_ONCE: &str = "connections are closed at once";

/// The first words of [`probe`](crate::probe()) for connections on which nothing is answered.
pub(crate) const NO_ANSWER: &str = "no answer for";

/// Returns the remedy for a connection to a port that is no broker's, or that a broker closes at
/// once, by librdkafka's message (`rdkafka_broker.c`, `rdkafka_idempotence.c`).
pub(crate) fn remedy_of_port(reason: &str) -> Option<&'static str> {
    if reason.contains("broker version >= 0.11.0") {
        Some(
            "this may be the port of a controller (KRaft): name the brokers' own listeners in bootstrap.servers",
        )
    } else if reason.contains("Invalid response size") {
        Some("another service answers at this port: correct bootstrap.servers")
    } else if reason.contains(NO_ANSWER) {
        Some(
            "the broker answers nothing: see that it is neither stopped nor overloaded, that the port in \
             bootstrap.servers is a broker's, and that no firewall drops the connection",
        )
    } else if reason.contains("requesting ApiVersion") || reason.contains(CLOSED_AT_ONCE) {
        Some(
            "the other side closes the connection at once: the port may be another service's, or one of TLS \
             (security.protocol), or the broker has reached max.connections or max.connections.per.ip",
        )
    } else {
        None
    }
}
