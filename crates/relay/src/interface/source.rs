use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use walrelay_event_router::TableFacts;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_sink::Disposition;
use walrelay_walsender::{Frame, Socket, StatusUpdate};

/// An error of a source.
pub trait SourceError: Error + Send + Sync + 'static {
    /// Retry, wait for a change of the configuration, or stop.
    fn disposition(&self) -> Disposition;

    /// Whether the stream came to its end, everything of it is acknowledged, and the next one follows it at once: no
    /// error, but the way to say so.
    fn is_followed(&self) -> bool {
        false
    }

    /// Whether another process reads the slot. No message tells when that ends, so the slot is tried often.
    fn is_slot_busy(&self) -> bool {
        false
    }

    /// Whether that process serves another client: it is not our walsender of a lost connection that the
    /// server has not given up yet.
    fn is_slot_taken(&self) -> bool {
        false
    }
}

/// Who relayed from the slot while this process did not, as far as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predecessor {
    /// Another relay, seen as the process that reads the slot.
    Relay {
        /// The server process.
        pid: i64,
        /// Its `application_name`.
        application_name: String,
    },
    /// A relay that keeps the same state file, which it has written since.
    StateFile,
}

impl fmt::Display for Predecessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Predecessor::Relay {
                pid,
                application_name,
            } => write!(f, "{application_name} by server process {pid}"),
            Predecessor::StateFile => f.write_str("a relay that keeps the same state file"),
        }
    }
}

/// What is already known of the slot when it is connected to again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// `system_identifier` of the server that was read.
    pub system_id: String,
    /// Its timeline when it was connected to.
    pub timeline: u32,
    /// When it was started, as it says (`pg_postmaster_start_time`): no other server of the system has the same
    /// value. `None` where that is not known any more.
    pub server_start: Option<String>,
    /// What was acknowledged, and so may be confirmed, the last time.
    pub confirmed: CommitEnd,
    /// The highest commit that was received or confirmed: the server's log reached so far.
    pub seen: CommitEnd,
}

/// A timeline that the server's own one continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ancestor {
    /// The timeline.
    pub timeline: u32,
    /// Where it was left: its log from here on is not part of the server's.
    pub ended: Lsn,
}

/// A connection that streams.
#[derive(Debug)]
pub struct Opened<S> {
    /// The stream, after `START_REPLICATION`.
    pub stream: S,
    /// `system_identifier` of the server.
    pub system_id: String,
    /// Its timeline.
    pub timeline: u32,
    /// When the server was started, see [`Resume::server_start`].
    pub server_start: String,
    /// The timelines that this one continues. Needed only where it is another one than before.
    pub ancestors: Vec<Ancestor>,
    /// Up to where its log was flushed when the connection was made (`IDENTIFY_SYSTEM`'s
    /// `xlogpos`). A server only sends log that it has flushed, so a position below what was
    /// received before means that the log was rolled back.
    pub flushed: Lsn,
    /// The slot's `confirmed_flush_lsn` as read **after** the start: where the stream begins.
    pub confirmed: CommitEnd,
    /// The server's `wal_sender_timeout` for this connection, `None` where it is switched off.
    /// Feedback keeps to half of it.
    pub server_timeout: Option<Duration>,
    /// What the catalogs say of the tables, where the router is to know.
    pub tables: Vec<TableFacts>,
    /// Who relayed from the slot since this process lost it, or before it started.
    pub predecessor: Option<Predecessor>,
}

/// How a look beside the stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Looked {
    /// The server answered, and the stream may go on.
    Answered {
        /// When the look was started. What the answer says was true at this moment or later.
        asked_at: Instant,
        /// Who reads the slot, from the same answer.
        owner: SlotOwner,
        /// The server's timeline, from the same answer; `None` on a standby.
        timeline: Option<u32>,
    },
    /// There was no answer: nothing is known.
    Failed {
        /// Why, in words. Holds no secret.
        reason: String,
    },
}

/// Who reads a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOwner {
    /// The walsender of the stream that was opened last.
    Ours,
    /// Another process.
    Other {
        /// `pg_replication_slots.active_pid`.
        pid: i64,
    },
    /// No process.
    Nobody,
}

