//! Values of a row, and the parts of a record that are rendered from them.

pub(crate) mod cursor;
pub(crate) mod decimal;
pub(crate) mod json;
pub(crate) mod time;
pub(crate) mod types;

use std::num::{ParseFloatError, ParseIntError};
use std::ops::Range;

use walrelay_lsn::Lsn;
use walrelay_pgoutput::{PgTimestamp, Value};
use walrelay_sink::EventPosition;

/// The most headers that columns may give an event.
pub(crate) const MAX_HEADERS: usize = 1_000;

/// Position of an event: the row's place in the WAL and the commit time of its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The epoch of the server's log, see [`EventPosition`].
    pub epoch: u8,
    /// LSN at which the transaction's commit record starts.
    pub commit_lsn: Lsn,
    /// Number of the row in its transaction, from 0.
    pub row: u64,
    /// Commit time of the transaction, by the server's clock.
    pub commit_time: PgTimestamp,
}

impl Event {
    /// Returns the position without the commit time.
    pub fn position(&self) -> EventPosition {
        EventPosition {
            epoch: self.epoch,
            lsn: self.commit_lsn.get(),
            row: self.row,
        }
    }
}

/// Bytes of one part of a record: borrowed from the row, or a range of the scratch buffer.
#[derive(Clone, Default)]
pub(crate) enum Part<'t> {
    #[default]
    Null,
    /// A header or member that is left out.
    Absent,
    /// Bytes of the row, or a literal.
    Row(&'t [u8]),
    /// Rendered bytes: their range in the router's scratch buffer.
    Scratch(Range<usize>),
}

impl<'t> Part<'t> {
    /// Returns the bytes of the part; `scratch` is the buffer that [`Self::Scratch`] is a range of.
    pub(crate) fn resolve<'a>(&self, scratch: &'a [u8]) -> Option<&'a [u8]>
    where
        't: 'a,
    {
        match self {
            Self::Null | Self::Absent => None,
            Self::Row(bytes) => Some(bytes),
            Self::Scratch(range) => Some(scratch.get(range.clone()).unwrap_or_default()),
        }
    }

    /// Returns the part of the bytes appended to `scratch` since its length was `start`.
    pub(crate) fn since(start: usize, scratch: &[u8]) -> Self {
        Self::Scratch(start..scratch.len())
    }

    pub(crate) fn appended(bytes: &[u8], scratch: &mut Vec<u8>) -> Self {
        let start = scratch.len();
        scratch.extend_from_slice(bytes);
        Self::since(start, scratch)
    }

    /// Appends the text of `number` to `scratch`.
    pub(crate) fn printed(number: impl std::fmt::Display, scratch: &mut Vec<u8>) -> Self {
        use std::io::Write as _;

        let start = scratch.len();
        // Writing to a Vec does not fail.
        let _ = write!(scratch, "{number}");
        Self::since(start, scratch)
    }

    /// Returns the part if it is a non-empty UTF-8 text, else a fault of the column in `index`.
    pub(crate) fn require_text(self, index: ColumnIndex, scratch: &[u8]) -> Result<Self, Fault> {
        let why = match self.resolve(scratch) {
            None => ValueError::Null,
            Some([]) => ValueError::Empty,
            Some(bytes) if str::from_utf8(bytes).is_err() => ValueError::NotUtf8,
            Some(_) => return Ok(self),
        };
        Err(Fault::new(index, why))
    }

    /// Returns the length in bytes; 0 for NULL.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Null | Self::Absent => 0,
            Self::Row(bytes) => bytes.len(),
            Self::Scratch(range) => range.len(),
        }
    }

    #[must_use]
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::Row(bytes) => Self::Row(bytes.get(range).unwrap_or_default()),
            Self::Scratch(whole) => {
                Self::Scratch(whole.start + range.start..whole.start + range.end)
            }
            other => other,
        }
    }

    /// Appends a range of the part's bytes to `scratch`, which may be the buffer that has the part.
    pub(crate) fn copy(&self, range: Range<usize>, scratch: &mut Vec<u8>) {
        match self {
            Self::Row(bytes) => scratch.extend_from_slice(bytes.get(range).unwrap_or_default()),
            Self::Scratch(whole) => {
                scratch.extend_from_within(whole.start + range.start..whole.start + range.end);
            }
            Self::Null | Self::Absent => {}
        }
    }
}

