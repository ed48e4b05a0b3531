//! Measures how fast a backlog is drained.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Notify;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::CommitEnd;
use walrelay_measure::proc;
use walrelay_observe::{Latencies, wall_clock};
use walrelay_pgoutput::PgTimestamp;
use walrelay_postgres_source::CopySource;
use walrelay_relay::{Observer, PipelineState};
use walrelay_sink::{AnySinkFactory, any_factory};

use super::meter::Meter;
use super::objects::BenchPipeline;
use crate::commands::assembly::pipelines::CommandPipeline;
use crate::failures;
use crate::sinks::Counting;

/// The measurement ends if no record is acknowledged for twice this time.
const STALL: Duration = Duration::from_secs(30);

/// The observer of a benchmark's pipeline.
#[derive(Debug)]
pub(super) struct BenchObserver {
    /// When the stream started, and the CPU seconds that this process had used by then.
    started: Option<(Instant, Option<f64>)>,
    /// Notified when the stream starts.
    pub(super) streaming: Arc<Notify>,
    /// Latencies from commit to acknowledgement, of a sample of transactions.
    pub(super) latencies: Latencies,
}

impl BenchObserver {
    pub(super) fn new() -> Self {
        Self {
            started: None,
            streaming: Arc::default(),
            latencies: Latencies::default(),
        }
    }
}

impl Observer for BenchObserver {
    fn wall_clock(&self) -> PgTimestamp {
        wall_clock()
    }

    fn state(&mut self, state: PipelineState) {
        if state == PipelineState::Streaming {
            self.started
                .get_or_insert_with(|| (Instant::now(), proc::cpu("self")));
            self.streaming.notify_one();
        }
    }

    fn acknowledged(&mut self, _: CommitEnd, committed: PgTimestamp) {
        let micros = wall_clock().get().saturating_sub(committed.get()).max(0);
        self.latencies.record(Duration::from_micros(micros as u64));
    }
}

impl BenchPipeline {
    /// Makes the pipeline into the sinks of this factory.
    pub(super) fn with(
        self,
        factory: AnySinkFactory,
        observer: &mut BenchObserver,
    ) -> CommandPipeline<'_, CopySource> {
        CommandPipeline::new(self.source, self.router, factory, observer, self.settings)
    }
}

/// The figures of a drained backlog. CPU is in seconds per million rows.
#[derive(Debug, Clone, Serialize)]
pub(super) struct DrainResult {
    pub(super) contender: String,
    pub(super) rows: u64,
    /// Time from the start of streaming to the last acknowledgement.
    pub(super) seconds: f64,
    pub(super) rows_per_second: f64,
    /// Rows per second over the second half of the rows.
    pub(super) second_half_rows_per_second: f64,
    /// CPU of this process.
    pub(super) relay_cpu: Option<f64>,
    /// CPU of the walsender; `None` unless it runs on this machine.
    pub(super) walsender_cpu: Option<f64>,
    /// Peak of the resident memory of this process, in 10^6 bytes.
    pub(super) peak_memory_mb: Option<f64>,
    /// Whether records were sent again to a new sink: the run was disturbed then.
    pub(super) repeated: bool,
}

/// Drains a backlog of `rows` rows into the sinks of this factory.
pub(super) async fn drain(
    contender: &str,
    rows: u64,
    pipeline: BenchPipeline,
    factory: AnySinkFactory,
) -> Result<DrainResult, Failure> {
    let meter = Arc::new(Meter::new(rows));
    let walsender = pipeline.source.walsender();
    let factory = any_factory(Counting::new(factory, Arc::clone(&meter)));
    let mut observer = BenchObserver::new();
    let mut pipeline = pipeline.with(factory, &mut observer);
    let mut used = (None, None);
    proc::forget_peak();
    let finished = async {
        meter.finished(STALL).await;
        // Read the CPU before the stream ends, as the walsender ends with it.
        let walsender = walsender.load(Ordering::Relaxed);
        used = (proc::cpu("self"), proc::walsender_cpu(walsender));
    };
    let ended = Box::pin(pipeline.run(finished)).await;
    let peak = proc::memory("self", "VmHWM");
    ended.map_err(failures::pipeline)?;
    drop(pipeline);
    let (Some((begun, own)), Some((half, whole))) = (observer.started, meter.times()) else {
        return Err(incomplete(meter.count(), rows));
    };
    let seconds = whole.duration_since(begun).as_secs_f64();
    let rest = whole.duration_since(half).as_secs_f64();
    let per_million = |cpu: f64| cpu * 1e6 / rows as f64;
    Ok(DrainResult {
        contender: contender.to_owned(),
        rows,
        seconds,
        rows_per_second: rows as f64 / seconds,
        second_half_rows_per_second: (rows - rows.div_ceil(2)) as f64 / rest,
        relay_cpu: used.0.zip(own).map(|(now, then)| per_million(now - then)),
        walsender_cpu: used.1.map(per_million),
        peak_memory_mb: peak.map(|bytes| bytes as f64 / 1e6),
        repeated: meter.repeated(),
    })
}

/// Returns the failure that records are missing and none has arrived for a while.
pub(super) fn incomplete(arrived: u64, rows: u64) -> Failure {
    Failure::new(
        "bench-incomplete",
        Exit::Data,
        format!("{arrived} of {rows} records arrived, and then none for a minute"),
    )
    .remedy(
        "a database or a sink that stands still gives no figures; of a copied slot, ask with --rows \
         for no more than waits in it",
    )
}
