//! The stream of dead letters: reads dead letters, and writes their resolutions.
//!
//! [`walrelay_sink::dlq_headers`] describes the format. The relay writes dead letters like any other
//! record, so this module only reads and resolves them.
//!
//! # Contents
//! - `log` is the messages of a subject as a [`DlqLog`](walrelay_sink_kind::dead_letters::DlqLog). `store` is
//!   the [`DeadLetterStore`](walrelay_sink_kind::dead_letters::DeadLetterStore).
//!
//! # Invariants
//! - The server says which stream has the subject. Messages with other subjects are passed over.
//! - A reading counts only if the stream is afterwards the one that it was, with all that was read.
//! - Messages that are no dead letters are counted and skipped; they are never fatal.
//! - A dead letter whose headers are not known byte for byte is open, and is never redriven.

mod failure;
mod log;
mod store;

pub(crate) use store::NatsDeadLetters;
