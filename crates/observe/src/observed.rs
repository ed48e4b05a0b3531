//! Collects the telemetry of a running relay for the HTTP endpoint.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tracing::debug;
use walrelay_lsn::Lsn;
use walrelay_measure::proc;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::{Class, HolderKind, Progress, State, TableName};
use walrelay_schema_registry::RegistryStats;
use walrelay_sink::{BatchingMode, Parking, SinkKind, SinkStats, SinkTerms};

use super::batches::Batches;
use super::history::Recorder;
use super::latencies::Latency;
use super::live::{Live, describe, remedy};
use super::problems::problems;
use super::report::{
    BookmarkReport, DeadLetterReport, DeliveryReport, EndpointReport, History, HolderReport,
    KafkaReport, LatencyReport, PipelineReport, ProcessReport, RegistryReport, Sample, SinkReport,
    SlotReport, SnapshotReport, SourceReport, StatusReport, TopicReport,
};
use super::{DlqAccess, RecentErrors, millis_now};
use walrelay_postgres_source::{SnapshotProgress, TableLock, replace_file};
use walrelay_sink::lock;

/// Destinations that are named of those that take no record.
const NAMED_UNAVAILABLE: usize = 20;
/// The kind of sink whose figures are also shown by names of its own, on which users depend:
/// the report's member, and metrics.
const KAFKA: &str = "kafka";

/// The part of the telemetry that does not change while the relay runs.
#[derive(Debug, Default)]
pub struct Setup {
    /// Name of the pipeline, by which several of a process are told apart.
    pub name: String,
    /// Name of the slot.
    pub slot: String,
    /// The connection string without its secrets.
    pub server: String,
    /// Name of the publication.
    pub publication: String,
    /// The outbox tables.
    pub tables: Vec<String>,
    /// Records in flight, at most.
    pub max_in_flight_records: u64,
    /// Bytes in flight, at most.
    pub max_in_flight_bytes: u64,
    /// The longest usual time between two events; `None` if none is configured.
    pub expect_event_every: Option<Duration>,
    /// The state file, beside which the history is noted; `None`: it is kept in memory alone.
    pub state_file: Option<PathBuf>,
    /// `source.retained_wal_warning` in bytes; `None` if it is off.
    pub retained_wal_warning: Option<u64>,
    /// Where records go.
    pub sink: SinkSetup,
    /// The topic of dead letters.
    pub dead_letter_topic: String,
    /// The dead letters, for the page; `None` if the sink cannot read them back.
    pub dead_letters: Option<Arc<DlqAccess>>,
    /// The parked keys; `None` if keys are not parked.
    pub parking: Option<Arc<Parking>>,
    /// Progress of the snapshot; `None` if none is configured.
    pub snapshot: Option<Arc<SnapshotProgress>>,
    /// Requests to the schema registry; `None` if none is configured.
    pub registry: Option<Arc<RegistryStats>>,
    /// Whether spans are collected for OpenTelemetry.
    pub spans: bool,
    /// The effective configuration without secrets.
    pub config: Vec<(String, String)>,
}

/// The facts about a sink that views show.
#[derive(Debug, Default)]
pub struct SinkSetup {
    kind: &'static str,
    title: &'static str,
    terms: SinkTerms,
    servers: Option<String>,
}

impl SinkSetup {
    /// Takes the facts from a sink.
    pub fn new(sink: &dyn SinkKind) -> Self {
        let description = sink.description();
        Self {
            kind: description.name,
            title: description.title,
            terms: sink.terms(),
            servers: sink.servers(),
        }
    }
}

/// Collects reports of the pipeline, the sink, the server and the log.
///
/// Its methods hold locks briefly. The pipeline calls them at each change of its state, at each
/// status update and for a sample of transactions, never for each row.
#[derive(Debug)]
pub struct Telemetry {
    setup: Setup,
    /// Figures of the sinks.
    pub sink: Arc<SinkStats>,
    errors: RecentErrors,
    started_ms: u64,
    /// Latencies from commit to acknowledgement.
    pub commit_to_ack: Latency,
    /// Latencies from commit to the receipt of the commit.
    pub commit_to_read: Latency,
    pub(super) batches: Batches,
    live: Mutex<Live>,
    history: Mutex<Recorder>,
    /// The history is being written.
    noting: Arc<AtomicBool>,
}

