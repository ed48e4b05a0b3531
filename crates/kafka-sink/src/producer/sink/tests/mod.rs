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
mod modes;
mod order;
mod several;
mod start;

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

fn sink_with(
    cluster: &Cluster,
    options: KafkaOptions,
    more: &[(&str, &str)],
) -> (KafkaSink, Arc<Reports>) {
    let reports = Arc::new(Reports::default());
    let deliveries: Arc<dyn Deliveries> = Arc::clone(&reports) as _;
    let sink = KafkaSinkFactory::new(config(cluster, options, more))
        .of_one_producer()
        .create(deliveries)
        .expect("a sink");
    (sink, reports)
}

fn sink(cluster: &Cluster) -> (KafkaSink, Arc<Reports>) {
    sink_with(cluster, KafkaOptions::default(), &[])
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

/// `timestamp-zero` of docs/MIGRATING-FROM-DEBEZIUM.md: to librdkafka 0 is "now".
#[test]
fn the_timestamp_zero_is_sent_as_one() {
    let at = |timestamp_ms| Record {
        timestamp_ms,
        ..record("t", b"k", b"v")
    };
    for (given, sent) in [(Some(0), 1), (Some(1), 1), (Some(2), 2), (None, 0)] {
        assert_eq!(check_record(&at(given)).ok(), Some(sent), "{given:?}");
    }
}

#[test]
fn full_is_followed_by_capacity_under_small_bounds() {
    let cluster = cluster(&[("t", 3)]);
    for (max_in_flight_records, max_in_flight_bytes) in [(1, 1 << 20), (3, 1 << 20), (1_000, 700)] {
        let options = KafkaOptions {
            max_in_flight_records,
            max_in_flight_bytes,
            ..KafkaOptions::default()
        };
        let (mut sink, reports) = sink_with(&cluster, options, &[("linger.ms", "0")]);
        let headers = [Header {
            name: "id",
            value: Some(b"1"),
        }];
        for seq in 0..500_u64 {
            let value = vec![b'v'; (seq % 97) as usize];
            let record = Record {
                headers: &headers[..(seq % 2) as usize],
                ..record("t", b"k", &value)
            };
            send(&mut sink, &reports, &record, seq);
            assert!(sink.in_flight() <= max_in_flight_records);
        }
        assert!(reports.capacity_calls() > 0, "it was never full");
        sink.close(LONG);
        reports.assert_complete(500);
        assert_eq!(reports.failures(), []);
    }
}

#[test]
fn a_record_larger_than_the_window_passes_when_nothing_is_in_flight() {
    let cluster = cluster(&[("t", 1)]);
    let options = KafkaOptions {
        max_in_flight_records: 10,
        max_in_flight_bytes: 1_000,
        ..KafkaOptions::default()
    };
    let (mut sink, reports) = sink_with(&cluster, options, &[]);
    let giant = vec![b'x'; 100_000];
    for seq in 0..6 {
        let value: &[u8] = if seq % 2 == 0 { b"small" } else { &giant };
        send(&mut sink, &reports, &record("t", b"k", value), seq);
    }
    sink.close(LONG);
    reports.assert_complete(6);
    assert_eq!(reports.failures(), []);
}

#[test]
fn close_without_grace_reports_all_as_failed_while_the_broker_is_down() {
    let cluster = cluster(&[("t", 3)]);
    let (mut sink, reports) = sink(&cluster);
    // Connected first, so that records are queued for a partition and not only for a topic.
    send(&mut sink, &reports, &record("t", b"k", b"0"), 0);
    reports.wait(|state| state.outcomes.len() == 1);
    cluster.broker_down(1).unwrap();
    for seq in 1..1_000 {
        let topic = if seq % 2 == 0 { "t" } else { "never-seen" };
        let key = seq.to_string();
        send(
            &mut sink,
            &reports,
            &record(topic, key.as_bytes(), b"v"),
            seq,
        );
    }
    let start = Instant::now();
    sink.close(Duration::ZERO);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    reports.assert_complete(1_000);
    let failures = reports.failures();
    assert_eq!(failures.len(), 999);
    assert!(
        failures
            .iter()
            .all(|error| error.disposition == Disposition::Retryable)
    );
}

#[test]
fn close_gives_up_after_the_grace_and_a_drop_at_once() {
    let cluster = cluster(&[("t", 3)]);
    // Answers come later than anybody waits.
    cluster
        .broker_round_trip_time(1, Duration::from_secs(20))
        .unwrap();
    for closes in [true, false] {
        let (mut sink, reports) = sink(&cluster);
        for seq in 0..100 {
            send(&mut sink, &reports, &record("t", b"k", b"v"), seq);
        }
        let start = Instant::now();
        if closes {
            sink.close(Duration::from_millis(300));
            assert!(start.elapsed() >= Duration::from_millis(300));
        } else {
            drop(sink);
        }
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        reports.assert_complete(100);
        assert_eq!(reports.failures().len(), 100);
    }
}

#[test]
fn requests_in_flight_are_given_up_too() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    send(&mut sink, &reports, &record("t", b"k", b"0"), 0);
    reports.wait(|state| state.outcomes.len() == 1);
    cluster
        .broker_round_trip_time(1, Duration::from_secs(20))
        .unwrap();
    for seq in 1..50 {
        send(&mut sink, &reports, &record("t", b"k", b"v"), seq);
    }
    assert!(!ffi::flush(sink.client(), Duration::from_millis(200)));
    sink.close(Duration::ZERO);
    reports.assert_complete(50);
    assert!(
        reports
            .failures()
            .iter()
            .any(|error| error.reason.contains("flight")),
        "{:?}",
        reports.failures()
    );
}

