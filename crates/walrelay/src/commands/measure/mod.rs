//! Commands that bring servers and load of their own.

pub(crate) mod bench;
pub(crate) mod demo;
