use std::fmt;

use crate::Lsn;

/// A position that may be confirmed: it cuts no transaction of the stream in two.
///
/// Postgres restarts a slot at the last confirmed position. Confirming a row's LSN puts the rest of
/// its transaction at risk. Confirming the *start* of a commit record (`commit_lsn`) makes Postgres
/// send the transaction again on every reconnect. So a `CommitEnd` is constructed only from the
/// sources below. The constructors are public, because they are called from other crates: each names
/// its callers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitEnd(Lsn);

impl CommitEnd {
    /// Creates a commit end from the `end_lsn` field of a pgoutput Commit message, exactly as
    /// Postgres sent it.
    ///
    /// Called by the decoder in `walrelay-pgoutput`.
    ///
    /// Source: "Logical Replication Message Formats", Commit: "The end LSN of the transaction".
    pub const fn from_commit_message(end_lsn: Lsn) -> Self {
        Self(end_lsn)
    }

    /// Creates a commit end from the `wal_end` of a keepalive **received while no transaction was
    /// open and nothing was in flight**. Called by the ledger in `walrelay-checkpoint`, which
    /// guarantees both.
    ///
    /// Source: `XLogSendLogical` in Postgres' `walsender.c` sets the position of keepalives to the
    /// end of a record after it has sent what the record commits. Postgres' subscriber confirms it
    /// by the same rule (`send_feedback` in `worker.c`: "No outstanding transactions to flush, we
    /// can report the latest received position").
    pub const fn from_idle_keepalive(wal_end: Lsn) -> Self {
        Self(wal_end)
    }

    /// Creates a commit end from a position that was confirmed, or acknowledged and written down to
    /// be confirmed, before; or from zero, which confirms nothing.
    ///
    /// Called by `walrelay-postgres-source`, for the `confirmed_flush_lsn` of a slot, the state file
    /// and the note in the database; by `Resume::in_common` of `walrelay-relay`, for the position at
    /// which timelines part, which bounds a confirmed one and is compared only; and for zero.
    pub const fn from_slot(confirmed_flush: Lsn) -> Self {
        Self(confirmed_flush)
    }

    /// Returns the position as an [`Lsn`].
    pub const fn lsn(self) -> Lsn {
        self.0
    }
}

impl fmt::Display for CommitEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for CommitEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitEnd({})", self.0)
    }
}
