//! Events that NATS refuses for good cost no other event anything: judged by what a real server stores.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use crate::support::{MAX_STORED, Server, factory, options, section, start};
use serde_json::json;
use walrelay_nats_sink::NatsSection;
use walrelay_sink::{DeliveryError, EventPosition, Poison, Record, SinkOptions};
use walrelay_testkit::{OpenSink, PATIENCE, ReportState, eventually, eventually_some};

fn open(section: &NatsSection, retry_for: Duration) -> OpenSink {
    let options = SinkOptions {
        retry_for,
        ..options()
    };
    OpenSink::new(&mut factory(section, &options), Some(&start("slot", 1)))
}

/// Sends the next event. Without an id, the stream stores each copy of it.
fn send(relay: &mut OpenSink, id: Option<&str>, subject: &str, key: u64, value: &[u8]) {
    relay.send(&Record {
        topic: subject,
        key: Some(key.to_string().as_bytes()),
        value: Some(value),
        event_id: id.map(str::as_bytes),
        position: EventPosition::in_first_epoch(1, relay.sent),
        ..Record::default()
    });
}

/// The rows of a stream's messages, in order.
fn stored(server: &Server, stream: &str) -> Vec<u64> {
    let messages = server.nats.client().messages(stream, ">").into_iter();
    let row = |position: &str| position.split_once(' ').unwrap().1.parse().unwrap();
    let rows = messages.map(|message| row(&message.headers["walrelay.position"]));
    rows.collect()
}

fn with_streams(test: impl FnOnce(&Server)) {
    let server = Server::start();
    let mut client = server.nats.client();
    let more = json!({"max_msg_size": MAX_STORED});
    client.create_stream("good", &["good.*"], &more);
    client.create_stream("dead", &["dead"], &json!({}));
    test(&server);
    client.delete_stream("good");
    client.delete_stream("dead");
}

#[test]
fn ten_events_of_one_key_without_a_stream_take_one_retry_for_and_repeat_nothing() {
    with_streams(|server| {
        let retry_for = Duration::from_secs(5);
        let mut relay = open(&section(server.nats.port()), retry_for);
        let start = Instant::now();
        for number in 0..400 {
            if number % 40 == 0 {
                send(&mut relay, None, "none.x", 99, b"v");
            }
            send(&mut relay, None, "good.x", number % 40, b"v");
        }
        let is_bad = |row: u64| row.is_multiple_of(41);
        relay
            .reports
            .wait(|state| (0..410).all(|row| is_bad(row) || state.is_delivered(row)));
        let (bad, good): (Vec<u64>, Vec<u64>) = (0..410).partition(|row| is_bad(*row));
        assert_eq!(
            stored(server, "good"),
            good,
            "nothing waits, nothing is repeated"
        );
        let refused = relay.settle_refused("dead", 10);
        let taken = start.elapsed();
        // Each by itself would take ten times as long.
        assert!(taken >= retry_for && taken < 8 * retry_for, "{taken:?}");
        let unroutable = bad.iter().map(|seq| (*seq, Some(Poison::Unroutable)));
        let refused = refused.iter().map(|(seq, error)| (*seq, error.poison));
        assert!(refused.eq(unroutable));
        assert_eq!(stored(server, "dead"), bad);
        assert_eq!(stored(server, "good"), good);
        relay.close(PATIENCE);
    });
}

#[test]
fn events_that_the_stream_refuses_are_settled_between_the_others() {
    with_streams(|server| {
        let mut relay = open(&section(server.nats.port()), Duration::ZERO);
        let large = vec![b'x'; MAX_STORED];
        for number in 0..1_000 {
            // Of the same keys as the others.
            if number % 20 == 0 {
                send(&mut relay, None, "good.x", number % 7, &large);
            } else {
                send(&mut relay, None, "good.x", number % 7, b"v");
            }
        }
        relay.settle_refused("dead", 50);
        let (mut bad, mut good): (Vec<u64>, Vec<u64>) = (0..1_000).partition(|row| row % 20 == 0);
        let by_key = |row: &u64| (row % 7, *row);
        let (mut dead, mut taken) = (stored(server, "dead"), stored(server, "good"));
        for key in 0..7 {
            let of_key: Vec<u64> = taken.iter().copied().filter(|row| row % 7 == key).collect();
            assert!(of_key.is_sorted(), "{of_key:?}");
        }
        for rows in [&mut bad, &mut good, &mut dead, &mut taken] {
            rows.sort_by_key(by_key);
        }
        assert_eq!((dead, taken), (bad, good), "each once");
        relay.close(PATIENCE);
    });
}

/// With ids, the events are sent in batches, and those behind a refused one are refused with it.
#[test]
fn an_exclusive_stream_gets_the_others_in_order_and_no_event_twice() {
    for has_ids in [false, true] {
        with_streams(|server| {
            let section = NatsSection {
                exclusive_stream: Some("good".to_owned()),
                ..section(server.nats.port())
            };
            let mut relay = open(&section, Duration::ZERO);
            let large = vec![b'x'; MAX_STORED];
            for number in 0..300_u64 {
                let (subject, value): (&str, &[u8]) = match number % 30 {
                    7 => ("good.x", &*large),
                    17 => ("none.x", b"v"),
                    27 => ("dead", b"v"),
                    _ => ("good.x", b"v"),
                };
                let id = format!("id-{number}");
                let id = has_ids.then_some(&*id);
                send(&mut relay, id, subject, number % 3, value);
            }
            let refused = relay.settle_refused("dead", 30);
            let (bad, good): (Vec<u64>, Vec<u64>) = (0..300).partition(|row| row % 10 == 7);
            assert_eq!(stored(server, "good"), good);
            assert_eq!(stored(server, "dead"), bad);
            let of = |poison| move |it: &&(u64, DeliveryError)| it.1.poison == Some(poison);
            let count = |poison| refused.iter().filter(of(poison)).count();
            assert_eq!(
                (count(Poison::Oversize), count(Poison::Unroutable)),
                (10, 20)
            );
            relay.close(PATIENCE);
        });
    }
}

#[test]
fn what_waits_for_an_exclusive_stream_is_counted_and_named() {
    with_streams(|server| {
        let section = NatsSection {
            exclusive_stream: Some("good".to_owned()),
            ..section(server.nats.port())
        };
        let mut relay = open(&section, PATIENCE);
        send(&mut relay, Some("refused"), "none.x", 0, b"v");
        for number in 0..30_u64 {
            let id = format!("id-{number}");
            send(&mut relay, Some(&id), "good.x", number % 3, b"v");
        }
        let retrying = eventually_some(PATIENCE, || {
            relay.retrying().filter(|waiting| waiting.keys == 3)
        });
        assert_eq!(
            (retrying.event_id.as_deref(), &*retrying.topic),
            (Some("refused"), "none.x")
        );
        let why = "an event is refused in the end: no stream has its subject";
        assert_eq!((&*retrying.why, retrying.limit), (why, 100));
        assert!(retrying.next.is_some());
        let mut client = server.nats.client();
        client.update_stream(
            "good",
            &["good.*", "none.*"],
            &json!({"max_msg_size": MAX_STORED}),
        );
        let delivered = |state: &ReportState| (0..31).all(|row| state.is_delivered(row));
        relay.reports.wait(delivered);
        eventually(PATIENCE, || relay.retrying().is_none());
        assert_eq!(stored(server, "good"), (0..31).collect::<Vec<_>>());
        relay.close(PATIENCE);
    });
}
