//! [`RetainedWal`]: the WAL that the server keeps for a slot.

use super::{ServerFacts, SlotRow};

/// The WAL that the server keeps for the slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RetainedWal {
    /// Bytes of WAL from the slot's `restart_lsn` to the end, which the server may not remove.
    pub retained: u64,
    /// Bytes of WAL from the slot's `confirmed_flush_lsn` to the end: events to relay, and WAL of
    /// other tables.
    pub unconfirmed: u64,
    /// `wal_status`: `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes of WAL that can be written before the slot may lose WAL; `None` without
    /// `max_slot_wal_keep_size`.
    pub safe: Option<u64>,
    /// `max_slot_wal_keep_size` in bytes; `None` without a limit.
    pub limit: Option<u64>,
    /// [`ServerFacts::oldest_transaction`].
    pub oldest_transaction: Option<String>,
}

impl RetainedWal {
    /// Reads a server's report on a slot.
    pub fn new(server: &ServerFacts, slot: &SlotRow) -> Self {
        let behind = |position: Option<walrelay_lsn::Lsn>| {
            server
                .wal_end
                .zip(position)
                .map_or(0, |(end, position)| end.bytes_since(position))
        };
        Self {
            retained: behind(slot.restart),
            unconfirmed: behind(slot.confirmed),
            wal_status: slot.wal_status.clone(),
            safe: slot.safe_wal_size,
            limit: server.max_slot_wal_keep_size,
            oldest_transaction: server.oldest_transaction.clone(),
        }
    }
}
