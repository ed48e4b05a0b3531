//! Renders the parts of a record: one module for each set of rules.
//!
//! `debezium` uses `connect`; `cloudevents` and `registry` use `template`.

pub(crate) mod cloudevents;
pub(crate) mod connect;
pub(crate) mod debezium;
pub(crate) mod registry;
pub(crate) mod template;