#[test]
fn a_fatal_error_fails_what_is_in_flight_and_refuses_the_rest() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    send(&mut sink, &reports, &record("t", b"k", b"0"), 0);
    reports.wait(|state| state.outcomes.len() == 1);
    cluster
        .broker_round_trip_time(1, Duration::from_secs(60))
        .unwrap();
    for seq in 1..50 {
        let topic = if seq % 2 == 0 { "t" } else { "never-seen" };
        send(&mut sink, &reports, &record(topic, b"k", b"v"), seq);
    }
    assert!(!ffi::flush(sink.client(), Duration::from_millis(200)));
    ffi::inject_fatal_error(sink.client());
    // Without closing anything.
    reports.wait(|state| state.outcomes.len() == 50);
    assert_refused_as(
        Disposition::Retryable,
        &mut sink,
        &record("t", b"k", b"v"),
        "a new one must be made",
    );
    sink.close(LONG);
    reports.assert_complete(50);
}

#[test]
fn a_broker_that_lost_the_producers_state_ends_it_with_all_reported() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER; 8],
    );
    let mut accepted = 0;
    for seq in 0..100 {
        match sink.try_send(&record("t", b"k", b"v"), seq) {
            Ok(()) => accepted += 1,
            Err(SendError::Refused(error)) => {
                assert_eq!(error.disposition, Disposition::Retryable);
                break;
            }
            Err(SendError::Full) => panic!("the window is large"),
        }
    }
    // Whether librdkafka finds a way on is its affair; that each is reported is ours.
    reports.wait(|state| state.outcomes.len() as u64 == accepted);
    sink.close(LONG);
    reports.assert_complete(accepted);
}

#[test]
fn the_brokers_refusals_are_sorted_by_what_can_be_done() {
    use RDKafkaRespErr as E;
    for (error, disposition) in [
        (E::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, Disposition::Fatal),
        (E::RD_KAFKA_RESP_ERR_POLICY_VIOLATION, Disposition::Fatal),
        (E::RD_KAFKA_RESP_ERR_INVALID_RECORD, Disposition::Fatal),
        (
            E::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            Disposition::Retryable,
        ),
    ] {
        let cluster = cluster(&[("t", 1)]);
        let (mut sink, reports) = sink(&cluster);
        cluster.request_errors(RDKafkaApiKey::Produce, &[error]);
        send(&mut sink, &reports, &record("t", b"k", b"v"), 0);
        reports.wait(|state| state.outcomes.len() == 1);
        let failures = reports.failures();
        assert_eq!(failures.len(), 1, "{error:?}");
        assert_eq!(failures[0].disposition, disposition, "{}", failures[0]);
        assert_eq!(&*failures[0].topic, "t");
        sink.close(LONG);
    }
}

