//! Values in the wire format of Confluent's Schema Registry: a zero byte, the id of the schema, the
//! body.
//!
//! Source: "Wire format" and "Subject name strategy" in Confluent's documentation of Schema
//! Registry. The body of a JSON Schema value is the route's JSON; the body of an Avro value is the
//! same JSON in Avro's binary encoding ([`avro`]).
//!
//! The caller supplies the schemas. For a subject without one the router returns
//! [`RouteError::UnknownSchema`](crate::RouteError::UnknownSchema);
//! [`Router::learn`](crate::Router::learn) adds the schema.

mod avro;

use std::collections::HashMap;
use std::fmt;
use std::str;
use std::sync::Arc;

use walrelay_pgoutput::Value;

pub use avro::SchemaProblem;

use crate::plan::{
    Columns, PlanColumns, PlanError, RouteError, SchemaMismatch, SchemaMismatchAt, Target,
};
use crate::render::template::{Compiler, Lookups, Template, Text};
use crate::value::Part;
use crate::value::json;

/// The encoding of values by schemas of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireFormat {
    /// Format of the body.
    pub format: ValueFormat,
    /// Strategy of naming subjects.
    pub subjects: SubjectNames,
    /// Template of the record's name, if the subjects contain that name.
    pub record: Option<Template>,
    /// Tables of the filter `lookup`.
    pub lookups: Lookups,
}

/// The format of a value's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueFormat {
    /// The route's JSON, which is not validated against the schema.
    Json,
    /// Avro's binary encoding.
    Avro,
}

/// The strategies of naming subjects, by their Confluent names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectNames {
    /// `TopicNameStrategy`: `<topic>-value`.
    Topic,
    /// `RecordNameStrategy`: `<record>`.
    Record,
    /// `TopicRecordNameStrategy`: `<topic>-<record>`.
    TopicRecord,
}

impl WireFormat {
    /// Returns the columns that the template of the record's name reads.
    pub fn columns(&self) -> Vec<&str> {
        self.record.iter().flat_map(Template::columns).collect()
    }

    /// Compiles the record's name for a table, if the subjects contain that name.
    pub(crate) fn compile(&self, columns: &mut Columns<'_>) -> Result<Option<Text>, PlanError> {
        let lookups = &self.lookups;
        let mut compiler = Compiler { columns, lookups };
        let record = self.record.as_ref();
        let record = record.map(|record| compiler.text(record, &Target::RecordName));
        record.transpose()
    }
}

/// The schema of a subject's values, compiled for encoding.
#[derive(Clone)]
pub struct ValueSchema {
    id: u32,
    may_change: bool,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Json,
    Avro(Arc<avro::Plan>),
}

impl ValueSchema {
    /// Creates a schema for JSON values; `id` is its id in the registry.
    pub fn json(id: u32) -> Self {
        Self {
            id,
            may_change: false,
            body: Body::Json,
        }
    }

    /// Compiles an Avro schema from its JSON; `id` is its id in the registry.
    ///
    /// # Errors
    /// The schema is invalid or not supported.
    pub fn avro(id: u32, schema: &str) -> Result<Self, SchemaProblem> {
        Ok(Self {
            id,
            may_change: false,
            body: Body::Avro(Arc::new(avro::plan(schema)?)),
        })
    }

    /// Marks the schema as the latest of its subject: a value that does not fit may fit a later
    /// schema.
    #[must_use]
    pub fn latest(mut self) -> Self {
        self.may_change = true;
        self
    }

    /// Returns the id of the schema in the registry.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the full name of the schema, if it is a named Avro schema.
    pub fn name(&self) -> Option<&str> {
        match &self.body {
            Body::Json => None,
            Body::Avro(plan) => plan.name.as_deref(),
        }
    }
}

impl fmt::Debug for ValueSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueSchema")
            .field("id", &self.id)
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// Encodes the values of a router's records by the schemas that it has learned.
pub(crate) struct Encoding {
    pub(crate) format: WireFormat,
    /// Subjects and the schemas of their values, in the order in which they were learned.
    schemas: Vec<(String, ValueSchema)>,
    /// Indexes into `schemas`, by subject.
    subjects: HashMap<String, usize>,
    /// Index of the schema of the last row.
    last: usize,
    /// Subject of the last row; empty if that row has none.
    pub(crate) subject: String,
}

