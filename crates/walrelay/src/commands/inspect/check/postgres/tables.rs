//! Checks the outbox tables: their columns, their routes, their replica identity.

use walrelay_event_router::{Event, Router, Row, TableFacts as ColumnFacts};
use walrelay_lsn::{Lsn, RelationId, TypeOid};
use walrelay_pgoutput::{Column, Message, PgTimestamp, ReplicaIdentity, Value, decode, encode};
use walrelay_postgres_source::{
    PublishedOperations, Sample, SetupError, TableFacts, TableLock, TableSurvey, carries_columns,
    dead_rows, keys_elsewhere, lost_keys, missing_mark_rights, script, sends_columns, table_fits,
    tells_age,
};
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident};

use super::{Addresses, DatabaseState, add_address, check_result};
use crate::commands::assembly::dead_letter_store;
use crate::commands::database::prune::{LOST_KEYS, elsewhere_remedy};
use crate::commands::inspect::check::item::Check;
use crate::failures;

/// Checks that each table exists, is of a kind that can be published, and has the columns that the
/// router reads.
pub(super) fn tables(db: &DatabaseState<'_>) -> impl Iterator<Item = Check> {
    db.facts.tables.iter().map(|(name, found)| {
        let partitioned = found.as_ref().is_some_and(|table| table.kind == "p");
        let kind = if partitioned { ", partitioned" } else { "" };
        check_result(
            fits(db, name, found.as_ref()),
            format!("{name} has the columns that the router reads{kind}"),
        )
    })
}

/// Checks that no session locks an outbox table: neither services nor `check` can use its rows
/// meanwhile.
pub(super) fn locks(locks: &[TableLock]) -> Check {
    let Some(remedy) = TableLock::remedy(locks) else {
        return Check::pass("no session keeps services from writing to an outbox table");
    };
    let holders: Vec<String> = locks.iter().map(ToString::to_string).collect();
    Check::warn(holders.join("; "), remedy)
}

/// Checks that a table has the columns that the router reads, that the server sends them, and that
/// `[prune]` can tell a row's age.
fn fits(
    db: &DatabaseState<'_>,
    name: &TableName,
    found: Option<&TableFacts>,
) -> Result<(), SetupError> {
    table_fits(&db.wanted, name, found, &db.facts.others)?;
    sends_columns(&db.wanted, &db.facts, name)?;
    tells_age(&db.wanted, name, found)
}

/// Compiles the routes for the present columns of the tables. Adds the addresses of sampled rows to
/// `addresses`.
pub(super) fn routes(
    db: &DatabaseState<'_>,
    mut router: Router,
    described: Vec<ColumnFacts>,
    samples: &[(TableName, Sample)],
    addresses: &mut Addresses,
) -> Vec<Check> {
    router.describe(described);
    let mut checks = Vec::new();
    let published = db.facts.publication.as_ref();
    let carried = published.is_none_or(|of| carries_columns(&db.wanted, &db.facts, of).is_ok());
    for ((name, table), id) in db.facts.tables.iter().zip(1..) {
        // Missing columns are reported by the check of the table or of the publication.
        let Some(table) = table
            .as_ref()
            .filter(|table| carried && fits(db, name, Some(table)).is_ok())
        else {
            continue;
        };
        let id = RelationId::new(id);
        let columns = db.facts.sent(name, table);
        let columns = columns.iter().map(|(column, oid, modifier)| Column {
            name: column,
            is_key: false,
            type_oid: TypeOid::new(*oid),
            type_modifier: *modifier,
        });
        let identity = ReplicaIdentity::Default;
        let message = encode::relation(id, &name.schema, &name.name, identity, columns);
        let Ok(Message::Relation(relation)) = decode(&message) else {
            unreachable!("a Relation message was made")
        };
        checks.push(match router.relation(&relation) {
            Ok(()) => {
                let sample = samples.iter().find(|(of, _)| of == name);
                let rows = sample.map_or(&[][..], |(_, sample)| &sample.rows);
                add_addresses(&mut router, id, rows, addresses);
                Check::pass(format!("the rows of {name} can be routed"))
            }
            Err(error) => {
                let what = format!("rows of {name} cannot be routed");
                Check::failed(failures::plan(&what, error))
            }
        });
    }
    checks
}

