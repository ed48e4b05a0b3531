//! How fast a backlog is drained.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Notify;
use walrelay_event_router::Router;
use walrelay_lab::proc;
use walrelay_lsn::CommitEnd;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::{Environment, Pipeline, Settings, State};
use walrelay_sink::SinkFactory;

use super::meter::Meter;
use crate::cli::{Exit, Failure};
use crate::failures::{self, SinkFailure};
use crate::postgres::{CopySource, Original};
use crate::sinks::Counting;
use crate::telemetry::{Latencies, wall_clock};

/// Nothing comes for twice as long: the rest is not waited for.
const STALL: Duration = Duration::from_secs(30);

/// What a pipeline of the benchmark tells.
#[derive(Debug)]
pub(super) struct Watch {
    started: OnceLock<(Instant, Option<f64>)>,
    streaming: Arc<Notify>,
    latencies: Latencies,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            started: OnceLock::new(),
            streaming: Arc::default(),
            latencies: Latencies::new(),
        }
    }

    /// Is told when the stream has started.
    pub(super) fn streaming(&self) -> Arc<Notify> {
        Arc::clone(&self.streaming)
    }

    /// From commit to acknowledgement, of a sample.
    pub(super) fn latencies(&self) -> &Latencies {
        &self.latencies
    }
}

impl Environment for Watch {
    fn wall_clock(&self) -> PgTimestamp {
        wall_clock()
    }

    fn state(&mut self, state: State) {
        if state == State::Streaming {
            self.started
                .get_or_init(|| (Instant::now(), proc::cpu("self")));
            self.streaming.notify_one();
        }
    }

    fn acknowledged(&mut self, _: CommitEnd, committed: PgTimestamp) {
        let micros = wall_clock().get().saturating_sub(committed.get()).max(0);
        self.latencies.record(Duration::from_micros(micros as u64));
    }
}

/// A backlog drained. CPU is in seconds per million rows.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Drained {
    pub(super) contender: &'static str,
    pub(super) rows: u64,
    /// From the start of streaming to the last acknowledgement.
    pub(super) seconds: f64,
    pub(super) rows_per_second: f64,
    /// Of the second half of the rows.
    pub(super) second_half_rows_per_second: f64,
    pub(super) relay_cpu: Option<f64>,
    /// Of the process that serves the stream, where it runs on this machine.
    pub(super) walsender_cpu: Option<f64>,
    /// Resident at most, 10^6 bytes.
    pub(super) peak_memory_mb: Option<f64>,
    /// Records were sent again to a new sink: the figures are not those of a sound run.
    pub(super) repeated: bool,
}

/// What is drained, and by what.
pub(super) struct Job {
    pub(super) contender: &'static str,
    pub(super) original: Original,
    /// What the copy's name begins with.
    pub(super) copy: String,
    pub(super) rows: u64,
    pub(super) router: Router,
    pub(super) settings: Settings,
}

pub(super) async fn drain<F>(job: Job, factory: F) -> Result<Drained, Failure>
where
    F: SinkFactory,
    F::Error: SinkFailure,
{
    let Job {
        contender,
        original,
        copy,
        rows,
        router,
        settings,
    } = job;
    let meter = Arc::new(Meter::new(rows));
    let source = CopySource::new(original, &copy);
    let walsender = source.walsender();
    let factory = Counting::new(factory, Arc::clone(&meter));
    let mut pipeline = Pipeline::new(source, router, factory, Watch::new(), settings);
    let mut used = (None, None);
    proc::forget_peak();
    let finished = async {
        meter.finished(STALL).await;
        // Before the stream ends, and the server's process with it.
        let walsender = walsender.load(Ordering::Relaxed);
        used = (proc::cpu("self"), proc::walsender_cpu(walsender));
    };
    let ended = Box::pin(pipeline.run(finished)).await;
    let peak = proc::memory("self", "VmHWM");
    ended.map_err(failures::pipeline)?;
    let (Some((begun, own)), Some((half, whole))) =
        (pipeline.environment().started.get(), meter.times())
    else {
        return Err(incomplete(meter.count(), rows));
    };
    let seconds = whole.duration_since(*begun).as_secs_f64();
    let rest = whole.duration_since(half).as_secs_f64();
    let per_million = |cpu: f64| cpu * 1e6 / rows as f64;
    Ok(Drained {
        contender,
        rows,
        seconds,
        rows_per_second: rows as f64 / seconds,
        second_half_rows_per_second: (rows - rows.div_ceil(2)) as f64 / rest,
        relay_cpu: used.0.zip(*own).map(|(now, then)| per_million(now - then)),
        walsender_cpu: used.1.map(per_million),
        peak_memory_mb: peak.map(|bytes| bytes as f64 / 1e6),
        repeated: meter.repeated(),
    })
}

/// Not all came, and nothing did for a while.
pub(super) fn incomplete(came: u64, rows: u64) -> Failure {
    Failure::new(
        "bench-incomplete",
        Exit::Data,
        format!("{came} of {rows} records arrived, and then none for a minute"),
    )
    .remedy(
        "a database or a broker that stands still gives no figures; of a copied slot, ask with --rows \
         for no more than waits in it",
    )
}
