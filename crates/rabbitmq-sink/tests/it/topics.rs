//! Streams are read back to their ends, and nothing else is read.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{options, section};
use walrelay_failure::{Exit, Failure};
use walrelay_rabbitmq_sink::{ConstantAddress, RabbitmqKind};
use walrelay_sink_kind::SinkKind as _;
use walrelay_sink_kind::topics::{FollowedPartition, ReadRecord, SentTo, TopicReader};
use walrelay_testkit::{
    AmqpServer, InTurn, PATIENCE, Publication, QueueOptions, RabbitMq, eventually,
};

/// No message that is there takes so long.
const MOMENT: Duration = Duration::from_millis(20);

fn server() -> Option<InTurn<AmqpServer>> {
    RabbitMq::is_wanted().then(RabbitMq::in_turn)
}

fn reader(server: &RabbitMq) -> Box<dyn TopicReader> {
    let section = section(server.port());
    let kind = RabbitmqKind::new(&section, options(), ConstantAddress::default());
    let kind = kind.expect("no file is needed");
    let topics = kind.readable_topics().expect("it has topics");
    topics.reader().expect("a reader")
}

fn declare(server: &RabbitMq, name: &str, queue_type: &'static str, max_bytes: Option<u32>) {
    let options = QueueOptions {
        queue_type,
        max_bytes,
        ..QueueOptions::default()
    };
    server.client().declare_queue(name, options);
}

/// Publishes messages with these numbers and bodies of so many bytes.
fn publish(server: &RabbitMq, queue: &str, numbers: impl Iterator<Item = u64>, bytes: usize) {
    let mut client = server.client();
    client.select_confirms();
    let ids: Vec<String> = numbers.map(|number| number.to_string()).collect();
    let body = vec![b'x'; bytes];
    // A few at a time, so that they are written as several chunks.
    for ids in ids.chunks(500) {
        client.publish(ids.iter().map(|id| Publication {
            exchange: "",
            routing_key: queue,
            message_id: id,
            key: "k",
            body: &body,
            ..Publication::default()
        }));
    }
}

#[track_caller]
fn follow(reader: &mut dyn TopicReader, queue: &str, from_ms: i64) -> (i64, i64) {
    let followed = reader
        .follow(queue, from_ms, PATIENCE)
        .expect("it can be read");
    let [FollowedPartition { start, end, .. }] = followed.expect("it is there")[..] else {
        panic!("several partitions");
    };
    (start, end)
}

/// Reads until the partitions of the streams are read to these ends.
#[track_caller]
fn read_to(reader: &mut dyn TopicReader, ends: &[(&str, i64)]) -> Vec<ReadRecord> {
    let mut read = Vec::new();
    eventually(PATIENCE, || {
        while let Some(record) = reader.next(MOMENT).expect("it can be read") {
            read.push(record);
        }
        let mut ends = ends.iter();
        ends.all(|(queue, end)| reader.position(queue, 0) >= Some(*end))
    });
    read
}

/// Reads until it fails.
#[track_caller]
fn failure(reader: &mut dyn TopicReader) -> Failure {
    let mut found = None;
    eventually(PATIENCE, || {
        found = reader.next(MOMENT).err();
        found.is_some()
    });
    found.expect("a failure")
}

#[test]
fn queues_that_are_no_streams_keep_their_messages() {
    let Some(server) = server() else { return };
    for kind in ["classic", "quorum"] {
        let queue = format!("is-{kind}");
        declare(&server, &queue, kind, None);
        publish(&server, &queue, 0..3, 1);
        let mut reader = reader(&server);
        for from_ms in [0, 1, i64::MAX] {
            let refused = reader.follow(&queue, from_ms, PATIENCE);
            let refused = refused.expect_err("it is no stream");
            assert_eq!(refused.id, "rabbitmq-no-stream");
            let why = refused.source.expect("a cause").to_string();
            assert!(why.contains("the queue is no stream"), "{why}");
        }
        eventually(PATIENCE, || server.client().messages(&queue) == 3);
        let taken = server.client().take(&queue);
        let ids = taken.iter().map(|it| it.message_id.as_deref());
        assert!(ids.eq(["0", "1", "2"].map(Some)));
        // A quorum queue counts how often it has sent a message.
        assert!(
            taken
                .iter()
                .all(|it| !it.headers.contains_key("x-delivery-count"))
        );
    }
    let none = reader(&server).follow("there.is.none", 0, PATIENCE);
    assert!(matches!(none, Ok(None)));
}

