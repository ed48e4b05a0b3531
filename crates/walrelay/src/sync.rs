//! Helpers for mutexes.

pub(crate) use walrelay_sink::lock;
