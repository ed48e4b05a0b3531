//! `walrelay bench`: measures the relay with the configured database and sink.
//!
//! - [`objects`]: creates and removes the benchmark's objects in the database and in the sink, and
//!   makes the pipelines that read them.
//! - [`load`]: writes a backlog, and rows on a schedule. [`worker`]: a thread that writes or reads.
//! - [`null`]: a sink that discards records.
//! - [`drain`], [`latency`]: the measurements, with the pipeline of `run`. [`meter`] counts
//!   acknowledgements.
//! - [`report`]: the figures as Markdown and JSON.
//!
//! # Invariants
//! - The benchmark changes no table, publication, topic or slot that it has not created; slots of
//!   others are read through temporary copies only.
//! - Its objects are removed however it ends. Those that cannot be removed are reported.

mod drain;
mod latency;
mod load;
mod meter;
mod objects;
mod report;
mod worker;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use tracing::Level;
use walrelay_failure::{Exit, Failure};
use walrelay_measure::figures::Machine;
use walrelay_observe::log_to_stderr;
use walrelay_postgres_source::{CopySource, Original};
use walrelay_sink::any_factory;
use walrelay_sink_kind::{Ability, SinkKind};
use walrelay_walsender::ConnInfo;

use crate::cli::{BenchArgs, BenchPart};
use crate::commands::assembly::StopSignals;
use crate::commands::assembly::sink::{any_sink, refused};
use crate::commands::assembly::{self, block_on, conn_info, sql_session};
use crate::commands::terminal::confirm::ask_to_continue;
use crate::commands::{CommandResult, EnvVars, load, print_notice};
use crate::config::{Log, PipelineConfig};
use crate::sinks::NullSinkFactory;
use drain::drain;
use objects::{BenchObjects, BenchPipeline};
use report::{Report, SinkServers};

const TO_NOTHING: &str = "walrelay, to nothing";

/// Runs `walrelay bench`.
pub(crate) fn bench(args: &BenchArgs, env: EnvVars<'_>) -> CommandResult {
    let config = load(&args.config, env)?;
    log_to_stderr(
        Log {
            level: Level::WARN,
            ..config.process.log
        },
        &[&config.pipeline.source.slot],
        env,
    );
    let config = config.pipeline;
    let mut info = conn_info(&config.source, env)?;
    "walrelay bench".clone_into(&mut info.application_name);
    if let Some(slot) = &args.copy_of {
        let report = block_on(Box::pin(drain_copy(slot, args, &config, info)))??;
        return Ok(print_report(&report, args.json.as_deref())?);
    }
    let sink: Arc<dyn SinkKind> = any_sink(&config)?.into();
    let mut parts = [BenchPart::Sink, BenchPart::Latency].into_iter();
    if sink.topics().is_none() && parts.any(|part| args.measures(part)) {
        return Err(needs_topics(&*sink).into());
    }
    let objects = BenchObjects::new(info, sink);
    confirm_load(args, &objects)?;
    let (measured, leftovers) = block_on(Box::pin(measure_and_remove(objects, args, &config)))??;
    let printed = measured.and_then(|report| print_report(&report, args.json.as_deref()));
    let failures: Vec<Failure> = printed.err().into_iter().chain(leftovers).collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures)
    }
}

impl BenchArgs {
    fn measures(&self, part: BenchPart) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn drains(&self) -> bool {
        self.measures(BenchPart::Null) || self.measures(BenchPart::Sink)
    }

    /// Rows written on schedules, of all rates.
    fn scheduled_rows(&self) -> u64 {
        let rates = self.rates.iter().map(|rate| u64::from(*rate));
        rates.sum::<u64>() * u64::from(self.seconds)
    }
}