#[test]
fn a_topic_that_is_not_there_fails_after_its_propagation_time() {
    let cluster = cluster(&[]);
    cluster
        .topic_error(
            "gone",
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        )
        .unwrap();
    let (mut sink, reports) = sink_with(
        &cluster,
        KafkaOptions::default(),
        &[("topic.metadata.propagation.max.ms", "100")],
    );
    send(&mut sink, &reports, &record("gone", b"k", b"v"), 0);
    reports.wait(|state| state.outcomes.len() == 1);
    let failures = reports.failures();
    assert_eq!(failures[0].disposition, Disposition::Retryable);
    assert!(
        failures[0].reason.contains("create the topic"),
        "{}",
        failures[0]
    );
}

#[test]
fn what_can_never_be_sent_is_refused_at_once() {
    let cluster = cluster(&[("t", 2)]);
    let (mut sink, reports) = sink(&cluster);
    for (topic, about) in [
        ("", "empty"),
        (".", "called"),
        ("..", "called"),
        ("a b", "' '"),
        (&"x".repeat(250), "250 bytes"),
    ] {
        assert_refused(&mut sink, &record(topic, b"k", b"v"), about);
    }
    let large = vec![0; 1_000_001];
    assert_refused(
        &mut sink,
        &record("t", b"k", &large),
        "message.max.bytes is 1000000",
    );
    let nul = [Header {
        name: "a\0b",
        value: None,
    }];
    let base = record("t", b"k", b"v");
    assert_refused(
        &mut sink,
        &Record {
            headers: &nul,
            ..base
        },
        "NUL",
    );
    let partition = |partition| Record { partition, ..base };
    assert_refused(&mut sink, &partition(Some(-1)), "no partition -1");
    let timestamp_ms = Some(-1);
    assert_refused(
        &mut sink,
        &Record {
            timestamp_ms,
            ..base
        },
        "1970",
    );
    // Known once the topic's metadata is here.
    send(&mut sink, &reports, &partition(Some(1)), 0);
    reports.wait(|state| state.outcomes.len() == 1);
    // The topic may be given more.
    assert_refused_as(
        Disposition::Retryable,
        &mut sink,
        &partition(Some(2)),
        "no partition 2",
    );
    assert_nothing_in_flight(&sink);
    sink.close(LONG);
    reports.assert_complete(1);
    assert_eq!(read(&cluster, &["t"], 1)[0].partition, 1);
}

#[test]
fn null_and_empty_are_told_apart_and_headers_keep_their_order() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    let headers = [
        ("id", Some(&b"42"[..])),
        ("empty", Some(&b""[..])),
        ("null", None),
        ("id", Some(&b"again"[..])),
        ("", Some(&b"\xff\0\x01"[..])),
    ]
    .map(|(name, value)| Header { name, value });
    for (seq, (key, value)) in [(None, None), (Some(&b""[..]), Some(&b""[..]))]
        .into_iter()
        .enumerate()
    {
        let record = Record {
            topic: "t",
            partition: None,
            timestamp_ms: Some(1_700_000_000_123),
            key,
            value,
            headers: &headers,
        };
        send(&mut sink, &reports, &record, seq as u64);
    }
    sink.close(LONG);
    reports.assert_complete(2);
    let records = read(&cluster, &["t"], 2);
    assert_eq!((&records[0].key, &records[0].value), (&None, &None));
    assert_eq!(records[1].key.as_deref(), Some(&b""[..]));
    assert_eq!(records[1].value.as_deref(), Some(&b""[..]));
    for record in &records {
        assert_eq!(record.timestamp_ms, Some(1_700_000_000_123));
        let shown: Vec<(&str, Option<&[u8]>)> = record
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect();
        assert_eq!(shown, headers.map(|h| (h.name, h.value)));
        assert!(!format!("{record:?}").contains("42"));
    }
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

