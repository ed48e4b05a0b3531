//! The words for the failures of Kafka and of the topic of dead letters.

use walrelay_failure::{Chain, Exit, Failure, ToFailure};

use crate::error::remedy_of_port;
use crate::{KafkaConfigError, KafkaError};

impl ToFailure for KafkaConfigError {
    fn to_failure(&self) -> Failure {
        let what = "[sink.kafka] cannot be used";
        Failure::new("kafka-property", Exit::Config, what)
            .caused_by(self.to_string())
            .remedy(self.remedy())
    }
}

impl ToFailure for KafkaError {
    fn to_failure(&self) -> Failure {
        let (id, exit, what, remedy) = match self {
            Self::Authentication { .. } => (
                "kafka-access",
                Exit::Denied,
                "Kafka refuses the relay",
                "correct the credentials in [sink.kafka], or the token that [sink.oauthbearer] gets; and \
                 see that the broker knows this user and this mechanism",
            ),
            Self::Token { .. } => (
                "kafka-token",
                Exit::Config,
                "there is no token for Kafka",
                "correct token_file or token_command in [sink.oauthbearer], or its source",
            ),
            Self::Tls { .. } => (
                "kafka-tls",
                Exit::Config,
                "TLS to Kafka fails",
                "the cause names the fault of the certificate. If it says that the connection was \
                 closed, this port may not speak TLS: security.protocol in [sink.kafka] must be \
                 that of the listener",
            ),
            Self::Create { .. } => (
                "kafka-client",
                Exit::Config,
                "the Kafka client cannot be made",
                "correct the property in [sink.kafka] that the cause speaks of",
            ),
            Self::NoTimes { .. } => (
                "kafka-times",
                Exit::Config,
                "the topic cannot be read from a time on",
                "read it from its beginning. The broker of walrelay demo keeps no times",
            ),
            other => (
                "kafka-unreachable",
                Exit::Unavailable,
                "Kafka cannot be reached",
                remedy_of_port(&other.to_string()).unwrap_or(
                    "check bootstrap.servers and the security settings in [sink.kafka], and that the brokers \
                     advertise addresses that can be reached from here",
                ),
            ),
        };
        Failure::new(id, exit, what)
            .caused_by(Chain(self).to_string())
            .remedy(remedy)
    }
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        error.to_failure()
    }
}

/// Returns the failure to read the topic of dead letters.
pub(crate) fn dead_letters(error: &KafkaError) -> Failure {
    let KafkaError::Topic { .. } = error else {
        return error.to_failure();
    };
    let exit = if error.is_denied() {
        Exit::Denied
    } else {
        Exit::Unavailable
    };
    let what = "the topic of dead letters cannot be read";
    Failure::new("dlq-topic", exit, what)
        .caused_by(error.to_string())
        .remedy(
            "allow the principal READ and DESCRIBE on it, and see that its partitions have leaders",
        )
}
