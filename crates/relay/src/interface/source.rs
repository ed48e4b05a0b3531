use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use walrelay_event_router::TableFacts;
use walrelay_lsn::{CommitEnd, Lsn, RelationId};
use walrelay_sink::Disposition;
pub use walrelay_walsender::Ancestor;
use walrelay_walsender::{Frame, Socket, StatusUpdate};

use crate::interface::observer::SlotHolder;
use crate::table::TableName;

/// An error of a source.
pub trait SourceError: Error + Send + Sync + 'static {
    /// Returns the reaction: to retry, to wait for a change of the configuration, or to stop.
    fn disposition(&self) -> Disposition;

    /// Returns true if this is no failure: the stream reached its end, everything of it is
    /// acknowledged, and the next stream is opened at once.
    fn is_followed(&self) -> bool {
        false
    }

    /// Returns true if the server refuses the login, which may pass if it accepted the same one before.
    fn refuses_login(&self) -> bool {
        false
    }

    /// Returns true if the server ended the stream with an error that a row may be the cause of.
    /// Such an error comes again each time the row is to be sent.
    fn may_be_of_a_row(&self) -> bool {
        false
    }

    /// Returns true if another process reads the slot. The server does not notify us when the slot
    /// becomes free, so it is retried at short intervals.
    fn is_slot_busy(&self) -> bool {
        false
    }

    /// Returns the process that reads the slot, if [`is_slot_busy`](Self::is_slot_busy).
    fn slot_holder(&self) -> SlotHolder {
        SlotHolder::default()
    }

    /// Returns true if the process that reads the slot serves another client. Otherwise it may be
    /// our own walsender, of a lost connection that the server has not ended yet.
    fn is_slot_taken(&self) -> bool {
        false
    }

    /// Returns true if another process may relay the same events by now. Then the records in the
    /// sink must not be delivered: they would be delivered after the records of the other process.
    fn is_displaced(&self) -> bool {
        self.is_slot_taken()
    }
}

/// The relay that is known to have read the slot while this process did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predecessor {
    /// Another relay, whose walsender was seen reading the slot.
    Relay {
        /// The walsender's process id.
        pid: i64,
        /// The `application_name` of that relay.
        application_name: String,
    },
    /// A relay with the same state file, which it has written since.
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

/// The knowledge that a process has of the slot when it connects again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The `system_identifier` of the server that was read.
    pub system_id: String,
    /// The server's timeline as it was last known.
    pub timeline: u32,
    /// The start time of the server (`pg_postmaster_start_time`): no other server of the system has
    /// the same value. `None` if that is not known any more.
    pub server_start: Option<String>,
    /// The acknowledged position, which may have been confirmed.
    pub confirmed: CommitEnd,
    /// The highest commit that was received or confirmed: the server's WAL reached this position.
    pub seen: CommitEnd,
}

/// An open stream, and what is known of its server and slot.
#[derive(Debug)]
pub struct Opened<S> {
    /// The stream, after `START_REPLICATION`.
    pub stream: S,
    /// The `system_identifier` of the server.
    pub system_id: String,
    /// The timeline of the server.
    pub timeline: u32,
    /// The slot that is read and confirmed, or is made where a snapshot ends; `None` for a temporary
    /// one, and for rows alone.
    pub slot: Option<String>,
    /// The start time of the server, see [`Resume::server_start`].
    pub server_start: String,
    /// The timelines that this one continues. Needed only if the timeline changed.
    pub ancestors: Vec<Ancestor>,
    /// The server's flush position when the connection was made (`IDENTIFY_SYSTEM`'s `xlogpos`). A
    /// server only sends WAL that it has flushed, so a position below what was received before
    /// means that the WAL was rolled back.
    pub flushed: Lsn,
    /// The slot's `confirmed_flush_lsn` as read **after** the start: the stream begins here.
    pub confirmed: CommitEnd,
    /// The server's `wal_sender_timeout` for this connection; `None` if it is switched off. Status
    /// updates are sent at least every half of it. For a snapshot: how long a proof is valid that no
    /// other process reads one; `None` if others may.
    pub server_timeout: Option<Duration>,
    /// Facts of the catalogs about the tables, for the router.
    pub tables: Vec<TableFacts>,
    /// The relay that read the slot since this process lost it, or before this process started.
    pub predecessor: Option<Predecessor>,
    /// The `system_identifier` of the server that the outbox was moved from: the database shows that every event of
    /// it was delivered before this slot was created.
    pub former: Option<String>,
    /// The epoch that the positions of its events have, see [`EventPosition`](walrelay_sink::EventPosition).
    pub epoch: u8,
}

/// The place of a table of the WAL in the catalogs of today, by its OID. The WAL has the names of
/// then: a table may have been renamed, or announced as a partition, since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TablePlace {
    /// The outbox table, under another name, or a partition of it.
    Outbox(TableName),
    /// A table of which this outbox table is a partition.
    Above(TableName),
    /// Another table, which is no outbox.
    Other,
    /// No table: none has the OID any more.
    Gone,
}

