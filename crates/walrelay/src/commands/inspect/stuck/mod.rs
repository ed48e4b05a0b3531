//! `walrelay stuck`: rows of the outbox tables for which there is no evidence that they were sent.
//!
//! A row is looked for twice, before and after the log is read: a row that was committed before, and that the
//! slot has confirmed before the log was read, has its evidence by then. [`report`]: the findings.

mod report;

use std::collections::{BTreeSet, HashMap};

use time::OffsetDateTime;
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::{
    DeadLetters, Difference, PruneError, Pruning, RowSpan, Selection, UnseenError, UnseenRow,
    UnseenTable, age_columns,
};
use walrelay_relay::TableName;
use walrelay_walsender::Session;

use super::behind_slot::{self, Sought};
use super::tail::milliseconds;
use crate::cli::StuckArgs;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{
    accounts_rows, block_on, dead_letters, id_column, prunes_by_account, selection,
};
use crate::commands::database::prune::{failed, pruning};
use crate::commands::inspect::endpoint::fetch_status_of;
use crate::commands::{EnvVars, log_warnings, print_as};
use crate::config::PipelineConfig;
use report::{Basis, Behind, Bucket, Report, StuckRow, Why};

/// Rows, and events behind the slot's position, that are looked at, at most.
const MOST: usize = 10_000;

/// Runs `walrelay stuck`. The exit code says whether there are such rows.
pub(crate) fn stuck(args: &StuckArgs, env: EnvVars<'_>) -> Result<Exit, Vec<Failure>> {
    let server = Server::load(&args.config, env)?;
    log_warnings(server.process.log, Some(server.slot()), env);
    let report = look(args, &server)?;
    print_as(args.output, &report, &report.json())?;
    Ok(if report.has_findings() {
        Exit::Findings
    } else if report.is_known() {
        Exit::Ok
    } else {
        Exit::Temporary
    })
}

/// The evidence by which sent rows are known.
enum Known {
    /// Without the mark of the relay.
    Marks(Selection),
    Account(Box<Pruning>),
    Nothing,
}

/// The rows of one table that a look found.
#[derive(Default)]
struct Found {
    rows: Vec<UnseenRow>,
    buckets: Vec<Difference>,
}

/// The rows of one table that both looks found.
struct SeenTwice {
    rows: Vec<UnseenRow>,
    buckets: Vec<Bucket>,
    /// The first look ended at this time, so later rows were seen once.
    once_from: Option<i64>,
}

fn look(args: &StuckArgs, server: &Server) -> Result<Report, Failure> {
    let config = &server.config;
    let column = id_column(config).ok_or_else(|| {
        Failure::new(
            "stuck-id",
            Exit::Config,
            "the route names no column for the id of events",
        )
        .remedy("set router.route.id")
    })?;
    let known = known(args, server)?;
    let letters = dead_letters(config, || None)?;
    let first = block_on(Box::pin(first_look(args, server, column, &known, &letters)))??;
    let sought = Sought::All { most: MOST };
    let log = behind_slot::read(server, &sought, args.timeout);
    let received = server.process.http.as_ref().and_then(|http| {
        let status = fetch_status_of(http, server.slot()).ok()?;
        Some(status.source.received_lsn?.get())
    });
    let letters_problem = block_on(letters.read())?.err();
    let letters_problem = letters_problem.map(|error| walrelay_failure::Chain(&error).to_string());
    let (log, log_problem) = match log {
        Ok(log) => {
            let problem =
                (!log.is_whole).then(|| format!("it was read up to {} only", log.read_to));
            (Some(log), problem)
        }
        Err(failure) => (None, Some(walrelay_failure::Chain(&failure).to_string())),
    };
    let positions = log.iter().flat_map(|log| &log.seen).filter_map(|seen| {
        let id = String::from_utf8(seen.id.clone()?).ok()?;
        Some((id, seen.position))
    });
    let behind = Behind {
        positions: positions.collect::<HashMap<_, _>>(),
        is_whole: log_problem.is_none(),
        knows_dead_letters: letters_problem.is_none(),
        received,
    };
    let mut report = Report {
        basis: basis(&known),
        older_than: args.older_than,
        now_ms: milliseconds(OffsetDateTime::now_utc()),
        rows: Vec::new(),
        buckets: Vec::new(),
        is_cut: false,
        log_problem,
        letters_problem,
    };
    let second = second_look(args, server, column, (&known, &letters), &behind, &first);
    let second = block_on(Box::pin(second))??;
    for (table, seen) in config.source.tables.iter().zip(second) {
        report.is_cut |= seen.once_from.is_some();
        report.buckets.extend(seen.buckets);
        report
            .rows
            .extend(seen.rows.into_iter().map(|row| StuckRow {
                table: table.to_string(),
                why: match behind.why(&row) {
                    // Its evidence may have come while the log was read.
                    Why::NeverSeen if seen.once_from.is_some_and(|from| row.at_ms >= from) => {
                        Why::Unknown
                    }
                    why => why,
                },
                row,
            }));
    }
    report.rows.sort_by_key(|one| one.row.at_ms);
    report.is_cut |= report.rows.len() > args.limit.get();
    report.rows.truncate(args.limit.get());
    Ok(report)
}

