//! What the sink does with an exchange and a queue that exist already.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::sync::Arc;

use crate::support::{Server, options, section};
use walrelay_rabbitmq_sink::{ConstantAddress, RabbitmqKind, RabbitmqSection};
use walrelay_sink::{Deliveries, EventPosition, Record, Sink, SinkFactory as _};
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::{PATIENCE, Reports, eventually};

/// A sink with its reports.
struct Sending {
    sink: Box<dyn Sink>,
    reports: Arc<Reports>,
}

impl Sending {
    fn new(section: &RabbitmqSection, address: ConstantAddress) -> Self {
        let kind = RabbitmqKind::new(section, options(), address).expect("no file is needed");
        let reports = Arc::<Reports>::default();
        let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
        let sink = kind.factory(None).0.create(None, deliveries);
        Self {
            sink: sink.expect("a sink"),
            reports,
        }
    }

    fn send(&mut self, exchange: &str, routing_key: &str, seq: u64) {
        // One message of the key is in flight.
        let record = Record {
            key: Some(b"k"),
            topic: exchange,
            routing_key: Some(routing_key),
            value: Some(b"v"),
            position: EventPosition::in_first_epoch(3, seq),
            ..Record::default()
        };
        self.sink.try_send(&record, seq).expect("accepted");
    }
}

/// With `declare`, a queue is bound to a direct exchange that exists by the key that all events have.
#[test]
fn a_direct_exchange_is_bound_by_the_constant_routing_key() {
    let server = Server::start("quorum");
    let mut client = server.rabbitmq.client();
    client.declare_exchange("direct", "direct");
    let section = RabbitmqSection {
        declare: true,
        queue: Some("of-direct".to_owned()),
        ..section(server.rabbitmq.port())
    };
    let address = ConstantAddress {
        exchange: Some("direct".to_owned()),
        routing_key: Some("orders".to_owned()),
    };
    let mut sending = Sending::new(&section, address);
    sending.send("direct", "orders", 0);
    assert_eq!(sending.reports.outcome(0), Ok(()));
    assert_eq!(client.take("of-direct").len(), 1);
}

/// A quorum queue that was full refuses the messages of a channel also after its limit is gone.
#[test]
fn a_queue_whose_limit_was_taken_away_gets_the_refused_events() {
    const COUNT: u64 = 20;
    let server = Server::start("quorum");
    let queue = "limited";
    server.declare(queue, None);
    let policy = r#"{"max-length": 5, "overflow": "reject-publish"}"#;
    server.rabbitmq.control(&[
        "set_policy",
        "limit",
        "^limited$",
        policy,
        "--apply-to",
        "queues",
    ]);
    let section = section(server.rabbitmq.port());
    let mut sending = Sending::new(&section, ConstantAddress::default());
    for seq in 0..COUNT {
        sending.send(queue, "", seq);
    }
    eventually(PATIENCE, || {
        let obstacle = sending.sink.waiting_for();
        obstacle.is_some_and(|obstacle| obstacle.what.contains("\"limited\" is full"))
    });
    server.rabbitmq.control(&["clear_policy", "limit"]);
    sending.reports.wait_for(COUNT);
    sending.reports.assert_complete(COUNT);
    assert_eq!(sending.reports.failures(), []);
}
