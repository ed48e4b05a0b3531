//! A Kafka producer behind the [`Sink`](walrelay_sink::Sink) trait: idempotent, `acks=all`,
//! partitioned as by Java's client, with back-pressure by bytes and by number of records.
//!
//! # Contents
//! - [`KafkaKind`]: a cluster as a [`SinkKind`](walrelay_sink_kind::SinkKind), for every command.
//! - [`KafkaConfig`], [`KafkaOptions`]: librdkafka's properties by their own names, validated.
//!   [`KafkaConfigError`]: which property would break a promise, why, and what to do.
//! - [`KafkaSinkFactory`], [`KafkaSink`]: the producer, or two of them, one for latency and one for
//!   throughput. [`KafkaError`]: why a client could not be created.
//! - [`TokenSource`], [`Token`]: the source of tokens for `sasl.mechanism=OAUTHBEARER`.
//! - [`probe`]: checks whether the cluster accepts a client. [`survey`]: the state of topics.
//! - [`dlq`]: the topic of dead letters.
//! - [`Tail`]: a consumer, for comparisons, demonstrations and benchmarks. [`TemporaryTopics`]:
//!   creates and deletes topics.
//! - [`embedded`]: an in-process broker, for demonstrations only.
//!
//! Modules, each using only those behind it: `kind.rs`, `checks/` (for `walrelay check`), `dlq/`, `producer/` (sending), `consumer/` (reading),
//! `admin/` (topics), `config/`, `ffi.rs`, `in_flight/` (the order of records).
//!
//! # Invariants
//! - Every record that [`try_send`](walrelay_sink::Sink::try_send) accepted is reported exactly
//!   once, also after a fatal error of the producer and when the sink is dropped.
//! - "Delivered" is `acks=all` and nothing weaker: [`KafkaConfig::new`] refuses any property that
//!   would change it. A broker's response contains the offset of this very record: a record whose
//!   success librdkafka only infers from that of a later request is reported as failed.
//! - Per key, records reach the broker in the order in which they were accepted: idempotence is on,
//!   murmur2 over the key as in Java, one FIFO queue, and one request in flight to a broker.
//!   Several may be in flight where each topic's `PartitionGate` ensures that the first request to
//!   a partition was alone. Records that arrive meanwhile are queued in `HoldQueues`, and no record
//!   passes one.
//! - With two producers, all in-flight records of a partition are in one of them
//!   (`docs/adr/0021-order-per-partition.md`).
//! - A record is given to librdkafka after a broker has described its topic. Until then it is held back
//!   with the others of its topic; after `retry_for` it is refused, and the sink goes on
//!   (`docs/adr/0060-a-missing-topic-holds-itself.md`).
//! - The first record of a producer that is not delivered ends the sink: the queues of all producers are given up
//!   at once, and no record is accepted any more. A request already behind the failed one may still
//!   be sent; `docs/adr/0007-one-request-in-flight.md` describes when, and the consequences.
//! - A panic in the thread that serves librdkafka, also in a
//!   [`Deliveries`](walrelay_sink::Deliveries) method, ends the process by SIGABRT, in every build
//!   profile.
//! - librdkafka retries without end (`message.timeout.ms=0`); the relay decides when to give up.
//!   `rebootstrap.rs` keeps librdkafka from losing all brokers meanwhile.
//! - The sink's own window bounds the memory. librdkafka's bounds are lifted so that they never
//!   apply.
//! - No secret, key, value or header is in `Debug` output, an error or a log line.
//! - librdkafka verifies certificates with its own settings. `tls.rs` only finds out why a
//!   certificate was refused, without sending a credential.
//! - All `unsafe` of the project is in `ffi.rs`.
//!
//! # Ordering of the reports
//! Reports of one partition come in order, those of different partitions in any order. They come
//! from the thread `kafka-poll` of each producer. Exception: records of hold queues that are given
//! up are reported by the thread that calls `try_send`, `poll` or `close`.
//! [`Deliveries::capacity`](walrelay_sink::Deliveries::capacity) is called by these threads, by
//! librdkafka's own thread when it has learnt a topic's partitions, by `kafka-admin`, `kafka-topics` and
//! `kafka-inquiry`. Refused records are reported by the thread that calls `try_send` or `poll`.
//!
//! # Blocking
//! `try_send` and `poll` do not block. [`KafkaSink`]'s `close` and drop, [`probe`], [`survey`],
//! [`Tail`], [`TemporaryTopics`] and [`embedded::EmbeddedBroker::start`] do, as documented there.

#![deny(unsafe_code)]

mod admin;
mod answers;
mod bearer;
mod checks;
mod client_log;
mod config;
mod consumer;
pub mod dlq;
pub mod embedded;
mod error;
mod failures;
mod ffi;
mod in_flight;
mod kind;
mod known_brokers;
mod outcome;
mod probe;
mod producer;
pub mod section;
mod sync;
#[cfg(test)]
mod testing;
mod tls;
mod tokens;
mod worker;

pub use admin::{
    ClusterSurvey, Creation, KafkaSettings, TemporaryTopics, TopicState, TopicSurvey, survey,
    topic_name_problem,
};
pub use config::{KafkaConfig, KafkaConfigError, KafkaOptions, TopicCreation};
pub use consumer::{Tail, was_written_to};
pub use error::KafkaError;
pub use ffi::exit_at_once;
pub use kind::KafkaKind;
pub use probe::{ClusterInfo, probe};
pub use producer::{KafkaSink, KafkaSinkFactory};
pub use section::KafkaSection;
pub use tokens::{Token, TokenError, TokenSource};
