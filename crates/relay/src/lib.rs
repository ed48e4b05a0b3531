//! One pipeline, from a replication slot to a sink: the state machine and the task around it.
//!
//! # Contents
//! - [`Core`]: the state machine. Frames, acknowledgements and lost connections go in;
//!   records to send and the position to confirm come out. No I/O, no clock, no threads.
//! - [`Pipeline`]: the task that does the core's I/O, with its [`Settings`]: connect, stream,
//!   reconnect with a jittered [`Backoff`], drain, close.
//! - [`Source`], [`WalStream`]: the traits that frames are read by; `walsender`'s stream implements
//!   [`WalStream`].
//! - [`Resume::continued_by`]: checks whether a new stream continues the WAL that was read before;
//!   otherwise names the missing range ([`LogError`]).
//! - [`Schemas`]: the schema registry, needed if values are encoded by schemas.
//! - [`Observer`]: gives the pipeline the wall clock and receives its reports
//!   ([`PipelineState`], [`Progress`], samples of latency). [`Counts`] are the figures of a run.
//! - [`SentRows`]: the keys of rows whose records were acknowledged, for marking them as sent.
//! - [`PipelineError`]: why a pipeline stopped.
//!
//! # Invariants
//! - **Confirmed is at most acknowledged.** The position reported as flushed is
//!   [`Core::acknowledged_position`], which the ledger of `walrelay-checkpoint` computes, or an
//!   earlier one while that is not durable where the source keeps it ([`Source::persist_position`]).
//! - **A record that a full sink did not take is offered again before any other.** A frame is
//!   consumed only after the sink took its record, so nothing overtakes it.
//! - **A failed delivery restarts, it is never skipped.** The sink is dropped with everything it
//!   held, and the slot is read again from the confirmed position: re-deliveries repeat a suffix of
//!   what was sent and permute nothing.
//! - **Nothing is relayed from a slot that another relay may have.** Each proof that the server has
//!   our walsender is valid for `wal_sender_timeout` (`pipeline/lease.rs`). Without a valid proof
//!   the connection is dropped, and the producer is purged before the relay waits.
//! - **Feedback never stops** while there is a connection: status updates are also sent while the
//!   sink is full.
//! - One task; the batch of a socket read is the unit. Nothing is sent through a channel per row
//!   and nothing is allocated per row.
//!
//! # Cancel safety
//! End [`Pipeline::run`] by its shutdown future, not by dropping it. Dropping it is safe for the
//! data (nothing unacknowledged is confirmed) but skips the drain, so that records in flight are
//! sent again at the next start.

#![forbid(unsafe_code)]

mod account;
mod core;
mod event;
mod interface;
mod pacing;
mod pipeline;
mod poison;
mod sent_rows;
mod table;

pub use crate::core::{
    AcknowledgedEvents, Core, CoreError, DeadLetter, Outgoing, Placement, RecordSpace, Settled,
    Step,
};
pub use account::{
    AccountColumns, BUCKET_SECONDS, Bucket, BucketSum, Counted, RowSum, SentAccount,
};
pub use event::SentEvent;
pub use interface::danger::Danger;
pub use interface::observer::{
    Counts, Explanation, Failpoint, HolderKind, Observer, PipelineState, Progress, SlotHolder,
    TopicProgress,
};
pub use interface::schemas::{
    PendingSchema, RegistryStats, SchemaAnswer, SchemaError, SchemaFailure, Schemas,
};
pub use interface::source::{
    Ancestor, Opened, Predecessor, Resume, SlotCheck, SlotOwner, Source, SourceError, TablePlace,
    WalStream,
};
pub use pipeline::continuity::{Continuity, LogError};
pub use pipeline::error::{Chain, PipelineError};
#[doc(hidden)]
pub use pipeline::measurement;
pub use pipeline::{Backoff, OnUpdate, Outcome, Pipeline, Settings};
pub use poison::{
    Class, Diverted, PoisonAction, PoisonDecisions, PoisonPolicy, ReservedPart, SinkLimits,
    WallClock,
};
pub use sent_rows::{HASH_BYTES, KeyedTable, SentKey, SentKeys, SentRows, TakenKeys, row_hash};
pub use table::{STATE_SCHEMA, TableName};
pub use walrelay_pgoutput::PgTimestamp;
