//! Sends records: which producer sends a record, when, and with which outcome.
//!
//! # Contents, from the bottom up
//! - `window`: how many records and bytes may be in flight. `outcome`: what an error code means.
//! - `partition_gate`: which records of a topic may be in flight together, and in which producer.
//!   `hold_queues`: the records that a gate holds back.
//! - `shared`: the state shared by the producers of one sink. `topic`: a topic of one producer, for
//!   librdkafka's callbacks.
//! - `context`: handles librdkafka's events. `poll`: the thread that serves them. `rebootstrap`:
//!   when librdkafka is given `bootstrap.servers` again. `reachability`: when brokers count as down.
//!   `advertised`: brokers that cannot be reached at the address that the cluster advertises.
//! - `producers`: the two producers of a sink, and the mode that selects one.
//! - `obstacle`: why records are not acknowledged. `topic_ids`: which topics were made anew.
//! - `statistics`: librdkafka's figures of its brokers.
//! - `sink`: the implementation of [`Sink`](walrelay_sink::Sink).

pub(crate) mod advertised;
pub(crate) mod context;
pub(crate) mod hold_queues;
pub(crate) mod obstacle;
pub(crate) mod outcome;
pub(crate) mod partition_gate;
pub(crate) mod poll;
pub(crate) mod producers;
pub(crate) mod reachability;
pub(crate) mod rebootstrap;
pub(crate) mod shared;
mod sink;
mod statistics;
pub(crate) mod topic;
pub(crate) mod topic_ids;
pub(crate) mod window;

pub use sink::{KafkaSink, KafkaSinkFactory};
