use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use walrelay_lsn::Lsn;

/// Identifies an event of a slot: monotonic per slot, and the same whenever Postgres repeats the
/// event, because it is derived from the WAL.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(into = "String", try_from = "String")]
pub struct EventPosition {
    /// The start of the transaction's commit record, an LSN.
    pub lsn: u64,
    /// The number of the INSERT among those that the log has of its transaction, from 0. Rows of other
    /// tables, which are passed over, are counted.
    pub row: u64,
}

/// `X/Y N`, as in [`RESOLVES`](crate::dlq_headers::RESOLVES).
impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", Lsn::new(self.lsn), self.row)
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
    /// Parses LSN and row; `None` if one is invalid.
    pub fn from_parts(lsn: &str, row: &str) -> Option<Self> {
        Some(Self {
            lsn: lsn.parse::<Lsn>().ok()?.get(),
            row: row.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_parsed_back() {
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
