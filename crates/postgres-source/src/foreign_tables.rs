//! The words of an error about a publication that carries other tables than the configured ones.

use walrelay_relay::TableName;
use walrelay_walsender::quote_ident;

use super::script;

/// The tables that a publication was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// `FOR TABLE`.
    Tables,
    /// `FOR TABLES IN SCHEMA`.
    Schemas,
    /// `FOR ALL TABLES`.
    AllTables,
}

/// The number of tables that an error lists.
const LISTED: usize = 5;

/// Returns the first tables, and how many more there are.
pub(super) fn listed(tables: &[TableName]) -> String {
    match tables.split_at_checked(LISTED) {
        Some((first, more)) if !more.is_empty() => {
            format!("{} and {} more tables", named(first), more.len())
        }
        _ => named(tables),
    }
}

/// Returns the names of the tables, joined by commas.
pub(super) fn named(tables: &[TableName]) -> String {
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Returns the remedy for a publication that carries other tables than the configured ones.
pub(super) fn remedy(
    publication: &str,
    tables: &[TableName],
    wanted: &[TableName],
    carries: Carries,
) -> String {
    let mut schemas: Vec<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
    schemas.dedup();
    let without = match carries {
        Carries::Tables if wanted.is_empty() => format!(
            "run ALTER PUBLICATION {publication} DROP TABLE {}",
            script::tables(tables)
        ),
        // A partition is not in the publication itself.
        Carries::Tables => format!(
            "run ALTER PUBLICATION {publication} DROP TABLE {} (SET TABLE {} if they are partitions of a published \
             table)",
            script::tables(tables),
            script::tables(wanted)
        ),
        Carries::Schemas if wanted.is_empty() => {
            let schemas: Vec<String> = schemas.iter().map(|schema| quote_ident(schema)).collect();
            format!(
                "run ALTER PUBLICATION {publication} DROP TABLES IN SCHEMA {}",
                schemas.join(", ")
            )
        }
        Carries::Schemas => format!(
            "run ALTER PUBLICATION {publication} SET TABLE {}, which puts the tables in the place of their schema and leaves \
             no row out: if the next start ends with publication-changed, run walrelay run --accept-gap once",
            script::tables(wanted)
        ),
        Carries::AllTables => {
            "make a publication of the outbox tables while a relay still reads this one: docs/operate/troubleshooting.md, \
             \"Rows of a table that is no outbox\""
                .to_owned()
        }
    };
    let named = match (tables, schemas.as_slice()) {
        ([table], _) => table.to_string(),
        (_, [schema]) => format!("'{schema}.*'"),
        _ => "TABLE".to_owned(),
    };
    format!(
        "add them to [source] tables if they are outbox tables. Otherwise {without}; or leave the publication as it \
         is and start with --pass-over {named}, or [source] pass_over. Rows of them that wait in the slot are passed \
         over either way"
    )
}
