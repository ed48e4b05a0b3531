//! `walrelay run`.

use std::future::Future;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use walrelay_kafka_sink::KafkaSinkFactory;
use walrelay_kafka_sink::dlq::DlqWatcher;
use walrelay_relay::{Outcome, Pipeline, PipelineError, Source};
use walrelay_sink::{Parking, SinkFactory};

use super::connect::{block_on, conn_info, kafka, marking, router, schemas, settings, wanted};
use super::prune::pruning;
use super::{Ended, Env, load};
use crate::background::Background;
use crate::cli::{Exit, Failure, RunArgs};
use crate::config::{Config, SinkConfig, SnapshotMode};
use crate::failures::{self, SinkFailure};
use crate::http::{Endpoint, EndpointError};
use crate::postgres::{
    CopySource, PostgresError, PostgresSource, ROLLING, SnapshotProgress, SourceOptions,
    bookmark_slot,
};
use crate::rolling::{self, Keep, Keeping};
use crate::row_worker::{RowWorker, Work};
use crate::sinks::StdoutSinkFactory;
use crate::telemetry::{
    Exporter, RecentErrors, Setup, SlotMonitor, Telemetry, World, log_to_stderr,
};

/// The last log line of a run that drained.
const CONFIRMED: &str = "drained: everything that was sent is confirmed";
/// The same for a run that read a temporary copy of the slot.
const PRINTED: &str =
    "drained: everything that was read is printed; the slot stands where it stood";

/// `walrelay run`.
pub(crate) fn run(args: &RunArgs, env: Env<'_>) -> Ended {
    let config = load(&args.config, env)?;
    let errors = log_to_stderr(config.log, Some(&config.source.slot), env);
    let run = Run {
        config: &config,
        env,
        accept_gap: args.accept_gap,
        errors,
    };
    run.until(World::new(env), asked_to_stop)?;
    Ok(())
}

/// Milliseconds from commit to acknowledgement: median and 99th percentile.
pub(super) type CommitToAck = Option<(f64, f64)>;

/// A relay with one configuration.
pub(super) struct Run<'a> {
    pub(super) config: &'a Config,
    pub(super) env: Env<'a>,
    pub(super) accept_gap: bool,
    /// The last lines of the log.
    pub(super) errors: RecentErrors,
}

impl Run<'_> {
    /// Relays until the future that `stop` makes, on the pipeline's runtime, is ready. Returns its latencies.
    pub(super) fn until<F: Future<Output = ()>>(
        self,
        world: World,
        stop: impl FnOnce() -> Result<F, Failure>,
    ) -> Result<CommitToAck, Failure> {
        let Self {
            config,
            env,
            accept_gap,
            errors,
        } = self;
        let parking = config.poison.park_key.then(|| Arc::new(Parking::new()));
        let snapshot = Arc::default();
        let telemetry = observed(config, env, errors, parking.as_ref(), Arc::clone(&snapshot))?;
        match &config.sink {
            SinkConfig::Kafka(sink) => {
                let kafka = kafka(sink, &config.delivery)?;
                for warning in kafka.warnings() {
                    warn!("{warning}");
                }
                // Watches as long as the relay runs.
                let _watcher = parking
                    .clone()
                    .map(|parking| {
                        let (topic, slot) = (&config.poison.topic, &config.source.slot);
                        DlqWatcher::start(&kafka, topic, slot, parking)
                    })
                    .transpose()
                    .map_err(|error| failures::kafka_client(&error))?;
                let source = of_slot(config, accept_gap, env)?.with_progress(snapshot);
                let _rolling = rolling_bookmark(config, env, &source, telemetry.as_ref())?;
                let _workers = row_workers(config, env, &source, telemetry.as_ref())?;
                let mut factory = KafkaSinkFactory::new(kafka);
                if let Some(telemetry) = &telemetry {
                    factory = factory.with_stats(Arc::clone(&telemetry.sink));
                }
                let parts = (source, factory, parking, telemetry);
                relay(config, env, parts, world, stop, CONFIRMED)
            }
            SinkConfig::Stdout { confirm } => {
                let factory = StdoutSinkFactory::new(&config.delivery);
                // Standard output cannot be read back: keys are parked for as long as the relay runs.
                if let Some(parking) = &parking {
                    parking.set_ready();
                }
                if *confirm {
                    let source = of_slot(config, accept_gap, env)?.with_progress(snapshot);
                    let _rolling = rolling_bookmark(config, env, &source, telemetry.as_ref())?;
                    let _workers = row_workers(config, env, &source, telemetry.as_ref())?;
                    let parts = (source, factory, parking, telemetry);
                    relay(config, env, parts, world, stop, CONFIRMED)
                } else {
                    let source = of_copies(config, accept_gap, env)?;
                    let parts = (source, factory, parking, telemetry);
                    relay(config, env, parts, world, stop, PRINTED).map_err(of_a_copy)
                }
            }
        }
    }
}

