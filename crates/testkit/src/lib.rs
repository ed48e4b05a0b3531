//! Real Postgres and Kafka servers, a chaos proxy and the history checker for walrelay's tests.
//!
//! # Contents
//! - [`servers`]: Postgres by major version; [`Kafka`]: one real broker; [`KafkaCluster`]: three. All
//!   can be stopped, killed and started again on the same ports and data.
//! - [`SecureKafka`]: one with TLS, logins and access control, and with certificates that are wrong in
//!   one way each. [`Authority`] issues them, and others.
//! - [`SchemaRegistry`]: a small one over HTTP, which can be told to misbehave.
//! - [`debezium_server`], [`debezium_properties`]: a Debezium Server beside the relay.
//! - [`Standby`]: a standby of a Postgres server, which can be promoted.
//! - [`ChaosProxy`]: a TCP proxy that cuts, stalls, delays and resets on command.
//! - [`Workload`]: concurrent writers to an outbox, with rollbacks and savepoints, in whose rows the
//!   commit order of each key can be read.
//! - [`History`], [`check`], [`Verdict`]: **the oracle**. What was committed against what arrived.
//! - [`CommitLog`], [`EarlyWatch`], [`confirmed_early`]: where each row was committed in the log, and
//!   whether a slot ever stood behind it before the broker had the row's record.
//! - [`SlotWatch`], [`Db`]: what Postgres says, for tests that are blocking or asynchronous alike.
//! - [`eventually`], [`eventually_some`]: awaiting a condition instead of
//!   sleeping.
//!
//! # Invariants
//! - A server that is missing is a **failure** that names `scripts/fetch-servers.sh`; nothing is
//!   skipped in silence. `WALRELAY_TEST_POSTGRES` and `WALRELAY_TEST_KAFKA` name running servers to
//!   use instead.
//! - Everything started ends with its owner, also after a panic or a SIGKILL; see
//!   `walrelay_lab::servers`.
//! - Nothing here needs an async runtime of its caller's, and nothing breaks inside one.
//! - This crate is for tests: what goes wrong in the set-up panics with the reason.

#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test's set-up fails by panicking with the reason; nobody could handle it"
)]

mod authority;
mod commits;
mod db;
mod debezium;
mod early;
mod history;
mod kafka;
mod proxy;
mod registry;
pub mod servers;
mod slot;
mod standby;
mod threads;
mod wait;
mod workload;

pub use authority::{Authority, Issued};
pub use commits::{CommitLog, LoggedRow};
pub use db::Db;
pub use debezium::{debezium_properties, debezium_server};
pub use early::{EarlyWatch, Sighting, TooEarly, confirmed_early, millis_now};
pub use history::{Altered, Committed, Delivered, History, OutOfOrder, Verdict, check};
pub use kafka::{Kafka, KafkaBuilder, KafkaCluster, SecureKafka};
pub use proxy::{ChaosProxy, Cut, Direction};
pub use registry::{Asked, Mishap, SchemaRegistry};
pub use slot::{SlotState, SlotWatch};
pub use standby::Standby;
pub use wait::{eventually, eventually_some};
pub use workload::{Running, Workload, Written};
