//! Sends records: which producer sends a record, when, and with which outcome.
//!
//! # Contents, from the bottom up
//! - `context`: handles librdkafka's events. `poll`: the thread that serves them. `connections`: their end by
//!   a reset. `rebootstrap`:
//!   when librdkafka is given `bootstrap.servers` again. `reachability`: when brokers count as down.
//!   `broker_states`: which broker does not answer. `broker_clock`: whether a broker's clock is right. `advertised`: brokers that cannot be reached at the address that the cluster advertises.
//! - `topic_checks`: whether topics may be written to, before the first record is sent to them.
//! - `producers`: the two producers of a sink, and the mode that selects one.
//! - `obstacle`: why records are not acknowledged. `topic_ids`: which topics were made anew.
//! - `statistics`: librdkafka's figures of its brokers.
//! - `sink`: the implementation of [`Sink`](walrelay_sink::Sink).

pub(crate) mod advertised;
mod broker_clock;
mod broker_states;
mod connections;
pub(crate) mod context;
pub(crate) mod obstacle;
pub(crate) mod poll;
pub(crate) mod producers;
pub(crate) mod reachability;
pub(crate) mod rebootstrap;
mod sink;
mod statistics;
pub(crate) mod topic_checks;
pub(crate) mod topic_ids;

pub(crate) use sink::check_limits;
pub use sink::{KafkaSink, KafkaSinkFactory};
