//! Records as CloudEvents.
//!
//! Source: "CloudEvents - Version 1.0.2", its JSON event format and its Kafka protocol binding. In
//! binary mode the attributes are headers `ce_…` beside a value that stays what the route makes of it;
//! in structured mode the value is a JSON object that has the attributes and the data in it. Topic,
//! key and the route's own headers stay what they are in both.

use std::str;

use smallvec::{SmallVec, smallvec};
use walrelay_pgoutput::{Relation, Tuple, Value};

use crate::plan::{Columns, Plan, PlanError, Render as _, Role, RouteError, Slots, Target};
use crate::render::template::{Compiler, Lookups, Template, Text, base64};
use crate::value::{Event, Fault, Part, ValueError};
use crate::value::{json, time};

/// The `content-type` of a value in structured mode.
const STRUCTURED: &[u8] = b"application/cloudevents+json; charset=UTF-8";
const SPEC_VERSION: &[u8] = b"1.0";

/// How a record is a CloudEvent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvents {
    /// Where the attributes are.
    pub mode: CloudEventMode,
    /// `id`; `None` for the route's own event id.
    pub id: Option<Template>,
    /// `source`, a URI reference.
    pub source: Template,
    /// `type`.
    pub kind: Template,
    /// `time`: a column of Postgres' date and time types, or what looks like one; `None` for the time
    /// of the commit.
    pub time: Option<Template>,
    /// `subject`; left out where it is NULL.
    pub subject: Option<Template>,
    /// `datacontenttype`: what the route's value is. It decides how a value stands in a structured
    /// event: JSON as it is, text as a string, else in base64.
    pub content_type: String,
    /// Tables of the filter `lookup`.
    pub lookups: Lookups,
}

/// The content modes of the Kafka protocol binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudEventMode {
    /// Attributes in headers, the value as it is.
    Binary,
    /// Attributes and value in one JSON object.
    Structured,
}

/// The same for one table.
#[derive(Debug)]
pub(crate) struct CloudPlan {
    mode: CloudEventMode,
    slots: Slots,
    id: Id,
    source: Text,
    kind: Text,
    time: Option<Text>,
    subject: Option<Text>,
    content_type: Box<str>,
    data: Data,
}

#[derive(Debug)]
enum Id {
    Text(Text),
    /// The column of the route's event id.
    Slot(usize),
}

/// What the data is in a structured event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    Json,
    Text,
    Bytes,
}

/// The names of the headers, in their order.
const BINARY: [&str; 7] = [
    "ce_specversion",
    "ce_id",
    "ce_source",
    "ce_type",
    "ce_time",
    "ce_subject",
    CONTENT_TYPE,
];

/// The attributes that events differ in, in the order of their headers.
const ATTRIBUTES: [&str; 5] = ["id", "source", "type", "time", "subject"];

/// The header of the media type, in both modes.
const CONTENT_TYPE: &str = "content-type";

impl CloudEvents {
    /// The columns that its templates name.
    pub fn columns(&self) -> Vec<&str> {
        let templates = [Some(&self.source), Some(&self.kind)];
        let optional = [self.id.as_ref(), self.time.as_ref(), self.subject.as_ref()];
        let templates = templates.into_iter().chain(optional).flatten();
        templates.flat_map(Template::columns).collect()
    }

    /// Whether the event's own headers include one of this name.
    pub fn has_header(&self, name: &str) -> bool {
        match self.mode {
            CloudEventMode::Binary => BINARY.contains(&name),
            CloudEventMode::Structured => name == CONTENT_TYPE,
        }
    }

