use std::fmt;
use std::time::Duration;

use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_pgoutput::PgTimestamp;

use walrelay_sink::{EventPosition, Retrying};

use crate::poison::{Class, Diverted};
use crate::table::TableName;

/// The kind of process that reads the slot of a pipeline that waits for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HolderKind {
    /// Another relay of the same configuration: this one stands by.
    Relay,
    /// A process that is no relay of this configuration: it consumes events that no relay sends.
    Stranger,
    /// The walsender of a connection that this process lost, or a process that was gone before it
    /// could be looked at.
    #[default]
    Unknown,
}

/// The process that reads the slot of a pipeline that waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotHolder {
    /// Whose process it is.
    pub kind: HolderKind,
    /// Its process id on the server. `None`: not known, or another relay makes the slot.
    pub pid: Option<i64>,
    /// Its `application_name`; `None` if it is not known.
    pub application_name: Option<String>,
    /// The start of its connection, by the server's clock; `None` if this role may not see it.
    pub since: Option<PgTimestamp>,
}

/// The activity of a pipeline, for logs and status pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PipelineState {
    /// Opening the connection to Postgres.
    Connecting,
    /// Reading the snapshot: the rows from before the slot.
    Snapshot,
    /// Receiving from the slot.
    Streaming,
    /// The sink takes no record at the moment, or acknowledges none; feedback goes on.
    Blocked {
        /// The condition that the sink waits for, as far as it knows.
        why: String,
        /// The remedy for the operator, if the sink knows one.
        remedy: Option<&'static str>,
    },
    /// The event at the front needs a schema that is not known yet; feedback goes on.
    WaitingForSchema {
        /// The reason why it is not known, in words.
        why: String,
    },
    /// Another process reads the slot.
    WaitingForSlot {
        /// The error that the source returned.
        why: String,
        /// The process that reads it.
        holder: SlotHolder,
    },
    /// An attempt failed with a retryable error; waiting before the next attempt.
    Waiting {
        /// The kind of failure, as metrics name it:
        /// [`PipelineError::cause`](crate::PipelineError::cause).
        cause: &'static str,
        /// The error with its causes, and the id if there is an explanation.
        why: String,
        /// The id and the remedy of the error, if there are better ones than those of its kind.
        explanation: Option<Explanation>,
    },
    /// A stop was requested: waiting until records in flight are acknowledged and confirmed.
    Draining,
    /// Stopped by an error that is not retryable.
    Halted {
        /// The error with its causes.
        why: String,
    },
}

impl fmt::Display for PipelineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineState::Connecting => f.write_str("connecting"),
            PipelineState::Snapshot => f.write_str("reading the snapshot"),
            PipelineState::Streaming => f.write_str("streaming"),
            PipelineState::Blocked { why, .. } => write!(f, "blocked by the sink: {why}"),
            PipelineState::WaitingForSchema { why } => write!(f, "waiting for a schema: {why}"),
            PipelineState::WaitingForSlot { why, holder } if holder.kind == HolderKind::Relay => {
                write!(f, "standing by: {why}")
            }
            PipelineState::WaitingForSlot { why, .. } => write!(f, "waiting for the slot: {why}"),
            PipelineState::Waiting { why, .. } => write!(f, "waiting to retry: {why}"),
            PipelineState::Draining => f.write_str("draining"),
            PipelineState::Halted { why } => write!(f, "halted: {why}"),
        }
    }
}

/// The id and the remedy of an error, as `docs/reference/errors.md` has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The id.
    pub id: &'static str,
    /// What an operator does about it.
    pub remedy: String,
}

/// Failpoints: places in the pipeline at which a test may kill the process. They differ in what is
/// durable, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failpoint {
    /// Bytes were read from Postgres; none of them was decoded.
    AfterRead,
    /// Records were enqueued in the sink.
    AfterEnqueue,
    /// Acknowledgements moved the position to confirm; no status update contains it.
    AfterAck,
    /// A status update contains the position and was not written yet.
    BeforeConfirm,
    /// A stop was requested; records may be in flight.
    Draining,
}

impl Failpoint {
    /// All failpoints.
    pub const ALL: [Self; 5] = [
        Self::AfterRead,
        Self::AfterEnqueue,
        Self::AfterAck,
        Self::BeforeConfirm,
        Self::Draining,
    ];

    /// Returns the name that tests use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AfterRead => "after-read",
            Self::AfterEnqueue => "after-enqueue",
            Self::AfterAck => "after-ack",
            Self::BeforeConfirm => "before-confirm",
            Self::Draining => "draining",
        }
    }
}

/// The wall clock of a pipeline and the receiver of its reports. Implemented by the binary and by
/// tests.
pub trait Observer: Send {
    /// Reads the wall clock in Postgres' unit: microseconds since 2000-01-01 UTC.
    fn wall_clock(&self) -> PgTimestamp;

    /// Reports that the pipeline's state has changed.
    fn state(&mut self, state: PipelineState) {
        let _ = state;
    }

    /// Marks that the pipeline reached a failpoint. Tests kill the process here.
    fn failpoint(&mut self, point: Failpoint) {
        let _ = point;
    }

    /// Reports that every record of the transaction that was committed at `committed` is
    /// acknowledged, and so is everything before it. Called for a sample: at most one transaction
    /// is followed at a time, so that it costs nothing per row.
    fn acknowledged(&mut self, end: CommitEnd, committed: PgTimestamp) {
        let _ = (end, committed);
    }

    /// Reports that a transaction with records was received whole. Called for the same sample as
    /// [`acknowledged`](Self::acknowledged).
    fn received(&mut self, committed: PgTimestamp) {
        let _ = committed;
    }