/// Prints what will be written, and asks whether to continue.
fn confirm_load(args: &BenchArgs, objects: &BenchObjects) -> Result<(), Failure> {
    let count = |measured: bool, rows| if measured { rows } else { 0 };
    let scheduled = count(args.measures(BenchPart::Latency), args.scheduled_rows());
    let rows = count(args.drains(), args.rows) + scheduled;
    let records = count(args.measures(BenchPart::Sink), args.rows) + scheduled;
    let megabytes = |count: u64| count * u64::from(args.bytes) / 1_000_000;
    print_notice(&format!(
        "This benchmark will write to {}:\n  \
         {rows} rows of about {} bytes ({} MB, and about twice that in the log) into {}, which is made for it",
        objects.info.redacted(),
        args.bytes,
        megabytes(rows),
        objects.table(),
    ));
    if records > 0 {
        print_notice(&format!(
            "and to {} at {}:\n  {records} records ({} MB) into topics named {}.…, which are made for it",
            objects.sink.description().title,
            objects.sink.servers().unwrap_or_default(),
            megabytes(records),
            objects.topic_prefix,
        ));
    }
    print_notice(
        "It reads through temporary slots, and removes all of it at the end. The load is real: other users of these servers will notice.",
    );
    if args.yes {
        return Ok(());
    }
    let refused = Failure::new("bench-not-agreed", Exit::Usage, "nothing was written");
    ask_to_continue(refused.remedy("say --yes to go on without being asked"))
}

/// Measures, and removes the benchmark's objects, also after a failure or a signal. Returns the
/// result, and the failure to remove objects, if any.
async fn measure_and_remove(
    mut objects: BenchObjects,
    args: &BenchArgs,
    config: &PipelineConfig,
) -> Result<(Result<Report, Failure>, Option<Failure>), Failure> {
    let mut signals = StopSignals::new()?;
    let measured = tokio::select! {
        biased;
        () = signals.next() => Err(interrupted()),
        measured = Box::pin(measure(&mut objects, args, config)) => measured,
    };
    print_notice("removing the created objects");
    tokio::select! {
        biased;
        () = signals.next() => {}
        () = Box::pin(objects.remove()) => {}
    }
    Ok((measured, objects.not_removed()))
}

async fn measure(
    objects: &mut BenchObjects,
    args: &BenchArgs,
    config: &PipelineConfig,
) -> Result<Report, Failure> {
    objects.create_schema().await?;
    let sink = objects.sink.servers().map(|servers| SinkServers {
        kind: objects.sink.name(),
        title: objects.sink.description().title,
        servers,
    });
    let mut report = new_report(&objects.info, sink, args).await?;
    if args.drains() {
        print_notice("making a temporary slot: Postgres waits for open transactions first");
        objects.recreate_slot().await?;
        let portion = (args.rows / 10).max(1);
        let mut reported = 0;
        let progress = |written| {
            if written / portion > reported {
                reported = written / portion;
                print_notice(&format!("{written} of {} rows written", args.rows));
            }
        };
        let table = objects.table();
        load::backlog(&objects.info, &table, args.rows, args.bytes, progress).await?;
    }
    if args.measures(BenchPart::Null) {
        print_notice("draining them to nothing");
        let pipeline = objects.pipeline("order", config);
        let drained = drain(
            TO_NOTHING,
            args.rows,
            pipeline,
            any_factory(NullSinkFactory),
        )
        .await?;
        report.drained.push(drained);
    }
    if args.measures(BenchPart::Sink) {
        let title = objects.sink.description().title;
        print_notice(&format!("draining them to {title}"));
        objects.create_topic("order").await?;
        let pipeline = objects.pipeline("order", config);
        let (factory, _) = objects.sink.factory(None);
        let contender = format!("walrelay, to {title}");
        let drained = drain(&contender, args.rows, pipeline, factory).await?;
        report.drained.push(drained);
    }
    if args.measures(BenchPart::Latency) {
        for rate in &args.rates {
            print_notice(&format!("{rate} rows a second for {} s", args.seconds));
            objects.recreate_slot().await?;
            let suffix = format!("order-{rate}");
            let topic = objects.create_topic(&suffix).await?;
            let pipeline = objects.pipeline(&suffix, config);
            let sink = Arc::clone(&objects.sink);
            let schedule = load::Schedule {
                info: objects.info.clone(),
                table: objects.table(),
                bytes: args.bytes,
                rate: *rate,
                seconds: args.seconds,
            };
            let measured = latency::measure(pipeline, sink, topic, schedule).await?;
            report.latency.push(measured);
        }
    }
    Ok(report)
}

