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
    /// The running relay deletes confirmed rows that are older. Unset: none.
    "keep" keep: Option<Duration> = duration(SECOND..).optional();
    /// The column of a row's time, a date or timestamp. Unset: `occurred_at`, or else `created_at`.
    "column" column: Option<String> = string().optional();
    /// More slots that must have confirmed a row: of relays that share the table.
    "slots" slots: Vec<String> = strings().or_empty();
    /// Whether rows from before the slot may be deleted, which nobody may have sent. Not needed with `source.snapshot`.
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
