//! The outbox table that `walrelay init` creates: a column for each one that the options of
//! Debezium's router name.

use walrelay_event_router::{Converter, Options, Placement};
use walrelay_relay::TableName;
use walrelay_walsender::quote_ident;

use super::script;

/// Names that are written without quotes, because Postgres reads them so.
const PLAIN: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];
/// The width of a definition with its comma, so that the comments of most columns are aligned.
const WIDTH: usize = 14;

/// The columns of a new outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutboxTable {
    columns: Vec<NewColumn>,
}

/// A column of a new outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NewColumn {
    name: String,
    /// Its type and constraints.
    definition: &'static str,
    /// Its purpose, for a comment. It holds no text of the configuration, which could end the
    /// comment.
    purpose: &'static str,
}

impl Default for OutboxTable {
    /// The table for Debezium's defaults.
    fn default() -> Self {
        Self::new(&Options::default(), &[], &[], false)
    }
}

impl OutboxTable {
    /// The table for these options. `read`: all columns that the relay reads. `times`: those of
    /// them that hold a time. `unsent`: the snapshot reads the rows that no relay has sent, and no
    /// condition says which these are.
    pub(crate) fn new(options: &Options, read: &[String], times: &[String], unsent: bool) -> Self {
        let mut table = Self {
            columns: Vec::new(),
        };
        let routed = if options.topic == Options::default().topic {
            "topic outbox.event.<aggregatetype>"
        } else {
            "the topic is made of it"
        };
        let key = by_converter(&options.key_converter, "text NOT NULL", "bytea NOT NULL");
        let payload = by_converter(&options.value_converter, "jsonb", "bytea");
        // The text of this column decides the topic, so its type precedes that of another purpose.
        if options.route_by == options.event_id {
            table.add(&options.route_by, "text PRIMARY KEY", routed);
        }
        table.add(
            &options.event_id,
            "uuid PRIMARY KEY DEFAULT gen_random_uuid()",
            "header \"id\": recognises a repeat",
        );
        table.add(&options.route_by, "text NOT NULL", routed);
        table.add(&options.event_key, key, "key: order is kept per key");
        for additional in &options.additional {
            if additional.placement == Placement::Partition {
                table.add(&additional.column, "integer NOT NULL", "partition");
            }
        }
        if options.has_envelope()
            && let Some(version) = &options.schema_version
        {
            let definition = "integer NOT NULL DEFAULT 1";
            table.add(version, definition, "the version of the envelope's schema");
        }
        if let Some(timestamp) = &options.event_timestamp {
            let definition = "timestamptz NOT NULL DEFAULT now()";
            table.add(timestamp, definition, "the record's timestamp");
        }
        for time in times {
            let definition = "timestamptz NOT NULL DEFAULT now()";
            table.add(time, definition, "a time that the route reads");
        }
        table.add(
            &options.event_type,
            "text NOT NULL",
            "what happened, for the consumers",
        );
        for additional in &options.additional {
            let purpose = match additional.placement {
                Placement::Envelope => "in the envelope",
                _ => "a header",
            };
            table.add(&additional.column, "text", purpose);
        }
        if let Some(trace) = &options.trace_context {
            table.add(trace, "text", "the trace context");
        }
        for column in read {
            if *column != options.payload {
                table.add(column, "text", "the route reads it");
            }
        }
        if unsent {
            let purpose = "when a relay has sent it; the snapshot reads the others";
            table.add("dispatched_at", "timestamptz", purpose);
        }
        table.add(&options.payload, payload, "value");
        table
    }

    /// Adds a column, unless there is one of this name.
    fn add(&mut self, name: &str, definition: &'static str, purpose: &'static str) {
        if self.columns.iter().all(|column| column.name != name) {
            self.columns.push(NewColumn {
                name: name.to_owned(),
                definition,
                purpose,
            });
        }
    }

    /// SQL that creates the table, unless a table of that name exists.
    pub(crate) fn create(&self, name: &TableName) -> String {
        let quoted = |column: &NewColumn| match column.name.as_str() {
            plain if PLAIN.contains(&plain) => plain.to_owned(),
            other => quote_ident(other),
        };
        let names: Vec<String> = self.columns.iter().map(quoted).collect();
        let width = names.iter().map(|name| name.chars().count()).max();
        let width = width.unwrap_or_default();
        let last = self.columns.len().saturating_sub(1);
        let lines = names.iter().zip(&self.columns).enumerate();
        let lines = lines.map(|(index, (name, column))| {
            let comma = if index == last { "" } else { "," };
            let definition = format!("{}{comma}", column.definition);
            format!(
                "    {name:width$} {definition:WIDTH$} -- {}\n",
                column.purpose
            )
        });
        format!(
            "CREATE TABLE IF NOT EXISTS {} (\n{});",
            script::table(name),
            lines.collect::<String>()
        )
    }
}

/// The definition of a column that this converter writes. Converters of bytes cannot write texts.
fn by_converter(converter: &Converter, text: &'static str, bytes: &'static str) -> &'static str {
    match converter {
        Converter::ByteArray | Converter::BinaryData(None) => bytes,
        _ => text,
    }
}
