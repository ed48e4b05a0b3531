//! Logging, and what a run tells about itself.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use tokio::sync::oneshot;
use tracing::info;
use tracing::level_filters::LevelFilter;
use walrelay_lsn::CommitEnd;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::{Counts, Environment, Failpoint, State};

use crate::cli::colours;
use crate::config::{Log, LogFormat, LogLevel};
use crate::progress::{Progress, Summary};

/// Sends log lines to standard error. Called once; a second call changes nothing.
pub(crate) fn log_to_stderr(log: Log, env: &dyn Fn(&str) -> Option<String>) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(colours(io::stderr().is_terminal(), env))
        // A line that cannot be written, to a disk that is full for one, would be complained of to
        // the very same place, and that panics.
        .log_internal_errors(false);
    // Fails if there is a subscriber already: then that one is to stay.
    let _ = match log.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// The wall clock as Postgres counts.
pub(crate) fn wall_clock() -> PgTimestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    PgTimestamp::from_unix_micros(micros).unwrap_or(PgTimestamp::new(0))
}

/// Latencies from commit to acknowledgement, by the clocks of the database and of this machine.
#[derive(Debug)]
pub(crate) struct Latencies {
    micros: Histogram<u64>,
}

impl Latencies {
    /// Up to an hour, with two digits.
    pub(crate) fn new() -> Self {
        let hour = Duration::from_secs(3600).as_micros() as u64;
        let micros = Histogram::new_with_bounds(1, hour, 2)
            .unwrap_or_else(|_| unreachable!("bounds and digits are within the crate's limits"));
        Self { micros }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.micros.saturating_record(
            u64::try_from(latency.as_micros())
                .unwrap_or(u64::MAX)
                .max(1),
        );
    }

    /// Milliseconds at a quantile, `None` without a sample.
    pub(crate) fn millis(&self, quantile: f64) -> Option<f64> {
        let any = !self.micros.is_empty();
        any.then(|| self.micros.value_at_quantile(quantile) as f64 / 1000.0)
    }

    pub(crate) fn samples(&self) -> u64 {
        self.micros.len()
    }
}

/// The world of a pipeline in the program.
#[derive(Debug)]
pub(crate) struct World {
    latencies: Latencies,
    progress: Progress,
    state: State,
    /// The slot was read at least once.
    streamed: bool,
    /// The reader of the slot that the log named last, while this relay stands by.
    stands_by: Option<String>,
    /// Told once, when the stream has started for the first time.
    ready: Option<oneshot::Sender<()>>,
    die_at: DieAt,
}

/// Where a test wants the process to die: `WALRELAY_DIE_AT=point[:n]`, at the n-th time it is
/// reached. Only debug builds look.
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
            progress: Progress::new(),
            state: State::Connecting,
            streamed: false,
            stands_by: None,
            ready: None,
            die_at: DieAt::from_env(env),
        }
    }

    /// A world that tells `ready` when the pipeline streams.
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
        self.streamed |= state == State::Streaming;
        match &state {
            // Once for each reader: looking again and again is no news.
            State::WaitingForSlot { why } if self.stands_by.as_ref() != Some(why) => {
                info!(
                    reader = why,
                    "standing by: this relay takes the slot over when its reader is gone"
                );
                self.stands_by = Some(why.clone());
            }
            State::Streaming => self.stands_by = None,
            _ => {}
        }
        if state == State::Streaming
            && let Some(ready) = self.ready.take()
        {
            // Whoever waited may be gone.
            let _ = ready.send(());
        }
        if state != self.state {
            tracing::debug!(from = %self.state, to = %state, "state");
            self.state = state;
        }
    }

    fn failpoint(&mut self, point: Failpoint) {
        self.die_at.failpoint(point);
    }

    fn acknowledged(&mut self, end: CommitEnd, committed: PgTimestamp) {
        // Clocks of two machines may disagree by more than the latency: not below zero.
        let micros = wall_clock().get().saturating_sub(committed.get()).max(0);
        let latency = Duration::from_micros(micros as u64);
        if self.latencies.samples() == 0 {
            info!(
                position = %end,
                commit_to_ack_ms = micros as f64 / 1000.0,
                "the first event is relayed"
            );
        }
        self.latencies.record(latency);
        self.progress.acknowledged(latency);
    }

    fn progress(&mut self, counts: &Counts) {
        if let Some(summary) = self.progress.at(counts, Instant::now()) {
            let Summary {
                records,
                transactions,
                commit_to_ack_ms,
            } = summary;
            info!(
                records,
                transactions,
                commit_to_ack_p50_ms = commit_to_ack_ms.map(|(p50, _)| p50),
                commit_to_ack_p99_ms = commit_to_ack_ms.map(|(_, p99)| p99),
                "relayed since the last summary"
            );
        }
    }
}
