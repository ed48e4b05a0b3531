//! `walrelay run`: the relay, from a configuration to its end.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{info, warn};
use walrelay_observe::{
    Background, EndpointError, Exporter, RecentErrors, RelayEnvironment, Setup, SlotMonitor,
    Telemetry, log_to_stderr, start_endpoint,
};
use walrelay_postgres_source::{
    CopySource, Marking, PostgresError, PostgresSource, ROLLING, SnapshotProgress, SourceOptions,
    bookmark_slot,
};
use walrelay_relay::{Outcome, Pipeline, PipelineError, SentRows, Settings, Source};
use walrelay_sink::{Parking, SinkFactory, ToFailure};

use crate::cli::{Exit, Failure, RunArgs};
use crate::commands::assembly::{
    block_on, conn_info, dead_letters, dlq_address, marking, router, schemas, settings,
    stop_signal, wanted,
};
use crate::commands::database::prune::pruning;
use crate::commands::{CommandResult, Env, load};
use crate::config::{Config, SnapshotMode};
use crate::failures;
use crate::rolling::{self, Keep, Keeping};
use crate::row_worker::{RowWorker, Work};
use crate::sinks::configured_sink;

/// The last log line of a run that drained.
const DRAINED: &str = "drained: everything that was sent is confirmed";
/// The last log line of a run that read a temporary copy of the slot.
const COPY_DRAINED: &str =
    "drained: everything that was read is printed; the slot stands where it stood";

/// `walrelay run`.
pub(crate) fn run(args: &RunArgs, env: Env<'_>) -> CommandResult {
    let mut config = load(&args.config, env)?;
    config
        .source
        .pass_over
        .extend(args.pass_over.iter().cloned());
    let errors = log_to_stderr(config.log, Some(&config.source.slot), env);
    let relay = RelayRun {
        config: &config,
        env,
        accept_gap: args.accept_gap,
        errors,
    };
    relay.run_until(RelayEnvironment::new(env), stop_signal)?;
    Ok(())
}

/// Latency from commit to acknowledgement in milliseconds: median and 99th percentile.
pub(crate) type CommitToAck = Option<(f64, f64)>;

/// A relay with one configuration.
pub(crate) struct RelayRun<'a> {
    pub(crate) config: &'a Config,
    pub(crate) env: Env<'a>,
    pub(crate) accept_gap: bool,
    /// The last warnings and errors of the log.
    pub(crate) errors: RecentErrors,
}

impl RelayRun<'_> {
    /// Relays until the future that `stop` returns resolves. `stop` is called on the pipeline's
    /// runtime. Returns the latencies.
    pub(crate) fn run_until<F: Future<Output = ()>>(
        self,
        environment: RelayEnvironment,
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
        let diverted = environment.count_of_diverted();
        let sink = configured_sink(config)?;
        let servers = sink.servers();
        let of_sink = (servers.clone(), parking.clone());
        let telemetry = telemetry(config, env, errors, of_sink, Arc::clone(&snapshot))?;
        for warning in sink.warnings() {
            warn!("{}", warning.finding);
        }
        // Parked keys are watched until this scope ends.
        let parked = parking.clone();
        let parked = parked.and_then(|parking| {
            let Some(store) = sink.dead_letters() else {
                // Nothing is confirmed, so no earlier run has parked a key.
                parking.set_ready();
                return None;
            };
            Some(store.watch(dlq_address(config), parking))
        });
        let _watch = parked.transpose()?;
        let stats = telemetry.as_ref().map(|of| Arc::clone(&of.sink));
        let (factory, stats) = sink.factory(stats);
        let address = servers.as_deref().unwrap_or(sink.name());
        if !config.sink.confirms() {
            let source = copy_source(config, accept_gap, env)?;
            let parts = (source, factory, parking, telemetry, None);
            return relay(
                config,
                env,
                parts,
                environment,
                stop,
                (address, COPY_DRAINED),
            )
            .map_err(copy_failure);
        }
        let mut source = slot_source(config, accept_gap, env)?.with_progress(snapshot);
        if let Some(stats) = stats {
            source = source.with_sink(stats);
        }
        let sent = config.source.mark_sent.is_some();
        let sent = sent.then(|| Arc::new(SentRows::with_limit(limit_of_keys(env))));
        let of_rows = (&diverted, sent.clone());
        let _workers = start_workers(config, env, &source, of_rows, telemetry.as_ref())?;
        let parts = (source, factory, parking, telemetry, sent);
        relay(config, env, parts, environment, stop, (address, DRAINED))
    }
}

