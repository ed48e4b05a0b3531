//! Turns records into CloudEvents.
//!
//! Source: "CloudEvents - Version 1.0.2", with its JSON event format and its Kafka protocol
//! binding. In binary mode the attributes are headers `ce_…` beside the route's value. In
//! structured mode the value is a JSON object with the attributes and the data. Topic, key and the
//! route's own headers are the same in both modes.

use std::str;

use smallvec::{SmallVec, smallvec};
use walrelay_pgoutput::Value;

use crate::plan::{Columns, Plan, PlanError, Target};
use crate::render::template::{Compiler, Lookups, Template, Text, base64};
use crate::value::{ColumnIndex, Event, Fault, Part, ValueError};
use crate::value::{json, time};

/// The `content-type` of a value in structured mode.
const STRUCTURED: &[u8] = b"application/cloudevents+json; charset=UTF-8";
const SPEC_VERSION: &[u8] = b"1.0";

/// The rules by which records become CloudEvents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvents {
    /// Content mode, which decides where the attributes are.
    pub mode: CloudEventMode,
    /// Template of `id`; `None` for the route's event id.
    pub id: Option<Template>,
    /// Template of `source`, a URI reference.
    pub source: Template,
    /// Template of `type`.
    pub kind: Template,
    /// Template of `time`, whose text is a date or time as Postgres writes it; `None` for the
    /// commit time.
    pub time: Option<Template>,
    /// Template of `subject`; a NULL leaves the attribute out.
    pub subject: Option<Template>,
    /// `datacontenttype`, the media type of the route's value. In structured mode JSON is embedded
    /// unchanged, text as a string, other values in base64.
    pub content_type: String,
    /// Tables of the filter `lookup`.
    pub lookups: Lookups,
}

/// The content modes of the Kafka protocol binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudEventMode {
    /// Attributes in headers, the value unchanged.
    Binary,
    /// Attributes and value in one JSON object.
    Structured,
}

/// [`CloudEvents`], compiled for one table.
pub(crate) struct CloudPlan {
    mode: CloudEventMode,
    /// The attributes in the order of [`ATTRIBUTES`].
    attributes: [Attribute; ATTRIBUTES.len()],
    content_type: Vec<u8>,
    data: Data,
}

enum Attribute {
    Absent,
    Text(Text),
    /// The column of the route's event id.
    Column(ColumnIndex),
    CommitTime,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Json,
    Text,
    Bytes,
}

const BINARY: [&str; 7] = [
    "ce_specversion",
    "ce_id",
    "ce_source",
    "ce_type",
    "ce_time",
    "ce_subject",
    CONTENT_TYPE,
];

/// The attributes whose values differ between events, in the order of their headers.
const ATTRIBUTES: [&str; 5] = ["id", "source", "type", TIME, SUBJECT];
const TIME: &str = "time";
const SUBJECT: &str = "subject";

/// Name of the header with the media type, in both modes.
const CONTENT_TYPE: &str = "content-type";

impl CloudEvents {
    /// Returns the templates in the order of [`ATTRIBUTES`].
    fn templates(&self) -> [Option<&Template>; ATTRIBUTES.len()] {
        let (source, kind) = (Some(&self.source), Some(&self.kind));
        let [id, time, subject] = [&self.id, &self.time, &self.subject].map(Option::as_ref);
        [id, source, kind, time, subject]
    }

    /// Returns the columns that the templates read.
    pub fn columns(&self) -> Vec<&str> {
        let templates = self.templates().into_iter().flatten();
        templates.flat_map(Template::columns).collect()
    }

    /// Returns true if a CloudEvent of this mode has a header of this name.
    pub fn has_header(&self, name: &str) -> bool {
        match self.mode {
            CloudEventMode::Binary => BINARY.contains(&name),
            CloudEventMode::Structured => name == CONTENT_TYPE,
        }
    }

    pub(crate) fn compile(
        &self,
        columns: &mut Columns<'_>,
        plan: &Plan,
    ) -> Result<CloudPlan, PlanError> {
        let lookups = &self.lookups;
        let mut compiler = Compiler { columns, lookups };
        let mut attributes = [const { Attribute::Absent }; ATTRIBUTES.len()];
        let named = ATTRIBUTES.into_iter().zip(self.templates());
        for ((name, template), attribute) in named.zip(&mut attributes) {
            let target = Target::CloudEvent(name);
            *attribute = match (template, plan.event_id) {
                (Some(template), _) => Attribute::Text(compiler.text(template, &target)?),
                (None, _) if name == TIME => Attribute::CommitTime,
                (None, _) if name == SUBJECT => Attribute::Absent,
                (None, Some(index)) => Attribute::Column(index),
                (None, None) => return Err(compiler.columns.missing(name, target.into())),
            };
        }
        Ok(CloudPlan {
            mode: self.mode,
            attributes,
            data: Data::from_content_type(&self.content_type),
            content_type: self.content_type.as_bytes().into(),
        })
    }
}

