//! A Redis server, and a client that reads streams.

mod client;
mod server;

pub use client::{RedisClient, RedisReply, StreamEntry};
pub use server::{Redis, RedisInTurn};
