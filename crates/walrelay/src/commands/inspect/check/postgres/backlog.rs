//! Checks what waits in the slot: the log has tables and columns of then, the catalogs those of now.

use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Seq};
use walrelay_event_router::TableFacts as ColumnFacts;
use walrelay_failure::Failure;
use walrelay_lsn::{CommitEnd, Lsn, RelationId};
use walrelay_pgoutput::{Message, decode};
use walrelay_postgres_source::{
    PostgresError, PublicationSetupError, SetupError, WAL_LIMIT, place, waiting,
};
use walrelay_relay::{
    Core, CoreError, OnUpdate, PipelineError, Placement, PoisonAction, PoisonDecisions,
    PoisonPolicy, RecordSpace, Step, TableName,
};
use walrelay_sink::{Record, SinkError, id_text};
use walrelay_sink_kind::SinkKind;
use walrelay_walsender::{ConnInfo, Error, Frame, Session};

use super::{Addresses, DatabaseState, add_address, failed};
use crate::commands::assembly::server::failure;
use crate::commands::assembly::sink::any_sink;
use crate::commands::assembly::{poison_policy, router, settings};
use crate::commands::inspect::check::item::Check;
use crate::commands::terminal::units::bytes;
use crate::failures;

/// Records of the changes that are read, at least.
const CHANGES: usize = 1 << 16;

