//! The configured sink, and the sinks of the binary itself: standard output, and a wrapper that
//! counts.

mod counting;
mod kafka;
mod kind;
mod stdout;

pub(crate) use counting::{Count, Counting};
pub(crate) use kafka::kafka;
pub(crate) use kind::{DeadLetterStore, SinkKind, configured_sink};
pub(crate) use stdout::{StdoutKind, record_line};
