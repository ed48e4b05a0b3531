//! A column of a row as a key, a header or the timestamp.

use std::str;

use walrelay_pgoutput::Value;

use crate::connect::schema::Data;
use crate::connect::{Codec, ColumnType, Converted, Converter, NotBytes, temporal};
use crate::part::{Fault, Part, ValueError, value};

/// A column, converted.
#[derive(Debug)]
pub(crate) struct ConnectField {
    pub(crate) slot: usize,
    pub(crate) column: ColumnType,
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

    pub(crate) fn render<'t>(
        &self,
        values: &[Value<'t>],
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, Fault> {
        let data = read(values, self.slot, &self.column)?;
        if let Data::Text(std::borrow::Cow::Borrowed(text)) = &data
            && self.converter.is_plain()
            && matches!(self.column.codec, Codec::Text)
            && let Some(row) = value(values, self.slot)?
            && row.len() == text.len()
        {
            return Ok(Part::Row(row));
        }
        let start = scratch.len();
        let schema = Some(&self.column.schema);
        match self.converter.convert(&self.prefix, schema, &data, scratch) {
            Ok(Converted::Null) => Ok(Part::Null),
            Ok(Converted::Bytes) => Ok(Part::since(start, scratch)),
            Err(NotBytes) => Err(Fault::new(self.slot, ValueError::NotBytes)),
        }
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
pub(crate) fn timestamp(
    values: &[Value<'_>],
    slot: usize,
    codec: &Codec,
    default: Option<&Data<'static>>,
) -> Result<Option<i64>, Fault> {
    use crate::connect::Clock;

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