/// Drains the first events of a copy of an existing slot to nothing.
async fn drain_copy(
    slot: &str,
    args: &BenchArgs,
    config: &PipelineConfig,
    info: ConnInfo,
) -> Result<Report, Failure> {
    let mut report = new_report(&info, None, args).await?;
    let (router, messages) = assembly::router(config)?;
    let schemas = assembly::schemas_without_registering(config)?;
    let original = Original {
        info,
        slot: slot.to_owned(),
        publication: config.source.publication.clone(),
        tables: config.source.tables.clone(),
        messages: messages.is_some(),
        wal_sender_timeout: config.source.wal_sender_timeout,
    };
    let prefix = format!("walrelay_bench_{:08x}", fastrand::u32(..));
    let pipeline = BenchPipeline {
        source: CopySource::new(original, &prefix),
        router,
        settings: assembly::settings(config, messages, None, schemas),
    };
    let drained = drain(
        TO_NOTHING,
        args.rows,
        pipeline,
        any_factory(NullSinkFactory),
    )
    .await?;
    report.drained.push(drained);
    Ok(report)
}

/// Returns a report without figures.
async fn new_report(
    info: &ConnInfo,
    sink: Option<SinkServers>,
    args: &BenchArgs,
) -> Result<Report, Failure> {
    let session = sql_session(info).await?;
    let postgres = session.server_version().to_string();
    session.close().await;
    Ok(Report {
        walrelay: env!("CARGO_PKG_VERSION"),
        machine: Machine::here(),
        postgres,
        kafka: sink.as_ref().and_then(SinkServers::kafka_servers),
        sink,
        payload_bytes: args.copy_of.is_none().then_some(args.bytes),
        drained: Vec::new(),
        latency: Vec::new(),
    })
}

/// Prints the report as Markdown, and writes it as JSON to the file of `--json`.
fn print_report(report: &Report, json: Option<&Path>) -> Result<(), Failure> {
    // Writing fails if standard output is closed.
    let _ = write!(io::stdout(), "{}", report.to_markdown());
    let Some(path) = json else { return Ok(()) };
    report.to_json(path).map_err(|error| {
        let what = format!("cannot write {}", path.display());
        Failure::new("output", Exit::Unavailable, what)
            .caused_by(error)
            .remedy("name a file that you may write with --json; the report above is complete")
    })
}

fn interrupted() -> Failure {
    Failure::new(
        "bench-interrupted",
        Exit::Temporary,
        "the benchmark was interrupted",
    )
    .remedy("it gives no figures; run it again")
}

fn needs_topics(sink: &dyn SinkKind) -> Failure {
    refused("bench-sink", sink, Ability::Topics)
        .remedy("choose another sink.kind, or measure reading alone: --only null")
}

fn no_thread(error: io::Error) -> Failure {
    Failure::new("bench-thread", Exit::Unavailable, "cannot start a thread")
        .caused_by(error)
        .remedy("raise the limit of threads (ulimit -u), or end other programs: bench starts one for each writer")
}

fn panicked() -> Failure {
    Failure::new("bench-thread", Exit::Internal, "a thread panicked").remedy(
        "this is a bug of bench: please report it with the lines above. No relay is affected",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_without_topics_is_refused_by_name() {
        use crate::commands::assembly::sink::recording::Recording;
        let failure = needs_topics(&Recording::default());
        assert_eq!(failure.id, "bench-sink");
        assert_eq!(
            failure.what,
            "the sink recording cannot read and create topics"
        );
    }
}
