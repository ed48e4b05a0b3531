//! The keys of rows whose records were acknowledged, so that exactly these rows can be marked as
//! sent.
//!
//! [`PendingRows`] belongs to the core: it notes the key of each row whose record the sink took. As
//! soon as every event before and including a row's is acknowledged, the key moves to [`SentRows`], from
//! which another thread takes it. The position up to which all keys are marked, or stored
//! ([`SentRows::settled`]), is the highest one that a source may confirm
//! (docs/adr/0054-mark-first-confirm-then.md).

mod keys;
mod pending;
mod queue;

pub use keys::{HASH_BYTES, KeyedTable, SentKey, SentKeys, row_hash};
pub(crate) use pending::PendingRows;
pub use queue::{SentRows, TakenKeys};

#[cfg(test)]
mod tests;
