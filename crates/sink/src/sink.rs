use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::{Deliveries, DeliveryError, Disposition, Record};

/// Why [`Sink::try_send`] did not take a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Back-pressure, not a failure: offer **the same record first** when
    /// [`Deliveries::capacity`] was called, so that the order per key holds.
    #[error("the sink's queue is full")]
    Full,
    /// The record was refused and will be refused again, or the sink is broken.
    #[error(transparent)]
    Refused(#[from] DeliveryError),
}

/// What matters more at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchingMode {
    /// That a record is in flight at once.
    Latency,
    /// That many records cost little: they are late already.
    Throughput,
}

/// What a sink waits for before it can deliver what it has accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// In words, with the name of what is missing. No key and no value.
    pub what: String,
    /// [`Disposition::Retryable`]: it may pass by itself. [`Disposition::Configuration`]: somebody must
    /// change something, so that a relay that stops need not wait for it.
    pub disposition: Disposition,
}

/// A place where records become durable.
pub trait Sink: Send {
    /// Offers a record. Does not block. After `Ok`, and only then, `seq` is reported to
    /// [`Deliveries`] exactly once.
    ///
    /// `seq` is the caller's, strictly increasing over accepted records.
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError>;

    /// Hands over now what the sink may hold back to fill a batch, and what it accepted but had to keep
    /// until something else was delivered. Called when the caller has nothing more to send at the moment,
    /// and after each [`Deliveries::capacity`](crate::Deliveries::capacity); does not block and does not
    /// wait for delivery.
    fn poll(&mut self) {}

    /// Says what matters from the next record on. A hint: what is promised of order and delivery is
    /// the same either way.
    fn set_mode(&mut self, mode: BatchingMode) {
        let _ = mode;
    }

    /// What the records wait for that were accepted, or the one that was not for want of room. `None`:
    /// that is not known. Asked again and again while the oldest record in flight is not acknowledged.
    ///
    /// Does not block: a sink that must ask somebody gives the answer to an earlier call, and calls
    /// [`Deliveries::capacity`](crate::Deliveries::capacity) when it has a new one.
    fn waiting_for(&mut self) -> Option<Obstacle> {
        None
    }

    /// Waits at most `grace` until every accepted record was reported, then closes the sink; what
    /// is left is given up and reported as failed before this returns. Blocks: call it from a
    /// thread that may.
    fn close(self, grace: Duration);
}

/// Makes sinks: one at the start, a fresh one after a sink has failed.
pub trait SinkFactory: Send {
    /// What it makes.
    type Sink: Sink + 'static;
    /// Why it could not.
    type Error: Error + Send + Sync + 'static;

    /// A new sink that reports to `deliveries`. Does not wait for the broker to be reachable.
    fn create(&mut self, deliveries: Arc<dyn Deliveries>) -> Result<Self::Sink, Self::Error>;

    /// What such an error asks for.
    fn disposition(error: &Self::Error) -> Disposition;
}
