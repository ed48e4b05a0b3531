use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::{Deliveries, DeliveryError, Disposition, Record};

/// The reason why [`Sink::try_send`] did not accept a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Back-pressure, not a failure. When [`Deliveries::capacity`] is called, offer **the same
    /// record first**, so that the order per key holds.
    #[error("the sink's queue is full")]
    Full,
    /// The record is refused and would be refused again, or the sink is broken.
    #[error(transparent)]
    Refused(#[from] DeliveryError),
}

/// The need of the next record: low latency or cheap batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchingMode {
    /// Send each record at once.
    Latency,
    /// Fill batches: in a backlog, the cost per record matters and not the delay.
    Throughput,
}

/// A condition that a sink waits for before it can deliver the records it has accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// A description that names what is missing, without any key or value.
    pub what: String,
    /// [`Disposition::Retryable`]: the obstacle may pass by itself. [`Disposition::Configuration`]:
    /// something must be changed, so a relay that stops need not wait for it.
    pub disposition: Disposition,
}

/// Accepts records and makes them durable.
pub trait Sink: Send {
    /// Offers a record. Does not block. After `Ok`, and only then, `seq` is reported to
    /// [`Deliveries`] exactly once.
    ///
    /// The caller chooses `seq`, strictly increasing over accepted records.
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError>;

    /// Sends records that the sink holds back to fill a batch, and accepted records that had to
    /// wait until others were delivered. Called when the caller has nothing more to send at the
    /// moment, and after each [`Deliveries::capacity`](crate::Deliveries::capacity). Does not block
    /// and does not wait for delivery.
    fn poll(&mut self) {}

    /// Sets the batching mode from the next record on. A hint: the promises about order and
    /// delivery are the same in both modes.
    fn set_mode(&mut self, mode: BatchingMode) {
        let _ = mode;
    }

    /// Returns the obstacle that accepted records wait for, or a record that was refused for lack
    /// of room; `None` if unknown. Called repeatedly while the oldest record in flight is not
    /// acknowledged.
    ///
    /// Does not block: a sink that must query a server returns the result of an earlier query, and
    /// calls [`Deliveries::capacity`](crate::Deliveries::capacity) when it has a new one.
    fn waiting_for(&mut self) -> Option<Obstacle> {
        None
    }

    /// Waits at most `grace` until every accepted record is reported, then closes the sink. The
    /// remaining records are given up and reported as failed before this returns. Blocks: call it
    /// from a thread that may block.
    fn close(self: Box<Self>, grace: Duration);
}

/// Creates sinks: one at the start, and another one after a sink has failed.
pub trait SinkFactory: Send {
    /// The type of the sinks.
    type Sink: Sink + 'static;
    /// The reason why a sink could not be created.
    type Error: Error + Send + Sync + 'static;

    /// Creates a sink that reports to `deliveries`. Does not wait for the broker to be reachable.
    fn create(&mut self, deliveries: Arc<dyn Deliveries>) -> Result<Self::Sink, Self::Error>;

    /// Returns the reaction to an error of [`create`](Self::create).
    fn disposition(error: &Self::Error) -> Disposition
    where
        Self: Sized;
}
