//! Throwaway Postgres servers, a load generator and figures, for demonstrations and measurements.
//!
//! # Contents
//! - [`servers`]: throwaway Postgres servers, and the parts of any throwaway server.
//! - [`load`]: the load generator: a backlog, and rows on a fixed schedule.
//! - [`figures`]: percentiles, medians and what the machine is, and how tables show them.
//! - [`proc`]: CPU and memory of processes.
//!
//! `walrelay demo`, `walrelay bench` and the program of `make bench` use it. The last one
//! (`examples/bench`) measures the binary beside other readers of the same WAL.
//!
//! # Invariants
//! - Nothing here depends on the relay: the callers bring the pipeline and the connections.
//! - No server outlives its owner: see [`servers`].

#![forbid(unsafe_code)]

pub mod figures;
pub mod load;
pub mod proc;
pub mod servers;
