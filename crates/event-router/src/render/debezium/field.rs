//! A column of a row as a key, a header, the partition or the timestamp.

use std::borrow::Cow;
use std::str;

use walrelay_pgoutput::Value;

use crate::plan::Render;
use crate::render::connect::schema::Data;
use crate::render::connect::{Clock, Codec, ColumnType, Converter, temporal};
use crate::value::{Fault, Part, ValueError, value};

/// A column, converted.
#[derive(Debug)]
pub(crate) struct ConnectField {
    slot: usize,
    column: ColumnType,
    converter: Converter,
    /// What stands before each value.
    prefix: Vec<u8>,
}

impl ConnectField {
    pub(crate) fn new(slot: usize, column: ColumnType, converter: &Converter) -> Self {
        Self {
            slot,
            prefix: converter.prefix(Some(&column.schema)),
            column,
            converter: converter.clone(),
        }
    }
}

impl Render for ConnectField {
    fn slot(&self) -> usize {
        self.slot
    }

    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        let data = read(values, self.slot, &self.column)?;
        if let Data::Text(Cow::Borrowed(text)) = &data
            && self.converter.is_plain()
            && matches!(self.column.codec, Codec::Text)
            && let Some(row) = value(values, self.slot)?
            && row.len() == text.len()
        {
            return Ok(Part::Row(row));
        }
        let schema = Some(&self.column.schema);
        let part = self.converter.convert(&self.prefix, schema, &data, scratch);
        part.map_err(|why| Fault::new(self.slot, why))
    }
}

/// A column's whole number as the partition.
#[derive(Debug)]
pub(crate) struct PartitionColumn {
    pub(crate) slot: usize,
    /// What NULL stands for.
    pub(crate) default: Option<i64>,
}

impl Render for PartitionColumn {
    fn slot(&self) -> usize {
        self.slot
    }

    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        let number = match value(values, self.slot)? {
            None => self.default,
            Some(text) => {
                let text = str::from_utf8(text).ok();
                let number = text.and_then(|text| text.parse().ok());
                // What is no number is none that a partition has.
                Some(number.unwrap_or(-1))
            }
        };
        match number {
            None => Ok(Part::Null),
            Some(number @ 0..=2_147_483_647) => Ok(Part::printed(number, scratch)),
            Some(_) => Err(Fault::new(self.slot, ValueError::NotANumber)),
        }
    }
}

/// A column's point in time as the timestamp.
#[derive(Debug)]
pub(crate) struct TimestampColumn {
    pub(crate) slot: usize,
    pub(crate) column: ColumnType,
}

impl Render for TimestampColumn {
    fn slot(&self) -> usize {
        self.slot
    }

    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        let ColumnType { schema, codec, .. } = &self.column;
        Ok(
            match timestamp(values, self.slot, codec, schema.default.as_ref())? {
                Some(millis) => Part::printed(millis, scratch),
                None => Part::Null,
            },
        )
    }
}

/// The same text for each row; one that cannot be written is left out.
#[derive(Debug)]
pub(crate) struct Literal(pub(crate) Option<Vec<u8>>);

impl Render for Literal {
    fn slot(&self) -> usize {
        0
    }

    fn render<'t>(&self, _: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        let Self(bytes) = self;
        Ok(bytes
            .as_ref()
            .map_or(Part::Absent, |bytes| Part::appended(bytes, scratch)))
    }
}

/// The Connect value of a column: its default where it is NULL, as Connect's structs have it.
pub(crate) fn read<'a>(
    values: &[Value<'a>],
    slot: usize,
    column: &'a ColumnType,
) -> Result<Data<'a>, Fault> {
    let data = match value(values, slot)? {
        None => Data::Null,
        Some(text) => {
            let fault = |why| Fault::new(slot, why);
            let text = str::from_utf8(text).map_err(|_| fault(ValueError::NotUtf8))?;
            let data = column.codec.read(text);
            data.map_err(|_| fault(ValueError::Malformed))?
        }
    };
    Ok(match (&data, &column.schema.default) {
        (Data::Null, Some(default)) => default.clone(),
        _ => data,
    })
}

/// The record's timestamp in milliseconds; NULL is none.
fn timestamp(
    values: &[Value<'_>],
    slot: usize,
    codec: &Codec,
    default: Option<&Data<'static>>,
) -> Result<Option<i64>, Fault> {
    let fault = || Fault::new(slot, ValueError::NotATime);
    let Some(text) = value(values, slot)? else {
        // A default is a count by the column's own clock.
        return match (default, codec) {
            (Some(Data::Int(count)), Codec::Timestamp(Clock::Micros)) => Ok(Some(count / 1000)),
            (Some(Data::Int(count)), Codec::Timestamp(Clock::Nanos)) => Ok(Some(count / 1_000_000)),
            (Some(Data::Int(count)), Codec::Timestamp(_)) => Ok(Some(*count)),
            _ => Ok(None),
        };
    };
    let text = str::from_utf8(text).map_err(|_| fault())?;
    let millis = match codec {
        Codec::Timestamp(_) | Codec::ZonedTimestamp { .. } => {
            let micros = temporal::timestamp(text).map_err(|_| fault())?.micros();
            match codec {
                // Java divides towards zero.
                Codec::Timestamp(Clock::Micros | Clock::Nanos) => micros / 1000,
                _ => micros.div_euclid(1000),
            }
        }
        Codec::Date(_) => {
            let days = temporal::date(text).map_err(|_| fault())?;
            i128::from(days) * i128::from(temporal::DAY_MILLIS)
        }
        // A number says nothing of its unit.
        _ => return Err(fault()),
    };
    match i64::try_from(millis) {
        Ok(millis) if millis >= 0 => Ok(Some(millis)),
        _ => Err(fault()),
    }
}
