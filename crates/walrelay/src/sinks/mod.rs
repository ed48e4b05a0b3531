//! Sinks that live in the binary itself.

mod counting;
mod stdout;

pub(crate) use counting::{Count, Counting};
pub(crate) use stdout::{StdoutSinkFactory, record_line};
