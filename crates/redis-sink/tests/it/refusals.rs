//! Events that Redis refuses for good cost no other event anything: judged by what a real server stores.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use crate::support::{Server, options, section};
use walrelay_redis_sink::{Ids, RedisKind, RedisSection};
use walrelay_sink::{DeliveryError, EventPosition, Poison, Record, SinkOptions};
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::{ChaosProxy, Direction, OpenSink, PATIENCE, RedisClient, StreamEntry};

fn open(section: &RedisSection, retry_for: Duration) -> OpenSink {
    let options = SinkOptions {
        retry_for,
        ..options()
    };
    let kind = RedisKind::new(section, &options).unwrap();
    OpenSink::new(&mut kind.factory(None).0, None)
}

/// Sends the next event. Its row is its number.
fn send(relay: &mut OpenSink, stream: &str, key: u64) {
    relay.send(&Record {
        topic: stream,
        key: Some(key.to_string().as_bytes()),
        value: Some(b"value"),
        position: EventPosition::in_first_epoch(1, relay.sent),
        ..Record::default()
    });
}

/// The rows of a stream's entries, in order.
fn rows(client: &mut RedisClient, stream: &str) -> Vec<u64> {
    let row = |entry: &StreamEntry| {
        let (_, row) = entry.text("position").unwrap().split_once(' ').unwrap();
        row.parse().unwrap()
    };
    client.entries(stream).iter().map(row).collect()
}

#[test]
fn ten_events_of_a_refused_stream_take_one_retry_for_and_repeat_nothing() {
    for ids in [Ids::Position, Ids::Server] {
        let server = Server::start(ids);
        let mut client = server.redis.client();
        client.done("SET no-stream value");
        client.done(
            "ACL SETUSER weak on >secret-word ~good ~dead ~no-stream +ping +multi +exec +xadd \
             +xrange +xinfo",
        );
        let section = RedisSection {
            username: Some("weak".to_owned()),
            password: Some("secret-word".into()),
            ..section(server.redis.port(), ids)
        };
        let retry_for = Duration::from_secs(5);
        let mut relay = open(&section, retry_for);
        let start = Instant::now();
        for number in 0..400 {
            if number % 40 == 0 {
                send(&mut relay, "no-stream", 99);
                send(&mut relay, "forbidden", 99);
            }
            send(&mut relay, "good", number % 40);
        }
        let is_bad = |row: u64| row % 42 < 2;
        let (bad, good): (Vec<u64>, Vec<u64>) = (0..420).partition(|row| is_bad(*row));
        relay
            .reports
            .wait(|state| good.iter().all(|row| state.is_delivered(*row)));
        assert!(
            relay.reports.is(|state| state.failures == 0),
            "nothing waits"
        );
        assert!(
            relay
                .waiting_for()
                .unwrap()
                .what
                .contains("a stream is refused"),
        );
        let refused = relay.settle_refused("dead", bad.len());
        let taken = start.elapsed();
        let rejected = |(_, error): &(u64, DeliveryError)| error.poison == Some(Poison::Rejected);
        assert!(refused.iter().all(rejected), "{refused:?}");
        // Each by itself would take ten times as long.
        assert!(taken >= retry_for && taken < 8 * retry_for, "{taken:?}");
        assert_eq!(relay.waiting_for(), None);
        let mut dead = rows(&mut client, "dead");
        dead.sort_unstable();
        assert_eq!(dead, bad, "{ids:?}");
        assert_eq!(rows(&mut client, "good"), good, "{ids:?}");
        relay.close(PATIENCE);
        client.run("DEL good dead no-stream");
        client.run("ACL DELUSER weak");
    }
}

#[test]
fn late_dead_letters_are_stored_once_though_the_answer_is_lost() {
    let server = Server::start(Ids::Position);
    let mut client = server.redis.client();
    client.done("SET no-stream value");
    let proxy = ChaosProxy::start(("127.0.0.1", server.redis.port()));
    let section = section(proxy.port(), Ids::Position);
    let mut relay = open(&section, Duration::ZERO);
    for number in 0..200 {
        send(&mut relay, "no-stream", number);
    }
    relay.reports.wait(|state| state.failures == 200);
    // Those of the newest events are stored first, so the others cannot have their positions as ids.
    for events in [150..200, 100..150, 50..100, 0..50] {
        if events.end < 200 {
            // After the answers to 50 look-ups and to the question whether writes are taken, some of
            // those to the transaction.
            proxy.reset_after(Direction::ToClient, 50 * "*0\r\n".len() as u64 + 200);
        }
        for seq in events.clone() {
            relay.settle(seq, "dead");
        }
        relay
            .reports
            .wait(|state| events.clone().all(|seq| state.is_delivered(seq)));
        assert!(!proxy.reset_pending(Direction::ToClient));
    }
    let mut dead = rows(&mut client, "dead");
    dead.sort_unstable();
    assert!(dead.into_iter().eq(0..200));
    relay.close(PATIENCE);
    client.run("DEL dead no-stream");
}

#[test]
fn a_stream_that_is_corrected_in_time_gets_its_events_in_order() {
    let server = Server::start(Ids::Position);
    let mut client = server.redis.client();
    client.done("SET corrected value");
    let section = section(server.redis.port(), Ids::Position);
    let mut relay = open(&section, Duration::from_secs(600));
    for number in 0..1_000 {
        let stream = if number % 2 == 0 { "corrected" } else { "good" };
        send(&mut relay, stream, number % 10);
    }
    let odd = |row: &u64| row % 2 == 1;
    relay
        .reports
        .wait(|state| (0..1_000).filter(odd).all(|row| state.is_delivered(row)));
    client.run("DEL corrected");
    relay.delivered();
    let (good, corrected): (Vec<u64>, Vec<u64>) = (0..1_000).partition(odd);
    assert_eq!(rows(&mut client, "corrected"), corrected);
    assert_eq!(rows(&mut client, "good"), good);
    relay.close(PATIENCE);
    client.run("DEL good corrected");
}
