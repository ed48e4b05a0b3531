//! One pipeline, from a replication slot to a sink: the state machine and the task around it.
//!
//! # Contents
//! - [`Core`]: the state machine. Frames, acknowledgements and lost connections go in;
//!   records to send and the position to confirm come out. No I/O, no clock, no threads.
//! - [`Pipeline`]: the task that carries out what the core says, with its [`Settings`]: connect,
//!   stream, reconnect with a jittered [`Backoff`], drain, close.
//! - [`Source`], [`WalStream`]: where frames come from; `walsender`'s stream is one.
//! - [`Resume::continued_by`]: whether a new stream continues the log that was read before, or what
//!   is missing ([`LogError`]).
//! - [`Schemas`]: who is asked for the schemas of values, where they are encoded by some.
//! - [`Environment`]: where the pipeline reads the wall clock, and what it reports to
//!   ([`State`], [`Progress`], samples of latency). [`Counts`] are the figures of a run.
//! - [`PipelineError`]: why a pipeline stopped.
//!
//! # Invariants
//! - **Confirmed is at most acknowledged.** The only position ever reported as flushed is
//!   [`Core::confirmed`], which the ledger of `walrelay-checkpoint` computes.
//! - **A refused record is offered again first.** A frame is consumed only after the sink took its
//!   record, so nothing overtakes it.
//! - **A failed delivery restarts, it is never skipped.** The sink is thrown away with everything
//!   it held and the slot is read again from what was confirmed: re-deliveries repeat a suffix of
//!   what was sent and permute nothing.
//! - **Nothing is relayed from a slot that another relay may have.** Each proof that the server has our
//!   walsender is good for `wal_sender_timeout` (`pipeline/lease.rs`); without one the connection is dropped, and the
//!   producer is purged before the relay waits.
//! - **Feedback never stops** while there is a connection: it runs beside a full sink too.
//! - One task; the batch of a socket read is the unit. Nothing is sent through a channel per row
//!   and nothing is allocated per row.
//!
//! # Cancel safety
//! [`Pipeline::run`] is ended by its shutdown future, not by being dropped. Dropping it is safe for
//! the data (nothing unacknowledged is confirmed) but skips the drain, so that records in flight
//! are sent again at the next start.

#![forbid(unsafe_code)]

mod core;
mod interface;
mod pacing;
mod pipeline;
mod poison;

pub use crate::core::{Core, CoreError, Outgoing, Step};
pub use interface::environment::{Counts, Environment, Failpoint, Progress, State};
pub use interface::event::SentEvent;
pub use interface::schemas::{PendingSchema, SchemaAnswer, SchemaError, SchemaFailure, Schemas};
pub use interface::source::{
    Ancestor, Looked, Opened, Predecessor, Resume, SlotOwner, Source, SourceError, WalStream,
};
pub use interface::table::TableName;
pub use pipeline::continuity::{Continuity, LogError};
pub use pipeline::error::{Chain, PipelineError};
#[doc(hidden)]
pub use pipeline::measuring;
pub use pipeline::{Backoff, OnUpdate, Outcome, Pipeline, Settings};
pub use poison::{Class, Diverted, PoisonAction, PoisonDecisions, PoisonPolicy};
