//! The checks of the database. A few queries read its state first; each check is a function of that
//! state.
//!
//! - [`check`]: reads the state, and runs all checks.
//! - `server`: versions, limits, privileges, clocks. `tables`, `publication`, `account`, `slot`,
//!   `failover`: the rest.

mod account;
mod backlog;
mod failover;
mod publication;
mod server;
mod slot;
mod tables;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use walrelay_event_router::Router;
use walrelay_lsn::Lsn;
use walrelay_postgres_source::epoch::find_epoch;
use walrelay_postgres_source::last_error::{self, LastError};
use walrelay_postgres_source::moves::{MoveServer, MoveState, UnfinishedMove, find_move};
use walrelay_postgres_source::run_note::{self, RunNote};
use walrelay_postgres_source::{
    Facts, Moment, Position, PostgresError, Sample, SetupError, SlotReader, Survey, Wanted,
    check_noted, describe, inspect,
    position_note::{Access, Noted, Standing},
    sample, script, slot_reader, survey,
};
use walrelay_relay::{LogError, TableName};
use walrelay_walsender::{Ancestor, ConnInfo, Error, Session, SessionKind, SystemIdentity};

use super::item::{Check, Checks, Item};
use crate::commands::assembly::server::failure;
use crate::commands::assembly::wanted;
use crate::config::PipelineConfig;

/// No query of the doctor waits for long: not for a server that is slow, and not for a lock of DDL on
/// an outbox table, which the rows and the plans of queries need.
const SETTINGS: &[(&str, &str)] = &[("statement_timeout", "10s"), ("lock_timeout", "2s")];

/// The longest time for an answer, of a server that does not keep to its settings.
const POSTGRES_ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Topics and routing keys of rows.
type Addresses = Vec<(String, Option<String>)>;

/// Adds an address that is not among these.
fn add_address(addresses: &mut Addresses, topic: &str, routing_key: Option<&str>) {
    let address = (topic.to_owned(), routing_key.map(str::to_owned));
    if !addresses.contains(&address) {
        addresses.push(address);
    }
}

/// The state that the checks of the database use.
struct DatabaseState<'a> {
    config: &'a PipelineConfig,
    /// The name of the relay's sessions as the server shows it.
    application_name: String,
    wanted: Wanted,
    facts: Facts,
    survey: Survey,
    /// The process that reads the slot.
    reader: Option<SlotReader>,
    /// The moment of the setup as for `run`.
    moment: Moment,
    /// The slot continues the position in the state file, as far as `run` compares them.
    continued: Result<(), LogError>,
    /// The slot's position compared with its note, and what this role may do with the note. `None`: `run`
    /// notes no position.
    noted: Option<(Standing, Access)>,
    /// The error with which the last run ended.
    last_error: Option<LastError>,
    /// What the last run has noted of itself.
    run: Option<RunNote>,
    /// The epoch of the slot's positions.
    epoch: u8,
    /// The move that has not ended on this server, and the state for whose end its relay waits.
    moved: (Option<UnfinishedMove>, Option<MoveState>),
    /// The publication carries what its relay has noted, as far as `run` compares it.
    carried: Result<(), SetupError>,
}

/// The results of the checks of the database.
pub(super) struct DatabaseChecks {
    pub(super) checks: Checks,
    /// Topics and routing keys of sampled rows, and of those that wait.
    pub(super) addresses: Addresses,
    pub(super) largest: Largest,
    /// The process that reads the slot, as texts name it.
    pub(super) reader: Option<String>,
}

/// Bytes of the largest row of the outbox tables: the columns that the router reads, as text;
/// `None` if there is no row. Or a warning that rows could not be read.
pub(super) type Largest = Result<Option<u64>, Check>;

/// Reads the state of the database and checks it. `known` is the content of the state file.
pub(super) async fn check(
    info: &ConnInfo,
    config: &PipelineConfig,
    router: Option<Router>,
    known: Option<&Position>,
) -> DatabaseChecks {
    let checked = connect_and_check(info, config, router, known).await;
    // Every role may make the queries that can fail here.
    checked.unwrap_or_else(|error| DatabaseChecks {
        checks: vec![(Item::Connection, failed(error))],
        addresses: Vec::new(),
        largest: Ok(None),
        reader: None,
    })
}