/// Returns the byte of two hexadecimal digits.
pub(crate) fn hex_byte(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? << 4 | low?).ok()
}

/// Returns the text of the column at `index`, `None` for NULL.
pub(crate) fn value<'t>(
    values: &[Value<'t>],
    index: ColumnIndex,
) -> Result<Option<&'t [u8]>, Fault> {
    match values.get(index) {
        Some(Value::Text(text)) => Ok(Some(text)),
        // The router has compared the number of values with the table's columns.
        Some(Value::Null) | None => Ok(None),
        Some(Value::UnchangedToast) => Err(Fault::new(index, ValueError::UnchangedToast)),
        Some(Value::Binary(_)) => Err(Fault::new(index, ValueError::Binary)),
    }
}

/// Index of a column among those that a plan needs, in the order in which it found them. The table
/// has the column at another position.
pub(crate) type ColumnIndex = usize;

/// A value that does not fit its purpose: the index of its column, and what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) index: ColumnIndex,
    pub(crate) why: ValueError,
}

impl Fault {
    pub(crate) const fn new(index: ColumnIndex, why: ValueError) -> Self {
        Self { index, why }
    }
}

/// The error of a text that is not as Postgres writes values of its type, or is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

impl From<ParseIntError> for Malformed {
    fn from(_: ParseIntError) -> Self {
        Self
    }
}

impl From<ParseFloatError> for Malformed {
    fn from(_: ParseFloatError) -> Self {
        Self
    }
}

/// A fault of a value, without the value. Completes "column … ".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// NULL, where a value is needed.
    #[error("is NULL")]
    Null,
    /// The text is not UTF-8.
    #[error("is not UTF-8")]
    NotUtf8,
    /// Empty, where a text is needed.
    #[error("is empty")]
    Empty,
    /// Marked as an unchanged TOAST value, which no inserted row contains.
    #[error("is left out as unchanged")]
    UnchangedToast,
    /// The value is in binary format; the relay requests text format.
    #[error("is in binary format")]
    Binary,
    /// A boolean that is neither `t` nor `f`.
    #[error("is boolean and neither t nor f")]
    NotBoolean,
    /// The text is not a number, or out of range.
    #[error("is not a number in the range that is needed")]
    NotANumber,
    /// The text is not a point in time since 1970.
    #[error("is not a point in time since 1970")]
    NotATime,
    /// The text is not JSON, or nested too deep.
    #[error("is not JSON, or nested too deep")]
    NotJson,
    /// The text is not `\\x` and hexadecimal digits.
    #[error("is not the hexadecimal form of bytes (bytea_output = hex)")]
    NotHex,
    /// The value is empty, or has a character that a token of an address cannot have.
    #[error("is empty, or has a dot, a wildcard (* or >), a blank or a control character")]
    NotAToken,
    /// The value is empty, `.` or `..`, and would be a part of a URL.
    #[error("is empty, . or .., and would make a URL that leads elsewhere")]
    NotInUrl,
    /// The value is not a key of the lookup table.
    #[error("is not in the lookup table")]
    NotInTable,
    /// The text is neither a JSON object nor an `hstore`.
    #[error("is neither a JSON object nor an hstore")]
    NotHeaders,
    /// The text is not an array of one dimension, or an item is NULL.
    #[error("is not an array of one dimension without NULL")]
    NotNames,
    /// The text is not an array of one dimension.
    #[error("is not an array of one dimension")]
    NotHeaderValues,
    /// The array of values is longer or shorter than that of the names.
    #[error("has not as many items as the array of the names")]
    OtherLength,
    /// More headers than an event may have.
    #[error("has more than {MAX_HEADERS} headers")]
    TooManyHeaders,
    /// The text is not as Postgres writes values of the column's type.
    #[error("is not written as Postgres writes values of its type")]
    Malformed,
    /// The value is not bytes, and the converter writes only bytes.
    #[error(
        "is not bytes, and the converter writes nothing else: use a column of the type bytea, or a converter for texts"
    )]
    NotBytes,
}
