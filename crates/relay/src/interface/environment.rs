use std::fmt;
use std::time::Duration;

use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_pgoutput::PgTimestamp;

use crate::poison::Diverted;

/// What a pipeline is doing, for logs and status pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Opening the connection to Postgres.
    Connecting,
    /// Reading the rows that were there before the slot.
    Snapshot,
    /// Receiving from the slot.
    Streaming,
    /// The sink takes nothing more at the moment, or acknowledges nothing; feedback goes on.
    Blocked,
    /// A schema of values is not known yet; feedback goes on.
    WaitingForSchema {
        /// Why.
        why: String,
    },
    /// Another process reads the slot.
    WaitingForSlot {
        /// Which, as far as is known.
        why: String,
    },
    /// Something failed that may pass; waiting before the next attempt.
    Waiting {
        /// What kind of failure, as metrics name it: [`PipelineError::cause`](crate::PipelineError::cause).
        cause: &'static str,
        /// The failure in words.
        why: String,
    },
    /// Asked to stop: what is in flight is being acknowledged and confirmed.
    Draining,
    /// Stopped by an error that no retry can mend.
    Halted {
        /// Which.
        why: String,
    },
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Connecting => f.write_str("connecting"),
            State::Snapshot => f.write_str("reading the snapshot"),
            State::Streaming => f.write_str("streaming"),
            State::Blocked => f.write_str("blocked by the sink"),
            State::WaitingForSchema { why } => write!(f, "waiting for a schema: {why}"),
            State::WaitingForSlot { why } => write!(f, "waiting for the slot: {why}"),
            State::Waiting { why, .. } => write!(f, "waiting to retry: {why}"),
            State::Draining => f.write_str("draining"),
            State::Halted { why } => write!(f, "halted: {why}"),
        }
    }
}

/// Steps of a record's way after which a test may kill the process. What is durable, and where, differs after
/// each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failpoint {
    /// Bytes were read from Postgres, nothing was decoded.
    AfterRead,
    /// Records were enqueued in the sink.
    AfterEnqueue,
    /// Acknowledgements moved the position to confirm; no status update has it.
    AfterAck,
    /// The position is in a status update that was not written.
    AfterConfirm,
    /// A stop was asked for; records are in flight.
    Draining,
}

impl Failpoint {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::AfterRead,
        Self::AfterEnqueue,
        Self::AfterAck,
        Self::AfterConfirm,
        Self::Draining,
    ];

    /// As tests name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AfterRead => "after-read",
            Self::AfterEnqueue => "after-enqueue",
            Self::AfterAck => "after-ack",
            Self::AfterConfirm => "after-confirm",
            Self::Draining => "draining",
        }
    }
}

/// The world around a pipeline. The binary implements it; tests do with less.
pub trait Environment: Send {
    /// The wall clock, as Postgres counts: microseconds since 2000-01-01 UTC.
    fn wall_clock(&self) -> PgTimestamp;

    /// The pipeline's state changed.
    fn state(&mut self, state: State) {
        let _ = state;
    }

    /// The pipeline is at this failpoint. For tests, which end the process here.
    fn failpoint(&mut self, point: Failpoint) {
        let _ = point;
    }

    /// Every record of a transaction that was committed at `committed` is acknowledged, and so is
    /// everything before it. Called for a sample: at most one transaction is followed at a time, so
    /// that it costs nothing per row.
    fn acknowledged(&mut self, end: CommitEnd, committed: PgTimestamp) {
        let _ = (end, committed);
    }

    /// A transaction with events was received whole. Called for the sample that
    /// [`acknowledged`](Self::acknowledged) follows.
    fn received(&mut self, committed: PgTimestamp) {
        let _ = committed;
    }

    /// An event did not go where it was bound for.
    fn diverted(&mut self, event: &Diverted) {
        let _ = event;
    }

    /// For so long, ending now, nothing was read because the sink had no room or a schema was missing.
    fn blocked(&mut self, duration: Duration) {
        let _ = duration;
    }

    /// Positions and figures, at each status update to the server: every
    /// [`Settings::status_interval`](crate::Settings::status_interval) at least.
    fn progress(&mut self, progress: &Progress) {
        let _ = progress;
    }
}

/// How far a pipeline has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The figures since the sink was made. With a new sink they begin at zero.
    pub counts: Counts,
    /// The highest position received.
    pub received: Lsn,
    /// What may be confirmed: the commit end of the acknowledged prefix.
    pub confirmed: CommitEnd,
    /// Records enqueued and not acknowledged.
    pub in_flight: u64,
    /// The commit time of a transaction that is not acknowledged as a whole, by the server's clock: the oldest
    /// one that is known. `None`: everything received is acknowledged.
    pub oldest: Option<PgTimestamp>,
}

/// Figures of a run. Each counts events of this process, repeats included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records the sink took.
    pub records: u64,
    /// Transactions whose commit was received, those without a record included.
    pub transactions: u64,
    /// Transactions passed over after a reconnect, as their first copy was enqueued already.
    pub repeats_avoided: u64,
    /// UPDATEs of an outbox table: not events, ignored.
    pub updates: u64,
    /// DELETEs of an outbox table: not events, ignored.
    pub deletes: u64,
    /// TRUNCATEs of an outbox table: not events, ignored.
    pub truncates: u64,
    /// Dead letters the sink took, those of parked keys aside.
    pub dead_letters: u64,
    /// Events that became dead letters because an earlier one of their key is one.
    pub parked: u64,
    /// Events passed over by the poison policy.
    pub skipped: u64,
    /// Events that the router's selection leaves out.
    pub unselected: u64,
    /// Logical messages that are no events: of other prefixes.
    pub logical_messages: u64,
}

impl Counts {
    /// The sums of two runs.
    #[must_use]
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            records: self.records + other.records,
            transactions: self.transactions + other.transactions,
            repeats_avoided: self.repeats_avoided + other.repeats_avoided,
            updates: self.updates + other.updates,
            deletes: self.deletes + other.deletes,
            truncates: self.truncates + other.truncates,
            dead_letters: self.dead_letters + other.dead_letters,
            parked: self.parked + other.parked,
            skipped: self.skipped + other.skipped,
            unselected: self.unselected + other.unselected,
            logical_messages: self.logical_messages + other.logical_messages,
        }
    }
}
