//! The options of Debezium's outbox event router.

use super::expand::Expand;
use super::topic_template::TopicTemplate;
use super::trace;
use crate::render::connect::{Converter, Handling};

/// Name of the header with the event's id. Debezium uses this name for any column.
pub(crate) const ID_HEADER: &str = "id";

/// Options of Debezium's outbox event router, those options of its Postgres connector that affect
/// the bytes, and Kafka Connect's converters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Column of the event's id, sent as the header `id` (`table.field.event.id`).
    pub event_id: String,
    /// Column of the record's key (`table.field.event.key`).
    pub event_key: String,
    /// Column of the event's type (`table.field.event.type`). Debezium has the option but never
    /// reads the column, so the table need not have it.
    pub event_type: String,
    /// Column of the record's value (`table.field.event.payload`).
    pub payload: String,
    /// Column of the record's timestamp (`table.field.event.timestamp`).
    pub event_timestamp: Option<String>,
    /// Column of the version of an envelope's schema (`table.field.event.schema.version`).
    pub schema_version: Option<String>,
    /// Column whose text selects the topic (`route.by.field`).
    pub route_by: String,
    /// Template of the topic, which contains that text (`route.topic.regex`,
    /// `route.topic.replacement`).
    pub topic: TopicTemplate,
    /// Additional columns, in this order (`table.fields.additional.placement`).
    pub additional: Vec<Additional>,
    /// True if an additional column that the table does not have is ignored
    /// (`table.field.additional.missing=ignore`).
    pub ignore_missing: bool,
    /// True if an empty payload becomes a tombstone (`route.tombstone.on.empty.payload`).
    pub tombstone_on_empty: bool,
    /// Expands a JSON payload into a struct (`table.expand.json.payload`).
    pub expand: Option<Expand>,
    /// Column of a trace context, which becomes the headers `traceparent` and `tracestate`
    /// (`tracing.span.context.field`). The table need not have it.
    pub trace_context: Option<String>,
    /// Debezium's `topic.prefix`, the first part of the names of envelopes' schemas.
    pub topic_prefix: String,
    /// Debezium's context headers (`extended.headers.enabled`): names and texts of the first
    /// headers of every record.
    pub context_headers: Vec<(String, String)>,
    /// Options for column values.
    pub handling: Handling,
    /// The option `key.converter`.
    pub key_converter: Converter,
    /// The option `value.converter`.
    pub value_converter: Converter,
    /// The option `header.converter`.
    pub header_converter: Converter,
}

impl Default for Options {
    /// Returns Debezium's defaults, but without context headers, with `StringConverter` for key and
    /// value and `SimpleHeaderConverter` for headers.
    fn default() -> Self {
        Self {
            event_id: "id".to_owned(),
            event_key: "aggregateid".to_owned(),
            event_type: "type".to_owned(),
            payload: "payload".to_owned(),
            event_timestamp: None,
            schema_version: None,
            route_by: "aggregatetype".to_owned(),
            topic: TopicTemplate::default(),
            additional: Vec::new(),
            ignore_missing: false,
            tombstone_on_empty: false,
            expand: None,
            trace_context: None,
            topic_prefix: String::new(),
            context_headers: Vec::new(),
            handling: Handling::default(),
            key_converter: Converter::String,
            value_converter: Converter::String,
            header_converter: Converter::Simple,
        }
    }
}

/// A column of `table.fields.additional.placement`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Additional {
    /// Name of the column.
    pub column: String,
    /// Part of the record that gets the column.
    pub placement: Placement,
    /// Name of the column in that part.
    pub alias: String,
}

/// The part of the record that gets an additional column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// A header of the record.
    Header,
    /// Field beside the payload.
    Envelope,
    /// Number of the partition.
    Partition,
}

