//! `[prune]`.

use std::time::Duration;

use crate::config::declare::{
    MINUTE, SECOND, Section, boolean, duration, integer, section, string, strings,
};
use crate::config::reader::{Noted, Reader};

/// `[prune]`: deletes confirmed rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prune {
    /// Rows younger than this stay. `None`: the relay deletes nothing, `walrelay prune` is told.
    pub keep: Option<Duration>,
    /// The column that has a row's age; `None`: the first of the usual ones.
    pub column: Option<String>,
    /// More slots that must have confirmed a row.
    pub slots: Vec<String>,
    /// Rows of one transaction.
    pub batch: u32,
    /// Between two transactions.
    pub pause: Duration,
    /// How long a table's lock is waited for.
    pub lock_timeout: Duration,
    /// The time of a partition that is created; `None`: none is.
    pub partition: Option<Duration>,
    /// How many partitions there are beyond the current one.
    pub ahead: u32,
}

section! {
pub(super) struct Keys at "prune" {
    /// The running relay deletes rows of the outbox tables that are confirmed and older than this. Unset: it deletes none.
    "keep" keep: Option<Duration> = duration(SECOND..).optional();
    /// The column that has a row's time, a date or a timestamp. Unset: `occurred_at`, or else `created_at`.
    "column" column: Option<String> = string().optional();
    /// More slots that must have confirmed a row, where several relays share a table.
    "slots" slots: Vec<String> = strings().or_empty();
    /// Whether rows may be deleted that were committed before the slot was made: the log cannot say whether anybody sent them. Not needed with `source.snapshot`.
    "before_slot" before_slot: bool = boolean().or("false");
    /// How many rows are deleted in one transaction.
    "batch" batch: u32 = integer::<u32>(1..=100_000).or("5000");
    /// How long the relay waits between two transactions.
    "pause" pause: Duration = duration(Duration::ZERO..).or("100ms");
    /// How long a transaction waits for the lock of a table that somebody else holds. Locked rows are passed over.
    "lock_timeout" lock_timeout: Duration = duration(Duration::from_millis(1)..).or("1s");
    /// How long the next partitions are of a table that is partitioned by `RANGE` on the column, from midnight UTC on. Unset: partitions are dropped, and not created.
    "partition" partition: Option<Duration> = duration(MINUTE..).optional();
    /// How many partitions there are beyond the current one, if `partition` is set.
    "ahead" ahead: u32 = integer::<u32>(1..=1_000).or("3");
}
}

/// `snapshots`: rows from before the slot are relayed, too.
pub(super) fn prune(reader: &mut Reader<'_>, snapshots: bool) -> Result<Option<Prune>, Noted> {
    let keys = Keys::read(reader)?;
    if !keys.before_slot && !snapshots {
        if keys.keep.is_some() {
            let path = "prune.keep";
            let what = format!(
                "`{path}` deletes rows from before the slot as well, which this relay never sent: set \
                 `prune.before_slot = true` if they may go, or `source.snapshot` to send them"
            );
            return Err(reader.conflict(path, what));
        }
        return Ok(None);
    }
    Ok(Some(Prune {
        keep: keys.keep,
        column: keys.column,
        slots: keys.slots,
        batch: keys.batch,
        pause: keys.pause,
        lock_timeout: keys.lock_timeout,
        partition: keys.partition,
        ahead: keys.ahead,
    }))
}
