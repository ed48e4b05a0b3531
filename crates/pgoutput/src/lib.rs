//! A sans-I/O decoder of Postgres' pgoutput logical replication messages, protocol version 1.
//!
//! Bytes in, borrowed views out: no socket, no clock, no logging. The input is the body of one
//! XLogData message. The source of every rule is the chapter "Logical Replication Message Formats"
//! of the Postgres manual.
//!
//! # Contents
//! - [`decode`]: one body to one [`Message`]. [`DecodeError`] contains the message, the field, the
//!   byte and the fault.
//! - [`Begin`], [`Commit`], [`Origin`], [`Relation`], [`Type`], [`Insert`], [`Update`], [`Delete`],
//!   [`Truncate`], [`LogicalMessage`]: the messages.
//! - [`Tuple`], [`Value`], [`OldRow`]: rows. [`Column`], [`ReplicaIdentity`]: tables.
//! - [`PgTimestamp`]: the server's microseconds, with conversions to the Unix epoch. [`calendar`]:
//!   dates from numbers of days.
//! - [`encode`]: encodes messages as a server does, for snapshots, tests and tools.
//!
//! # Invariants
//! - **Never panics**, whatever the bytes: the decoder has no indexing and no unchecked arithmetic,
//!   enforced by lints.
//! - **Never allocates.** The crate is `no_std`, and only [`encode`] and the functions of the fuzz
//!   targets use `alloc`. A length field cannot reserve memory; it is compared with the bytes left.
//! - **One pass.** [`decode`] validates the whole body, to its last byte, before it returns `Ok`.
//!   Iterating over a tuple's values or a relation's columns afterwards cannot fail.
//! - **Nothing is skipped.** An unknown tag, an unknown flag or a surplus byte is an error: a
//!   message that is not understood may contain a row.
//! - **No row value is shown** by `Debug` or in errors, only lengths.
//!
//! ```
//! use walrelay_lsn::{RelationId, TypeOid};
//! use walrelay_pgoutput::{Message, Value, decode, encode};
//!
//! let outbox = encode::Table::new(RelationId::new(16400), "public", "outbox")
//!     .key("id", TypeOid::new(20))
//!     .column("payload", TypeOid::new(3802));
//! let body = outbox.insert(&[Some("17"), Some(r#"{"total": 12.5}"#)]);
//!
//! let Message::Insert(insert) = decode(&body)? else { unreachable!() };
//! assert_eq!(insert.relation, RelationId::new(16400));
//! assert_eq!(insert.tuple.values().next(), Some(Value::Text(b"17")));
//! # Ok::<(), walrelay_pgoutput::DecodeError>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::string_slice
)]

pub mod calendar;
mod cursor;
mod decode;
pub mod encode;
mod error;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod message;
mod relation;
mod timestamp;
mod tuple;

pub use decode::decode;
pub use error::DecodeError;
pub use fault::{Fault, Field};
pub use message::{
    Begin, Commit, Delete, Insert, LogicalMessage, Message, MessageKind, Origin, Truncate, Type,
    Update,
};
pub use relation::{Column, Columns, Relation, ReplicaIdentity};
pub use timestamp::PgTimestamp;
pub use tuple::{OldRow, Tuple, Value, Values};
