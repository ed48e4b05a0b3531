//! The topic of dead letters: reads dead letters, and writes their resolutions.
//!
//! [`walrelay_sink::dlq_headers`] describes the format. The relay writes dead letters like any
//! other record, so this module only reads and resolves them.
//!
//! # Contents
//! - [`DlqRecord`]: a dead letter. `entry` parses it, `reader` reads the topic.
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
mod watcher;

pub use entry::{DlqRecord, Outcome, Position};
pub use index::{DlqIndex, DlqRecordId, Listed, OutOfOrder};
pub use open::{OpenDeadLetters, OpenEvent};
pub use replayer::{
    Action, DlqReplayer, NotRedriven, ReplayError, ReplayOptions, ReplaySummary, Step,
};
pub use watcher::DlqWatcher;

#[cfg(test)]
mod tests;
