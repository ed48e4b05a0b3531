//! Topics that do not exist or may not be written to.

use std::sync::Mutex;

use walrelay_sink::Refusal;

use super::order::log;
use super::*;

const MISSING: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
const DENIED: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
const NONE: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;

/// Receives reports, and those of refused records in their order.
#[derive(Default)]
struct Refusals {
    reports: Arc<Reports>,
    refused: Mutex<Vec<(u64, Refusal)>>,
}

impl Refusals {
    fn seqs(&self) -> Vec<u64> {
        let refused = self.refused.lock().unwrap();
        refused.iter().map(|(seq, _)| *seq).collect()
    }
}

impl Deliveries for Refusals {
    fn delivered(&self, seq: u64) {
        self.reports.delivered(seq);
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        self.reports.failed(seq, error);
    }

    fn refused(&self, seq: u64, refusal: Refusal) {
        self.refused.lock().unwrap().push((seq, refusal));
        self.reports.capacity();
    }

    fn capacity(&self) {
        self.reports.capacity();
    }
}

/// Returns a sink of one producer or of two. `retry_for`: the patience, and two seconds at least.
fn sink_of_refusals(
    cluster: &Cluster,
    one: bool,
    retry_for: Duration,
    more: &[(&str, &str)],
) -> (KafkaSink, Arc<Refusals>) {
    let options = KafkaOptions {
        retry_for,
        ..KafkaOptions::default()
    };
    sink_with_bounds(cluster, one, options, more)
}

fn sink_with_bounds(
    cluster: &Cluster,
    one: bool,
    options: KafkaOptions,
    more: &[(&str, &str)],
) -> (KafkaSink, Arc<Refusals>) {
    let factory = KafkaSinkFactory::new(config_at(&cluster.bootstrap_servers(), options, more));
    let mut factory = if one {
        factory.with_one_producer()
    } else {
        factory
    };
    let refusals = Arc::<Refusals>::default();
    let sink = factory.create(None, Arc::clone(&refusals) as _);
    (sink.expect("a sink"), refusals)
}

fn seqs_in(cluster: &Cluster, topic: &str, count: usize) -> Vec<u64> {
    let records = read(cluster, &[topic], count);
    assert_eq!(count_of(cluster, topic), count, "nothing is repeated");
    records.iter().map(seq_in).collect()
}

/// Polls the sink after each wake-up until so many records are refused.
fn wait_refused(sink: &mut KafkaSink, refusals: &Refusals, count: usize) {
    refusals
        .reports
        .wait_with(sink, |_| refusals.seqs().len() >= count);
}

#[test]
fn a_topic_that_may_not_be_written_to_holds_back_its_own_records_until_it_may() {
    for (error, one) in [(MISSING, true), (MISSING, false), (DENIED, false)] {
        let cluster = cluster(&[("t", 4), ("gone", 1)]);
        cluster.topic_error("gone", error).unwrap();
        let (mut sink, refusals) = sink_of_refusals(&cluster, one, HOUR, &[]);
        let reports = &*refusals.reports;
        for seq in 0..300 {
            let topic = if seq % 3 == 0 { "gone" } else { "t" };
            send_seq(&mut sink, reports, topic, b"k", seq);
        }
        reports.wait_polling(&mut sink, 200);
        eventually("an obstacle", || {
            let obstacle = sink.waiting_for();
            obstacle.is_some_and(|obstacle| {
                obstacle.disposition == Disposition::Configuration
                    && obstacle.what.contains("topic \"gone\"")
                    && obstacle.what.contains("its records wait for it")
            })
        });
        let waiting = sink.retrying().expect("its records wait");
        assert_eq!(
            (waiting.keys, waiting.most, &*waiting.topic),
            (1, 1, "gone")
        );
        assert!(waiting.why.contains("topic \"gone\""), "{}", waiting.why);
        cluster.topic_error("gone", NONE).unwrap();
        reports.wait_polling(&mut sink, 300);
        assert_eq!(sink.retrying(), None);
        let (held, others): (Vec<u64>, Vec<u64>) = (0..300).partition(|seq| seq % 3 == 0);
        assert_eq!(seqs_in(&cluster, "gone", 100), held);
        assert_eq!(seqs_in(&cluster, "t", 200), others);
        assert_eq!(refusals.seqs(), Vec::<u64>::new());
        assert_eq!(sink.waiting_for(), None);
        close_delivered(sink, reports, 300);
    }
}

