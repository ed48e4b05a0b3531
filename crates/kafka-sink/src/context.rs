//! What the poll thread does with librdkafka's events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Headers, Message};
use rdkafka::producer::{NoCustomPartitioner, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{Deliveries, Record};

use crate::client_log::{self, Repetitions};
use crate::outcome::delivery_error;
use crate::window::Window;

/// librdkafka's own memory for a queued record, roughly (its author's figure, librdkafka#2114).
const RECORD_OVERHEAD: u64 = 200;
/// And for each header, which it allocates singly.
const HEADER_OVERHEAD: u64 = 48;

/// What the sink and its poll thread share, and rdkafka calls into.
pub(crate) struct Context {
    pub(crate) deliveries: Arc<dyn Deliveries>,
    pub(crate) window: Window,
    /// librdkafka said that its queue was full although ours was not: the poll thread wakes the
    /// sender at its next turn.
    pub(crate) queue_full: AtomicBool,
    /// All brokers were down since the last delivery.
    trouble: AtomicBool,
    repetitions: Repetitions,
}

impl Context {
    pub(crate) fn new(deliveries: Arc<dyn Deliveries>, window: Window) -> Self {
        Self {
            deliveries,
            window,
            queue_full: AtomicBool::new(false),
            trouble: AtomicBool::new(false),
            repetitions: Repetitions::default(),
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client_log::line(&self.repetitions, level, facility, message);
    }

    // Without this rdkafka would parse each statistics document and print it.
    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: ClientError, reason: &str) {
        let code = error.rdkafka_error_code();
        // Of one broker among several is not trouble: records flow, and "again" would be said often.
        if code == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.trouble.store(true, SeqCst);
        }
        // rdkafka calls twice for each error event, which the filter hides.
        let kind = code.map_or_else(|| "error".to_owned(), |code| format!("{code:?}"));
        if let Some(held_back) = self.repetitions.pass(&kind) {
            tracing::warn!(kind, held_back, "Kafka: {reason}");
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Context {
    /// The sequence number.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, seq: usize) {
        let seq = seq as u64;
        let message = match result {
            Ok(message) => {
                self.deliveries.delivered(seq);
                if self.trouble.load(SeqCst) && self.trouble.swap(false, SeqCst) {
                    tracing::info!("Kafka takes records again");
                    self.repetitions.forget();
                }
                message
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                self.deliveries
                    .failed(seq, delivery_error(message.topic(), code));
                message
            }
        };
        if self.window.give_back(weight_of_message(message)) {
            self.deliveries.capacity();
        }
    }
}

/// What a record takes of the window.
pub(crate) fn weight_of_record(record: &Record<'_>) -> u64 {
    record.payload_bytes() as u64 + overhead(record.headers.len())
}

/// The same, reckoned from the message that comes back: nothing needs to be remembered per record.
fn weight_of_message(message: &BorrowedMessage<'_>) -> u64 {
    let headers = message.headers();
    let count = headers.map_or(0, Headers::count);
    let header_bytes: usize = headers.map_or(0, |headers| {
        headers
            .iter()
            .map(|h| h.key.len() + h.value.map_or(0, <[u8]>::len))
            .sum()
    });
    let bytes = message.key_len() + message.payload_len() + header_bytes;
    bytes as u64 + overhead(count)
}

fn overhead(headers: usize) -> u64 {
    RECORD_OVERHEAD + HEADER_OVERHEAD * headers as u64
}
