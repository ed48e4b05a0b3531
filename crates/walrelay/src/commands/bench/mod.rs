//! `walrelay bench`: the relay measured with somebody's own database and broker.
//!
//! - [`stage`]: what is made for it in the database and in Kafka, and removed again.
//! - [`load`]: what is written: a backlog, and rows on a schedule. [`worker`]: a thread of it.
//! - [`null`]: a sink that throws away; what it reads are temporary copies of slots.
//! - [`drain`], [`latency`]: the measurements, with the pipeline of `run`. [`meter`] counts what is
//!   acknowledged.
//! - [`report`]: the figures as Markdown and JSON.
//!
//! # Invariants
//! - Nothing is touched that the benchmark has not made: no table, publication, topic, and no slot but
//!   by a temporary copy.
//! - What it made is removed however it ends; what cannot be removed is named.

mod drain;
mod latency;
mod load;
mod meter;
mod null;
mod report;
mod stage;
mod worker;

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{SignalKind, signal};
use walrelay_event_router::{Options, Router};
use walrelay_kafka_sink::{KafkaConfig, KafkaSinkFactory, TopicCreation};
use walrelay_lab::figures::Machine;
use walrelay_relay::{PoisonPolicy, Settings};
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use super::confirm::go_on;
use super::connect::{self, block_on, conn_info};
use super::{Ended, Env, load};
use crate::cli::{BenchArgs, BenchPart, Exit, Failure};
use crate::config::{Config, Log, LogLevel, SinkConfig};
use crate::failures;
use crate::postgres::Original;
use crate::telemetry::log_to_stderr;
use drain::{Drained, drain};
pub(super) use null::NullSinkFactory;
use report::Report;
use stage::{Stage, failure_of};

const TO_NOTHING: &str = "walrelay, to nothing";
const TO_KAFKA: &str = "walrelay, to Kafka";

/// `walrelay bench`.
pub(crate) fn bench(args: &BenchArgs, env: Env<'_>) -> Ended {
    let config = load(&args.config, env)?;
    log_to_stderr(
        Log {
            level: LogLevel::Warn,
            ..config.log
        },
        Some(&config.source.slot),
        env,
    );
    let mut info = conn_info(&config.source, env)?;
    "walrelay bench".clone_into(&mut info.application_name);
    if let Some(slot) = &args.copy_of {
        let report = block_on(Box::pin(copy(slot, args, &config, info)))??;
        return Ok(show(&report, args.json.as_deref())?);
    }
    let kafka = match &config.sink {
        SinkConfig::Kafka(sink) => {
            let creation = TopicCreation {
                partitions: sink.topics.partitions.unwrap_or(-1),
                replication_factor: sink.topics.replication_factor.map_or(-1, i32::from),
                properties: std::collections::BTreeMap::new(),
            };
            Some((connect::kafka(sink, &config.delivery)?, creation))
        }
        SinkConfig::Stdout { .. } => None,
    };
    if kafka.is_none()
        && [BenchPart::Kafka, BenchPart::Latency]
            .iter()
            .any(|part| args.measures(*part))
    {
        return Err(needs_kafka().into());
    }
    let stage = Stage::new(info, kafka);
    agree(args, &stage)?;
    let (measured, left) = block_on(Box::pin(on(stage, args, &config)))??;
    let shown = measured.and_then(|report| show(&report, args.json.as_deref()));
    let failures: Vec<Failure> = shown.err().into_iter().chain(left).collect();
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
        self.measures(BenchPart::Null) || self.measures(BenchPart::Kafka)
    }

    fn scheduled(&self) -> u64 {
        let rates = self.rates.iter().map(|rate| u64::from(*rate));
        rates.sum::<u64>() * u64::from(self.seconds)
    }
}

