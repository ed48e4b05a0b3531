//! Benchmark of one and of several requests in flight to a slow broker: latency of records, and
//! rate of a backlog. Run by `make bench-requests`.
//!
//! Both kinds of producer take turns with librdkafka's mock broker, which responds to each request
//! after a fixed time, as a broker that waits for remote replicas.
//! - Latency: records on a fixed schedule (an open loop), each with its own key. The time of a
//!   record counts from its due time.
//! - Backlog: records as fast as they are accepted, with the linger of the producer for throughput.
//!
//! `BENCH_ONLY`: only `latency` or only `backlogs`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark, which ends if it cannot measure"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use walrelay_kafka_sink::{KafkaConfig, KafkaOptions, KafkaSinkFactory};
use walrelay_sink::{
    BatchingMode, Deliveries, DeliveryError, Record, SendError, Sink, SinkFactory, lock,
};

/// The duration of a load.
const SECONDS: u64 = 5;
const ROUNDS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Partitions, milliseconds until the response to a request, records per second.
const LOADS: [(i32, u64, u64); 9] = [
    (8, 4, 100),
    (8, 4, 300),
    (8, 4, 1_000),
    (24, 4, 300),
    (24, 4, 1_000),
    (24, 4, 3_000),
    (24, 8, 100),
    (24, 8, 300),
    (24, 8, 1_000),
];

/// Partitions, milliseconds until the response to a request, records.
const BACKLOGS: [(i32, u64, u64); 6] = [
    (8, 4, 300_000),
    (64, 4, 300_000),
    (512, 1, 300_000),
    (512, 4, 100_000),
    (1_000, 1, 200_000),
    (1_000, 4, 100_000),
];

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// When each record was delivered.
#[derive(Default)]
struct Reports {
    delivered: Mutex<BTreeMap<u64, Instant>>,
    capacity: Mutex<u64>,
    changed: Condvar,
}

impl Reports {
    fn wakes(&self) -> u64 {
        *lock(&self.capacity)
    }

    /// Waits for a wake-up after the first `wakes`.
    fn wait_beyond(&self, wakes: u64) {
        let (_seen, late) = self
            .changed
            .wait_timeout_while(lock(&self.capacity), TIMEOUT, |seen| *seen == wakes)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!late.timed_out(), "the sender was not woken");
    }
}

impl Deliveries for Reports {
    fn delivered(&self, seq: u64) {
        lock(&self.delivered).insert(seq, Instant::now());
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        panic!("record {seq}: {error}");
    }

    fn capacity(&self) {
        *lock(&self.capacity) += 1;
        self.changed.notify_all();
    }
}

fn send(sink: &mut impl Sink, reports: &Reports, key: &str, seq: u64) {
    let record = Record {
        topic: "t",
        key: Some(key.as_bytes()),
        value: Some(&[b'x'; 300]),
        ..Record::default()
    };
    loop {
        let wakes = reports.wakes();
        match sink.try_send(&record, seq) {
            Ok(()) => return,
            Err(SendError::Full) => reports.wait_beyond(wakes),
            Err(SendError::Refused(error)) => panic!("{error}"),
        }
    }
}

/// A cluster of one broker, and its topic with so many partitions.
fn cluster(partitions: i32) -> Cluster {
    let cluster = MockCluster::new(1).expect("a mock broker");
    cluster.create_topic("t", partitions, 1).expect("a topic");
    cluster
}

fn answers_after(cluster: &Cluster, millis: u64) {
    cluster
        .broker_round_trip_time(1, Duration::from_millis(millis))
        .expect("the mock broker changes its time");
}

