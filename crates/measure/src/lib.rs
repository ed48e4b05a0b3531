//! Loads, figures, and the use of CPU and memory, for measurements.
//!
//! # Contents
//! - [`load`]: the load generator: a backlog, and rows on a fixed schedule.
//! - [`figures`]: percentiles, medians and what the machine is, and how cells show them.
//! - [`table`](mod@table): Markdown tables.
//! - [`proc`]: CPU and memory of processes.
//!
//! `walrelay bench` measures its own process with it, `make bench` (the crate `walrelay-bench`)
//! measures processes beside one another. The relay's metrics show the figures of [`proc`].
//!
//! # Invariant
//! Nothing here depends on the relay: the callers bring the pipeline and the connections.

#![forbid(unsafe_code)]

pub mod figures;
pub mod load;
pub mod proc;
pub mod table;
