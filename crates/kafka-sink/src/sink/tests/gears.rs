//! Order and reports while a sink changes gear.

use walrelay_sink::Favour;

use super::order::{log, logs};
use super::*;
use crate::gears::{Bulk, GearedSink, GearedSinkFactory};

fn geared(cluster: &Cluster, more: &[(&str, &str)]) -> (GearedSink, Arc<Reports>) {
    let reports = Arc::new(Reports::default());
    let deliveries: Arc<dyn Deliveries> = Arc::clone(&reports) as _;
    let sink = GearedSinkFactory::new(config(cluster, KafkaOptions::default(), more))
        .create(deliveries)
        .expect("a sink");
    (sink, reports)
}

fn send_seq(sink: &mut GearedSink, reports: &Reports, seq: u64) {
    let value = seq.to_string();
    send(sink, reports, &record("t", b"k", value.as_bytes()), seq);
}

/// Would fail if a change did not wait for what is in flight: the other producer's connection has
/// nothing before it in the queue.
#[test]
fn changing_gear_keeps_order_and_repeats_nothing() {
    let cluster = cluster(&[("t", 1)]);
    cluster
        .broker_round_trip_time(1, Duration::from_millis(5))
        .unwrap();
    let (mut sink, reports) = geared(&cluster, &[]);
    let mut seq = 0;
    for (round, burst) in (0..24).zip([1, 40, 7, 300].into_iter().cycle()) {
        sink.favour(if round % 2 == 0 {
            Favour::Latency
        } else {
            Favour::Throughput
        });
        for _ in 0..burst {
            send_seq(&mut sink, &reports, seq);
            seq += 1;
        }
        sink.nudge();
    }
    sink.close(LONG);
    reports.assert_complete(seq);
    assert_eq!(reports.failures(), vec![]);
    assert_eq!(log(&cluster, "t"), (0..seq).collect::<Vec<_>>());
}

#[test]
fn a_change_waits_until_all_is_reported_and_is_woken_then() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = geared(&cluster, &[]);
    send_seq(&mut sink, &reports, 0);
    reports.wait(|state| state.outcomes.len() == 1);
    cluster
        .broker_round_trip_time(1, Duration::from_secs(1))
        .unwrap();
    for seq in 1..4 {
        send_seq(&mut sink, &reports, seq);
    }
    sink.favour(Favour::Throughput);
    let before = reports.capacity_calls();
    assert_eq!(
        sink.try_send(&record("t", b"k", b"4"), 4),
        Err(SendError::Full)
    );
    assert_eq!(sink.gear, Favour::Latency);
    reports.wait(|state| state.capacity > before);
    assert_eq!(sink.prompt.in_flight(), 0, "woken when all was reported");
    cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
    send_seq(&mut sink, &reports, 4);
    assert_eq!(sink.gear, Favour::Throughput);
    // And back, before anything was changed over: nothing to wait for.
    sink.favour(Favour::Latency);
    sink.favour(Favour::Throughput);
    send_seq(&mut sink, &reports, 5);
    sink.close(LONG);
    reports.assert_complete(6);
    assert_eq!(log(&cluster, "t"), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_failure_in_either_gear_ends_both() {
    for broken in [Favour::Latency, Favour::Throughput] {
        let cluster = cluster(&[("t", 1)]);
        let (mut sink, reports) = geared(&cluster, &[]);
        sink.favour(broken);
        send_seq(&mut sink, &reports, 0);
        reports.wait(|state| state.outcomes.len() == 1);
        cluster
            .broker_round_trip_time(1, Duration::from_secs(60))
            .unwrap();
        for seq in 1..10 {
            send_seq(&mut sink, &reports, seq);
        }
        match (&sink.bulk, broken) {
            (Bulk::Up(bulk), Favour::Throughput) => ffi::inject_fatal_error(&bulk.producer),
            (_, Favour::Latency) => ffi::inject_fatal_error(&sink.prompt.producer),
            (_, Favour::Throughput) => panic!("the second producer was not made"),
        }
        sink.favour(match broken {
            Favour::Latency => Favour::Throughput,
            Favour::Throughput => Favour::Latency,
        });
        reports.wait(|state| state.outcomes.len() == 10);
        // Also where there is nothing in flight any more, that is no reason to go on elsewhere.
        assert_refused_as(
            Disposition::Retryable,
            &mut sink,
            &record("t", b"k", b"v"),
            "a new one must be made",
        );
        sink.close(LONG);
        reports.assert_complete(10);
        assert_eq!(reports.failures().len(), 9);
    }
}

#[test]
fn the_second_producer_goes_when_it_is_not_used_and_comes_again() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = geared(&cluster, &[]);
    sink.kept = Duration::ZERO;
    for seq in 0..6 {
        sink.favour(Favour::Throughput);
        send_seq(&mut sink, &reports, 2 * seq);
        sink.favour(Favour::Latency);
        send_seq(&mut sink, &reports, 2 * seq + 1);
        assert!(matches!(sink.bulk, Bulk::Up(_)), "kept for a while");
        sink.nudge();
        let Bulk::Closing(thread) = &sink.bulk else {
            panic!("given up when it is not used");
        };
        let start = Instant::now();
        while !thread.is_finished() {
            assert!(start.elapsed() < LONG, "still closing");
            thread::yield_now();
        }
    }
    sink.close(LONG);
    reports.assert_complete(12);
    assert_eq!(log(&cluster, "t"), (0..12).collect::<Vec<_>>());
}