/// Latency in milliseconds at p50 and p99.
fn measure(factory: &mut impl SinkFactory, cluster: &Cluster, millis: u64, rate: u64) -> [f64; 2] {
    let reports = Arc::new(Reports::default());
    let mut sink = factory
        .create(None, Arc::clone(&reports) as Arc<dyn Deliveries>)
        .expect("a producer");
    // Warm up: connections, metadata, and a record for most partitions.
    let warm = 200;
    for seq in 0..warm {
        send(&mut sink, &reports, &seq.to_string(), seq);
    }
    answers_after(cluster, millis);
    let (start, count) = (Instant::now() + Duration::from_millis(50), rate * SECONDS);
    let due = |seq: u64| start + Duration::from_secs(1) * seq as u32 / rate as u32;
    for seq in 0..count {
        thread::sleep(due(seq).saturating_duration_since(Instant::now()));
        let key = (seq * 7_919 % 100_003).to_string();
        send(&mut sink, &reports, &key, warm + seq);
    }
    Box::new(sink).close(TIMEOUT);
    answers_after(cluster, 0);
    let delivered = lock(&reports.delivered);
    assert_eq!(delivered.len() as u64, warm + count, "all are delivered");
    let mut took: Vec<f64> = (0..count)
        .map(|seq| (delivered[&(warm + seq)] - due(seq)).as_secs_f64() * 1e3)
        .collect();
    took.sort_by(f64::total_cmp);
    [took.len() / 2, took.len() * 99 / 100].map(|at| took[at])
}

/// The rate of a backlog in records per second.
fn drain(factory: &mut impl SinkFactory, cluster: &Cluster, millis: u64, count: u64) -> f64 {
    let reports = Arc::new(Reports::default());
    let mut sink = factory
        .create(None, Arc::clone(&reports) as Arc<dyn Deliveries>)
        .expect("a producer");
    send(&mut sink, &reports, "0", 0);
    answers_after(cluster, millis);
    let start = Instant::now();
    for seq in 1..=count {
        sink.set_mode(BatchingMode::Throughput);
        send(&mut sink, &reports, &(seq * 7_919).to_string(), seq);
    }
    Box::new(sink).close(TIMEOUT);
    let took = start.elapsed().as_secs_f64();
    answers_after(cluster, 0);
    let delivered = lock(&reports.delivered);
    assert_eq!(delivered.len() as u64, 1 + count, "all are delivered");
    count as f64 / took
}

fn config(cluster: &Cluster, linger: Option<&str>) -> KafkaConfig {
    let properties = [("bootstrap.servers", cluster.bootstrap_servers())]
        .into_iter()
        .chain(linger.map(|linger| ("linger.ms", linger.to_owned())))
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    // Above the relay's window of 12 MiB, so that only librdkafka bounds what is in flight.
    let options = KafkaOptions {
        max_in_flight_bytes: 16 << 20,
        ..KafkaOptions::default()
    };
    KafkaConfig::new(properties, options).expect("a configuration")
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    if only != "backlogs" {
        latency();
        println!();
    }
    if only != "latency" {
        backlogs();
    }
}

fn backlogs() {
    println!(
        "| partitions | answered after, ms | records | one request: records/s | several | several / one |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    for (partitions, millis, count) in BACKLOGS {
        let mut rounds: [Vec<f64>; 2] = Default::default();
        for _ in 0..ROUNDS {
            let cluster = cluster(partitions);
            let mut one = KafkaSinkFactory::new(config(&cluster, Some("50"))).with_one_producer();
            rounds[0].push(drain(&mut one, &cluster, millis, count));
            let mut several = KafkaSinkFactory::new(config(&cluster, None));
            rounds[1].push(drain(&mut several, &cluster, millis, count));
        }
        let [one, several] = rounds.map(median);
        let ratio = several / one;
        println!("| {partitions} | {millis} | {count} | {one:.0} | {several:.0} | {ratio:.1} |");
    }
}

fn latency() {
    println!(
        "| partitions | answered after, ms | records/s | one request: p50 | p99 | several: p50 | p99 | one / several: p50 | p99 |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (partitions, millis, rate) in LOADS {
        let mut rounds: [Vec<[f64; 2]>; 2] = Default::default();
        for _ in 0..ROUNDS {
            let cluster = cluster(partitions);
            let config = config(&cluster, None);
            let mut one = KafkaSinkFactory::new(config.clone()).with_one_producer();
            rounds[0].push(measure(&mut one, &cluster, millis, rate));
            // As in `walrelay run` without a backlog.
            let mut several = KafkaSinkFactory::new(config);
            rounds[1].push(measure(&mut several, &cluster, millis, rate));
        }
        let [one, several] = rounds
            .map(|rounds| [0, 1].map(|at| median(rounds.iter().map(|round| round[at]).collect())));
        println!(
            "| {partitions} | {millis} | {rate} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            one[0],
            one[1],
            several[0],
            several[1],
            one[0] / several[0],
            one[1] / several[1]
        );
    }
}
