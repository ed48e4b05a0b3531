//! The topic of dead letters: reads it, and writes what became of them.
//!
//! What a letter looks like is said in [`walrelay_sink::letter`]. The relay writes letters as it
//! writes any record; this is the other half.
//!
//! # Contents
//! - [`Entry`]: what a record of the topic is: a [`Letter`], a [`Resolution`], or neither.
//! - [`LetterWatcher`]: tells a relay which keys are parked.
//!
//! # Invariants
//! - Readers belong to no consumer group, commit nothing, read what is committed only, and never
//!   bring a topic into being.
//! - Records that are no letters are counted and passed over, never fatal.
//! - No `Debug`, error or log line shows key, value or headers.

mod client;
mod entry;
mod watcher;

pub use entry::{Entry, Letter, Outcome, Position, Resolution};
pub use watcher::LetterWatcher;

#[cfg(test)]
mod tests;