/// The source that reads the configured slot and confirms positions in it.
fn slot_source(config: &Config, accept_gap: bool, env: Env<'_>) -> Result<PostgresSource, Failure> {
    let options = SourceOptions {
        wal_sender_timeout: config.source.wal_sender_timeout,
        state_file: config.source.state_file.clone(),
        accept_gap,
        retained_wal_warning: config.source.retained_wal_warning,
    };
    let info = conn_info(&config.source, env)?;
    Ok(PostgresSource::new(info, wanted(config), options))
}

/// Starts the threads that keep the rolling bookmark, delete confirmed rows and mark them as sent,
/// where these are configured. Dropping them stops the threads.
fn start_workers(
    config: &Config,
    env: Env<'_>,
    source: &PostgresSource,
    (diverted, sent): (&Arc<AtomicU64>, Option<Arc<SentRows>>),
    telemetry: Option<&Arc<Telemetry>>,
) -> Result<Vec<Background>, Failure> {
    let info = conn_info(&config.source, env)?;
    let slot = &config.source.slot;
    let no_thread = |error: io::Error| {
        Failure::new("runtime", Exit::Unavailable, "cannot start").caused_by(error)
    };
    let mut workers = Vec::new();
    if let Some(retention) = config.retention {
        let bookmark = bookmark_slot(slot, ROLLING).map_err(|why| {
            Failure::new("bookmark-name", Exit::Config, why)
                .remedy("choose a shorter name for [source] slot")
        })?;
        let keeping = Keeping {
            info: info.clone(),
            slot: slot.clone(),
            bookmark,
            keep: Keep {
                time: retention.keep,
                max_wal: retention.max_wal,
            },
            state_file: config.source.state_file.clone(),
            walsender: source.walsender(),
            telemetry: telemetry.cloned(),
        };
        workers.push(rolling::start(keeping).map_err(no_thread)?);
    }
    // A dead letter is written by this process, or was written by another one that read the slot
    // before this process' walsender.
    let unsent = || {
        let (walsender, diverted) = (source.walsender(), Arc::clone(diverted));
        let epoch = move || {
            let walsender = walsender.load(Ordering::Acquire);
            Some((walsender, diverted.load(Ordering::Acquire)))
        };
        dead_letters(config, epoch)
    };
    let keep = config.prune.as_ref().and_then(|prune| prune.keep);
    let prune = keep.map(|keep| pruning(config, Some(keep), unsent()?));
    let prune = prune.transpose()?;
    let mark = config.source.mark_sent.as_ref().map(|_| {
        Ok::<_, Failure>(Marking {
            dead_letters: unsent()?,
            sent,
            ..marking(config)
        })
    });
    let mark = mark.transpose()?;
    for work in [prune.map(Work::Prune), mark.map(Work::Mark)]
        .into_iter()
        .flatten()
    {
        let worker = RowWorker {
            info: info.clone(),
            slot: slot.clone(),
            work,
            walsender: source.walsender(),
            telemetry: telemetry.cloned(),
        };
        workers.push(worker.start().map_err(no_thread)?);
    }
    Ok(workers)
}

