use std::fmt;

use walrelay_lsn::CommitEnd;
use walrelay_pgoutput::PgTimestamp;

/// What a pipeline is doing, for logs and for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Opening the connection to Postgres.
    Connecting,
    /// Receiving from the slot.
    Streaming,
    /// The sink takes nothing more at the moment; feedback goes on.
    Blocked,
    /// Something failed that may pass; waiting before the next attempt.
    Waiting,
    /// Asked to stop: what is in flight is being acknowledged and confirmed.
    Draining,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Connecting => "connecting",
            State::Streaming => "streaming",
            State::Blocked => "blocked by the sink",
            State::Waiting => "waiting to retry",
            State::Draining => "draining",
        })
    }
}

/// The world around a pipeline. The binary implements it; tests do with less.
pub trait Surroundings: Send {
    /// The wall clock, as Postgres counts: microseconds since 2000-01-01 UTC.
    fn wall_clock(&self) -> PgTimestamp;

    /// The pipeline's state changed.
    fn state(&mut self, state: State) {
        let _ = state;
    }

    /// Every record of a transaction that was committed at `committed` is acknowledged, and so is
    /// everything before it. Called for a sample: at most one transaction is followed at a time, so
    /// that it costs nothing per row.
    fn acknowledged(&mut self, end: CommitEnd, committed: PgTimestamp) {
        let _ = (end, committed);
    }
}
