//! Values in Confluent's wire format: a zero byte, the id of the schema, the body.
//!
//! Source: "Wire format" and "Subject name strategy" in Confluent's documentation of Schema Registry.
//! The body of a JSON Schema value is the JSON that the route makes, as it is; that of an Avro value is
//! the same JSON in Avro's binary encoding, by the schema ([`avro`]).
//!
//! Schemas come from outside: a router that meets a subject of which it knows none says so with
//! [`RouteError::UnknownSchema`](crate::RouteError::UnknownSchema), and goes on when it was told with
//! [`Router::learn`](crate::Router::learn).

mod avro;

use std::collections::HashMap;
use std::fmt;
use std::str;

use smallvec::{SmallVec, smallvec};
use walrelay_pgoutput::{Relation, Tuple, Value};

pub use avro::SchemaProblem;

use crate::plan::{
    Columns, PlanError, Render as _, Role, RouteError, SchemaMismatch, SchemaMismatchAt, Slots,
    Target,
};
use crate::render::template::{Compiler, Lookups, Template, Text};
use crate::value::json;
use crate::value::{Fault, Part, ValueError};

/// How values are encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireFormat {
    /// The format of the body.
    pub format: ValueFormat,
    /// What the subjects of schemas are called.
    pub subjects: SubjectNames,
    /// The template of the record's name, for those subjects that have it.
    pub record: Option<Template>,
    /// Tables of the filter `lookup`.
    pub lookups: Lookups,
}

/// The format of a value's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueFormat {
    /// JSON, as the route makes it. It is not compared with the schema.
    Json,
    /// Avro's binary encoding.
    Avro,
}

/// The strategies by their Confluent names.
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
    /// The columns that its template names.
    pub fn columns(&self) -> Vec<&str> {
        self.record.iter().flat_map(Template::columns).collect()
    }

    pub(crate) fn compile(&self, relation: &Relation<'_>) -> Result<Option<RecordName>, PlanError> {
        let Some(template) = &self.record else {
            return Ok(None);
        };
        let mut columns = Columns::of(relation);
        let mut compiler = Compiler {
            columns: &mut columns,
            lookups: &self.lookups,
        };
        let text = compiler.text(template, &Target::RecordName)?;
        Ok(Some(RecordName {
            text,
            slots: columns.finish(),
        }))
    }
}

/// What makes the name of a record, for one table.
#[derive(Debug)]
pub(crate) struct RecordName {
    text: Text,
    slots: Slots,
}

impl RecordName {
    /// Appends the name.
    fn render(
        &self,
        tuple: &Tuple<'_>,
        scratch: &mut Vec<u8>,
        subject: &mut String,
    ) -> Result<(), RouteError> {
        let mut values: SmallVec<[Value<'_>; 4]> = smallvec![Value::Null; self.slots.names.len()];
        self.slots.values(tuple, &mut values);
        let fault = |fault| self.slots.error(fault, &Role::Template(Target::RecordName));
        let part = self.text.render(&values, scratch).map_err(fault)?;
        let why = |why| fault(Fault::new(self.text.slot(), why));
        let text = part.resolve(scratch).ok_or_else(|| why(ValueError::Null))?;
        if text.is_empty() {
            return Err(why(ValueError::Empty));
        }
        subject.push_str(str::from_utf8(text).map_err(|_| why(ValueError::NotUtf8))?);
        Ok(())
    }
}

/// The schema of a subject's values, ready to encode by.
#[derive(Clone)]
pub struct ValueSchema {
    id: u32,
    may_change: bool,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Json,
    Avro(avro::Encoder),
}

impl ValueSchema {
    /// Of JSON values.
    pub fn json(id: u32) -> Self {
        Self {
            id,
            may_change: false,
            body: Body::Json,
        }
    }

    /// Of Avro values; `schema` is the schema's JSON. Compiles it.
    ///
    /// # Errors
    /// It is no schema that can be encoded by.
    pub fn avro(id: u32, schema: &str) -> Result<Self, SchemaProblem> {
        Ok(Self {
            id,
            may_change: false,
            body: Body::Avro(avro::Encoder::compile(schema)?),
        })
    }

    /// It was the latest of its subject, and there may be a later one by now: a value that does not fit
    /// may fit that.
    #[must_use]
    pub fn latest(mut self) -> Self {
        self.may_change = true;
        self
    }

    /// With another id.
    #[must_use]
    pub fn with_id(mut self, id: u32) -> Self {
        self.id = id;
        self
    }

