//! The stream of dead letters: reads dead letters, and writes their resolutions.
//!
//! [`walrelay_sink::dlq_headers`] describes the format. The relay writes dead letters like any other
//! record, so this module only reads and resolves them.
//!
//! # Contents
//! - `log` is the stream as a [`DlqLog`](walrelay_sink_kind::dead_letters::DlqLog). `store` is the
//!   [`DeadLetterStore`](walrelay_sink_kind::dead_letters::DeadLetterStore).
//!
//! # Invariants
//! - What is read comes from a server that accepts writes: a replica may lack the newest dead letters.
//! - Entries that are no dead letters are counted and skipped; they are never fatal.

mod failure;
mod log;
mod store;

pub(crate) use store::RedisDeadLetters;
