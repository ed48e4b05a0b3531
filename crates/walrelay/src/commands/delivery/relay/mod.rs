//! The relay of one pipeline, from its configuration to its end. `workers`: the threads that work on the database
//! alongside it. `views`: endpoint, exporter and reports.

mod views;
mod workers;

use std::future::Future;
use std::sync::{Arc, OnceLock};

use serde_json::json;
use tracing::{Span, info, warn};
use walrelay_failure::{Exit, Failure, ToFailure};
use walrelay_observe::{
    DlqAccess, EventJobs, RecentErrors, ReplaceFile, RunObserver, ServiceManager, Setup, SinkSetup,
    Telemetry, heartbeat, millis_now, pipeline_span,
};
use walrelay_postgres_source::run_note::FormerRun;
use walrelay_postgres_source::{
    CopySource, Poller, PostgresError, PostgresSource, SourceFindings, SourceOptions, replace_file,
};
use walrelay_relay::{Outcome, Pipeline, PipelineError, SentAccount, SentRows, SinkLimits, Source};
use walrelay_sink::{Parking, SinkFactory};
use walrelay_sink_kind::SinkKind;
use walrelay_walsender::ConnInfo;

pub(super) use views::start_views;

use crate::cli::ConfigArgs;
use crate::commands::EnvVars;
use crate::commands::assembly::sink::configured_sink;
use crate::commands::assembly::{
    PLAIN_TEXT, account_columns, accounts_rows, block_on, conn_info, dlq_address, no_runtime,
    router, schemas, settings, wanted,
};
use crate::config::{PipelineConfig, ProcessConfig, SnapshotMode};
use crate::event_commands::OperatorCommands;
use crate::failures;
use crate::workers::{PostgresFacts, RunKeeper, SinkWatch};

/// The last log line of a run that drained.
const DRAINED: &str = "drained: everything that was sent is confirmed";
/// The last log line of a run that read a temporary copy of the slot.
const COPY_DRAINED: &str =
    "drained: everything that was read is printed; the slot stands where it stood";

/// Latency from commit to acknowledgement in milliseconds: median and 99th percentile.
pub(crate) type CommitToAck = Option<(f64, f64)>;

/// The relay of one pipeline.
pub(crate) struct RelayRun<'a> {
    pub(crate) config: &'a PipelineConfig,
    pub(crate) process: &'a ProcessConfig,
    pub(crate) env: EnvVars<'a>,
    /// Where the configuration is, for commands that the status page runs; `None`: it runs none.
    pub(crate) args: Option<&'a ConfigArgs>,
    pub(crate) accept_gap: bool,
    /// The noted losses of the destination are accepted.
    pub(crate) accept_loss: bool,
    /// `cutover switch` has stopped the polling relay.
    pub(crate) switches: bool,
    /// The last warnings and errors of the log.
    pub(crate) errors: RecentErrors,
}

impl<'a> RelayRun<'a> {
    /// Relays as the only pipeline of this process, until the future that `stop` returns resolves.
    /// `stop` is called on the pipeline's runtime. Returns the latencies.
    pub(crate) fn run_until<F: Future<Output = ()>>(
        self,
        observer: RunObserver,
        stop: impl FnOnce() -> Result<F, Failure>,
    ) -> Result<CommitToAck, Failure> {
        let process = self.process;
        let relay = self.prepare()?;
        let _views = start_views(process, &[&relay])?;
        relay.run_until(observer, stop)
    }

