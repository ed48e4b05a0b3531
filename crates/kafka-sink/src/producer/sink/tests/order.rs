//! Records reported as delivered are in the partition's log, and in order, whatever brokers do.
//!
//! The mock brokers do not check sequence numbers, as a real broker does not for a partition
//! without state of the producer.

use super::*;

/// Returns the sequence numbers in the only partition of the topic, in order.
pub(super) fn log(cluster: &Cluster, topic: &str) -> Vec<u64> {
    let [log] = logs(cluster, topic);
    log
}

/// Returns the sequence numbers in each partition of the topic, in order.
pub(super) fn logs<const PARTITIONS: usize>(
    cluster: &Cluster,
    topic: &str,
) -> [Vec<u64>; PARTITIONS] {
    let mut logs = std::array::from_fn(|_| Vec::new());
    for record in read(cluster, &[topic], count_of(cluster, topic)) {
        let log: &mut Vec<u64> = &mut logs[record.partition as usize];
        log.push(seq_in(&record));
    }
    logs
}

/// Returns a sink whose requests contain one record each, so that there are many.
fn sink_of_single_records(
    cluster: &Cluster,
    proxy: &Proxy,
    max_in_flight: &str,
) -> (KafkaSink, Arc<Reports>) {
    let more = [
        ("bootstrap.servers", &*proxy.servers()),
        ("batch.num.messages", "1"),
    ];
    let config = config_of(cluster, &more);
    let mut client = config.client_config();
    client.set("max.in.flight", max_in_flight);
    reporting(|reports| KafkaSink::new(&config, &client, None, None, reports, Arc::default()))
}

/// Retriable errors after which the record is not in the log.
const PASSING: [RDKafkaRespErr; 2] = [
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
];

fn slow_cluster(error: RDKafkaRespErr) -> Cluster {
    let cluster = cluster(&[("t", 1)]);
    answers_after(&cluster, Duration::from_millis(20));
    cluster.request_errors(RDKafkaApiKey::Produce, &[error]);
    cluster
}

/// Tried by hand: with five requests in flight and without `is_acknowledged` this fails, because
/// librdkafka infers from record 1 that record 0 was delivered, and record 0 is not in the log.
/// With five requests and `is_acknowledged` it fails, too: no record is lost, but record 0 is
/// reported as failed after later records were appended.
#[test]
fn a_request_that_is_repeated_is_neither_lost_nor_overtaken() {
    const RECORDS: u64 = 40;
    for error in PASSING {
        let cluster = slow_cluster(error);
        let (mut sink, reports) = sink_of(&cluster, &[("batch.num.messages", "1")]);
        for seq in 0..RECORDS {
            send_seq(&mut sink, &reports, "t", b"k", seq);
        }
        // The error passes.
        close_delivered(sink, &reports, RECORDS);
        let all: Vec<u64> = (0..RECORDS).collect();
        assert_eq!(log(&cluster, "t"), all, "{error:?}");
    }
}

/// Tests `is_acknowledged` without the first safeguard, a single request in flight.
#[test]
fn what_librdkafka_only_infers_to_be_delivered_is_reported_as_failed() {
    const RECORDS: u64 = 40;
    for error in PASSING {
        let cluster = slow_cluster(error);
        let proxy = Proxy::start(&cluster);
        proxy.withhold(PRODUCE);
        let (mut sink, reports) = sink_of_single_records(&cluster, &proxy, "5");
        sink.assume_topic("t");
        for seq in 0..RECORDS {
            let value = seq.to_string();
            let record = record("t", b"k", value.as_bytes());
            match sink.try_send(&record, seq) {
                Ok(()) => {}
                other => panic!("all are queued before the first response: {other:?}"),
            }
        }
        proxy.wait_unanswered(PRODUCE, 5);
        proxy.release(PRODUCE);
        reports.wait_for(RECORDS);
        assert_ended(&mut sink);
        close_complete(sink, &reports, RECORDS);
        let failures = reports.failures();
        assert!(
            failures.iter().any(|e| e.reason.contains("inference")),
            "nothing was inferred: {failures:?}"
        );
        assert!(failures.iter().all(|e| e.disposition == Retryable));
        let log: HashSet<u64> = log(&cluster, "t").into_iter().collect();
        let state = reports.state();
        for seq in 0..RECORDS {
            let delivered = state.is_delivered(seq);
            assert!(!delivered || log.contains(&seq), "{seq} is lost: {error:?}");
        }
    }
}