impl Telemetry {
    /// Creates the telemetry of a run that begins now.
    pub fn new(setup: Setup, errors: RecentErrors) -> Self {
        Self {
            sink: Arc::default(),
            errors,
            started_ms: millis_now(),
            commit_to_ack: Latency::new(),
            commit_to_read: Latency::new(),
            batches: Batches::new(setup.spans),
            live: Mutex::new(Live::new()),
            history: Mutex::new(Recorder::new(&setup.slot, setup.state_file.as_deref())),
            noting: Arc::default(),
            setup,
        }
    }

    /// Notes the pipeline's state.
    pub fn state(&self, state: &State) {
        let mut live = lock(&self.live);
        if matches!(live.state, State::Streaming) || live.standing_by().is_some() {
            live.streaming_at = Instant::now();
        }
        // The events of a slot that another relay reads are that relay's.
        if live.standing_by().is_some() {
            live.event_at = Instant::now();
        }
        if let State::Waiting { cause, .. } = state {
            live.attempt_failed(cause);
        }
        if std::mem::discriminant(&live.state) != std::mem::discriminant(state) {
            live.state_since_ms = millis_now();
        }
        live.last_failure = match (&live.state, state) {
            (State::Waiting { why, .. }, State::Connecting) => Some(why.clone()),
            (State::Connecting, State::Connecting) => live.last_failure.take(),
            _ => None,
        };
        live.state = state.clone();
        live.progress_at = Instant::now();
    }

    /// Notes positions and figures.
    pub fn progress(&self, progress: &Progress) {
        self.batches.progress(progress);
        let mut live = lock(&self.live);
        let acknowledged = live.acknowledged();
        live.feedback_sent += 1;
        if let Some(before) = live.progress
            && progress.counts.transactions < before.counts.transactions
        {
            // The counts begin at zero with a new sink.
            live.earlier = live.earlier.plus(before.counts);
            live.acknowledged_earlier += before.acknowledged();
        }
        live.progress = Some(*progress);
        if live.acknowledged() > acknowledged {
            live.acknowledged_at_ms = Some(millis_now());
            live.event_at = Instant::now();
        }
        live.progress_at = Instant::now();
    }

    /// Adds a time in which nothing was read.
    pub fn blocked(&self, duration: Duration) {
        lock(&self.live).blocked += duration;
    }

    /// Adds to the rows of a table that were passed over.
    pub fn passed_over(&self, table: &TableName, rows: u64) {
        let mut live = lock(&self.live);
        *live.passed_over.entry(table.to_string()).or_default() += rows;
    }

    /// Counts an event that was skipped.
    pub fn skipped(&self, class: Class) {
        let mut live = lock(&self.live);
        *live.skipped.entry(class.to_string()).or_default() += 1;
    }

    /// Counts dead letters that were acknowledged.
    pub fn dead_letters(&self, classes: &[Class]) {
        let mut live = lock(&self.live);
        for class in classes {
            *live.dead_letters.entry(class.to_string()).or_default() += 1;
        }
    }

    /// Sets why no dead letter can be written; `None` if one can.
    pub fn dead_letter_obstacle(&self, obstacle: Option<String>) {
        lock(&self.live).dead_letter_obstacle = obstacle;
    }

    /// Takes the slot and the end of the WAL as the server reports them, or the reason why it does
    /// not.
    pub fn slot(&self, answer: Result<(Option<SlotReport>, Option<Lsn>), String>) {
        let mut live = lock(&self.live);
        match answer {
            Ok((slot, end)) => {
                live.slot = slot;
                live.slot_error = None;
                live.server_end = end;
                live.note_end();
            }
            Err(reason) => live.slot_error = Some(reason),
        }
    }

    /// Sets how far the server's clock is ahead of this machine's, in seconds.
    pub fn clock(&self, offset: Option<f64>) {
        lock(&self.live).clock_offset = offset;
    }

    /// Sets who locks an outbox table exclusively.
    pub fn table_locks(&self, locks: &[TableLock]) {
        let named: Vec<String> = locks.iter().map(TableLock::to_string).collect();
        let remedy = TableLock::remedy(locks);
        lock(&self.live).table_lock = remedy.map(|remedy| (named.join("; "), remedy));
    }