    /// Makes the sink and the telemetry. Starts nothing.
    pub(super) fn prepare(self) -> Result<Relay<'a>, Failure> {
        let Self {
            config,
            process,
            env,
            args,
            accept_gap,
            accept_loss,
            switches,
            errors,
        } = self;
        let span = pipeline_span(config.name(), &config.source.slot);
        let entered = span.enter();
        let parking = config.poison.park_key.then(|| Arc::new(Parking::new()));
        let sink = configured_sink(config)?;
        let kind = sink.description().name;
        let findings = SourceFindings {
            former_run: Arc::new(FormerRun::new(kind, accept_loss, millis_now())),
            ..SourceFindings::default()
        };
        let info = conn_info(&config.source, env)?;
        let dead_letters = readable_dead_letters(config)?;
        let service_manager = ServiceManager::from_env(env);
        let telemetry = (process.http.is_some() || service_manager.is_some()).then(|| {
            let setup = Setup {
                server: info.redacted(),
                sink: SinkSetup::new(&*sink),
                parking: parking.clone(),
                source: Some(Arc::new(PostgresFacts {
                    has_snapshot: config.source.snapshot != SnapshotMode::Never,
                    findings: findings.clone(),
                })),
                spans: process.otel.is_some(),
                dead_letters,
                events: args.map(|args| event_jobs(args, config)),
                slo: Some(process.slo),
                expect_event_every: process
                    .http
                    .as_ref()
                    .and_then(|http| http.expect_event_every),
                ..setup(config)
            };
            Arc::new(Telemetry::new(setup, errors))
        });
        drop(entered);
        let marks = config.source.mark_sent.is_some() && config.sink.confirms();
        let accounts = accounts_rows(config) && config.sink.confirms();
        let run_keeper = RunKeeper {
            info: info.clone(),
            slot: config.source.slot.clone(),
            create: config.source.create,
            state_file: config.source.state_file.clone(),
            former: Arc::clone(&findings.former_run),
            walsender: OnceLock::new(),
        };
        Ok(Relay {
            config,
            accept_gap,
            switches,
            span,
            info,
            sink,
            parking,
            findings,
            telemetry,
            service_manager,
            run_keeper: Arc::new(run_keeper),
            sent_rows: marks.then(|| {
                let notes_dead = config.source.mark_dead.is_some();
                Arc::new(SentRows::with_limit(limit_of_keys(env)).noting_dead(notes_dead))
            }),
            account: accounts.then(|| {
                let columns = account_columns(config);
                Arc::new(SentAccount::new(
                    columns,
                    config.poison.writes_dead_letters(),
                ))
            }),
        })
    }
}

/// Returns the commands about one event for the page of a pipeline.
fn event_jobs(args: &ConfigArgs, config: &PipelineConfig) -> Arc<EventJobs> {
    let commands = OperatorCommands::new(args.clone(), config.digest);
    EventJobs::new(Box::new(commands))
}

/// Returns the dead letters of a pipeline for its page; `None` if the sink cannot read them back.
fn readable_dead_letters(config: &PipelineConfig) -> Result<Option<Arc<DlqAccess>>, Failure> {
    let sink = configured_sink(config)?;
    let (topic, slot) = (config.poison.topic.clone(), config.source.slot.clone());
    let can = sink.dead_letters().is_some();
    Ok(can.then(|| DlqAccess::new(sink, topic, slot)))
}

/// Returns how many bytes of keys are noted. Debug builds read it from a variable of tests.
fn limit_of_keys(env: EnvVars<'_>) -> usize {
    let wanted = env("WALRELAY_SENT_KEYS").filter(|_| cfg!(debug_assertions));
    wanted
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or(SentRows::LIMIT)
}

/// A relay that can be started.
pub(super) struct Relay<'a> {
    pub(super) config: &'a PipelineConfig,
    accept_gap: bool,
    switches: bool,
    /// The span of all that the pipeline logs.
    span: Span,
    pub(super) info: ConnInfo,
    sink: Box<dyn SinkKind>,
    parking: Option<Arc<Parking>>,
    /// What the source finds.
    pub(super) findings: SourceFindings,
    /// `None` if no view shows it.
    telemetry: Option<Arc<Telemetry>>,
    /// The service manager that waits for reports of this process.
    service_manager: Option<ServiceManager>,
    /// Notes what the next run is to know.
    pub(super) run_keeper: Arc<RunKeeper>,
    /// Notes the keys of acknowledged rows; `None` if rows are not marked.
    sent_rows: Option<Arc<SentRows>>,
    /// Adds up acknowledged rows; `None` if rows are not deleted by an account.
    account: Option<Arc<SentAccount>>,
}

