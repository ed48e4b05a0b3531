//! Records by templates over columns.
//!
//! ```text
//! template   = { literal | "{{" | "}}" | "{" expression "}" }
//! expression = ( column { "|" filter } ) | text
//! column     = name | '"' { any | '""' } '"'               as in SQL, but without folding to lower case
//! text       = "'" { any | "''" } "'"
//! filter     = "lower" | "upper" | "text" | "optional"
//!            | "before" "(" text ")" | "after" "(" text ")" | "replace" "(" text "," text ")"
//!            | "default" "(" text ")" | "json" [ "(" step { "," step } ")" ]
//!            | "lookup" "(" text [ "," ( text | "keep" ) ] ")"
//! step       = text | digits                              a member's name, or an item's number from 0
//! ```
//!
//! A template is read once ([`Template`]), compiled to slots once per table ([`compile`]) and rendered
//! into the router's scratch buffer for each row; what stands in the row as it is to be is not copied.
//!
//! What NULL means is a matter of the [`Place`]. Within a text with other parts it is a fault there,
//! unless the filter `default` gives something else.

mod ast;
pub(crate) mod compile;
mod error;
pub(crate) mod filter;
pub(crate) mod json;
mod parse;
pub(crate) mod time;

use std::fmt;

use walrelay_pgoutput::Relation;

pub use ast::{Lookups, Place, Template};
pub(crate) use compile::{Compiled, Text};
pub use error::{TemplateError, TemplateProblem};

use compile::Compiler;

use crate::columns::Columns;
use crate::part::Piece;
use crate::plan::{Field, HeaderField, Plan};
use crate::topic::Topic;
use crate::{PlanError, Role};

/// What each part of a record is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Templates {
    /// The column of the event's id: dead letters name events by it.
    pub id: Option<String>,
    /// Where the record goes.
    pub topic: Template,
    /// Its key; `None` for the null key.
    pub key: Option<Template>,
    /// Its value.
    pub value: ValueTemplate,
    /// Its headers, in this order.
    pub headers: Vec<(String, Template)>,
    /// Its partition; `None` leaves it to the sink.
    pub partition: Option<Template>,
    /// Its timestamp; `None` for the time of production.
    pub timestamp: Option<Template>,
    /// The tables of the filter `lookup`.
    pub lookups: Lookups,
}

/// What a value is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueTemplate {
    /// A text, or a column as it is.
    Text(Template),
    /// A JSON object.
    Object(Object),
}

/// A JSON object with these members, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Object {
    /// Names and values.
    pub members: Vec<(String, Member)>,
}

/// A member of an [`Object`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// Of the row.
    Template(Template),
    /// The same for all rows.
    Literal(Scalar),
    /// An object in the object.
    Object(Object),
}

/// A JSON value that needs no quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
        }
    }
}

/// Which part of a record a column is needed for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// The event's id.
    Id,
    /// Its topic.
    Topic,
    /// Its key.
    Key,
    /// Its value.
    Value,
    /// A member of its value, by the way to it.
    Member(Box<str>),
    /// The header of this name.
    Header(Box<str>),
    /// Its partition.
    Partition,
    /// Its timestamp.
    Timestamp,
    /// The attribute of this name, where it is a CloudEvent.
    CloudEvent(&'static str),
    /// The name of the record, where the subject of its schema has it.
    RecordName,
}

impl Target {
    /// The key of the configuration.
    pub(crate) const fn option(&self) -> &'static str {
        match self {
            Self::Id => "router.route.id",
            Self::Topic => "router.route.topic",
            Self::Key => "router.route.key",
            Self::Value | Self::Member(_) => "router.route.value",
            Self::Header(_) => "router.route.headers",
            Self::Partition => "router.route.partition",
            Self::Timestamp => "router.route.timestamp",
            Self::CloudEvent(_) => "router.cloudevents",
            Self::RecordName => "router.registry.record",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("the event's id"),
            Self::Topic => f.write_str("the topic"),
            Self::Key => f.write_str("the key"),
            Self::Value => f.write_str("the value"),
            Self::Member(name) => write!(f, "member {name:?} of the value"),
            Self::Header(name) => write!(f, "header {name:?}"),
            Self::Partition => f.write_str("the partition"),
            Self::Timestamp => f.write_str("the timestamp"),
            Self::CloudEvent(name) => write!(f, "the CloudEvents attribute {name:?}"),
            Self::RecordName => f.write_str("the name of the record"),
        }
    }
}

