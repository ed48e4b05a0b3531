//! The topic of dead letters: reads it, and writes what became of them.
//!
//! What a letter looks like is said in [`walrelay_sink::dlq_headers`]. The relay writes dead letters as it
//! writes any record; this is the other half.
//!
//! # Contents
//! - [`Entry`]: what a record of the topic is: a [`DlqRecord`], a [`Resolution`], or neither.
//! - [`DlqReader`]: gives them from the beginning of the topic to its end.
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

pub use entry::{DlqRecord, Entry, Outcome, Position, Resolution};
pub use index::{DlqIndex, DlqRecordId, Listed, OutOfOrder};
pub use reader::DlqReader;
pub use replayer::{
    Action, DlqReplayer, NotRedriven, ReplayError, ReplayOptions, ReplaySummary, Step,
};
pub use watcher::DlqWatcher;

#[cfg(test)]
mod tests;