#[test]
fn after_the_patience_records_are_refused_in_order_and_the_sink_goes_on() {
    let cluster = cluster(&[("t", 1), ("gone", 1), ("dlq", 1)]);
    cluster.topic_error("gone", MISSING).unwrap();
    let (mut sink, refusals) = sink_of_refusals(&cluster, false, Duration::ZERO, &[]);
    let reports = &*refusals.reports;
    for seq in 0..30 {
        let topic = if seq % 3 == 0 { "gone" } else { "t" };
        send_seq(&mut sink, reports, topic, b"k", seq);
    }
    let started = Instant::now();
    wait_refused(&mut sink, &refusals, 10);
    let refused: Vec<u64> = (0..30).step_by(3).collect();
    assert_eq!(refusals.seqs(), refused);
    for (_, refusal) in &*refusals.refused.lock().unwrap() {
        assert_eq!(
            (&*refusal.topic, refusal.poison),
            ("gone", Poison::Rejected)
        );
        assert!(refusal.reason.contains("create the topic"), "{refusal:?}");
    }
    // A further record is refused at once, and is behind no record that is sent.
    send_seq(&mut sink, reports, "gone", b"k", 30);
    assert_eq!(refusals.seqs().last(), Some(&30));
    assert_eq!(sink.withdraw(1, true).len(), 0, "it was not refused");
    for seq in refused.into_iter().chain([30]) {
        let taken = sink.withdraw(seq, true);
        assert_eq!(taken.len(), 1);
        let (number, record) = &taken[0];
        assert_eq!(*number, seq);
        record.with(|record| {
            assert_eq!(
                (record.topic, record.value),
                ("gone", Some(seq.to_string().as_bytes()))
            );
        });
        send_seq(&mut sink, reports, "dlq", b"k", seq);
    }
    assert_eq!(sink.withdraw(0, false).len(), 0, "it is taken back");
    let patience = started.elapsed();
    // The cause lasts, so the next record is refused by the first answer.
    send_seq(&mut sink, reports, "gone", b"k", 31);
    let asked = Instant::now();
    wait_refused(&mut sink, &refusals, 12);
    assert!(asked.elapsed() < patience / 2, "{:?}", asked.elapsed());
    assert_eq!(sink.withdraw(31, false).len(), 1);
    // The topic exists, and there is no patience to wait for.
    cluster.topic_error("gone", NONE).unwrap();
    send_seq(&mut sink, reports, "gone", b"k", 31);
    reports.wait_polling(&mut sink, 32);
    assert_eq!(seqs_in(&cluster, "gone", 1), [31]);
    assert_eq!(seqs_in(&cluster, "dlq", 11).len(), 11);
    assert_eq!(seqs_in(&cluster, "t", 20).len(), 20);
    close_delivered(sink, reports, 32);
}

/// librdkafka refuses the first record of a topic that has just become known.
#[test]
fn a_refused_record_of_a_held_topic_is_taken_back_with_those_of_its_key() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, refusals) = sink_of_refusals(&cluster, false, Duration::ZERO, &[]);
    let reports = &*refusals.reports;
    let nowhere = Record {
        partition: Some(7),
        ..record("t", b"k", b"0")
    };
    assert_eq!(sink.try_send(&nowhere, 0), Ok(()));
    for (seq, key) in [(1, b"k"), (2, b"j"), (3, b"k")] {
        send_seq(&mut sink, reports, "t", key, seq);
    }
    wait_refused(&mut sink, &refusals, 1);
    assert!(reports.is(|state| state.outcomes.is_empty()), "all wait");
    let taken = sink.withdraw(0, true);
    let seqs: Vec<u64> = taken.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [0, 1, 3]);
    reports.wait_polling(&mut sink, 1);
    wait_in_flight(&sink, 0);
    Box::new(sink).close(LONG);
    assert_eq!(refusals.seqs(), [0]);
    assert_eq!(log(&cluster, "t"), [2]);
}

