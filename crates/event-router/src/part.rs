//! The bytes of one part of a record, and what makes them.

use std::fmt;
use std::ops::Range;

use walrelay_lsn::Lsn;
use walrelay_pgoutput::{PgTimestamp, Value};
use walrelay_sink::Poison;

use crate::column_type::Reading;
use crate::connect::ColumnType;
use crate::connect::schema::Data;
use crate::debezium::field::{self, ConnectField};
use crate::debezium::payload::Payload;
use crate::{Role, Target, template};

/// What a row's transaction says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Where the transaction's commit record starts.
    pub commit_lsn: Lsn,
    /// Which of the transaction's rows it is, from 0.
    pub row: u64,
    /// When it committed, by the server's clock.
    pub commit_time: PgTimestamp,
}

/// Bytes of a record before they are put together: those of the row stay where they are.
#[derive(Clone, Default)]
pub(crate) enum Part<'t> {
    /// Kafka's null.
    #[default]
    Null,
    /// Not there at all: a header that is left out.
    Absent,
    /// As they stand in the row, or in the plan's literals.
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

    /// What was rendered since `scratch` was `start` long.
    pub(crate) fn since(start: usize, scratch: &[u8]) -> Self {
        Self::Scratch(start..scratch.len())
    }
}

/// What a part is made of, compiled for one table. A `slot` counts the columns that the plan needs,
/// not those of the table.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A column's text, as Postgres writes it or nearly so.
    Column { slot: usize, reading: Reading },
    /// A template.
    Template(template::Compiled),
    /// A column as Kafka Connect's converters write it.
    Connect(Box<ConnectField>),
    /// A value that is more than that.
    Payload(Box<Payload>),
    /// A column's whole number from 0 on, and what NULL stands for.
    Partition { slot: usize, default: Option<i64> },
    /// A column's point in time.
    Timestamp {
        slot: usize,
        column: Box<ColumnType>,
    },
    /// The same for each row; nothing is left out.
    Literal(Option<Vec<u8>>),
}

impl Piece {
    /// The slot to blame where what was made of it is of no use.
    pub(crate) fn slot(&self) -> usize {
        match self {
            Self::Column { slot, .. }
            | Self::Partition { slot, .. }
            | Self::Timestamp { slot, .. } => *slot,
            Self::Template(template) => template.slot(),
            Self::Connect(field) => field.slot,
            Self::Payload(payload) => payload.slot,
            Self::Literal(_) => 0,
        }
    }

    /// A text that [`render`](Self::render) would give as it stands in the row.
    #[inline]
    pub(crate) fn in_row<'t>(&self, values: &[Value<'t>]) -> Option<&'t [u8]> {
        match self {
            Self::Column {
                slot,
                reading: Reading::Verbatim,
            } => match values.get(*slot) {
                Some(Value::Text(text)) => Some(text),
                _ => None,
            },
            _ => None,
        }
    }

    /// Makes the part for a row with these `values` of the columns that the plan needs.
    pub(crate) fn render<'t>(
        &self,
        values: &[Value<'t>],
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, Fault> {
        match self {
            Self::Template(template) => template.render(values, scratch),
            Self::Connect(field) => field.render(values, scratch),
            Self::Payload(payload) => payload.render(values, scratch),
            Self::Partition { slot, default } => {
                let fault = || Fault::new(*slot, ValueError::NotANumber);
                let number: Option<i64> = match value(values, *slot)? {
                    None => *default,
                    Some(text) => {
                        let text = str::from_utf8(text).map_err(|_| fault())?;
                        Some(text.parse().map_err(|_| fault())?)
                    }
                };
                match number {
                    None => Ok(Part::Null),
                    Some(0..=2_147_483_647) => Ok(decimal(number, scratch)),
                    Some(_) => Err(fault()),
                }
            }
            Self::Timestamp { slot, column } => {
                let default: Option<&Data<'_>> = column.schema.default.as_ref();
                let millis = field::timestamp(values, *slot, &column.codec, default)?;
                Ok(decimal(millis, scratch))
            }
            Self::Literal(None) => Ok(Part::Absent),
            Self::Literal(Some(bytes)) => {
                let start = scratch.len();
                scratch.extend_from_slice(bytes);
                Ok(Part::since(start, scratch))
            }
            Self::Column { slot, reading } => {
                let Some(text) = value(values, *slot)? else {
                    return Ok(Part::Null);
                };
                match (reading, text) {
                    (Reading::Verbatim, text) => Ok(Part::Row(text)),
                    (Reading::Boolean, b"t") => Ok(Part::Row(b"true")),
                    (Reading::Boolean, b"f") => Ok(Part::Row(b"false")),
                    (Reading::Boolean, _) => Err(Fault::new(*slot, ValueError::NotBoolean)),
                }
            }
        }
    }
}

fn decimal<'t>(number: Option<i64>, scratch: &mut Vec<u8>) -> Part<'t> {
    let Some(number) = number else {
        return Part::Null;
    };
    let start = scratch.len();
    scratch.extend_from_slice(number.to_string().as_bytes());
    Part::since(start, scratch)
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

/// The value in a slot is not what it is needed for.
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

/// What is wrong with a value, without the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueError {
    /// It is NULL, and something is needed.
    Null,
    /// It is not UTF-8, and a text is needed.
    NotUtf8,
    /// Nothing is left of it, and something is needed.
    Empty,
    /// The row says that it did not change instead of giving it. An inserted row cannot: this is
    /// another kind of row.
    UnchangedToast,
    /// It is in Postgres' binary format, and was asked for as text.
    Binary,
    /// A boolean that is neither `t` nor `f`.
    NotBoolean,
    /// It is not a number, or too large a one.
    NotANumber,
    /// It is not a point in time since 1970.
    NotATime,
    /// It is not JSON, or nested too deep.
    NotJson,
    /// It is not the hexadecimal form of bytes.
    NotHex,
    /// The lookup table does not have it.
    NotInTable,
    /// It is not written as Postgres writes values of its type.
    Malformed,
    /// It is not bytes, and the converter writes nothing else.
    NotBytes,
}

impl ValueError {
    /// What an event is whose value for `role` is so.
    pub(crate) const fn poison(self, role: &Role) -> Poison {
        match (self, role) {
            (
                Self::Null | Self::NotUtf8 | Self::Empty,
                Role::RouteBy | Role::Template(Target::Topic),
            )
            | (Self::Null | Self::NotANumber, Role::Template(Target::Partition))
            | (Self::NotInTable, _) => Poison::Unroutable,
            _ => Poison::Undecodable,
        }
    }
}

/// Completes "column … ".
impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "is NULL",
            Self::NotUtf8 => "is not UTF-8",
            Self::Empty => "is empty",
            Self::UnchangedToast => "is left out as unchanged",
            Self::Binary => "is in binary format",
            Self::NotBoolean => "is boolean and neither t nor f",
            Self::NotANumber => "is not a number in the range that is needed",
            Self::NotATime => "is not a point in time since 1970",
            Self::NotJson => "is not JSON, or nested too deep",
            Self::NotHex => "is not the hexadecimal form of bytes (bytea_output = hex)",
            Self::NotInTable => "is not in the lookup table",
            Self::Malformed => "is not written as Postgres writes values of its type",
            Self::NotBytes => {
                "is not bytes, and the converter writes nothing else: use a column of the type bytea, or a converter for texts"
            }
        })
    }
}
