use std::fmt;

use crate::TopicTemplate;

/// Which columns of an outbox table mean what, and where its rows go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Column of the event's id, sent as the header `id` (`table.field.event.id`).
    pub event_id: String,
    /// Column of the record's key (`table.field.event.key`).
    pub event_key: String,
    /// Column of the event's type (`table.field.event.type`). Debezium declares it and never reads
    /// it, so the column need not exist.
    pub event_type: String,
    /// Column of the record's value (`table.field.event.payload`).
    pub payload: String,
    /// Column whose text chooses the topic (`route.by.field`).
    pub route_by: String,
    /// The topic, with that text in it (`route.topic.replacement`).
    pub topic: TopicTemplate,
}

impl Default for Options {
    /// Debezium's defaults.
    fn default() -> Self {
        Self {
            event_id: "id".to_owned(),
            event_key: "aggregateid".to_owned(),
            event_type: "type".to_owned(),
            payload: "payload".to_owned(),
            route_by: "aggregatetype".to_owned(),
            topic: TopicTemplate::default(),
        }
    }
}

impl Options {
    /// The column that plays a role.
    pub fn column(&self, role: Role) -> &str {
        match role {
            Role::EventId => &self.event_id,
            Role::EventKey => &self.event_key,
            Role::Payload => &self.payload,
            Role::RouteBy => &self.route_by,
        }
    }
}

/// What a column is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The header `id`.
    EventId,
    /// The record's key.
    EventKey,
    /// The record's value.
    Payload,
    /// The choice of the topic.
    RouteBy,
}

impl Role {
    /// All of them, in the order of their discriminants.
    pub(crate) const ALL: [Self; 4] = [Self::EventId, Self::EventKey, Self::Payload, Self::RouteBy];

    /// The Debezium option that names the column.
    pub const fn option(self) -> &'static str {
        match self {
            Self::EventId => "table.field.event.id",
            Self::EventKey => "table.field.event.key",
            Self::Payload => "table.field.event.payload",
            Self::RouteBy => "route.by.field",
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
        })
    }
}
