//! What the running relay knows of itself, collected for the HTTP endpoint.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::Histogram;
use walrelay_lab::proc;
use walrelay_lsn::Lsn;
use walrelay_relay::{Class, Diverted, PoisonAction, Progress, SchemaFailure, State};
use walrelay_sink::{BatchingMode, Parking, Poison, SinkStats};

use super::otlp::Spans;
use super::report::{
    BookmarkReport, BrokerReport, DeadLetterReport, DeliveryReport, History, KafkaReport,
    LatencyReport, PipelineReport, ProcessReport, Quantiles, RegistryReport, Sample, SlotReport,
    SnapshotReport, SourceReport, StatusReport, TopicReport,
};
use crate::postgres::SnapshotProgress;

use super::{Latencies, RecentErrors, millis_now, wall_clock};

/// Samples of the history: fifteen minutes.
const SAMPLES: usize = 900;
/// For how long a quantile looks back, in two halves.
const HALF_WINDOW: Duration = Duration::from_secs(30);
/// A pipeline reports once a second. One that has not for so long stands still.
const SILENT_PIPELINE: Duration = Duration::from_secs(10);
/// A server that is idle answers each status update, so that the confirmed position follows its log within a
/// second or two. A position that is not reached for longer is lag.
const USUAL_DISTANCE: Duration = Duration::from_secs(10);

/// Buckets of the latencies in seconds: doubled from 0.5 ms to 65 s.
fn buckets() -> impl Iterator<Item = f64> {
    (0..18).map(|n| 0.0005 * f64::from(1 << n))
}

/// What does not change while the relay runs.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    pub(crate) slot: String,
    /// Without secrets.
    pub(crate) server: String,
    pub(crate) publication: String,
    pub(crate) tables: Vec<String>,
    pub(crate) max_in_flight_records: u64,
    pub(crate) max_in_flight_bytes: u64,
    /// `None`: the sink is not Kafka.
    pub(crate) bootstrap_servers: Option<String>,
    pub(crate) dead_letter_topic: String,
    pub(crate) parking: Option<Arc<Parking>>,
    /// How far a snapshot has come, where one is configured.
    pub(crate) snapshot: Option<Arc<SnapshotProgress>>,
    /// Requests to the schema registry, where there is one.
    pub(crate) registry: Option<Arc<RegistryStats>>,
    /// Whether spans are collected for OpenTelemetry.
    pub(crate) spans: bool,
    /// The effective configuration without secrets.
    pub(crate) config: Vec<(String, String)>,
}

/// Requests to a schema registry, by outcome.
#[derive(Debug, Default)]
pub(crate) struct RegistryStats {
    found: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
}

