//! `walrelay resend`: sends rows of the outbox tables again, each record marked by a header.
//!
//! The slot does not change, so a relay may be running. The rows pass through the relay's router.
//! An event that cannot be delivered ends the command, whatever `[poison]` says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::{
    Moment, PostgresError, ResendSource, SnapshotProgress, inspect, is_indexed, plan,
};
use walrelay_relay::{Outcome, PoisonAction, Progress};
use walrelay_sink::AnySinkFactory;
use walrelay_walsender::{Session, quote_ident, quote_literal};

use crate::cli::ResendArgs;
use crate::commands::assembly::pipelines::{
    CommandPipeline, OnProgress, RecordCounts, router_and_settings, run_until, selected_rows,
};
use crate::commands::assembly::server::{Server, failure};
use crate::commands::assembly::sink::configured_sink;
use crate::commands::assembly::{Parent, block_on, id_column, run_id, wanted};
use crate::commands::terminal::confirm::ask_to_continue;
use crate::commands::terminal::progress_line::ProgressLine;
use crate::commands::terminal::units::rows_bar;
use crate::commands::topics::place::RESEND_HEADER;
use crate::commands::topics::rows::route_selected;
use crate::commands::{CommandResult, EnvVars, log_warnings, print_line, print_notice};
use crate::config::PipelineConfig;

/// SQLSTATE of a statement that `statement_timeout` has ended.
const CANCELED: &str = "57014";
/// A dry run routes so many rows at most.
const ROUTED: u64 = 1_000;

/// Runs `walrelay resend`.
pub(crate) fn resend(args: &ResendArgs, env: EnvVars<'_>) -> CommandResult {
    let parent = Parent::watch(args.parent)?;
    let server = Server::load(&args.ask.change.config, env)?;
    let config = &server.config;
    log_warnings(server.process.log, Some(server.slot()), env);
    let progress = Arc::new(SnapshotProgress::default());
    let (condition, column) = condition(args, config)?;
    let by_id = column.map(|column| (column, args.timeout));
    let mut source = selected_rows(&server, condition, &progress);
    let count = block_on(Box::pin(count_rows(&mut source, &server, by_id)))??;
    if count == 0 {
        let failure = Failure::new(
            "resend-no-rows",
            Exit::Data,
            "no row matches: nothing is sent",
        )
        .remedy("a row that was deleted cannot be sent again. Look at the tables with psql");
        return Err(vec![failure]);
    }
    if args.ask.change.dry_run {
        let records = (count <= ROUTED).then(|| routed(&server, source, &progress));
        let line = format!("{} would be sent again", rows(count));
        let line = records.transpose()?.map_or(line.clone(), |to| line + &to);
        return Ok(print_line(&line)?);
    }
    confirm_resend(args, count)?;
    let (factory, _) = configured_sink(config)?.factory(None);
    send(config, source, (&progress, count), factory, &parent)?;
    Ok(())
}

/// Routes the rows as the relay does, and returns where their records would go.
fn routed(
    server: &Server,
    source: ResendSource,
    progress: &SnapshotProgress,
) -> Result<String, Failure> {
    let counts = Arc::new(RecordCounts::default());
    route_selected(&server.config, source, progress, &counts)?;
    let topics = counts.topics().into_iter();
    let topics: Vec<String> = topics
        .map(|(topic, count)| format!("{count} to {topic}"))
        .collect();
    Ok(if topics.is_empty() {
        ", of which no record is made".to_owned()
    } else {
        format!(": {}", topics.join(", "))
    })
}

fn rows(count: u64) -> String {
    if count == 1 {
        "1 row".to_owned()
    } else {
        format!("{count} rows")
    }
}

/// Returns the SQL condition for the rows of `--where` or `--id`, and the column by which `--id` finds them.
fn condition<'a>(
    args: &ResendArgs,
    config: &'a PipelineConfig,
) -> Result<(String, Option<&'a str>), Failure> {
    if let Some(condition) = &args.r#where {
        return Ok((condition.clone(), None));
    }
    let column = id_column(config).ok_or_else(|| {
        Failure::new(
            "resend-id",
            Exit::Config,
            "the route names no column for the id of events",
        )
        .remedy("name the rows with --where, or set router.route.id")
    })?;
    let ids: Vec<String> = args.id.iter().map(|id| quote_literal(id)).collect();
    let condition = format!("{} IN ({})", quote_ident(column), ids.join(", "));
    Ok((condition, Some(column)))
}

