//! Against librdkafka's mock cluster, whose brokers misbehave on cue.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Condvar, Mutex};
use std::thread;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, DefaultProducerContext};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use walrelay_sink::Header;

use super::*;
use crate::consumer::{Tail, TailedRecord};
use crate::ffi;
use crate::producer::context::Context;
use crate::{KafkaOptions, TopicCreation, probe};

mod brokers;
mod closing;
mod modes;
mod order;
mod records;
mod several;
mod start;
mod topics;
mod window;

type Cluster = MockCluster<'static, DefaultProducerContext>;

const LONG: Duration = Duration::from_secs(30);
/// Closing takes a fraction of a second; this is for machines that are busy otherwise.
const SOON: Duration = Duration::from_secs(15);

/// Remembers every report; a second one for the same number is an error at once.
#[derive(Default)]
struct Reports {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    outcomes: HashMap<u64, Result<(), DeliveryError>>,
    repeated: Vec<u64>,
    capacity: u64,
}

impl Reports {
    fn report(&self, seq: u64, outcome: Result<(), DeliveryError>) {
        let mut state = self.state.lock().unwrap();
        if state.outcomes.insert(seq, outcome).is_some() {
            state.repeated.push(seq);
        }
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, timeout) = self
            .changed
            .wait_timeout_while(state, LONG, |state| !until(state))
            .unwrap();
        assert!(
            !timeout.timed_out(),
            "{} reports, {} wake-ups",
            state.outcomes.len(),
            state.capacity
        );
    }

    /// Polls the sink after each wake-up meanwhile, as the relay does.
    fn wait_with(&self, sink: &mut impl Sink, until: impl Fn(&State) -> bool) {
        loop {
            let before = self.capacity_calls();
            sink.poll();
            self.wait(|state| until(state) || state.capacity > before);
            if until(&self.state.lock().unwrap()) {
                return;
            }
        }
    }

    fn wait_for(&self, count: u64) {
        self.wait(|state| state.outcomes.len() as u64 == count);
    }

    fn wait_polling(&self, sink: &mut impl Sink, count: u64) {
        self.wait_with(sink, |state| state.outcomes.len() as u64 == count);
    }

    fn capacity_calls(&self) -> u64 {
        self.state.lock().unwrap().capacity
    }

    /// Exactly the numbers below `accepted`, each once.
    fn assert_complete(&self, accepted: u64) {
        let state = self.state.lock().unwrap();
        assert_eq!(state.repeated, Vec::<u64>::new(), "reported twice");
        let missing: Vec<u64> = (0..accepted)
            .filter(|seq| !state.outcomes.contains_key(seq))
            .collect();
        assert_eq!(missing, Vec::<u64>::new(), "never reported");
        assert_eq!(state.outcomes.len() as u64, accepted);
    }

    fn failures(&self) -> Vec<DeliveryError> {
        let state = self.state.lock().unwrap();
        state
            .outcomes
            .values()
            .filter_map(|outcome| outcome.clone().err())
            .collect()
    }
}

impl Deliveries for Reports {
    fn delivered(&self, seq: u64) {
        self.report(seq, Ok(()));
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        self.report(seq, Err(error));
    }

    fn capacity(&self) {
        self.state.lock().unwrap().capacity += 1;
        self.changed.notify_all();
    }
}

fn cluster(topics: &[(&str, i32)]) -> Cluster {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    for (topic, partitions) in topics {
        cluster.create_topic(topic, *partitions, 1).expect(topic);
    }
    cluster
}

fn config(cluster: &Cluster, options: KafkaOptions, more: &[(&str, &str)]) -> KafkaConfig {
    let properties = [("bootstrap.servers", cluster.bootstrap_servers())]
        .into_iter()
        .chain(more.iter().map(|(k, v)| (*k, (*v).to_owned())))
        .map(|(k, v)| (k.to_owned(), v))
        .collect();
    KafkaConfig::new(properties, options).expect("valid")
}

/// The sink that `create` makes, and what it reports.
fn reporting(
    create: impl FnOnce(Arc<dyn Deliveries>) -> Result<KafkaSink, KafkaError>,
) -> (KafkaSink, Arc<Reports>) {
    let reports = Arc::new(Reports::default());
    let sink = create(Arc::clone(&reports) as _).expect("a sink");
    (sink, reports)
}

