//! `walrelay where`: what each place shows of one event, and what follows from it.
//!
//! - [`evidence`]: the evidence of all places, and the answer. No I/O. [`report`]: both as text and JSON.
//! - [`store`]: topics and dead letters of the sink.

mod evidence;
mod report;
mod store;

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_observe::{ProblemReport, StatusReport};
use walrelay_postgres_source::{
    KnownRow, Look, Selection, SnapshotProgress, age_columns, find_rows,
};
use walrelay_walsender::{quote_ident, quote_literal};

use crate::cli::{VerifySince, WhereArgs};
use crate::commands::assembly::pipelines::selected_rows;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{
    Parent, accounts_rows, block_on, dead_letters, id_column, selection,
};
use crate::commands::database::prune::{failed, pruning};
use crate::commands::inspect::behind_slot::{self, Sighting, Sightings, Sought};
use crate::commands::inspect::endpoint::fetch_status_of;
use crate::commands::inspect::tail::milliseconds;
use crate::commands::topics::rows::route_selected;
use crate::commands::{EnvVars, log_warnings, print_as};
use evidence::{Evidence, Relay, Row, Table};
use report::Report;
use store::Search;

/// Topics are read from so long before the row's time, because the clocks of hosts differ.
const MARGIN: Duration = Duration::from_secs(60);

/// Runs `walrelay where`. The exit code says whether there is evidence of the event.
pub(crate) fn whereabouts(args: &WhereArgs, env: EnvVars<'_>) -> Result<Exit, Vec<Failure>> {
    let _parent = Parent::watch(args.parent)?;
    let server = Server::load(&args.config, env)?;
    log_warnings(server.process.log, Some(server.slot()), env);
    let report = look(args, &server)?;
    print_as(args.output, &report, &report.json())?;
    Ok(if report.has_evidence() {
        Exit::Ok
    } else {
        Exit::Findings
    })
}

/// Looks at every place. A place that cannot be looked at is part of the report.
fn look(args: &WhereArgs, server: &Server) -> Result<Report, Failure> {
    let mut evidence = Evidence {
        sink: server.sink_title(),
        ..Evidence::default()
    };
    let column = id_column(&server.config);
    if let Some(column) = column {
        evidence.tables = block_on(Box::pin(tables(args, server, column)))?;
    }
    evidence.accounted = accounted(args, server, &evidence.tables);
    // The table compares values of the id's type; log and records have its text.
    let event = evidence
        .rows()
        .next()
        .map_or(&args.event, |row| &row.id)
        .clone();
    let routed = match column {
        Some(column) if can_route(&evidence.tables) => routed(&event, server, column, args.timeout),
        _ => Ok(Vec::new()),
    };
    let sought = Sought::Event {
        id: event.clone().into_bytes(),
        // Each table may have an event of this id.
        most: server.config.source.tables.len().max(1),
    };
    let log = behind_slot::read(server, &sought, args.timeout);
    // The relay is asked after the log was read: it has then read at least as far.
    evidence.relay = match &server.process.http {
        Some(http) => fetch_status_of(http, server.slot())
            .map(|status| relay(&event, &status))
            .map_err(|error| error.to_string()),
        None => Err("the configuration has no [http] listen".to_owned()),
    };
    let mut addresses = Vec::new();
    let seen = log.as_ref().map_or(&[][..], |log| &log.seen);
    for sighting in routed.iter().flatten().chain(seen) {
        addresses.extend(store::topic_of(sighting));
    }
    let search = Search {
        event: &event,
        topics: if args.topic.is_empty() {
            addresses
        } else {
            args.topic.clone()
        },
        place: args.id.as_ref(),
        from_ms: from_ms(args, &evidence.tables),
        timeout: args.timeout,
    };
    evidence.unroutable = routed.err().map(|failure| with_causes(&failure));
    evidence.log = log.map_err(|failure| with_causes(&failure));
    evidence.dead_letters = search
        .dead_letters(&server.config)
        .map_err(|failure| with_causes(&failure));
    evidence.topics = search.records(&server.config);
    Ok(Report::new(args.event.clone(), evidence))
}

/// Returns the time from which topics are read, in milliseconds since 1970; 0 for all.
fn from_ms(args: &WhereArgs, tables: &[Table]) -> i64 {
    let margin = i64::try_from(MARGIN.as_millis()).unwrap_or(0);
    match args.since {
        Some(VerifySince::Time(time)) => milliseconds(time),
        Some(VerifySince::Ago(ago)) => milliseconds(OffsetDateTime::now_utc() - ago),
        None => {
            let rows = tables.iter().flat_map(Table::rows);
            let oldest = rows.map(|row| row.at_ms).min().flatten();
            oldest.map_or(0, |at| at.saturating_sub(margin).max(0))
        }
    }
}