impl RegistryStats {
    pub(crate) fn count(&self, failure: Option<SchemaFailure>) {
        let counter = match failure {
            None => &self.found,
            Some(SchemaFailure::Unavailable) => &self.unavailable,
            Some(_) => &self.refused,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn report(&self) -> RegistryReport {
        let requests = [
            ("found", &self.found),
            ("refused", &self.refused),
            ("unavailable", &self.unavailable),
        ];
        let requests = requests.map(|(outcome, count)| (outcome.to_owned(), count.load(Relaxed)));
        RegistryReport {
            requests: requests.into(),
        }
    }
}

/// A latency: its histogram for metrics, and quantiles of the last second and the last minute.
#[derive(Debug)]
pub(crate) struct Latency {
    pub(crate) histogram: Histogram,
    windows: Mutex<Windows>,
}

#[derive(Debug)]
struct Windows {
    second: Latencies,
    half: Latencies,
    last_half: Latencies,
    half_since: Instant,
}

impl Latency {
    fn new() -> Self {
        Self {
            histogram: Histogram::new(buckets()),
            windows: Mutex::new(Windows {
                second: Latencies::new(),
                half: Latencies::new(),
                last_half: Latencies::new(),
                half_since: Instant::now(),
            }),
        }
    }

    pub(crate) fn record(&self, latency: Duration) {
        self.histogram.observe(latency.as_secs_f64());
        let mut windows = lock(&self.windows);
        windows.second.record(latency);
        windows.half.record(latency);
    }

    /// Of the last second; begins the next one.
    fn end_second(&self) -> Quantiles {
        let mut windows = lock(&self.windows);
        if windows.half_since.elapsed() >= HALF_WINDOW {
            windows.last_half = std::mem::replace(&mut windows.half, Latencies::new());
            windows.half_since = Instant::now();
        }
        let quantiles = windows.second.quantiles();
        windows.second.clear();
        quantiles
    }

    /// Of the last minute.
    fn last_minute(&self) -> Quantiles {
        let windows = lock(&self.windows);
        windows.half.plus(&windows.last_half).quantiles()
    }
}

/// What the pipeline, the sink, the server and the log say of a relay.
///
/// Its methods take locks for moments: the pipeline calls them at each change of its state, at each status update and
/// for a sample of transactions, never for each row.
pub(crate) struct Telemetry {
    setup: Setup,
    pub(crate) sink: Arc<SinkStats>,
    errors: RecentErrors,
    started_ms: u64,
    pub(crate) commit_to_ack: Latency,
    pub(crate) commit_to_read: Latency,
    pub(super) spans: Spans,
    live: Mutex<Live>,
    history: Mutex<Recorder>,
}

/// What changes.
#[derive(Debug)]
struct Live {
    state: State,
    state_since_ms: u64,
    /// When the pipeline streamed last.
    streaming_at: Instant,
    progress: Option<Progress>,
    progress_at: Instant,
    /// Of the sinks before the present one.
    earlier: walrelay_relay::Counts,
    reconnects: BTreeMap<String, u64>,
    feedback_sent: u64,
    blocked: Duration,
    dead_letters: BTreeMap<String, u64>,
    skipped: BTreeMap<String, u64>,
    slot: Option<SlotReport>,
    slot_error: Option<String>,
    bookmark: Option<BookmarkReport>,
    pruned: u64,
    server_end: Option<Lsn>,
    /// The first end of the log, as the server said, that is not confirmed yet, and when it said so.
    unreached: Option<(Lsn, Instant)>,
}

#[derive(Debug, Default)]
struct Recorder {
    samples: VecDeque<Sample>,
    records: u64,
}

impl Telemetry {
    pub(crate) fn new(setup: Setup, errors: RecentErrors) -> Self {
        let now = Instant::now();
        Self {
            sink: Arc::default(),
            errors,
            started_ms: millis_now(),
            commit_to_ack: Latency::new(),
            commit_to_read: Latency::new(),
            spans: Spans::new(setup.spans),
            live: Mutex::new(Live {
                state: State::Connecting,
                state_since_ms: millis_now(),
                streaming_at: now,
                progress: None,
                progress_at: now,
                earlier: walrelay_relay::Counts::default(),
                reconnects: BTreeMap::new(),
                feedback_sent: 0,
                blocked: Duration::ZERO,
                dead_letters: classes(),
                skipped: classes(),
                slot: None,
                slot_error: None,
                bookmark: None,
                pruned: 0,
                server_end: None,
                unreached: None,
            }),
            history: Mutex::default(),
            setup,
        }
    }

    pub(crate) fn state(&self, state: &State) {
        let mut live = lock(&self.live);
        if matches!(live.state, State::Streaming) {
            live.streaming_at = Instant::now();
        }
        if let State::Waiting { cause, .. } = state {
            *live.reconnects.entry((*cause).to_owned()).or_default() += 1;
        }
        if live.state != *state {
            live.state = state.clone();
            live.state_since_ms = millis_now();
        }
        live.progress_at = Instant::now();
    }

    pub(crate) fn progress(&self, progress: &Progress) {
        self.spans.progress(progress);
        let mut live = lock(&self.live);
        live.feedback_sent += 1;
        if let Some(before) = live.progress
            && progress.counts.transactions < before.counts.transactions
        {
            // A new sink.
            live.earlier = live.earlier.plus(before.counts);
        }
        live.progress = Some(*progress);
        live.progress_at = Instant::now();
    }

    pub(crate) fn blocked(&self, duration: Duration) {
        lock(&self.live).blocked += duration;
    }

    pub(crate) fn diverted(&self, event: &Diverted) {
        let mut live = lock(&self.live);
        let counted = match (event.action, event.class) {
            (_, Class::Parked) | (PoisonAction::DeadLetter, _) => &mut live.dead_letters,
            _ => &mut live.skipped,
        };
        *counted.entry(event.class.to_string()).or_default() += 1;
    }

    /// What the server says of the slot and of its log, or why it says nothing.
    pub(crate) fn slot(&self, answer: Result<(Option<SlotReport>, Option<Lsn>), String>) {
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

    /// So many more confirmed rows are deleted.
    pub(crate) fn pruned(&self, rows: u64) {
        lock(&self.live).pruned += rows;
    }

    /// The rolling bookmark, if this relay keeps it.
    pub(crate) fn bookmark(&self, bookmark: Option<BookmarkReport>) {
        lock(&self.live).bookmark = bookmark;
    }

    /// Ends a second of the history.
    pub(crate) fn end_second(&self) {
        let quantiles = self.commit_to_ack.end_second();
        self.commit_to_read.end_second();
        let (records, lag) = {
            let live = lock(&self.live);
            (live.counts().records, live.lag().as_secs_f64())
        };
        let mut history = lock(&self.history);
        let new = records.saturating_sub(std::mem::replace(&mut history.records, records));
        if history.samples.len() == SAMPLES {
            history.samples.pop_front();
        }
        let sample = (
            millis_now(),
            new as f64,
            quantiles.p50_ms,
            quantiles.p99_ms,
            lag,
        );
        history.samples.push_back(sample);
    }

    pub(crate) fn history(&self) -> History {
        let samples = lock(&self.history).samples.iter().copied().collect();
        History {
            interval_ms: 1000,
            samples,
        }
    }

    pub(crate) fn last_sample(&self) -> Option<Sample> {
        lock(&self.history).samples.back().copied()
    }

    /// What, when it changes, is shown at once.
    pub(crate) fn urgent(&self) -> (String, bool) {
        (
            lock(&self.live).state.to_string(),
            self.sink.all_down.load(Relaxed),
        )
    }

    /// Why the relay is not ready; `None` if it is.
    pub(crate) fn not_ready(&self) -> Option<String> {
        lock(&self.live).not_ready()
    }

    /// Where requests to the schema registry are counted, if there is one.
    pub(crate) fn registry_stats(&self) -> Option<Arc<RegistryStats>> {
        self.setup.registry.clone()
    }

    pub(crate) fn config(&self) -> &[(String, String)] {
        &self.setup.config
    }

    /// All of it, but for the configuration and the sample.
    pub(crate) fn report(&self) -> StatusReport {
        let setup = &self.setup;
        let live = lock(&self.live);
        let not_ready = live.not_ready();
        let (name, reason) = describe(&live.state);
        let counts = live.counts();
        let confirmed = live.progress.map(|progress| progress.confirmed.lsn());
        // The server says the end of its log now and then; what was received lies before it.
        let received = live.progress.map(|progress| progress.received);
        let server_end = live.server_end.max(received);
        let lag_bytes = server_end.zip(confirmed);
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ms: millis_now(),
            started_ms: self.started_ms,
            pipeline: PipelineReport {
                slot: setup.slot.clone(),
                state: name.to_owned(),
                reason: reason.map(str::to_owned),
                since_ms: live.state_since_ms,
            },
            ready: not_ready.is_none(),
            not_ready,
            source: SourceReport {
                server: setup.server.clone(),
                publication: setup.publication.clone(),
                tables: setup.tables.clone(),
                received_lsn: received.map(|lsn| lsn.to_string()),
                confirmed_lsn: confirmed.map(|lsn| lsn.to_string()),
                server_lsn: server_end.map(|lsn| lsn.to_string()),
                lag_bytes: lag_bytes.map(|(end, confirmed)| end.bytes_since(confirmed)),
                lag_seconds: live.lag().as_secs_f64(),
                reconnects: live.reconnects.clone(),
                feedback_sent: live.feedback_sent,
            },
            snapshot: setup.snapshot.as_deref().map(snapshot),
            slot: live.slot.clone(),
            bookmark: live.bookmark.clone(),
            slot_error: live.slot_error.clone(),
            delivery: DeliveryReport {
                in_flight_records: live.progress.map_or(0, |progress| progress.in_flight),
                in_flight_records_limit: setup.max_in_flight_records,
                in_flight_bytes: self.sink.in_flight_bytes.load(Relaxed),
                in_flight_bytes_limit: setup.max_in_flight_bytes,
                blocked_seconds: live.blocked.as_secs_f64(),
                records: counts.records,
                transactions: counts.transactions,
                repeats_avoided: counts.repeats_avoided,
                pruned_rows: live.pruned,
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
            },
            latency: LatencyReport {
                commit_to_ack: self.commit_to_ack.last_minute(),
                commit_to_read: self.commit_to_read.last_minute(),
            },
            dead_letters: DeadLetterReport {
                topic: setup.dead_letter_topic.clone(),
                written: live.dead_letters.clone(),
                skipped: live.skipped.clone(),
                parked_keys: setup
                    .parking
                    .as_ref()
                    .map_or(0, |parking| parking.keys() as u64),
            },
            kafka: self.kafka(),
            registry: setup.registry.as_ref().map(|stats| stats.report()),
            process: process(),
            errors: self.errors.list(),
            config: Vec::new(),
            sample: None,
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

    fn kafka(&self) -> Option<KafkaReport> {
        let bootstrap_servers = self.setup.bootstrap_servers.clone()?;
        let millis = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
        let brokers = self.sink.brokers().into_iter().map(|broker| BrokerReport {
            rtt_avg_ms: millis(broker.rtt_mean),
            rtt_p99_ms: millis(broker.rtt_p99),
            name: broker.name,
            state: broker.state,
            queued: broker.queued,
            retries: broker.retries,
        });
        Some(KafkaReport {
            bootstrap_servers,
            all_down: self.sink.all_down.load(Relaxed),
            brokers: brokers.collect(),
        })
    }
}

impl Live {
    fn counts(&self) -> walrelay_relay::Counts {
        let present = self.progress.map(|progress| progress.counts);
        self.earlier.plus(present.unwrap_or_default())
    }

    /// Takes in a new end of the server's log.
    fn note_end(&mut self) {
        let confirmed = self.progress.map(|progress| progress.confirmed.lsn());
        let behind = |lsn: Lsn| confirmed.is_none_or(|confirmed| lsn > confirmed);
        if self.unreached.is_some_and(|(lsn, _)| behind(lsn)) {
            return;
        }
        self.unreached = self
            .server_end
            .filter(|end| behind(*end))
            .map(|end| (end, Instant::now()));
    }

    /// How old the oldest commit is that is not acknowledged.
    fn lag(&self) -> Duration {
        let oldest = self.progress.and_then(|progress| progress.oldest);
        // The clocks of two machines may disagree by more than the lag.
        let sent = oldest.map_or(Duration::ZERO, |committed| {
            let micros = wall_clock().get().saturating_sub(committed.get());
            Duration::from_micros(micros.try_into().unwrap_or(0))
        });
        let confirmed = self.progress.map(|progress| progress.confirmed.lsn());
        let unreached = self
            .unreached
            .filter(|(lsn, _)| confirmed.is_none_or(|confirmed| *lsn > confirmed));
        let unread = unreached.map_or(Duration::ZERO, |(_, since)| since.elapsed());
        let away = match self.state {
            State::Snapshot
            | State::Streaming
            | State::Blocked
            | State::WaitingForSchema { .. }
            | State::Draining => self.progress_at.elapsed(),
            // The relay that reads the slot has a lag, not the one that waits for it.
            State::WaitingForSlot { .. } => return Duration::ZERO,
            _ => self.streaming_at.elapsed(),
        };
        let noticed = |duration: Duration, usual: Duration| {
            if duration > usual {
                duration
            } else {
                Duration::ZERO
            }
        };
        sent.max(noticed(unread, USUAL_DISTANCE))
            .max(noticed(away, Duration::from_secs(2)))
    }

    fn not_ready(&self) -> Option<String> {
        let silent = self.progress_at.elapsed();
        match &self.state {
            State::Streaming if silent > SILENT_PIPELINE => Some(format!(
                "the pipeline has not reported for {} s",
                silent.as_secs()
            )),
            State::Streaming => None,
            state => Some(state.to_string()),
        }
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

/// All classes, so that a first event is an increase of a counter that was there before.
fn classes() -> BTreeMap<String, u64> {
    let classes = Poison::ALL
        .map(Class::Poison)
        .into_iter()
        .chain([Class::Parked]);
    classes.map(|class| (class.to_string(), 0)).collect()
}

/// A state's name of [`STATES`](super::report::STATES) and its reason.
fn describe(state: &State) -> (&'static str, Option<&str>) {
    match state {
        State::Connecting => ("connecting", None),
        State::Snapshot => ("snapshot", None),
        State::Streaming => ("streaming", None),
        State::Blocked => ("blocked", None),
        State::WaitingForSchema { why } => ("waiting-for-schema", Some(why)),
        State::WaitingForSlot { why } => ("waiting-for-slot", Some(why)),
        State::Waiting { why, .. } => ("retrying", Some(why)),
        State::Draining => ("draining", None),
        State::Halted { why } => ("halted", Some(why)),
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}
