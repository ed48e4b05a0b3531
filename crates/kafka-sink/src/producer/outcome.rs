//! What an error of librdkafka or of the broker asks for, as data.

use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink::Disposition::{self, Configuration, Fatal, Retryable};
use walrelay_sink::{DeliveryError, Poison};

const REBUILD: &str = "the idempotent producer has lost its state: a new one must be made and \
                       everything unconfirmed sent again";

/// The error that is reported for a record.
pub(crate) fn delivery_error(topic: &str, code: Code) -> DeliveryError {
    let (disposition, advice) = classify(code);
    let reason = if advice.is_empty() {
        code.to_string()
    } else {
        format!("{code}; {advice}")
    };
    DeliveryError {
        topic: Arc::from(topic),
        reason,
        disposition,
        poison: poison(code),
    }
}

/// Whether such an answer is about the record, and what it says of it. A topic that is not there and
/// one that may not be written to are the record's own matter too: other topics go on.
pub(crate) fn poison(code: Code) -> Option<Poison> {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Some(Poison::Oversize)
        }
        Code::InvalidTopic => Some(Poison::Unroutable),
        Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::PolicyViolation
        | Code::BadMessage
        | Code::UnsupportedForMessageFormat
        | Code::InvalidArgument
        | Code::TopicAuthorizationFailed
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition => Some(Poison::Rejected),
        _ => None,
    }
}

/// What an error code asks for, and what to do where librdkafka's words do not say it. What is not listed
/// is [`Retryable`]: an error is temporary unless it is proven otherwise.
///
/// With `message.timeout.ms=0` librdkafka has retried on its own whatever Kafka calls retriable; what
/// arrives here as `Retryable` needs a fresh attempt, or a fresh producer.
fn classify(code: Code) -> (Disposition, &'static str) {
    match code {
        // The record itself: it will be refused again.
        Code::MessageSizeTooLarge => (
            Fatal,
            "raise max.message.bytes of the topic, or lower batch.size if the record itself is small",
        ),
        Code::MessageBatchTooLarge => (
            Fatal,
            "raise segment.bytes of the topic, or lower batch.size",
        ),
        Code::InvalidRecord => (
            Fatal,
            "the broker validates records: a compacted topic needs a key in each",
        ),
        Code::InvalidTimestamp => (
            Fatal,
            "see message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
        ),
        Code::InvalidTopic => (Fatal, "no topic can have this name"),
        Code::PolicyViolation => (Fatal, "a policy of the cluster forbids it"),
        Code::UnsupportedForMessageFormat => {
            (Fatal, "the topic has an old message format without headers")
        }
        Code::InvalidMessageSize | Code::BadMessage | Code::InvalidArgument => (Fatal, ""),
        // The set-up.
        Code::InvalidRequiredAcks => (Fatal, "the broker does not take acks=all"),
        Code::UnsupportedCompressionType => (Fatal, "choose another compression.type"),
        Code::UnsupportedVersion => (
            Configuration,
            "the broker is too old for an idempotent producer",
        ),
        Code::UnsupportedFeature => (
            Configuration,
            "the broker is too old for what is asked of it",
        ),
        Code::SaslAuthenticationFailed => (Configuration, "check sasl.username and sasl.password"),
        Code::TransactionalIdAuthorizationFailed => {
            (Configuration, "allow the principal its transactional.id")
        }
        // May pass by itself, or by an administrator's hand without our restart.
        Code::InvalidDifferentRecord => (Retryable, "another record of its batch was refused"),
        Code::TopicAuthorizationFailed => (
            Retryable,
            "allow the principal WRITE and DESCRIBE on the topic",
        ),
        Code::ClusterAuthorizationFailed => (
            Retryable,
            "allow the principal IDEMPOTENT_WRITE on the cluster",
        ),
        Code::UnknownTopicOrPartition | Code::UnknownTopic => (
            Retryable,
            "create the topic, or let the broker or the relay create it",
        ),
        Code::UnknownPartition => (
            Retryable,
            "the topic has fewer partitions than the record asks for",
        ),
        Code::MessageTimedOut => (
            Retryable,
            "message.timeout.ms passed without a broker taking the record",
        ),
        Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend => (
            Retryable,
            "too few in-sync replicas for min.insync.replicas",
        ),
        Code::KafkaStorageError => (Retryable, "a disk of the broker has failed"),
        Code::PurgeQueue => (
            Retryable,
            "it was given up before it was sent, because the producer was closed or is broken",
        ),
        Code::PurgeInflight => (
            Retryable,
            "it was given up before the broker answered, because the producer was closed or is broken",
        ),
        Code::Fatal
        | Code::OutOfOrderSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::ProducerFenced
        | Code::Fenced
        | Code::GaplessGuarantee => (Retryable, REBUILD),
        _ => (Retryable, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_librdkafkas_and_ours() {
        let error = delivery_error("orders", Code::TopicAuthorizationFailed);
        assert_eq!(error.disposition, Retryable);
        assert!(
            error.reason.contains("Topic authorization failed"),
            "{error}"
        );
        assert!(error.reason.contains("WRITE"), "{error}");
        assert_eq!(&*error.topic, "orders");
    }

    /// What says nothing of the record must never make a dead letter of it.
    #[test]
    fn only_what_is_the_records_fault_is_poison() {
        assert_eq!(poison(Code::MessageSizeTooLarge), Some(Poison::Oversize));
        assert_eq!(poison(Code::InvalidTopic), Some(Poison::Unroutable));
        assert_eq!(poison(Code::InvalidRecord), Some(Poison::Rejected));
        assert_eq!(poison(Code::UnknownTopic), Some(Poison::Rejected));
        for code in [
            Code::InvalidDifferentRecord,
            Code::MessageTimedOut,
            Code::BrokerTransportFailure,
            Code::NotEnoughReplicas,
            Code::ClusterAuthorizationFailed,
            Code::SaslAuthenticationFailed,
            Code::PurgeQueue,
            Code::Fatal,
            Code::UnknownProducerId,
        ] {
            assert_eq!(poison(code), None, "{code:?}");
        }
    }

    #[test]
    fn the_unknown_is_retryable() {
        assert_eq!(
            delivery_error("t", Code::RebootstrapRequired).disposition,
            Retryable
        );
        assert_eq!(
            delivery_error("t", Code::MessageSizeTooLarge).disposition,
            Fatal
        );
        assert_eq!(
            delivery_error("t", Code::InvalidDifferentRecord).disposition,
            Retryable
        );
    }
}