#[test]
fn keys_go_where_javas_client_puts_them() {
    // From Kafka's own UtilsTest.testMurmur2.
    let published: [(&str, i32); 6] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        (
            "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            -58_897_971,
        ),
        ("abc", 479_470_107),
    ];
    for (key, hash) in published {
        assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
    }
    let generated = (0..300).map(|i| format!("order-{i}"));
    let keys: Vec<String> = published
        .iter()
        .map(|(key, _)| (*key).to_owned())
        .chain(generated)
        .chain([String::new()])
        .collect();
    let cluster = cluster(&[("t", 7)]);
    let (mut sink, reports) = sink(&cluster);
    for (seq, key) in keys.iter().enumerate() {
        let record = record("t", key.as_bytes(), key.as_bytes());
        send(&mut sink, &reports, &record, seq as u64);
    }
    sink.close(LONG);
    for record in read(&cluster, &["t"], keys.len()) {
        let key = record.key.expect("a key");
        assert_eq!(record.partition as u32, partition_of(&key, 7), "{key:?}");
    }
}

#[test]
fn a_thousand_topics() {
    let cluster = cluster(&[]);
    let (mut sink, reports) = sink(&cluster);
    let topics: Vec<String> = (0..1_000).map(|i| format!("outbox.event.{i}")).collect();
    let mut seq = 0;
    for round in 0..5 {
        for topic in &topics {
            let value = round.to_string();
            send(
                &mut sink,
                &reports,
                &record(topic, b"k", value.as_bytes()),
                seq,
            );
            seq += 1;
        }
    }
    sink.close(LONG);
    reports.assert_complete(seq);
    assert_eq!(reports.failures(), []);
    let in_one = read(&cluster, &[&topics[500]], 5);
    assert_eq!(
        in_one.iter().map(seq_in).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4]
    );
}

fn creating(partitions: i32) -> KafkaOptions {
    KafkaOptions {
        topics: Some(TopicCreation {
            partitions,
            replication_factor: 1,
            properties: BTreeMap::new(),
        }),
        ..KafkaOptions::default()
    }
}

/// The mock cluster never answers a request to create a topic.
#[test]
fn with_creation_on_existing_topics_pass_and_a_missing_one_is_back_pressure() {
    let cluster = cluster(&[("there", 2)]);
    let (mut sink, reports) = sink_with(&cluster, creating(2), &[]);
    send(&mut sink, &reports, &record("there", b"k", b"v"), 0);
    reports.wait(|state| state.outcomes.len() == 1);
    let missing = record("missing", b"k", b"v");
    assert_eq!(sink.try_send(&missing, 1), Err(SendError::Full));
    assert_eq!(sink.try_send(&missing, 1), Err(SendError::Full));
    // Others go on meanwhile, and closing does not wait for the answer.
    send(&mut sink, &reports, &record("there", b"k", b"v"), 1);
    let start = Instant::now();
    sink.close(LONG);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    reports.assert_complete(2);
    assert_eq!(reports.failures(), []);
}

