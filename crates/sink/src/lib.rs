//! What a relay hands to a message broker, and what it learns back.
//!
//! # Contents
//! - [`Record`], [`Header`]: one message, borrowed from wherever its bytes lie.
//! - [`Sink`], [`SinkFactory`]: where records go. [`SendError`] says why one was not taken.
//! - [`Deliveries`]: how a sink reports, from any thread and in any order, what became of them.
//! - [`DeliveryError`], [`Disposition`], [`Poison`]: why a record was not delivered and what can be
//!   done.
//! - [`SinkStats`]: a sink's figures for metrics.
//! - [`dlq_headers`], [`EventPosition`]: what a dead letter looks like. [`Parking`]: whose keys wait behind one.
//!
//! # Invariants
//! - [`Sink::try_send`] never blocks and never allocates on behalf of the caller's record beyond
//!   what its queue needs; it copies what it must keep.
//! - Every record that was **accepted** is reported exactly once, delivered or failed, also when the
//!   sink is dropped. "Delivered" means durable by the sink's own standard (Kafka: acknowledged
//!   with `acks=all`), never "queued".
//! - Records of the same key reach the broker in the order in which they were accepted.
//! - Nothing here prints a record's key, value or headers: [`Record`]'s `Debug` gives lengths.

#![forbid(unsafe_code)]

mod delivery;
pub mod dlq_headers;
mod event_position;
mod parking;
mod record;
mod sink;
mod stats;

pub use delivery::{Deliveries, DeliveryError, Disposition, Poison};
pub use event_position::EventPosition;
pub use parking::Parking;
pub use record::{Header, Record};
pub use sink::{BatchingMode, Obstacle, SendError, Sink, SinkFactory};
pub use stats::{BrokerStats, MAX_TOPICS, OTHER_TOPICS, SinkStats, TopicStats};
