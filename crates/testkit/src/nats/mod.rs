//! A NATS server with JetStream, and a client that reads streams.

mod client;
mod cluster;
mod server;

pub use client::{NatsClient, NatsMessage};
pub use cluster::NatsCluster;
pub use server::{Nats, NatsServer};
