use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use walrelay_lsn::Lsn;

/// The highest epoch. Published positions stay below 2⁶³, so consumers may read them as signed numbers.
pub const MAX_EPOCH: u8 = 127;

/// The number of bits of an LSN in a published position. The epoch is in the bits above.
const LSN_BITS: u32 = 56;

/// The highest LSN that an event may have: 64 PiB of WAL.
pub const MAX_EVENT_LSN: Lsn = Lsn::new((1 << LSN_BITS) - 1);

/// The LSN of an event as consumers see it: the epoch in the top byte, the server's LSN below.
///
/// It is no [`Lsn`]: no function that confirms a position to Postgres accepts one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublishedLsn(u64);

impl PublishedLsn {
    /// Adds the epoch to the LSN of a server.
    pub const fn new(epoch: u8, lsn: u64) -> Self {
        Self(((epoch as u64) << LSN_BITS) | (lsn & MAX_EVENT_LSN.get()))
    }

    /// Reads a published LSN.
    pub const fn from_published(published: u64) -> Self {
        Self(published)
    }

    /// Returns the number that is published.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Splits the number into the epoch and the LSN of the server.
    pub const fn split(self) -> (u8, u64) {
        ((self.0 >> LSN_BITS) as u8, self.0 & MAX_EVENT_LSN.get())
    }
}

/// `X/Y`, as an [`Lsn`].
impl fmt::Display for PublishedLsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Lsn::new(self.0).fmt(f)
    }
}

/// Identifies an event of a slot: monotonic per slot, and the same whenever Postgres repeats the
/// event, because it is derived from the WAL.
///
/// Positions of a later epoch are greater, whatever their LSNs. Texts and numbers outside the process
/// have the epoch in the top byte of the LSN ([`PublishedLsn`]).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(into = "String", try_from = "String")]
pub struct EventPosition {
    /// The number of moves to servers whose logs started at lower LSNs. At most [`MAX_EPOCH`].
    pub epoch: u8,
    /// The start of the transaction's commit record, an LSN of the server, without the epoch.
    pub lsn: u64,
    /// The number of the INSERT among those that the log has of its transaction, from 0. Rows of other
    /// tables, which are passed over, are counted.
    pub row: u64,
}

/// `X/Y N`, as in [`RESOLVES`](crate::dlq_headers::RESOLVES).
impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.published_lsn(), self.row)
    }
}

/// The text is not an [`EventPosition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a dead letter is named as LSN and row, such as 0/16B3748 0")]
pub struct InvalidEventPosition;

impl FromStr for EventPosition {
    type Err = InvalidEventPosition;

    fn from_str(text: &str) -> Result<Self, InvalidEventPosition> {
        let (lsn, row) = text.split_once(' ').ok_or(InvalidEventPosition)?;
        Self::from_parts(lsn, row).ok_or(InvalidEventPosition)
    }
}

impl From<EventPosition> for String {
    fn from(position: EventPosition) -> Self {
        position.to_string()
    }
}

impl TryFrom<String> for EventPosition {
    type Error = InvalidEventPosition;

    fn try_from(text: String) -> Result<Self, InvalidEventPosition> {
        text.parse()
    }
}

impl EventPosition {
    /// Makes the position of an event before the first move of its outbox: in epoch 0.
    pub const fn in_first_epoch(lsn: u64, row: u64) -> Self {
        Self { epoch: 0, lsn, row }
    }

    /// Parses published LSN and row; `None` if one is invalid.
    pub fn from_parts(lsn: &str, row: &str) -> Option<Self> {
        let published = PublishedLsn::from_published(lsn.parse::<Lsn>().ok()?.get());
        Some(Self::from_published(published, row.parse().ok()?))
    }

    /// Makes the position of a published LSN and a row.
    pub const fn from_published(published: PublishedLsn, row: u64) -> Self {
        let (epoch, lsn) = published.split();
        Self { epoch, lsn, row }
    }

    /// Returns the LSN as it is published.
    pub const fn published_lsn(&self) -> PublishedLsn {
        PublishedLsn::new(self.epoch, self.lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_parsed_back() {
        let id = EventPosition::in_first_epoch(0x1_016B_3748, 12);
        assert_eq!(id.to_string(), "1/16B3748 12");
        assert_eq!("1/16B3748 12".parse(), Ok(id));
        let later = EventPosition { epoch: 3, ..id };
        assert_eq!(later.to_string(), "3000001/16B3748 12");
        assert_eq!("3000001/16B3748 12".parse(), Ok(later));
        for wrong in ["", "1/2", "1 2", "x/2 3", "1/2 -1", "1/100000000 0"] {
            assert_eq!(
                wrong.parse::<EventPosition>(),
                Err(InvalidEventPosition),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_later_epoch_is_greater_in_each_form() {
        let lsns = [0, 1, 0x16B_3748, MAX_EVENT_LSN.get()];
        let positions =
            [0, 1, 2, MAX_EPOCH].map(|epoch| lsns.map(|lsn| EventPosition { epoch, lsn, row: 7 }));
        let positions = positions.concat();
        assert!(positions.is_sorted());
        let published: Vec<_> = positions.iter().map(EventPosition::published_lsn).collect();
        assert!(published.is_sorted());
        for position in positions {
            let published = position.published_lsn();
            assert!(i64::try_from(published.get()).is_ok(), "{position}");
            assert_eq!(EventPosition::from_published(published, 7), position);
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        assert_eq!(PublishedLsn::new(0, 0x16B_3748).get(), 0x16B_3748);
    }
}
