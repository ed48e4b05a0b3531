//! The sinks of the binary itself: standard output, a wrapper that counts, and one that discards.

mod counting;
mod null;
mod stdout;

pub(crate) use counting::{Count, Counting};
pub(crate) use null::NullSinkFactory;
pub(crate) use stdout::{StdoutKind, record_line};
