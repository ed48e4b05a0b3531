//! Redis servers, alone or with a Sentinel, and a client that reads streams.

mod client;
mod sentinel;
mod server;

pub use client::{RedisClient, RedisReply, StreamEntry};
pub use sentinel::RedisGroup;
pub use server::{Redis, RedisInTurn};