/// A topic that is deleted while none of its records is in flight, and exists again.
#[test]
fn a_deleted_topic_holds_back_its_records_until_it_exists_again() {
    for one in [true, false] {
        let cluster = cluster(&[("t", 1), ("u", 1)]);
        let more = [("topic.metadata.propagation.max.ms", "100")];
        let (mut sink, refusals) = sink_of_refusals(&cluster, one, HOUR, &more);
        let reports = &*refusals.reports;
        for (seq, topic) in ["t", "u"].into_iter().enumerate() {
            send_seq(&mut sink, reports, topic, b"k", seq as u64);
        }
        reports.wait_polling(&mut sink, 2);
        wait_in_flight(&sink, 0);
        cluster.topic_error("t", MISSING).unwrap();
        let at = sink.topics.index["t"];
        let mut seq = 2;
        // Until librdkafka has learnt it, records are sent.
        eventually("held", || {
            let _ = ffi::topic_states(sink.client(), LONG);
            send_seq(&mut sink, reports, "t", b"k", seq);
            seq += 1;
            let is_held = sink.held.contains_key(&at);
            is_held || {
                reports.wait_polling(&mut sink, seq);
                wait_in_flight(&sink, 0);
                false
            }
        });
        for topic in ["u", "t", "u"] {
            send_seq(&mut sink, reports, topic, b"k", seq);
            seq += 1;
        }
        reports.wait_with(&mut sink, |state| state.is_delivered(seq - 1));
        assert!(!reports.is(|state| state.is_delivered(seq - 2)));
        cluster.topic_error("t", NONE).unwrap();
        reports.wait_polling(&mut sink, seq);
        close_delivered(sink, reports, seq);
        let log = log(&cluster, "t");
        assert!(log.is_sorted(), "{log:?}");
        assert_eq!(log.len() as u64, seq - 3);
    }
}

