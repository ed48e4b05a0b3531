//! Renders a column as a key, a header, the value, the partition or the timestamp.

use std::borrow::Cow;
use std::str;

use walrelay_pgoutput::Value;

use super::expand::{Expand, Expanded};
use crate::plan::{Field, Renderer, Role};
use crate::render::connect::schema::{Data, Schema, SchemaType};
use crate::render::connect::{Codec, Column, Converter, TimeEncoding, temporal};
use crate::value::types::Reading;
use crate::value::{ColumnIndex, Fault, Part, ValueError, value};

/// A column that a converter writes.
struct ConvertedColumn {
    column: Column,
    converter: Converter,
    /// Bytes that the converter writes before each value of the column's schema.
    prefix: Vec<u8>,
    rules: Option<PayloadRules>,
}

/// The rules by which the record's value differs from the payload column's.
pub(super) struct PayloadRules {
    /// Name of the payload column, and of the root of an expanded value.
    pub(super) name: String,
    pub(super) tombstone_on_empty: bool,
    pub(super) expand: Option<Expand>,
    pub(super) envelope: Option<Envelope>,
}

/// A struct with the payload and other columns as its fields.
pub(super) struct Envelope {
    /// `<topic.prefix>.<schema>.<table>.`, the first part of the schema's name.
    pub(super) name: String,
    /// Column and default of the routing value, the next part of the schema's name.
    pub(super) routed_by: (ColumnIndex, Option<Box<str>>),
    /// Column of the schema's version.
    pub(super) version: Option<Column>,
    pub(super) fields: Vec<(String, Column)>,
}

impl Column {
    /// Turns the column into a field by a converter. If the converter leaves the text unchanged,
    /// the row's bytes are used.
    pub(super) fn into_field(self, converter: &Converter, role: Role) -> Field {
        let in_row = converter.is_plain() && self.schema.default.is_none();
        let reading = match self.codec {
            Codec::Text | Codec::Integer if in_row => Reading::Verbatim,
            Codec::Boolean if in_row => Reading::Boolean,
            _ => return self.into_converted(converter, role, None),
        };
        Field::column(role, self.index, reading)
    }

    pub(super) fn into_converted(
        self,
        converter: &Converter,
        role: Role,
        rules: Option<PayloadRules>,
    ) -> Field {
        let index = self.index;
        let converted = ConvertedColumn {
            prefix: converter.prefix(Some(&self.schema)),
            column: self,
            converter: converter.clone(),
            rules,
        };
        Renderer::new(index, move |values, scratch| {
            converted.render(values, scratch)
        })
        .field(role)
    }

    /// Turns the column into the number of the partition.
    pub(super) fn into_partition(self) -> Field {
        let default = match self.schema.default {
            Some(Data::Int(number)) => Some(number),
            _ => None,
        };
        let index = self.index;
        Renderer::new(index, move |values, scratch| {
            let number = match value(values, index)? {
                None => default,
                Some(text) => {
                    Some(str::from_utf8(text).map_or(-1, |digits| digits.parse().unwrap_or(-1)))
                }
            };
            match number {
                None => Ok(Part::Null),
                Some(number @ 0..=2_147_483_647) => Ok(Part::printed(number, scratch)),
                Some(_) => Err(Fault::new(index, ValueError::NotANumber)),
            }
        })
        .field(Role::Additional)
    }

    /// Turns the column, a point in time, into the record's timestamp.
    pub(super) fn into_timestamp(self) -> Field {
        Renderer::new(self.index, move |values, scratch| {
            let millis = self.timestamp(values)?;
            Ok(millis.map_or(Part::Null, |millis| Part::printed(millis, scratch)))
        })
        .field(Role::EventTimestamp)
    }

    fn fault(&self, why: ValueError) -> Fault {
        Fault::new(self.index, why)
    }

