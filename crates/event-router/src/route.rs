//! By which rules rows become records.

use std::fmt;

use crate::{Options, Target, Templates, debezium};

/// The rules, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Those of Debezium's outbox event router.
    Debezium(Box<Options>),
    /// Templates over columns.
    Template(Templates),
}

impl From<Options> for Route {
    fn from(options: Options) -> Self {
        Self::Debezium(Box::new(options))
    }
}

impl From<Templates> for Route {
    fn from(templates: Templates) -> Self {
        Self::Template(templates)
    }
}

impl Route {
    /// The columns that most nearly are the event's id, key and value.
    pub(crate) fn partial_row_columns(&self) -> [Option<&str>; 3] {
        match self {
            Self::Debezium(options) => {
                [&options.event_id, &options.event_key, &options.payload].map(|name| Some(&**name))
            }
            Self::Template(templates) => templates.partial_row_columns(),
        }
    }

    /// The header that carries the event's id.
    pub(crate) fn id_header(&self) -> &str {
        match self {
            Self::Debezium(_) => debezium::ID_HEADER,
            Self::Template(templates) => templates.id_header().unwrap_or(debezium::ID_HEADER),
        }
    }
}

/// What a column is needed for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// The header `id`.
    EventId,
    /// The record's key.
    EventKey,
    /// The record's value.
    Payload,
    /// The choice of the topic.
    RouteBy,
    /// The record's timestamp.
    EventTimestamp,
    /// The version of the envelope's schema.
    SchemaVersion,
    /// A header, a field of the envelope, or the partition.
    Additional,
    /// A part of the record that a template makes.
    Template(Target),
}

impl Role {
    /// The option that names the column: Debezium's, or a key of the configuration.
    pub const fn option(&self) -> &'static str {
        match self {
            Self::EventId => "table.field.event.id",
            Self::EventKey => "table.field.event.key",
            Self::Payload => "table.field.event.payload",
            Self::RouteBy => "route.by.field",
            Self::EventTimestamp => "table.field.event.timestamp",
            Self::SchemaVersion => "table.field.event.schema.version",
            Self::Additional => "table.fields.additional.placement",
            Self::Template(target) => target.option(),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EventId => "the event id",
            Self::EventKey => "the key",
            Self::Payload => "the payload",
            Self::RouteBy => "the routing value",
            Self::EventTimestamp => "the timestamp",
            Self::SchemaVersion => "the version of the schema",
            Self::Additional => "an additional field",
            Self::Template(target) => return target.fmt(f),
        })
    }
}
