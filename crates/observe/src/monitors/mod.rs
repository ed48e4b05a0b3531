//! Ask the server about the slot and the outbox tables, alongside the pipeline.

mod outbox;
mod slot;

pub use outbox::OutboxMonitor;
pub use slot::{SlotMonitor, slot_report};
