//! Values of a row, and the bytes that are made of them.

pub(crate) mod cursor;
pub(crate) mod decimal;
pub(crate) mod json;
pub(crate) mod time;
pub(crate) mod types;

use std::num::{ParseFloatError, ParseIntError};
use std::ops::Range;

use walrelay_lsn::Lsn;
use walrelay_pgoutput::{PgTimestamp, Value};

/// The place of a row in the log, and its commit time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Where the transaction's commit record starts.
    pub commit_lsn: Lsn,
    /// Which of the transaction's rows it is, from 0.
    pub row: u64,
    /// When it committed, by the server's clock.
    pub commit_time: PgTimestamp,
}

/// Bytes of a record's part, which are not copied from the row.
#[derive(Clone, Default)]
pub(crate) enum Part<'t> {
    #[default]
    Null,
    /// A header or member that is left out.
    Absent,
    /// Bytes of the row, or literals.
    Row(&'t [u8]),
    /// Rendered, at this place of the router's scratch buffer.
    Scratch(Range<usize>),
}

impl<'t> Part<'t> {
    /// The bytes, with what was rendered found in `scratch`.
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

    /// The bytes that were appended to `scratch` at `start`.
    pub(crate) fn since(start: usize, scratch: &[u8]) -> Self {
        Self::Scratch(start..scratch.len())
    }

    pub(crate) fn appended(bytes: &[u8], scratch: &mut Vec<u8>) -> Self {
        let start = scratch.len();
        scratch.extend_from_slice(bytes);
        Self::since(start, scratch)
    }

    /// The text of `number`, at the end of `scratch`.
    pub(crate) fn printed(number: impl std::fmt::Display, scratch: &mut Vec<u8>) -> Self {
        use std::io::Write as _;

        let start = scratch.len();
        // Writing to a Vec does not fail.
        let _ = write!(scratch, "{number}");
        Self::since(start, scratch)
    }

    /// A text that is not empty.
    pub(crate) fn filled(self, slot: usize, scratch: &[u8]) -> Result<Self, Fault> {
        let why = match self.resolve(scratch) {
            None => ValueError::Null,
            Some([]) => ValueError::Empty,
            Some(bytes) if str::from_utf8(bytes).is_err() => ValueError::NotUtf8,
            Some(_) => return Ok(self),
        };
        Err(Fault::new(slot, why))
    }

    /// 0 for null.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Null | Self::Absent => 0,
            Self::Row(bytes) => bytes.len(),
            Self::Scratch(range) => range.len(),
        }
    }

    #[must_use]
    pub(crate) fn sub(self, range: Range<usize>) -> Self {
        match self {
            Self::Row(bytes) => Self::Row(bytes.get(range).unwrap_or_default()),
            Self::Scratch(whole) => {
                Self::Scratch(whole.start + range.start..whole.start + range.end)
            }
            other => other,
        }
    }

    /// Appends the bytes of a range of the part to `scratch`, in which the part itself may lie.
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

/// The byte that two hexadecimal digits are.
pub(crate) fn hex_byte(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? << 4 | low?).ok()
}

/// The text in a slot, `None` for NULL.
pub(crate) fn value<'t>(values: &[Value<'t>], slot: usize) -> Result<Option<&'t [u8]>, Fault> {
    match values.get(slot) {
        Some(Value::Text(text)) => Ok(Some(text)),
        // A row has as many values as its table has columns: this is compared before.
        Some(Value::Null) | None => Ok(None),
        Some(Value::UnchangedToast) => Err(Fault::new(slot, ValueError::UnchangedToast)),
        Some(Value::Binary(_)) => Err(Fault::new(slot, ValueError::Binary)),
    }
}

/// The value in a slot does not fit its purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) slot: usize,
    pub(crate) why: ValueError,
}

impl Fault {
    pub(crate) const fn new(slot: usize, why: ValueError) -> Self {
        Self { slot, why }
    }
}

/// A text is not written as Postgres writes values of its type, or is not JSON.
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

/// What is wrong with a value, without the value. Completes "column … ".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// It is NULL, and must not be.
    #[error("is NULL")]
    Null,
    /// It is not a text.
    #[error("is not UTF-8")]
    NotUtf8,
    /// It is empty, and must not be.
    #[error("is empty")]
    Empty,
    /// The row marks the value as unchanged, which no inserted row does.
    #[error("is left out as unchanged")]
    UnchangedToast,
    /// The relay asks for text format.
    #[error("is in binary format")]
    Binary,
    /// A boolean that is neither `t` nor `f`.
    #[error("is boolean and neither t nor f")]
    NotBoolean,
    /// It is not a number, or too large a one.
    #[error("is not a number in the range that is needed")]
    NotANumber,
    /// It is not a point in time since 1970.
    #[error("is not a point in time since 1970")]
    NotATime,
    /// It is not JSON, or nested too deep.
    #[error("is not JSON, or nested too deep")]
    NotJson,
    /// It is not `\\x` and digits.
    #[error("is not the hexadecimal form of bytes (bytea_output = hex)")]
    NotHex,
    /// The lookup table does not have it.
    #[error("is not in the lookup table")]
    NotInTable,
    /// It is not of the form of its type.
    #[error("is not written as Postgres writes values of its type")]
    Malformed,
    /// The converter writes nothing but bytes.
    #[error(
        "is not bytes, and the converter writes nothing else: use a column of the type bytea, or a converter for texts"
    )]
    NotBytes,
}