/// Opens streams of one slot.
pub trait Source: Send {
    /// The streams.
    type Stream: WalStream<Error = Self::Error>;
    /// Why opening or reading failed.
    type Error: SourceError;

    /// Connects, checks (and where allowed creates) publication and slot, starts the stream **from
    /// the slot's position** and checks the slot once more.
    ///
    /// `resume` is `None` for the first connection of a process. Later ones must not create a slot
    /// that is missing: it was there, so events are gone.
    fn open(
        &mut self,
        resume: Option<&Resume>,
    ) -> impl Future<Output = Result<Opened<Self::Stream>, Self::Error>>;

    /// Asks to note durably, beside the slot, that everything up to `position` is acknowledged, and
    /// says up to where that has been done: `position` or an earlier one. Only what was noted may
    /// be reported as flushed, so that the slot is never beyond the note. Called before each
    /// status update; it must not block, and goes on with what it began when it is called again.
    /// A source that keeps no notes says `position`.
    ///
    /// # Errors
    /// It cannot be noted. Nothing beyond what was noted before may be reported.
    fn note(&mut self, position: CommitEnd) -> Result<CommitEnd, Self::Error> {
        Ok(position)
    }

    /// Starts a look at what the stream rests on (publication, tables, slot), beside the stream.
    /// Returns at once, and does nothing if a look is under way. The caller decides when to look;
    /// [`looked`](Self::looked) says what the look found. Opening a stream abandons a look.
    fn look(&mut self);

    /// Waits for the look under way; pending for ever if there is none. Cancel-safe: a look that
    /// is not waited for goes on.
    ///
    /// `blocked`: the stream is not being read, because the sink takes nothing. A server that wants
    /// to end the stream may then be waiting for us to read its last messages: a reason for an error
    /// that is worth a retry.
    ///
    /// # Errors
    /// The look found that the stream may not go on like this: that ends the pipeline's attempt. A
    /// look that got no answer is no error, but [`Looked::Failed`].
    fn looked(&mut self, blocked: bool) -> impl Future<Output = Result<Looked, Self::Error>>;

    /// The slot's `confirmed_flush_lsn` as the server reports it now, read beside the stream.
    fn confirmed_on_server(&mut self) -> impl Future<Output = Result<Lsn, Self::Error>>;
}

/// A stream of frames and the way back for feedback. The contract is that of
/// [`walrelay_walsender::ReplicationStream`], the real one.
pub trait WalStream {
    /// Why it ended.
    type Error: SourceError;

    /// Whether its rows are those of a snapshot, not of the log.
    fn is_snapshot(&self) -> bool {
        false
    }
    /// What kind of socket the server is connected by.
    fn socket(&self) -> Socket;
    /// The next whole frame, borrowed; `None` if more bytes are needed. Does not consume.
    fn peek(&mut self) -> Result<Option<Frame<'_>>, Self::Error>;
    /// Drops the frame last peeked.
    fn consume(&mut self);
    /// One read from the socket. Cancel-safe.
    fn read(&mut self) -> impl Future<Output = Result<usize, Self::Error>>;
    /// Queues a standby status update.
    fn queue_status(&mut self, update: StatusUpdate);
    /// Writes what is queued. Cancel-safe.
    fn flush(&mut self) -> impl Future<Output = Result<(), Self::Error>>;
    /// Ends the stream in order: the server has taken the last status when this returns.
    fn finish(self) -> impl Future<Output = Result<(), Self::Error>>;
}

impl SourceError for walrelay_walsender::Error {
    fn disposition(&self) -> Disposition {
        use walrelay_walsender::ErrorClass;
        match self.class() {
            // An unknown SQLSTATE is retried, loudly: indefinite unless proven otherwise.
            ErrorClass::SlotInUse | ErrorClass::ServerUnavailable | ErrorClass::Unknown => {
                Disposition::Retryable
            }
            ErrorClass::AccessDenied | ErrorClass::Configuration => Disposition::Configuration,
            ErrorClass::WalGone | ErrorClass::Protocol => Disposition::Fatal,
        }
    }
}