/// Compares the ten minutes of the event's row with the account of sent rows; `None` if none is kept, or the row has no
/// time.
fn accounted(args: &WhereArgs, server: &Server, tables: &[Table]) -> Option<Result<bool, String>> {
    let config = &server.config;
    if !accounts_rows(config) {
        return None;
    }
    let mut names = config.source.tables.iter().zip(tables);
    let (name, bucket) =
        names.find_map(|(name, table)| Some((name, table.rows().next()?.bucket?)))?;
    let compare = || {
        let letters = dead_letters(config, || None)?;
        let pruning = pruning(config, server.info.clone(), Some(Duration::ZERO), letters)?;
        block_on(Box::pin(async {
            let mut session = server.connect().await?;
            let limit = args.timeout.as_millis().max(1);
            session
                .query(&format!("SET statement_timeout = {limit}"))
                .await?;
            let accounted = pruning.is_accounted(&mut session, name, bucket).await;
            session.close().await;
            accounted.map_err(failed)
        }))?
    };
    Some(compare().map_err(|failure: Failure| with_causes(&failure)))
}

/// Looks for the event's rows in the outbox tables.
async fn tables(args: &WhereArgs, server: &Server, column: &str) -> Vec<Table> {
    let config = &server.config;
    let column_of_prune = config
        .prune
        .as_ref()
        .and_then(|prune| prune.column.as_deref());
    let ages = age_columns(column_of_prune);
    let marks = config.source.mark_sent.as_ref().map(|_| Selection {
        unsent: true,
        ..selection(config)
    });
    let mut tables = Vec::new();
    let mut session = match server.connect().await {
        Ok(session) => session,
        Err(failure) => {
            let look = Err(with_causes(&failure));
            let names = config.source.tables.iter();
            let tables = names.map(|name| Table {
                name: name.to_string(),
                look: look.clone(),
            });
            return tables.collect();
        }
    };
    for table in &config.source.tables {
        let search = find_rows(
            &mut session,
            table,
            (column, &args.event),
            &ages,
            marks.as_ref(),
            server.slot(),
            args.timeout,
        );
        let look = match search.await {
            Ok(Look::Rows(rows)) => Ok(Some(rows.into_iter().map(row).collect())),
            Ok(Look::NoIndex) => Err(format!(
                "not read: no index of it begins with {column}, and no table is read as a whole"
            )),
            Ok(Look::Missing) => Ok(None),
            Err(error) => Err(with_causes(&Failure::from(error))),
        };
        tables.push(Table {
            name: table.to_string(),
            look,
        });
    }
    session.close().await;
    tables
}

fn row(row: KnownRow) -> Row {
    Row {
        id: row.id,
        bucket: row.bucket,
        at_ms: row.at_ms,
        is_marked: row.is_marked,
        is_to_be_marked: row.is_to_be_marked,
    }
}

/// Returns true if the rows can be read by an index, and there are any.
fn can_route(tables: &[Table]) -> bool {
    let is_readable = |table: &Table| table.look.as_ref().is_ok_and(Option::is_some);
    tables.iter().all(is_readable) && tables.iter().any(|table| table.rows().next().is_some())
}

/// Routes the event's rows as the relay does now. `limit`: the longest time of the query that counts them.
fn routed(
    event: &str,
    server: &Server,
    column: &str,
    limit: Duration,
) -> Result<Vec<Sighting>, Failure> {
    let condition = format!("{} = {}", quote_ident(column), quote_literal(event));
    let progress = Arc::new(SnapshotProgress::default());
    let mut source = selected_rows(server, condition, &progress);
    block_on(Box::pin(source.count(Some(limit))))??;
    let sightings = Arc::new(Sightings::new(Sought::Event {
        id: event.to_owned().into_bytes(),
        most: usize::MAX,
    }));
    route_selected(&server.config, source, &progress, &sightings)?;
    Ok(sightings.take())
}

/// Reads what the running relay says of the event.
fn relay(event: &str, status: &StatusReport) -> Relay {
    let retrying = status.delivery.retrying.as_ref();
    Relay {
        state: status.pipeline.state.clone(),
        problem: status.problems.first().map(ProblemReport::finding),
        received: status.source.received_lsn.map(Lsn::get),
        first_in_flight: status.delivery.first_in_flight.clone(),
        refused: retrying
            .filter(|retrying| retrying.event_id.as_deref() == Some(event))
            .map(|retrying| (retrying.why.clone(), retrying.next_seconds)),
        unavailable: status.sink.unavailable.clone(),
    }
}

/// Returns a failure with its causes, in one line.
fn with_causes(failure: &Failure) -> String {
    walrelay_failure::Chain(failure).to_string()
}

#[cfg(test)]
mod tests;
