//! What walrelay is shown and measured with.
//!
//! # Contents
//! - [`servers`]: throwaway Postgres servers, and the parts of any throwaway server.
//! - [`load`]: the load generator: a backlog, and rows on a fixed schedule.
//! - [`figures`]: percentiles, medians and what the machine is, and how tables show them.
//! - [`proc`]: CPU and memory of processes.
//!
//! `walrelay demo` and `walrelay bench` use it, and so does the program of `make bench`
//! (`examples/bench`), which measures the binary beside other readers of the same WAL.
//!
//! # Invariants
//! - Nothing here depends on the relay: the callers bring the pipeline and the connections.
//! - Nothing outlives its owner: see [`servers`].

#![forbid(unsafe_code)]

pub mod figures;
pub mod load;
pub mod proc;
pub mod servers;
