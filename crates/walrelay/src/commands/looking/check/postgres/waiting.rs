//! Checks what waits in the slot: the log has tables and columns of then, the catalogs those of now.

use std::sync::Arc;

use walrelay_checkpoint::AckRing;
use walrelay_event_router::{Router, TableFacts as ColumnFacts};
use walrelay_lsn::{CommitEnd, Lsn, RelationId};
use walrelay_pgoutput::{Message, decode};
use walrelay_postgres_source::{SetupError, WAL_LIMIT, WaitingRows, place, waiting};
use walrelay_relay::{Core, CoreError, Placement, PoisonDecisions, RecordSpace, TableName};
use walrelay_walsender::{ConnInfo, Error, Frame, Session};

use super::tables::add_address;
use super::{Addresses, DatabaseState, failed};
use crate::commands::assembly::server::failure;
use crate::commands::assembly::settings;
use crate::commands::looking::check::item::Check;
use crate::commands::terminal::units::bytes;
use crate::failures;

/// Passes the tables that wait in the slot to a relay's core, which returns the errors of `run`.
/// `None`: there is no slot or publication to look at, which other checks report.
pub(super) async fn check(
    info: &ConnInfo,
    session: &mut Session,
    db: &DatabaseState<'_>,
    (router, of_addresses): (Router, Router),
    described: Vec<ColumnFacts>,
    addresses: &mut Addresses,
) -> Option<Vec<Check>> {
    let slot = db.facts.slot.as_ref()?;
    let ours = slot.plugin.as_deref() == Some("pgoutput")
        && slot.database.as_deref() == Some(&db.facts.server.database);
    let confirmed = slot.confirmed?;
    if !ours || slot.lost().is_some() || db.facts.publication.is_none() {
        return None;
    }
    let found = async {
        let waiting = waiting(info, &db.wanted, confirmed).await?;
        add_addresses(db, of_addresses, described.clone(), &waiting, addresses);
        place_all(session, db, router, described, waiting.relations).await
    };
    Some(match found.await {
        Ok(found) if found.failed.is_empty() && found.passed_over.is_empty() => {
            vec![Check::pass(format!(
                "{} has nothing that run would stop at",
                looked_at(db, confirmed)
            ))]
        }
        Ok(found) => {
            let warnings = found.passed_over.iter().map(|table| {
                Check::warn(
                    format!(
                        "rows of table {table} wait in the slot: no outbox, run passes them over"
                    ),
                    "if they are events, add the table to [source] tables before the next start",
                )
            });
            found.failed.into_iter().chain(warnings).collect()
        }
        Err(error) if error.lacks_publication() => {
            vec![failed(SetupError::PublicationNotYet {
                publication: db.wanted.publication.clone(),
                slot: db.wanted.slot.clone(),
                at: confirmed,
            })]
        }
        Err(error) => {
            let finding = format!("what waits in the slot is not seen: {error}");
            let remedy = failure(error).remedy;
            let remedy = remedy.unwrap_or_default();
            vec![Check::warn(
                finding,
                format!(
                    "check looks at a copy of the slot, over a connection of its own: {remedy}"
                ),
            )]
        }
    })
}

/// Adds the addresses of the first rows that wait in the outbox tables. The role need not be allowed to read
/// these.
fn add_addresses(
    db: &DatabaseState<'_>,
    mut router: Router,
    described: Vec<ColumnFacts>,
    waiting: &WaitingRows,
    addresses: &mut Addresses,
) {
    router.describe(described);
    for body in &waiting.relations {
        if let Ok(Message::Relation(relation)) = decode(body) {
            let table = TableName::new(relation.namespace, relation.name);
            // The item of the waiting rows reports a table that cannot be routed.
            if db.wanted.tables.contains(&table) {
                let _ = router.relation(&relation);
            }
        }
    }
    for body in &waiting.inserts {
        if let Ok(Message::Insert(insert)) = decode(body) {
            add_address(&mut router, &insert, addresses);
        }
    }
}

/// Returns the part of the WAL that was looked at.
fn looked_at(db: &DatabaseState<'_>, confirmed: Lsn) -> String {
    let behind = db
        .facts
        .server
        .wal_end
        .map(|end| end.bytes_since(confirmed));
    match behind {
        Some(behind) if behind > WAL_LIMIT => {
            format!(
                "the first {} of {} that wait",
                bytes(WAL_LIMIT),
                bytes(behind)
            )
        }
        _ => "the log that waits".to_owned(),
    }
}

/// The checks that failed, and the tables that are passed over.
#[derive(Default)]
struct Found {
    failed: Vec<Check>,
    passed_over: Vec<TableName>,
}

async fn place_all(
    session: &mut Session,
    db: &DatabaseState<'_>,
    router: Router,
    described: Vec<ColumnFacts>,
    relations: Vec<Vec<u8>>,
) -> Result<Found, Error> {
    let settings = settings(db.config, None, None, None);
    let ring = Arc::new(AckRing::new(1));
    let confirmed = CommitEnd::from_slot(Lsn::ZERO);
    let mut core = Core::new(router, settings.tables, ring, confirmed)
        .with_decisions(PoisonDecisions::new(settings.poison))
        .passing_over(settings.pass_over);
    core.describe(described);
    let mut found = Found::default();
    for body in relations {
        let mut placed = announce(&mut core, &body);
        if let Ok(Some(id)) = placed {
            let place = place(session, &db.wanted.tables, id).await?;
            placed = core.place(id, place).map(|placement| {
                if let Some(Placement::PassedOver(table)) = placement
                    && !found.passed_over.contains(&table)
                {
                    found.passed_over.push(table);
                }
                None
            });
        }
        if let Err(error) = placed {
            let check = Check::failed(failures::core(error));
            if !found.failed.contains(&check) {
                found.failed.push(check);
            }
        }
    }
    Ok(found)
}

/// Passes a Relation message to the core. Returns the relation, which may have to be placed.
fn announce(core: &mut Core, body: &[u8]) -> Result<Option<RelationId>, CoreError> {
    let frame = Frame::XLogData {
        start: Lsn::ZERO,
        end: Lsn::ZERO,
        sent_at: 0,
        body,
    };
    core.frame(&frame, &mut RecordSpace::default())?;
    Ok(match decode(body) {
        Ok(Message::Relation(relation)) => Some(relation.id),
        _ => None,
    })
}
