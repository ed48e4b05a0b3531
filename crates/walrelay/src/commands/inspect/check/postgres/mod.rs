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
mod state;
mod tables;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use walrelay_event_router::{Router, TableFacts as ColumnFacts};
use walrelay_postgres_source::{Position, PostgresError, Sample, describe, sample, script};
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use self::failover::Standby;
use self::state::{DatabaseState, Replication};
use super::item::{Check, Checks, Item};
use crate::commands::assembly::server::failure;
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
    let mut session = Session::connect(info, SessionKind::Sql, SETTINGS).await?;
    session.limit_answers(POSTGRES_ANSWER_LIMIT);
    let (db, replication) = DatabaseState::read(&mut session, info, config, known).await?;
    let answers = query_answers(&mut session, info, &db, router.is_some()).await?;
    session.close().await;
    Ok(list_checks(&db, replication, answers, router))
}

/// The answers to queries that one check needs, or its result.
struct Answers {
    clock: Option<(f64, f64)>,
    publication: Checks,
    described: Vec<ColumnFacts>,
    standbys: Vec<Standby>,
    samples: Vec<(TableName, Sample)>,
    largest: Largest,
    snapshot: Option<Check>,
    account: Vec<Check>,
    marks: Vec<Check>,
    connection: Check,
    /// The check of the events that wait; `None` without a router or a slot.
    waiting: Option<Vec<Check>>,
    /// The addresses of the events that wait.
    addresses: Addresses,
}

/// Makes the queries that one check needs. `is_routed`: events that wait can be routed.
async fn query_answers(
    session: &mut Session,
    info: &ConnInfo,
    db: &DatabaseState<'_>,
    is_routed: bool,
) -> Result<Answers, PostgresError> {
    let clock = clock(session).await?;
    let publication = if let Some(publication) = &db.facts.publication {
        publication::existing(db, publication)
    } else {
        let check = publication::missing(session, db).await?;
        vec![(Item::Publication, check)]
    };
    let described = describe(session, &db.wanted.tables).await?;
    let standbys = failover::standbys(db, info, session.host()).await;
    let (samples, largest) = samples(session, db).await;
    let snapshot = slot::snapshot(session, db).await;
    let account = account::account(session, info, db).await?;
    let marks = tables::marks(session, db).await?;
    let connection = server::connection(db, session.is_encrypted());
    let mut addresses = Addresses::new();
    let waiting = if is_routed {
        let waiting = backlog::check(info, session, db, described.clone(), &mut addresses);
        Box::pin(waiting).await
    } else {
        None
    };
    Ok(Answers {
        clock,
        publication,
        described,
        standbys,
        samples,
        largest,
        snapshot,
        account,
        marks,
        connection,
        waiting,
        addresses,
    })
}

/// Lists the checks, in the order in which they are shown.
fn list_checks(
    db: &DatabaseState<'_>,
    replication: Replication,
    answers: Answers,
    router: Option<Router>,
) -> DatabaseChecks {
    let mut addresses = answers.addresses;
    let mut checks = vec![
        (Item::Connection, answers.connection),
        (Item::Version, server::version(db)),
        (Item::WalLevel, server::logical(db)),
        (Item::StateVersion, server::state_version(db)),
        (
            Item::Replication,
            server::replication(db, replication.map(drop)),
        ),
        (Item::WalSenders, server::walsenders(db)),
        (Item::SlotLimit, server::slot_limit(db)),
        (Item::WalSenderTimeout, server::wal_sender_timeout(db)),
        (Item::SynchronousStandby, server::synchronous_standby(db)),
    ];
    checks.extend(with_item(Item::Clock, answers.clock.map(server::clock)));
    checks.extend(with_item(Item::Table, tables::tables(db)));
    checks.push((Item::TableLock, tables::locks(&db.survey.locks)));
    if let Some(router) = router {
        let routes = tables::routes(
            db,
            router,
            answers.described,
            &answers.samples,
            &mut addresses,
        );
        checks.extend(with_item(Item::TableRoute, routes));
    }
    checks.extend(with_item(Item::ReplicaIdentity, tables::identities(db)));
    checks.extend(answers.publication);
    checks.push((Item::Slot, slot::slot(db)));
    checks.extend(with_item(Item::SlotPosition, slot::position(db)));
    checks.extend(with_item(Item::Move, slot::moved(db)));
    checks.extend(with_item(Item::Marks, answers.marks));
    checks.extend(with_item(Item::Account, answers.account));
    checks.extend(with_item(Item::LastRun, slot::last_run(db)));
    checks.extend(with_item(Item::Losses, slot::losses(db)));
    checks.extend(with_item(
        Item::Waiting,
        answers.waiting.into_iter().flatten(),
    ));
    checks.extend(with_item(Item::Snapshot, answers.snapshot));
    checks.extend(with_item(Item::RetainedWal, slot::retained(db)));
    checks.push((Item::KeepSize, server::keep_size(db)));
    checks.push((Item::IdleTimeout, server::idle_timeout(db)));
    checks.extend(with_item(Item::RollingBookmark, slot::rolling(db)));
    checks.push((Item::OtherSlots, slot::other_slots(db)));
    checks.push((Item::Transactions, slot::transactions(db)));
    checks.push((Item::FailoverSlot, failover::slot(db)));
    checks.push((Item::StandbySlots, failover::standby_slots(db)));
    checks.extend(with_item(
        Item::StandbyCopy,
        failover::copies(db, &answers.standbys),
    ));
    DatabaseChecks {
        checks,
        addresses,
        largest: answers.largest,
        reader: db.reader.as_ref().map(ToString::to_string),
    }
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