impl Relay<'_> {
    /// Relays on this thread until the future that `stop` returns resolves. Returns the latencies.
    pub(super) fn run_until<F: Future<Output = ()>>(
        self,
        observer: RunObserver,
        stop: impl FnOnce() -> Result<F, Failure>,
    ) -> Result<CommitToAck, Failure> {
        let span = self.span.clone();
        span.in_scope(|| self.relay_until(observer, stop))
    }

    fn relay_until<F: Future<Output = ()>>(
        self,
        observer: RunObserver,
        stop: impl FnOnce() -> Result<F, Failure>,
    ) -> Result<CommitToAck, Failure> {
        let (config, sink) = (self.config, &*self.sink);
        let diverted = observer.count_of_diverted();
        for warning in sink.warnings() {
            warn!("{}", warning.finding);
        }
        if self.info.may_be_plain() {
            warn!("{PLAIN_TEXT}");
        }
        // Parked keys are watched until this scope ends.
        let parked = self.parking.clone();
        let parked = parked.and_then(|parking| {
            let Some(store) = sink.dead_letters() else {
                // Nothing is confirmed, so no earlier run has parked a key.
                parking.set_ready();
                return None;
            };
            Some(store.watch(dlq_address(config), parking))
        });
        let _watch = parked.transpose()?;
        let stats = self.telemetry.as_ref().map(|of| Arc::clone(&of.sink));
        let (factory, stats) = sink.factory(stats);
        if !config.sink.confirms() {
            let source = self.copy_source()?;
            let relayed = self.relay(source, factory, observer, stop, COPY_DRAINED);
            return relayed.map_err(copy_failure);
        }
        let risks = SinkWatch::on_risks(
            configured_sink(config)?,
            stats.clone(),
            self.telemetry.clone(),
        );
        let _risks = risks.map_err(no_runtime)?;
        let mut source = self.slot_source();
        let keeper = &self.run_keeper;
        if let Some(stats) = stats {
            keeper.former.set_sink(Arc::clone(&stats));
            source = source.with_sink(stats);
        }
        let _workers = self.start_workers(&source, &diverted)?;
        let writes = config.poison.writes_dead_letters();
        let topic = writes.then(|| config.poison.topic.clone());
        let watched = topic.map(|topic| {
            let sink = configured_sink(config)?;
            SinkWatch::on_dead_letters(sink, topic, self.telemetry.clone()).map_err(no_runtime)
        });
        let _dead_letters = watched.transpose()?;
        self.relay(source, factory, observer, stop, DRAINED)
    }

    /// Makes the source that reads the configured slot and confirms positions in it.
    fn slot_source(&self) -> PostgresSource {
        let config = self.config;
        let options = SourceOptions {
            wal_sender_timeout: config.source.wal_sender_timeout,
            state_file: config.source.state_file.clone(),
            accept_gap: self.accept_gap,
            retained_wal_warning: config.source.retained_wal_warning,
            findings: self.findings.clone(),
        };
        let mut wanted = wanted(config);
        if self.switches {
            wanted.poller = Poller::Stopped;
        }
        PostgresSource::new(self.info.clone(), wanted, options)
            .with_account(self.account.clone())
            .with_sent_rows(self.sent_rows.clone())
    }

    /// Makes the source that reads temporary copies of the configured slot, so that nothing is
    /// confirmed in it.
    fn copy_source(&self) -> Result<CopySource, Failure> {
        if self.accept_gap {
            return Err(Failure::new(
                "accept-gap-unused",
                Exit::Usage,
                "--accept-gap has no effect with sink.kind = \"stdout\": the slot is not touched",
            )
            .remedy("leave it out, or set sink.stdout.confirm = true as well"));
        }
        let timeout = self.config.source.wal_sender_timeout;
        let wanted = wanted(self.config);
        Ok(CopySource::from_configured(
            self.info.clone(),
            wanted,
            timeout,
        ))
    }

    fn relay<S, K, F>(
        &self,
        source: S,
        factory: K,
        observer: RunObserver,
        stop: impl FnOnce() -> Result<F, Failure>,
        drained: &'static str,
    ) -> Result<CommitToAck, Failure>
    where
        S: Source<Error = PostgresError>,
        K: SinkFactory,
        K::Error: ToFailure,
        F: Future<Output = ()>,
    {
        let config = self.config;
        let servers = self.sink.servers();
        let tables = config.source.tables.iter().map(ToString::to_string);
        let tables: Vec<String> = tables.collect();
        info!(
            version = env!("CARGO_PKG_VERSION"),
            source = %self.info.redacted(),
            slot = config.source.slot,
            publication = config.source.publication,
            tables = %json!(tables),
            sink = servers.as_deref().unwrap_or(self.sink.name()),
            max_in_flight_records = config.delivery.max_in_flight_records,
            max_in_flight_bytes = config.delivery.max_in_flight_bytes,
            "starting"
        );
        let (router, messages) = router(config)?;
        let telemetry = self.telemetry.as_ref();
        let stats = telemetry.and_then(|telemetry| telemetry.registry_stats());
        let schemas = schemas(config, stats)?;
        let mut settings = settings(config, messages, self.parking.clone(), schemas);
        settings.sent_rows.clone_from(&self.sent_rows);
        settings.account.clone_from(&self.account);
        let limits = configured_sink(config)?;
        settings.poison.limits = Some(SinkLimits::new(move |record| limits.refusal(record)));
        let mut pipeline = Pipeline::new(
            source,
            router,
            factory,
            observer.with_telemetry(telemetry.cloned()),
            settings,
        );
        let watched = self.service_manager.as_ref();
        let watched = watched.filter(|manager| manager.has_watchdog());
        let result = block_on(async {
            let stop = stop()?;
            if let Some(telemetry) = telemetry.filter(|_| watched.is_some()) {
                // Ends with the runtime.
                tokio::spawn(heartbeat(Arc::clone(telemetry)));
            }
            Ok::<_, Failure>(pipeline.run(stop).await)
        })??;
        pipeline.observer().log_totals(&pipeline.counts());
        check_outcome(result, drained)?;
        Ok(pipeline.observer().latencies().p50_p99_ms())
    }
}

