//! Several requests in flight, with gates.
//!
//! The mock brokers do not check sequence numbers, as a real broker does not for a partition
//! without state of the producer. `tests/faults` tests with real brokers that have such state.

use super::order::{log, logs};
use super::*;
use crate::in_flight::partition_gate::{Keyless, Requests};

const KEYS: u64 = 64;

fn sink_of_several(cluster: &Cluster, more: &[(&str, &str)]) -> (KafkaSink, Arc<Reports>) {
    let config = config_of(cluster, more);
    reporting(|reports| KafkaSink::gated(&config, None, reports, Arc::default()))
}

/// Sends records over this number of keys, with the sequence number as value, and waits for the
/// reports.
fn send_all(sink: &mut KafkaSink, reports: &Reports, seqs: std::ops::Range<u64>, keys: u64) {
    let end = seqs.end;
    for seq in seqs {
        send_seq(sink, reports, "t", (seq % keys).to_string().as_bytes(), seq);
    }
    reports.wait_polling(sink, end);
}

/// Returns the sequence numbers of held records, sorted.
fn queued(sink: &KafkaSink) -> Vec<u64> {
    let mut queued = sink.hold_queues.seqs();
    queued.sort_unstable();
    queued
}

/// Returns a key that hashes to this partition.
pub(super) fn key_of(partition: u32, partitions: u32) -> String {
    let found = (0..10_000)
        .map(|n: u32| n.to_string())
        .find(|key| partition_of(key.as_bytes(), partitions) == partition);
    found.expect("one in ten thousand")
}

/// One producer sends one request after the other, with several requests five are in flight.
#[test]
fn requests_to_several_partitions_do_not_wait_for_each_other() {
    for several in [false, true] {
        let cluster = cluster(&[("t", 64)]);
        let proxy = Proxy::start(&cluster);
        let (mut sink, reports) = if several {
            sink_of_several(&cluster, &[("bootstrap.servers", &proxy.servers())])
        } else {
            sink_through(&cluster, &proxy)
        };
        let keys: Vec<String> = (0..64).map(|partition| key_of(partition, 64)).collect();
        let to_all = |sink: &mut KafkaSink, first: u64| {
            for (seq, key) in (first..).zip(&keys) {
                send(sink, &reports, &record("t", key.as_bytes(), b"v"), seq);
            }
        };
        // The first round opens all partitions.
        to_all(&mut sink, 0);
        reports.wait_polling(&mut sink, 64);
        wait_in_flight(&sink, 0);
        if several {
            proxy.withhold(PRODUCE);
            to_all(&mut sink, 64);
            proxy.wait_unanswered(PRODUCE, 5);
            proxy.release(PRODUCE);
        } else {
            answers_after(&cluster, Duration::from_millis(20));
            to_all(&mut sink, 64);
        }
        close_delivered(sink, &reports, 128);
        let most = if several { 5 } else { 1 };
        assert_eq!(proxy.most_unanswered(PRODUCE), most, "several: {several}");
    }
}

#[test]
fn a_record_is_alone_on_its_way_to_a_partition_that_is_not_open() {
    let cluster = cluster(&[("t", 2), ("u", 1)]);
    let proxy = Proxy::start(&cluster);
    let (mut sink, reports) = sink_of_several(&cluster, &[("bootstrap.servers", &proxy.servers())]);
    // First make the partitions of both topics known.
    for (seq, topic) in ["t", "u"].into_iter().enumerate() {
        send(&mut sink, &reports, &record(topic, b"0", b"0"), seq as u64);
    }
    reports.wait_with(&mut sink, |state| state.outcomes.len() == 2);
    let open = partition_of(b"0", 2);
    let (known, new) = (key_of(open, 2), key_of(1 - open, 2));
    // A gate opens a moment after the report.
    for (seq, topic) in ["t", "u"].into_iter().enumerate() {
        for seq in [2 + seq as u64, 4 + seq as u64] {
            send_seq(&mut sink, &reports, topic, known.as_bytes(), seq);
        }
    }
    reports.wait_with(&mut sink, |state| state.outcomes.len() == 6);
    proxy.withhold(PRODUCE);
    let new = |seq: u64| (new.clone(), seq.to_string());
    let offer = |sink: &mut KafkaSink, topic, (key, value): (String, String), seq| {
        let record = record(topic, key.as_bytes(), value.as_bytes());
        assert_eq!(sink.try_send(&record, seq), Ok(()));
    };
    for seq in 6..9 {
        offer(&mut sink, "t", new(seq), seq);
    }
    assert_eq!(queued(&sink), [7, 8]);
    for (topic, seqs) in [("t", 9..12), ("u", 12..15)] {
        for seq in seqs {
            offer(&mut sink, topic, (known.clone(), seq.to_string()), seq);
        }
    }
    assert_eq!(queued(&sink), [7, 8], "the others are open");
    proxy.release(PRODUCE);
    reports.wait(|state| state.outcomes.contains_key(&6));
    // The partition may be open by now, but no record passes its queue.
    offer(&mut sink, "t", new(15), 15);
    reports.wait_with(&mut sink, |state| state.outcomes.len() == 16);
    assert!(sink.hold_queues.is_empty());
    for seq in 16..19 {
        offer(&mut sink, "t", new(seq), seq);
    }
    assert!(sink.hold_queues.is_empty(), "now it is open as well");
    close_delivered(sink, &reports, 19);
    let logs: [_; 2] = logs(&cluster, "t");
    assert_eq!(logs[1 - open as usize], [6, 7, 8, 15, 16, 17, 18]);
}

