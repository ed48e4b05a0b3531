use std::fmt;

use crate::Lsn;

/// A position that may be confirmed: everything before it belongs to whole transactions.
///
/// Postgres restarts a slot at the position that was last confirmed. Confirm a row's LSN and the
/// rest of its transaction is at stake; confirm the *start* of a commit record (`commit_lsn`) and
/// the transaction is sent again for ever. So only the messages below can make one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitEnd(Lsn);

impl CommitEnd {
    /// The `end_lsn` field of a pgoutput Commit message, exactly as Postgres sent it.
    ///
    /// Source: "Logical Replication Message Formats", Commit: "The end LSN of the transaction".
    pub const fn from_commit_message(end_lsn: Lsn) -> Self {
        Self(end_lsn)
    }

    /// The `wal_end` of a keepalive **received while no transaction was open and nothing was in
    /// flight**; the caller vouches for that (the ledger in `walrelay-checkpoint` is the caller).
    pub const fn from_idle_keepalive(wal_end: Lsn) -> Self {
        Self(wal_end)
    }

    /// The `confirmed_flush_lsn` of a slot, which somebody confirmed before.
    pub const fn from_slot(confirmed_flush: Lsn) -> Self {
        Self(confirmed_flush)
    }

    /// The position itself.
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
