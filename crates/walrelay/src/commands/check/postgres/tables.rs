//! The outbox tables: what they are, and whether their rows can be routed.

use walrelay_event_router::{Event, Router, Row, TableFacts as ColumnFacts};
use walrelay_lsn::{Lsn, RelationId, TypeOid};
use walrelay_pgoutput::{Column, Message, PgTimestamp, ReplicaIdentity, Value, decode, encode};
use walrelay_relay::TableName;
use walrelay_walsender::quote_ident;

use super::Seen;
use crate::commands::check::item::{Check, Item};
use crate::failures;
use crate::postgres::{
    PublishedOperations, Sample, TableFacts, TableSurvey, carries_columns, script, table_fits,
};

/// Whether each table exists, is published by kind, and has the columns that the router reads.
pub(super) fn tables(seen: &Seen<'_>) -> Vec<Check> {
    let tables = seen.facts.tables.iter();
    tables
        .map(
            |(name, found)| match table_fits(seen.wanted, name, found.as_ref()) {
                Ok(()) => {
                    let kind = found.as_ref().is_some_and(|table| table.kind == "p");
                    let kind = if kind { ", partitioned" } else { "" };
                    Check::pass(
                        Item::Table,
                        format!("{name} has the columns that the router reads{kind}"),
                    )
                }
                Err(error) => Check::failed(Item::Table, &failures::postgres(error.into())),
            },
        )
        .collect()
}

/// Compiles the routes for the tables as they are now: names and types of columns. Topics of sampled rows
/// are added to `topics`.
pub(super) fn routes(
    seen: &Seen<'_>,
    mut router: Router,
    described: Vec<ColumnFacts>,
    samples: &[(TableName, Sample)],
    topics: &mut Vec<String>,
) -> Vec<Check> {
    router.describe(described);
    let mut checks = Vec::new();
    for ((name, table), id) in seen.facts.tables.iter().zip(1..) {
        // What is missing is reported where it is missing: of the table, or of the publication.
        let Some(table) = table.as_ref().filter(|table| {
            let published = seen.facts.publication.as_ref();
            table_fits(seen.wanted, name, Some(table)).is_ok()
                && published.is_none_or(|of| carries_columns(seen.wanted, of).is_ok())
        }) else {
            continue;
        };
        let id = RelationId::new(id);
        let columns = seen.facts.sent(name, table);
        let columns = columns.iter().map(|(column, oid, modifier)| Column {
            name: column,
            is_key: false,
            type_oid: TypeOid::new(*oid),
            type_modifier: *modifier,
        });
        let identity = ReplicaIdentity::Default;
        let message = encode::relation(id, &name.schema, &name.name, identity, columns);
        match decode(&message) {
            Ok(Message::Relation(relation)) => match router.relation(&relation) {
                Ok(()) => {
                    let sample = samples.iter().find(|(of, _)| of == name);
                    let rows = sample.map_or(&[][..], |(_, sample)| &sample.rows);
                    add_topics(&mut router, id, rows, topics);
                    checks.push(Check::pass(
                        Item::TableRoute,
                        format!("the rows of {name} can be routed"),
                    ));
                }
                Err(error) => {
                    let what = format!("rows of {name} cannot be routed");
                    checks.push(Check::failed(
                        Item::TableRoute,
                        &failures::plan(&what, error),
                    ));
                }
            },
            other => unreachable!("a Relation message was made: {other:?}"),
        }
    }
    checks
}

/// The topics of these rows, as the router names them. Rows that it cannot route name none: their long
/// values are missing.
fn add_topics(
    router: &mut Router,
    relation: RelationId,
    rows: &[Vec<Option<String>>],
    topics: &mut Vec<String>,
) {
    let event = Event {
        commit_lsn: Lsn::new(0),
        row: 0,
        commit_time: PgTimestamp::new(0),
    };
    for row in rows {
        let values: Vec<Value<'_>> = row
            .iter()
            .map(|value| {
                value
                    .as_deref()
                    .map_or(Value::Null, |text| Value::Text(text.as_bytes()))
            })
            .collect();
        let message = encode::insert(relation, &values);
        let Ok(Message::Insert(insert)) = decode(&message) else {
            continue;
        };
        let mut read = Row::default();
        if router
            .read(insert.relation, &insert.tuple, &event, &mut read)
            .is_ok()
        {
            let topic = router.routed(&read).topic().to_owned();
            if !topics.contains(&topic) {
                topics.push(topic);
            }
        }
    }
}

/// An identity is needed for nothing but UPDATE and DELETE of a publication that carries them.
pub(super) fn identity(
    name: &TableName,
    table: &TableSurvey,
    facts: &TableFacts,
    publication: &str,
    carried: Option<&PublishedOperations>,
) -> Check {
    let item = Item::ReplicaIdentity;
    let none = table.identity == "n" || (table.identity == "d" && !table.primary_key);
    let carries =
        carried.is_some_and(|of| of.others.iter().any(|operation| *operation != "truncate"));
    if none && carries {
        return Check::warn(
            item,
            format!(
                "{name} has no replica identity, and publication {publication} carries updates or \
                 deletions: the server refuses both on the table"
            ),
            format!(
                "ALTER PUBLICATION {} SET (publish = 'insert');",
                quote_ident(publication)
            ),
        );
    }
    if table.identity == "f" && facts.kind == "r" {
        return Check::warn(
            item,
            format!(
                "{name} has REPLICA IDENTITY FULL: each deletion writes the whole row to the WAL"
            ),
            format!(
                "ALTER TABLE {} REPLICA IDENTITY DEFAULT; unless another publication needs it",
                script::table(name)
            ),
        );
    }
    Check::pass(item, format!("of {name}: none is needed for insertions"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::item::Verdict;

    #[test]
    fn an_identity_is_needed_for_what_is_not_an_insert() {
        let name = TableName {
            schema: "public".into(),
            name: "outbox".into(),
        };
        let facts = |kind: &str| TableFacts {
            columns: Vec::new(),
            types: Vec::new(),
            generated: Vec::new(),
            kind: kind.into(),
            permanent: true,
        };
        let table = |identity: &str, primary_key| TableSurvey {
            identity: identity.into(),
            primary_key,
            readable: true,
        };
        let inserts = PublishedOperations::default();
        let deletes = PublishedOperations {
            others: vec!["delete"],
            via_root: false,
        };
        let (inserts, deletes) = (&inserts, &deletes);
        for (identity_of, kind, carried, warns) in [
            (table("d", true), "r", Some(deletes), false),
            (table("d", false), "r", Some(deletes), true),
            (table("d", false), "r", Some(inserts), false),
            (table("n", true), "r", Some(deletes), true),
            (table("n", true), "r", None, false),
            (table("f", false), "r", Some(deletes), true),
            (table("i", true), "p", Some(deletes), false),
        ] {
            let check = identity(&name, &identity_of, &facts(kind), "walrelay", carried);
            let warned = check.verdict == Verdict::Warn;
            assert_eq!(warned, warns, "{identity_of:?} {carried:?}: {check:?}");
        }
    }
}
