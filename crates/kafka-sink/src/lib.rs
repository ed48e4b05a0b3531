//! A Kafka producer behind the [`Sink`](walrelay_sink::Sink) trait: idempotent, `acks=all`,
//! partitioned as Java's client does, back-pressured by bytes and by count.
//!
//! # Contents
//! - [`KafkaConfig`], [`KafkaOptions`]: librdkafka's properties by their own names, validated.
//!   [`KafkaConfigError`] says which one would break a promise, why, and what to do.
//! - [`KafkaSinkFactory`], [`KafkaSink`]: the producer, or two of them, one for latency and one for throughput.
//!   [`KafkaError`] is why there is none.
//! - [`TokenSource`], [`Token`]: where the tokens of `sasl.mechanism=OAUTHBEARER` come from.
//! - [`probe`]: asks the cluster whether it would talk to us, for a configuration check. [`survey`]: what it says of
//!   topics.
//! - [`dlq`]: the topic of dead letters.
//! - [`Tail`]: a consumer, for comparisons, demonstrations and benchmarks. [`TemporaryTopics`]: topics that are made
//!   and removed.
//! - [`embedded`]: an in-process broker, for demonstrations only.
//!
//! Rooms: `config/`, `producer/` (sending), `consumer/` (reading), `dlq/`, `admin/` (topics), `ffi.rs`.
//!
//! # Invariants
//! - Every record that [`try_send`](walrelay_sink::Sink::try_send) accepted is reported exactly
//!   once, also when the producer dies of a fatal error and when the sink is dropped.
//! - "Delivered" is `acks=all` and nothing weaker: no property that says otherwise gets past
//!   [`KafkaConfig::new`]. It is also a broker's answer about this very record, with its offset: what
//!   librdkafka only infers from the success of a later request is reported as failed.
//! - Per key, records reach the broker in the order in which they were accepted: idempotence on, murmur2 over
//!   the key as in Java, one queue in FIFO order, and one request in flight to a broker, or several
//!   where each topic's `PartitionGate` sees to it that the first to a partition was alone. Records that come
//!   meanwhile are queued in `HoldQueues`, and no record passes one.
//! - Where there are two producers, all records of a partition that are in flight are in one of them
//!   (`docs/adr/0021-order-per-partition.md`).
//! - The first record that is not delivered ends the sink: the queues of all producers are given up at once,
//!   and nothing more is accepted. A request that is behind the failed one already may still be
//!   sent; `docs/adr/0007-one-request-in-flight.md` says when, and what comes of it.
//! - A panic in the thread that serves librdkafka, also in a [`Deliveries`](walrelay_sink::Deliveries)
//!   method, ends the process by SIGABRT, in every build profile.
//! - librdkafka retries for ever (`message.timeout.ms=0`); giving up is the relay's decision. `rebootstrap.rs`
//!   keeps it from losing all brokers meanwhile.
//! - Our window bounds the memory. librdkafka's own bounds are lifted so that they never decide.
//! - No secret is in a `Debug`, an error or a log line, and no key, value or header either.
//! - A certificate is verified by librdkafka with its own settings; what `tls.rs` does besides is to
//!   say why one was refused, without sending a credential.
//! - All `unsafe` of the project is in `ffi.rs`.
//!
//! # Ordering of the reports
//! Reports of one partition come in order, those of different partitions in any order, from one
//! thread named `kafka-poll` of each producer; but what was queued and is given up is reported by whoever
//! offers, polls or closes. [`Deliveries::capacity`](walrelay_sink::Deliveries::capacity)
//! comes from there, from librdkafka's own thread when it has learnt a topic's partitions, from `kafka-admin` or from
//! `kafka-inquiry`.
//!
//! # Blocking
//! `try_send` and `poll` do not block. [`KafkaSink`]'s `close` and drop, [`probe`],
//! [`survey`], [`Tail`], [`TemporaryTopics`] and [`embedded::EmbeddedBroker::start`] do, as their documentation says.

#![deny(unsafe_code)]

mod admin;
mod answers;
mod client_log;
mod config;
mod consumer;
pub mod dlq;
pub mod embedded;
mod error;
mod ffi;
mod probe;
mod producer;
mod sync;
mod tls;
mod tokens;
mod worker;

pub use admin::{
    ClusterSurvey, Creation, KafkaSettings, TemporaryTopics, TopicState, TopicSurvey, survey,
    topic_name_problem,
};
pub use config::{KafkaConfig, KafkaConfigError, KafkaOptions, TopicCreation};
pub use consumer::{FollowedPartition, Tail, TailedRecord, was_written_to};
pub use error::KafkaError;
pub use probe::{ClusterInfo, probe};
pub use producer::{KafkaSink, KafkaSinkFactory};
pub use tokens::{Token, TokenError, TokenSource};
