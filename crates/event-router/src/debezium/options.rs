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
