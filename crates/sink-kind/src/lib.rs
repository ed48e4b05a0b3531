//! A configured sink as commands use it. The path of a record needs only `walrelay-sink`.
//!
//! # Contents
//! - [`SinkKind`]: a configured sink. [`KindDescription`]: the facts about its kind. [`Ability`]: what a sink may lack.
//!   [`SinkTerms`]: how views name its servers.
//! - [`check`]: the results of `walrelay check`.
//! - [`dead_letters`]: reads and resolves dead letters.
//! - [`topics`]: reads topics, and creates temporary ones.
//!
//! # Invariants
//! - Nothing here is called while a record is sent, except for the writing of resolutions.
//! - Nothing here prints a record's key, value or headers.

#![forbid(unsafe_code)]

pub mod check;
pub mod dead_letters;
mod kind;
pub mod topics;

pub use kind::{Ability, KindDescription, SinkKind, SinkTerms};
