//! A full quorum queue. The conformance suite is not run with quorum queues: RabbitMQ 3.10 with one
//! node loses a queue that was declared shortly before a SIGKILL.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use support::{Server, options, section};
use walrelay_rabbitmq_sink::RabbitmqKind;
use walrelay_sink::{Deliveries, DeliveryError, EventPosition, Record, SinkKind as _};
use walrelay_testkit::{PATIENCE, eventually, lock};

#[derive(Default)]
struct Delivered(Mutex<Vec<u64>>);

impl Deliveries for Delivered {
    fn delivered(&self, seq: u64) {
        lock(&self.0).push(seq);
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        panic!("{seq}: {error}");
    }

    fn capacity(&self) {}
}

#[test]
fn a_full_queue_is_waited_for_and_keeps_the_order_of_each_key() {
    const COUNT: u64 = 60;
    let server = Server::start("quorum");
    let queue = "full";
    server.declare(queue, Some(5));
    let kind = RabbitmqKind::new(&section(server.server.port()), options()).unwrap();
    let delivered = Arc::<Delivered>::default();
    let (mut factory, _) = kind.factory(None);
    let mut sink = factory.create(None, Arc::clone(&delivered) as _).unwrap();
    for seq in 0..COUNT {
        let key = format!("k{}", seq % 3);
        let record = Record {
            topic: queue,
            key: Some(key.as_bytes()),
            value: Some(key.as_bytes()),
            position: EventPosition { lsn: 9, row: seq },
            ..Record::default()
        };
        sink.try_send(&record, seq).unwrap();
    }
    eventually(PATIENCE, || {
        sink.waiting_for()
            .is_some_and(|obstacle| obstacle.what.contains("\"full\" is full"))
    });
    let mut client = server.server.client();
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
        lock(&delivered.0).len() as u64 == COUNT
    });
    sink.close(PATIENCE);
}
