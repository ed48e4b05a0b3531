//! Positions in the Postgres write-ahead log, and the identifiers that travel beside them.
//!
//! # Contents
//! - [`Lsn`]: any position in the log, `X/Y` in text, a `u64` on the wire.
//! - [`CommitEnd`]: a position at which **no transaction is cut in two**. The only thing a relay may
//!   confirm to Postgres.
//! - [`Xid`], [`RelationId`], [`TypeOid`]: the numbers pgoutput names transactions, tables and
//!   types by. [`RelationMap`] keeps what is known of tables.
//!
//! # Invariants
//! - No arithmetic on positions is offered beyond [`Lsn::bytes_since`], which gives a distance to
//!   show to people and never a position. A relay that confirms `end_lsn + length` skips the next
//!   transaction for ever.
//! - A [`CommitEnd`] is made in three ways only, each named after the message that vouches for it. A
//!   row's LSN is an [`Lsn`] and cannot be passed where a `CommitEnd` is asked for:
//!
//! ```compile_fail
//! use walrelay_lsn::{CommitEnd, Lsn};
//! fn confirm(_: CommitEnd) {}
//! confirm(Lsn::from(0x16_B374_D848)); // a mid-transaction position does not compile
//! ```
//!
//! ```
//! use walrelay_lsn::Lsn;
//! let lsn: Lsn = "16/B374D848".parse()?;
//! assert_eq!(u64::from(lsn), 0x16_B374_D848);
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
