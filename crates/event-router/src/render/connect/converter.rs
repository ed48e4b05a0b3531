//! Kafka Connect's converters, which turn a value with its schema into bytes.

use super::options::JsonOptions;
use super::schema::{Data, Schema, SchemaType};
use super::text::Style;
use crate::value::{Part, ValueError};

/// A converter of Kafka Connect, for keys, values or headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Converter {
    /// Kafka Connect's `StringConverter`.
    String,
    /// Kafka Connect's `JsonConverter`.
    Json(JsonOptions),
    /// `ByteArrayConverter`, which accepts bytes only.
    ByteArray,
    /// Debezium's `BinaryDataConverter`: writes bytes itself, other values by
    /// `delegate.converter.type`.
    BinaryData(Option<Box<Converter>>),
    /// Kafka Connect's `SimpleHeaderConverter`.
    Simple,
}

impl Converter {
    /// Returns true if texts are written unchanged.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::String | Self::Simple)
    }

    /// Returns the bytes before each value of this schema. Made once per table.
    pub(crate) fn prefix(&self, schema: Option<&Schema>) -> Vec<u8> {
        match self {
            Self::Json(options) => options.prefix(schema),
            Self::BinaryData(Some(delegate)) => delegate.prefix(schema),
            _ => Vec::new(),
        }
    }

    /// Appends a value. `prefix` was made for the same schema. NULL without a schema is a
    /// tombstone.
    pub(crate) fn convert<'t>(
        &self,
        prefix: &[u8],
        schema: Option<&Schema>,
        data: &Data<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Part<'t>, ValueError> {
        let start = out.len();
        match (self, data) {
            (_, Data::Null) if schema.is_none() => return Ok(Part::Null),
            (Self::String | Self::Simple, Data::Null) => return Ok(Part::Null),
            (Self::Json(options), data) => {
                out.extend_from_slice(prefix);
                Style::Json(*options).value(schema, data, true, out);
                options.suffix(out);
            }
            (Self::String, data) => Style::Java.value(schema, data, false, out),
            (Self::Simple, data) => Style::Simple.value(schema, data, false, out),
            (_, Data::Bytes(bytes)) => out.extend_from_slice(bytes),
            (_, Data::Null) if schema.is_some_and(|schema| schema.kind == SchemaType::Bytes) => {
                return Ok(Part::Null);
            }
            (Self::BinaryData(Some(delegate)), data) => {
                return delegate.convert(prefix, schema, data, out);
            }
            (Self::ByteArray | Self::BinaryData(None), _) => return Err(ValueError::NotBytes),
        }
        Ok(Part::since(start, out))
    }
}
