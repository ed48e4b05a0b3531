//! Makes the parts of a record: one module for each set of rules.
//!
//! `connect` is below `debezium`, and `template` below `cloudevents` and `registry`.

pub(crate) mod cloudevents;
pub(crate) mod connect;
pub(crate) mod debezium;
pub(crate) mod registry;
pub(crate) mod template;