    /// Reads the Connect value; the schema's default replaces NULL, as in Connect's structs.
    fn read<'a>(&'a self, values: &[Value<'a>]) -> Result<Data<'a>, Fault> {
        let data = match value(values, self.index)? {
            None => Data::Null,
            Some(text) => {
                let text = str::from_utf8(text).map_err(|_| self.fault(ValueError::NotUtf8))?;
                let data = self.codec.read(text);
                data.map_err(|_| self.fault(ValueError::Malformed))?
            }
        };
        Ok(match (&data, &self.schema.default) {
            (Data::Null, Some(default)) => default.clone(),
            _ => data,
        })
    }

    /// Reads the milliseconds since 1970; `None` for NULL.
    fn timestamp(&self, values: &[Value<'_>]) -> Result<Option<i64>, Fault> {
        let fault = || self.fault(ValueError::NotATime);
        let Some(text) = value(values, self.index)? else {
            // A default is a number in the unit of the column.
            return Ok(match (&self.schema.default, &self.codec) {
                (Some(Data::Int(count)), Codec::Timestamp(encoding)) => Some(match encoding {
                    TimeEncoding::Micros => count / 1000,
                    TimeEncoding::Nanos => count / 1_000_000,
                    _ => *count,
                }),
                _ => None,
            });
        };
        let text = str::from_utf8(text).map_err(|_| fault())?;
        let micros = || temporal::timestamp(text).map(|timestamp| timestamp.micros);
        let millis = match self.codec {
            // Java's division rounds towards zero.
            Codec::Timestamp(TimeEncoding::Micros | TimeEncoding::Nanos) => {
                micros().map(|micros| micros / 1000)
            }
            Codec::Timestamp(_) | Codec::ZonedTimestamp { .. } => {
                micros().map(|micros| micros.div_euclid(1000))
            }
            Codec::Date(_) => {
                temporal::date(text).map(|days| i128::from(days) * i128::from(temporal::DAY_MILLIS))
            }
            // The unit of a number is unknown.
            _ => return Err(fault()),
        };
        let millis = millis.ok().and_then(|millis| i64::try_from(millis).ok());
        millis
            .filter(|millis| *millis >= 0)
            .ok_or_else(fault)
            .map(Some)
    }
}

impl ConvertedColumn {
    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        let data = self.column.read(values)?;
        let Some(rules) = &self.rules else {
            let schema = Some(&self.column.schema);
            return self.convert(&self.prefix, schema, &data, values, scratch);
        };
        let Some((schema, data)) = rules.apply(&self.column.schema, data, values)? else {
            return Ok(Part::Null);
        };
        let prefix = match &schema {
            Some(Cow::Borrowed(_)) => Cow::Borrowed(&self.prefix),
            schema => Cow::Owned(self.converter.prefix(schema.as_deref())),
        };
        self.convert(&prefix, schema.as_deref(), &data, values, scratch)
    }

    fn convert<'t>(
        &self,
        prefix: &[u8],
        schema: Option<&Schema>,
        data: &Data<'_>,
        values: &[Value<'t>],
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, Fault> {
        // A borrowed text is the row's text.
        if matches!(data, Data::Text(Cow::Borrowed(_)))
            && self.converter.is_plain()
            && let Some(row) = value(values, self.column.index)?
        {
            return Ok(Part::Row(row));
        }
        let part = self.converter.convert(prefix, schema, data, scratch);
        part.map_err(|why| self.column.fault(why))
    }
}

/// A value with its schema, if it has one.
type SchemaAndData<'a> = (Option<Cow<'a, Schema>>, Data<'a>);

impl PayloadRules {
    /// Applies the rules to a payload; `None` is a tombstone.
    fn apply<'a>(
        &'a self,
        schema: &'a Schema,
        data: Data<'a>,
        values: &[Value<'a>],
    ) -> Result<Option<SchemaAndData<'a>>, Fault> {
        let is_empty = match &data {
            Data::Null => true,
            // Java's `String.trim` removes all characters up to the space, control characters
            // included.
            Data::Text(text) => text.chars().all(|c| c <= ' '),
            _ => false,
        };
        if is_empty && self.tombstone_on_empty {
            return Ok(None);
        }
        let expanded = match (&self.expand, &data) {
            (Some(expand), Data::Text(text)) => expand.expand(&self.name, text),
            _ => Expanded::Text,
        };
        let (schema, data) = match expanded {
            Expanded::Value(schema, data) => (Cow::Owned(schema), data),
            // A field of an envelope needs a schema, so the text keeps that of its column.
            Expanded::NoSchema if self.envelope.is_none() => return Ok(Some((None, data))),
            Expanded::NoSchema | Expanded::Text => (Cow::Borrowed(schema), data),
        };
        let (schema, data) = match &self.envelope {
            Some(envelope) => envelope.wrap(values, &schema, data)?,
            None => (schema, data),
        };
        Ok(Some((Some(schema), data)))
    }
}

impl Envelope {
    fn wrap<'a>(
        &'a self,
        values: &[Value<'a>],
        payload_schema: &Schema,
        payload: Data<'a>,
    ) -> Result<(Cow<'a, Schema>, Data<'a>), Fault> {
        let mut fields = vec![("payload".to_owned(), payload_schema.clone())];
        let mut data = vec![payload];
        for (name, column) in &self.fields {
            fields.push((name.clone(), column.schema.clone()));
            data.push(column.read(values)?);
        }
        let mut schema = Schema::new(SchemaType::Struct(fields));
        let (index, default) = &self.routed_by;
        let fault = |why| Fault::new(*index, why);
        let routed_by = match (value(values, *index)?, default) {
            (Some(text), _) => str::from_utf8(text).map_err(|_| fault(ValueError::NotUtf8))?,
            (None, Some(default)) => default,
            (None, None) => return Err(fault(ValueError::Null)),
        };
        schema.name = Some(Cow::Owned(format!("{}{routed_by}.Value", self.name)));
        if let Some(column) = &self.version
            && let Data::Int(version) = column.read(values)?
        {
            let version = i32::try_from(version);
            schema.version = Some(version.map_err(|_| column.fault(ValueError::NotANumber))?);
        }
        Ok((Cow::Owned(schema), Data::Struct(data)))
    }
}