impl Templates {
    /// The columns that they name, each once, in the order of the record's parts.
    pub fn columns(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let mut note = |name| {
            if !names.contains(&name) {
                names.push(name);
            }
        };
        if let Some(id) = &self.id {
            note(id);
        }
        let value = match &self.value {
            ValueTemplate::Text(template) => vec![template],
            ValueTemplate::Object(object) => object.templates(),
        };
        let headers = self.headers.iter().map(|(_, template)| template);
        let templates = std::iter::once(&self.topic)
            .chain(&self.key)
            .chain(value)
            .chain(headers)
            .chain(&self.partition)
            .chain(&self.timestamp);
        templates.flat_map(Template::columns).for_each(note);
        names
    }

    /// The columns that most nearly are the event's id, key and value.
    pub(crate) fn partial_row_columns(&self) -> [Option<&str>; 3] {
        let key = self.key.as_ref().and_then(Template::column);
        let value = match &self.value {
            ValueTemplate::Text(template) => template.column(),
            // What such objects have the event itself in.
            ValueTemplate::Object(object) => {
                object
                    .members
                    .iter()
                    .find_map(|(name, member)| match member {
                        Member::Template(template) if name == "payload" => template.column(),
                        _ => None,
                    })
            }
        };
        [self.id.as_deref(), key, value]
    }

    /// The header that carries the event's id, where one does.
    pub(crate) fn id_header(&self) -> Option<&str> {
        let id = self.id.as_deref()?;
        let mut headers = self.headers.iter();
        let (name, _) = headers.find(|(_, template)| template.column() == Some(id))?;
        Some(name)
    }

    /// The plan of a table.
    pub(crate) fn compile(&self, relation: &Relation<'_>) -> Result<Plan, PlanError> {
        let mut columns = Columns::of(relation);
        let event_id = match &self.id {
            None => None,
            Some(name) => match columns.find(name) {
                Some(found) => Some(found.slot),
                None => {
                    return Err(PlanError::missing(
                        &columns,
                        name,
                        Role::Template(Target::Id),
                    ));
                }
            },
        };
        let mut compiler = Compiler {
            columns: &mut columns,
            lookups: &self.lookups,
        };
        let topic = compiler.text(&self.topic, &Target::Topic)?;
        let mut field = |template: &Template, target: Target, make: fn(Text) -> Compiled| {
            let text = compiler.text(template, &target)?;
            Ok::<_, PlanError>(target.field(make(text)))
        };
        let key = match &self.key {
            Some(template) => Some(field(template, Target::Key, Compiled::Text)?),
            None => None,
        };
        let value = match &self.value {
            ValueTemplate::Text(template) => field(template, Target::Value, Compiled::Text)?,
            ValueTemplate::Object(object) => {
                Target::Value.field(Compiled::Object(compiler.object(object, "")?))
            }
        };
        let mut field = |template: &Template, target: Target, make: fn(Text) -> Compiled| {
            let text = compiler.text(template, &target)?;
            Ok::<_, PlanError>(target.field(make(text)))
        };
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, template) in &self.headers {
            let target = Target::Header(name.as_str().into());
            headers.push(HeaderField {
                name: name.as_str().into(),
                field: field(template, target, Compiled::Text)?,
            });
        }
        let partition = match &self.partition {
            Some(template) => Some(field(template, Target::Partition, Compiled::Partition)?),
            None => None,
        };
        let timestamp = match &self.timestamp {
            Some(template) => Some(field(template, Target::Timestamp, Compiled::Timestamp)?),
            None => None,
        };
        Ok(Plan {
            topic: Topic::Template(topic),
            key,
            value: Some(value),
            headers,
            partition,
            timestamp,
            event_id,
            cloud: None,
            record: None,
            slots: columns.finish(),
        })
    }
}

impl Target {
    fn field(self, compiled: Compiled) -> Field {
        Field {
            role: Role::Template(self),
            piece: Piece::Template(compiled),
        }
    }
}

impl Object {
    /// All templates in it.
    fn templates(&self) -> Vec<&Template> {
        let members = self.members.iter().flat_map(|(_, member)| match member {
            Member::Template(template) => vec![template],
            Member::Literal(_) => Vec::new(),
            Member::Object(object) => object.templates(),
        });
        members.collect()
    }
}
