//! Collects the telemetry of a running relay for the HTTP endpoint.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tracing::debug;
use walrelay_lsn::Lsn;
use walrelay_relay::{Class, PipelineState, Progress, RegistryStats, TableName, TopicProgress};
use walrelay_sink::{Retrying, SinkStats, in_current_span, lock};
use walrelay_sink_kind::check::Check;

use super::batches::Batches;
use super::history::Recorder;
use super::latencies::Latency;
use super::relay_state::{Live, remedy};
use super::setup::Setup;
use super::slo::SloSeconds;
use crate::report::{
    AuditReport, AuditedTable, BookmarkReport, History, MoveReport, OutboxReport, ReplayReport,
    Sample, SlotReport, TableLockReport,
};
use crate::{DlqAccess, EventJobs, RecentErrors, millis_now};

/// Collects reports of the pipeline, the sink, the server and the log.
///
/// Its methods hold locks briefly. The pipeline calls them at each change of its state, at each
/// status update and for a sample of transactions, never for each row.
#[derive(Debug)]
pub struct Telemetry {
    pub(crate) setup: Setup,
    /// Figures of the sinks.
    pub sink: Arc<SinkStats>,
    pub(crate) errors: RecentErrors,
    pub(crate) started_ms: u64,
    /// Latencies from commit to acknowledgement.
    pub commit_to_ack: Latency,
    /// Latencies from commit to the receipt of the commit.
    pub commit_to_read: Latency,
    pub(crate) batches: Batches,
    pub(super) live: Mutex<Live>,
    history: Mutex<Recorder>,
    pub(super) slo_seconds: Mutex<SloSeconds>,
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
            slo_seconds: Mutex::new(SloSeconds::new()),
            history: Mutex::new(Recorder::new(
                &setup.slot,
                setup.state_file.as_ref().map(|(file, _)| &**file),
            )),
            noting: Arc::default(),
            setup,
        }
    }

    /// Notes the pipeline's state.
    pub fn state(&self, state: &PipelineState) {
        let mut live = lock(&self.live);
        if matches!(live.state, PipelineState::Streaming) || live.standing_by().is_some() {
            live.streaming_at = Instant::now();
        }
        // The events of a slot that another relay reads are that relay's.
        if live.standing_by().is_some() {
            live.event_at = Instant::now();
        }
        if let PipelineState::Waiting { cause, .. } = state {
            live.attempt_failed(cause);
        }
        live.enter(state);
    }

    /// Notes positions and figures.
    pub fn progress(&self, progress: &Progress) {
        self.batches.progress(progress);
        let mut live = lock(&self.live);
        let acknowledged = live.acknowledged();
        live.progressed(progress);
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

    /// Notes the topics: their records in flight, and their last acknowledged ones.
    pub fn topics(&self, topics: &[TopicProgress<'_>]) {
        let of = |of: &TopicProgress<'_>| Some((of.topic.to_owned(), of.oldest?));
        let oldest = topics.iter().filter_map(of).collect();
        let mut live = lock(&self.live);
        live.oldest_by_topic = (oldest, Instant::now());
        for TopicProgress { topic, last, .. } in topics {
            let Some(event) = *last else { continue };
            // A new sink begins without one, and what was known stays.
            let known = live.last_by_topic.get(*topic);
            if known.is_none_or(|(known, _)| *known != event) {
                let last = (event, millis_now());
                live.last_by_topic.insert((*topic).to_owned(), last);
            }
        }
    }

    /// Adds a time in which nothing was read.
    pub fn blocked(&self, duration: Duration) {
        lock(&self.live).blocked += duration;
    }

    /// Sets the keys that the sink holds back.
    pub fn retrying(&self, retrying: Option<&Retrying>) {
        lock(&self.live).retrying = retrying.cloned();
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

    /// Sets why the OpenTelemetry collector does not accept the metrics; `None` if it does.
    pub(crate) fn otel_problem(&self, problem: Option<String>) {
        lock(&self.live).otel_problem = problem;
    }

    /// Sets the settings by which the servers of the sink may lose what they have acknowledged.
    pub fn sink_risks(&self, risks: Vec<Check>) {
        lock(&self.live).sink_risks = risks;
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

    /// Sets who keeps services from writing to an outbox table by a lock.
    pub fn table_lock(&self, locks: Option<TableLockReport>) {
        lock(&self.live).table_lock = locks;
    }

    /// Sets sizes and ages of the outbox tables, or why they are not known. Former figures go: they would look like
    /// those of now.
    pub fn outbox(&self, answer: Result<Vec<OutboxReport>, String>) {
        let mut live = lock(&self.live);
        live.outboxes = match answer {
            Ok(outboxes) => (outboxes, None),
            Err(why) => (Vec::new(), Some(why)),
        };
    }

    /// Sets what the last round of the audit found: tables, their rows without evidence, and the part of them that was
    /// looked at, in percent; and why the round did not end, if it did not.
    pub fn audited(
        &self,
        found: impl IntoIterator<Item = (String, u64, u64)>,
        error: Option<String>,
    ) {
        let tables = found
            .into_iter()
            .map(|(table, rows, percent)| AuditedTable {
                table,
                rows,
                percent,
            });
        let audit = AuditReport {
            at_ms: millis_now(),
            tables: tables.collect(),
            error,
        };
        lock(&self.live).audit = Some(audit);
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

    /// Sets the move that has not ended on this server.
    pub fn moved(&self, moved: Option<MoveReport>) {
        lock(&self.live).moved = moved;
    }

    /// Sets the replays that run in the database.
    pub fn replays(&self, replays: Vec<ReplayReport>) {
        lock(&self.live).replays = replays;
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
        if let Some(slo) = self
            .setup
            .slo
            .as_ref()
            .filter(|_| self.standing_by().is_none())
        {
            lock(&self.slo_seconds).end_second(slo, lag, quantiles.p99_ms);
        }
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
        let Some((_, replace_file)) = self.setup.state_file else {
            return;
        };
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
            .spawn(in_current_span(write));
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
        (lock(&self.live).state.to_string(), self.sink.is_down())
    }

    /// Notes that the runtime of the pipeline works.
    pub fn beat(&self) {
        lock(&self.live).beat_at = Instant::now();
    }

    /// Returns true if the pipeline has worked within this time.
    pub(crate) fn is_alive(&self, silence: Duration) -> bool {
        lock(&self.live).is_alive(silence)
    }

    /// Returns true if the pipeline sends nothing new: it drains, or has halted.
    pub(crate) fn is_ending(&self) -> bool {
        let state = &lock(&self.live).state;
        matches!(
            state,
            PipelineState::Draining | PipelineState::Halted { .. }
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
    pub(crate) fn dead_letter_access(&self) -> Option<&Arc<DlqAccess>> {
        self.setup.dead_letters.as_ref()
    }

    /// Returns the commands of the page about one event, if there are any.
    pub(crate) fn event_jobs(&self) -> Option<&Arc<EventJobs>> {
        self.setup.events.as_ref()
    }

    /// Returns the name of the slot.
    pub(crate) fn slot_name(&self) -> &str {
        &self.setup.slot
    }

    /// Returns the kind of the sink, as `[sink] kind` names it.
    pub(crate) fn sink_kind(&self) -> &'static str {
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
}
