//! Commands that create, show and change what is in Postgres.

pub(crate) mod bookmark;
mod consumer;
pub(crate) mod init;
pub(crate) mod kept;
mod preset_table;
pub(crate) mod prune;
pub(crate) mod slots;
