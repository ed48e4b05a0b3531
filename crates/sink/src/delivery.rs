use std::fmt;
use std::sync::Arc;

/// The reaction to a failure. Every error of the project has one of these. Ordered by severity: of
/// several failures the greatest decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Disposition {
    /// The failure may pass by itself: retry with a back-off.
    Retryable,
    /// The configuration of the relay or of a server must be changed.
    Configuration,
    /// The failure will not pass: stop with an error.
    Fatal,
}

/// The reason why an event can never be delivered as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Poison {
    /// The event has no topic: the routing column is missing or NULL, or yields no topic name.
    Unroutable,
    /// The record is larger than the server, the topic or the client accepts.
    Oversize,
    /// The server refuses the record: the topic does not exist or may not be written to, or the
    /// record is invalid.
    Rejected,
    /// A column's value cannot be decoded as the configured type.
    Undecodable,
}

impl Poison {
    /// All variants.
    pub const ALL: [Self; 4] = [
        Self::Unroutable,
        Self::Oversize,
        Self::Rejected,
        Self::Undecodable,
    ];

    /// Returns the name in configuration, dead letters and logs.
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

/// The failure of a record that the sink had accepted.
///
/// Contains the topic and the server's reason, never key, value or headers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topic {topic:?}: {reason}")]
pub struct DeliveryError {
    /// The record's topic.
    pub topic: Arc<str>,
    /// The message of the server or of the client library.
    pub reason: String,
    /// The reaction: says whether sending the record again can help. A sink that retries on its own
    /// reports [`Disposition::Retryable`] only where another attempt by the relay makes sense.
    pub disposition: Disposition,
    /// The reason why this record itself cannot be delivered. `None` if the fault lies elsewhere:
    /// an unreachable server, a broken producer.
    ///
    /// A request carries many records, and some refusals are reported for all of them: `Some` is
    /// only a suspicion until the record was refused alone.
    pub poison: Option<Poison>,
}

impl DeliveryError {
    /// Makes the failure of a record that can never be delivered as it is, which the client can tell
    /// without asking a server.
    #[must_use]
    pub fn poison(topic: &str, poison: Poison, reason: String) -> Self {
        Self {
            topic: topic.into(),
            reason,
            disposition: Disposition::Fatal,
            poison: Some(poison),
        }
    }
}

/// The refusal of one record that the sink had accepted, by a server that accepts others.
///
/// Contains the topic and the server's reason, never key, value or headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The record's topic.
    pub topic: Arc<str>,
    /// The reason why this record cannot be delivered.
    pub poison: Poison,
    /// The message of the server or of the client library.
    pub reason: String,
    /// [`Disposition::Fatal`]: the event is at fault. [`Disposition::Configuration`]: its destination is, which
    /// is missing, or may not be written to.
    pub disposition: Disposition,
}

impl From<Refusal> for DeliveryError {
    fn from(refusal: Refusal) -> Self {
        Self {
            topic: refusal.topic,
            reason: refusal.reason,
            disposition: refusal.disposition,
            poison: Some(refusal.poison),
        }
    }
}

/// Receives the delivery reports of the records that a sink accepted.
///
/// # Ordering
/// Called from the sink's own threads, in any order, possibly before
/// [`try_send`](crate::Sink::try_send) has returned for the same record. Implementations must not
/// block.
pub trait Deliveries: Send + Sync + 'static {
    /// Reports that the record with this sequence number is durable.
    fn delivered(&self, seq: u64);

    /// Reports that the record with this sequence number failed: this sink will not deliver it any
    /// more.
    fn failed(&self, seq: u64, error: DeliveryError);

    /// Reports that the server refuses the record with this sequence number for good, and this record
    /// alone: no other one is sent again because of it. The sink sends no later record of its key
    /// until [`Sink::withdraw`](crate::Sink::withdraw) is called, which gives the record back.
    ///
    /// For a receiver that does not decide what becomes of it, the record has failed.
    fn refused(&self, seq: u64, refusal: Refusal) {
        self.failed(seq, refusal.into());
    }

    /// Reports that there is room: a record that was refused with
    /// [`SendError::Full`](crate::SendError::Full) may be accepted now, or an accepted record that
    /// the sink kept may be sent. The caller must offer the refused record again and
    /// [poll](crate::Sink::poll) the sink. Spurious calls are allowed, missed ones are not.
    fn capacity(&self);
}
