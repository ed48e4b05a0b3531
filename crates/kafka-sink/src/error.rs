use std::io;

use rdkafka::error::KafkaError as ClientError;
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::Disposition;

use crate::config::KafkaConfig;

/// Why there is no producer, or no cluster that would talk to it.
///
/// Names servers and the library's words, never a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaError {
    /// librdkafka refused the configuration as a whole: a certificate that cannot be read, a
    /// combination of properties that makes no sense.
    #[error("the Kafka client could not be made: {reason}")]
    Create {
        /// librdkafka's words, secrets taken out.
        reason: String,
    },
    /// The system gave no thread.
    #[error("the thread {name} could not be started")]
    Thread {
        /// The thread's name.
        name: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// No broker of `bootstrap.servers` could be reached in the time allowed.
    #[error(
        "no broker answers at {servers}: {detail}; check bootstrap.servers, the network, and that \
         security.protocol is what this port speaks"
    )]
    Unreachable {
        /// `bootstrap.servers`.
        servers: String,
        /// The last thing the client complained of.
        detail: String,
    },
    /// A broker answered and refused who we are.
    #[error("the broker refused the credentials: {detail}{remedy}")]
    Authentication {
        /// The client's or the broker's words.
        detail: String,
        /// What to look at, for the mechanism in use.
        remedy: &'static str,
    },
    /// A broker answered and TLS failed.
    #[error("TLS to the broker failed: {detail}{remedy}")]
    Tls {
        /// The client's words.
        detail: String,
        /// What was found to be wrong with the certificate, and what to do.
        remedy: String,
    },
    /// There is no token for `sasl.mechanism=OAUTHBEARER`.
    #[error("there is no OAUTHBEARER token: {reason}")]
    Token {
        /// The words of its source.
        reason: String,
    },
    /// A name in `bootstrap.servers` is not known to the resolver.
    #[error("a broker's name could not be resolved: {detail}; check bootstrap.servers")]
    Resolve {
        /// The client's words.
        detail: String,
    },
    /// The in-process broker of [`embedded`](crate::embedded) could not be set up.
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
        /// Its name.
        topic: String,
        /// The broker's reason.
        code: RDKafkaErrorCode,
    },
    /// A topic that was to be read is not there.
    #[error("topic {topic:?} cannot be read: {code}")]
    Topic {
        /// Its name.
        topic: String,
        /// The broker's reason.
        code: RDKafkaErrorCode,
    },
}

impl KafkaError {
    /// Why there is no client.
    pub(crate) fn of_creation(config: &KafkaConfig, error: &ClientError) -> Self {
        Self::Create {
            reason: config.creation_reason(error),
        }
    }

    pub(crate) fn of_topic(topic: &str, code: RDKafkaErrorCode) -> Self {
        Self::Topic {
            topic: topic.to_owned(),
            code,
        }
    }

    /// Whether the topic may not be read by us.
    pub fn is_denied(&self) -> bool {
        let denied = RDKafkaErrorCode::TopicAuthorizationFailed;
        matches!(self, Self::Topic { code, .. } if *code == denied)
    }

    /// What the error asks for.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Create { .. } | Self::Authentication { .. } | Self::Tls { .. } => {
                Disposition::Configuration
            }
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

/// Whether a broker refused who we are.
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

/// Whether the broker refuses the client's certificate, or wants one. In TLS 1.3 that comes after the
/// handshake, and librdkafka takes it for a lost connection.
pub(crate) fn is_alert(reason: &str) -> bool {
    reason.contains("SSL routines") && reason.contains("alert")
}

/// What to do about an error of access or encryption, to be put behind librdkafka's words; empty
/// for others.
pub(crate) fn remedy(
    code: Option<RDKafkaErrorCode>,
    reason: &str,
    config: &KafkaConfig,
) -> &'static str {
    if is_refusal(code) && config.uses_tokens() {
        "; check who issued the token, its audience and its end: token_file or token_command in \
         [sink.oauthbearer] is asked again by itself"
    } else if is_refusal(code) {
        "; check sasl.mechanism, sasl.username and sasl.password"
    } else if code == Some(RDKafkaErrorCode::SSL) || is_alert(reason) {
        "; check ssl.ca.location, the host name in bootstrap.servers against the certificate, and \
         the client certificate if one is asked for"
    } else {
        ""
    }
}
