//! The reaction to an error code of librdkafka or of the broker.

use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink::Disposition::{self, Configuration, Fatal, Retryable};
use walrelay_sink::{DeliveryError, Poison};

const REBUILD: &str = "the idempotent producer has lost its state: a new one must be made and \
                       everything unconfirmed sent again";

/// Returns the error to report for a record.
pub(crate) fn delivery_error(topic: &str, code: Code) -> DeliveryError {
    let advice = advice(code);
    let reason = if advice.is_empty() {
        code.to_string()
    } else {
        format!("{code}; {advice}")
    };
    let (poison, disposition) = classify(code);
    DeliveryError {
        topic: Arc::from(topic),
        reason,
        disposition,
        poison,
    }
}

/// Returns why the record itself cannot be delivered, if the error is about the record; and how to
/// react.
///
/// A missing topic and a topic that may not be written to count as the record's fault: other topics
/// continue.
///
/// Any code that is not listed is [`Retryable`]: an error is temporary unless proven otherwise. With
/// `message.timeout.ms=0` librdkafka itself retries every error that Kafka calls retriable. A
/// `Retryable` error here needs another attempt by the relay, or a new producer; some need an
/// administrator, but no restart of the relay.
fn classify(code: Code) -> (Option<Poison>, Disposition) {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            (Some(Poison::Oversize), Fatal)
        }
        Code::InvalidTopic => (Some(Poison::Unroutable), Fatal),
        Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::PolicyViolation
        | Code::BadMessage
        | Code::UnsupportedForMessageFormat
        | Code::InvalidArgument => (Some(Poison::Rejected), Fatal),
        Code::TopicAuthorizationFailed
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition => (Some(Poison::Rejected), Retryable),
        // The set-up does not allow any record.
        Code::InvalidRequiredAcks | Code::UnsupportedCompressionType => (None, Fatal),
        Code::UnsupportedVersion
        | Code::UnsupportedFeature
        | Code::SaslAuthenticationFailed
        | Code::TransactionalIdAuthorizationFailed => (None, Configuration),
        _ => (None, Retryable),
    }
}

/// Returns what to do about an error; empty where librdkafka's message says it.
fn advice(code: Code) -> &'static str {
    match code {
        Code::MessageSizeTooLarge => {
            "raise max.message.bytes of the topic, or lower batch.size if the record itself is small"
        }
        Code::MessageBatchTooLarge => "raise segment.bytes of the topic, or lower batch.size",
        Code::InvalidRecord => {
            "the broker validates records: a compacted topic needs a key in each"
        }
        Code::InvalidTimestamp => {
            "the record's timestamp is too far from the broker's clock: compare the clocks of the broker, of \
             this machine and of who writes the column of timestamps; how far is allowed is \
             message.timestamp.after.max.ms (an hour unless configured) and \
             message.timestamp.before.max.ms of the topic"
        }
        Code::InvalidTopic => {
            "no topic can have this name, or the name of an existing topic differs from it only in . \
             and _"
        }
        Code::PolicyViolation => "a policy of the cluster forbids it",
        Code::UnsupportedForMessageFormat => "the topic has an old message format without headers",
        Code::InvalidRequiredAcks => "the broker does not accept acks=all",
        Code::UnsupportedCompressionType => "choose another compression.type",
        Code::UnsupportedVersion => "the broker is too old for an idempotent producer",
        Code::UnsupportedFeature => "the broker is too old for this request",
        Code::SaslAuthenticationFailed => "check sasl.username and sasl.password",
        Code::TransactionalIdAuthorizationFailed => "allow the principal its transactional.id",
        Code::InvalidDifferentRecord => "another record of its batch was refused",
        Code::TopicAuthorizationFailed => "allow the principal WRITE and DESCRIBE on the topic",
        Code::ClusterAuthorizationFailed => "allow the principal IDEMPOTENT_WRITE on the cluster",
        Code::UnknownTopicOrPartition | Code::UnknownTopic => {
            "create the topic, or let the broker or the relay create it"
        }
        Code::UnknownPartition => "the topic has fewer partitions than the record asks for",
        Code::MessageTimedOut => "message.timeout.ms passed without a broker taking the record",
        Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend => {
            "too few in-sync replicas for min.insync.replicas"
        }
        Code::KafkaStorageError => "a disk of the broker has failed",
        Code::PurgeQueue => {
            "it was given up before it was sent, because the producer was closed or is broken"
        }
        Code::PurgeInflight => {
            "it was given up before the broker answered, because the producer was closed or is broken"
        }
        Code::Fatal
        | Code::OutOfOrderSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::ProducerFenced
        | Code::Fenced
        | Code::GaplessGuarantee => REBUILD,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_librdkafkas_message_and_the_advice() {
        let error = delivery_error("orders", Code::TopicAuthorizationFailed);
        assert_eq!(error.disposition, Retryable);
        assert!(
            error.reason.contains("Topic authorization failed"),
            "{error}"
        );
        assert!(error.reason.contains("WRITE"), "{error}");
        assert_eq!(&*error.topic, "orders");
    }

    #[test]
    fn a_timestamp_that_is_refused_names_the_clock() {
        let error = delivery_error("orders", Code::InvalidTimestamp);
        for word in ["clock", "message.timestamp.after.max.ms"] {
            assert!(error.reason.contains(word), "{error}");
        }
        assert_eq!(error.poison, Some(Poison::Rejected));
    }

    /// An error that is not about the record must never make a dead letter of it.
    #[test]
    fn only_what_is_the_records_fault_is_poison() {
        let poison = |code| classify(code).0;
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
    fn codes_that_are_not_listed_are_retryable() {
        for (code, disposition) in [
            (Code::RebootstrapRequired, Retryable),
            (Code::MessageSizeTooLarge, Fatal),
            (Code::InvalidDifferentRecord, Retryable),
        ] {
            assert_eq!(delivery_error("t", code).disposition, disposition);
        }
    }
}
