//! A NATS server with JetStream, and a client that reads streams.

mod client;
mod server;

pub use client::{NatsClient, NatsMessage};
pub use server::{Nats, NatsInTurn};
