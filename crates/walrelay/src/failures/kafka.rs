//! Failures of Kafka and of the topic of dead letters.

use walrelay_kafka_sink::dlq::ReplayError;
use walrelay_kafka_sink::{KafkaConfigError, KafkaError};
use walrelay_relay::Chain;

use super::SinkFailure;
use crate::cli::{Exit, Failure};

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        kafka_client(&error)
    }
}

impl SinkFailure for KafkaError {
    fn failure(self) -> Failure {
        kafka_client(&self)
    }
}

pub(crate) fn kafka(error: &KafkaConfigError) -> Failure {
    let what = "[sink.kafka] cannot be used";
    Failure::new("kafka-property", Exit::Config, what)
        .caused_by(error.to_string())
        .remedy(error.remedy())
}

pub(crate) fn kafka_client(error: &KafkaError) -> Failure {
    let (id, exit, what, remedy) = match error {
        KafkaError::Authentication { .. } => (
            "kafka-access",
            Exit::Denied,
            "Kafka refuses the relay",
            "correct the credentials in [sink.kafka], or the token that [sink.oauthbearer] gets; and \
             see that the broker knows this user and this mechanism",
        ),
        KafkaError::Token { .. } => (
            "kafka-token",
            Exit::Config,
            "there is no token for Kafka",
            "correct token_file or token_command in [sink.oauthbearer], or what is behind it",
        ),
        KafkaError::Tls { .. } => (
            "kafka-tls",
            Exit::Config,
            "TLS to Kafka fails",
            "the cause says what is wrong with the certificate. Where it says that the connection was \
             closed, this port may not speak TLS: security.protocol in [sink.kafka] must be that of \
             the listener",
        ),
        KafkaError::Create { .. } => (
            "kafka-client",
            Exit::Config,
            "the Kafka client cannot be made",
            "correct the property in [sink.kafka] that the cause speaks of",
        ),
        _ => (
            "kafka-unreachable",
            Exit::Unavailable,
            "Kafka cannot be reached",
            "check bootstrap.servers and the security settings in [sink.kafka], and that the brokers \
             advertise addresses that can be reached from here",
        ),
    };
    Failure::new(id, exit, what)
        .caused_by(Chain(error).to_string())
        .remedy(remedy)
}

/// A failure to read the topic of dead letters.
pub(crate) fn dead_letters(error: KafkaError) -> Failure {
    match error {
        KafkaError::Topic { .. } => {
            let exit = if error.is_denied() {
                Exit::Denied
            } else {
                Exit::Unavailable
            };
            Failure::new("dlq-topic", exit, "the topic of dead letters cannot be read")
                .caused_by(error.to_string())
                .remedy("allow the principal READ and DESCRIBE on it, and see that its partitions have leaders")
        }
        error => error.into(),
    }
}

/// A failure of `walrelay dlq redrive` or `dlq drop`.
pub(crate) fn dlq_replay(error: ReplayError) -> Failure {
    let what = error.to_string();
    match error {
        ReplayError::Kafka(error) => dead_letters(error),
        ReplayError::NoAnswer { source, .. } => {
            let failure = Failure::new("dlq-no-answer", Exit::Unavailable, what).remedy(
                "see to the broker, then run it again: what was done is not repeated, but this \
                 one dead letter may be",
            );
            match source {
                Some(source) => failure.caused_by(source),
                None => failure,
            }
        }
        ReplayError::NotRecorded { source, .. } => {
            Failure::new("dlq-not-recorded", Exit::Unavailable, what)
                .caused_by(source)
                .remedy(
                    "allow the principal WRITE on the topic of dead letters, then run it again: \
                     this one dead letter is repeated",
                )
        }
    }
}
