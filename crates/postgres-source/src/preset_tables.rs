//! The tables of the presets of templates, as polling relays have them: one table of declarations.

use walrelay_event_router::Preset;

/// A column: name, type with constraints, and purpose.
pub(crate) type Column = (&'static str, &'static str, &'static str);

const AT: &str = "timestamptz NOT NULL DEFAULT now()";
const UUIDV7: &str = "uuid PRIMARY KEY DEFAULT outbox.uuidv7()";
const AGE: &str = "when the row was written: [prune] goes by it";
const KEY: &str = "key: order is kept per key";
const TOPIC: &str = "topic: the part before the first dot";

/// The table that a preset of templates is for.
pub(crate) struct PresetTable {
    /// The preset's name.
    pub(crate) preset: &'static str,
    /// The usual name of the table, in the schema `public`.
    pub(crate) table: &'static str,
    /// The column of a row's age.
    pub(crate) age: &'static str,
    pub(crate) columns: &'static [Column],
}

/// The tables of all presets but Debezium's, whose options name the columns.
pub(crate) const PRESET_TABLES: [PresetTable; 3] = [
    PresetTable {
        preset: Preset::EVENTS_OUTBOX.name,
        table: "events_outbox",
        age: "created_at",
        columns: &[
            (
                "id",
                "bigserial PRIMARY KEY",
                "header \"event_id\": recognises a repeat",
            ),
            ("aggregate_id", "uuid NOT NULL", KEY),
            ("type", "text NOT NULL", TOPIC),
            ("payload", "jsonb NOT NULL", "value"),
            ("created_at", AT, AGE),
            ("dispatched_at", "timestamptz", "when a relay has sent it"),
        ],
    },
    PresetTable {
        preset: Preset::OUTBOX_EVENTS.name,
        table: "outbox_events",
        age: "occurred_at",
        columns: &[
            (
                "id",
                UUIDV7,
                "header \"x-outbox-event-id\": recognises a repeat",
            ),
            ("aggregate_id", "text NOT NULL", KEY),
            ("event_type", "text NOT NULL", TOPIC),
            ("payload", "jsonb NOT NULL", "value"),
            ("occurred_at", AT, AGE),
            ("dispatched_at", "timestamptz", "when a relay has sent it"),
            (
                "attempts",
                "integer NOT NULL DEFAULT 0",
                "how often a relay has tried to send it",
            ),
            ("last_error", "text", "why the last attempt failed"),
        ],
    },
    PresetTable {
        preset: Preset::OUTBOX.name,
        table: "outbox",
        age: "created_at",
        columns: &[
            ("id", UUIDV7, "event_id in the value: recognises a repeat"),
            (
                "aggregate_type",
                "text NOT NULL",
                "topic <aggregate_type in lower case>.events",
            ),
            ("aggregate_id", "text NOT NULL", KEY),
            (
                "event_type",
                "text NOT NULL",
                "what happened, for the consumers",
            ),
            ("payload", "jsonb NOT NULL", "a member of the value"),
            ("metadata", "jsonb", "a member of the value"),
            ("created_at", AT, AGE),
            ("processed_at", "timestamptz", "when a relay has sent it"),
        ],
    },
];

/// Columns in which polling relays keep what became of a row. A new table has those that the
/// configuration sets.
pub(crate) const STATE_COLUMNS: &[Column] = &[
    (
        "status",
        "text NOT NULL DEFAULT 'PENDING'",
        "what became of the event",
    ),
    (
        "processed",
        "boolean NOT NULL DEFAULT false",
        "a relay has sent it",
    ),
    (
        "attempts",
        "integer NOT NULL DEFAULT 0",
        "how often a relay has tried to send it",
    ),
    ("last_error", "text", "why the last attempt failed"),
    ("dispatched_at", "timestamptz", "when a relay has sent it"),
    ("sent_at", "timestamptz", "when a relay has sent it"),
    ("processed_at", "timestamptz", "when a relay has sent it"),
    (
        "updated_at",
        "timestamptz",
        "when a relay has changed the row",
    ),
    ("failed_at", "timestamptz", "when it became a dead letter"),
];

/// Returns the usual name of a preset's table, in the schema `public`.
pub fn usual_table(preset: &str) -> &'static str {
    let table = PRESET_TABLES.iter().find(|table| table.preset == preset);
    table.map_or("outbox", |table| table.table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_has_the_columns_of_its_preset_and_its_age() {
        assert_eq!(PRESET_TABLES.len(), Preset::ALL.len());
        for (preset, table) in Preset::ALL.iter().zip(&PRESET_TABLES) {
            assert_eq!(preset.name, table.preset);
            let has = |name: &str| table.columns.iter().any(|(column, ..)| *column == name);
            let routes = preset.routes().unwrap();
            for column in routes.columns() {
                assert!(has(column), "{}: {column}", preset.name);
            }
            assert!(has(table.age), "{}", preset.name);
        }
    }
}
