//! Order and reports while a sink changes its mode.

use std::thread::JoinHandle;

use rdkafka::producer::Producer as _;
use walrelay_sink::BatchingMode;

use super::order::{log, logs};
use super::several::key_of;
use super::*;
use crate::in_flight::partition_gate::Requests;

fn dual_mode(cluster: &Cluster, more: &[(&str, &str)]) -> (KafkaSink, Arc<Reports>) {
    let mut factory = KafkaSinkFactory::new(config_of(cluster, more));
    reporting(|reports| factory.create(None, reports))
}

fn other(mode: BatchingMode) -> BatchingMode {
    match mode {
        BatchingMode::Latency => BatchingMode::Throughput,
        BatchingMode::Throughput => BatchingMode::Latency,
    }
}

/// Fails if a partition does not wait for its records in flight: the other producer's connection is
/// idle, so its records would be written first.
#[test]
fn changing_mode_keeps_order_and_repeats_nothing() {
    let cluster = cluster(&[("t", 1)]);
    answers_after(&cluster, Duration::from_millis(5));
    let (mut sink, reports) = dual_mode(&cluster, &[]);
    let (mut seq, mut mode) = (0, BatchingMode::Throughput);
    for burst in [1, 40, 7, 300].into_iter().cycle().take(24) {
        mode = other(mode);
        sink.set_mode(mode);
        for _ in 0..burst {
            send_seq(&mut sink, &reports, "t", b"k", seq);
            seq += 1;
        }
        sink.poll();
    }
    close_delivered(sink, &reports, seq);
    assert_eq!(log(&cluster, "t"), (0..seq).collect::<Vec<_>>());
}

/// A partition changes its producer when all its records in flight are reported; then the sender is
/// woken.
#[test]
fn a_partition_changes_its_producer_when_all_of_it_is_reported() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let (mut sink, reports) = dual_mode(&cluster, &[("bootstrap.servers", &proxy.servers())]);
    send_first(&mut sink, &reports);
    wait_in_flight(&sink, 0);
    proxy.withhold(PRODUCE);
    for seq in 1..4 {
        send_seq(&mut sink, &reports, "t", b"k", seq);
    }
    assert!(sink.hold_queues.is_empty(), "it is open");
    sink.set_mode(BatchingMode::Throughput);
    let before = reports.capacity_calls();
    send_seq(&mut sink, &reports, "t", b"k", 4);
    assert_eq!(sink.hold_queues.seqs(), [4], "held back");
    assert_eq!(sink.in_flight(), 4);
    proxy.release(PRODUCE);
    reports.wait(|state| state.capacity > before);
    // Woken when all before it was reported; the window is given back after a report.
    wait_in_flight(&sink, 1);
    proxy.withhold(PRODUCE);
    sink.poll();
    assert!(sink.hold_queues.is_empty());
    // The client's events count too until they are taken.
    eventually("the record alone", || in_second(&sink) == 1);
    proxy.release(PRODUCE);
    reports.wait_for(5);
    // Back and forth without a record in between: nothing to wait for.
    sink.set_mode(BatchingMode::Latency);
    sink.set_mode(BatchingMode::Throughput);
    send_seq(&mut sink, &reports, "t", b"k", 5);
    assert_eq!(sink.producers.mode, BatchingMode::Throughput);
    close_complete(sink, &reports, 6);
    assert_eq!(log(&cluster, "t"), [0, 1, 2, 3, 4, 5]);
}

/// Records in flight in the producer for throughput.
fn in_second(sink: &KafkaSink) -> i32 {
    let second = sink.producers.all.get(1);
    second.map_or(0, |second| second.client.in_flight_count())
}