/// The result of a slot check: a query of the catalogs beside the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotCheck {
    /// The server answered, and the stream may go on.
    Answered {
        /// The time when the check was started. The answer was true at this moment or later.
        asked_at: Instant,
        /// The process that reads the slot, from the same answer.
        owner: SlotOwner,
        /// The server's timeline, from the same answer; `None` on a standby.
        timeline: Option<u32>,
        /// The table that was asked for, and its place.
        place: Option<(RelationId, TablePlace)>,
    },
    /// The check has no answer: nothing is known.
    Failed {
        /// The reason in words. Contains no secret.
        reason: String,
    },
}

/// The process that reads a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOwner {
    /// The walsender of the stream that was opened last.
    Ours,
    /// Another process.
    Other {
        /// The process that reads the slot: `pg_replication_slots.active_pid`.
        pid: i64,
    },
    /// No process.
    Nobody,
}

/// Opens streams of one slot.
pub trait Source: Send {
    /// The type of the streams.
    type Stream: WalStream<Error = Self::Error>;
    /// The reason why opening or reading failed.
    type Error: SourceError;

    /// Connects, checks (and creates, if allowed) publication and slot, starts the stream **from
    /// the slot's position** and checks the slot once more.
    ///
    /// `resume` is `None` for the first connection of a process. Later connections must not create
    /// a missing slot: the slot existed, so events are missing.
    fn open(
        &mut self,
        resume: Option<&Resume>,
    ) -> impl Future<Output = Result<Opened<Self::Stream>, Self::Error>>;

    /// Undoes what an [`open`](Self::open) has begun to set up: its future was dropped because of a
    /// stop, or it failed. Takes a few seconds at most.
    fn undo_open(&mut self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Starts to write durably, into the state file beside the slot or into the database, that
    /// everything up to `position` is acknowledged. Returns the position that may be reported as
    /// flushed: `position` or an earlier one. Called before each status update. Must not block: a later
    /// call continues a write that was begun. A source that writes nothing returns `position`.
    ///
    /// Where rows are marked as sent, the result is at most [`SentRows::settled`](crate::SentRows::settled):
    /// rows are marked first, and their positions are confirmed then.
    ///
    /// The result is durable in the state file, so the slot is never beyond the file. It is durable in
    /// the database, too, unless writes there fail: a source may then return `position` all the same,
    /// because no note may fill the disk of the server.
    ///
    /// `soon`: `position`, if the rows up to there are to be confirmed without delay, or the end of the
    /// last transaction with a row. What is acknowledged behind it may wait until it is worth a write.
    ///
    /// # Errors
    /// If the position cannot be written. Then nothing beyond the last durable position may be
    /// reported.
    fn persist_position(
        &mut self,
        position: CommitEnd,
        soon: CommitEnd,
    ) -> Result<CommitEnd, Self::Error> {
        let _ = soon;
        Ok(position)
    }

    /// Starts a slot check beside the stream: a query of the catalogs about slot, publication and
    /// tables. Returns at once, and does nothing if a check is under way. The caller decides when to
    /// check; [`slot_checked`](Self::slot_checked) returns the result. Opening a stream abandons a
    /// check.
    ///
    /// `unresolved`: a table of the WAL whose [`TablePlace`] is asked for.
    fn check_slot(&mut self, unresolved: Option<RelationId>);

    /// Waits for the slot check under way; pending for ever if there is none. Cancel-safe: the check
    /// goes on if the future is dropped.
    ///
    /// `blocked`: the stream is not being read, because the frame at the front cannot be sent. A
    /// server that wants to end the stream may then be waiting for us to read its last messages, so
    /// an error may be worth a retry.
    ///
    /// # Errors
    /// If the check shows that the stream must not go on: this ends the pipeline's attempt. A check
    /// without an answer is no error, but [`SlotCheck::Failed`].
    fn slot_checked(
        &mut self,
        blocked: bool,
    ) -> impl Future<Output = Result<SlotCheck, Self::Error>>;

    /// Queries the slot's current `confirmed_flush_lsn` beside the stream.
    fn confirmed_on_server(&mut self) -> impl Future<Output = Result<Lsn, Self::Error>>;
}

/// A stream of frames from the server, and of status updates to it. The contract is that of
/// [`walrelay_walsender::ReplicationStream`].
pub trait WalStream {
    /// The reason why the stream ended.
    type Error: SourceError;

    /// Returns true if the rows are those of a snapshot, not of the WAL. Then bytes that were read
    /// do not prove that no other process relays them: only a check of the slot does.
    fn is_snapshot(&self) -> bool {
        false
    }
    /// Returns the kind of socket of the connection.
    fn socket(&self) -> Socket;
    /// Borrows the next whole frame without consuming it. `None`: more bytes are needed.
    fn peek(&mut self) -> Result<Option<Frame<'_>>, Self::Error>;
    /// Consumes the frame that was peeked last.
    fn consume(&mut self);
    /// Reads once from the socket. Returns the number of bytes. Cancel-safe.
    fn read(&mut self) -> impl Future<Output = Result<usize, Self::Error>>;
    /// Queues a standby status update.
    fn queue_status(&mut self, update: StatusUpdate);
    /// Writes what is queued. Cancel-safe.
    fn flush(&mut self) -> impl Future<Output = Result<(), Self::Error>>;
    /// Ends the stream in order: when this returns, the server has received the last status update.
    fn finish(self) -> impl Future<Output = Result<(), Self::Error>>;
}