    /// Adds to the number of deleted rows.
    pub fn pruned(&self, rows: u64) {
        lock(&self.live).pruned += rows;
    }

    /// Sets why confirmed rows are not changed by this work; `None` if they are.
    pub fn row_changes(&self, work: &str, obstacle: Option<String>) {
        let mut live = lock(&self.live);
        live.row_changes.insert(work.to_owned(), obstacle);
    }

    /// Sets the rolling bookmark; `None` if this relay keeps none.
    pub fn bookmark(&self, bookmark: Option<BookmarkReport>) {
        lock(&self.live).bookmark = bookmark;
    }

    /// Ends a second: adds its sample to the history.
    pub fn end_second(&self) {
        let quantiles = self.commit_to_ack.end_second();
        self.commit_to_read.end_second();
        let (records, lag) = {
            let live = lock(&self.live);
            (live.acknowledged(), live.lag().as_secs_f64())
        };
        let latency = (quantiles.p50_ms, quantiles.p99_ms);
        let mut history = lock(&self.history);
        let ended = history.end_second(millis_now(), records, latency, lag);
        drop(history);
        // The relay that reads the slot notes its figures, not one that stands by for it.
        if let Some((file, text)) = ended.filter(|_| self.standing_by().is_none()) {
            self.note_history(file, text);
        }
    }

    /// Writes the history in a thread of its own: a disk that hangs holds nothing up.
    fn note_history(&self, file: PathBuf, text: String) {
        if self.noting.swap(true, Relaxed) {
            return;
        }
        let noting = Arc::clone(&self.noting);
        let write = move || {
            if let Err(error) = replace_file(&file, &text) {
                debug!(file = %file.display(), %error, "the history of the page is not written");
            }
            noting.store(false, Relaxed);
        };
        // The next minute tries again.
        let started = thread::Builder::new()
            .name("history".to_owned())
            .spawn(write);
        if started.is_err() {
            self.noting.store(false, Relaxed);
        }
    }

    /// Returns the samples of the last minutes and hours.
    pub fn history(&self) -> History {
        lock(&self.history).history()
    }

    /// Returns the newest sample.
    pub fn last_sample(&self) -> Option<Sample> {
        lock(&self.history).last()
    }

    /// Returns the state, and true if all endpoints of the sink are down: a change of either is shown at once.
    pub fn urgent(&self) -> (String, bool) {
        (
            lock(&self.live).state.to_string(),
            self.sink.all_down.load(Relaxed),
        )
    }

    /// Returns the reason why the relay is not ready; `None` if it is.
    pub fn not_ready(&self) -> Option<String> {
        lock(&self.live).not_ready()
    }

    /// Returns why the relay stands by; `None` if it does not.
    pub fn standing_by(&self) -> Option<String> {
        let live = lock(&self.live);
        live.standing_by().map(|_| live.state.to_string())
    }

    /// Returns what an operator can do about the state.
    pub fn remedy(&self) -> Option<String> {
        remedy(&lock(&self.live).state)
    }

    /// Returns the counters of requests to the schema registry, if one is configured.
    pub fn registry_stats(&self) -> Option<Arc<RegistryStats>> {
        self.setup.registry.clone()
    }

    /// Returns the dead letters, if the sink can read them back.
    pub(super) fn dead_letter_access(&self) -> Option<&Arc<DlqAccess>> {
        self.setup.dead_letters.as_ref()
    }

    /// Returns the name of the slot.
    pub(super) fn slot_name(&self) -> &str {
        &self.setup.slot
    }

