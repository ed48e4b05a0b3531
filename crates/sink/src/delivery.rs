use std::fmt;
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

/// What makes an event one that cannot be delivered, now or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Poison {
    /// There is no topic for it: the routing column is missing or NULL, or gives no topic's name.
    Unroutable,
    /// It is larger than the broker, the topic or the client takes.
    Oversize,
    /// The broker refuses it: the topic does not exist or may not be written to, the record is
    /// invalid there.
    Rejected,
    /// A column cannot be read as what it is to be read as.
    Undecodable,
}

impl Poison {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Unroutable,
        Self::Oversize,
        Self::Rejected,
        Self::Undecodable,
    ];

    /// As configuration, dead letters and logs name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unroutable => "unroutable",
            Self::Oversize => "oversize",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
        }
    }
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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
    /// Whether it is this record that cannot be delivered, and in which way. `None` where the fault
    /// lies elsewhere: a broker that is away, a producer that is broken.
    ///
    /// A request carries many records, and some refusals are told of all of them: that a record is
    /// named here is a suspicion until it was refused alone.
    pub poison: Option<Poison>,
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
    /// now, or one that was accepted may be handed on: the sink is to be offered the one or
    /// [polled](crate::Sink::poll). Spurious calls are allowed, missed ones are not.
    fn capacity(&self);
}