    pub(crate) fn compile(
        &self,
        relation: &Relation<'_>,
        plan: &Plan,
    ) -> Result<CloudPlan, PlanError> {
        let mut columns = Columns::of(relation);
        let id = match (&self.id, plan.event_id) {
            (None, Some(slot)) => {
                let name = plan.slots.names.get(slot).map_or("", |name| &**name);
                columns.find(name).map(|found| Id::Slot(found.slot))
            }
            _ => None,
        };
        let mut compiler = Compiler {
            columns: &mut columns,
            lookups: &self.lookups,
        };
        let mut text = |template: &Template, attribute| {
            compiler.text(template, &Target::CloudEvent(attribute))
        };
        let id = match (id, &self.id) {
            (Some(id), _) => id,
            (None, Some(template)) => Id::Text(text(template, "id")?),
            (None, None) => {
                let role = Role::Template(Target::CloudEvent("id"));
                return Err(columns.missing("id", role));
            }
        };
        let source = text(&self.source, "source")?;
        let kind = text(&self.kind, "type")?;
        let mut optional = |template: &Option<Template>, attribute| match template {
            Some(template) => text(template, attribute).map(Some),
            None => Ok(None),
        };
        let time = optional(&self.time, "time")?;
        let subject = optional(&self.subject, "subject")?;
        Ok(CloudPlan {
            mode: self.mode,
            id,
            source,
            kind,
            time,
            subject,
            data: Data::of(&self.content_type),
            content_type: self.content_type.as_str().into(),
            slots: columns.finish(),
        })
    }
}

impl Data {
    /// By a media type (RFC 2045), parameters aside.
    fn of(content_type: &str) -> Self {
        let kind = content_type.split(';').next().unwrap_or_default();
        let kind = kind.trim().to_ascii_lowercase();
        let json = kind.ends_with("/json") || kind.ends_with("+json");
        if json {
            Self::Json
        } else if kind.starts_with("text/") {
            Self::Text
        } else {
            Self::Bytes
        }
    }
}

/// The values of the [`ATTRIBUTES`] of one event; absent is one that it has not.
type Attributes<'t> = [Part<'t>; ATTRIBUTES.len()];

/// The headers that come of an event: their names, by place in [`CloudPlan::header`], and values.
pub(crate) type CloudHeaders<'t> = SmallVec<[Part<'t>; BINARY.len()]>;

impl CloudPlan {
    /// The name of the header at this place.
    pub(crate) fn header(&self, place: usize) -> &'static str {
        match self.mode {
            CloudEventMode::Binary => BINARY.get(place).copied().unwrap_or_default(),
            CloudEventMode::Structured => CONTENT_TYPE,
        }
    }

    /// Turns a route's value into an event's, and gives the headers that go with it.
    pub(crate) fn apply<'t>(
        &self,
        tuple: &Tuple<'t>,
        event: &Event,
        value: &mut Part<'t>,
        scratch: &mut Vec<u8>,
    ) -> Result<CloudHeaders<'t>, RouteError> {
        let mut values: SmallVec<[Value<'t>; 6]> = smallvec![Value::Null; self.slots.names.len()];
        self.slots.values(tuple, &mut values);
        let attributes = self.attributes(&values, event, scratch)?;
        match self.mode {
            CloudEventMode::Binary => {
                let mut headers = smallvec![Part::appended(SPEC_VERSION, scratch)];
                headers.extend(attributes);
                headers.push(Part::appended(self.content_type.as_bytes(), scratch));
                Ok(headers)
            }
            CloudEventMode::Structured => {
                let data = self
                    .data(value, scratch)
                    .map_err(|why| self.fault(Fault::new(usize::MAX, why), Target::Value))?;
                *value = self.structured(&attributes, &data, scratch);
                Ok(smallvec![Part::appended(STRUCTURED, scratch)])
            }
        }
    }

    fn attributes<'t>(
        &self,
        values: &[Value<'t>],
        event: &Event,
        scratch: &mut Vec<u8>,
    ) -> Result<Attributes<'t>, RouteError> {
        let mut needed = |text: &Text, attribute| {
            let part = text.render(values, scratch);
            let part = part.and_then(|part| filled(part, text.slot(), scratch));
            part.map_err(|fault| self.fault(fault, Target::CloudEvent(attribute)))
        };
        let source = needed(&self.source, "source")?;
        let kind = needed(&self.kind, "type")?;
        let id = match &self.id {
            Id::Text(text) => needed(text, "id")?,
            Id::Slot(slot) => {
                let value = crate::value::value(values, *slot);
                let part = value.map(|value| value.map_or(Part::Null, Part::Row));
                let part = part.and_then(|part| filled(part, *slot, scratch));
                part.map_err(|fault| self.fault(fault, Target::CloudEvent("id")))?
            }
        };
        let subject = match &self.subject {
            None => Part::Absent,
            Some(text) => {
                let fault = |fault| self.fault(fault, Target::CloudEvent("subject"));
                let part = text.render(values, scratch).map_err(fault)?;
                match part.resolve(scratch) {
                    None => Part::Absent,
                    Some(_) => filled(part, text.slot(), scratch).map_err(fault)?,
                }
            }
        };
        let time = match &self.time {
            None => Part::printed(event.commit_time, scratch),
            Some(text) => {
                let fault = |fault| self.fault(fault, Target::CloudEvent("time"));
                timestamp(text, values, scratch).map_err(fault)?
            }
        };
        Ok([id, source, kind, time, subject])
    }

    /// The value as it stands in the object.
    fn data<'t>(&self, value: &Part<'t>, scratch: &mut Vec<u8>) -> Result<Part<'t>, ValueError> {
        let Some(bytes) = value.resolve(scratch) else {
            return Ok(Part::Absent);
        };
        match self.data {
            Data::Json if !json::is_json(bytes) => Err(ValueError::NotJson),
            Data::Text if str::from_utf8(bytes).is_err() => Err(ValueError::NotUtf8),
            Data::Json | Data::Text => Ok(value.clone()),
            Data::Bytes => Ok(base64(value, scratch)),
        }
    }

    fn structured<'t>(
        &self,
        attributes: &Attributes<'t>,
        data: &Part<'t>,
        scratch: &mut Vec<u8>,
    ) -> Part<'t> {
        let start = scratch.len();
        scratch.extend_from_slice(b"{\"specversion\":\"1.0\"");
        for (name, part) in ATTRIBUTES.into_iter().zip(attributes) {
            if !matches!(part, Part::Absent) {
                member(name, scratch);
                json::string(part, scratch);
            }
        }
        if !matches!(data, Part::Absent) {
            member("datacontenttype", scratch);
            json::string(&Part::Row(self.content_type.as_bytes()), scratch);
            match self.data {
                Data::Json => {
                    member("data", scratch);
                    data.copy(0..data.len(), scratch);
                }
                Data::Text => {
                    member("data", scratch);
                    json::string(data, scratch);
                }
                Data::Bytes => {
                    member("data_base64", scratch);
                    json::string(data, scratch);
                }
            }
        }
        scratch.push(b'}');
        Part::since(start, scratch)
    }

    #[cold]
    fn fault(&self, fault: Fault, target: Target) -> RouteError {
        self.slots.error(fault, &Role::Template(target))
    }
}

