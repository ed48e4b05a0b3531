//! Records that are refused without asking a broker.

use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{DeliveryError, Disposition, Poison, Record, RecordKind, SendError};

use crate::outcome::delivery_error;

/// `RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD` of librdkafka: the most bytes of a record in a request besides
/// its key, value and headers.
const OVERHEAD: usize = 36;

/// Returns the error of a record that librdkafka refuses.
pub(super) fn refusal(
    record: &Record<'_>,
    code: RDKafkaErrorCode,
    message_max_bytes: &str,
) -> DeliveryError {
    match code {
        RDKafkaErrorCode::MessageSizeTooLarge => error_about(
            record.topic,
            format!(
                "the record has {} bytes in a request and message.max.bytes is {message_max_bytes}; raise \
                 it, and max.message.bytes of the topic with it",
                size_in_request(record),
            ),
            Some(Poison::Oversize),
        ),
        RDKafkaErrorCode::UnknownPartition => DeliveryError {
            topic: Arc::from(record.topic),
            reason: format!(
                "the topic has no partition {}",
                record.partition.unwrap_or_default()
            ),
            // Partitions can be added.
            disposition: Disposition::Retryable,
            poison: Some(Poison::Rejected),
        },
        code => delivery_error(record.topic, code),
    }
}

/// Refuses records that librdkafka would accept or misinterpret. Returns the timestamp for
/// librdkafka.
pub(super) fn check_record(record: &Record<'_>) -> Result<i64, SendError> {
    let problem = |reason: String| Err(refused(record.topic, reason, Some(Poison::Rejected)));
    // librdkafka would end the name at a NUL. A dead letter is written without such a header: one that cannot be written
    // stops the relay.
    if record.kind == RecordKind::Event && record.headers.iter().any(|h| h.name.contains('\0')) {
        return problem("the name of a header contains a NUL".to_owned());
    }
    // For librdkafka -1 means "choose a partition".
    if let Some(partition) = record.partition.filter(|p| *p < 0) {
        return problem(format!("there is no partition {partition}"));
    }
    match record.timestamp_ms {
        None => Ok(0),
        Some(ms) if ms < 0 => problem("the timestamp is before 1970".to_owned()),
        // For librdkafka 0 means "now"; 1 is a millisecond off.
        Some(ms) => Ok(ms.max(1)),
    }
}

/// Checks what can be told of a record without asking a broker. `message_max_bytes`: the limit of the client.
pub(crate) fn check_limits(record: &Record<'_>, message_max_bytes: &str) -> Option<DeliveryError> {
    // First: a record that also has another fault is too large all the same.
    if size_in_request(record) > message_max_bytes.parse().unwrap_or(usize::MAX) {
        let too_large = RDKafkaErrorCode::MessageSizeTooLarge;
        return Some(refusal(record, too_large, message_max_bytes));
    }
    match check_record(record) {
        Err(SendError::Refused(error)) => Some(error),
        Err(SendError::Full) | Ok(_) => None,
    }
}

/// Returns a refusal without asking the broker: permanent if it is the record's fault, and
/// otherwise until there is a new producer.
pub(super) fn refused(topic: &str, reason: impl Into<String>, poison: Option<Poison>) -> SendError {
    SendError::Refused(error_about(topic, reason, poison))
}

fn error_about(topic: &str, reason: impl Into<String>, poison: Option<Poison>) -> DeliveryError {
    DeliveryError {
        topic: Arc::from(topic),
        reason: reason.into(),
        disposition: match poison {
            Some(_) => Disposition::Fatal,
            None => Disposition::Retryable,
        },
        poison,
    }
}

/// Returns the size that librdkafka compares with `message.max.bytes`
/// (`rd_kafka_msg_max_wire_size`, `rd_kafka_header_add`).
pub(super) fn size_in_request(record: &Record<'_>) -> usize {
    // A length is encoded as a varint of its double.
    let varint = |length: usize| (usize::BITS - ((2 * length) | 1).leading_zeros()).div_ceil(7);
    let lengths = record
        .headers
        .iter()
        .map(|header| varint(header.name.len()) + varint(header.value.map_or(0, <[u8]>::len)));
    OVERHEAD + record.payload_bytes() + lengths.sum::<u32>() as usize
}
