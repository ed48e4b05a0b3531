use std::sync::Arc;

/// What a failure asks for. Every error of the project falls into one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// It may pass by itself: try again with a back-off.
    Retryable,
    /// Somebody must change the configuration, of the relay or of a server.
    Configuration,
    /// It will not pass: stop, and say so.
    Fatal,
}

/// Why an accepted record was not delivered.
///
/// Names the topic and the broker's reason, never key, value or headers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topic {topic:?}: {reason}")]
pub struct DeliveryError {
    /// Where the record was bound for.
    pub topic: Arc<str>,
    /// The broker's or the client library's words.
    pub reason: String,
    /// Whether sending it again can help. A sink that has retried on its own reports
    /// [`Disposition::Retryable`] only where a fresh attempt by the relay makes sense.
    pub disposition: Disposition,
}

/// Where a sink reports what became of the records it accepted.
///
/// # Ordering
/// Called from the sink's own threads, in any order, possibly before
/// [`try_send`](crate::Sink::try_send) has returned for the same record. Implementations do not
/// block.
pub trait Deliveries: Send + Sync + 'static {
    /// The record with this sequence number is durable.
    fn delivered(&self, seq: u64);

    /// The record with this sequence number will not be delivered by this sink any more.
    fn failed(&self, seq: u64, error: DeliveryError);

    /// A record that was refused with [`SendError::Full`](crate::SendError::Full) may be accepted
    /// now. Spurious calls are allowed, missed ones are not.
    fn capacity(&self);
}
