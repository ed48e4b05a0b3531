//! Ask the server about the slot and the outbox tables, alongside the pipeline.

mod outbox;
mod slot;

pub(crate) use outbox::OutboxMonitor;
pub(crate) use slot::SlotMonitor;
