use walrelay_lsn::CommitEnd;

use crate::Seq;

/// A call of [`Ledger`](crate::Ledger) that does not fit the earlier ones. It changed nothing.
///
/// Each means that the stream violates Postgres' protocol or that the caller miscounted. A retry
/// does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// A Begin while a transaction is open.
    #[error("a transaction begins while another one is open")]
    AlreadyOpen,
    /// A record or a Commit while no transaction is open.
    #[error("a record or a commit outside a transaction")]
    NotOpen,
    /// A record's number is not the next one: records are numbered without gap or repetition.
    #[error("record {got} was handed over where {expected} is due")]
    UnexpectedSeq {
        /// The next number.
        expected: Seq,
        /// The number passed.
        got: Seq,
    },
    /// A record was sent although [`Ledger::next_seq`](crate::Ledger::next_seq) returned `None`.
    #[error(
        "a record was handed over while {in_flight} are in flight, which is all there is room for"
    )]
    Full {
        /// Records sent and not collected as acknowledged.
        in_flight: u64,
    },
    /// A Commit ends before the previous one: Postgres sends transactions in commit order.
    #[error("a commit that ends at {end} after one that ends at {last}")]
    CommitBackwards {
        /// The end of the previous Commit.
        last: CommitEnd,
        /// The end of this Commit.
        end: CommitEnd,
    },
}