/// An attribute is a text, and not an empty one.
fn filled<'t>(part: Part<'t>, slot: usize, scratch: &[u8]) -> Result<Part<'t>, Fault> {
    let why = match part.resolve(scratch) {
        None => ValueError::Null,
        Some([]) => ValueError::Empty,
        Some(bytes) if str::from_utf8(bytes).is_err() => ValueError::NotUtf8,
        Some(_) => return Ok(part),
    };
    Err(Fault::new(slot, why))
}

/// RFC 3339: with an offset, which is UTC where Postgres gives none.
fn timestamp<'t>(
    text: &Text,
    values: &[Value<'t>],
    scratch: &mut Vec<u8>,
) -> Result<Part<'t>, Fault> {
    let part = text.render(values, scratch)?;
    let fault = || Fault::new(text.slot(), ValueError::NotATime);
    let Some(bytes) = part.resolve(scratch) else {
        return Ok(Part::Absent);
    };
    // At most a few dozen bytes: what Postgres prints of a point in time.
    let mut copy: SmallVec<[u8; 64]> = SmallVec::new();
    copy.extend_from_slice(bytes.get(..64).unwrap_or(bytes));
    let start = scratch.len();
    if !time::iso(&copy, scratch) || scratch.get(start) == Some(&b'-') {
        return Err(fault());
    }
    let made = scratch.get(start..).unwrap_or_default();
    if !made.contains(&b'T') {
        scratch.extend_from_slice(b"T00:00:00Z");
    } else if !made.ends_with(b"Z") && !made.iter().rev().take(6).any(|b| matches!(b, b'+' | b'-'))
    {
        scratch.push(b'Z');
    }
    Ok(Part::since(start, scratch))
}

/// `,"name":`. Names need no escape.
fn member(name: &str, scratch: &mut Vec<u8>) {
    scratch.extend_from_slice(b",\"");
    scratch.extend_from_slice(name.as_bytes());
    scratch.extend_from_slice(b"\":");
}