    /// Returns the kind of the sink, as `[sink] kind` names it.
    pub(super) fn sink_kind(&self) -> &'static str {
        self.setup.sink.kind
    }

    /// Returns the name of the pipeline.
    pub fn name(&self) -> &str {
        &self.setup.name
    }

    /// Returns keys and values of the configuration, without secrets.
    pub fn config(&self) -> &[(String, String)] {
        &self.setup.config
    }

    /// Returns the status document, without the configuration and the sample.
    pub fn report(&self) -> StatusReport {
        let setup = &self.setup;
        let live = lock(&self.live);
        let not_ready = live.not_ready();
        let (state, reason) = describe(&live.state);
        let sink = self.sink_report();
        let mut report = StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ms: millis_now(),
            started_ms: self.started_ms,
            pipeline: PipelineReport {
                slot: setup.slot.clone(),
                state: state.to_owned(),
                reason: reason.map(str::to_owned).or_else(|| {
                    let why = live.last_failure.as_ref()?;
                    Some(format!("the last attempt failed: {why}"))
                }),
                remedy: remedy(&live.state),
                cause: match live.state {
                    State::Waiting { cause, .. } => Some(cause.to_owned()),
                    _ => None,
                },
                holder: live.holder().map(|holder| HolderReport {
                    standby: holder.kind == HolderKind::Relay,
                    taken: holder.kind == HolderKind::Stranger,
                    pid: holder.pid,
                    application_name: holder.application_name.clone(),
                    since_ms: holder
                        .since
                        .and_then(PgTimestamp::unix_micros)
                        .and_then(|micros| u64::try_from(micros / 1000).ok()),
                }),
                since_ms: live.state_since_ms,
            },
            ready: not_ready.is_none(),
            not_ready,
            problems: Vec::new(),
            source: self.source(&live),
            snapshot: setup.snapshot.as_deref().map(snapshot),
            slot: live.slot.clone(),
            bookmark: live.bookmark.clone(),
            slot_error: live.slot_error.clone(),
            delivery: self.delivery(&live),
            latency: LatencyReport {
                commit_to_ack: self.commit_to_ack.last_minute(),
                commit_to_read: self.commit_to_read.last_minute(),
            },
            dead_letters: DeadLetterReport {
                topic: setup.dead_letter_topic.clone(),
                written: live.dead_letters.clone(),
                skipped: live.skipped.clone(),
                obstacle: live.dead_letter_obstacle.clone(),
                parked_keys: setup
                    .parking
                    .as_ref()
                    .map_or(0, |parking| parking.keys() as u64),
            },
            kafka: KafkaReport::new(&sink),
            sink,
            registry: setup.registry.as_ref().map(|stats| RegistryReport {
                requests: stats
                    .requests()
                    .map(|(outcome, count)| (outcome.to_owned(), count))
                    .into(),
            }),
            process: process(),
            errors: self.errors.list(&setup.name),
            config: Vec::new(),
            sample: None,
        };
        drop(live);
        report.problems = problems(&report);
        report
    }

    fn source(&self, live: &Live) -> SourceReport {
        // The positions of a relay that stands by are of the time when it read the slot.
        let progress = live.progress.filter(|_| live.standing_by().is_none());
        let confirmed = progress.map(|progress| progress.confirmed.lsn());
        // The server reports the end of its WAL now and then: a received position may be above it.
        let received = progress.map(|progress| progress.received);
        let server_end = live.server_end.max(received);
        let lag_bytes = server_end.zip(confirmed);
        SourceReport {
            server: self.setup.server.clone(),
            publication: self.setup.publication.clone(),
            tables: self.setup.tables.clone(),
            received_lsn: received,
            confirmed_lsn: confirmed,
            server_lsn: server_end,
            lag_bytes: lag_bytes.map(|(end, confirmed)| end.bytes_since(confirmed)),
            lag_seconds: live.lag().as_secs_f64(),
            reconnects: live.reconnects.clone(),
            recent_reconnects: live.recent_reconnects(),
            retained_wal_warning_bytes: self.setup.retained_wal_warning,
            feedback_sent: live.feedback_sent,
            clock_offset_seconds: live.clock_offset,
            table_lock: live.table_lock.as_ref().map(|(what, _)| what.clone()),
            table_lock_remedy: live.table_lock.as_ref().map(|(_, remedy)| remedy.clone()),
            passed_over_rows: live.passed_over.clone(),
        }
    }

    fn delivery(&self, live: &Live) -> DeliveryReport {
        let counts = live.counts();
        let expected = self.setup.expect_event_every;
        DeliveryReport {
            in_flight_records: live.progress.map_or(0, |progress| progress.in_flight),
            first_in_flight: live
                .progress
                .and_then(|progress| progress.first)
                .map(|event| event.to_string()),
            in_flight_records_limit: self.setup.max_in_flight_records,
            in_flight_bytes: self.sink.in_flight_bytes.load(Relaxed),
            in_flight_bytes_limit: self.setup.max_in_flight_bytes,
            blocked_seconds: live.blocked.as_secs_f64(),
            records: counts.records,
            acknowledged: live.acknowledged(),
            acknowledged_at_ms: live.acknowledged_at_ms,
            last_event_seconds: live
                .acknowledged_at_ms
                .map(|_| live.event_at.elapsed().as_secs_f64()),
            expected_event_seconds: expected.map(|expected| expected.as_secs_f64()),
            silent: live.standing_by().is_none()
                && expected.is_some_and(|expected| live.event_at.elapsed() > expected),
            transactions: counts.transactions,
            repeats_avoided: counts.repeats_avoided,
            pruned_rows: live.pruned,
            row_changes: live.row_changes.clone(),
            ignored: [
                ("update", counts.updates),
                ("delete", counts.deletes),
                ("truncate", counts.truncates),
            ]
            .map(|(operation, count)| (operation.to_owned(), count))
            .into(),
            mode: match self.sink.mode() {
                BatchingMode::Latency => "latency",
                BatchingMode::Throughput => "throughput",
            }
            .to_owned(),
            failed: self.sink.failures(),
            topics: self.topics(),
        }
    }

    fn topics(&self) -> Vec<TopicReport> {
        let topics = self.sink.topics().into_iter();
        topics
            .map(|(topic, stats)| TopicReport {
                topic,
                delivered: stats.delivered.load(Relaxed),
                delivered_bytes: stats.delivered_bytes.load(Relaxed),
                failed: stats.failed.load(Relaxed),
            })
            .collect()
    }

    fn sink_report(&self) -> SinkReport {
        let setup = &self.setup.sink;
        let millis = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
        let endpoints = self.sink.endpoints().into_iter();
        let endpoints = endpoints.map(|endpoint| EndpointReport {
            rtt_avg_ms: millis(endpoint.rtt_mean),
            rtt_p99_ms: millis(endpoint.rtt_p99),
            name: endpoint.name,
            state: endpoint.state,
            queued: endpoint.queued,
            retries: endpoint.retries,
        });
        let unavailable = self.sink.unavailable();
        let fault = self.sink.certificate_fault();
        SinkReport {
            kind: setup.kind.to_owned(),
            title: setup.title.to_owned(),
            endpoint_term: setup.terms.endpoint.to_owned(),
            unavailable_term: setup.terms.unavailable.to_owned(),
            servers: setup.servers.clone(),
            all_down: self.sink.all_down.load(Relaxed),
            certificate_remedy: fault.as_ref().map(|fault| fault.remedy.to_owned()),
            certificate_fault: fault.map(|fault| fault.what),
            endpoints: endpoints.collect(),
            unavailable_count: unavailable.len() as u64,
            unavailable: unavailable.into_iter().take(NAMED_UNAVAILABLE).collect(),
        }
    }
}

impl KafkaReport {
    /// Makes the report of a sink of Kafka; `None` of another sink.
    fn new(sink: &SinkReport) -> Option<Self> {
        let servers = sink.servers.as_ref().filter(|_| sink.kind == KAFKA)?;
        Some(Self {
            bootstrap_servers: servers.clone(),
            all_down: sink.all_down,
            brokers: sink.endpoints.clone(),
            leaderless_partitions: sink.unavailable_count,
            leaderless: sink.unavailable.clone(),
        })
    }
}

fn snapshot(progress: &SnapshotProgress) -> SnapshotReport {
    SnapshotReport {
        running: progress.is_running(),
        rows: progress.of_attempt(),
        expected_rows: progress.expected(),
        rows_total: progress.rows(),
    }
}

fn process() -> ProcessReport {
    let count = |directory: &str| {
        let entries = std::fs::read_dir(directory).ok()?;
        Some(entries.count() as u64)
    };
    ProcessReport {
        resident_bytes: proc::memory("self", "VmRSS"),
        cpu_seconds: proc::cpu("self"),
        threads: count("/proc/self/task"),
        open_files: count("/proc/self/fd"),
    }
}
