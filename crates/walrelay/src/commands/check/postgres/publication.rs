//! The publication: whether it carries what the relay reads, and nothing else.

use walrelay_walsender::quote_ident;

use super::Seen;
use crate::cli::{Exit, Failure};
use crate::commands::check::item::{Check, Item, Verdict};
use crate::failures;
use crate::postgres::{
    Plan, PublicationFacts, SetupError, carries_columns, carries_inserts, carries_tables,
    no_publication, script,
};

/// All checks of the publication; of one that does not exist, whether `run` creates it. `lacking`: what the
/// role lacks to do so.
pub(super) fn publication(seen: &Seen<'_>, lacking: &[String]) -> Vec<Check> {
    let name = &seen.wanted.publication;
    let Some(publication) = &seen.facts.publication else {
        let created = no_publication(seen.wanted, seen.facts, seen.moment, &mut Plan::default());
        return vec![match created {
            Err(error) => failed(Item::Publication, error),
            Ok(()) if lacking.is_empty() => Check::pass(
                Item::Publication,
                format!("{name} does not exist: run creates it"),
            ),
            Ok(()) => Check::failed(Item::Publication, &cannot_publish(name, lacking)),
        }];
    };
    let mut checks = vec![
        Check::pass(Item::Publication, format!("{name} exists")),
        operations(seen, publication),
    ];
    let partitions = partitions(seen, publication);
    let by_root = !is_failure(&partitions);
    checks.push(partitions);
    // Partitions in place of their root are one mistake, not two.
    if by_root {
        checks.push(match carries_tables(seen.wanted, publication) {
            Ok(()) => Check::pass(
                Item::PublishedTables,
                format!("{name} carries the outbox tables and no others"),
            ),
            Err(error) => failed(Item::PublishedTables, error),
        });
    }
    checks.push(match carries_columns(seen.wanted, publication) {
        Ok(()) => Check::pass(
            Item::PublishedColumns,
            "no column list leaves out what the router reads",
        ),
        Err(error) => failed(Item::PublishedColumns, error),
    });
    checks.push(rows(seen, publication));
    checks
}

fn is_failure(check: &Check) -> bool {
    matches!(check.verdict, Verdict::Fail { .. })
}

fn failed(item: Item, error: SetupError) -> Check {
    Check::failed(item, &failures::postgres(error.into()))
}

fn operations(seen: &Seen<'_>, publication: &PublicationFacts) -> Check {
    let item = Item::Operations;
    if let Err(error) = carries_inserts(seen.wanted, publication) {
        return failed(item, error);
    }
    let carried = seen.survey.publication.as_ref();
    let others = carried.map_or(&[][..], |of| &of.others);
    if others.is_empty() {
        return Check::pass(item, "insert");
    }
    Check::warn(
        item,
        format!(
            "it also carries {}, which are decoded and sent to the relay for nothing",
            others.join(", ")
        ),
        format!(
            "ALTER PUBLICATION {} SET (publish = 'insert');",
            quote_ident(&seen.wanted.publication)
        ),
    )
}

/// Rows of a partitioned table have to be announced under its name.
fn partitions(seen: &Seen<'_>, publication: &PublicationFacts) -> Check {
    let item = Item::Partitions;
    let partitioned = seen.facts.tables.iter().filter_map(|(name, table)| {
        let partitioned = table.as_ref().is_some_and(|table| table.kind == "p");
        let listed = publication.tables.iter().any(|p| p.table == *name);
        partitioned.then_some((name, listed))
    });
    let partitioned: Vec<_> = partitioned.collect();
    let via_root = seen
        .survey
        .publication
        .as_ref()
        .is_some_and(|of| of.via_root);
    let Some((name, _)) = partitioned.iter().find(|(_, listed)| !listed) else {
        let none = if partitioned.is_empty() {
            "no outbox table is partitioned"
        } else {
            "rows of partitions are sent as those of their table"
        };
        return Check::pass(item, none);
    };
    if via_root {
        // It is not in the publication at all.
        return Check::pass(item, "rows of partitions are sent as those of their table");
    }
    let publication = &seen.wanted.publication;
    Check::fail(
        item,
        ("publication-lacks-table", Exit::Config),
        format!("publication {publication} announces the partitions of {name}, not the table"),
        format!(
            "ALTER PUBLICATION {} SET (publish_via_partition_root = true);",
            quote_ident(publication)
        ),
    )
}

fn rows(seen: &Seen<'_>, publication: &PublicationFacts) -> Check {
    let filtered: Vec<String> = publication
        .filtered()
        .map(|(table, filter)| format!("only the rows of {table} for which {filter}"))
        .collect();
    if filtered.is_empty() {
        return Check::pass(Item::RowFilter, "all rows are carried");
    }
    Check::warn(
        Item::RowFilter,
        format!("it carries {}", filtered.join(", ")),
        format!(
            "ALTER PUBLICATION {} SET TABLE {}; unless the others are meant to stay",
            quote_ident(&seen.wanted.publication),
            script::tables(&seen.wanted.tables)
        ),
    )
}

/// `run` would have to create the publication, and could not.
fn cannot_publish(publication: &str, lacking: &[String]) -> Failure {
    let what = format!("publication {publication} does not exist, and the role may not create it");
    Failure::new("privilege", Exit::Denied, what)
        .caused_by(format!("the role lacks {}", lacking.join(" and ")))
        .remedy(
            "run walrelay init, or the SQL of walrelay init --dry-run, as an administrator; the relay \
             itself then needs REPLICATION only",
        )
}