/// A change of producer, in either direction, while a partition's broker does not answer: records
/// of the other partitions do not wait.
#[test]
fn a_partition_that_is_down_holds_up_no_change() {
    const PARTITIONS: u64 = 8;
    for first in [BatchingMode::Latency, BatchingMode::Throughput] {
        let cluster = MockCluster::new(2).expect("a mock cluster");
        cluster.create_topic("t", PARTITIONS as i32, 1).expect("t");
        for partition in 0..PARTITIONS as i32 {
            let leader = if partition == 0 { 2 } else { 1 };
            cluster
                .partition_leader("t", partition, Some(leader))
                .unwrap();
        }
        let keys: Vec<String> = (0..PARTITIONS as u32)
            .map(|partition| key_of(partition, PARTITIONS as u32))
            .collect();
        let (mut sink, reports) = dual_mode(&cluster, &[]);
        sink.set_mode(first);
        let mut seq = 0;
        let mut to = |sink: &mut KafkaSink, partition: u64| {
            let key = keys[partition as usize].as_bytes();
            send_seq(sink, &reports, "t", key, seq);
            seq += 1;
        };
        for partition in 0..PARTITIONS {
            to(&mut sink, partition);
        }
        reports.wait_polling(&mut sink, PARTITIONS);
        wait_in_flight(&sink, 0);
        cluster.broker_round_trip_time(2, HOUR).unwrap();
        for _ in 0..10 {
            to(&mut sink, 0);
        }
        let (mut delivered, mut mode) = (PARTITIONS, first);
        for round in 0..4 {
            mode = other(mode);
            sink.set_mode(mode);
            for partition in 0..PARTITIONS {
                to(&mut sink, partition);
            }
            delivered += PARTITIONS - 1;
            // The broker that is down would answer after an hour.
            reports.wait_polling(&mut sink, delivered);
            if round == 0 {
                assert_eq!(sink.hold_queues.seqs(), [18], "in the other producer");
            }
        }
        wait_in_flight(&sink, 14);
        Box::new(sink).close(Duration::ZERO);
        reports.assert_complete(seq);
        assert_eq!(reports.failures().len(), 14, "given up, and said so");
        cluster.broker_round_trip_time(2, Duration::ZERO).unwrap();
        let mut logs = logs::<{ PARTITIONS as usize }>(&cluster, "t").into_iter();
        let down = logs.next().expect("the first");
        assert!(down.is_sorted(), "{down:?}");
        for log in logs {
            assert_eq!(log.len(), 5, "{log:?}");
            assert!(log.is_sorted(), "{log:?}");
        }
    }
}

#[test]
fn a_failure_in_either_mode_ends_both() {
    for broken in [BatchingMode::Latency, BatchingMode::Throughput] {
        let cluster = cluster(&[("t", 1)]);
        let (mut sink, reports) = dual_mode(&cluster, &[]);
        sink.set_mode(broken);
        send_first(&mut sink, &reports);
        wait_in_flight(&sink, 0);
        answers_after(&cluster, HOUR);
        for seq in 1..10 {
            send_seq(&mut sink, &reports, "t", b"k", seq);
        }
        let at = usize::from(broken == BatchingMode::Throughput);
        ffi::inject_fatal_error(&sink.producers.all[at].client);
        sink.set_mode(other(broken));
        reports.wait_for(10);
        // The other producer does not continue, although nothing is in flight any more.
        assert_ended(&mut sink);
        close_complete(sink, &reports, 10);
        assert_eq!(reports.failures().len(), 9);
    }
}

#[test]
fn the_second_producer_is_closed_when_it_is_not_used_and_created_again() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = dual_mode(&cluster, &[]);
    sink.producers.keep_unused = Duration::ZERO;
    for seq in 0..6 {
        sink.set_mode(BatchingMode::Throughput);
        send_seq(&mut sink, &reports, "t", b"k", 2 * seq);
        sink.set_mode(BatchingMode::Latency);
        send_seq(&mut sink, &reports, "t", b"k", 2 * seq + 1);
        assert_eq!(sink.producers.all.len(), 2, "kept for a while");
        // It is closed when its records in flight are reported.
        reports.wait_polling(&mut sink, 2 * seq + 2);
        let start = Instant::now();
        loop {
            sink.poll();
            let closing = &sink.producers.closing;
            if closing.last().is_some_and(JoinHandle::is_finished) && sink.producers.all.len() == 1
            {
                break;
            }
            assert!(start.elapsed() < LONG, "still closing");
            thread::yield_now();
        }
    }
    close_complete(sink, &reports, 12);
    assert_eq!(log(&cluster, "t"), (0..12).collect::<Vec<_>>());
}

