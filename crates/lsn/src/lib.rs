//! Positions in the Postgres write-ahead log (WAL), and the identifiers of transactions, tables and
//! types.
//!
//! # Contents
//! - [`Lsn`]: any position in the WAL, `X/Y` in text, a `u64` on the wire.
//! - [`CommitEnd`]: a position at which **no transaction is cut in two**. A relay confirms nothing
//!   else to Postgres.
//! - [`Xid`], [`RelationId`], [`TypeOid`]: the numbers by which pgoutput identifies transactions,
//!   tables and types. [`RelationMap`] is a map keyed by table.
//! - Feature `serde`: documents contain an [`Lsn`] as its text.
//!
//! # Invariants
//! - The only arithmetic on positions is [`Lsn::bytes_since`], whose result is a distance to
//!   display, not a position. A relay that confirmed `end_lsn + length` would lose the next
//!   transaction.
//! - A [`CommitEnd`] is constructed in three ways only, each named after its source. A row's LSN is
//!   an [`Lsn`] and cannot be passed as a `CommitEnd`:
//!
//! ```compile_fail
//! use walrelay_lsn::{CommitEnd, Lsn};
//! fn confirm(_: CommitEnd) {}
//! confirm(Lsn::new(0x16_B374_D848)); // a mid-transaction position does not compile
//! ```
//!
//! ```
//! use walrelay_lsn::Lsn;
//! let lsn: Lsn = "16/B374D848".parse()?;
//! assert_eq!(lsn.get(), 0x16_B374_D848);
//! assert_eq!(lsn.to_string(), "16/B374D848");
//! # Ok::<(), walrelay_lsn::ParseLsnError>(())
//! ```

#![forbid(unsafe_code)]

mod commit_end;
mod ids;
mod lsn;
mod relation_map;

pub use commit_end::CommitEnd;
pub use ids::{RelationId, TypeOid, Xid};
pub use lsn::{Lsn, ParseLsnError};
pub use relation_map::RelationMap;
