//! What an error of librdkafka or of the broker asks for, as data.

use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode::{self, *};
use walrelay_sink::DeliveryError;
use walrelay_sink::Disposition::{self, Configuration, Fatal, Retryable};

/// Code, what it asks for, and what to do where librdkafka's words do not say it. What is not listed
/// is [`Retryable`]: an error is temporary unless it is proven otherwise.
///
/// With `message.timeout.ms=0` librdkafka has retried on its own whatever Kafka calls retriable; what
/// arrives here as `Retryable` needs a fresh attempt, or a fresh producer.
const TABLE: &[(RDKafkaErrorCode, Disposition, &str)] = &[
    // The record itself: it will be refused again.
    (
        MessageSizeTooLarge,
        Fatal,
        "raise max.message.bytes of the topic, or lower batch.size if the record itself is small",
    ),
    (
        MessageBatchTooLarge,
        Fatal,
        "raise segment.bytes of the topic, or lower batch.size",
    ),
    (InvalidMessageSize, Fatal, ""),
    (
        InvalidRecord,
        Fatal,
        "the broker validates records: a compacted topic needs a key in each",
    ),
    (
        InvalidTimestamp,
        Fatal,
        "see message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    ),
    (InvalidTopic, Fatal, "no topic can have this name"),
    (PolicyViolation, Fatal, "a policy of the cluster forbids it"),
    (BadMessage, Fatal, ""),
    (
        UnsupportedForMessageFormat,
        Fatal,
        "the topic has an old message format without headers",
    ),
    (InvalidArgument, Fatal, ""),
    // The set-up.
    (
        InvalidRequiredAcks,
        Fatal,
        "the broker does not take acks=all",
    ),
    (
        UnsupportedCompressionType,
        Fatal,
        "choose another compression.type",
    ),
    (
        UnsupportedVersion,
        Configuration,
        "the broker is too old for an idempotent producer",
    ),
    (
        UnsupportedFeature,
        Configuration,
        "the broker is too old for what is asked of it",
    ),
    (
        SaslAuthenticationFailed,
        Configuration,
        "check sasl.username and sasl.password",
    ),
    (
        TransactionalIdAuthorizationFailed,
        Configuration,
        "allow the principal its transactional.id",
    ),
    // May pass by itself, or by an administrator's hand without our restart.
    (
        TopicAuthorizationFailed,
        Retryable,
        "allow the principal WRITE and DESCRIBE on the topic",
    ),
    (
        ClusterAuthorizationFailed,
        Retryable,
        "allow the principal IDEMPOTENT_WRITE on the cluster",
    ),
    (
        UnknownTopicOrPartition,
        Retryable,
        "create the topic, or let the broker or the relay create it",
    ),
    (
        UnknownTopic,
        Retryable,
        "create the topic, or let the broker or the relay create it",
    ),
    (
        UnknownPartition,
        Retryable,
        "the topic has fewer partitions than the record asks for",
    ),
    (
        MessageTimedOut,
        Retryable,
        "message.timeout.ms passed without a broker taking the record",
    ),
    (RequestTimedOut, Retryable, ""),
    (BrokerTransportFailure, Retryable, ""),
    (
        NotEnoughReplicas,
        Retryable,
        "too few in-sync replicas for min.insync.replicas",
    ),
    (
        NotEnoughReplicasAfterAppend,
        Retryable,
        "too few in-sync replicas for min.insync.replicas",
    ),
    (
        KafkaStorageError,
        Retryable,
        "a disk of the broker has failed",
    ),
    (
        PurgeQueue,
        Retryable,
        "the producer was closed before it was sent",
    ),
    (
        PurgeInflight,
        Retryable,
        "the producer was closed before the broker answered",
    ),
    (RDKafkaErrorCode::Fatal, Retryable, REBUILD),
    (OutOfOrderSequenceNumber, Retryable, REBUILD),
    (UnknownProducerId, Retryable, REBUILD),
    (InvalidProducerEpoch, Retryable, REBUILD),
    (InvalidProducerIdMapping, Retryable, REBUILD),
    (ProducerFenced, Retryable, REBUILD),
    (Fenced, Retryable, REBUILD),
    (GaplessGuarantee, Retryable, REBUILD),
];

const REBUILD: &str = "the idempotent producer has lost its state: a new one must be made and \
                       everything unconfirmed sent again";

/// The error that is reported for a record.
pub(crate) fn delivery_error(topic: &str, code: RDKafkaErrorCode) -> DeliveryError {
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
    }
}

fn classify(code: RDKafkaErrorCode) -> (Disposition, &'static str) {
    TABLE
        .iter()
        .find(|(listed, ..)| *listed == code)
        .map_or((Retryable, ""), |(_, disposition, advice)| {
            (*disposition, *advice)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_is_listed_twice() {
        for (i, (code, ..)) in TABLE.iter().enumerate() {
            assert!(
                TABLE[..i].iter().all(|(earlier, ..)| earlier != code),
                "{code:?}"
            );
        }
    }

    #[test]
    fn the_words_are_librdkafkas_and_ours() {
        let error = delivery_error("orders", TopicAuthorizationFailed);
        assert_eq!(error.disposition, Retryable);
        assert!(
            error.reason.contains("Topic authorization failed"),
            "{error}"
        );
        assert!(error.reason.contains("WRITE"), "{error}");
        assert_eq!(&*error.topic, "orders");
    }

    #[test]
    fn the_unknown_is_retryable() {
        assert_eq!(
            delivery_error("t", RebootstrapRequired).disposition,
            Retryable
        );
        assert_eq!(delivery_error("t", MessageSizeTooLarge).disposition, Fatal);
    }
}
