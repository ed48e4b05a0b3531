//! Checkpoints: turns acknowledgements, in any order, into the position that may be confirmed.
//!
//! # Contents
//! - [`Seq`]: the number of a record, from 0, never used twice.
//! - [`AckRing`]: the state shared by threads, one bit per record in flight, and the owner's
//!   wake-up.
//! - [`Ledger`]: the owner's side. It records which records belong to which transaction and turns
//!   the acknowledged prefix into a [`CommitEnd`](walrelay_lsn::CommitEnd).
//! - [`LedgerError`]: a call that does not fit the stream of transactions.
//!
//! # Invariants
//! - A transaction is confirmed only when **every** record of it and every record with a lower
//!   number is acknowledged, including records of transactions that a lost connection cut off.
//! - The confirmed position is the end of a commit as Postgres sent it, or a keepalive's position
//!   while no transaction is open and no record is in flight. It never moves backwards.
//! - An acknowledgement that is repeated, late or for a number outside the window is counted and
//!   changes nothing else, however threads interleave.
//! - No I/O, no clock, no log, no panic on input; no allocation per record.
//!
//! # Ordering
//! [`AckRing::ack`], [`AckRing::nack`] and [`AckRing::wake`] may be called from any thread at any
//! time and never block. [`AckRing::park`], [`AckRing::unpark`] and the ledger belong to one thread
//! or task, the owner. A ring has one ledger in its life. This loop misses no wake-up:
//!
//! ```text
//! loop {
//!     ledger.advance(), then all other work
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