/// librdkafka refuses a record of a hold queue while a record that names a missing partition holds the topic.
#[test]
fn a_topic_that_is_held_twice_keeps_its_records() {
    let cluster = cluster(&[("gone", 1)]);
    cluster.topic_error("gone", MISSING).unwrap();
    let (mut sink, refusals) = sink_of_refusals(&cluster, true, HOUR, &[]);
    let reports = &*refusals.reports;
    for seq in 0..10 {
        send_seq(&mut sink, reports, "gone", b"k", seq);
    }
    let at = sink.topics.index["gone"];
    assert!(sink.hold_topic(at, RDKafkaErrorCode::UnknownTopicOrPartition));
    cluster.topic_error("gone", NONE).unwrap();
    reports.wait_polling(&mut sink, 10);
    assert_eq!(seqs_in(&cluster, "gone", 10), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_record_is_as_large_as_librdkafka_says() {
    const MAX: usize = 2_000;
    let cluster = cluster(&[("t", 1)]);
    let more = [("message.max.bytes", "2000"), ("batch.size", "2000")];
    let (mut sink, refusals) = sink_of_refusals(&cluster, true, HOUR, &more);
    let value = [b'v'; MAX];
    let mut seq = 0;
    for lengths in [&[][..], &[0], &[63, 64], &[1, 200, 0, 127, 128]] {
        let name = "n".repeat(70);
        let headers = lengths.iter().map(|length| Header {
            name: &name[..length % 70],
            value: (*length > 0).then_some(&value[..*length]),
        });
        let headers: Vec<_> = headers.collect();
        let record = |length| Record {
            headers: &headers,
            ..record("t", b"k", &value[..length])
        };
        let largest = MAX - size_in_request(&record(0));
        send(&mut sink, &refusals.reports, &record(largest), seq);
        seq += 1;
        let too_large = record(largest + 1);
        assert_refused(Fatal, &mut sink, &too_large, "message.max.bytes is 2000");
        // librdkafka says the same.
        sink.message_max_size = usize::MAX;
        assert_refused(Fatal, &mut sink, &too_large, "message.max.bytes is 2000");
        sink.message_max_size = MAX;
    }
    refusals.reports.wait_polling(&mut sink, seq);
    close_delivered(sink, &refusals.reports, seq);
}

/// Waits until the sink knows that the topic of its held records is refused.
fn wait_held(sink: &mut KafkaSink) {
    eventually("the topic is refused", || {
        sink.poll();
        sink.held_obstacle().is_some()
    });
}

/// Records of a topic that is refused fill the window many times over, and others go on up to the bound.
#[test]
fn records_of_a_refused_topic_leave_the_window_up_to_a_bound() {
    const HELD: u64 = 100;
    for one in [true, false] {
        let cluster = cluster(&[("t", 3), ("gone", 3)]);
        cluster.topic_error("gone", MISSING).unwrap();
        let weight = weight_of_record(&record("gone", b"k", b"000"));
        let options = KafkaOptions {
            max_in_flight_records: 8,
            max_retrying_bytes: HELD * weight,
            retry_for: HOUR,
            ..KafkaOptions::default()
        };
        let (mut sink, refusals) = sink_with_bounds(&cluster, one, options, &[]);
        let reports = &*refusals.reports;
        let key = |seq: u64| [b'a' + (seq % 5) as u8];
        let text = |seq: u64| format!("{seq:03}");
        let offer = |sink: &mut KafkaSink, topic: &str, seq| {
            sink.try_send(&record(topic, &key(seq), text(seq).as_bytes()), seq)
        };
        assert_eq!(offer(&mut sink, "gone", 0), Ok(()));
        wait_held(&mut sink);
        for seq in 1..HELD {
            assert_eq!(offer(&mut sink, "gone", seq), Ok(()));
        }
        // All of them leave the window in the end.
        for seq in HELD..200 {
            send(
                &mut sink,
                reports,
                &record("t", &key(seq), text(seq).as_bytes()),
                seq,
            );
        }
        reports.wait_polling(&mut sink, 200 - HELD);
        wait_in_flight(&sink, HELD);
        // Nothing more may be set aside, so these fill the window, and the others wait with them.
        for seq in 200..208 {
            assert_eq!(offer(&mut sink, "gone", seq), Ok(()));
        }
        assert_eq!(offer(&mut sink, "t", 208), Err(SendError::Full));
        let obstacle = sink.waiting_for().expect("a topic is refused");
        assert!(obstacle.what.contains("topic \"gone\""), "{obstacle:?}");
        let waiting = sink.retrying().expect("its records wait");
        assert_eq!((waiting.keys, &*waiting.topic), (5, "gone"));
        cluster.topic_error("gone", NONE).unwrap();
        send(
            &mut sink,
            reports,
            &record("t", &key(208), text(208).as_bytes()),
            208,
        );
        reports.wait_polling(&mut sink, 209);
        let is_held = |seq: &u64| (0..HELD).contains(seq) || (200..208).contains(seq);
        let (held, others): (Vec<u64>, Vec<u64>) = (0..209).partition(is_held);
        for (topic, expected) in [("gone", held), ("t", others)] {
            let stored = read(&cluster, &[topic], expected.len());
            assert_eq!(
                count_of(&cluster, topic),
                expected.len(),
                "nothing is repeated"
            );
            let mut seqs: Vec<u64> = stored.iter().map(seq_in).collect();
            for of_key in 0..5 {
                let of_key: Vec<_> = seqs.iter().filter(|seq| **seq % 5 == of_key).collect();
                assert!(of_key.is_sorted(), "{topic}: {of_key:?}");
            }
            seqs.sort_unstable();
            assert_eq!(seqs, expected);
        }
        close_delivered(sink, reports, 209);
    }
}

/// The answer comes when the sink is full, and nothing else would wake the relay.
#[test]
fn a_full_sink_wakes_the_relay_when_the_topic_of_its_records_is_refused() {
    let cluster = cluster(&[("t", 1), ("gone", 1)]);
    cluster.topic_error("gone", MISSING).unwrap();
    let options = KafkaOptions {
        max_in_flight_records: 4,
        retry_for: HOUR,
        ..KafkaOptions::default()
    };
    let (mut sink, refusals) = sink_with_bounds(&cluster, false, options, &[]);
    let reports = &*refusals.reports;
    for seq in 0..4 {
        assert_eq!(sink.try_send(&record("gone", b"k", b"v"), seq), Ok(()));
    }
    send(&mut sink, reports, &record("t", b"k", b"4"), 4);
    reports.wait_polling(&mut sink, 1);
    wait_in_flight(&sink, 4);
    Box::new(sink).close(Duration::ZERO);
    assert_eq!(seqs_in(&cluster, "t", 1), [4]);
}

/// Records that were set aside are given up, and their room is free once.
#[test]
fn records_that_were_set_aside_are_refused_after_the_patience() {
    let cluster = cluster(&[("t", 1), ("gone", 1)]);
    cluster.topic_error("gone", MISSING).unwrap();
    let options = KafkaOptions {
        max_in_flight_records: 4,
        retry_for: Duration::ZERO,
        ..KafkaOptions::default()
    };
    let (mut sink, refusals) = sink_with_bounds(&cluster, false, options, &[]);
    let reports = &*refusals.reports;
    for seq in 0..20 {
        assert_eq!(sink.try_send(&record("gone", b"k", b"v"), seq), Ok(()));
        if seq == 0 {
            wait_held(&mut sink);
        }
    }
    wait_refused(&mut sink, &refusals, 20);
    assert_eq!(refusals.seqs(), (0..20).collect::<Vec<u64>>());
    assert_eq!(sink.in_flight(), 0);
    assert_eq!(sink.shared.window.bytes(), 0);
    for seq in 0..20 {
        assert_eq!(sink.withdraw(seq, true).len(), 1);
        send_seq(&mut sink, reports, "t", b"k", seq);
    }
    reports.wait_polling(&mut sink, 20);
    close_delivered(sink, reports, 20);
}