/// Records held back for a partition that does not answer hold up no other partition.
#[test]
fn a_partition_that_does_not_answer_holds_up_no_other() {
    let cluster = MockCluster::new(2).expect("a mock cluster");
    cluster.create_topic("t", 2, 1).expect("a topic");
    for partition in 0..2 {
        cluster
            .partition_leader("t", partition, Some(1 + partition))
            .unwrap();
    }
    let (mut sink, reports) = sink_of_several(&cluster, &[]);
    cluster.broker_round_trip_time(2, HOUR).unwrap();
    let keys = [key_of(0, 2), key_of(1, 2)];
    for seq in 0..200 {
        let key = keys[seq as usize % 2].as_bytes();
        send_seq(&mut sink, &reports, "t", key, seq);
    }
    reports.wait_with(&mut sink, |state| state.outcomes.len() == 100);
    let odd: Vec<u64> = (3..200).step_by(2).collect();
    assert_eq!(queued(&sink), odd);
    wait_in_flight(&sink, 100);
    Box::new(sink).close(Duration::ZERO);
    reports.assert_complete(200);
    assert_eq!(reports.failures().len(), 100, "given up, and said so");
    cluster.broker_round_trip_time(2, Duration::ZERO).unwrap();
    let [answered, _] = logs(&cluster, "t");
    assert_eq!(answered.len(), 100);
}

#[test]
fn closing_sends_what_is_held_back() {
    let cluster = cluster(&[("t", 3)]);
    let proxy = Proxy::start(&cluster);
    proxy.withhold(PRODUCE);
    let more = [
        ("bootstrap.servers", &*proxy.servers()),
        ("linger.ms", "200"),
    ];
    let (mut sink, reports) = sink_of_several(&cluster, &more);
    sink.assume_topic("t");
    for seq in 0..60 {
        let (key, value) = ((seq % 9).to_string(), seq.to_string());
        let record = record("t", key.as_bytes(), value.as_bytes());
        assert_eq!(sink.try_send(&record, seq), Ok(()));
    }
    assert!(queued(&sink).len() > 50);
    proxy.release(PRODUCE);
    close_delivered(sink, &reports, 60);
    for seqs in logs::<3>(&cluster, "t") {
        assert!(seqs.is_sorted(), "{seqs:?}");
    }
}

/// Fails without the gate: later requests are appended, and the first one is inferred to be
/// delivered or is appended after them.
#[test]
fn a_first_request_that_is_repeated_is_neither_lost_nor_overtaken() {
    use RDKafkaRespErr as E;
    for error in [
        E::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        E::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        E::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
    ] {
        let cluster = cluster(&[("t", 1)]);
        answers_after(&cluster, Duration::from_millis(20));
        cluster.request_errors(RDKafkaApiKey::Produce, &[error, error]);
        let (mut sink, reports) = sink_of_several(&cluster, &[("batch.num.messages", "1")]);
        send_all(&mut sink, &reports, 0..40, 1);
        // The error passes.
        close_delivered(sink, &reports, 40);
        assert_eq!(log(&cluster, "t"), (0..40).collect::<Vec<_>>(), "{error:?}");
    }
}

#[test]
fn nothing_follows_a_first_record_that_is_refused() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    proxy.withhold(PRODUCE);
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD],
    );
    let (mut sink, reports) = sink_of_several(&cluster, &[("bootstrap.servers", &proxy.servers())]);
    let first = record("t", b"k", b"0");
    assert_eq!(sink.try_send(&first, 0), Ok(()));
    for seq in 1..5 {
        let next = record("t", b"k", b"1");
        assert_eq!(sink.try_send(&next, seq), Ok(()), "queued behind that");
    }
    proxy.release(PRODUCE);
    // The held records are reported, too, before the sink is closed: the relay waits for them.
    reports.wait_with(&mut sink, |state| state.outcomes.len() == 5);
    assert_ended(&mut sink);
    close_complete(sink, &reports, 5);
    let failures = reports.failures();
    assert_eq!(failures.len(), 5);
    let fatal = failures.iter().filter(|error| error.disposition == Fatal);
    assert_eq!(fatal.count(), 1);
    assert_eq!(log(&cluster, "t"), Vec::<u64>::new());
}

