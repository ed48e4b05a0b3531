//! A publisher to RabbitMQ behind [`Sink`](walrelay_sink::Sink): AMQP 0-9-1 with publisher confirms.
//!
//! # Contents
//! - [`RabbitmqKind`], [`RabbitmqSection`]: the kind of sink, and its section of the configuration.
//! - [`RabbitmqError`]: why there is no connection.
//! - [`QueueReader`]: reads a queue, for demonstrations.
//! - `topics`: reads streams back.
//! - `management`: what the server's management interface shows, for `check` and `topics`.
//! - `client`: the protocol, a login, the TLS settings. `sink`: the records in flight, and the thread
//!   that publishes.
//!
//! # Invariants
//! - Every message is persistent and mandatory. A message is delivered when the server has confirmed
//!   it and has not returned it.
//! - A returned message is found by the position inside it.
//! - At most one message of an exchange and key is in flight.
//! - No message is sent again because another one is refused, unless the server closes its channel for
//!   that one. An exchange that accepts no messages holds back its own only.
//! - No bytes of a server make the decoder panic or allocate more than a frame.
//! - Of queues that are no streams nothing is read but by [`QueueReader`].
//! - Nothing of a message is logged or part of an error but the name of its exchange.

#![forbid(unsafe_code)]

mod check;
mod client;
mod failures;
mod kind;
mod management;
#[cfg(test)]
mod scripted;
mod section;
mod sink;
mod topics;

pub use client::consume::{QueueAddress, QueueReader, QueuedMessage};
pub use client::error::RabbitmqError;
pub use kind::{ConstantAddress, RabbitmqKind};
pub use section::{Auth, RabbitmqSection};