/// The configured slot, in which positions are confirmed.
fn of_slot(config: &Config, accept_gap: bool, env: Env<'_>) -> Result<PostgresSource, Failure> {
    let options = SourceOptions {
        wal_sender_timeout: config.source.wal_sender_timeout,
        state_file: config.source.state_file.clone(),
        accept_gap,
        retained_wal_warning: config.source.retained_wal_warning,
    };
    let info = conn_info(&config.source, env)?;
    Ok(PostgresSource::new(info, wanted(config), options))
}

/// Keeps the rolling bookmark, where one is configured, until it is dropped.
fn rolling_bookmark(
    config: &Config,
    env: Env<'_>,
    source: &PostgresSource,
    telemetry: Option<&Arc<Telemetry>>,
) -> Result<Option<Background>, Failure> {
    let Some(retention) = config.retention else {
        return Ok(None);
    };
    let slot = &config.source.slot;
    let bookmark = bookmark_slot(slot, ROLLING).map_err(|why| {
        Failure::new("bookmark-name", Exit::Config, why)
            .remedy("choose a shorter name for [source] slot")
    })?;
    let keeping = Keeping {
        info: conn_info(&config.source, env)?,
        slot: slot.clone(),
        bookmark,
        keep: Keep {
            time: retention.keep,
            max_wal: retention.max_wal,
        },
        walsender: source.walsender(),
        telemetry: telemetry.cloned(),
    };
    let started = rolling::start(keeping);
    started.map(Some).map_err(no_thread)
}

fn no_thread(error: std::io::Error) -> Failure {
    Failure::new("runtime", Exit::Unavailable, "cannot start").caused_by(error)
}

/// Deletes confirmed rows and marks them as sent, where that is configured, until dropped.
fn row_workers(
    config: &Config,
    env: Env<'_>,
    source: &PostgresSource,
    telemetry: Option<&Arc<Telemetry>>,
) -> Result<Vec<Background>, Failure> {
    let keep = config.prune.as_ref().and_then(|prune| prune.keep);
    let prune = keep.map(|keep| pruning(config, Some(keep))).transpose()?;
    let mark = config.source.mark_sent.as_ref().map(|_| marking(config));
    let work = [prune.map(Work::Prune), mark.map(Work::Mark)];
    let started = work.into_iter().flatten().map(|work| {
        let worker = RowWorker {
            info: conn_info(&config.source, env)?,
            slot: config.source.slot.clone(),
            work,
            walsender: source.walsender(),
            telemetry: telemetry.cloned(),
        };
        worker.start().map_err(no_thread)
    });
    started.collect()
}

/// Temporary copies of that slot, so that nothing is confirmed in it.
fn of_copies(config: &Config, accept_gap: bool, env: Env<'_>) -> Result<CopySource, Failure> {
    if accept_gap {
        return Err(Failure::new(
            "accept-gap-unused",
            Exit::Usage,
            "--accept-gap has no effect with sink.kind = \"stdout\": the slot is not touched",
        )
        .remedy("leave it out, or set sink.stdout.confirm = true as well"));
    }
    let info = conn_info(&config.source, env)?;
    let timeout = config.source.wal_sender_timeout;
    Ok(CopySource::of_configured(info, wanted(config), timeout))
}

/// The original slot moves when a relay that reads it confirms; only this process reads the copy.
fn of_a_copy(failure: Failure) -> Failure {
    if failure.id != "slot-moved" {
        return failure;
    }
    failure.remedy(
        "the connection was lost, and the slot has moved on since: another relay confirmed what \
         was committed meanwhile, and it is not printed. Start again to print what follows",
    )
}

/// A source, a sink, the keys that are parked, and who watches.
type Parts<S, K> = (S, K, Option<Arc<Parking>>, Option<Arc<Telemetry>>);

fn relay<S, K, F>(
    config: &Config,
    env: Env<'_>,
    (source, factory, parking, telemetry): Parts<S, K>,
    world: World,
    stop: impl FnOnce() -> Result<F, Failure>,
    drained: &'static str,
) -> Result<CommitToAck, Failure>
where
    S: Source<Error = PostgresError>,
    K: SinkFactory,
    K::Error: SinkFailure,
    F: Future<Output = ()>,
{
    info!(
        version = env!("CARGO_PKG_VERSION"),
        source = %conn_info(&config.source, env)?.redacted(),
        slot = config.source.slot,
        publication = config.source.publication,
        tables = ?config.source.tables.iter().map(ToString::to_string).collect::<Vec<_>>(),
        sink = bootstrap_servers(config).map_or("stdout", String::as_str),
        max_in_flight_records = config.delivery.max_in_flight_records,
        max_in_flight_bytes = config.delivery.max_in_flight_bytes,
        "starting"
    );
    let (router, messages) = router(config)?;
    let stats = telemetry
        .as_ref()
        .and_then(|telemetry| telemetry.registry_stats());
    let schemas = schemas(config, stats)?;
    let _endpoint = endpoint(config, env, telemetry.as_ref())?;
    let mut pipeline = Pipeline::new(
        source,
        router,
        factory,
        world.observed_by(telemetry),
        settings(config, messages, parking, schemas),
    );
    let result = block_on(async {
        let stop = stop()?;
        Ok::<_, Failure>(pipeline.run(stop).await)
    })??;
    pipeline.environment().summarise(&pipeline.counts());
    ended(result, drained)?;
    let latencies = pipeline.environment().latencies();
    Ok(latencies.millis(0.5).zip(latencies.millis(0.99)))
}