/// Says what will be written, and asks.
fn agree(args: &BenchArgs, stage: &Stage) -> Result<(), Failure> {
    let mut rows = 0;
    let mut records = 0;
    if args.drains() {
        rows += args.rows;
    }
    if args.measures(BenchPart::Kafka) {
        records += args.rows;
    }
    if args.measures(BenchPart::Latency) {
        rows += args.scheduled();
        records += args.scheduled();
    }
    let megabytes = |count: u64| count * u64::from(args.bytes) / 1_000_000;
    say(&format!(
        "This benchmark will write to {}:\n  \
         {rows} rows of about {} bytes ({} MB, and about twice that in the log) into {}, which is made for it",
        stage.info().redacted(),
        args.bytes,
        megabytes(rows),
        stage.table(),
    ));
    if let Some(kafka) = stage.kafka().filter(|_| records > 0) {
        say(&format!(
            "and to Kafka at {}:\n  {records} records ({} MB) into topics named {}.…, which are made for it",
            kafka.bootstrap_servers(),
            megabytes(records),
            stage.topic(),
        ));
    }
    say(
        "It reads through temporary slots, and removes all of it at the end. The load is real: other users of these servers will notice.",
    );
    if args.yes {
        return Ok(());
    }
    go_on().map_err(|why| {
        let what = format!("nothing was written: {why}");
        Failure::new("bench-not-agreed", Exit::Usage, what)
            .remedy("say --yes to go on without being asked")
    })
}

/// Measures and removes what was made for it, also after a failure or a signal.
async fn on(
    mut stage: Stage,
    args: &BenchArgs,
    config: &Config,
) -> Result<(Result<Report, Failure>, Option<Failure>), Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| {
            Failure::new("signals", Exit::Internal, "cannot listen for signals").caused_by(error)
        })
    };
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut signalled = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let measured = tokio::select! {
        biased;
        () = signalled() => Err(interrupted()),
        measured = Box::pin(measure(&mut stage, args, config)) => measured,
    };
    say("removing what was made");
    let left = tokio::select! {
        biased;
        () = signalled() => None,
        left = Box::pin(stage.clear()) => Some(left),
    };
    let left = left.unwrap_or_else(|| stage.left());
    Ok((measured, failure_of(&left)))
}

async fn measure(stage: &mut Stage, args: &BenchArgs, config: &Config) -> Result<Report, Failure> {
    stage.prepare().await?;
    let mut report = begin(stage.info(), stage.kafka(), args).await?;
    if args.drains() {
        say("making a temporary slot: Postgres waits for open transactions first");
        stage.keep_from_here().await?;
        let portion = (args.rows / 10).max(1);
        let mut told = 0;
        let progress = |written| {
            if written / portion > told {
                told = written / portion;
                say(&format!("{written} of {} rows written", args.rows));
            }
        };
        load::backlog(
            stage.info(),
            &stage.table(),
            args.rows,
            args.bytes,
            progress,
        )
        .await?;
    }
    if args.measures(BenchPart::Null) {
        say("draining them to nothing");
        let job = job(TO_NOTHING, stage, args, config);
        report.drained.push(drain(job, NullSinkFactory).await?);
    }
    if args.measures(BenchPart::Kafka) {
        say("draining them to Kafka");
        stage.create_topic("order").await?;
        let job = job(TO_KAFKA, stage, args, config);
        let kafka = stage.kafka().ok_or_else(needs_kafka)?.clone();
        let drained = drain(job, KafkaSinkFactory::new(kafka)).await?;
        report.drained.push(drained);
    }
    if args.measures(BenchPart::Latency) {
        for rate in &args.rates {
            say(&format!("{rate} rows a second for {} s", args.seconds));
            stage.keep_from_here().await?;
            let last = format!("order-{rate}");
            let topic = stage.create_topic(&last).await?;
            let job = latency::Job {
                original: stage.original(),
                copy: stage.next_copy(),
                router: own_router(&topic),
                topic,
                kafka: stage.kafka().ok_or_else(needs_kafka)?.clone(),
                schedule: load::Schedule {
                    info: stage.info().clone(),
                    table: stage.table(),
                    bytes: args.bytes,
                    rate: *rate,
                    seconds: args.seconds,
                },
                settings: own_settings(stage, config),
            };
            report.latency.push(latency::measure(job).await?);
        }
    }
    Ok(report)
}

