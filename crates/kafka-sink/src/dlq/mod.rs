//! The topic of dead letters: reads it, and writes what became of them.
//!
//! What a dead letter looks like is said in [`walrelay_sink::dlq_headers`]. The relay writes dead letters as it
//! writes any record; this is the other half.
//!
//! # Contents
//! - [`DlqRecord`]: an event that could not be delivered. `entry` reads it, `reader` the topic from beginning to end.
//! - [`DlqIndex`]: which dead letters are open, and in which order they are to be taken.
//! - [`DlqReplayer`]: redrives dead letters and drops them.
//! - [`DlqWatcher`]: tells a relay which keys are parked.
//!
//! # Invariants
//! - Readers belong to no consumer group, commit nothing, read what is committed only, and never
//!   bring a topic into being.
//! - Records that are no dead letters are counted and passed over, never fatal.
//! - No `Debug`, error or log line shows key, value or headers.

mod entry;
mod index;
mod reader;
mod replayer;
mod sender;
mod watcher;

pub use entry::{DlqRecord, Outcome, Position};
pub use index::{DlqIndex, DlqRecordId, Listed, OutOfOrder};
pub use replayer::{
    Action, DlqReplayer, NotRedriven, ReplayError, ReplayOptions, ReplaySummary, Step,
};
pub use watcher::DlqWatcher;

#[cfg(test)]
mod tests;