#[test]
fn closing_does_not_wait_for_a_topic_that_nobody_creates() {
    let cluster = cluster(&[]);
    cluster.broker_down(1).unwrap();
    let (mut sink, _) = sink_with(&cluster, creating(1), &[]);
    assert_eq!(
        sink.try_send(&record("t", b"k", b"v"), 0),
        Err(SendError::Full)
    );
    let start = Instant::now();
    sink.close(Duration::ZERO);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_probe_tells_a_cluster_from_a_closed_port() {
    let cluster = cluster(&[("a", 1), ("b", 1)]);
    let found = probe(&config(&cluster, KafkaOptions::default(), &[]), LONG).expect("a cluster");
    assert_eq!(found.brokers.len(), 1);
    assert_eq!(found.topics, 2);

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap().to_string();
    drop(closed);
    let properties = BTreeMap::from([("bootstrap.servers".to_owned(), address.clone())]);
    let nobody = KafkaConfig::new(properties, KafkaOptions::default()).unwrap();
    match probe(&nobody, Duration::from_secs(1)) {
        Err(KafkaError::Unreachable { servers, detail }) => {
            assert_eq!(servers, address);
            assert!(detail.contains("refused"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    // TLS where plain text is spoken: the broker hangs up.
    let tls = config(
        &cluster,
        KafkaOptions::default(),
        &[("security.protocol", "ssl")],
    );
    let error = probe(&tls, Duration::from_secs(5)).expect_err("no TLS there");
    assert!(matches!(error, KafkaError::Tls { .. }), "{error:?}");
    assert_eq!(error.disposition(), Disposition::Configuration);
}

#[test]
fn a_certificate_that_is_not_there_is_a_configuration_error() {
    let cluster = cluster(&[]);
    let config = config(
        &cluster,
        KafkaOptions::default(),
        &[
            ("security.protocol", "ssl"),
            ("ssl.ca.location", "/nonexistent/ca.pem"),
        ],
    );
    let reports: Arc<dyn Deliveries> = Arc::new(Reports::default());
    let error = KafkaSinkFactory::new(config)
        .of_one_producer()
        .create(reports)
        .expect_err("no such file");
    assert!(matches!(error, KafkaError::Create { .. }), "{error:?}");
    assert_eq!(
        KafkaSinkFactory::disposition(&error),
        Disposition::Configuration
    );
}

#[test]
fn the_embedded_broker_takes_records_and_gives_them_back() {
    let broker = crate::embedded::EmbeddedBroker::start(&[("demo", 3)]).expect("a broker");
    let properties = BTreeMap::from([(
        "bootstrap.servers".to_owned(),
        broker.bootstrap_servers().to_owned(),
    )]);
    let config = KafkaConfig::new(properties, KafkaOptions::default()).unwrap();
    let reports = Arc::new(Reports::default());
    let deliveries: Arc<dyn Deliveries> = Arc::clone(&reports) as _;
    let mut sink = KafkaSinkFactory::new(config)
        .of_one_producer()
        .create(deliveries)
        .unwrap();
    let mut tail = Tail::open(broker.bootstrap_servers(), &["demo"], LONG).expect("a tail");
    for seq in 0..10_u64 {
        let value = seq.to_string();
        send(
            &mut sink,
            &reports,
            &record("demo", b"k", value.as_bytes()),
            seq,
        );
        let shown = tail.next(LONG).unwrap().expect("it arrives");
        assert_eq!(seq_in(&shown), seq);
        assert_eq!(shown.offset as u64, seq);
    }
    sink.close(LONG);
    // Topics that are not there are told at once.
    assert!(Tail::open("127.0.0.1:1", &["demo"], Duration::from_millis(200)).is_err());
}

/// Prints what a record costs; asserts nothing about time.
#[test]
fn what_a_record_costs() {
    const RECORDS: u64 = 100_000;
    let all_headers = ["id", "type", "traceparent"].map(|name| Header {
        name,
        value: Some(b"0123456789abcdef0123456789abcdef"),
    });
    let payload = [b'x'; 300];
    let options = KafkaOptions {
        max_in_flight_records: RECORDS,
        max_in_flight_bytes: 1 << 30,
        ..KafkaOptions::default()
    };
    for (linger, headers) in [("0", 0), ("1", 0), ("1", 3), ("5", 0)] {
        let cluster = cluster(&[("t", 8)]);
        let (mut sink, reports) = sink_with(&cluster, options.clone(), &[("linger.ms", linger)]);
        let keys: Vec<String> = (0..1_000).map(|i| i.to_string()).collect();
        let key = |seq: u64| keys[(seq % 1_000) as usize].as_bytes();
        let record = |seq| Record {
            headers: &all_headers[..headers],
            ..record("t", key(seq), &payload)
        };
        let mut latencies = Vec::new();
        for seq in 0..200 {
            let start = Instant::now();
            send(&mut sink, &reports, &record(seq), seq);
            reports.wait(|state| state.outcomes.len() as u64 > seq);
            latencies.push(start.elapsed());
        }
        latencies.sort();
        let start = Instant::now();
        for seq in 200..RECORDS {
            send(&mut sink, &reports, &record(seq), seq);
        }
        let sent = start.elapsed();
        sink.close(LONG);
        println!(
            "linger {linger} ms, {headers} headers: try_send {} ns a record, {} k/s to the last \
             report, one alone takes {:?} (median)",
            sent.as_nanos() / u128::from(RECORDS),
            u128::from(RECORDS) / start.elapsed().as_millis().max(1),
            latencies[latencies.len() / 2],
        );
        reports.assert_complete(RECORDS);
    }
}
