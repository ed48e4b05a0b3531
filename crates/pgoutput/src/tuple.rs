use core::fmt;
use core::iter::FusedIterator;

use crate::cursor::{Cursor, Read};
use crate::fault::{Fault, Field};

/// A row: one [`Value`] for each column of its [`Relation`](crate::Relation), in that order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    pub(crate) count: u16,
    /// Exactly `count` values that [`Cursor::value`] has read without a fault.
    pub(crate) values: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// Returns the number of columns.
    #[inline]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if the row has no columns, as in a table without columns.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the values in the order of the columns. Each step costs the reading of one length.
    #[inline]
    pub const fn values(&self) -> Values<'a> {
        Values {
            cursor: Cursor::new(self.values),
            left: self.count,
        }
    }
}

// Not derived, as for `Value`: row values must not be logged.
impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tuple ")?;
        fmt::Debug::fmt(&self.values(), f)
    }
}

impl<'a> Cursor<'a> {
    /// Decodes the value of one column of TupleData.
    #[expect(clippy::inline_always, reason = "see Values::next")]
    #[inline(always)]
    pub(crate) fn value(&mut self) -> Read<Value<'a>> {
        let start = *self;
        match self.u8(Field::ValueKind)? {
            b'n' => Ok(Value::Null),
            b'u' => Ok(Value::UnchangedToast),
            b't' => self.sized().map(Value::Text),
            b'b' => self.sized().map(Value::Binary),
            found => {
                let known = "'n', 'u', 't', 'b'";
                Err(start.broken(Field::ValueKind, Fault::UnknownTag { found, known }))
            }
        }
    }

    #[inline]
    fn sized(&mut self) -> Read<&'a [u8]> {
        let len = self.length(Field::ValueLength)?;
        self.bytes(Field::Value, len)
    }
}

/// The values of a [`Tuple`]. Iterating cannot fail: [`decode`](crate::decode) validated them.
#[derive(Clone)]
pub struct Values<'a> {
    cursor: Cursor<'a>,
    left: u16,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    // Without the attribute the compiler emits a call that returns each value through memory, and
    // iterating over a row of seven columns takes three times as long.
    #[expect(clippy::inline_always, reason = "measured: 45 ns a row against 140")]
    #[inline(always)]
    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        self.cursor.value().ok()
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Values<'_> {}
impl FusedIterator for Values<'_> {}

impl fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// The value of one column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// SQL's NULL. In [`OldRow::Key`] also every column outside the replica identity.
    Null,
    /// An unchanged TOAST value: an UPDATE did not change this large value, so it is not in the
    /// WAL. Never part of an INSERT.
    UnchangedToast,
    /// The output of the type's text output function, in the connection's `client_encoding`.
    Text(&'a [u8]),
    /// The output of the type's binary send function. Only if requested by `binary 'true'`, and
    /// only for types that have such a function.
    Binary(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the bytes, text or binary; `None` for NULL and for an unchanged TOAST value.
    #[inline]
    pub const fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Text(bytes) | Self::Binary(bytes) => Some(bytes),
            Self::Null | Self::UnchangedToast => None,
        }
    }
}

// Not derived: row values must not be logged.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::UnchangedToast => f.write_str("UnchangedToast"),
            Self::Text(bytes) => write!(f, "Text({} bytes)", bytes.len()),
            Self::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

/// A row before it was updated or deleted. `T`: a [`Tuple`], or the values to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldRow<T> {
    /// `K`: the columns of the replica identity; all others are [`Value::Null`].
    Key(T),
    /// `O`: the whole row, of a table with [`ReplicaIdentity::Full`](crate::ReplicaIdentity::Full).
    Full(T),
}

impl<T> OldRow<T> {
    /// Returns the row of either variant.
    pub fn row(self) -> T {
        match self {
            Self::Key(row) | Self::Full(row) => row,
        }
    }

    /// Converts the row, of either variant.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> OldRow<U> {
        match self {
            Self::Key(row) => OldRow::Key(convert(row)),
            Self::Full(row) => OldRow::Full(convert(row)),
        }
    }
}
