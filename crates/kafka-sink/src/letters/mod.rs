//! The topic of dead letters: reads it, and writes what became of them.
//!
//! What a letter looks like is said in [`walrelay_sink::letter`]. The relay writes letters as it
//! writes any record; this is the other half.
//!
//! # Contents
//! - [`Entry`]: what a record of the topic is: a [`Letter`], a [`Resolution`], or neither.
//! - [`LetterReader`]: gives them from the beginning of the topic to its end.
//! - [`LetterIndex`]: which letters are open, and in which order they are to be taken.
//! - [`LetterDesk`]: redrives letters and drops them.
//! - [`LetterWatcher`]: tells a relay which keys are parked.
//!
//! # Invariants
//! - Readers belong to no consumer group, commit nothing, read what is committed only, and never
//!   bring a topic into being.
//! - Records that are no letters are counted and passed over, never fatal.
//! - No `Debug`, error or log line shows key, value or headers.

pub(crate) mod client;
mod desk;
mod entry;
mod index;
mod reader;
mod sender;
mod watcher;

pub use desk::{Action, DeskError, LetterDesk, NotRedriven, Orders, Step, Tally};
pub use entry::{Entry, Letter, Outcome, Position, Resolution};
pub use index::{LetterIndex, LetterName, Listed, OutOfOrder};
pub use reader::LetterReader;
pub use watcher::LetterWatcher;

#[cfg(test)]
mod tests;
