//! Delivery reports: what they prove, and the bytes of their records.

use std::time::SystemTime;

use rdkafka::message::{BorrowedMessage, Headers, Message, Timestamp};
use walrelay_sink::Record;

use crate::in_flight::partition_gate::OPEN;

/// librdkafka's memory per queued record in bytes, roughly (by its author, librdkafka#2114;
/// measured: 185).
const RECORD_OVERHEAD: u64 = 200;

/// Bytes for a list of headers (measured by the growth of a process with such records queued).
const HEADERS_OVERHEAD: u64 = 96;
/// Bytes for each header, which librdkafka allocates individually (measured: 57 to 66).
const HEADER_OVERHEAD: u64 = 60;
/// Returns true if a broker acknowledged this very record: then the report contains the record's
/// offset.
///
/// When a request fails with a retriable error and a later request to the same partition succeeds,
/// librdkafka reports the first as delivered without a response (`rd_kafka_dr_implicit_ack`). It
/// assumes that the broker would otherwise have refused the second for its sequence number. That
/// does not hold since KIP-360: a broker without state of the producer for the partition accepts
/// any first sequence number, and the records of the first request are lost. Records reported in
/// this way have no offset (`RD_KAFKA_OFFSET_INVALID`).
pub(super) fn is_acknowledged(message: &BorrowedMessage<'_>) -> bool {
    message.offset() >= 0
}

/// Returns true if the record's timestamp is less than half an hour old: see
/// [`PartitionGate::delivered`](crate::in_flight::partition_gate::PartitionGate::delivered). In a
/// topic with `message.timestamp.type=LogAppendTime` it is the broker's current time.
pub(super) fn is_fresh(message: &BorrowedMessage<'_>) -> bool {
    let written = match message.timestamp() {
        Timestamp::LogAppendTime(_) => return true,
        Timestamp::CreateTime(written) => written,
        Timestamp::NotAvailable => return false,
    };
    // With a clock before 1970 every record is fresh.
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i128::from(written) + OPEN.as_millis() as i128 > now.as_millis() as i128
}

/// Bytes of the window that a record takes.
pub(crate) fn weight_of_record(record: &Record<'_>) -> u64 {
    record.payload_bytes() as u64 + overhead(record.headers.len())
}

/// Returns [`weight_of_record`], computed from the reported message, so that it need not be stored
/// per record.
pub(super) fn weight_of_message(message: &BorrowedMessage<'_>) -> u64 {
    let headers = message.headers().map_or(0, Headers::count);
    payload_of_message(message) as u64 + overhead(headers)
}

/// Bytes of key, value and headers.
pub(super) fn payload_of_message(message: &BorrowedMessage<'_>) -> usize {
    let header_bytes: usize = message.headers().map_or(0, |headers| {
        headers
            .iter()
            .map(|h| h.key.len() + h.value.map_or(0, <[u8]>::len))
            .sum()
    });
    message.key_len() + message.payload_len() + header_bytes
}

fn overhead(headers: usize) -> u64 {
    if headers == 0 {
        return RECORD_OVERHEAD;
    }
    RECORD_OVERHEAD + HEADERS_OVERHEAD + HEADER_OVERHEAD * headers as u64
}
