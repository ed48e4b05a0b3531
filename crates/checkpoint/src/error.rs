use walrelay_lsn::CommitEnd;

use crate::Seq;

/// A call that does not fit what the ledger was told before. Nothing was changed by it.
///
/// Each means that the stream is not what Postgres promises or that the caller lost count: neither
/// passes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// A transaction begins inside another one.
    #[error("a transaction begins while another one is open")]
    AlreadyOpen,
    /// A record or a commit came without a transaction.
    #[error("a record or a commit outside a transaction")]
    NotOpen,
    /// Records are numbered without gap or repetition.
    #[error("record {got} was handed over where {expected} is due")]
    UnexpectedSeq {
        /// The number that is due.
        expected: Seq,
        /// The number that was given.
        got: Seq,
    },
    /// A record was handed over although [`Ledger::next_seq`](crate::Ledger::next_seq) gave none.
    #[error(
        "a record was handed over while {in_flight} are in flight, which is all there is room for"
    )]
    Full {
        /// Records handed over and not known to be acknowledged.
        in_flight: u64,
    },
    /// Postgres sends transactions in the order of their commits.
    #[error("a commit that ends at {end} after one that ends at {last}")]
    CommitBackwards {
        /// The end of the commit before.
        last: CommitEnd,
        /// The end of this one.
        end: CommitEnd,
    },
}
