//! Redis servers, alone, with a Sentinel or as a cluster, and a client that reads streams.

mod client;
mod cluster;
mod sentinel;
mod server;

pub use ::redis::Value as RedisReply;
pub use client::{RedisClient, StreamEntry};
pub use cluster::RedisCluster;
pub use sentinel::RedisGroup;
pub use server::{Redis, RedisServer};