/// The reason why a text is not a valid `table.fields.additional.placement`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// An entry is empty.
    #[error(
        "there is an empty entry; write column:placement or column:placement:alias, separated by commas"
    )]
    Empty,
    /// An entry has one part, or more than three.
    #[error("{0:?} is not column:placement or column:placement:alias")]
    Parts(String),
    /// The placement does not exist.
    #[error("{0:?} is no placement; there are header, envelope and partition")]
    Unknown(String),
    /// Two fields of the envelope have the same name.
    #[error("the envelope would have two fields named {0:?}")]
    Twice(String),
    /// Two columns are placed as the partition.
    #[error("more than one column is placed as the partition")]
    Partitions,
}

impl Additional {
    /// Parses `table.fields.additional.placement`.
    pub fn parse(text: &str) -> Result<Vec<Self>, PlacementError> {
        let mut all: Vec<Self> = Vec::new();
        for entry in text.split(',').map(str::trim) {
            let parts: Vec<&str> = entry.split(':').map(str::trim).collect();
            let (column, word, alias) = match parts.as_slice() {
                [""] => return Err(PlacementError::Empty),
                // Java's `split` drops an empty alias.
                [column, word] | [column, word, ""] if !column.is_empty() => (column, word, column),
                [column, word, alias] if !column.is_empty() => (column, word, alias),
                _ => return Err(PlacementError::Parts(entry.to_owned())),
            };
            let placement = match word.to_ascii_lowercase().as_str() {
                "header" => Placement::Header,
                "envelope" => Placement::Envelope,
                "partition" => Placement::Partition,
                _ => return Err(PlacementError::Unknown((*word).to_owned())),
            };
            let twice = all.iter().any(|other| {
                let alike = other.alias == *alias || placement == Placement::Partition;
                other.placement == placement && alike
            });
            match placement {
                Placement::Envelope if twice || *alias == "payload" => {
                    return Err(PlacementError::Twice((*alias).to_owned()));
                }
                Placement::Partition if twice => return Err(PlacementError::Partitions),
                _ => {}
            }
            all.push(Self {
                column: (*column).to_owned(),
                placement,
                alias: (*alias).to_owned(),
            });
        }
        Ok(all)
    }
}

impl Options {
    /// Returns true if records have a header of this name: the id, a trace context or an additional
    /// column.
    pub fn has_header(&self, name: &str) -> bool {
        let placed = |additional: &Additional| {
            additional.placement == Placement::Header && additional.alias == name
        };
        let traced = self.trace_context.is_some() && trace::HEADERS.contains(&name);
        name == ID_HEADER || traced || self.additional.iter().any(placed)
    }

    /// Returns the columns that a table must have.
    pub fn columns(&self) -> Vec<String> {
        let needed = [
            &self.event_id,
            &self.event_key,
            &self.route_by,
            &self.payload,
        ];
        let version = self.schema_version.iter().filter(|_| self.has_envelope());
        let additional = self.additional.iter().filter(|_| !self.ignore_missing);
        let additional = additional.map(|additional| &additional.column);
        let all = needed.into_iter().chain(&self.event_timestamp);
        all.chain(version).chain(additional).cloned().collect()
    }

    /// Returns true if the payload is in an envelope.
    pub fn has_envelope(&self) -> bool {
        let mut additional = self.additional.iter();
        additional.any(|additional| additional.placement == Placement::Envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_read_as_debezium_reads_them() {
        let text = "type:header:eventType, a:ENVELOPE ,p:partition,b:header:";
        let expected = [
            ("type", Placement::Header, "eventType"),
            ("a", Placement::Envelope, "a"),
            ("p", Placement::Partition, "p"),
            ("b", Placement::Header, "b"),
        ]
        .map(|(column, placement, alias)| Additional {
            column: column.to_owned(),
            placement,
            alias: alias.to_owned(),
        });
        assert_eq!(Additional::parse(text), Ok(expected.into()));
    }

    #[test]
    fn mistakes_are_refused() {
        for text in [
            "",
            "type",
            "a:header,",
            "a:header:b:c",
            ":header",
            "a:foo",
            "a:",
            "a:envelope:x,b:envelope:x",
            "a:envelope:payload",
            "a:partition,b:partition",
        ] {
            assert!(Additional::parse(text).is_err(), "{text}");
        }
    }
}
