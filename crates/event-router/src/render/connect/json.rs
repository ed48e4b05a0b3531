//! The envelope that Kafka Connect's `JsonConverter` writes around a value, with the value's
//! schema.

use std::io::Write as _;

use super::options::JsonOptions;
use super::schema::{Schema, SchemaType};
use super::text::{OBJECT, Style, sequence, string};

impl JsonOptions {
    /// Writes the bytes before the payload, for values of `schema`.
    pub(crate) fn prefix(self, schema: Option<&Schema>) -> Vec<u8> {
        let mut out = Vec::new();
        if self.schemas {
            out.extend_from_slice(b"{\"schema\":");
            match schema {
                Some(schema) => self.schema(schema, None, &mut out),
                None => out.extend_from_slice(b"null"),
            }
            out.extend_from_slice(b",\"payload\":");
        }
        out
    }

    /// Appends the bytes after the payload.
    pub(crate) fn suffix(self, out: &mut Vec<u8>) {
        if self.schemas {
            out.push(b'}');
        }
    }

    /// Appends a schema; `field` is the name of the struct's field that has it.
    fn schema(self, schema: &Schema, field: Option<&str>, out: &mut Vec<u8>) {
        let member = |name: &[u8], text: &str, out: &mut Vec<u8>| {
            out.extend_from_slice(name);
            string(text, out);
        };
        out.extend_from_slice(b"{\"type\":");
        out.extend_from_slice(match &schema.kind {
            SchemaType::Boolean => &b"\"boolean\""[..],
            SchemaType::Int16 => b"\"int16\"",
            SchemaType::Int32 => b"\"int32\"",
            SchemaType::Int64 => b"\"int64\"",
            SchemaType::Float32 => b"\"float\"",
            SchemaType::Float64 => b"\"double\"",
            SchemaType::String => b"\"string\"",
            SchemaType::Bytes => b"\"bytes\"",
            SchemaType::Array(_) => b"\"array\",\"items\":",
            SchemaType::Map => concat!(
                "\"map\",\"keys\":{\"type\":\"string\",\"optional\":false}",
                ",\"values\":{\"type\":\"string\",\"optional\":true}"
            )
            .as_bytes(),
            SchemaType::Struct(_) => b"\"struct\",\"fields\":",
        });
        match &schema.kind {
            SchemaType::Array(items) => self.schema(items, None, out),
            SchemaType::Struct(fields) => {
                sequence(fields, ["[", ",", "]"], out, |(name, of), out| {
                    self.schema(of, Some(name), out);
                });
            }
            _ => {}
        }
        let optional: &[u8] = if schema.optional { b"true" } else { b"false" };
        out.extend_from_slice(b",\"optional\":");
        out.extend_from_slice(optional);
        if let Some(name) = &schema.name {
            member(b",\"name\":", name, out);
        }
        if let Some(version) = schema.version {
            // Writing to a Vec does not fail.
            let _ = write!(out, ",\"version\":{version}");
        }
        if let Some(doc) = schema.doc {
            member(b",\"doc\":", doc, out);
        }
        if !schema.parameters.is_empty() {
            out.extend_from_slice(b",\"parameters\":");
            sequence(&schema.parameters, OBJECT, out, |(name, value), out| {
                string(name, out);
                out.push(b':');
                string(value, out);
            });
        }
        if let Some(default) = &schema.default {
            out.extend_from_slice(b",\"default\":");
            Style::Json(self).value(Some(schema), default, true, out);
        }
        if let Some(field) = field {
            member(b",\"field\":", field, out);
        }
        out.push(b'}');
    }
}