async fn connect_and_check(
    info: &ConnInfo,
    config: &PipelineConfig,
    router: Option<Router>,
    known: Option<&Position>,
) -> Result<DatabaseChecks, PostgresError> {
    let wanted = wanted(config);
    let mut session = Session::connect(info, SessionKind::Sql, SETTINGS).await?;
    session.limit_answers(POSTGRES_ANSWER_LIMIT);
    let facts = inspect(&mut session, &wanted).await?;
    let survey = survey(&mut session, &wanted).await?;
    let reader = slot_reader(&mut session, &wanted.slot).await?;
    let state_file = config.source.state_file.as_deref();
    let last_error = last_error::find(&mut session, &wanted.slot, state_file).await?;
    let run = run_note::find(&mut session, &wanted.slot, state_file).await?;
    let epoch = find_epoch(&mut session, &wanted.slot).await?.number;
    // After the slot: a running relay notes a position before the slot has it.
    let noted = Noted::find(&mut session, &wanted.slot, wanted.create).await?;
    let replication = open_replication(info).await;
    let (system, ancestors) = match &replication {
        Ok((identity, ancestors)) => (identity.system_id.as_str(), ancestors.as_slice()),
        Err(_) => ("", [].as_slice()),
    };
    let moved = find_move(&mut session, &wanted.slot).await?;
    let here = MoveServer {
        system: system.to_owned(),
        timeline: replication
            .as_ref()
            .map_or(0, |(identity, _)| identity.timeline),
    };
    let position = facts.slot.as_ref().and_then(|slot| slot.confirmed);
    // The relay of a slot that is read has compared them, and both go on meanwhile.
    let unread = facts
        .slot
        .as_ref()
        .is_some_and(|slot| slot.active_pid.is_none());
    let continued = match (known, position, &replication) {
        (Some(known), Some(position), Ok((identity, ancestors)))
            if unread && config.sink.confirms() =>
        {
            let former = moved.former_of(&here);
            known.continued_by_slot(identity, ancestors, position, former)
        }
        _ => Ok(()),
    };
    let standing = noted.compare(position.unwrap_or(Lsn::ZERO), system, ancestors);
    let is_noted = config.sink.confirms() && !facts.server.in_recovery;
    let carried = if is_noted {
        check_noted(&wanted, &facts, &noted, system)
    } else {
        Ok(())
    };
    let db = DatabaseState {
        config,
        application_name: info.shown_application_name(),
        survey,
        reader,
        wanted,
        moment: if config.sink.confirms() {
            Moment::Start {
                known: known.map(|known| known.confirmed),
                noted: noted.position_in(system),
                accept_gap: false,
            }
        } else {
            Moment::Print
        },
        continued,
        noted: is_noted.then_some((standing, noted.access)),
        carried,
        moved: (moved.unfinished(&here), moved.awaited(&here)),
        last_error,
        run,
        epoch,
        facts,
    };
    let clock = clock(&mut session).await?;
    let publication = if let Some(publication) = &db.facts.publication {
        publication::existing(&db, publication)
    } else {
        let check = publication::missing(&mut session, &db).await?;
        vec![(Item::Publication, check)]
    };
    let described = describe(&mut session, &db.wanted.tables).await?;
    let standbys = failover::standbys(&db, info, session.host()).await;
    let (samples, largest) = samples(&mut session, &db).await;
    let snapshot = slot::snapshot(&mut session, &db).await;
    let account = account::account(&mut session, info, &db).await?;
    let marks = tables::marks(&mut session, &db).await?;
    let connection = server::connection(&db, session.is_encrypted());
    let mut addresses = Addresses::new();
    let waiting = match &router {
        Some(_) => {
            let described = described.clone();
            let waiting = backlog::check(info, &mut session, &db, described, &mut addresses);
            Box::pin(waiting).await
        }
        None => None,
    };
    session.close().await;

    let mut checks = vec![
        (Item::Connection, connection),
        (Item::Version, server::version(&db)),
        (Item::WalLevel, server::logical(&db)),
        (Item::StateVersion, server::state_version(&db)),
        (
            Item::Replication,
            server::replication(&db, replication.map(drop)),
        ),
        (Item::WalSenders, server::walsenders(&db)),
        (Item::SlotLimit, server::slot_limit(&db)),
        (Item::WalSenderTimeout, server::wal_sender_timeout(&db)),
        (Item::SynchronousStandby, server::synchronous_standby(&db)),
    ];
    checks.extend(with_item(Item::Clock, clock.map(server::clock)));
    checks.extend(with_item(Item::Table, tables::tables(&db)));
    checks.push((Item::TableLock, tables::locks(&db.survey.locks)));
    if let Some(router) = router {
        let routes = tables::routes(&db, router, described, &samples, &mut addresses);
        checks.extend(with_item(Item::TableRoute, routes));
    }
    checks.extend(with_item(Item::ReplicaIdentity, tables::identities(&db)));
    checks.extend(publication);
    checks.push((Item::Slot, slot::slot(&db)));
    checks.extend(with_item(Item::SlotPosition, slot::position(&db)));
    checks.extend(with_item(Item::Move, slot::moved(&db)));
    checks.extend(with_item(Item::Marks, marks));
    checks.extend(with_item(Item::Account, account));
    checks.extend(with_item(Item::LastRun, slot::last_run(&db)));
    checks.extend(with_item(Item::Losses, slot::losses(&db)));
    checks.extend(with_item(Item::Waiting, waiting.into_iter().flatten()));
    checks.extend(with_item(Item::Snapshot, snapshot));
    checks.extend(with_item(Item::RetainedWal, slot::retained(&db)));
    checks.push((Item::KeepSize, server::keep_size(&db)));
    checks.push((Item::IdleTimeout, server::idle_timeout(&db)));
    checks.extend(with_item(Item::RollingBookmark, slot::rolling(&db)));
    checks.push((Item::OtherSlots, slot::other_slots(&db)));
    checks.push((Item::Transactions, slot::transactions(&db)));
    checks.push((Item::FailoverSlot, failover::slot(&db)));
    checks.push((Item::StandbySlots, failover::standby_slots(&db)));
    checks.extend(with_item(
        Item::StandbyCopy,
        failover::copies(&db, &standbys),
    ));
    Ok(DatabaseChecks {
        checks,
        addresses,
        largest,
        reader: db.reader.as_ref().map(ToString::to_string),
    })
}

