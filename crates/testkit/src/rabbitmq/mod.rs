//! A RabbitMQ server, and a client that declares and reads. The client shares no code with the sink.

mod client;
mod server;

pub use client::{AmqpClient, AmqpMessage, Publication, QueueOptions};
pub use server::{AmqpServer, RabbitMq};
