use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{debug, info};
use walrelay_lsn::CommitEnd;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::{Counts, Diverted, Environment, Failpoint, Progress, State};

use super::summary::Summaries;
use super::{Latencies, Telemetry, wall_clock};

/// The environment of a pipeline in the program: clock, log, failpoints.
#[derive(Debug)]
pub(crate) struct World {
    latencies: Latencies,
    summaries: Summaries,
    state: State,
    /// The pipeline has streamed at least once.
    streamed: bool,
    /// The reader of the slot that the log named last, while this relay stands by.
    stands_by: Option<String>,
    /// Notified once, when the pipeline streams for the first time.
    ready: Option<oneshot::Sender<()>>,
    die_at: DieAt,
    /// Where somebody looks.
    telemetry: Option<Arc<Telemetry>>,
}

/// Where the process dies for a test: `WALRELAY_DIE_AT=point[:n]`, the n-th time the point is reached. Only
/// debug builds read it.
#[derive(Debug, Default)]
struct DieAt {
    #[cfg(debug_assertions)]
    point: Option<(Failpoint, u64)>,
}

impl DieAt {
    #[cfg(debug_assertions)]
    fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Self {
        let wanted = env("WALRELAY_DIE_AT").unwrap_or_default();
        let (name, count) = wanted.split_once(':').unwrap_or((&wanted, "1"));
        let point = Failpoint::ALL
            .into_iter()
            .find(|point| point.name() == name);
        Self {
            point: point.zip(count.parse().ok()),
        }
    }

    #[cfg(not(debug_assertions))]
    fn from_env(_: &dyn Fn(&str) -> Option<String>) -> Self {
        Self::default()
    }

    fn failpoint(&mut self, reached: Failpoint) {
        #[cfg(debug_assertions)]
        if let Some((point, left)) = &mut self.point
            && *point == reached
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                // As abrupt as SIGKILL: no destructor runs, no buffer is flushed, no thread goes on.
                std::process::abort();
            }
        }
        let _ = reached;
    }
}

impl World {
    pub(crate) fn new(env: &dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            latencies: Latencies::new(),
            summaries: Summaries::new(),
            state: State::Connecting,
            streamed: false,
            stands_by: None,
            ready: None,
            die_at: DieAt::from_env(env),
            telemetry: None,
        }
    }

    /// Collects what happens for this, too.
    pub(crate) fn observed_by(self, telemetry: Option<Arc<Telemetry>>) -> Self {
        Self { telemetry, ..self }
    }

    /// Notifies `ready` when the pipeline streams.
    pub(crate) fn announcing(ready: oneshot::Sender<()>) -> Self {
        Self {
            ready: Some(ready),
            ..Self::new(&|_| None)
        }
    }

    pub(crate) fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// The line a run ends with, if it read the slot at all.
    pub(crate) fn summarise(&self, counts: &Counts) {
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

impl Environment for World {
    fn wall_clock(&self) -> PgTimestamp {
        wall_clock()
    }

    fn state(&mut self, state: State) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.state(&state);
        }
        match &state {
            // Once for each reader: the slot is tried often.
            State::WaitingForSlot { why } if self.stands_by.as_ref() != Some(why) => {
                info!(
                    reader = why,
                    "standing by: this relay takes the slot over when its reader is gone"
                );
                self.stands_by = Some(why.clone());
            }
            State::Streaming => {
                self.streamed = true;
                self.stands_by = None;
                if let Some(ready) = self.ready.take() {
                    // The receiver may be gone.
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

    fn failpoint(&mut self, point: Failpoint) {
        self.die_at.failpoint(point);
    }

    fn acknowledged(&mut self, end: CommitEnd, committed: PgTimestamp) {
        let latency = since(committed);
        if let Some(telemetry) = &self.telemetry {
            telemetry.commit_to_ack.record(latency);
        }
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
        if let Some(telemetry) = &self.telemetry {
            telemetry.commit_to_read.record(since(committed));
        }
    }

    fn diverted(&mut self, event: &Diverted) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.diverted(event);
        }
    }

    fn blocked(&mut self, duration: Duration) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.blocked(duration);
        }
    }

    fn progress(&mut self, progress: &Progress) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.progress(progress);
        }
        if let Some(summary) = self.summaries.due(&progress.counts, Instant::now()) {
            info!(
                records = summary.records,
                transactions = summary.transactions,
                commit_to_ack_p50_ms = summary.commit_to_ack_ms.map(|(p50, _)| p50),
                commit_to_ack_p99_ms = summary.commit_to_ack_ms.map(|(_, p99)| p99),
                "relayed since the last summary"
            );
        }
    }
}

/// From a commit until now. The clocks of two machines may disagree by more than that.
fn since(committed: PgTimestamp) -> Duration {
    let micros = wall_clock().get().saturating_sub(committed.get()).max(0);
    Duration::from_micros(micros as u64)
}
