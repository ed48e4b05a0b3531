//! The topic of dead letters: reads dead letters, and writes their resolutions.
//!
//! [`walrelay_sink::dlq_headers`] describes the format. The relay writes dead letters like any
//! other record, so this module only reads and resolves them.
//!
//! What is not Kafka's own is in [`walrelay_sink_kind::dead_letters`].
//!
//! # Contents
//! - `reader` reads the topic. `store` is the topic as a
//!   [`DeadLetterStore`](walrelay_sink_kind::dead_letters::DeadLetterStore).
//! - [`OpenDeadLetters`]: the events of the open ones, whose rows must be kept.
//! - [`DlqWatcher`]: keeps the parked keys of a relay up to date.
//!
//! # Invariants
//! - Readers join no consumer group, commit no offsets, read committed records only, and never
//!   create a topic.
//! - Records that are no dead letters are counted and skipped; they are never fatal.
//! - No `Debug`, error or log line shows key, value or headers.

mod open;
mod reader;
mod store;
mod watcher;

pub use open::OpenDeadLetters;
pub use store::KafkaDeadLetters;
pub use watcher::DlqWatcher;

#[cfg(test)]
mod tests;