#[test]
fn with_a_configured_linger_there_is_one_mode() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = dual_mode(&cluster, &[("queue.buffering.max.ms", "3")]);
    send_seq(&mut sink, &reports, "t", b"k", 0);
    sink.set_mode(BatchingMode::Throughput);
    send_seq(&mut sink, &reports, "t", b"k", 1);
    assert_eq!(sink.producers.all.len(), 1);
    assert_eq!(sink.producers.mode, BatchingMode::Latency);
    close_complete(sink, &reports, 2);
}

/// Each producer opens partitions for itself, and queued records are sent in their order.
#[test]
fn keys_keep_their_order_through_modes_and_hold_queues() {
    const RECORDS: u64 = 6_000;
    const TOPICS: [&str; 3] = ["t", "u", "v"];
    const PARTITIONS: u32 = 12;
    let cluster = cluster(&TOPICS.map(|topic| (topic, PARTITIONS as i32)));
    answers_after(&cluster, Duration::from_millis(2));
    let mut random = random();
    let proxy = Proxy::start(&cluster);
    // While nothing is answered, no gate opens, so records are queued.
    proxy.withhold(PRODUCE);
    let (mut sink, reports) = dual_mode(&cluster, &[("bootstrap.servers", &proxy.servers())]);
    sink.producers.keep_unused = Duration::ZERO;
    let mut held = 0;
    for seq in 0..RECORDS {
        if seq == RECORDS / 60 {
            proxy.release(PRODUCE);
        }
        if random.u32(..500) == 0 {
            let modes = [BatchingMode::Latency, BatchingMode::Throughput];
            sink.set_mode(random.choice(modes).unwrap());
        }
        if random.u32(..50) == 0 {
            sink.poll();
        }
        let topic = random.choice(TOPICS).unwrap();
        let key = random.u64(..100).to_string();
        send_seq(&mut sink, &reports, topic, key.as_bytes(), seq);
        held += usize::from(!sink.hold_queues.is_empty());
    }
    close_delivered(sink, &reports, RECORDS);
    assert!(held > 0, "no record was ever queued");
    let mut last: HashMap<(String, Vec<u8>), u64> = HashMap::new();
    for record in read(&cluster, &TOPICS, RECORDS as usize) {
        let (key, seq) = (record.key.clone().expect("a key"), seq_in(&record));
        assert_eq!(record.partition as u32, partition_of(&key, PARTITIONS));
        if let Some(earlier) = last.insert((record.topic.clone(), key), seq) {
            assert!(earlier < seq, "{seq} came after {earlier}");
        }
    }
}

/// Records whose timestamps open no gate would be sent one by one, each after a linger. The mock
/// brokers set their own timestamps, so this test calls `set_stale` itself.
#[test]
fn the_producer_for_throughput_is_replaced_if_gates_do_not_open() {
    const RECORDS: u64 = 3_000;
    for stale_at in [100, 500, 1_000] {
        let cluster = cluster(&[("t", 2)]);
        let (mut sink, reports) = dual_mode(&cluster, &[]);
        for seq in 0..RECORDS {
            if seq > 200 {
                // The relay sets the mode repeatedly during a backlog.
                sink.set_mode(BatchingMode::Throughput);
            }
            if seq == stale_at {
                sink.shared.set_stale();
            }
            let key = (seq % 10).to_string();
            send_seq(&mut sink, &reports, "t", key.as_bytes(), seq);
        }
        let requests = |sink: &KafkaSink| {
            let producers = sink.producers.all.iter();
            producers
                .map(|producer| producer.id.requests)
                .collect::<Vec<_>>()
        };
        assert_eq!(requests(&sink).last(), Some(&Requests::One), "{stale_at}");
        assert_eq!(sink.producers.mode, BatchingMode::Throughput, "{stale_at}");
        // The replaced producer is closed when its records are reported.
        let start = Instant::now();
        while requests(&sink) != [Requests::Several, Requests::One] {
            assert!(start.elapsed() < LONG, "{stale_at}: {:?}", requests(&sink));
            sink.poll();
            thread::yield_now();
        }
        close_delivered(sink, &reports, RECORDS);
        for seqs in logs::<2>(&cluster, "t") {
            assert!(seqs.is_sorted(), "{seqs:?}");
        }
    }
}
