//! The checks of the database. All is read first, by few queries; each check is a function of it.
//!
//! - [`look`]: reads, and runs all checks.
//! - `server`: versions, limits, rights, clocks. `tables`, `publication`, `slot`, `failover`.

mod failover;
mod publication;
mod server;
mod slot;
mod tables;

#[cfg(test)]
mod tests;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use walrelay_event_router::Router;
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::item::Check;
use crate::commands::units::bytes;
use crate::config::{Config, SinkConfig};
use crate::postgres::{
    Action, Facts, Moment, Plan, PostgresError, Sample, Survey, Wanted, describe, inspect,
    lacking_to_publish, no_publication, sample, survey,
};

/// What all checks of the database look at.
#[derive(Clone, Copy)]
struct Seen<'a> {
    wanted: &'a Wanted,
    config: &'a Config,
    facts: &'a Facts,
    survey: &'a Survey,
    /// As `run` would find it.
    moment: Moment,
}

/// What the checks of the database found.
#[derive(Default)]
pub(super) struct Database {
    pub(super) checks: Vec<Check>,
    /// Topics of rows that are in the tables.
    pub(super) topics: Vec<String>,
    /// The largest row of the outbox tables, in bytes, and what was not seen of them.
    pub(super) largest: Largest,
}

/// The largest row of the outbox tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Largest {
    /// Bytes of the columns that the router reads, as text; `None` where there is no row.
    Of(Option<u64>),
    /// Why it is not known, and what would make it known.
    Unseen { why: String, remedy: String },
}

impl Default for Largest {
    fn default() -> Self {
        Self::Of(None)
    }
}

/// Reads the database and checks all of it. `known`: the position in the state file.
pub(super) async fn look(
    info: &ConnInfo,
    wanted: &Wanted,
    config: &Config,
    router: Option<Router>,
    known: Option<walrelay_lsn::Lsn>,
) -> Database {
    let mut found = Database::default();
    match read(info, wanted, config, router, known, &mut found).await {
        Ok(()) => {}
        Err(error) => found.checks.push(server::unanswered(error)),
    }
    found
}

async fn read(
    info: &ConnInfo,
    wanted: &Wanted,
    config: &Config,
    router: Option<Router>,
    known: Option<walrelay_lsn::Lsn>,
    found: &mut Database,
) -> Result<(), PostgresError> {
    let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
    let facts = inspect(&mut session, wanted).await?;
    let survey = survey(&mut session, wanted).await?;
    let clock = clock(&mut session).await?;
    let moment = match config.sink {
        SinkConfig::Stdout { confirm: false } => Moment::Print,
        _ => Moment::Start {
            known,
            accept_gap: false,
        },
    };
    let seen = Seen {
        wanted,
        config,
        facts: &facts,
        survey: &survey,
        moment,
    };
    let opened = replicate(info).await;
    let mut created = Plan::default();
    let creates = facts.publication.is_none()
        && no_publication(wanted, &facts, moment, &mut created).is_ok()
        && created.actions.contains(&Action::CreatePublication);
    let lacking = if creates {
        lacking_to_publish(&mut session, wanted).await?
    } else {
        Vec::new()
    };
    let described = describe(&mut session, &wanted.tables).await?;
    let standbys = if failover::asked_for(&seen) {
        failover::standbys(info, session.host()).await
    } else {
        Vec::new()
    };

    let checks = &mut found.checks;
    checks.push(server::connection(&seen, session.is_encrypted()));
    checks.push(server::version(&seen));
    checks.push(server::logical(&seen));
    checks.push(server::replication(&seen, opened));
    checks.push(server::walsenders(&seen));
    checks.push(server::slot_limit(&seen));
    checks.push(server::wal_sender_timeout(&seen));
    if let Some((difference, within)) = clock {
        checks.push(server::clock(difference, within));
    }
    checks.extend(tables::tables(&seen));
    let samples = samples(&mut session, &seen, &mut found.largest).await;
    if let Some(router) = router {
        let topics = &mut found.topics;
        checks.extend(tables::routes(&seen, router, described, &samples, topics));
    }
    for (name, table) in &survey.tables {
        let facts = facts.tables.iter().find(|(of, _)| of == name);
        if let Some((_, Some(facts))) = facts {
            let carried = survey.publication.as_ref();
            let publication = &wanted.publication;
            checks.push(tables::identity(name, table, facts, publication, carried));
        }
    }
    checks.extend(publication::publication(&seen, &lacking));
    checks.push(slot::slot(&seen));
    checks.extend(slot::snapshot(&mut session, &seen).await);
    checks.extend(slot::retained(&seen));
    checks.push(server::keep_size(&seen));
    checks.push(server::idle_timeout(&seen));
    checks.extend(slot::rolling(&seen));
    checks.push(slot::others(&seen));
    checks.push(slot::transactions(&seen));
    checks.push(failover::slot(&seen));
    checks.push(failover::standby_slots(&seen));
    checks.extend(failover::copies(&seen, &standbys));
    session.close().await;
    Ok(())
}

/// Opens and closes a replication connection. After the walsenders were counted: it is one.
async fn replicate(info: &ConnInfo) -> Result<(), Error> {
    let mut replication = Session::connect(info, SessionKind::Replication, &[]).await?;
    replication.identify_system().await?;
    replication.close().await;
    Ok(())
}

/// The server's clock minus ours, in seconds, and how far off that may be.
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

/// Samples of the tables that the role may read.
async fn samples(
    session: &mut Session,
    seen: &Seen<'_>,
    largest: &mut Largest,
) -> Vec<(TableName, Sample)> {
    let mut samples = Vec::new();
    let mut most = None;
    for (name, table) in &seen.facts.tables {
        let Some(table) = table
            .as_ref()
            .filter(|table| matches!(table.kind.as_str(), "r" | "p"))
        else {
            continue;
        };
        let sent = seen.facts.sent(name, table);
        let columns: Vec<&str> = sent.iter().map(|(column, ..)| *column).collect();
        let read = &seen.wanted.columns;
        if !read.iter().all(|column| columns.contains(&column.as_str())) {
            // Reported by another check.
            continue;
        }
        let mut surveyed = seen.survey.tables.iter();
        let readable = surveyed.any(|(of, survey)| of == name && survey.readable);
        if !readable {
            let role = &seen.survey.role;
            *largest = Largest::Unseen {
                why: format!(
                    "role {role} may not read {name}, and needs not: the largest row is not seen"
                ),
                remedy: format!(
                    "run check as the owner of the table, or GRANT SELECT ON {} TO {};",
                    crate::postgres::script::table(name),
                    walrelay_walsender::quote_ident(role)
                ),
            };
            continue;
        }
        match sample(session, name, table, &columns, read).await {
            Ok(sample) => {
                most = most.max(sample.largest);
                samples.push((name.clone(), sample));
            }
            Err(error) => {
                *largest = Largest::Unseen {
                    why: format!("the rows of {name} are not seen: {error}"),
                    remedy: "check again when the server is less busy".to_owned(),
                };
            }
        }
    }
    if *largest == Largest::default() {
        *largest = Largest::Of(most);
    }
    samples
}

impl Largest {
    /// The part of a finding.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Of(Some(most)) => format!("the largest row has {}", bytes(*most)),
            Self::Of(None) => "no row is in the tables".to_owned(),
            Self::Unseen { why, .. } => why.clone(),
        }
    }
}
