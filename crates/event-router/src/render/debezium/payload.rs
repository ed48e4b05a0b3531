//! The record's value where it is more than the payload column's text: expanded, in an envelope, or
//! a tombstone.

use std::borrow::Cow;
use std::str;

use walrelay_pgoutput::Value;

use super::expand::{Expand, Expanded};
use super::field::read;
use crate::plan::Render;
use crate::render::connect::schema::{Data, Kind, Schema};
use crate::render::connect::{ColumnType, Converter};
use crate::value::{Fault, Part, ValueError, value};

/// What makes the value of a record.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) slot: usize,
    /// The column's name, which is that of the root of what is expanded.
    pub(crate) name: Box<str>,
    pub(crate) column: ColumnType,
    pub(crate) converter: Converter,
    pub(crate) tombstone_on_empty: bool,
    pub(crate) expand: Option<Expand>,
    pub(crate) envelope: Option<Envelope>,
    /// What stands before a payload that is neither expanded nor in an envelope.
    pub(crate) prefix: Vec<u8>,
}

/// A struct with the payload and other columns.
#[derive(Debug)]
pub(crate) struct Envelope {
    /// `<topic.prefix>.<schema>.<table>.`, before the routing value.
    pub(crate) name: Box<str>,
    /// Slot and default of the routing value.
    pub(crate) routed_by: (usize, Option<Box<str>>),
    /// Slot of the version of the schema.
    pub(crate) version: Option<(usize, ColumnType)>,
    /// Slot, name and type.
    pub(crate) fields: Vec<(usize, String, ColumnType)>,
}

impl Render for Payload {
    fn slot(&self) -> usize {
        self.slot
    }

    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        let data = read(values, self.slot, &self.column)?;
        let is_empty = match &data {
            Data::Null => true,
            // `String.trim` takes away all controls.
            Data::Text(text) => text.chars().all(|c| c <= ' '),
            _ => false,
        };
        if is_empty && self.tombstone_on_empty {
            return Ok(Part::Null);
        }
        let expanded = match (&self.expand, &data) {
            (Some(expand), Data::Text(text)) => expand.expand(&self.name, text),
            _ => Expanded::Text,
        };
        let (schema, data) = match expanded {
            Expanded::Value(schema, data) => (Some(Cow::Owned(schema)), data),
            // Connect has no fields without a schema: in an envelope the text keeps its own.
            Expanded::NoSchema if self.envelope.is_none() => (None, data),
            Expanded::NoSchema | Expanded::Text => (Some(Cow::Borrowed(&self.column.schema)), data),
        };
        let (schema, data) = match (&self.envelope, &schema) {
            (Some(envelope), Some(payload)) => {
                let (schema, data) = envelope.wrap(values, payload, data)?;
                (Some(Cow::Owned(schema)), data)
            }
            _ => (schema, data),
        };
        let prefix = match &schema {
            Some(Cow::Borrowed(_)) => Cow::Borrowed(&self.prefix),
            schema => Cow::Owned(self.converter.prefix(schema.as_deref())),
        };
        let part = self
            .converter
            .convert(&prefix, schema.as_deref(), &data, scratch);
        part.map_err(|why| Fault::new(self.slot, why))
    }
}

impl Envelope {
    fn wrap<'a>(
        &'a self,
        values: &[Value<'a>],
        payload_schema: &Schema,
        payload: Data<'a>,
    ) -> Result<(Schema, Data<'a>), Fault> {
        let mut fields = vec![("payload".to_owned(), payload_schema.clone())];
        let mut data = vec![payload];
        for (slot, name, column) in &self.fields {
            fields.push((name.clone(), column.schema.clone()));
            data.push(read(values, *slot, column)?);
        }
        let mut schema = Schema::of(Kind::Struct(fields));
        let (slot, default) = &self.routed_by;
        let fault = |why| Fault::new(*slot, why);
        let routed_by = match (value(values, *slot)?, default) {
            (Some(text), _) => str::from_utf8(text).map_err(|_| fault(ValueError::NotUtf8))?,
            (None, Some(default)) => default,
            (None, None) => return Err(fault(ValueError::Null)),
        };
        schema.name = Some(Cow::Owned(format!("{}{routed_by}.Value", self.name)));
        if let Some((slot, column)) = &self.version
            && let Data::Int(version) = read(values, *slot, column)?
        {
            let version = i32::try_from(version);
            schema.version = Some(version.map_err(|_| Fault::new(*slot, ValueError::NotANumber))?);
        }
        Ok((schema, Data::Struct(data)))
    }
}
