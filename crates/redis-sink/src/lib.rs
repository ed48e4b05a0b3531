//! A writer to Redis Streams behind [`Sink`](walrelay_sink::Sink): `XADD` in transactions.
//!
//! # Contents
//! - [`RedisKind`], [`RedisSection`], [`Ids`]: the kind of sink, and its section of the configuration.
//! - [`RedisError`]: why there is no connection.
//! - `client`: the protocol RESP2, a login, the TLS settings, the meaning of error replies, the nodes of a
//!   cluster, and which of them has a stream. `sink`: the records in flight, entries and their ids, and the
//!   thread that writes. `dlq`: dead letters that are read back.
//!   `topics`: streams that are read back.
//!
//! # Invariants
//! - Of each stream one transaction is in flight, and each of its replies is read: a command that fails
//!   is never passed by a later one of its stream.
//! - A record is delivered when its `XADD` has succeeded, or when the server shows its entry.
//! - No bytes of a server make the decoder panic, and it stores no more than the server has sent.
//! - Nothing of an event is logged or part of an error but the name of its stream. The texts of error
//!   replies may quote arguments, so they are not shown.

#![forbid(unsafe_code)]

mod check;
mod client;
mod dlq;
mod failures;
mod kind;
mod section;
mod sink;
mod topics;

pub use client::error::RedisError;
pub use kind::RedisKind;
pub use section::{Ids, RedisSection};