/// Returns how the relay of this configuration keeps what was sent.
fn known(args: &StuckArgs, server: &Server) -> Result<Known, Failure> {
    let config = &server.config;
    Ok(if accounts_rows(config) && prunes_by_account(config) {
        let letters = dead_letters(config, || None)?;
        let keep = Some(args.older_than);
        Known::Account(Box::new(pruning(
            config,
            server.info.clone(),
            keep,
            letters,
        )?))
    } else if config.source.mark_sent.is_some() {
        Known::Marks(Selection {
            unsent: true,
            ..selection(config)
        })
    } else {
        Known::Nothing
    })
}

fn basis(known: &Known) -> Basis {
    match known {
        Known::Marks(_) => Basis::Marks,
        Known::Account(_) => Basis::Account,
        Known::Nothing => Basis::Position,
    }
}

fn span(args: &StuckArgs) -> RowSpan {
    RowSpan {
        older_than: args.older_than,
        since: args.since,
        limit: MOST,
    }
}

/// Connects for statements that read, and take no longer than `--timeout`.
async fn connect(args: &StuckArgs, server: &Server) -> Result<Session, Failure> {
    let mut session = server.connect().await?;
    let timeout = args.timeout.as_millis().max(1);
    let settings =
        format!("SET statement_timeout = {timeout}; SET default_transaction_read_only = on");
    session.query(&settings).await?;
    Ok(session)
}

fn prune_column(config: &PipelineConfig) -> Option<&str> {
    config.prune.as_ref()?.column.as_deref()
}

async fn table(
    session: &mut Session,
    config: &PipelineConfig,
    name: &TableName,
    column: &str,
    letters: &DeadLetters,
) -> Result<UnseenTable, Failure> {
    let ages = age_columns(prune_column(config));
    let publication = &config.source.publication;
    let read = UnseenTable::read(session, name, publication, column, &ages, letters).await;
    read.map_err(|error| unreadable(error, &ages))
}

/// Finds the rows without evidence, and the buckets that differ from the account.
async fn first_look(
    args: &StuckArgs,
    server: &Server,
    column: &str,
    known: &Known,
    letters: &DeadLetters,
) -> Result<Vec<Found>, Failure> {
    let mut session = connect(args, server).await?;
    let mut findings = Vec::new();
    for name in &server.config.source.tables {
        let table = table(&mut session, &server.config, name, column, letters).await?;
        findings.push(match known {
            Known::Marks(marks) => Found {
                rows: table
                    .unmarked(&mut session, marks, server.slot(), &span(args))
                    .await
                    .map_err(|error| unreadable(error, &[]))?,
                buckets: Vec::new(),
            },
            Known::Account(pruning) => Found {
                rows: Vec::new(),
                buckets: pruning
                    .differing(&mut session, name, args.since)
                    .await
                    .map_err(account_failed)?,
            },
            Known::Nothing => Found::default(),
        });
    }
    session.close().await;
    Ok(findings)
}

