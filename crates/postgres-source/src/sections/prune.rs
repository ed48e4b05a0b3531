//! `[prune]`: the deletion of sent rows.

use std::collections::HashSet;
use std::time::Duration;
use walrelay_settings::{
    AlreadyReported, MINUTE, Reader, SECOND, Section, boolean, duration, integer, section, string,
    strings,
};

section! {
/// `[prune]`: which sent rows are deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prune at "prune" {
    /// The running relay deletes sent rows that are older. Unset: none.
    "keep" keep: Option<Duration> = duration(SECOND..).optional();
    /// The column of a row's time, a date or timestamp. Unset: `occurred_at`, or else `created_at`.
    "column" column: Option<String> = string().optional();
    /// More slots whose relays must have sent a row, too: of relays that share the table, with `[prune]` as well. `source.slot` counts without it.
    "slots" slots: Vec<String> = strings().or_empty();
    /// Whether rows from before the first slot may be deleted, which may not be sent. Not needed with `source.snapshot`.
    "before_slot" before_slot: bool = boolean().or("false");
    /// Rows that one transaction deletes.
    "batch" batch: u32 = integer::<u32>(1..=100_000).or("5000");
    /// The time between two transactions.
    "pause" pause: Duration = duration(Duration::ZERO..).or("100ms");
    /// How long a transaction waits for the lock of a table. Locked rows are passed over.
    "lock_timeout" lock_timeout: Duration = duration(Duration::from_millis(1)..).or("1s");
    /// The length of new partitions, from midnight UTC on, of a table partitioned by `RANGE` on the column. Unset: none are created.
    "partition" partition: Option<Duration> = duration(MINUTE..).optional();
    /// How many partitions are created beyond the current one.
    "ahead" ahead: u32 = integer::<u32>(1..=1_000).or("3");
}
}

/// Reads the section; `None` if rows from before the slot forbid to delete any. `snapshots`: these
/// rows are relayed. `own`: the slot of this relay.
pub fn prune(
    reader: &mut Reader<'_>,
    snapshots: bool,
    own: Option<&str>,
) -> Result<Option<Prune>, AlreadyReported> {
    let mut prune = Prune::read(reader)?;
    // Each name must be unique: rows are deleted when as many slots have confirmed them as there
    // are names.
    let mut seen: HashSet<String> = own.map(str::to_owned).into_iter().collect();
    prune.slots.retain(|slot| seen.insert(slot.clone()));
    if prune.before_slot || snapshots {
        return Ok(Some(prune));
    }
    if prune.keep.is_some() {
        let path = "prune.keep";
        let what = format!(
            "`{path}` deletes rows from before the slot as well, which this relay never sent: set \
             `prune.before_slot = true` if they may go, or `source.snapshot` to send them"
        );
        return Err(reader.conflict(path, what));
    }
    Ok(None)
}
