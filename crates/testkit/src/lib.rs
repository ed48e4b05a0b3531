//! Real Postgres and Kafka servers, a chaos proxy, the history checker and the conformance suite of
//! sinks for walrelay's tests.
//!
//! # Contents
//! - [`servers`]: Postgres by major version; [`Kafka`]: one real broker; [`KafkaCluster`]: three.
//!   All can be stopped, killed and started again on the same ports and data.
//! - [`TestServer`]: a server of one of the kinds below. [`InTurn`]: one that a test has to itself.
//!   [`ServerKind`], [`SharedServers`]: what a kind brings along.
//! - [`RabbitMq`]: a RabbitMQ server. [`AmqpClient`] declares and reads there.
//! - [`Nats`]: a NATS server. [`NatsClient`] creates and reads streams there.
//! - [`Redis`]: a Redis server. [`RedisClient`] reads streams there. [`RedisGroup`]: a master, a replica
//!   and a Sentinel. [`RedisCluster`]: three masters with or without replicas.
//! - [`SecureKafka`]: a broker with TLS, logins and access control, and with certificates that are
//!   wrong in one way each. [`Authority`] issues certificates.
//! - [`Program`]: a program under test, with its log. [`output`]: a command that runs to its end.
//! - [`Producer`]: writes records of a test's own.
//! - [`SchemaRegistry`]: a small schema registry over HTTP, which can be made to misbehave.
//!   [`HttpServer`]: the part of it that any stand-in over HTTP needs.
//! - [`HttpReceiver`]: stores the requests of an HTTP sink, and misbehaves on command.
//! - [`ReservedAddress`]: an address at which nothing listens, and that no other process gets.
//! - [`debezium_server`], [`debezium_properties`]: a Debezium Server beside the relay.
//! - [`Standby`]: a standby of a Postgres server, which can be promoted.
//! - [`ChaosProxy`]: a TCP proxy that cuts, stalls, delays and resets on command.
//! - [`Workload`]: concurrent writers to an outbox, with rollbacks and savepoints, whose rows tell
//!   the commit order of each key.
//! - [`History`], [`check`], [`Verdict`]: the **history checker**, which compares what was
//!   committed with what arrived.
//! - [`CommitLog`], [`EarlyWatch`], [`confirmed_early`]: where each row was committed in the WAL,
//!   and whether a slot ever confirmed it before the broker had the row's record.
//! - [`mod@conformance`]: the promises that every sink keeps, driven against its server.
//!   [`Reports`]: receives the reports of a sink, for tests of one. [`OpenSink`]: a sink with its reports.
//! - [`SlotWatch`], [`Db`]: slots and queries, for blocking and asynchronous tests alike.
//! - [`eventually`], [`eventually_some`]: wait for a condition instead of sleeping. [`PATIENCE`]:
//!   the limit of most waits. [`eventually_while_moving`]: waits as long as a progress changes.
//!   [`Background`]: a thread that watches until it is stopped.
//! - [`seed`], [`rng`]: the seed of the run, from which every random choice of a test comes.
//!
//! # Invariants
//! - A missing server is a **failure** that names `scripts/fetch-servers.sh`; nothing is skipped
//!   silently. `WALRELAY_TEST_POSTGRES` and `WALRELAY_TEST_KAFKA` name running servers to use
//!   instead.
//! - Everything that is started ends with its owner, also after a panic or a SIGKILL; see
//!   `walrelay_throwaway`.
//! - Nothing here needs an async runtime of its caller, and everything works inside one.
//! - This crate is for tests: an error in the set-up panics with the reason.

#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test's set-up fails by panicking with the reason; nobody could handle it"
)]

mod address;
mod authority;
mod batches;
mod commits;
pub mod conformance;
mod db;
mod debezium;
mod early;
mod history;
mod http;
mod kafka;
mod nats;
mod open_sink;
mod producer;
mod program;
mod proxy;
mod rabbitmq;
mod receiver;
mod redis;
mod registry;
mod reports;
mod runtime;
mod seed;
mod server;
pub mod servers;
mod silence;
mod slot;
mod standby;
mod threads;
mod wait;
mod workload;

pub use self::redis::{
    Redis, RedisClient, RedisCluster, RedisGroup, RedisReply, RedisServer, StreamEntry,
};
pub use address::ReservedAddress;
pub use authority::{Authority, Issued};
pub use batches::emit_in_batches;
pub use commits::{CommitLog, LoggedRow};
pub use db::Db;
pub use debezium::{debezium_properties, debezium_server};
pub use early::{EarlyWatch, Sighting, TooEarly, confirmed_early, first_appended, millis_now};
pub use history::{Altered, Committed, Delivered, History, OutOfOrder, Verdict, check};
pub use http::{HttpAnswer, HttpRequest, HttpServer};
pub use kafka::{Kafka, KafkaBuilder, KafkaCluster, SecureKafka};
pub use nats::{Nats, NatsClient, NatsCluster, NatsMessage, NatsServer};
pub use open_sink::OpenSink;
pub use producer::Producer;
pub use program::{Program, output};
pub use proxy::{ChaosProxy, Cut, Direction};
pub use rabbitmq::{AmqpClient, AmqpMessage, AmqpServer, Publication, QueueOptions, RabbitMq};
pub use receiver::{HttpReceiver, Reaction, Received};
pub use registry::{Asked, Mishap, SchemaRegistry};
pub use reports::{ReportState, Reports};
pub use seed::{rng, rng_of, seed, seed_setting};
pub use server::{InTurn, ServerKind, SharedServers, TestServer};
pub use silence::silence_is_shown;
pub use slot::{SlotState, SlotWatch};
pub use standby::Standby;
pub use threads::{Background, lock};
pub use wait::{PATIENCE, eventually, eventually_some, eventually_while_moving};
pub use workload::{Running, Workload, Written};