    /// Reports an event that was skipped, or whose dead letter the sink took. Called before the
    /// event's transaction is confirmed.
    fn diverted(&mut self, event: &Diverted) {
        let _ = event;
    }

    /// Reports that the sink has acknowledged dead letters of these classes, and every record before
    /// them.
    fn dead_letters(&mut self, classes: &[Class]) {
        let _ = classes;
    }

    /// Reports the number of rows of a table that were passed over, because the table is no outbox.
    fn passed_over(&mut self, table: &TableName, rows: u64) {
        let _ = (table, rows);
    }

    /// Reports the end of a time in which nothing was read because the frame at the front could not
    /// be sent: the sink was full, a schema was missing, or the event had to wait.
    fn blocked(&mut self, duration: Duration) {
        let _ = duration;
    }

    /// Reports the keys that the sink holds back; `None`: no key is any more. Called when they have
    /// changed, at most once a second.
    fn retrying(&mut self, retrying: Option<&Retrying>) {
        let _ = retrying;
    }

    /// Reports positions and figures at each status update to the server, so at least every
    /// [`Settings::status_interval`](crate::Settings::status_interval).
    fn progress(&mut self, progress: &Progress) {
        let _ = progress;
    }

    /// Reports the topics of all records that this sink has taken. Called with [`progress`](Self::progress), at most
    /// twice a second unless nothing is in flight.
    fn topics(&mut self, topics: &[TopicProgress<'_>]) {
        let _ = topics;
    }
}

/// Reports to an observer that the caller keeps, whatever its type.
impl<W: Observer + ?Sized> Observer for &mut W {
    fn wall_clock(&self) -> PgTimestamp {
        (**self).wall_clock()
    }

    fn state(&mut self, state: PipelineState) {
        (**self).state(state);
    }

    fn failpoint(&mut self, point: Failpoint) {
        (**self).failpoint(point);
    }

    fn acknowledged(&mut self, end: CommitEnd, committed: PgTimestamp) {
        (**self).acknowledged(end, committed);
    }

    fn received(&mut self, committed: PgTimestamp) {
        (**self).received(committed);
    }

    fn diverted(&mut self, event: &Diverted) {
        (**self).diverted(event);
    }

    fn dead_letters(&mut self, classes: &[Class]) {
        (**self).dead_letters(classes);
    }

    fn passed_over(&mut self, table: &TableName, rows: u64) {
        (**self).passed_over(table, rows);
    }

    fn blocked(&mut self, duration: Duration) {
        (**self).blocked(duration);
    }

    fn retrying(&mut self, retrying: Option<&Retrying>) {
        (**self).retrying(retrying);
    }

    fn progress(&mut self, progress: &Progress) {
        (**self).progress(progress);
    }

    fn topics(&mut self, topics: &[TopicProgress<'_>]) {
        (**self).topics(topics);
    }
}

/// The progress of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicProgress<'a> {
    /// The topic; [`OTHER_TOPICS`](walrelay_sink::OTHER_TOPICS) for those beyond the first
    /// [`MAX_TOPICS`](walrelay_sink::MAX_TOPICS).
    pub topic: &'a str,
    /// The commit time of its oldest record in flight, by the server's clock; `None` if none is.
    pub oldest: Option<PgTimestamp>,
    /// The event of its last record that is acknowledged, as are all records before it; `None` before the first one.
    pub last: Option<EventPosition>,
}

/// The progress of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The figures since the sink was created. A new sink begins at zero.
    pub counts: Counts,
    /// The highest position received or confirmed.
    pub received: Lsn,
    /// The position that may be confirmed: the commit end of the acknowledged prefix.
    pub confirmed: CommitEnd,
    /// The number of records enqueued and not acknowledged.
    pub in_flight: u64,
    /// The event of the first record that is not acknowledged, while one is in flight.
    pub first: Option<EventPosition>,
    /// The commit time, by the server's clock, of the oldest transaction that is known not to be
    /// acknowledged as a whole: the sampled one, or the open one. `None`: there is neither.
    pub oldest: Option<PgTimestamp>,
}

impl Progress {
    /// Returns the number of records that the sink has acknowledged since it was created, those of
    /// dead letters included.
    pub fn acknowledged(&self) -> u64 {
        self.counts.records.saturating_sub(self.in_flight)
    }
}

/// Figures of a run of this process. Repetitions count again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of records that the sink took.
    pub records: u64,
    /// The number of transactions whose commit was received, including those without a record.
    pub transactions: u64,
    /// The number of transactions ignored after a reconnect because they were enqueued or confirmed
    /// before.
    pub repeats_avoided: u64,
    /// The number of UPDATEs of an outbox table: not events, ignored. Of a table whose place is not
    /// known, too.
    pub updates: u64,
    /// The number of DELETEs of an outbox table: not events, ignored.
    pub deletes: u64,
    /// The number of TRUNCATEs of an outbox table: not events, ignored.
    pub truncates: u64,
    /// The number of dead letters that the sink has acknowledged, without those of parked events.
    pub dead_letters: u64,
    /// The number of acknowledged dead letters of parked events: an earlier event of their key is a
    /// dead letter.
    pub parked: u64,
    /// The number of events skipped by the poison policy.
    pub skipped: u64,
    /// The number of events that the router's selection leaves out.
    pub unselected: u64,
    /// The number of logical messages of other prefixes, which are no events.
    pub logical_messages: u64,
}

impl Counts {
    /// Adds each figure to that of `other`.
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
