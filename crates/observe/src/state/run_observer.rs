use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tracing::{debug, info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{
    Class, Counts, Diverted, Failpoint, HolderKind, Observer, PgTimestamp, PipelineState,
    PoisonAction, Progress, TableName, TopicProgress,
};
use walrelay_sink::Retrying;

use super::relay_state::remedy;
use super::summary::Summaries;
use crate::{Latencies, Telemetry, wall_clock};

/// The pipeline's [`Observer`] in `walrelay run`: clock, log, telemetry, failpoints.
#[derive(Debug)]
pub struct RunObserver {
    latencies: Latencies,
    summaries: Summaries,
    state: PipelineState,
    /// The pipeline has streamed at least once.
    streamed: bool,
    /// While this relay waits for the slot: the reader of the slot that was logged last.
    logged_reader: Option<String>,
    /// Notified once, when the pipeline streams for the first time.
    ready: Option<oneshot::Sender<()>>,
    /// The failpoint that kills the process in a test, when it is reached so many more times.
    die_at: Option<(Failpoint, u64)>,
    /// The number of events that were diverted.
    diverted: Arc<AtomicU64>,
    /// Present if the HTTP endpoint is configured.
    telemetry: Option<Arc<Telemetry>>,
    /// Gets the position that may be confirmed, while the pipeline streams.
    confirmed: Option<watch::Sender<Lsn>>,
    /// The stream is that of the log, not of a snapshot, whose positions are no positions of the log.
    reads_log: bool,
}

/// Reads the failpoint of `WALRELAY_DIE_AT=point[:n]`, which kills the process when it is reached
/// for the n-th time. Only debug builds read the variable.
fn die_at(env: &dyn Fn(&str) -> Option<String>) -> Option<(Failpoint, u64)> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let wanted = env("WALRELAY_DIE_AT")?;
    let (name, count) = wanted.split_once(':').unwrap_or((&wanted, "1"));
    let mut points = Failpoint::ALL.into_iter();
    let point = points.find(|point| point.name() == name);
    point.zip(count.parse().ok())
}

impl RunObserver {
    /// Creates an observer without telemetry. `env` looks up variables of tests.
    pub fn new(env: &dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            latencies: Latencies::default(),
            summaries: Summaries::default(),
            state: PipelineState::Connecting,
            streamed: false,
            logged_reader: None,
            ready: None,
            die_at: die_at(env),
            diverted: Arc::default(),
            telemetry: None,
            confirmed: None,
            reads_log: false,
        }
    }

    /// Returns also a receiver of the position that may be confirmed, while the pipeline streams: everything that
    /// was committed before it is acknowledged.
    #[must_use]
    pub fn with_confirmed(mut self) -> (Self, watch::Receiver<Lsn>) {
        let (sender, receiver) = watch::channel(Lsn::ZERO);
        self.confirmed = Some(sender);
        (self, receiver)
    }

    /// Adds reports to `telemetry`.
    #[must_use]
    pub fn with_telemetry(self, telemetry: Option<Arc<Telemetry>>) -> Self {
        Self { telemetry, ..self }
    }

    /// Returns the number of events that were diverted. It is raised before their transactions are
    /// confirmed.
    pub fn count_of_diverted(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.diverted)
    }

    /// Notifies `ready` when the pipeline streams for the first time. Reads no environment
    /// variable.
    pub fn notifying(ready: oneshot::Sender<()>) -> Self {
        Self {
            ready: Some(ready),
            ..Self::new(&|_| None)
        }
    }

    /// Returns the latencies from commit to acknowledgement.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Reports to the telemetry, if there is one.
    fn observe(&self, report: impl FnOnce(&Telemetry)) {
        if let Some(telemetry) = &self.telemetry {
            report(telemetry);
        }
    }

    /// Logs the totals of the run, if the pipeline has streamed.
    pub fn log_totals(&self, counts: &Counts) {
        if !self.streamed {
            return;
        }
        info!(
            records = counts.records,
            transactions = counts.transactions,
            repeats_avoided = counts.repeats_avoided,
            ignored_updates = counts.updates,
            ignored_deletes = counts.deletes,
            ignored_truncates = counts.truncates,
            dead_letters = counts.dead_letters,
            parked = counts.parked,
            skipped = counts.skipped,
            latency_samples = self.latencies.samples(),
            commit_to_ack_p50_ms = self.latencies.millis(0.5),
            commit_to_ack_p99_ms = self.latencies.millis(0.99),
            "relayed"
        );
    }
}