/// Adds the addresses of these rows. A row that cannot be routed is ignored: samples lack long values.
fn add_addresses(
    router: &mut Router,
    relation: RelationId,
    rows: &[Vec<Option<String>>],
    addresses: &mut Addresses,
) {
    let event = Event {
        epoch: 0,
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
            let routed = router.routed(&read);
            add_address(addresses, routed.topic(), routed.routing_key());
        }
    }
}

/// Checks the rights to mark rows, if rows are marked, and the stored keys of dead letters. A standby has no rights of its
/// own.
pub(super) async fn marks(
    session: &mut Session,
    db: &DatabaseState<'_>,
) -> Result<Vec<Check>, Error> {
    if db.wanted.marks.is_none() || db.facts.server.in_recovery {
        return Ok(Vec::new());
    }
    let role = &db.survey.role;
    let missing = missing_mark_rights(session, &db.wanted, role).await?;
    let lost = lost_keys(session, &db.wanted.slot, &db.wanted.tables).await?;
    let mut checks = vec![if missing.is_empty() {
        Check::pass(format!("role {role} may mark rows"))
    } else {
        let what: Vec<&str> = missing.iter().map(|right| right.what.as_str()).collect();
        let grants = missing.iter().filter_map(|right| right.grant.clone());
        let mut remedy: Vec<String> = grants.collect();
        if missing.iter().any(|right| right.grant.is_none()) {
            remedy.push(format!(
                "as a user who may create it: walrelay init --role {role}"
            ));
        }
        Check::warn(
            format!(
                "rows stay unmarked: role {role} may not {}",
                what.join(", nor ")
            ),
            remedy.join(" "),
        )
    }];
    checks.extend(
        lost.iter()
            .map(|lost| Check::warn(lost.to_string(), LOST_KEYS)),
    );
    let lacking = dead_rows::missing_columns(session).await?;
    if !lacking.is_empty() {
        let what = format!(
            "walrelay_state.dead lacks the columns {}: an earlier version created it, so keys are neither stored nor read",
            lacking.join(", ")
        );
        checks.push(Check::warn(
            what,
            format!("with mark_dead set, as a user who may alter it: walrelay init --role {role}"),
        ));
        return Ok(checks);
    }
    // Another item names a sink that cannot be configured.
    if let Ok(store) = dead_letter_store(db.config) {
        let elsewhere = keys_elsewhere(session, &db.wanted.slot, &store).await?;
        checks.extend(
            elsewhere
                .iter()
                .map(|keys| Check::warn(keys.to_string(), elsewhere_remedy(keys))),
        );
    }
    Ok(checks)
}

/// Checks the replica identity of each table that exists.
pub(super) fn identities(db: &DatabaseState<'_>) -> impl Iterator<Item = Check> {
    let surveyed = db.survey.tables.iter();
    surveyed.filter_map(|(name, table)| {
        let facts = db.facts.tables.iter().find(|(of, _)| of == name);
        let facts = facts?.1.as_ref()?;
        let carried = db.survey.publication.as_ref();
        let publication = &db.wanted.publication;
        Some(identity(name, table, facts, publication, carried))
    })
}

/// Checks the replica identity of a table. Only UPDATE and DELETE need one, if the publication
/// carries them.
fn identity(
    name: &TableName,
    table: &TableSurvey,
    facts: &TableFacts,
    publication: &str,
    carried: Option<&PublishedOperations>,
) -> Check {
    let none = table.identity == "n" || (table.identity == "d" && !table.primary_key);
    let carries =
        carried.is_some_and(|of| of.others.iter().any(|operation| *operation != "truncate"));
    if none && carries {
        return Check::warn(
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
            format!(
                "{name} has REPLICA IDENTITY FULL: each deletion writes the whole row to the WAL"
            ),
            format!(
                "ALTER TABLE {} REPLICA IDENTITY DEFAULT; unless another publication needs it",
                script::table(name)
            ),
        );
    }
    Check::pass(format!("of {name}: none is needed for insertions"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::inspect::check::item::Verdict;

    #[test]
    fn an_identity_is_needed_for_updates_and_deletes() {
        let name = TableName {
            schema: "public".into(),
            name: "outbox".into(),
        };
        let facts = |kind: &str| TableFacts {
            kind: kind.into(),
            ..TableFacts::default()
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