/// Of the Kafka sink.
fn bootstrap_servers(config: &Config) -> Option<&String> {
    match &config.sink {
        SinkConfig::Kafka(kafka) => kafka.properties.0.get("bootstrap.servers"),
        SinkConfig::Stdout { .. } => None,
    }
}

/// What is collected for the HTTP endpoint, where there is one.
fn observed(
    config: &Config,
    env: Env<'_>,
    errors: RecentErrors,
    parking: Option<&Arc<Parking>>,
    snapshot: Arc<SnapshotProgress>,
) -> Result<Option<Arc<Telemetry>>, Failure> {
    if config.http.is_none() {
        return Ok(None);
    }
    let setup = Setup {
        slot: config.source.slot.clone(),
        server: conn_info(&config.source, env)?.redacted(),
        publication: config.source.publication.clone(),
        tables: config
            .source
            .tables
            .iter()
            .map(ToString::to_string)
            .collect(),
        max_in_flight_records: u64::from(config.delivery.max_in_flight_records),
        max_in_flight_bytes: config.delivery.max_in_flight_bytes,
        bootstrap_servers: bootstrap_servers(config).cloned(),
        dead_letter_topic: config.poison.topic.clone(),
        parking: parking.cloned(),
        snapshot: (config.source.snapshot != SnapshotMode::Never).then_some(snapshot),
        registry: config.registry.is_some().then(Arc::default),
        spans: config.otel.is_some(),
        config: config.shown.clone(),
    };
    Ok(Some(Arc::new(Telemetry::new(setup, errors))))
}

/// Serves the HTTP endpoint, and sends to the OpenTelemetry collector, until it is dropped.
fn endpoint(
    config: &Config,
    env: Env<'_>,
    telemetry: Option<&Arc<Telemetry>>,
) -> Result<Option<(Endpoint, Option<Exporter>)>, Failure> {
    let Some((http, telemetry)) = config.http.as_ref().zip(telemetry) else {
        return Ok(None);
    };
    let info = conn_info(&config.source, env)?;
    let monitor = SlotMonitor::new(info, config.source.slot.clone());
    let endpoint = Endpoint::start(http, Arc::clone(telemetry), Some(monitor));
    let endpoint = endpoint.map_err(failures::endpoint)?;
    let exporter = config.otel.as_ref();
    let exporter = exporter.map(|otel| Exporter::start(otel, Arc::clone(telemetry)));
    let exporter = exporter.transpose().map_err(EndpointError::Thread);
    Ok(Some((endpoint, exporter.map_err(failures::endpoint)?)))
}

fn ended<K: SinkFailure>(
    result: Result<Outcome, PipelineError<PostgresError, K>>,
    drained: &'static str,
) -> Result<(), Failure> {
    match result {
        Ok(Outcome::Drained { confirmed }) => {
            info!(%confirmed, "{drained}");
            Ok(())
        }
        Ok(Outcome::Unused) => Ok(()),
        Ok(Outcome::Incomplete {
            records, reason, ..
        }) => {
            let what = match records {
                0 => "not drained: all records are acknowledged, and not confirmed".to_owned(),
                1 => "not drained: 1 record is unsent or not acknowledged".to_owned(),
                _ => format!("not drained: {records} records are unsent or not acknowledged"),
            };
            let failure = Failure::new("drain-incomplete", Exit::Temporary, what)
                .caused_by(reason)
                .remedy("nothing is lost: the next start sends again what was not confirmed");
            Err(failure)
        }
        Err(error) => Err(failures::pipeline(error)),
    }
}

/// Resolves at SIGTERM or SIGINT. A second signal ends the process at once.
/// Resolves when the process is asked to stop, or before, when `ended` does.
pub(super) fn asked_to_stop_or(
    ended: impl Future<Output = ()>,
) -> Result<impl Future<Output = ()>, Failure> {
    let stop = asked_to_stop()?;
    Ok(async move {
        tokio::select! {
            () = stop => {}
            () = ended => {}
        }
    })
}

pub(super) fn asked_to_stop() -> Result<impl Future<Output = ()>, Failure> {
    let failed = |error| {
        Failure::new("signals", Exit::Internal, "cannot listen for signals").caused_by(error)
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            warn!("second signal: stopping at once, without draining");
            // What is in flight is not confirmed, so it is sent again by the next start.
            std::process::exit(i32::from(Exit::Temporary.code()));
        });
        info!("asked to stop");
    })
}
