//! Acknowledgements in any order to the one position that may be confirmed.
//!
//! # Contents
//! - [`Seq`]: the number of a record, from 0, never used twice.
//! - [`AckRing`]: what threads share, one bit per record in flight, and the owner's wake-up.
//! - [`Ledger`]: the owner's side. It knows which records belong to which transaction and turns
//!   the acknowledged prefix into a [`CommitEnd`](walrelay_lsn::CommitEnd).
//! - [`LedgerError`]: calls that do not fit the stream of transactions.
//!
//! # Invariants
//! - A transaction is confirmed only when **every** record with its number or a lower one is
//!   acknowledged, those of transactions that were cut off included.
//! - What is confirmed is the end of a commit as Postgres sent it, or a keepalive's position while
//!   nothing is open and nothing in flight. It never moves backwards.
//! - An acknowledgement that comes twice, too late or for a number that was not handed out is
//!   counted and changes nothing else, however threads interleave.
//! - No I/O, no clock, no log, no panic on input; no allocation per record.
//!
//! # Ordering
//! [`AckRing`]'s methods for acknowledging may be called from any thread at any time and never
//! block. [`AckRing::park`], [`AckRing::unpark`] and the ledger belong to one thread or task, the
//! owner; a ring has one ledger in its life. How an owner waits without missing anything:
//!
//! ```text
//! loop {
//!     ledger.advance(), then everything else there is to do
//!     ring.park()
//!     if !ledger.has_news() { wait for the wake-up, or a timer, or the socket }
//!     ring.unpark()
//! }
//! ```
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use walrelay_checkpoint::{AckRing, Ledger};
//! use walrelay_lsn::{CommitEnd, Lsn};
//!
//! let ring = Arc::new(AckRing::new(1024));
//! let mut ledger = Ledger::new(Arc::clone(&ring), None);
//! let (first, second) = (Lsn::new(0x100), Lsn::new(0x200));
//! let mut handed_over = Vec::new();
//! for end in [first, second] {
//!     ledger.begin()?;
//!     let seq = ledger.next_seq().expect("the ring has room");
//!     ledger.sent(seq)?;
//!     ledger.commit(CommitEnd::from_commit_message(end))?;
//!     handed_over.push(seq);
//! }
//!
//! ring.ack(handed_over[1]);
//! assert_eq!(ledger.advance(), None, "the first transaction is not safe yet");
//! ring.ack(handed_over[0]);
//! assert_eq!(ledger.advance().map(CommitEnd::lsn), Some(second));
//! # Ok::<(), walrelay_checkpoint::LedgerError>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod ledger;
mod ring;
mod seq;
mod sync;

pub use error::LedgerError;
pub use ledger::Ledger;
pub use ring::AckRing;
pub use seq::Seq;
