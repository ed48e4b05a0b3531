//! How long a row takes, at a rate that does not heed how fast it is relayed.
//!
//! A row carries the database's clock as of its writing, just before its commit. What is measured is
//! the time from there until a consumer has it. A relay that stalls is late with all that was written
//! meanwhile, and each of them counts.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use walrelay_event_router::Router;
use walrelay_kafka_sink::{KafkaConfig, KafkaSinkFactory, Tail};
use walrelay_lab::figures::Spread;
use walrelay_relay::{Pipeline, Settings};

use super::drain::{Watch, incomplete};
use super::load::{Schedule, clock_offset};
use super::worker::Worker;
use crate::cli::Failure;
use crate::failures;
use crate::postgres::{CopySource, Original};
use crate::telemetry::Latencies;

const BROKER_PATIENCE: Duration = Duration::from_secs(15);
/// How often it is looked whether all have come, and how long nothing may.
const LOOK: Duration = Duration::from_millis(20);
const STALL: Duration = Duration::from_secs(60);

/// One rate.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Latency {
    pub(super) rate: u32,
    pub(super) rows: u64,
    /// To the relay's knowledge that the broker has it, of a sample.
    pub(super) acknowledged: Option<Spread>,
    /// To a consumer, of every row.
    pub(super) consumed: Option<Spread>,
    /// How late the latest row was written: above some milliseconds the load is not what it says.
    pub(super) late_ms: f64,
}

/// What is relayed, and how the rows come to be.
pub(super) struct Job {
    pub(super) original: Original,
    pub(super) copy: String,
    pub(super) topic: String,
    pub(super) kafka: KafkaConfig,
    pub(super) schedule: Schedule,
    pub(super) router: Router,
    pub(super) settings: Settings,
}

pub(super) async fn measure(job: Job) -> Result<Latency, Failure> {
    let Job {
        original,
        copy,
        topic,
        kafka,
        schedule,
        router,
        settings,
    } = job;
    let (rate, rows) = (schedule.rate, schedule.rows());
    let offset = clock_offset(&schedule.info).await?;
    let watch = Watch::new();
    let streaming = watch.streaming();
    let source = CopySource::new(original, &copy);
    let factory = KafkaSinkFactory::new(kafka.clone());
    let mut pipeline = Pipeline::new(source, router, factory, watch, settings);
    let mut driven = None;
    let drive = async {
        streaming.notified().await;
        driven = Some(drive(schedule, kafka, topic, offset).await);
    };
    let ended = Box::pin(pipeline.run(drive)).await;
    ended.map_err(failures::pipeline)?;
    let (consumed, late) = driven.unwrap_or_else(|| Err(incomplete(0, rows)))?;
    Ok(Latency {
        rate,
        rows,
        acknowledged: spread(pipeline.environment().latencies()),
        consumed: spread(&consumed),
        late_ms: late.as_secs_f64() * 1e3,
    })
}

fn spread(latencies: &Latencies) -> Option<Spread> {
    Spread::by(|quantile| latencies.millis(quantile))
}

/// Writes and reads, until everything that was written was read.
async fn drive(
    schedule: Schedule,
    kafka: KafkaConfig,
    topic: String,
    offset: i64,
) -> Result<(Latencies, Duration), Failure> {
    let rows = schedule.rows();
    let progress = Arc::new(Progress::default());
    let told = Arc::clone(&progress);
    let reader = Worker::start("bench-reader", move |stop| {
        read(&kafka, &topic, rows, offset, &told, stop)
    })?;
    while !progress.ready.load(Ordering::Relaxed) && !reader.is_finished() {
        sleep(LOOK).await;
    }
    let writers = Worker::start("bench-writers", move |stop| schedule.write(stop))?;
    let mut moved = (0, Instant::now());
    while !reader.is_finished() {
        if writers.is_finished() {
            let came = progress.came.load(Ordering::Relaxed);
            if came != moved.0 {
                moved = (came, Instant::now());
            } else if moved.1.elapsed() > STALL {
                return Err(incomplete(came, rows));
            }
        } else {
            moved.1 = Instant::now();
        }
        sleep(LOOK).await;
    }
    // An error of theirs is the reason why nothing came.
    let late = writers.join()?;
    Ok((reader.join()?, late))
}

/// How far the reader is.
#[derive(Default)]
struct Progress {
    ready: AtomicBool,
    came: AtomicU64,
}

/// Of the payload, what the writer put there.
#[derive(Deserialize)]
struct Stamp {
    n: u64,
    at: i64,
}

fn read(
    kafka: &KafkaConfig,
    topic: &str,
    rows: u64,
    offset: i64,
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<Latencies, Failure> {
    let mut tail = Tail::with_config(kafka, &[topic], BROKER_PATIENCE)?;
    // From a lost connection the client recovers by itself.
    let mut next_record = |timeout| tail.next(timeout).ok().flatten();
    // Makes the connections, whose time is not the relay's.
    let mut next = next_record(Duration::from_secs(1));
    progress.ready.store(true, Ordering::Relaxed);
    let mut latencies = Latencies::new();
    let mut seen = HashSet::with_capacity(rows as usize);
    while (seen.len() as u64) < rows && !stop.load(Ordering::Relaxed) {
        let now = super::micros_now();
        let value = next.as_ref().and_then(|record| record.value.as_deref());
        let stamp = value.and_then(|value| serde_json::from_slice::<Stamp>(value).ok());
        // Of a repeat, the first one counts.
        if let Some(stamp) = stamp
            && seen.insert(stamp.n)
        {
            let micros = (now + offset - stamp.at).max(0);
            latencies.record(Duration::from_micros(micros as u64));
            progress.came.store(seen.len() as u64, Ordering::Relaxed);
        }
        next = if (seen.len() as u64) < rows {
            next_record(Duration::from_millis(100))
        } else {
            None
        };
    }
    Ok(latencies)
}
