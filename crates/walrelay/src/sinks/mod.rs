//! Sinks that live in the binary itself.

mod stdout;

pub(crate) use stdout::{StdoutSinkFactory, record_line};
