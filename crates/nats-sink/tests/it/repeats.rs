//! Events that a stream of `exclusive_stream` has already: few messages are sent until the relay has passed
//! over them.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::ops::RangeInclusive;

use crate::support::{Server, WINDOW_NANOS, factory, options, section, start, window_passes};
use serde_json::{Value, json};
use walrelay_nats_sink::NatsSection;
use walrelay_sink::{EventPosition, Record, StreamStart};
use walrelay_testkit::{NatsClient, OpenSink, PATIENCE};

const STREAM: &str = "repeats";
const SUBJECT: &str = "repeats.a";
/// Longer than a test.
const LONG_NANOS: u64 = 3_600_000_000_000;

/// Starts a server with the empty stream. Returns a client of it that counts.
fn stream(window: u64) -> (Server, NatsClient, Counter) {
    let server = Server::start();
    let mut client = server.nats.client();
    let _ = client.api(&format!("STREAM.DELETE.{STREAM}"), &json!({}));
    client.create_stream(STREAM, &[SUBJECT], &json!({"duplicate_window": window}));
    let mut subscriber = server.nats.client();
    subscriber.subscribe(SUBJECT);
    (server, client, Counter { subscriber })
}

/// A subscriber that counts published messages, whether the stream takes them or not.
struct Counter {
    subscriber: NatsClient,
}

impl Counter {
    /// Returns the number of messages since the last call.
    fn published(&mut self, client: &mut NatsClient) -> u64 {
        // The stream refuses this one, which is published behind all others.
        client.publish(SUBJECT, "Nats-Expected-Stream: none\r\n", b"end");
        let mut count = 0;
        while self.subscriber.delivered().1 != b"end" {
            count += 1;
        }
        count
    }
}

/// Delivers the events of these numbers, which are their ids, by a new sink. `lsn`: that of all of them.
fn deliver(server: &Server, start: &StreamStart, lsn: u64, numbers: RangeInclusive<u64>) {
    let section = NatsSection {
        exclusive_stream: Some(STREAM.to_owned()),
        ..section(server.nats.port())
    };
    let mut sink = OpenSink::new(&mut factory(&section, &options()), Some(start));
    for number in numbers {
        let value = number.to_string();
        sink.send(&Record {
            topic: SUBJECT,
            key: Some(b"k"),
            value: Some(value.as_bytes()),
            event_id: Some(value.as_bytes()),
            position: EventPosition::in_first_epoch(lsn, number),
            ..Record::default()
        });
    }
    sink.delivered();
    sink.close(PATIENCE);
}

fn snapshot() -> StreamStart {
    StreamStart {
        snapshot: true,
        ..start("walrelay", 1)
    }
}

/// Returns the numbers of the stream's events. `0`: another message.
fn stored(client: &mut NatsClient) -> Vec<u64> {
    let messages = client.messages(STREAM, ">");
    let number = |payload: &[u8]| std::str::from_utf8(payload).unwrap().parse().unwrap();
    messages.iter().map(|it| number(&it.payload)).collect()
}

fn delete(client: &mut NatsClient, seq: u64) {
    let call = format!("STREAM.MSG.DELETE.{STREAM}");
    let deleted: Value = client.api(&call, &json!({"seq": seq}));
    assert_eq!(deleted["success"], true, "{deleted}");
}

#[test]
fn the_rows_of_an_interrupted_snapshot_are_passed_over() {
    // Within the duplicate window, and beyond it.
    for window in [LONG_NANOS, WINDOW_NANOS] {
        let (server, mut client, mut counter) = stream(window);
        deliver(&server, &snapshot(), 7, 1..=3_000);
        assert_eq!(counter.published(&mut client), 3_000);
        if window == WINDOW_NANOS {
            window_passes(&mut client);
        }
        deliver(&server, &snapshot(), 15, 1..=3_500);
        assert_eq!(counter.published(&mut client), 500);
        // The first message is gone, so nothing shows where the rows begin.
        if window == LONG_NANOS {
            delete(&mut client, 1);
            deliver(&server, &snapshot(), 23, 1..=3_600);
            let published = counter.published(&mut client);
            assert!((100..=1_200).contains(&published), "{published}");
            assert!(stored(&mut client).into_iter().eq(2..=3_600));
        } else {
            assert!(stored(&mut client).into_iter().eq(1..=3_500));
        }
    }
}

#[test]
fn rows_that_the_stream_lacks_are_stored_amid_those_that_it_has() {
    let (server, mut client, mut counter) = stream(LONG_NANOS);
    for first in (1..=1_000).step_by(100) {
        deliver(&server, &snapshot(), 7, first..=first + 49);
    }
    counter.published(&mut client);
    deliver(&server, &snapshot(), 15, 1..=1_000);
    let published = counter.published(&mut client);
    assert!((500..=2_000).contains(&published), "{published}");
    let mut events = stored(&mut client);
    events.sort_unstable();
    assert!(events.into_iter().eq(1..=1_000));
}

#[test]
fn events_behind_one_that_was_deleted_are_passed_over() {
    let (server, mut client, mut counter) = stream(LONG_NANOS);
    deliver(&server, &start("walrelay", 1), 8, 1..=3_000);
    delete(&mut client, 6);
    counter.published(&mut client);
    deliver(&server, &start("walrelay", 1), 8, 1..=3_010);
    let published = counter.published(&mut client);
    assert!((10..=1_200).contains(&published), "{published}");
    let expected = (1..=3_010).filter(|number| *number != 6);
    assert!(stored(&mut client).into_iter().eq(expected));
}

#[test]
fn a_relay_finds_its_place_behind_many_other_messages() {
    let (server, mut client, mut counter) = stream(WINDOW_NANOS);
    deliver(&server, &start("walrelay", 1), 8, 1..=5);
    let other = || (SUBJECT, String::new(), &b"0"[..]);
    let others: Vec<_> = (0..5_000).map(|_| other()).collect();
    client.publish_all(&others);
    window_passes(&mut client);
    counter.published(&mut client);
    deliver(&server, &start("walrelay", 1), 8, 1..=7);
    assert_eq!(counter.published(&mut client), 2);
    let events = stored(&mut client).into_iter().filter(|event| *event > 0);
    assert!(events.eq(1..=7));
}