/// The source that reads temporary copies of the configured slot, so that nothing is confirmed in
/// it.
fn copy_source(config: &Config, accept_gap: bool, env: Env<'_>) -> Result<CopySource, Failure> {
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

/// Corrects the remedy of `slot-moved` for a copy: nobody else reads the copy, but a relay that
/// reads the original slot moves it on.
fn copy_failure(failure: Failure) -> Failure {
    if failure.id != "slot-moved" {
        return failures::of_copy(failure);
    }
    failure.remedy(
        "the connection was lost, and the slot has moved on since: another relay confirmed what \
         was committed meanwhile, and it is not printed. Start again to print what follows",
    )
}

/// The source, the sink factory, the parked keys, the telemetry of a pipeline, and where the keys of
/// acknowledged rows are noted.
type Parts<S, K> = (
    S,
    K,
    Option<Arc<Parking>>,
    Option<Arc<Telemetry>>,
    Option<Arc<SentRows>>,
);

/// Bytes of keys that are noted. Debug builds read it from a variable of tests.
fn limit_of_keys(env: Env<'_>) -> usize {
    let wanted = env("WALRELAY_SENT_KEYS").filter(|_| cfg!(debug_assertions));
    wanted
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or(SentRows::LIMIT)
}

fn relay<S, K, F>(
    config: &Config,
    env: Env<'_>,
    (source, factory, parking, telemetry, sent_rows): Parts<S, K>,
    environment: RelayEnvironment,
    stop: impl FnOnce() -> Result<F, Failure>,
    (address, drained): (&str, &'static str),
) -> Result<CommitToAck, Failure>
where
    S: Source<Error = PostgresError>,
    K: SinkFactory,
    K::Error: ToFailure,
    F: Future<Output = ()>,
{
    info!(
        version = env!("CARGO_PKG_VERSION"),
        source = %conn_info(&config.source, env)?.redacted(),
        slot = config.source.slot,
        publication = config.source.publication,
        tables = ?config.source.tables.iter().map(ToString::to_string).collect::<Vec<_>>(),
        sink = address,
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
        environment.with_telemetry(telemetry),
        Settings {
            sent_rows,
            ..settings(config, messages, parking, schemas)
        },
    );
    let result = block_on(async {
        let stop = stop()?;
        Ok::<_, Failure>(pipeline.run(stop).await)
    })??;
    pipeline.observer().log_totals(&pipeline.counts());
    check_outcome(result, drained)?;
    Ok(pipeline.observer().latencies().p50_p99_ms())
}

/// The telemetry for the HTTP endpoint; `None` if `[http]` is not configured.
fn telemetry(
    config: &Config,
    env: Env<'_>,
    errors: RecentErrors,
    (servers, parking): (Option<String>, Option<Arc<Parking>>),
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
        bootstrap_servers: servers,
        dead_letter_topic: config.poison.topic.clone(),
        parking,
        snapshot: (config.source.snapshot != SnapshotMode::Never).then_some(snapshot),
        registry: config.registry.is_some().then(Arc::default),
        spans: config.otel.is_some(),
        config: config.shown.clone(),
    };
    Ok(Some(Arc::new(Telemetry::new(setup, errors))))
}

/// Starts the HTTP endpoint and the exporter to OpenTelemetry, where configured. Dropping them
/// stops both.
fn endpoint(
    config: &Config,
    env: Env<'_>,
    telemetry: Option<&Arc<Telemetry>>,
) -> Result<Option<(Background, Option<Exporter>)>, Failure> {
    let Some((http, telemetry)) = config.http.as_ref().zip(telemetry) else {
        return Ok(None);
    };
    let info = conn_info(&config.source, env)?;
    let monitor = SlotMonitor::new(info, config.source.slot.clone());
    let endpoint = start_endpoint(http, Arc::clone(telemetry), monitor);
    let endpoint = endpoint.map_err(failures::endpoint)?;
    let exporter = config.otel.as_ref();
    let exporter = exporter.map(|otel| Exporter::start(otel, Arc::clone(telemetry)));
    let exporter = exporter.transpose().map_err(EndpointError::Thread);
    Ok(Some((endpoint, exporter.map_err(failures::endpoint)?)))
}

/// Logs `drained` if the pipeline drained; otherwise returns the failure.
fn check_outcome<K: ToFailure>(
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
            Err(Failure::new("drain-incomplete", Exit::Temporary, what)
                .caused_by(reason)
                .remedy("nothing is lost: the next start sends again what was not confirmed"))
        }
        Err(error) => Err(failures::pipeline(error)),
    }
}