impl Data {
    /// Returns the kind of data of a media type (RFC 2045); its parameters are ignored.
    fn from_content_type(content_type: &str) -> Self {
        let kind = content_type.split(';').next().unwrap_or_default();
        let kind = kind.trim().to_ascii_lowercase();
        if kind.ends_with("/json") || kind.ends_with("+json") {
            Self::Json
        } else if kind.starts_with("text/") {
            Self::Text
        } else {
            Self::Bytes
        }
    }
}

/// The headers of an event; [`CloudPlan::header`] gives their names by index.
pub(crate) type CloudHeaders<'t> = SmallVec<[Part<'t>; BINARY.len()]>;

impl CloudPlan {
    pub(crate) fn header(&self, place: usize) -> &'static str {
        match self.mode {
            CloudEventMode::Binary => BINARY.get(place).copied().unwrap_or_default(),
            CloudEventMode::Structured => CONTENT_TYPE,
        }
    }

    /// Turns a route's value into that of an event; returns the event's headers. An error has the
    /// fault and the part of the record that it is in.
    pub(crate) fn apply<'t>(
        &self,
        values: &[Value<'t>],
        event: &Event,
        value: &mut Part<'t>,
        scratch: &mut Vec<u8>,
    ) -> Result<CloudHeaders<'t>, (Fault, Target)> {
        let mut attributes = [const { Part::Absent }; ATTRIBUTES.len()];
        let named = ATTRIBUTES.into_iter().zip(&self.attributes);
        for ((name, attribute), part) in named.zip(&mut attributes) {
            *part = attribute
                .render(name, values, event, scratch)
                .map_err(|fault| (fault, Target::CloudEvent(name)))?;
        }
        match self.mode {
            CloudEventMode::Binary => {
                let mut headers = smallvec![Part::appended(SPEC_VERSION, scratch)];
                headers.extend(attributes);
                headers.push(Part::appended(&self.content_type, scratch));
                Ok(headers)
            }
            CloudEventMode::Structured => {
                let data = self
                    .data(value, scratch)
                    .map_err(|why| (Fault::new(usize::MAX, why), Target::Value))?;
                *value = self.structured(&attributes, &data, scratch);
                Ok(smallvec![Part::appended(STRUCTURED, scratch)])
            }
        }
    }

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
        attributes: &[Part<'t>],
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
            json::string(&Part::Row(&self.content_type), scratch);
            let name = if self.data == Data::Bytes {
                "data_base64"
            } else {
                "data"
            };
            member(name, scratch);
            match self.data {
                Data::Json => data.copy(0..data.len(), scratch),
                Data::Text | Data::Bytes => json::string(data, scratch),
            }
        }
        scratch.push(b'}');
        Part::since(start, scratch)
    }
}

impl Attribute {
    fn render<'t>(
        &self,
        name: &str,
        values: &[Value<'t>],
        event: &Event,
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, Fault> {
        match self {
            Self::Absent => Ok(Part::Absent),
            Self::CommitTime => Ok(Part::printed(event.commit_time, scratch)),
            Self::Text(text) if name == TIME => timestamp(text, values, scratch),
            Self::Text(text) => {
                let part = text.render(values, scratch)?;
                if name == SUBJECT && part.resolve(scratch).is_none() {
                    return Ok(Part::Absent);
                }
                part.require_text(text.index(), scratch)
            }
            Self::Column(index) => {
                let value = crate::value::value(values, *index)?;
                value
                    .map_or(Part::Null, Part::Row)
                    .require_text(*index, scratch)
            }
        }
    }
}

/// Renders `time` by RFC 3339; a time without an offset is in UTC.
fn timestamp<'t>(
    text: &Text,
    values: &[Value<'t>],
    scratch: &mut Vec<u8>,
) -> Result<Part<'t>, Fault> {
    let part = text.render(values, scratch)?;
    let fault = || Fault::new(text.index(), ValueError::NotATime);
    let Some(bytes) = part.resolve(scratch) else {
        return Ok(Part::Absent);
    };
    // Times that Postgres prints are shorter than 64 bytes.
    let mut copy: SmallVec<[u8; 64]> = SmallVec::new();
    copy.extend_from_slice(bytes.get(..64).unwrap_or(bytes));
    let start = scratch.len();
    if !time::iso(&copy, scratch) || scratch.get(start) == Some(&b'-') {
        return Err(fault());
    }
    let rendered = scratch.get(start..).unwrap_or_default();
    if !rendered.contains(&b'T') {
        scratch.extend_from_slice(b"T00:00:00Z");
    } else if !rendered.ends_with(b"Z")
        && !rendered
            .iter()
            .rev()
            .take(6)
            .any(|b| matches!(b, b'+' | b'-'))
    {
        scratch.push(b'Z');
    }
    Ok(Part::since(start, scratch))
}

/// Appends `,"name":`. Names need no escape.
fn member(name: &str, scratch: &mut Vec<u8>) {
    scratch.extend_from_slice(b",\"");
    scratch.extend_from_slice(name.as_bytes());
    scratch.extend_from_slice(b"\":");
}