#[test]
fn rows_are_held_by_the_stream_that_their_address_reaches() {
    let kind = RabbitmqKind::new(&section(1), options(), ConstantAddress::default());
    let kind = kind.expect("no file is needed");
    let topics = kind.readable_topics().expect("it has topics");
    let mut reader = topics.reader().expect("a reader");
    let mut holds = |exchange: &str, routing_key: &str| {
        let sent_to = SentTo {
            topic: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
        };
        reader.holds("orders", &sent_to)
    };
    assert!(holds("", "orders").expect("it is known"));
    assert!(!holds("", "other").expect("it is known"));
    let unknown = holds("orders", "orders").expect_err("bindings are not seen");
    assert_eq!(unknown.id, "rabbitmq-bindings");
}

#[test]
fn streams_are_read_to_their_ends_in_turns_and_further() {
    const COUNT: i64 = 10_000;
    let Some(server) = server() else { return };
    let streams = ["one", "two", "empty"];
    for stream in streams {
        declare(&server, stream, "stream", None);
    }
    for stream in ["one", "two"] {
        publish(&server, stream, 0..COUNT.unsigned_abs(), 100);
    }
    let mut reader = reader(&server);
    let ends = [("one", COUNT), ("two", COUNT), ("empty", 0)];
    for (stream, end) in ends {
        assert_eq!(follow(&mut *reader, stream, 0), (0, end));
    }
    let read = read_to(&mut *reader, &ends);
    let mut next: BTreeMap<&str, i64> = BTreeMap::new();
    let mut turns = 0;
    for (at, record) in read.iter().enumerate() {
        let expected = next.entry(&record.topic).or_default();
        let id = record.event_id.as_deref();
        assert_eq!(
            (record.offset, id),
            (*expected, Some(expected.to_string().as_bytes()))
        );
        assert_eq!(record.key.as_deref(), Some(b"k".as_slice()));
        *expected += 1;
        turns += usize::from(at > 0 && read[at - 1].topic != record.topic);
    }
    assert_eq!(next, BTreeMap::from([("one", COUNT), ("two", COUNT)]));
    assert!(turns > 10, "{turns}");

    publish(&server, "empty", 0..3, 100);
    publish(&server, "one", 0..3, 100);
    let read = read_to(&mut *reader, &[("one", COUNT + 3), ("empty", 3)]);
    assert_eq!(read.len(), 6);
    // From the end, and from a time behind it.
    let mut other = self::reader(&server);
    assert_eq!(follow(&mut *other, "one", i64::MAX), (COUNT + 3, COUNT + 3));
    assert_eq!(
        follow(&mut *other, "two", 4_000_000_000_000),
        (COUNT, COUNT)
    );
    publish(&server, "one", 0..1, 100);
    publish(&server, "two", 0..1, 100);
    let read = read_to(&mut *other, &[("one", COUNT + 4), ("two", COUNT + 1)]);
    assert_eq!(read.len(), 2);
    for stream in streams {
        server.client().delete_queue(stream);
    }
}

#[test]
fn the_end_of_a_stream_that_is_written_is_found() {
    let Some(server) = server() else { return };
    declare(&server, "written", "stream", None);
    publish(&server, "written", 0..1_000, 100);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 1_000;
            // Bounded, so that a failure ends it, too.
            while !is_over.load(Ordering::Relaxed) && next < 500_000 {
                publish(&server, "written", next..next + 5_000, 100);
                next += 5_000;
            }
        });
        let mut reader = reader(&server);
        let (start, end) = follow(&mut *reader, "written", 0);
        let mut read = Vec::new();
        while reader.position("written", 0) < Some(end) {
            read.extend(reader.next(MOMENT).expect("it can be read"));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(start == 0 && end >= 1_000, "{start} {end}");
        assert!(read.iter().zip(0..).all(|(record, at)| record.offset == at));
    });
    server.client().delete_queue("written");
}

#[test]
fn large_messages_are_read() {
    let Some(server) = server() else { return };
    declare(&server, "large", "stream", None);
    publish(&server, "large", 0..700, 90_000);
    let mut reader = reader(&server);
    assert_eq!(follow(&mut *reader, "large", 0), (0, 700));
    let read = read_to(&mut *reader, &[("large", 700)]);
    assert!(read.iter().map(|record| record.offset).eq(0..700));
    server.client().delete_queue("large");
}

