//! The sink keeps the promises that the kind of a queue decides with quorum queues.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::{Server, UNBOUND, options, section};
use walrelay_rabbitmq_sink::{ConstantAddress, RabbitmqKind, RabbitmqSection};
use walrelay_sink::{AnySinkFactory, Deliveries, EventPosition, Poison, Record};
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::{PATIENCE, Reports, conformance, eventually};

conformance!(Server::start("quorum") =>
    acknowledged_means_durable
    order_per_key
);

fn factory(server: &Server) -> AnySinkFactory {
    let section = RabbitmqSection {
        channels: 3,
        ..section(server.rabbitmq.port())
    };
    let kind = RabbitmqKind::new(&section, options(), ConstantAddress::default());
    kind.expect("no file is needed").factory(None).0
}

#[test]
fn a_full_queue_is_waited_for_and_keeps_the_order_of_each_key() {
    const COUNT: u64 = 60;
    let server = Server::start("quorum");
    let queue = "full";
    server.declare(queue, Some(5));
    let reports = Arc::<Reports>::default();
    let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
    let mut sink = factory(&server).create(None, deliveries).unwrap();
    for seq in 0..COUNT {
        let key = format!("k{}", seq % 3);
        let record = Record {
            topic: queue,
            key: Some(key.as_bytes()),
            value: Some(key.as_bytes()),
            position: EventPosition::in_first_epoch(9, seq),
            ..Record::default()
        };
        sink.try_send(&record, seq).unwrap();
    }
    eventually(PATIENCE, || {
        sink.waiting_for()
            .is_some_and(|obstacle| obstacle.what.contains("\"full\" is full"))
    });
    let mut client = server.rabbitmq.client();
    let mut seen = BTreeSet::new();
    let mut newest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    eventually(PATIENCE, || {
        for message in client.take_some(queue, 2) {
            let position = message.header("walrelay.position").unwrap();
            let row = position.parse::<EventPosition>().unwrap().row;
            if seen.insert(row) {
                let before = newest.insert(message.body, row);
                assert!(before < Some(row), "{row} behind {before:?}");
            }
        }
        reports.is(|state| state.outcomes.len() as u64 == COUNT)
    });
    reports.assert_complete(COUNT);
    assert_eq!(reports.failures(), []);
    sink.close(PATIENCE);
}

/// `WALRELAY_ROUNDS` sets how often, `WALRELAY_IN_FLIGHT` how many messages there are.
#[test]
fn only_the_unroutable_ones_of_a_thousand_in_flight_are_refused() {
    let number = |name: &str, default: u64| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().expect("a number"))
    };
    let (rounds, count) = (
        number("WALRELAY_ROUNDS", 25),
        number("WALRELAY_IN_FLIGHT", 1_000),
    );
    let server = Server::start("quorum");
    let queue = "routed";
    server.declare(queue, None);
    let mut client = server.rabbitmq.client();
    let mut factory = factory(&server);
    let (mut delivered, mut refused) = (0_usize, 0_usize);
    for round in 0..rounds {
        let reports = Arc::<Reports>::default();
        let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
        let mut sink = factory.create(None, deliveries).unwrap();
        let is_routed = |seq: u64| (seq + round) % 7 != 3;
        for seq in 0..count {
            let record = Record {
                topic: if is_routed(seq) { queue } else { UNBOUND },
                value: Some(b"value"),
                position: EventPosition::in_first_epoch(round, seq),
                ..Record::default()
            };
            sink.try_send(&record, seq).expect("there is room");
        }
        reports.wait_for(count);
        reports.assert_complete(count);
        let mut stored: Vec<u64> = client
            .take(queue)
            .iter()
            .map(|message| message.header("walrelay.position").expect("a position"))
            .map(|position| position.parse::<EventPosition>().expect("a position"))
            .map(|position| {
                assert_eq!(position.lsn, round);
                position.row
            })
            .collect();
        stored.sort_unstable();
        let (good, bad): (Vec<u64>, Vec<u64>) = (0..count).partition(|seq| is_routed(*seq));
        assert_eq!(stored, good, "{round}: each once");
        for (seq, outcome) in reports.state().outcomes {
            match outcome {
                Ok(()) => assert!(is_routed(seq), "{round}: {seq} is delivered"),
                Err(error) => {
                    assert_eq!(
                        error.poison,
                        Some(Poison::Unroutable),
                        "{round}: {seq}: {error}"
                    );
                }
            }
        }
        (delivered, refused) = (delivered + good.len(), refused + bad.len());
    }
    eprintln!("{rounds} rounds: {delivered} delivered, {refused} refused");
    assert!(refused > 0 && delivered > 0);
}
