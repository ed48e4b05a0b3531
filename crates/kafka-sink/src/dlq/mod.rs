//! The topic of dead letters: reads dead letters, and writes their resolutions.
//!
//! [`walrelay_sink::dlq_headers`] describes the format. The relay writes dead letters like any
//! other record, so this module only reads and resolves them.
//!
//! # Contents
//! - `entry` parses a [`DlqRecord`](walrelay_sink::dead_letters::DlqRecord), `reader` reads the
//!   topic. `store` is the topic as a
//!   [`DeadLetterStore`](walrelay_sink::dead_letters::DeadLetterStore).
//! - [`DlqIndex`]: which dead letters are open, and in which order they are replayed.
//! - [`OpenDeadLetters`]: the events of the open ones, whose rows must be kept.
//! - [`DlqReplayer`]: redrives or drops dead letters.
//! - [`DlqWatcher`]: keeps the parked keys of a relay up to date.
//!
//! # Invariants
//! - Readers join no consumer group, commit no offsets, read committed records only, and never
//!   create a topic.
//! - Records that are no dead letters are counted and skipped; they are never fatal.
//! - No `Debug`, error or log line shows key, value or headers.

mod entry;
mod index;
mod open;
mod reader;
mod replayer;
mod sender;
mod store;
mod watcher;

pub use index::DlqIndex;
pub use open::OpenDeadLetters;
pub use replayer::{DlqReplayer, ReplayError};
pub use store::KafkaDeadLetters;
pub use watcher::DlqWatcher;

#[cfg(test)]
mod tests;