/// Each wait ends: the record that a held one waits for is reported, and the report wakes the
/// sender.
#[test]
fn the_sender_is_woken_for_held_records() {
    const RECORDS: u64 = 3_000;
    let cluster = cluster(&[("t", 24)]);
    answers_after(&cluster, Duration::from_millis(2));
    let mut random = random();
    let (mut sink, reports) = sink_of_several(&cluster, &[]);
    for seq in 0..RECORDS {
        let (key, value) = (random.u64(..KEYS).to_string(), seq.to_string());
        let mut record = record("t", key.as_bytes(), value.as_bytes());
        match random.u8(..10) {
            0 => record.key = None,
            1 => record.partition = Some(random.i32(0..24)),
            _ => {}
        }
        send(&mut sink, &reports, &record, seq);
    }
    close_delivered(sink, &reports, RECORDS);
    let mut last: HashMap<Vec<u8>, u64> = HashMap::new();
    for record in read(&cluster, &["t"], RECORDS as usize) {
        let Some(key) = record.key.clone() else {
            continue;
        };
        // Skip records that named another partition than their key's.
        if partition_of(&key, 24) != record.partition as u32 {
            continue;
        }
        let seq = seq_in(&record);
        if let Some(earlier) = last.insert(key, seq) {
            assert!(earlier < seq, "{seq} came after {earlier}");
        }
    }
}

#[test]
fn keys_have_the_same_partition_as_with_one_request() {
    let cluster = cluster(&[("t", 7)]);
    let (mut sink, reports) = sink_of_several(&cluster, &[]);
    send_all(&mut sink, &reports, 0..300, 300);
    Box::new(sink).close(LONG);
    for record in read(&cluster, &["t"], 300) {
        let key = record.key.expect("a key");
        assert_eq!(record.partition as u32, partition_of(&key, 7), "{key:?}");
    }
}

/// By property: one partition for a long time, a new one for each batch, or hashed like all others.
#[test]
fn records_without_a_key_are_spread_as_configured() {
    for (property, value, spread) in [
        ("sticky.partitioning.linger.ms", "900000", 1..=1),
        ("sticky.partitioning.linger.ms", "0", 4..=8),
        ("partitioner", "murmur2", 1..=1),
    ] {
        let cluster = cluster(&[("t", 8)]);
        let (mut sink, reports) = sink_of_several(&cluster, &[(property, value)]);
        for seq in 0..100 {
            let value = seq.to_string();
            let record = Record {
                key: None,
                ..record("t", b"", value.as_bytes())
            };
            send(&mut sink, &reports, &record, seq);
            // The first record gets its partition before stickiness applies.
            if seq == 0 {
                reports.wait_for(1);
            }
        }
        Box::new(sink).close(LONG);
        assert_eq!(reports.failures(), []);
        let partitions: HashSet<i32> = read(&cluster, &["t"], 100)
            .iter()
            .filter(|record| seq_in(record) > 0)
            .map(|record| record.partition)
            .collect();
        assert!(
            spread.contains(&partitions.len()),
            "{property}={value}: {partitions:?}"
        );
    }
}

#[test]
fn a_missing_partition_is_refused_and_holds_up_no_record() {
    let cluster = cluster(&[("t", 2)]);
    let (mut sink, reports) = sink_of_several(&cluster, &[]);
    send_all(&mut sink, &reports, 0..1, 1);
    // Until the gate has learnt of the report, it would hold back what follows.
    wait_in_flight(&sink, 0);
    for partition in [2, i32::MAX] {
        let nowhere = Record {
            partition: Some(partition),
            ..record("t", b"k", b"v")
        };
        assert_refused(Retryable, &mut sink, &nowhere, "has no partition");
    }
    send_all(&mut sink, &reports, 1..10, 1);
    close_complete(sink, &reports, 10);
}

#[test]
fn the_client_is_configured_for_gates() {
    let cluster = cluster(&[]);
    for (more, keyless) in [
        (&[][..], Keyless::Sticky(Duration::from_millis(10))),
        (&[("partitioner", "murmur2")], Keyless::Hashed),
        (
            &[("sticky.partitioning.linger.ms", "25")],
            Keyless::Sticky(Duration::from_millis(25)),
        ),
    ] {
        let config = config_of(&cluster, more);
        let (client, read) = KafkaConfig::for_gates(config.client_config(), Requests::Several);
        assert_eq!(read, keyless);
        let native = client.create_native_config().expect("valid");
        for (property, value) in [
            ("max.in.flight", "5"),
            ("sticky.partitioning.linger.ms", "0"),
            ("enable.idempotence", "true"),
            ("enable.gapless.guarantee", "true"),
            ("acks", "-1"),
        ] {
            assert_eq!(native.get(property).expect(property), value, "{property}");
        }
    }
}
