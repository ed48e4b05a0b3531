//! Tests against librdkafka's mock cluster, whose brokers fail on request.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::thread;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::BaseProducer;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use walrelay_sink::Disposition::{Fatal, Retryable};
use walrelay_sink::{Disposition, Header, SinkFactory};
use walrelay_sink_kind::topics::ReadRecord;
use walrelay_testkit::Reports;

use super::*;
use crate::consumer::Tail;
use crate::ffi;
use crate::producer::context::Context;
use crate::testing::proxy::{INIT_PRODUCER_ID, PRODUCE, Proxy};
use crate::testing::{
    Cluster, HOUR, LONG, cluster, config_at, config_of, count_of, ends, eventually, next, random,
    read,
};
use crate::{KafkaOptions, TopicCreation, probe};

mod brokers;
mod closing;
mod held_topics;
mod modes;
mod order;
mod records;
mod several;
mod start;
mod topics;
mod window;

/// Returns the sink of `create`, and its reports.
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
    sink_from(config_at(&cluster.bootstrap_servers(), options, more))
}

fn sink_from(config: KafkaConfig) -> (KafkaSink, Arc<Reports>) {
    let factory = KafkaSinkFactory::new(config);
    reporting(|reports| factory.with_one_producer().create(None, reports))
}

/// Returns a sink with these properties of librdkafka.
fn sink_of(cluster: &Cluster, properties: &[(&str, &str)]) -> (KafkaSink, Arc<Reports>) {
    sink_from(config_of(cluster, properties))
}

fn sink(cluster: &Cluster) -> (KafkaSink, Arc<Reports>) {
    sink_of(cluster, &[])
}

/// Returns a sink that reaches the cluster through the proxy.
fn sink_through(cluster: &Cluster, proxy: &Proxy) -> (KafkaSink, Arc<Reports>) {
    sink_of(cluster, &[("bootstrap.servers", &proxy.servers())])
}

fn record<'a>(topic: &'a str, key: &'a [u8], value: &'a [u8]) -> Record<'a> {
    Record {
        topic,
        key: Some(key),
        value: Some(value),
        ..Record::default()
    }
}

impl KafkaSink {
    /// Sends the held records of a topic once a broker has answered, as the relay does; gives up after a
    /// while if none answers.
    fn learn_topic(&mut self, name: &str) {
        let until = Instant::now() + Duration::from_secs(2);
        let at = self.topics.index[name];
        let held = |sink: &Self| sink.held.get(&at).is_some_and(HeldTopic::is_unanswered);
        while held(self) && Instant::now() < until {
            self.checks.wait(CLOSING_SLICE);
            self.poll();
        }
    }

    /// Sends records of a topic to librdkafka although no broker has answered.
    fn assume_topic(&mut self, name: &str) {
        let at = self.topic(name).expect("a name");
        self.topics.all[at].is_writable = true;
    }

    /// Returns librdkafka's client of the first producer.
    fn client(&self) -> &BaseProducer<Context> {
        &self.producers.all[0].client
    }
}

/// Offers the record again after each wake-up, as the relay does. Asks for a topic that is new.
fn send(sink: &mut KafkaSink, reports: &Reports, record: &Record<'_>, seq: u64) {
    let at = sink.topics.index.get(record.topic);
    let is_new =
        at.is_none_or(|at| !sink.topics.all[*at].is_writable && !sink.held.contains_key(at));
    loop {
        let before = reports.capacity_calls();
        match sink.try_send(record, seq) {
            Ok(()) if is_new => return sink.learn_topic(record.topic),
            Ok(()) => return,
            Err(SendError::Full) => reports.wait(|state| state.capacity > before),
            Err(SendError::Refused(error)) => panic!("{error}"),
        }
    }
}

/// Sends a record whose value is its sequence number.
fn send_seq(sink: &mut KafkaSink, reports: &Reports, topic: &str, key: &[u8], seq: u64) {
    let value = seq.to_string();
    send(sink, reports, &record(topic, key, value.as_bytes()), seq);
}

/// Sends record 0 and waits for its report.
fn send_first(sink: &mut KafkaSink, reports: &Reports) {
    send_seq(sink, reports, "t", b"k", 0);
    reports.wait_for(1);
}

/// Closes the sink and asserts that the numbers below `accepted` are reported, each once.
fn close_complete(sink: impl Sink, reports: &Reports, accepted: u64) {
    Box::new(sink).close(LONG);
    reports.assert_complete(accepted);
}

/// Closes the sink and asserts that the numbers below `accepted` are delivered, each once.
fn close_delivered(sink: impl Sink, reports: &Reports, accepted: u64) {
    close_complete(sink, reports, accepted);
    assert_eq!(reports.failures(), []);
}

/// Closes the sink, and fails if that waits for what never happens.
fn close_soon(sink: KafkaSink, grace: Duration) {
    ends("the sink is closed", move || Box::new(sink).close(grace));
}

fn answers_after(cluster: &Cluster, time: Duration) {
    cluster.broker_round_trip_time(1, time).expect("a broker");
}

fn seq_in(record: &ReadRecord) -> u64 {
    let value = record.value.as_deref().expect("a value");
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// Waits until this many records are in flight: the window is given back, and a gate opens, a
/// moment after the report.
#[track_caller]
fn wait_in_flight(sink: &KafkaSink, records: u64) {
    eventually("in flight", || sink.in_flight() == records);
}

fn assert_refused(
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

/// Asserts that the sink is broken and accepts no further record.
fn assert_ended(sink: &mut impl Sink) {
    let record = record("t", b"k", b"v");
    assert_refused(Retryable, sink, &record, "a new one must be created");
}

/// Computes Austin Appleby's MurmurHash2 as in `org.apache.kafka.common.utils.Utils.murmur2`.
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

/// Returns the partition that Java's client chooses for a key.
fn partition_of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions
}