/// Passes what waits in the slot to a relay's core, which returns the errors of `run`.
/// `None`: there is no slot or publication to look at, which other checks report. Adds the addresses of
/// events: the role need not be allowed to read the tables.
pub(super) async fn check(
    info: &ConnInfo,
    session: &mut Session,
    db: &DatabaseState<'_>,
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
    let first_changes = core_of(db, described.clone(), CHANGES)?;
    let tables = core_of(db, described, 1)?;
    let reading = async {
        let waiting = waiting(info, &db.wanted, confirmed).await?;
        let mut found = Found::default();
        if let Some(changes) = &waiting.changes {
            let mut walked = Walked {
                events: 0,
                addresses,
            };
            let stopped = walk(session, db, first_changes, changes, &mut walked).await?;
            found.failed.extend(stopped);
            found.events = Some(walked.events);
        }
        place_all(session, db, tables, waiting.relations, &mut found).await?;
        Ok::<_, Error>(found)
    };
    Some(match reading.await {
        Ok(found) if found.is_nothing() => {
            let looked_at = looked_at(db, confirmed);
            vec![match found.events {
                None => Check::warn(
                    format!(
                        "{looked_at} has no table that run would stop at; its first events could not be read in time"
                    ),
                    "run check again when the server is less busy",
                ),
                Some(events) => Check::pass(format!(
                    "{looked_at} has no table that run would stop at, and its first {events} event(s) can be routed \
                     and are within the limits of [sink.{}]",
                    db.config.sink.description().name
                )),
            }]
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
            vec![failed(SetupError::Publication(
                PublicationSetupError::NotYet {
                    publication: db.wanted.publication.clone(),
                    slot: db.wanted.slot.clone(),
                    at: confirmed,
                },
            ))]
        }
        Err(error) => {
            let finding = format!("the waiting log of the slot is not seen: {error}");
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
    /// The number of events that can be routed; `None` if they could not be read in time.
    events: Option<usize>,
}

impl Found {
    fn is_nothing(&self) -> bool {
        self.failed.is_empty() && self.passed_over.is_empty()
    }
}

/// The events that were passed so far.
struct Walked<'a> {
    /// The number of those that can be routed.
    events: usize,
    addresses: &'a mut Addresses,
}

impl Walked<'_> {
    fn add(&mut self, record: &Record<'_>) {
        self.events += 1;
        add_address(self.addresses, record.topic, record.routing_key);
    }
}

/// Makes the core of a relay of this configuration; `None` if its route cannot be used, which other checks report.
/// `records`: the most that are in flight.
fn core_of(db: &DatabaseState<'_>, described: Vec<ColumnFacts>, records: usize) -> Option<Core> {
    let (router, messages) = router(db.config).ok()?;
    let settings = settings(db.config, messages, None, None);
    let ring = Arc::new(AckRing::new(records));
    let confirmed = CommitEnd::from_slot(Lsn::ZERO);
    let mut core = Core::new(router, settings.tables, ring, confirmed)
        .with_messages(settings.messages)
        .with_decisions(PoisonDecisions::new(settings.poison))
        .passing_over(settings.pass_over)
        .stopping_at_updates(settings.on_update == OnUpdate::Stop);
    core.describe(described);
    Some(core)
}

/// Passes the first messages that wait to a relay's core, and their records to the limits of the sink, up to the
/// first error.
async fn walk(
    session: &mut Session,
    db: &DatabaseState<'_>,
    mut core: Core,
    changes: &[(Lsn, Vec<u8>)],
    walked: &mut Walked<'_>,
) -> Result<Option<Check>, Error> {
    let Ok(sink) = any_sink(db.config) else {
        return Ok(None);
    };
    let policy = poison_policy(db.config, None);
    let mut changes = changes.iter();
    let mut change = changes.next();
    while let Some((lsn, body)) = change {
        let stops = |failure| Ok(Some(Check::failed(failure)));
        match pass(&mut core, &*sink, &policy, (*lsn, body), walked) {
            Ok(Passed::Record(seq)) => {
                if let Err(error) = core.sent(seq) {
                    return stops(failures::core(error));
                }
            }
            Ok(Passed::Other) => {}
            Ok(Passed::Waits) => {
                let Some(id) = core.unresolved() else {
                    // The schema registry has an item of its own; or the ring is full.
                    return Ok(None);
                };
                let place = place(session, &db.wanted.tables, id).await?;
                match core.place(id, place) {
                    Ok(_) => continue,
                    Err(error) => return stops(failures::core(error)),
                }
            }
            Err(failure) => return stops(failure),
        }
        if !core.is_inside_batch() {
            change = changes.next();
        }
    }
    Ok(None)
}

/// The result of passing a message to the core.
enum Passed {
    /// The record of an event, or a dead letter, which the sink would offer to its servers.
    Record(Seq),
    /// It yields no record.
    Other,
    /// It is to be passed again once a table is placed, or a schema is known.
    Waits,
}

/// Passes a message to the core, and its record to the limits of the sink.
fn pass(
    core: &mut Core,
    sink: &dyn SinkKind,
    policy: &PoisonPolicy,
    (lsn, body): (Lsn, &[u8]),
    walked: &mut Walked<'_>,
) -> Result<Passed, Failure> {
    let frame = Frame::XLogData {
        start: lsn,
        end: lsn,
        sent_at: 0,
        body,
    };
    let mut space = RecordSpace::default();
    Ok(
        match core.frame(&frame, &mut space).map_err(failures::core)? {
            Step::Consumed | Step::Reply | Step::Committed(_) => Passed::Other,
            Step::Blocked | Step::AwaitsSchema | Step::AwaitsPlace => Passed::Waits,
            Step::Send(outgoing) => {
                let (record, event) = (outgoing.record(), outgoing.event());
                if !event.dead_letter {
                    walked.add(&record);
                }
                let refusal = sink.refusal(&record).filter(|error| {
                    let action = error.poison.map(|poison| policy.action(poison));
                    action == Some(PoisonAction::Halt) || event.dead_letter
                });
                if let Some(source) = refusal {
                    let error = PipelineError::<PostgresError, SinkError>::Delivery {
                        event: Some(event),
                        event_id: record.event_id.map(id_text),
                        source,
                    };
                    return Err(failures::pipeline(error));
                }
                Passed::Record(outgoing.seq())
            }
        },
    )
}

/// Passes the tables that wait to a relay's core.
async fn place_all(
    session: &mut Session,
    db: &DatabaseState<'_>,
    mut core: Core,
    relations: Vec<Vec<u8>>,
    found: &mut Found,
) -> Result<(), Error> {
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
    Ok(())
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
