//! The publication's part of a plan: its tables, its columns, and its filters.

use walrelay_relay::{STATE_SCHEMA, TableName};

use super::moment::Moment;
use super::table::columns_missing;
use super::{Action, Plan};
use crate::catalog::{Facts, PublicationFacts, Wanted};
use crate::error::{Gap, PublicationSetupError, SetupError};
use crate::foreign_tables::Carries;
use crate::script::EmitFunction;

/// Checks the publication. Adds actions and notes to the plan.
pub(super) fn publication(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let Some(publication) = &facts.publication else {
        return no_publication(wanted, facts, moment, plan);
    };
    carries_inserts(wanted, publication)?;
    carries_tables(wanted, publication).map_err(|error| uncarried_since(error, facts, moment))?;
    carries_columns(wanted, facts, publication)?;
    for table in others(wanted, publication).filter(|table| passes_over(wanted, table)) {
        plan.notes.push(format!(
            "publication {} carries table {table}, whose rows are passed over as [source] pass_over says",
            wanted.publication
        ));
    }
    for (table, filter) in publication.filtered() {
        plan.notes.push(format!(
            "publication {} carries only the rows of {table} for which {filter}{}",
            wanted.publication,
            if publication.update {
                ", and updates: an UPDATE that makes a row fit is sent as an event"
            } else {
                ""
            }
        ));
    }
    Ok(())
}

/// Plans for a missing publication.
pub fn no_publication(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let name = &wanted.publication;
    // Postgres decodes each change with the catalogs of its time. Rows committed while there was no
    // publication are not carried, even if it is created now.
    if facts.slot.is_some() {
        return Err(SetupError::Publication(PublicationSetupError::Gone {
            publication: name.clone(),
            slot: wanted.slot.clone(),
        }));
    }
    if !wanted.create || moment == Moment::Print {
        return Err(SetupError::Publication(PublicationSetupError::Missing(
            name.clone(),
        )));
    }
    plan.actions.push(Action::CreatePublication);
    Ok(())
}

/// Checks that the publication carries inserts.
pub fn carries_inserts(wanted: &Wanted, publication: &PublicationFacts) -> Result<(), SetupError> {
    if publication.insert {
        return Ok(());
    }
    let name = wanted.publication.clone();
    Err(SetupError::Publication(
        PublicationSetupError::WithoutInsert(name),
    ))
}

/// Returns the tables that the publication carries besides the wanted ones and walrelay's own.
fn others<'p>(
    wanted: &'p Wanted,
    publication: &'p PublicationFacts,
) -> impl Iterator<Item = &'p TableName> {
    let carried = publication.tables.iter().map(|published| &published.table);
    let is_own = |table: &TableName| table.schema == STATE_SCHEMA || *table == EmitFunction::gate();
    carried.filter(move |table| !wanted.tables.contains(table) && !is_own(table))
}

/// Returns whether the publication may carry a table that is not wanted.
fn passes_over(wanted: &Wanted, table: &TableName) -> bool {
    let mut named = wanted.pass_over.iter();
    named.any(|of| of.schema == table.schema && (of.name == table.name || of.name == "*"))
}

/// Checks that the publication carries the wanted tables, and others only if they are passed over.
pub fn carries_tables(wanted: &Wanted, publication: &PublicationFacts) -> Result<(), SetupError> {
    let name = &wanted.publication;
    let published = |table: &TableName| publication.tables.iter().find(|p| p.table == *table);
    let missing: Vec<TableName> = wanted
        .tables
        .iter()
        .filter(|table| published(table).is_none())
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(SetupError::Publication(PublicationSetupError::Lacks {
            publication: name.clone(),
            tables: missing,
            gap: None,
        }));
    }
    let foreign: Vec<TableName> = others(wanted, publication)
        .filter(|table| !passes_over(wanted, table))
        .cloned()
        .collect();
    if !foreign.is_empty() {
        return Err(SetupError::Publication(PublicationSetupError::Foreign {
            publication: name.clone(),
            tables: foreign,
            wanted: wanted.tables.clone(),
            carries: match publication {
                PublicationFacts {
                    all_tables: true, ..
                } => Carries::AllTables,
                PublicationFacts { schemas: true, .. } => Carries::Schemas,
                _ => Carries::Tables,
            },
        }));
    }
    Ok(())
}

/// Adds to the error of a publication that lacks tables the range whose rows are not relayed.
fn uncarried_since(mut error: SetupError, facts: &Facts, moment: Moment) -> SetupError {
    if let SetupError::Publication(PublicationSetupError::Lacks { tables, gap, .. }) = &mut error
        && let Some(slot) = &facts.slot
    {
        // The publication may carry the rows of a partitioned table under the names of its partitions.
        let ordinary = |table: &TableName| {
            let mut found = facts.tables.iter();
            found.any(|(name, facts)| {
                name == table && facts.as_ref().is_some_and(|facts| facts.kind == "r")
            })
        };
        *gap = tables.iter().all(ordinary).then(|| Gap {
            from: moment.known().max(slot.confirmed),
            to: facts.server.wal_end,
        });
    }
    error
}

/// Checks that the publication's column lists have the columns that the router reads, except
/// generated ones, which [`sends_columns`](super::table::sends_columns) checks.
pub fn carries_columns(
    wanted: &Wanted,
    facts: &Facts,
    publication: &PublicationFacts,
) -> Result<(), SetupError> {
    for published in &publication.tables {
        let Some(columns) = &published.columns else {
            continue;
        };
        if !wanted.tables.contains(&published.table) {
            continue;
        }
        let mut missing = columns_missing(wanted, columns);
        missing.retain(|column| !is_generated(wanted, facts, &published.table, column));
        if !missing.is_empty() {
            return Err(SetupError::Publication(PublicationSetupError::Columns {
                publication: wanted.publication.clone(),
                table: published.table.clone(),
                missing,
            }));
        }
    }
    Ok(())
}

fn is_generated(wanted: &Wanted, facts: &Facts, table: &TableName, column: &str) -> bool {
    let mut tables = facts.tables.iter();
    let found = tables.find(|(name, _)| name == table);
    let Some((_, Some(table))) = found else {
        return false;
    };
    let mut columns = table.columns.iter();
    columns.any(|found| {
        let mut names = wanted.column_names.names_of(column);
        found.generated.is_some() && names.any(|name| found.name == name)
    })
}
