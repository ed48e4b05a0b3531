//! `walrelay resend`: rows that are in the outbox tables still are sent again, each marked by a header.
//!
//! The slot and what is confirmed in it stay as they are: a relay may be running. The rows go through its router, and
//! an event that cannot be delivered ends the command, whatever `[poison]` says.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use walrelay_kafka_sink::KafkaSinkFactory;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::{Environment, Outcome, Pipeline, PoisonAction, Progress};
use walrelay_sink::SinkFactory;
use walrelay_walsender::{Session, SessionKind, quote_ident, quote_literal};

use super::confirm::go_on;
use super::connect::{self, block_on, conn_info, id_column, run_id, selection, wanted};
use super::progress_line::ProgressLine;
use super::run::asked_to_stop_or;
use super::slots::warn;
use super::units::bar;
use super::{Ended, Env, load, log_warnings, output};
use crate::cli::{Exit, Failure, ResendArgs};
use crate::config::{Config, SinkConfig};
use crate::failures::{self, SinkFailure};
use crate::postgres::{
    Moment, PostgresError, ResendSource, Selection, SnapshotPlan, SnapshotProgress, Wanted,
    inspect, plan,
};
use crate::sinks::StdoutSinkFactory;
use crate::telemetry::wall_clock;

/// The header that says which run sent a record again.
const HEADER: &str = "walrelay-resend";

/// `walrelay resend`.
pub(crate) fn resend(args: &ResendArgs, env: Env<'_>) -> Ended {
    let config = load(&args.ask.change.config, env)?;
    log_warnings(&config, Some(&config.source.slot), env);
    let info = conn_info(&config.source, env)?;
    let wanted = wanted(&config);
    let progress = Arc::new(SnapshotProgress::default());
    let source = ResendSource::new(SnapshotPlan {
        info: info.clone(),
        publication: wanted.publication.clone(),
        tables: wanted.tables.clone(),
        selection: Selection {
            unsent: false,
            filter: Some(condition(args, &config)?),
            ..selection(&config)
        },
        progress: Arc::clone(&progress),
    });
    let (source, count) =
        block_on(Box::pin(counted(source, &info, &wanted)))?.map_err(failures::postgres)?;
    if count == 0 {
        let failure = Failure::new(
            "resend-no-rows",
            Exit::Data,
            "no row matches: nothing is sent",
        )
        .remedy(
            "a row that was deleted cannot be sent again. Look with psql at what is in the tables",
        );
        return Err(vec![failure]);
    }
    if args.ask.change.dry_run {
        let line = format!("{} would be sent again\n", rows(count));
        return Ok(io::stdout().write_all(line.as_bytes()).map_err(output)?);
    }
    agree(args, count)?;
    let run = Run {
        config: &config,
        id: run_id(),
        count,
        progress,
    };
    match &config.sink {
        SinkConfig::Kafka(sink) => {
            let kafka = connect::kafka(sink, &config.delivery)?;
            run.by(source, KafkaSinkFactory::new(kafka))?;
        }
        SinkConfig::Stdout { .. } => {
            run.by(source, StdoutSinkFactory::new(&config.delivery))?;
        }
    }
    Ok(())
}

fn rows(count: u64) -> String {
    if count == 1 {
        "1 row".to_owned()
    } else {
        format!("{count} rows")
    }
}

/// The rows that were asked for, as SQL.
fn condition(args: &ResendArgs, config: &Config) -> Result<String, Failure> {
    if let Some(condition) = &args.r#where {
        return Ok(condition.clone());
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
    Ok(format!("{} IN ({})", quote_ident(column), ids.join(", ")))
}

/// Checks the database as a relay does, and counts the rows.
async fn counted(
    mut source: ResendSource,
    info: &walrelay_walsender::ConnInfo,
    wanted: &Wanted,
) -> Result<(ResendSource, u64), PostgresError> {
    let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
    let facts = inspect(&mut session, wanted).await?;
    session.close().await;
    plan(wanted, &facts, Moment::Print)?;
    let count = source.count().await?;
    Ok((source, count))
}

fn agree(args: &ResendArgs, count: u64) -> Result<(), Failure> {
    if args.ask.yes {
        return Ok(());
    }
    warn(&format!(
        "{} will be sent again: consumers see these events again, and old events of a key after new ones",
        rows(count)
    ));
    go_on().map_err(|why| {
        let what = format!("nothing was sent: {why}");
        Failure::new("resend-not-agreed", Exit::Usage, what)
            .remedy("look with --dry-run, or say --yes")
    })
}

struct Run<'a> {
    config: &'a Config,
    id: String,
    count: u64,
    progress: Arc<SnapshotProgress>,
}

impl Run<'_> {
    fn by<F>(self, source: ResendSource, factory: F) -> Result<(), Failure>
    where
        F: SinkFactory,
        F::Error: SinkFailure,
    {
        let (router, messages) = connect::router(self.config)?;
        let router = router.with_run_header(Some((HEADER.to_owned(), self.id.clone())));
        let schemas = connect::schemas(self.config, None)?;
        let mut settings = connect::settings(self.config, messages, None, schemas);
        let poison = &mut settings.poison;
        poison.unroutable = PoisonAction::Halt;
        poison.oversize = PoisonAction::Halt;
        poison.rejected = PoisonAction::Halt;
        poison.undecodable = PoisonAction::Halt;
        let begun = Instant::now();
        let watch = Watch {
            progress: Arc::clone(&self.progress),
            count: self.count,
            line: ProgressLine::new(),
        };
        warn(&format!("resend {}: {}", self.id, rows(self.count)));
        let mut pipeline = Pipeline::new(source, router, factory, watch, settings);
        let result = block_on(async {
            let done = asked_to_stop_or(self.progress.acknowledged())?;
            Ok::<_, Failure>(Box::pin(pipeline.run(done)).await)
        })??;
        let elapsed = begun.elapsed().as_secs_f64();
        let records = pipeline.counts().records;
        match result.map_err(failures::pipeline)? {
            Outcome::Drained { .. } if self.progress.is_acknowledged() => {
                warn(&format!(
                    "resend {}: {records} records acknowledged in {elapsed:.1} s, each with header {HEADER} = {}",
                    self.id, self.id
                ));
                Ok(())
            }
            _ => Err(Failure::new(
                "resend-interrupted",
                Exit::Temporary,
                format!(
                    "resend {} was interrupted: not all records are acknowledged",
                    self.id
                ),
            )
            .remedy("begin it again: what was sent is sent once more")),
        }
    }
}

/// The environment of the pipeline.
#[derive(Debug)]
struct Watch {
    progress: Arc<SnapshotProgress>,
    count: u64,
    line: ProgressLine,
}

impl Environment for Watch {
    fn wall_clock(&self) -> PgTimestamp {
        wall_clock()
    }

    fn progress(&mut self, _: &Progress) {
        let Self {
            progress,
            count,
            line,
        } = self;
        line.draw(|| bar(progress.of_attempt(), *count));
    }
}
