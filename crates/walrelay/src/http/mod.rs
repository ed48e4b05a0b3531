//! HTTP: the client that requests of the program are made with, and the endpoint of a running relay.
//!
//! # Contents
//! - `client`: requests to a schema registry or to Kafka Connect.
//! - `endpoint`: the thread, the listener and its limits. `answers`: what each path is answered with.
//! - `page`: the status page, one document.
//!
//! # Invariants
//! - The endpoint shares nothing with the pipeline but [`Telemetry`](crate::telemetry::Telemetry), whose locks are held
//!   for moments. It has a thread of its own at a lower priority.
//! - Nothing that a client sends is kept: connections, headers, request time and event streams are bounded.

mod answers;
mod client;
mod endpoint;
mod page;

pub(crate) use client::{Roots, agent, basic};
pub(crate) use endpoint::{Endpoint, EndpointError};
