//! A publisher to NATS JetStream behind [`Sink`](walrelay_sink::Sink): one message an event, whose
//! acknowledgement is awaited.
//!
//! # Contents
//! - [`NatsKind`], [`NatsSection`]: the kind of sink, and its section of the configuration.
//! - [`NatsError`]: why there is no connection.
//! - `client`: the text protocol, a login, credentials, the TLS settings, messages with headers, the
//!   answers of JetStream. `sink`: the records in flight, and the thread that publishes; in `sink::chain` to
//!   a stream that only the relay writes to. `reader`: reads the messages of streams. `losses`: settings by
//!   which a stream loses acknowledged messages, for `check`. For `dlq`, dead letters that are read back, and
//!   `topics`, which `tail` and `verify-topic` read.
//!
//! # Invariants
//! - At most one event of a key is in flight, or each names the one that it follows: none is stored
//!   before an earlier one of its key that was refused.
//! - A record is delivered when JetStream says that a stream has stored it, or had its id already. No
//!   other answer counts, whoever sends it.
//! - No subject has a wildcard, or is one of the server's.
//! - No bytes of a server make the decoder panic, and it stores no more than the server has sent.
//! - Nothing of an event is logged or part of an error but its subject as the topic of a
//!   [`DeliveryError`](walrelay_sink::DeliveryError). The server's texts are not shown.

#![forbid(unsafe_code)]

mod check;
mod client;
mod dlq;
mod failures;
mod kind;
mod losses;
mod reader;
mod section;
mod sink;
mod topics;

pub use client::error::NatsError;
pub use kind::NatsKind;
pub use section::NatsSection;