/// Tried by hand: without `enable.gapless.guarantee` this fails, because librdkafka takes a new
/// epoch and sends the records from 100 on, which were not in the refused request.
///
/// The refused request contains a hundred records. Behind a request of fewer than five, librdkafka
/// prepares the next one, which is then sent; see the residual risk in docs/adr/0007.
#[test]
fn nothing_follows_a_record_that_was_refused_for_good() {
    use RDKafkaRespErr as E;
    const RECORDS: u64 = 5_000;
    let size = E::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    let invalid = E::RD_KAFKA_RESP_ERR_INVALID_RECORD;
    let denied = E::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    for (error, words, disposition) in [
        // Later producers make smaller batches.
        (size, "max.message.bytes", Retryable),
        (invalid, "validates records", Fatal),
        (denied, "WRITE and DESCRIBE", Retryable),
    ] {
        let cluster = slow_cluster(error);
        let proxy = Proxy::start(&cluster);
        // Many records are queued when the first request is made.
        proxy.withhold(INIT_PRODUCER_ID);
        let more = [
            ("bootstrap.servers", &*proxy.servers()),
            ("batch.num.messages", "100"),
        ];
        let (mut sink, reports) = sink_of(&cluster, &more);
        sink.assume_topic("t");
        let mut accepted = 0;
        while accepted < RECORDS {
            if accepted == RECORDS / 5 {
                proxy.release(INIT_PRODUCER_ID);
            }
            let value = accepted.to_string();
            match sink.try_send(&record("t", b"k", value.as_bytes()), accepted) {
                Ok(()) => accepted += 1,
                Err(SendError::Refused(refusal)) => {
                    assert_eq!(refusal.disposition, Retryable, "{refusal}");
                    break;
                }
                Err(SendError::Full) => panic!("the window is large"),
            }
        }
        // All are reported before the sink is closed.
        reports.wait_for(accepted);
        assert_ended(&mut sink);
        close_complete(sink, &reports, accepted);
        assert_eq!(
            log(&cluster, "t"),
            Vec::<u64>::new(),
            "{error:?} of {accepted} records"
        );
        assert!(accepted >= RECORDS / 5, "only {accepted} were queued");
        let state = reports.state();
        let first = state.outcomes[&0].as_ref().expect_err("it was refused");
        assert_eq!(first.disposition, disposition, "{first}");
        assert!(first.reason.contains(words), "{first}");
        for seq in 0..accepted {
            let error = state.outcomes[&seq].as_ref().expect_err("none may follow");
            assert!(
                error.disposition == Retryable || error.reason == first.reason,
                "{seq}: {error}"
            );
        }
    }
}

/// Each record is reported once, none is lost, and the order of each key holds. A record that a
/// mock broker appended and did not acknowledge is in the log twice.
#[test]
fn order_is_kept_through_brokers_that_fail_at_random() {
    use RDKafkaRespErr as E;
    const RECORDS: u64 = 10_000;
    let temporary = [
        E::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        E::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
        E::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        E::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        E::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        E::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E::RD_KAFKA_RESP_ERR__TRANSPORT,
    ];
    let mut random = random();
    let cluster = cluster(&[("t", 5)]);
    let options = KafkaOptions {
        max_in_flight_records: 1_000,
        ..KafkaOptions::default()
    };
    let more = [("retry.backoff.ms", "1"), ("retry.backoff.max.ms", "5")];
    let (mut sink, reports) = sink_with(&cluster, options, &more);
    for seq in 0..RECORDS {
        if random.u16(..1_000) == 0 {
            let errors: Vec<_> = (0..random.usize(1..4))
                .map(|_| random.choice(temporary).unwrap())
                .collect();
            cluster.request_errors(RDKafkaApiKey::Produce, &errors);
        }
        if seq == RECORDS / 2 {
            cluster.broker_down(1).unwrap();
            cluster.broker_up(1).unwrap();
        }
        let key = random.u8(..40).to_string();
        send_seq(&mut sink, &reports, "t", key.as_bytes(), seq);
    }
    cluster.clear_request_errors(RDKafkaApiKey::Produce);
    // All errors were temporary.
    close_delivered(sink, &reports, RECORDS);

    let mut tail = Tail::open(&cluster.bootstrap_servers(), &["t"], LONG).expect("a tail");
    let mut last: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut seen = HashSet::new();
    while seen.len() < RECORDS as usize {
        // What was reported as delivered is there.
        let record = next(&mut tail);
        let seq = seq_in(&record);
        if seen.insert(seq)
            && let Some(earlier) = last.insert(record.key.expect("a key"), seq)
        {
            assert!(earlier < seq, "{seq} came after {earlier}");
        }
    }
}

/// Panics at the report of one of the records.
struct Panicking {
    reports: Arc<Reports>,
    at: u64,
}

impl Deliveries for Panicking {
    fn delivered(&self, seq: u64) {
        assert_ne!(seq, self.at, "on purpose");
        self.reports.delivered(seq);
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        self.reports.failed(seq, error);
    }

    fn capacity(&self) {
        self.reports.capacity();
    }
}

/// The process that the next test starts: its `Deliveries` panics.
#[test]
fn process_whose_listener_panics() {
    if std::env::var_os("WALRELAY_KAFKA_SINK_PANICS").is_none() {
        return; // not a test by itself; see below
    }
    let cluster = cluster(&[("t", 1)]);
    let reports = Arc::new(Reports::default());
    let deliveries = Arc::new(Panicking {
        reports: Arc::clone(&reports),
        at: 3,
    });
    let mut sink = KafkaSinkFactory::new(config_of(&cluster, &[]))
        .with_one_producer()
        .create(None, deliveries)
        .unwrap();
    for seq in 0..40 {
        send(&mut sink, &reports, &record("t", b"k", b"v"), seq);
    }
    reports.wait_for(40);
}

/// Only the poll thread serves reports: without it a relay would wait for ever. A process that ends
/// is restarted.
#[test]
fn a_panic_in_the_poll_thread_ends_the_process() {
    use std::os::unix::process::ExitStatusExt as _;
    const SIGABRT: i32 = 6;
    let name = "producer::sink::tests::order::process_whose_listener_panics";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("WALRELAY_KAFKA_SINK_PANICS", "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(SIGABRT), "{stderr}");
    assert!(stderr.contains("kafka-poll"), "{stderr}");
}
