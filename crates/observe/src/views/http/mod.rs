//! The HTTP endpoint of a running relay.
//!
//! # Contents
//! - `endpoint`: the thread, the listener and its limits. `answers`: the response for each path.
//! - `open_connections`: which connection gives way if there are too many. `page`: the status page, one
//!   document.
//!
//! # Invariants
//! - The endpoint and the pipeline share only [`Telemetry`](crate::Telemetry), whose
//!   locks are held briefly. The endpoint has its own thread at a lower priority.
//! - A client that reads nothing loses its connection in seconds, and no client keeps a probe out.
//! - Connections, request heads, request times and event streams are bounded. The id of the
//!   last event that was looked for is stored, and nothing else that clients send.

mod answers;
mod endpoint;
mod open_connections;
mod page;

pub use endpoint::{EndpointError, start_endpoint};