/// Checks the database as `run` does, and counts the rows. `by_id`: the column of `--id`, which needs an index, and the
/// longest time in which the server may find the rows.
async fn count_rows(
    source: &mut ResendSource,
    server: &Server,
    by_id: Option<(&str, Duration)>,
) -> Result<u64, Failure> {
    let wanted = wanted(&server.config);
    let mut session = server.connect().await?;
    let facts = inspect(&mut session, &wanted).await?;
    plan(&wanted, &facts, Moment::Print).map_err(failure)?;
    if let Some((column, _)) = by_id {
        check_indexes(&mut session, &server.config, column).await?;
    }
    session.close().await;
    let counted = source.count(by_id.map(|(_, limit)| limit)).await;
    counted.map_err(|error| match (error, by_id) {
        (PostgresError::Wal(sql), Some((_, limit))) if sql.sqlstate() == Some(CANCELED) => {
            let what = format!("Postgres has not found the rows within {} s", limit.as_secs_f64());
            Failure::new("resend-slow", Exit::Unavailable, what)
                .caused_by(sql)
                .remedy(
                    "another session may hold a lock: walrelay check names it (table-lock). Otherwise try again when \
                     the server is less busy, or pass a longer --timeout",
                )
        }
        (error, _) => error.into(),
    })
}

/// Checks that an index of each table serves `--id`, as `where` does: otherwise each table would be read as a whole.
async fn check_indexes(
    session: &mut Session,
    config: &PipelineConfig,
    column: &str,
) -> Result<(), Failure> {
    for table in &config.source.tables {
        // A missing table or column is reported by the query of the rows.
        if is_indexed(session, table, column).await? == Some(false) {
            let what = format!(
                "no index of table {table} begins with {column}, so --id would read the whole table"
            );
            return Err(Failure::new("resend-no-index", Exit::Config, what).remedy(format!(
                "create one: CREATE INDEX CONCURRENTLY ON {table} ({}); or name the rows with --where, which may read \
                 the whole table, such as --where \"{column} = 'ID'\"",
                quote_ident(column)
            )));
        }
    }
    Ok(())
}

fn confirm_resend(args: &ResendArgs, count: u64) -> Result<(), Failure> {
    if args.ask.yes {
        return Ok(());
    }
    print_notice(&format!(
        "{} will be sent again: consumers see these events again, and old events of a key after new ones",
        rows(count)
    ));
    let refused = Failure::new("resend-not-agreed", Exit::Usage, "nothing was sent");
    ask_to_continue(refused.remedy("look with --dry-run, or say --yes"))
}

/// Sends the rows into the sinks of this factory, until `parent` is gone.
fn send(
    config: &PipelineConfig,
    source: ResendSource,
    (progress, count): (&Arc<SnapshotProgress>, u64),
    factory: AnySinkFactory,
    parent: &Parent,
) -> Result<(), Failure> {
    let id = run_id();
    let (router, settings) = router_and_settings(config, true, |_| PoisonAction::Halt)?;
    // Where the row's commit is in the WAL is not known. Any position of now would be above those of
    // newer events of the key.
    let router = router
        .with_position_header(None)
        .with_run_header(Some((RESEND_HEADER.to_owned(), id.clone())));
    let begun = Instant::now();
    let mut line = ProgressLine::new();
    let shown = Arc::clone(progress);
    let mut observer =
        OnProgress(move |_: &Progress| line.draw(|| rows_bar(shown.rows_in_attempt(), count)));
    print_notice(&format!("resend {id}: {}", rows(count)));
    let mut pipeline = CommandPipeline::new(source, router, factory, &mut observer, settings);
    let ended = async {
        tokio::select! {
            () = progress.acknowledged() => {}
            () = parent.gone() => {}
        }
    };
    let result = run_until(&mut pipeline, ended)?;
    let elapsed = begun.elapsed().as_secs_f64();
    let records = pipeline.counts().records;
    match result? {
        Outcome::Drained { .. } if progress.is_acknowledged() => {
            print_notice(&format!(
                "resend {id}: {records} records acknowledged in {elapsed:.1} s, each with header {RESEND_HEADER} = {id}"
            ));
            Ok(())
        }
        _ => {
            let what = format!("resend {id} was interrupted: not all records are acknowledged");
            Err(Failure::new("resend-interrupted", Exit::Temporary, what)
                .remedy("start it again: rows already sent are sent once more"))
        }
    }
}