    /// The schema's id in the registry.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The full name of an Avro schema that has one.
    pub fn name(&self) -> Option<&str> {
        match &self.body {
            Body::Json => None,
            Body::Avro(encoder) => encoder.name(),
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

/// What a router knows of schemas.
pub(crate) struct Encoding {
    format: WireFormat,
    schemas: Vec<ValueSchema>,
    /// Places in `schemas`.
    subjects: HashMap<Box<str>, usize>,
    /// The subject of the row that is read; kept so that its memory is.
    subject: String,
    /// That of the row before, and the place of its schema.
    before: String,
    place: Option<usize>,
}

impl Encoding {
    pub(crate) fn new(format: WireFormat) -> Self {
        Self {
            format,
            schemas: Vec::new(),
            subjects: HashMap::new(),
            subject: String::new(),
            before: String::new(),
            place: None,
        }
    }

    pub(crate) fn format(&self) -> &WireFormat {
        &self.format
    }

    /// The schema of a subject is this one from now on.
    pub(crate) fn learn(&mut self, subject: &str, schema: ValueSchema) {
        let known = self.subjects.get(subject).copied();
        let place = known.unwrap_or(self.schemas.len());
        match self.schemas.get_mut(place) {
            Some(known) => *known = schema,
            None => self.schemas.push(schema),
        }
        self.subjects.insert(subject.into(), place);
        self.place = None;
    }

    /// The subject that was looked at last.
    pub(crate) fn subject(&self) -> &str {
        &self.subject
    }

    /// Replaces a value by its encoded form. NULL stays NULL.
    pub(crate) fn apply<'t>(
        &mut self,
        topic: &str,
        record: Option<&RecordName>,
        (tuple, table): (&Tuple<'t>, &str),
        value: &mut Part<'t>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), RouteError> {
        if matches!(value, Part::Null | Part::Absent) {
            self.subject.clear();
            return Ok(());
        }
        self.name(topic, record, tuple, scratch)?;
        let schema = match self.place {
            Some(place) if self.subject == self.before => self.schemas.get(place),
            _ => {
                self.place = self.subjects.get(self.subject.as_str()).copied();
                self.before.clone_from(&self.subject);
                self.place.and_then(|place| self.schemas.get(place))
            }
        };
        let Some(schema) = schema else {
            return Err(RouteError::UnknownSchema {
                subject: self.subject.clone(),
            });
        };
        let schema_mismatch = |schema_mismatch: SchemaMismatch| RouteError::SchemaMismatch {
            table: table.to_owned(),
            subject: self.subject.clone(),
            schema_mismatch,
            may_change: schema.may_change,
        };
        *value = encode(schema, value, scratch).map_err(schema_mismatch)?;
        Ok(())
    }

    fn name(
        &mut self,
        topic: &str,
        record: Option<&RecordName>,
        tuple: &Tuple<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), RouteError> {
        let subject = &mut self.subject;
        subject.clear();
        if self.format.subjects != SubjectNames::Record {
            subject.push_str(topic);
            subject.push('-');
        }
        match record {
            Some(record) => record.render(tuple, scratch, subject)?,
            None => subject.push_str("value"),
        }
        Ok(())
    }
}

/// Appends what a JSON text is by the schema. For fuzzing.
pub(crate) fn encode_json(
    schema: &ValueSchema,
    json: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), SchemaMismatch> {
    encode(schema, &Part::Row(json), out).map(drop)
}

fn encode<'t>(
    schema: &ValueSchema,
    value: &Part<'t>,
    scratch: &mut Vec<u8>,
) -> Result<Part<'t>, SchemaMismatch> {
    if let (Body::Avro(encoder), Part::Row(bytes)) = (&schema.body, value) {
        let text = str::from_utf8(bytes).map_err(|_| SchemaMismatchAt::NotJson)?;
        let start = begin(schema, scratch);
        encoder.encode(text, scratch)?;
        return Ok(Part::since(start, scratch));
    }
    let text = value.resolve(scratch).unwrap_or_default();
    let text = str::from_utf8(text).map_err(|_| SchemaMismatchAt::NotJson)?;
    // A value that was rendered lies in the buffer that is written to.
    let mut out = Vec::new();
    match &schema.body {
        Body::Json if !json::is_json(text.as_bytes()) => {
            return Err(SchemaMismatchAt::NotJson.into());
        }
        Body::Json => {}
        Body::Avro(encoder) => {
            out.reserve(text.len());
            encoder.encode(text, &mut out)?;
        }
    }
    let start = begin(schema, scratch);
    match &schema.body {
        Body::Json => value.copy(0..value.len(), scratch),
        Body::Avro(_) => scratch.extend_from_slice(&out),
    }
    Ok(Part::since(start, scratch))
}

/// The head of a value: a zero byte, the id. Gives its place.
fn begin(schema: &ValueSchema, scratch: &mut Vec<u8>) -> usize {
    let start = scratch.len();
    scratch.push(0);
    scratch.extend_from_slice(&schema.id.to_be_bytes());
    start
}