/// Corrects the remedy of `slot-moved` for a copy: nobody else reads the copy, but a relay that
/// reads the original slot moves it on.
fn copy_failure(failure: Failure) -> Failure {
    if failure.id != "slot-moved" {
        return failures::correct_for_copy(failure);
    }
    failure.remedy(
        "the connection was lost, and the slot has moved on since: another relay confirmed the \
         events of the meantime, which are not printed. Start again to print later ones",
    )
}

/// Makes the part of the telemetry's setup that the configuration says.
fn setup(config: &PipelineConfig) -> Setup {
    let source = &config.source;
    Setup {
        name: config.name().to_owned(),
        slot: source.slot.clone(),
        publication: source.publication.clone(),
        tables: source.tables.iter().map(ToString::to_string).collect(),
        max_in_flight_records: u64::from(config.delivery.max_in_flight_records),
        max_in_flight_bytes: config.delivery.max_in_flight_bytes,
        dead_letter_topic: config.poison.topic.clone(),
        // Zero turns the warning off.
        retained_wal_warning: Some(source.retained_wal_warning).filter(|above| *above > 0),
        state_file: source
            .state_file
            .clone()
            .map(|file| (file, replace_file as ReplaceFile)),
        registry: config.registry.is_some().then(Arc::default),
        config: config.shown.clone(),
        ..Setup::default()
    }
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
                .remedy("nothing is lost: the next start sends unconfirmed events again"))
        }
        Err(error) => Err(failures::pipeline(error)),
    }
}
