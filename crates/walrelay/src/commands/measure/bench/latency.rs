//! Measures the latency of single rows, written at a fixed rate however fast they are relayed.
//!
//! Each row contains the database's clock at its writing, just before its commit. The latency is
//! the time from there until a consumer has the record. So a stall of the relay delays every row
//! written meanwhile, and each counts.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use walrelay_failure::Failure;
use walrelay_measure::figures::Spread;
use walrelay_observe::{Latencies, micros_now};
use walrelay_sink_kind::SinkKind;

use super::drain::{BenchObserver, incomplete};
use super::load::{Schedule, clock_offset};
use super::needs_topics;
use super::objects::BenchPipeline;
use super::worker::Worker;
use crate::failures;

/// Timeout of one request to a server of the sink.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval at which the progress is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The measurement fails if no record arrives for this time after the last row was written.
const STALL: Duration = Duration::from_secs(60);

/// The figures of one rate.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LatencyResult {
    /// Rows written per second.
    pub(super) rate: u32,
    pub(super) rows: u64,
    /// Milliseconds from the commit to the sink's acknowledgement at the relay, of a sample of
    /// transactions.
    pub(super) acknowledged: Option<Spread>,
    /// Milliseconds from the writing of a row to a consumer, of every row.
    pub(super) consumed: Option<Spread>,
    /// Largest delay of a write behind its schedule. Above some milliseconds the load was lower
    /// than stated.
    pub(super) late_ms: f64,
}

/// Writes rows on the schedule, relays them to the topic and reads them back.
pub(super) async fn measure(
    pipeline: BenchPipeline,
    sink: Arc<dyn SinkKind>,
    topic: String,
    schedule: Schedule,
) -> Result<LatencyResult, Failure> {
    let (rate, rows) = (schedule.rate, schedule.rows());
    let offset = clock_offset(&schedule.info).await?;
    let mut observer = BenchObserver::new();
    let streaming = Arc::clone(&observer.streaming);
    let mut pipeline = pipeline.with(sink.factory(None).0, &mut observer);
    let mut loaded = None;
    let load = async {
        streaming.notified().await;
        loaded = Some(write_and_read(schedule, sink, topic, offset).await);
    };
    let ended = Box::pin(pipeline.run(load)).await;
    drop(pipeline);
    ended.map_err(failures::pipeline)?;
    let (consumed, late) = loaded.unwrap_or_else(|| Err(incomplete(0, rows)))?;
    Ok(LatencyResult {
        rate,
        rows,
        acknowledged: spread(&observer.latencies),
        consumed: spread(&consumed),
        late_ms: late.as_secs_f64() * 1e3,
    })
}

fn spread(latencies: &Latencies) -> Option<Spread> {
    Spread::by(|quantile| latencies.millis(quantile))
}

/// Writes rows on the schedule until all are read back. Returns the latencies to the consumer, and
/// the largest delay of a write.
async fn write_and_read(
    schedule: Schedule,
    sink: Arc<dyn SinkKind>,
    topic: String,
    offset: i64,
) -> Result<(Latencies, Duration), Failure> {
    let rows = schedule.rows();
    let progress = Arc::new(Progress::default());
    let reader = Worker::start("bench-reader", {
        let progress = Arc::clone(&progress);
        move |stop| read(&*sink, &topic, rows, offset, &progress, stop)
    })?;
    while !progress.ready.load(Ordering::Relaxed) && !reader.is_finished() {
        sleep(POLL_INTERVAL).await;
    }
    let writers = Worker::start("bench-writers", move |stop| schedule.write(stop))?;
    // Number of records read, and when it last grew.
    let mut last = (0, Instant::now());
    while !reader.is_finished() {
        if writers.is_finished() {
            let arrived = progress.arrived.load(Ordering::Relaxed);
            if arrived != last.0 {
                last = (arrived, Instant::now());
            } else if last.1.elapsed() > STALL {
                return Err(incomplete(arrived, rows));
            }
        } else {
            last.1 = Instant::now();
        }
        sleep(POLL_INTERVAL).await;
    }
    // Join the writers first: their error is the reason if no record arrived.
    let late = writers.join()?;
    Ok((reader.join()?, late))
}

/// The progress of the reader.
#[derive(Default)]
struct Progress {
    /// Whether the reader is connected.
    ready: AtomicBool,
    /// Number of records read, without repeats.
    arrived: AtomicU64,
}

/// Members of the payload: the number of the row, and the time of its writing in microseconds since
/// 1970.
#[derive(Deserialize)]
struct Stamp {
    n: u64,
    at: i64,
}

fn read(
    sink: &dyn SinkKind,
    topic: &str,
    rows: u64,
    offset: i64,
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<Latencies, Failure> {
    let topics = sink.topics().ok_or_else(|| needs_topics(sink))?;
    let mut reader = topics.reader()?;
    reader.follow(topic, 0, REQUEST_TIMEOUT)?;
    let mut latencies = Latencies::default();
    let mut seen = HashSet::with_capacity(rows as usize);
    // The first call connects, so that the time for it does not count.
    let mut timeout = Duration::from_secs(1);
    while (seen.len() as u64) < rows && !stop.load(Ordering::Relaxed) {
        // Errors are ignored: the client reconnects by itself.
        let next = reader.next(timeout).ok().flatten();
        let now = micros_now();
        progress.ready.store(true, Ordering::Relaxed);
        timeout = Duration::from_millis(100);
        let value = next.as_ref().and_then(|record| record.value.as_deref());
        let stamp = value.and_then(|value| serde_json::from_slice::<Stamp>(value).ok());
        // Of repeated records, the first one counts.
        if let Some(stamp) = stamp
            && seen.insert(stamp.n)
        {
            let micros = (now + offset - stamp.at).max(0);
            latencies.record(Duration::from_micros(micros as u64));
            progress.arrived.store(seen.len() as u64, Ordering::Relaxed);
        }
    }
    Ok(latencies)
}
