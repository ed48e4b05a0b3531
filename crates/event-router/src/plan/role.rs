//! The purposes of columns, for errors.

use std::fmt;

/// The purpose of a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Header `id`.
    EventId,
    /// Key of the record.
    EventKey,
    /// Value of the record.
    Payload,
    /// Choice of the topic.
    RouteBy,
    /// Timestamp of the record.
    EventTimestamp,
    /// Version of the envelope's schema.
    SchemaVersion,
    /// Header, field of the envelope, or partition.
    Additional,
    /// Selection of events by type.
    EventType,
    /// Names and values of headers.
    Headers,
    /// Part of the record that a template makes.
    Template(Target),
}

/// The part of a record that a template makes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// Id of the event.
    Id,
    /// The topic of the record.
    Topic,
    /// A part of the sink's address, by the key of its template.
    Address(&'static str),
    /// The key of the record.
    Key,
    /// The value of the record.
    Value,
    /// Member of the value, by its path.
    Member(Box<str>),
    /// Header of this name.
    Header(Box<str>),
    /// The partition of the record.
    Partition,
    /// The timestamp of the record.
    Timestamp,
    /// CloudEvents attribute of this name.
    CloudEvent(&'static str),
    /// Name of the record in the subject of its schema.
    RecordName,
}

impl From<Target> for Role {
    fn from(target: Target) -> Self {
        Self::Template(target)
    }
}

impl Role {
    /// Returns the option that names the column: Debezium's property, or a key of the
    /// configuration.
    pub const fn option(&self) -> &'static str {
        self.words().1
    }

    const fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::EventId => ("the event id", "table.field.event.id"),
            Self::EventKey => ("the key", "table.field.event.key"),
            Self::Payload => ("the payload", "table.field.event.payload"),
            Self::RouteBy => ("the routing value", "route.by.field"),
            Self::EventTimestamp => ("the timestamp", "table.field.event.timestamp"),
            Self::SchemaVersion => (
                "the version of the schema",
                "table.field.event.schema.version",
            ),
            Self::Additional => ("an additional field", "table.fields.additional.placement"),
            Self::EventType => ("the selection by type", "table.field.event.type"),
            Self::Headers => ("the headers", "router.headers_from"),
            Self::Template(Target::Id) => ("the event's id", "router.route.id"),
            Self::Template(Target::Topic) => ("the topic", "router.route.topic"),
            Self::Template(Target::Address(key)) => ("the address", key),
            Self::Template(Target::Key) => ("the key", "router.route.key"),
            Self::Template(Target::Value) => ("the value", "router.route.value"),
            Self::Template(Target::Member(_)) => ("member", "router.route.value"),
            Self::Template(Target::Header(_)) => ("header", "router.route.headers"),
            Self::Template(Target::Partition) => ("the partition", "router.route.partition"),
            Self::Template(Target::Timestamp) => ("the timestamp", "router.route.timestamp"),
            Self::Template(Target::CloudEvent(_)) => {
                ("the CloudEvents attribute", "router.cloudevents")
            }
            Self::Template(Target::RecordName) => {
                ("the name of the record", "router.registry.record")
            }
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().0)?;
        match self {
            Self::Template(Target::Member(name)) => write!(f, " {name:?} of the value"),
            Self::Template(Target::Header(name)) => write!(f, " {name:?}"),
            Self::Template(Target::CloudEvent(name)) => write!(f, " {name:?}"),
            _ => Ok(()),
        }
    }
}
