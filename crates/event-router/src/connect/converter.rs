//! Kafka Connect's converters: a value and its schema to bytes.

use super::json::JsonOptions;
use super::schema::{Data, Kind, Schema};
use super::text;

/// How a key, a value or a header becomes bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Converter {
    /// `StringConverter`.
    String,
    /// `JsonConverter`.
    Json(JsonOptions),
    /// `ByteArrayConverter`: bytes, and nothing else.
    ByteArray,
    /// Debezium's `BinaryDataConverter`: bytes, and all else by `delegate.converter.type`.
    BinaryData(Option<Box<Converter>>),
    /// `SimpleHeaderConverter`.
    Simple,
}

/// The converter takes bytes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotBytes;

/// What became of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Converted {
    /// Kafka's null.
    Null,
    /// Bytes were written.
    Bytes,
}

impl Converter {
    /// Whether it writes a text as it is.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::String | Self::Simple)
    }

    /// What always stands before a value of this schema: written once per table.
    pub(crate) fn prefix(&self, schema: Option<&Schema>) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Json(options) => options.prefix(schema, &mut out),
            Self::BinaryData(Some(delegate)) => out = delegate.prefix(schema),
            _ => {}
        }
        out
    }

    /// Writes a value, whose `prefix` was made of the same schema. No schema and null is a
    /// tombstone.
    pub(crate) fn convert(
        &self,
        prefix: &[u8],
        schema: Option<&Schema>,
        data: &Data<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Converted, NotBytes> {
        if data.is_null() && schema.is_none() {
            return Ok(Converted::Null);
        }
        match self {
            Self::Json(options) => {
                out.extend_from_slice(prefix);
                options.value(schema, data, out);
                options.suffix(out);
                Ok(Converted::Bytes)
            }
            Self::String | Self::Simple if data.is_null() => Ok(Converted::Null),
            Self::String => {
                text::to_string(schema, data, out);
                Ok(Converted::Bytes)
            }
            Self::Simple => {
                text::simple(schema, data, false, out);
                Ok(Converted::Bytes)
            }
            Self::ByteArray => bytes(schema, data, out),
            Self::BinaryData(delegate) => match (bytes(schema, data, out), delegate) {
                (Err(NotBytes), Some(delegate)) => delegate.convert(prefix, schema, data, out),
                (converted, _) => converted,
            },
        }
    }
}

fn is_bytes(schema: Option<&Schema>) -> bool {
    schema.is_some_and(|schema| schema.kind == Kind::Bytes)
}

fn bytes(
    schema: Option<&Schema>,
    data: &Data<'_>,
    out: &mut Vec<u8>,
) -> Result<Converted, NotBytes> {
    match data {
        Data::Bytes(bytes) => {
            out.extend_from_slice(bytes);
            Ok(Converted::Bytes)
        }
        Data::Null if is_bytes(schema) => Ok(Converted::Null),
        _ => Err(NotBytes),
    }
}