#[test]
fn a_stream_that_is_deleted_or_made_anew_is_an_error() {
    let Some(server) = server() else { return };
    for is_made_anew in [false, true] {
        declare(&server, "deleted", "stream", None);
        publish(&server, "deleted", 0..5_000, 100);
        let mut reader = reader(&server);
        assert_eq!(follow(&mut *reader, "deleted", 0), (0, 5_000));
        reader.next(MOMENT).expect("it can be read");
        server.client().delete_queue("deleted");
        if is_made_anew {
            declare(&server, "deleted", "stream", None);
            publish(&server, "deleted", 5_000..20_000, 100);
        }
        let failure = failure(&mut *reader);
        assert_eq!(
            (failure.id, failure.exit),
            ("rabbitmq-stream", Exit::Config)
        );
        assert!(failure.what.contains("was deleted"), "{}", failure.what);
        if is_made_anew {
            server.client().delete_queue("deleted");
        }
    }
}

#[test]
fn messages_that_a_stream_drops_before_they_are_read_are_an_error() {
    let Some(server) = server() else { return };
    declare(&server, "short", "stream", Some(4_000_000));
    publish(&server, "short", 0..3_000, 1_000);
    let numbers = |read: &[ReadRecord]| -> Vec<u64> {
        let ids = read.iter().filter_map(|record| record.event_id.as_deref());
        let texts = ids.filter_map(|id| std::str::from_utf8(id).ok());
        texts.filter_map(|text| text.parse().ok()).collect()
    };
    // At the beginning of a segment, the server may write a record for itself, which has an offset.
    let mut whole = reader(&server);
    let (start, end) = follow(&mut *whole, "short", 0);
    assert!(start == 0 && end >= 3_000, "{start} {end}");
    let read = read_to(&mut *whole, &[("short", end)]);
    assert!(numbers(&read).into_iter().eq(0..3_000));

    let mut reader = reader(&server);
    assert_eq!(follow(&mut *reader, "short", 0), (0, end));
    reader.next(MOMENT).expect("it can be read");
    publish(&server, "short", 3_000..12_000, 1_000);
    let failure = failure(&mut *reader);
    assert_eq!(
        (failure.id, failure.exit),
        ("rabbitmq-stream", Exit::Config)
    );
    assert!(
        failure.what.contains("dropped messages"),
        "{}",
        failure.what
    );
    // What is left is read, and said to begin late.
    let mut other = self::reader(&server);
    let (start, end) = follow(&mut *other, "short", 0);
    assert!(start > 3_000, "{start}");
    let read = numbers(&read_to(&mut *other, &[("short", end)]));
    let first = read.first().copied().expect("a message");
    assert!(first > 3_000 && read.into_iter().eq(first..12_000));
    server.client().delete_queue("short");
}

#[test]
fn a_stream_whose_leader_does_not_answer_is_no_empty_one() {
    let Some(server) = server() else { return };
    declare(&server, "silent", "stream", None);
    publish(&server, "silent", 0..10, 100);
    server.suspend_leader("silent");
    let refused = reader(&server).follow("silent", 0, Duration::from_secs(2));
    let refused = refused.expect_err("it does not answer");
    assert_eq!(refused.exit, Exit::Unavailable, "{}", refused.what);
}

#[test]
fn reading_goes_on_after_the_server_was_killed() {
    let Some(server) = server() else { return };
    declare(&server, "kept", "stream", None);
    server.outlives_kill("kept", "stream");
    publish(&server, "kept", 0..10_000, 1_000);
    let mut reader = reader(&server);
    assert_eq!(follow(&mut *reader, "kept", 0), (0, 10_000));
    let first = reader
        .next(MOMENT)
        .expect("it can be read")
        .expect("a message");
    server.kill();
    let mut read = vec![first];
    let mut take = |reader: &mut dyn TopicReader| {
        let before = read.len();
        read.extend(reader.next(MOMENT).expect("a lost connection is no error"));
        read.len() > before
    };
    // What has come before it was killed.
    while take(&mut *reader) {}
    assert!(reader.position("kept", 0) < Some(10_000));
    thread::scope(|scope| {
        scope.spawn(|| server.start_again());
        eventually(PATIENCE, || {
            while take(&mut *reader) {}
            reader.position("kept", 0) == Some(10_000)
        });
    });
    assert!(read.iter().map(|record| record.offset).eq(0..10_000));
    server.client().delete_queue("kept");
}