#[test]
fn a_linger_of_ones_own_is_the_only_gear() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = geared(&cluster, &[("queue.buffering.max.ms", "3")]);
    send_seq(&mut sink, &reports, 0);
    sink.favour(Favour::Throughput);
    send_seq(&mut sink, &reports, 1);
    assert!(matches!(sink.bulk, Bulk::None));
    assert_eq!(sink.gear, Favour::Latency);
    sink.close(LONG);
    reports.assert_complete(2);
}

/// Each producer opens partitions for itself, and what stands before them goes in its turn.
#[test]
fn keys_keep_their_order_through_gears_and_lines() {
    const RECORDS: u64 = 6_000;
    const TOPICS: [&str; 3] = ["t", "u", "v"];
    const PARTITIONS: u32 = 12;
    let cluster = cluster(&TOPICS.map(|topic| (topic, PARTITIONS as i32)));
    cluster
        .broker_round_trip_time(1, Duration::from_millis(2))
        .unwrap();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut sink, reports) = geared(&cluster, &[]);
    sink.kept = Duration::ZERO;
    let mut stood = 0;
    for seq in 0..RECORDS {
        if random.u32(..500) == 0 {
            sink.favour(
                *random
                    .choice(&[Favour::Latency, Favour::Throughput])
                    .unwrap(),
            );
        }
        if random.u32(..50) == 0 {
            sink.nudge();
        }
        let topic = *random.choice(&TOPICS).unwrap();
        let (key, value) = (random.u64(..100).to_string(), seq.to_string());
        let record = record(topic, key.as_bytes(), value.as_bytes());
        send(&mut sink, &reports, &record, seq);
        stood += usize::from(!sink.current_mut().lines.is_empty());
    }
    sink.close(LONG);
    reports.assert_complete(RECORDS);
    assert_eq!(reports.failures(), []);
    assert!(stood > 0, "nobody ever stood in a line");
    let mut last: HashMap<(String, Vec<u8>), u64> = HashMap::new();
    for record in read(&cluster, &TOPICS, RECORDS as usize) {
        let (key, seq) = (record.key.clone().expect("a key"), seq_in(&record));
        assert_eq!(record.partition as u32, partition_of(&key, PARTITIONS));
        if let Some(earlier) = last.insert((record.topic.clone(), key), seq) {
            assert!(earlier < seq, "{seq} came after {earlier}");
        }
    }
}

/// Records whose timestamps open no gate would go one by one, each after a linger. The mock brokers give
/// timestamps of their own, so it is said by hand here that one was too old.
#[test]
fn the_gear_for_throughput_goes_without_gates_that_do_not_open() {
    const RECORDS: u64 = 3_000;
    for stale_at in [100, 500, 1_000] {
        let cluster = cluster(&[("t", 2)]);
        let (mut sink, reports) = geared(&cluster, &[]);
        for seq in 0..RECORDS {
            if seq > 200 {
                // As while there is a backlog.
                sink.favour(Favour::Throughput);
            }
            if seq == stale_at {
                sink.current_mut().producer.context().set_stale();
            }
            let (key, value) = ((seq % 10).to_string(), seq.to_string());
            let record = record("t", key.as_bytes(), value.as_bytes());
            send(&mut sink, &reports, &record, seq);
        }
        // The producer that had gates goes in its own time.
        let start = Instant::now();
        let mut seq = RECORDS;
        while sink.gear != Favour::Throughput {
            assert!(start.elapsed() < LONG, "{stale_at}: still in the other");
            sink.favour(Favour::Throughput);
            let value = seq.to_string();
            send(
                &mut sink,
                &reports,
                &record("t", b"1", value.as_bytes()),
                seq,
            );
            seq += 1;
        }
        let Bulk::Up(bulk) = &sink.bulk else {
            panic!("{stale_at}: in a gear without a producer");
        };
        assert_eq!(bulk.requests, Requests::One, "{stale_at}");
        sink.close(LONG);
        reports.assert_complete(seq);
        assert_eq!(reports.failures(), []);
        for seqs in logs::<2>(&cluster, "t") {
            assert!(seqs.is_sorted(), "{seqs:?}");
        }
    }
}
