//! The outbox table that `walrelay init` creates: a column for each one that the options of
//! Debezium's router name, or the table of another preset.

use walrelay_event_router::{Converter, Options, Placement};
use walrelay_relay::TableName;
use walrelay_walsender::{quote_ident, quote_literal};

use super::assigned::assigned_columns;
use super::preset_tables::{PRESET_TABLES, STATE_COLUMNS};
use super::script;

/// The column that orders the rows of a snapshot.
const ORDER: &str = "seq";
/// The column of a row's age, where none is named.
const TIME: &str = "created_at";
/// Names that are written without quotes, because Postgres reads them so.
const PLAIN: [&str; 7] = [
    "id",
    "aggregatetype",
    "aggregateid",
    "type",
    "payload",
    TIME,
    ORDER,
];
/// The column that says when a row was sent, unless a condition says which rows were not.
const SENT: &str = "dispatched_at";
/// The width of a definition with its comma, so that the comments of most columns are aligned.
const WIDTH: usize = 14;

/// The columns of a new outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    columns: Vec<NewColumn>,
    /// The column of a row's age.
    age: String,
    /// The parts of `CREATE INDEX` after the table's name, each on lines of its own.
    indexes: Vec<String>,
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
    /// Returns the table for Debezium's defaults.
    fn default() -> Self {
        Self::new(&Options::default(), &[], &[], false, None)
    }
}

impl OutboxTable {
    /// Creates the table for these options. `read`: all columns that the relay reads. `times`:
    /// those of them that hold a time. `age`: the column of a row's age, if `[prune]` names one.
    /// `unsent`: the snapshot reads the rows that no relay has sent, and no condition says which
    /// these are.
    pub fn new(
        options: &Options,
        read: &[String],
        times: &[String],
        unsent: bool,
        age: Option<&str>,
    ) -> Self {
        let mut table = Self {
            columns: Vec::new(),
            age: age.unwrap_or(TIME).to_owned(),
            indexes: Vec::new(),
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
            table.add(SENT, "timestamptz", purpose);
        }
        table.add(&options.payload, payload, "value");
        let definition = "timestamptz NOT NULL DEFAULT now()";
        let purpose = "when the row was written: [prune] goes by it";
        table.add(age.unwrap_or(TIME), definition, purpose);
        // Not ALWAYS: rows that are inserted anew keep their numbers.
        let definition = "bigint GENERATED BY DEFAULT AS IDENTITY";
        table.add(ORDER, definition, "the order that a snapshot reads in");
        table
    }

    /// Returns the table of a preset of templates, or `None` if there is no such preset.
    pub fn from_preset(preset: &str) -> Option<Self> {
        let declared = PRESET_TABLES.iter().find(|table| table.preset == preset)?;
        let mut table = Self {
            columns: Vec::new(),
            age: declared.age.to_owned(),
            indexes: Vec::new(),
        };
        for (name, definition, purpose) in declared.columns {
            table.add(name, definition, purpose);
        }
        Some(table)
    }

    /// Adds the columns that these assignments set, as far as polling relays have such columns.
    /// `unsent`: unsent rows are known by a column that says when a row was sent.
    pub fn add_state_columns(&mut self, set: &str, unsent: bool) {
        let assigned = assigned_columns(set);
        for (name, definition, purpose) in STATE_COLUMNS {
            if assigned.iter().any(|column| column == name) {
                self.add(name, definition, purpose);
            }
        }
        if unsent && !self.has(SENT) && !self.has("sent_at") {
            self.add(SENT, "timestamptz", "when a relay has sent it");
        }
    }

    /// Adds the indexes of a table that relays work on: by age, and of unsent rows if relays mark rows.
    /// `age`: the column of `[prune]`. `unsent`: the condition for these rows, if one is configured.
    pub fn add_indexes(&mut self, age: Option<&str>, marks: bool, unsent: Option<&str>) {
        if let Some(age) = age {
            age.clone_into(&mut self.age);
        }
        let age = quote_ident(&self.age);
        // No BRIN index: only a B-tree has the oldest row at its front, which the ages of the metrics are read from.
        self.indexes.push(format!("({age})"));
        let sent = [SENT, "sent_at"].into_iter().find(|name| self.has(name));
        let sent = sent.map(|name| format!("{name} IS NULL"));
        // On lines of its own, because it may end in a comment.
        if let Some(unsent) = unsent.map(str::to_owned).or(sent).filter(|_| marks) {
            self.indexes.push(format!("({age}) WHERE (\n{unsent}\n)"));
        }
    }

    /// Returns those of these columns that the table does not have.
    pub fn missing<'a>(&self, columns: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let mut missing = Vec::new();
        for column in columns {
            if !self.has(column) && !missing.contains(&column) {
                missing.push(column);
            }
        }
        missing
    }

    /// Returns the names of the columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns true if the function `outbox.uuidv7` makes ids of the table.
    pub fn needs_uuidv7(&self) -> bool {
        let mut columns = self.columns.iter();
        columns.any(|column| column.definition.contains("outbox.uuidv7()"))
    }

    /// Returns true if [`add_indexes`](Self::add_indexes) was called.
    pub fn has_indexes(&self) -> bool {
        !self.indexes.is_empty()
    }

    fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name)
    }

    /// Adds a column, unless there is one of this name.
    fn add(&mut self, name: &str, definition: &'static str, purpose: &'static str) {
        if !self.has(name) {
            self.columns.push(NewColumn {
                name: name.to_owned(),
                definition,
                purpose,
            });
        }
    }

    /// Returns SQL that creates the table and its indexes, unless a table of that name exists.
    pub fn create(&self, name: &TableName) -> String {
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
        let table = script::table(name);
        let columns = lines.collect::<String>();
        if self.indexes.is_empty() {
            return format!("CREATE TABLE IF NOT EXISTS {table} (\n{columns});");
        }
        let indexes = self.indexes.iter();
        let indexes = indexes.map(|index| format!("CREATE INDEX ON {table} {index};\n"));
        // An existing table gets no index.
        script::unless(
            &format!(
                "SELECT FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass({})",
                quote_literal(&table)
            ),
            &format!(
                "CREATE TABLE {table} (\n{columns});\n{}",
                indexes.collect::<String>()
            ),
        )
    }
}

/// Returns the definition of a column that this converter writes. Converters of bytes cannot write
/// texts.
fn by_converter(converter: &Converter, text: &'static str, bytes: &'static str) -> &'static str {
    match converter {
        Converter::ByteArray | Converter::BinaryData(None) => bytes,
        _ => text,
    }
}
