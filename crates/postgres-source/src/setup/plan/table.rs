//! The tables' part of a plan: their kind, and the columns that the relay reads.

use walrelay_relay::TableName;
use walrelay_settings::nearest;

use crate::assigned::assigned_columns;
use crate::catalog::{ColumnFacts, Facts, TableFacts, Wanted};
use crate::error::{GeneratedColumn, SetupError, TableSetupError};

/// `oid`: the number of a large object (`pg_type.dat`). Large objects are not replicated: "Logical
/// Replication", "Restrictions" in the documentation of Postgres.
const LARGE_OBJECT: u32 = 26;

/// Checks that a wanted table exists, can be published, and has the columns that the router reads.
/// `others`: the tables that it may mean if it does not exist.
pub fn table(
    wanted: &Wanted,
    name: &TableName,
    found: Option<&TableFacts>,
    others: &[TableName],
) -> Result<(), SetupError> {
    let Some(table) = found else {
        let names: Vec<String> = others.iter().map(ToString::to_string).collect();
        let near = nearest(&name.to_string(), names.iter().map(String::as_str));
        let near = others
            .iter()
            .find(|other| Some(&*other.to_string()) == near);
        return Err(SetupError::Table(TableSetupError::Missing {
            table: name.clone(),
            near: near.cloned(),
        }));
    };
    if !matches!(table.kind.as_str(), "r" | "p") || !table.permanent {
        return Err(SetupError::Table(TableSetupError::Kind(name.clone())));
    }
    if !table.unlogged.is_empty() {
        return Err(SetupError::Table(TableSetupError::PartitionKind {
            table: name.clone(),
            partitions: table.unlogged.clone(),
        }));
    }
    let columns = table.columns.iter();
    let present: Vec<String> = columns.map(|column| column.name.clone()).collect();
    let missing = columns_missing(wanted, &present);
    if !missing.is_empty() {
        return Err(SetupError::Table(TableSetupError::ColumnsMissing {
            table: name.clone(),
            missing,
            present,
            by_templates: wanted.by_templates,
        }));
    }
    let is_content = |column: &&ColumnFacts| {
        let content = wanted.content.iter();
        let mut names = content.flat_map(|content| wanted.column_names.names_of(content));
        names.any(|name| name == column.name)
    };
    let mut content = table.columns.iter().filter(is_content);
    if let Some(column) = content.find(|column| column.base_oid == LARGE_OBJECT) {
        return Err(SetupError::Table(TableSetupError::LargeObject {
            table: name.clone(),
            column: column.name.clone(),
        }));
    }
    let sets = wanted.marks.iter().chain(&wanted.dead_marks);
    let mut set = sets.flat_map(|set| assigned_columns(set));
    if let Some(column) = set.find(|column| table.partition_key.contains(column)) {
        return Err(SetupError::Table(TableSetupError::MarkMovesRows {
            table: name.clone(),
            column,
        }));
    }
    Ok(())
}

/// Checks that a table has a column that shows a row's age, if old rows are to be deleted.
pub fn tells_age(
    wanted: &Wanted,
    name: &TableName,
    found: Option<&TableFacts>,
) -> Result<(), SetupError> {
    let Some(table) = found.filter(|_| !wanted.age.is_empty()) else {
        return Ok(());
    };
    let mut columns = table.columns.iter();
    if columns.any(|column| wanted.age.contains(&column.name)) {
        return Ok(());
    }
    Err(SetupError::Table(TableSetupError::AgeUnknown {
        table: name.clone(),
        wanted: wanted.age.clone(),
    }))
}

/// Checks that the server sends the generated columns of a table that the router reads.
///
/// Source: the documentation of `publish_generated_columns` in CREATE PUBLICATION. Postgres 18 and
/// newer publish stored generated columns; no version publishes virtual ones.
pub fn sends_columns(wanted: &Wanted, facts: &Facts, name: &TableName) -> Result<(), SetupError> {
    let mut tables = facts.tables.iter();
    let Some((_, Some(table))) = tables.find(|(of, _)| of == name) else {
        return Ok(());
    };
    let publication = facts.publication.as_ref();
    let published = publication.and_then(|publication| {
        let mut tables = publication.tables.iter();
        tables
            .find(|published| published.table == *name)?
            .columns
            .as_ref()
    });
    let listed = |column: &str| {
        facts.server.major >= 18
            && published.is_some_and(|columns| columns.iter().any(|listed| listed == column))
    };
    let read = table
        .columns
        .iter()
        .filter(|of| wanted.names().any(|name| name == of.name));
    for column in read {
        let Some(generated) = column.generated.filter(|_| !listed(&column.name)) else {
            continue;
        };
        return Err(SetupError::Table(TableSetupError::ColumnGenerated(
            GeneratedColumn {
                table: name.clone(),
                column: column.name.clone(),
                generated,
                publication: wanted.publication.clone(),
                published: publication.is_some(),
                major: facts.server.major,
            },
        )));
    }
    Ok(())
}

/// Returns the columns that the router reads and that are not in `present`, under any of their
/// names.
pub(super) fn columns_missing(wanted: &Wanted, present: &[String]) -> Vec<String> {
    let columns = wanted.columns.iter();
    let missing = columns.filter(|column| wanted.found(column, present).is_none());
    missing.cloned().collect()
}
