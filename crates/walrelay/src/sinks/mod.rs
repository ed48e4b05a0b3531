//! Sinks of the binary itself: standard output, and a wrapper that counts.

mod counting;
mod stdout;

pub(crate) use counting::{Count, Counting};
pub(crate) use stdout::{StdoutSinkFactory, record_line};