impl Encoding {
    pub(crate) fn new(format: WireFormat) -> Self {
        Self {
            format,
            schemas: Vec::new(),
            subjects: HashMap::new(),
            last: 0,
            subject: String::new(),
        }
    }

    /// Sets the schema of a subject's values.
    pub(crate) fn learn(&mut self, subject: &str, schema: ValueSchema) {
        let known = self.subjects.get(subject).copied();
        let place = known.unwrap_or(self.schemas.len());
        match self.schemas.get_mut(place) {
            Some((_, known)) => *known = schema,
            None => self.schemas.push((subject.to_owned(), schema)),
        }
        self.subjects.insert(subject.to_owned(), place);
    }

    /// Replaces a value by its encoded form; NULL stays NULL.
    pub(crate) fn apply<'t>(
        &mut self,
        topic: &str,
        record: Option<&Text>,
        (values, columns): (&[Value<'t>], &PlanColumns),
        value: &mut Part<'t>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), RouteError> {
        let subject = &mut self.subject;
        subject.clear();
        if matches!(value, Part::Null | Part::Absent) {
            return Ok(());
        }
        if self.format.subjects != SubjectNames::Record {
            subject.push_str(topic);
            subject.push('-');
        }
        match record {
            Some(record) => {
                let part = record.render(values, scratch);
                let part = part.and_then(|part| part.require_text(record.index(), scratch));
                let part =
                    part.map_err(|fault| columns.error(fault, &Target::RecordName.into()))?;
                let name = part.resolve(scratch).map(str::from_utf8);
                subject.push_str(name.and_then(Result::ok).unwrap_or_default());
            }
            None => subject.push_str("value"),
        }
        // Consecutive rows often have the same subject: no lookup in the map is needed then.
        if self
            .schemas
            .get(self.last)
            .is_none_or(|(known, _)| known != subject)
        {
            self.last = self.subjects.get(subject).copied().unwrap_or(usize::MAX);
        }
        let subject = || self.subject.clone();
        let Some((_, schema)) = self.schemas.get(self.last) else {
            return Err(RouteError::UnknownSchema { subject: subject() });
        };
        let encoded = encode(schema, value, scratch);
        *value = encoded.map_err(|schema_mismatch| RouteError::SchemaMismatch {
            table: columns.table.clone(),
            subject: subject(),
            schema_mismatch,
            may_change: schema.may_change,
        })?;
        Ok(())
    }
}

/// Encodes a value by the schema, and appends the result to `scratch`.
pub(crate) fn encode<'t>(
    schema: &ValueSchema,
    value: &Part<'t>,
    scratch: &mut Vec<u8>,
) -> Result<Part<'t>, SchemaMismatch> {
    if let (Body::Avro(plan), Part::Row(bytes)) = (&schema.body, value) {
        let text = str::from_utf8(bytes).map_err(|_| SchemaMismatchAt::NotJson)?;
        let start = append_header(schema, scratch);
        plan.encode(text, scratch)?;
        return Ok(Part::since(start, scratch));
    }
    let text = value.resolve(scratch).unwrap_or_default();
    let text = str::from_utf8(text).map_err(|_| SchemaMismatchAt::NotJson)?;
    match &schema.body {
        Body::Json if json::is_json(text.as_bytes()) => {
            let start = append_header(schema, scratch);
            value.copy(0..value.len(), scratch);
            Ok(Part::since(start, scratch))
        }
        Body::Json => Err(SchemaMismatchAt::NotJson.into()),
        Body::Avro(plan) => {
            // `encode` cannot write to the scratch buffer, which it reads the text from.
            let mut out = Vec::with_capacity(text.len());
            plan.encode(text, &mut out)?;
            let start = append_header(schema, scratch);
            scratch.extend_from_slice(&out);
            Ok(Part::since(start, scratch))
        }
    }
}

/// Appends the header of the wire format; returns the offset of its start in `scratch`.
fn append_header(schema: &ValueSchema, scratch: &mut Vec<u8>) -> usize {
    let start = scratch.len();
    scratch.push(0);
    scratch.extend_from_slice(&schema.id.to_be_bytes());
    start
}
