//! Checks whether the publication carries what the relay reads, and nothing else.

use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::{
    ColumnFacts, Plan, PublicationFacts, carries_columns, carries_inserts, carries_tables,
    lacking_to_publish, no_publication, script,
};
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident};

use super::{DatabaseState, check_result, failed};
use crate::commands::inspect::check::item::{Check, Checks, Item, Verdict};

/// The types `date`, `timestamp` and `timestamptz` (`pg_type.dat`).
const TIMES: [u32; 3] = [1082, 1114, 1184];

/// Checks a publication that does not exist: whether `run` creates it.
pub(super) async fn missing(session: &mut Session, db: &DatabaseState<'_>) -> Result<Check, Error> {
    let name = &db.wanted.publication;
    let created = no_publication(&db.wanted, &db.facts, db.moment, &mut Plan::default());
    if let Err(error) = created {
        return Ok(failed(error));
    }
    let lacking = lacking_to_publish(session, &db.wanted).await?;
    Ok(if lacking.is_empty() {
        Check::pass(format!("{name} does not exist: run creates it"))
    } else {
        Check::failed(cannot_publish(name, &lacking))
    })
}

/// Makes all checks of a publication that exists.
pub(super) fn existing(db: &DatabaseState<'_>, publication: &PublicationFacts) -> Checks {
    let name = &db.wanted.publication;
    let exists = Check::pass(format!("{name} exists"));
    let partitions = partitions(db, publication);
    let by_root = !matches!(partitions.verdict, Verdict::Fail { .. });
    let mut checks = vec![
        (Item::Publication, exists),
        (Item::Operations, operations(db, publication)),
        (Item::Partitions, partitions),
    ];
    // If partitions are announced in place of their root, this check would report the same mistake
    // again.
    let mut wanted = db.facts.tables.iter();
    if let Some((table, _)) = wanted.find(|(_, found)| found.is_none()) {
        // The check of the table says what is wrong. A remedy for the publication would name a table
        // that does not exist.
        let finding = format!("not compared: table {table} does not exist");
        let check = Check::warn(finding, "correct [source] tables first: see the item table");
        checks.push((Item::PublishedTables, check));
    } else if by_root {
        let tables = carries_tables(&db.wanted, publication);
        let finding = format!("{name} carries the outbox tables and no others");
        checks.push((Item::PublishedTables, check_result(tables, finding)));
    }
    let columns = carries_columns(&db.wanted, &db.facts, publication);
    let finding = "no column list leaves out a column that the router reads";
    checks.push((Item::PublishedColumns, check_result(columns, finding)));
    checks.push((Item::RowFilter, rows(db, publication)));
    checks
}

fn operations(db: &DatabaseState<'_>, publication: &PublicationFacts) -> Check {
    if let Err(error) = carries_inserts(&db.wanted, publication) {
        return failed(error);
    }
    let carried = db.survey.publication.as_ref();
    let others = carried.map_or(&[][..], |of| &of.others);
    if others.is_empty() {
        return Check::pass("insert");
    }
    let consequence = if publication.update && publication.filtered().next().is_some() {
        ": with a row filter, an UPDATE that makes a row fit is an INSERT in the log, and sent as an event"
    } else {
        ", which are decoded and sent to the relay for nothing"
    };
    Check::warn(
        format!("it also carries {}{consequence}", others.join(", ")),
        format!(
            "ALTER PUBLICATION {} SET (publish = 'insert');",
            quote_ident(&db.wanted.publication)
        ),
    )
}

/// Checks that rows of a partitioned table are announced under the table's name.
fn partitions(db: &DatabaseState<'_>, publication: &PublicationFacts) -> Check {
    let tables = db.facts.tables.iter();
    let partitioned =
        tables.filter(|(_, table)| table.as_ref().is_some_and(|table| table.kind == "p"));
    let mut partitioned = partitioned.map(|(name, _)| name).peekable();
    if partitioned.peek().is_none() {
        return Check::pass("no outbox table is partitioned");
    }
    let listed = |name: &TableName| publication.tables.iter().any(|p| p.table == *name);
    let via_root = db.survey.publication.as_ref().is_some_and(|of| of.via_root);
    // With `via_root`, a table that is not listed is not in the publication at all, which another
    // check reports.
    let Some(name) = partitioned.find(|name| !listed(name) && !via_root) else {
        return moves(db)
            .unwrap_or_else(|| Check::pass("rows of partitions are sent as those of their table"));
    };
    let publication = &db.wanted.publication;
    Check::fail(
        ("publication-lacks-table", Exit::Config),
        format!("publication {publication} announces the partitions of {name}, not the table"),
        format!(
            "ALTER PUBLICATION {} SET (publish_via_partition_root = true);",
            quote_ident(publication)
        ),
    )
}

/// Returns a warning about a partition key that an UPDATE may change: neither a time nor a column of the
/// event.
fn moves(db: &DatabaseState<'_>) -> Option<Check> {
    for (name, table) in &db.facts.tables {
        let Some(table) = table else {
            continue;
        };
        let keys = table.columns.iter();
        let mut keys = keys.filter(|column| table.partition_key.contains(&column.name));
        let is_lasting = |column: &ColumnFacts| {
            TIMES.contains(&column.base_oid)
                || column.identity
                || db.wanted.names().any(|name| name == column.name)
                || db.wanted.age.contains(&column.name)
        };
        if let Some(column) = keys.find(|column| !is_lasting(column)) {
            return Some(Check::warn(
                format!(
                    "{name} is partitioned by {}: an UPDATE that changes it moves the row to another partition, which is \
                     an INSERT in the log, and the event is sent again",
                    column.name
                ),
                "partition the outbox by the time or the id of its events, and keep changing \
                 values in other columns; or never change it",
            ));
        }
        if let Some(warning) = table.foreign_warning(name) {
            return Some(Check::warn(
                warning,
                "insert events into ordinary partitions only: let the foreign ones have old rows",
            ));
        }
    }
    None
}

fn rows(db: &DatabaseState<'_>, publication: &PublicationFacts) -> Check {
    if let Err(error) = &db.carried {
        return failed(error.clone());
    }
    let filtered: Vec<String> = publication
        .filtered()
        .map(|(table, filter)| format!("only the rows of {table} for which {filter}"))
        .collect();
    if filtered.is_empty() {
        return Check::pass("all rows are carried");
    }
    Check::warn(
        format!("it carries {}", filtered.join(", ")),
        format!(
            "ALTER PUBLICATION {} SET TABLE {}; unless the others are meant to stay",
            quote_ident(&db.wanted.publication),
            script::tables(&db.wanted.tables)
        ),
    )
}

/// Returns the failure that `run` would have to create the publication, and the role may not.
fn cannot_publish(publication: &str, lacking: &[String]) -> Failure {
    let what = format!("publication {publication} does not exist, and the role may not create it");
    Failure::new("privilege", Exit::Denied, what)
        .caused_by(format!("the role lacks {}", lacking.join(" and ")))
        .remedy(
            "run walrelay init, or the SQL of walrelay init --dry-run, as an administrator; the relay \
             itself then needs REPLICATION only",
        )
}
