//! Commands for a first configuration, and for the way from another relay to this one.

pub(crate) mod cutover;
pub(crate) mod import_debezium;
pub(crate) mod new;
pub(crate) mod schema;