/// Looks again, after the log was read: returns the rows of each table that still have no evidence, and those of
/// which the log or the dead letters tell that they were not sent.
async fn second_look(
    args: &StuckArgs,
    server: &Server,
    column: &str,
    (known, letters): (&Known, &DeadLetters),
    behind: &Behind,
    first: &[Found],
) -> Result<Vec<SeenTwice>, Failure> {
    let config = &server.config;
    let mut session = connect(args, server).await?;
    let ids: Vec<String> = behind.positions.keys().cloned().collect();
    let (mut all, span) = (Vec::new(), span(args));
    for (name, first) in config.source.tables.iter().zip(first) {
        let table = table(&mut session, config, name, column, letters).await?;
        let unreadable = |error| unreadable(error, &[]);
        let (mut rows, mut buckets) = (Vec::new(), Vec::new());
        let is_full = first.rows.len() >= MOST;
        let once_from = first.rows.last().filter(|_| is_full).map(|last| last.at_ms);
        match known {
            Known::Marks(marks) => {
                let unmarked = table.unmarked(&mut session, marks, server.slot(), &span);
                let before: BTreeSet<&UnseenRow> = first.rows.iter().collect();
                let is_same = |row: &UnseenRow| {
                    let row = UnseenRow {
                        has_dead_letter: false,
                        ..row.clone()
                    };
                    before.contains(&row) || once_from.is_some_and(|from| row.at_ms >= from)
                };
                rows.extend(
                    unmarked
                        .await
                        .map_err(unreadable)?
                        .into_iter()
                        .filter(is_same),
                );
            }
            Known::Account(pruning) => {
                let extra = pruning.extra_rows(&mut session, &table, name, &first.buckets, &ids);
                for extra in extra.await.map_err(account_failed)? {
                    match extra.row {
                        Some(row) => rows.push(row),
                        None => buckets.push(Bucket {
                            table: name.to_string(),
                            from_ms: extra.from_ms,
                            rows: extra.rows,
                            dead_letters: extra.dead_letters,
                        }),
                    }
                }
            }
            Known::Nothing => {}
        }
        // The other slots of `[prune]` may carry rows that the own one leaves out.
        let is_shared = config
            .prune
            .as_ref()
            .is_some_and(|prune| !prune.slots.is_empty());
        if matches!(known, Known::Nothing) || matches!(known, Known::Account(_)) && !is_shared {
            let left_out = table.unpublished(&mut session, &span);
            rows.extend(left_out.await.map_err(unreadable)?);
        }
        if !matches!(known, Known::Marks(_)) {
            let waiting = table.with_ids(&mut session, &ids, &span);
            rows.extend(waiting.await.map_err(unreadable)?);
            let dead = table.dead(&mut session, &span);
            rows.extend(dead.await.map_err(unreadable)?);
        }
        rows.sort_unstable();
        rows.dedup();
        all.push(SeenTwice {
            rows,
            buckets,
            once_from,
        });
    }
    session.close().await;
    Ok(all)
}

fn account_failed(error: PruneError) -> Failure {
    failed(error)
}

fn unreadable(error: UnseenError, ages: &[String]) -> Failure {
    let what = error.to_string();
    match error {
        UnseenError::Postgres(error) => error.into(),
        UnseenError::DeadLetters(error) => Failure::new(
            "stuck-dead-letters",
            Exit::Temporary,
            "the dead letters are not known",
        )
        .caused_by(error)
        .remedy("see that the sink can be reached: walrelay check"),
        UnseenError::Table(_) => Failure::new("stuck-table", Exit::Config, what)
            .remedy("name the table in [source] tables as it is named now"),
        UnseenError::Age(_) => Failure::new("stuck-age", Exit::Config, what).remedy(format!(
            "name the column in [prune] column; {} is looked for otherwise",
            ages.join(" or ")
        )),
    }
}