impl Observer for RunObserver {
    fn wall_clock(&self) -> PgTimestamp {
        wall_clock()
    }

    fn state(&mut self, state: PipelineState) {
        self.observe(|telemetry| telemetry.state(&state));
        match state {
            PipelineState::Streaming => self.reads_log = true,
            PipelineState::Snapshot => self.reads_log = false,
            _ => {}
        }
        match &state {
            // Logged once for each reader, as the relay tries to start the slot often.
            PipelineState::WaitingForSlot { why, holder }
                if self.logged_reader.as_ref() != Some(why) =>
            {
                if holder.kind == HolderKind::Stranger {
                    warn!(
                        error = why,
                        remedy = remedy(&state).as_deref(),
                        "the slot is taken by a process that is no relay of this configuration"
                    );
                } else {
                    info!(
                        reader = why,
                        "standing by: this relay takes the slot over when its reader is gone"
                    );
                }
                self.logged_reader = Some(why.clone());
            }
            PipelineState::Streaming => {
                self.streamed = true;
                self.logged_reader = None;
                if let Some(ready) = self.ready.take() {
                    // Sending fails if the receiver was dropped.
                    let _ = ready.send(());
                }
            }
            _ => {}
        }
        if state != self.state {
            debug!(from = %self.state, to = %state, "state");
            self.state = state;
        }
    }

    fn failpoint(&mut self, reached: Failpoint) {
        if cfg!(debug_assertions)
            && let Some((point, left)) = &mut self.die_at
            && *point == reached
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                // Like SIGKILL: no destructor runs, no buffer is flushed, all threads end.
                std::process::abort();
            }
        }
    }

    fn acknowledged(&mut self, end: CommitEnd, committed: PgTimestamp) {
        let latency = since(committed);
        self.observe(|telemetry| telemetry.commit_to_ack.record(latency));
        if self.latencies.samples() == 0 {
            info!(
                position = %end,
                commit_to_ack_ms = latency.as_secs_f64() * 1e3,
                "the first event is relayed"
            );
        }
        self.latencies.record(latency);
        self.summaries.acknowledged(latency);
    }

    fn received(&mut self, committed: PgTimestamp) {
        self.observe(|telemetry| telemetry.commit_to_read.record(since(committed)));
    }

    fn diverted(&mut self, event: &Diverted) {
        self.diverted.fetch_add(1, Ordering::Release);
        if event.action == PoisonAction::Skip {
            self.observe(|telemetry| telemetry.skipped(event.class));
        }
    }

    fn dead_letters(&mut self, classes: &[Class]) {
        self.observe(|telemetry| telemetry.dead_letters(classes));
    }

    fn passed_over(&mut self, table: &TableName, rows: u64) {
        self.observe(|telemetry| telemetry.passed_over(table, rows));
    }

    fn blocked(&mut self, duration: Duration) {
        self.observe(|telemetry| telemetry.blocked(duration));
    }

    fn retrying(&mut self, retrying: Option<&Retrying>) {
        self.observe(|telemetry| telemetry.retrying(retrying));
    }

    fn progress(&mut self, progress: &Progress) {
        self.observe(|telemetry| telemetry.progress(progress));
        if let Some(confirmed) = &self.confirmed
            && self.reads_log
        {
            confirmed.send_replace(progress.confirmed.lsn());
        }
        if let Some(summary) = self.summaries.due(progress, Instant::now()) {
            info!(
                records = summary.records,
                transactions = summary.transactions,
                commit_to_ack_p50_ms = summary.commit_to_ack_ms.map(|(p50, _)| p50),
                commit_to_ack_p99_ms = summary.commit_to_ack_ms.map(|(_, p99)| p99),
                "relayed since the last summary"
            );
        }
    }

    fn topics(&mut self, topics: &[TopicProgress<'_>]) {
        self.observe(|telemetry| telemetry.topics(topics));
    }
}

/// Returns the time since a commit; zero if the server's clock is ahead of this machine's.
fn since(committed: PgTimestamp) -> Duration {
    let micros = wall_clock().get().saturating_sub(committed.get()).max(0);
    Duration::from_micros(micros as u64)
}