/// Names the item that all these checks are of.
fn with_item(
    item: Item,
    checks: impl IntoIterator<Item = Check>,
) -> impl Iterator<Item = (Item, Check)> {
    checks.into_iter().map(move |check| (item, check))
}

fn failed(error: impl Into<PostgresError>) -> Check {
    Check::failed(failure(error))
}

/// Returns a check that passes with this finding unless there is an error.
fn check_result(found: Result<(), impl Into<PostgresError>>, finding: impl Into<String>) -> Check {
    match found {
        Ok(()) => Check::pass(finding),
        Err(error) => failed(error),
    }
}

/// Opens and closes a replication connection. Returns the server's identity, with the ancestors of its
/// timeline if they can be read. It is called after the walsenders were counted, as it is one.
async fn open_replication(info: &ConnInfo) -> Result<(SystemIdentity, Vec<Ancestor>), Error> {
    let mut replication = Session::connect(info, SessionKind::Replication, &[]).await?;
    replication.limit_answers(POSTGRES_ANSWER_LIMIT);
    let identity = replication.identify_system().await?;
    let ancestors = replication.timeline_history(identity.timeline).await;
    replication.close().await;
    Ok((identity, ancestors.unwrap_or_default()))
}

/// Measures the server's clock minus this machine's, in seconds, and the uncertainty of the
/// difference.
async fn clock(session: &mut Session) -> Result<Option<(f64, f64)>, Error> {
    let asked = Instant::now();
    let begin = SystemTime::now();
    let sql = "SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8";
    let rows = session.query(sql).await?;
    let half = asked.elapsed().as_secs_f64() / 2.0;
    let theirs: Option<f64> = rows.first().and_then(|row| row.get(0)?.parse().ok());
    let ours = begin
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_secs_f64());
    Ok(theirs
        .zip(ours.ok())
        .map(|(theirs, ours)| (theirs - ours - half, half)))
}

/// Samples rows of the tables that the role may read; and the largest row.
async fn samples(
    session: &mut Session,
    db: &DatabaseState<'_>,
) -> (Vec<(TableName, Sample)>, Largest) {
    let mut samples = Vec::new();
    let mut largest = Ok(None);
    for (name, table) in &db.facts.tables {
        let Some(table) = table
            .as_ref()
            .filter(|table| matches!(table.kind.as_str(), "r" | "p"))
        else {
            continue;
        };
        let sent = db.facts.sent(name, table);
        let columns: Vec<&str> = sent.iter().map(|(column, ..)| *column).collect();
        let present: Vec<String> = columns.iter().map(ToString::to_string).collect();
        let found = |column: &String| db.wanted.found(column, &present).cloned();
        let read: Option<Vec<String>> = db.wanted.columns.iter().map(found).collect();
        // The check of the table or of the publication reports a missing column.
        let Some(read) = read else {
            continue;
        };
        let mut surveyed = db.survey.tables.iter();
        let readable = surveyed.any(|(of, survey)| of == name && survey.readable);
        if !readable {
            let (role, named) = (&db.survey.role, std::slice::from_ref(name));
            let grants = script::grant_usage(named, role).into_iter();
            let grants: Vec<String> = grants.chain([script::grant_select(named, role)]).collect();
            largest = Err(Check::warn(
                format!(
                    "role {role} may not read {name}, and needs not: the largest row is not seen"
                ),
                format!(
                    "run check as the owner of the table, or {}",
                    grants.join(" ")
                ),
            ));
            continue;
        }
        match sample(session, name, table, &columns, &read).await {
            Ok(sample) => {
                largest = largest.map(|most: Option<u64>| most.max(sample.largest));
                samples.push((name.clone(), sample));
            }
            Err(error) => {
                let finding = format!("the rows of {name} are not seen: {error}");
                let remedy = "check again when the server is less busy";
                largest = Err(Check::warn(finding, remedy));
            }
        }
    }
    (samples, largest)
}