fn sink_with(
    cluster: &Cluster,
    options: KafkaOptions,
    more: &[(&str, &str)],
) -> (KafkaSink, Arc<Reports>) {
    let factory = KafkaSinkFactory::new(config(cluster, options, more));
    reporting(|reports| factory.of_one_producer().create(reports))
}

/// A sink with these properties of librdkafka.
fn sink_of(cluster: &Cluster, properties: &[(&str, &str)]) -> (KafkaSink, Arc<Reports>) {
    sink_with(cluster, KafkaOptions::default(), properties)
}

fn sink(cluster: &Cluster) -> (KafkaSink, Arc<Reports>) {
    sink_of(cluster, &[])
}

fn record<'a>(topic: &'a str, key: &'a [u8], value: &'a [u8]) -> Record<'a> {
    Record {
        topic,
        partition: None,
        timestamp_ms: None,
        key: Some(key),
        value: Some(value),
        headers: &[],
    }
}

impl KafkaSink {
    /// librdkafka's client of the first producer.
    fn client(&self) -> &BaseProducer<Context> {
        &self.producers.all[0].client
    }
}

/// Offers the record again after each wake-up, as the relay does.
fn send(sink: &mut impl Sink, reports: &Reports, record: &Record<'_>, seq: u64) {
    loop {
        let before = reports.capacity_calls();
        match sink.try_send(record, seq) {
            Ok(()) => return,
            Err(SendError::Full) => reports.wait(|state| state.capacity > before),
            Err(SendError::Refused(error)) => panic!("{error}"),
        }
    }
}

/// Sends a record whose value is its sequence number.
fn send_seq(sink: &mut impl Sink, reports: &Reports, topic: &str, key: &[u8], seq: u64) {
    let value = seq.to_string();
    send(sink, reports, &record(topic, key, value.as_bytes()), seq);
}

/// Sends record 0 and waits for its report.
fn send_first(sink: &mut impl Sink, reports: &Reports) {
    send_seq(sink, reports, "t", b"k", 0);
    reports.wait_for(1);
}

/// Closes the sink, after which the numbers below `accepted` are delivered, each once.
fn close_delivered(sink: impl Sink, reports: &Reports, accepted: u64) {
    sink.close(LONG);
    reports.assert_complete(accepted);
    assert_eq!(reports.failures(), []);
}

fn answers_after(cluster: &Cluster, time: Duration) {
    cluster.broker_round_trip_time(1, time).expect("a broker");
}

/// Everything in these topics: reads until `count` records have come.
fn read(cluster: &Cluster, topics: &[&str], count: usize) -> Vec<TailedRecord> {
    let mut tail = Tail::open(&cluster.bootstrap_servers(), topics, LONG).expect("a tail");
    let start = Instant::now();
    let mut records = Vec::new();
    while records.len() < count {
        records.extend(tail.next(Duration::from_secs(1)).expect("readable"));
        assert!(start.elapsed() < LONG, "{} of {count}", records.len());
    }
    records
}

fn seq_in(record: &TailedRecord) -> u64 {
    let value = record.value.as_deref().expect("a value");
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// The window is given back a moment after the report.
fn assert_nothing_in_flight(sink: &KafkaSink) {
    let start = Instant::now();
    while sink.in_flight() > 0 {
        assert!(start.elapsed() < LONG, "{} in flight", sink.in_flight());
        thread::yield_now();
    }
}

fn assert_refused(sink: &mut KafkaSink, record: &Record<'_>, about: &str) {
    assert_refused_as(Disposition::Fatal, sink, record, about);
}

fn assert_refused_as(
    disposition: Disposition,
    sink: &mut impl Sink,
    record: &Record<'_>,
    about: &str,
) {
    match sink.try_send(record, 0) {
        Err(SendError::Refused(error)) => {
            assert_eq!(error.disposition, disposition, "{error}");
            assert!(error.reason.contains(about), "{error} without {about:?}");
        }
        other => panic!("{record:?}: {other:?}"),
    }
}

/// The producer has failed for good, and takes no further record.
fn assert_ended(sink: &mut impl Sink) {
    let record = record("t", b"k", b"v");
    assert_refused_as(
        Disposition::Retryable,
        sink,
        &record,
        "a new one must be made",
    );
}

/// Austin Appleby's MurmurHash2 as `org.apache.kafka.common.utils.Utils.murmur2` has it.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().unwrap()).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    for (i, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * i);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// Where Java's client puts a key.
fn partition_of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions
}