fn job(
    contender: &'static str,
    stage: &mut Stage,
    args: &BenchArgs,
    config: &Config,
) -> drain::Job {
    drain::Job {
        contender,
        original: stage.original(),
        copy: stage.next_copy(),
        rows: args.rows,
        router: own_router(&format!("{}.order", stage.topic())),
        settings: own_settings(stage, config),
    }
}

/// Debezium's preset, all to one topic.
fn own_router(topic: &str) -> Router {
    let topic = topic
        .parse()
        .unwrap_or_else(|_| unreachable!("a name without $ and \\ is a template"));
    Router::new(Options {
        topic,
        ..Options::default()
    })
}

/// As configured, but for the benchmark's own table, whose rows are no poison.
fn own_settings(stage: &Stage, config: &Config) -> Settings {
    Settings {
        tables: [stage.table()].into(),
        poison: PoisonPolicy::default(),
        ..connect::settings(config, None, None, None)
    }
}

/// The first events that wait in a slot of somebody's, to nothing.
async fn copy(
    slot: &str,
    args: &BenchArgs,
    config: &Config,
    info: ConnInfo,
) -> Result<Report, Failure> {
    let mut report = begin(&info, None, args).await?;
    let (router, messages) = connect::router(config)?;
    // What is only measured registers nothing.
    let mut looking = config.clone();
    if let Some(registry) = &mut looking.registry {
        registry.register = false;
    }
    let schemas = connect::schemas(&looking, None)?;
    let original = Original {
        info,
        slot: slot.to_owned(),
        publication: config.source.publication.clone(),
        tables: config.source.tables.clone(),
        messages: messages.is_some(),
        wal_sender_timeout: config.source.wal_sender_timeout,
    };
    let job = drain::Job {
        contender: TO_NOTHING,
        original,
        copy: format!("walrelay_bench_{:08x}", fastrand::u32(..)),
        rows: args.rows,
        router,
        settings: connect::settings(config, messages, None, schemas),
    };
    let drained: Drained = drain(job, NullSinkFactory).await?;
    report.drained.push(drained);
    Ok(report)
}

async fn begin(
    info: &ConnInfo,
    kafka: Option<&KafkaConfig>,
    args: &BenchArgs,
) -> Result<Report, Failure> {
    let session = Session::connect(info, SessionKind::Sql, &[]).await;
    let session = session.map_err(|error| failures::postgres(error.into()))?;
    let postgres = session.server_version().to_string();
    session.close().await;
    Ok(Report {
        walrelay: env!("CARGO_PKG_VERSION"),
        machine: Machine::here(),
        postgres,
        kafka: kafka.map(|kafka| kafka.bootstrap_servers().to_owned()),
        payload_bytes: args.copy_of.is_none().then_some(args.bytes),
        drained: Vec::new(),
        latency: Vec::new(),
    })
}

fn show(report: &Report, json: Option<&Path>) -> Result<(), Failure> {
    // Nobody is left to be told when standard output is closed.
    let _ = write!(io::stdout(), "{}", report.to_markdown());
    let Some(path) = json else { return Ok(()) };
    report.to_json(path).map_err(|error| {
        let what = format!("cannot write {}", path.display());
        Failure::new("output", Exit::Unavailable, what).caused_by(error)
    })
}

fn say(line: &str) {
    // Nobody is left to be told when standard error is closed.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Microseconds since 1970 by this machine's clock.
fn micros_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since.unwrap_or(Duration::ZERO).as_micros();
    i64::try_from(micros).unwrap_or(i64::MAX)
}

fn interrupted() -> Failure {
    Failure::new(
        "bench-interrupted",
        Exit::Temporary,
        "the benchmark was interrupted",
    )
    .remedy("it gives no figures; run it again")
}

fn needs_kafka() -> Failure {
    Failure::new(
        "bench-sink",
        Exit::Config,
        "there is no Kafka in the configuration to measure with",
    )
    .remedy("set sink.kind to kafka, or measure reading alone: --only null")
}

fn no_thread(error: io::Error) -> Failure {
    Failure::new("bench-thread", Exit::Unavailable, "cannot start a thread").caused_by(error)
}

fn panicked() -> Failure {
    Failure::new("bench-thread", Exit::Internal, "a thread panicked")
}
