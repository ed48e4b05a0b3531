//! What a dead letter looks like in its topic: the contract between the relay that writes dead letters
//! and whoever reads, redrives or drops them.
//!
//! A letter has the key and the value of the record it stands for, that record's headers, and after
//! them headers of the names below. A **resolution** is a record with the letter's key (so that it
//! lies in the same partition, behind it), no value, and [`RESOLVES`] and [`RESOLUTION`].
//!
//! A letter is open until a resolution of its [`EventPosition`] follows it. A repeat of a letter that was
//! resolved stays resolved.

use std::fmt;
use std::str::FromStr;

/// All names of these headers begin so. The rest of a letter's headers are the original record's.
pub const PREFIX: &str = "walrelay.dlq.";
/// Why the event is a dead letter: [`Poison::name`](crate::Poison::name) or [`PARKED`].
pub const CLASS: &str = "walrelay.dlq.class";
/// The cause in words for people; no row's value.
pub const CAUSE: &str = "walrelay.dlq.cause";
/// The replication slot the event was read from.
pub const SLOT: &str = "walrelay.dlq.slot";
/// Where the commit record of the event's transaction starts in the log, as `X/Y`.
pub const LSN: &str = "walrelay.dlq.lsn";
/// The event's place in its transaction, in decimal from 0: see [`EventPosition`].
pub const ROW: &str = "walrelay.dlq.row";
/// The transaction's number, in decimal.
pub const XID: &str = "walrelay.dlq.xid";
/// When it was committed: RFC 3339 with microseconds, UTC.
pub const COMMIT_TIME: &str = "walrelay.dlq.commit.time";
/// The table, as `schema.table`.
pub const TABLE: &str = "walrelay.dlq.table";
/// The event's id as its column has it; null where that is NULL or unknown.
pub const EVENT_ID: &str = "walrelay.dlq.event.id";
/// The topic it was bound for; absent where there is none.
pub const TOPIC: &str = "walrelay.dlq.topic";
/// The record's timestamp in milliseconds, in decimal; absent where it has none.
pub const TIMESTAMP: &str = "walrelay.dlq.timestamp";
/// The record's partition, in decimal; absent where the key decides.
pub const PARTITION: &str = "walrelay.dlq.partition";
/// The value's size in bytes, in decimal. Present where the value was left out: then the letter's
/// value is null, and event id and LSN say where to find it.
pub const VALUE_BYTES: &str = "walrelay.dlq.value.bytes";
/// Of a resolution: slot and [`EventPosition`], separated by spaces.
pub const RESOLVES: &str = "walrelay.dlq.resolves";
/// Of a resolution: [`REDRIVEN`] or [`DROPPED`].
pub const RESOLUTION: &str = "walrelay.dlq.resolution";

/// The class of an event that is a letter only because an earlier one of its key is.
pub const PARKED: &str = "parked";
/// The letter's record was sent where it had been bound for.
pub const REDRIVEN: &str = "redriven";
/// Somebody decided that the letter's event is not to be sent.
pub const DROPPED: &str = "dropped";

/// Which event of a slot a letter stands for. The same in each repeat, as it is made of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventPosition {
    /// The start of the transaction's commit record.
    pub lsn: u64,
    /// The place of the INSERT among those of the configured tables in its transaction, from 0.
    pub row: u64,
}

/// `X/Y N`, as in [`RESOLVES`].
impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:X}/{:X} {}",
            self.lsn >> 32,
            self.lsn & 0xFFFF_FFFF,
            self.row
        )
    }
}

/// The text is no [`EventPosition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a letter is named as LSN and row, such as 0/16B3748 0")]
pub struct InvalidEventPosition;

impl FromStr for EventPosition {
    type Err = InvalidEventPosition;

    fn from_str(text: &str) -> Result<Self, InvalidEventPosition> {
        let (lsn, row) = text.split_once(' ').ok_or(InvalidEventPosition)?;
        Self::from_parts(lsn, row).ok_or(InvalidEventPosition)
    }
}

impl EventPosition {
    /// Of the texts of [`LSN`] and [`ROW`]; `None` if they are none.
    pub fn from_parts(lsn: &str, row: &str) -> Option<Self> {
        let (high, low) = lsn.split_once('/')?;
        let hex = |digits: &str| u32::from_str_radix(digits, 16).ok();
        Some(Self {
            lsn: (u64::from(hex(high)?) << 32) | u64::from(hex(low)?),
            row: row.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back() {
        let id = EventPosition {
            lsn: 0x1_016B_3748,
            row: 12,
        };
        assert_eq!(id.to_string(), "1/16B3748 12");
        assert_eq!("1/16B3748 12".parse(), Ok(id));
        for wrong in ["", "1/2", "1 2", "x/2 3", "1/2 -1", "1/100000000 0"] {
            assert_eq!(
                wrong.parse::<EventPosition>(),
                Err(InvalidEventPosition),
                "{wrong:?}"
            );
        }
    }
}
