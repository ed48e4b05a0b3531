//! The sink keeps the promises that the kind of a queue decides with streams, which are published to
//! as queues are.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Server, options, section};
use walrelay_rabbitmq_sink::{ConstantAddress, RabbitmqKind, RabbitmqSection};
use walrelay_sink::{Deliveries, EventPosition, Record};
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::conformance::Destination as _;
use walrelay_testkit::{PATIENCE, QueueOptions, Reports, conformance};

conformance!(Server::start("stream") =>
    acknowledged_means_durable
    order_per_key
);

/// RabbitMQ before 4.0 confirms messages to a stream that it does not store, if a message waited for its
/// confirm when the leader of the stream changed, and the channel had published to other queues before.
#[test]
fn what_a_server_confirms_and_drops_after_a_change_of_leader_is_sent_again() {
    const OTHERS: u64 = 10;
    const LATER: u64 = 30;
    let server = Server::start("stream");
    let (stream, other) = ("led", "not-led");
    server.create_topic(stream);
    let mut client = server.rabbitmq.client();
    client.declare_exchange(other, "fanout");
    client.declare_queue(other, QueueOptions::default());
    client.bind(other, other, "");

    let section = RabbitmqSection {
        confirm_timeout: Duration::from_secs(3),
        ..section(server.rabbitmq.port())
    };
    let kind = RabbitmqKind::new(&section, options(), ConstantAddress::default());
    let mut factory = kind.expect("no file is needed").factory(None).0;
    let reports = Arc::<Reports>::default();
    let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
    let mut sink = factory.create(None, deliveries).expect("a sink");
    let mut accepted = 0;
    let mut send = |topic: &str, count: u64| {
        for seq in accepted..accepted + count {
            let id = seq.to_string();
            let record = Record {
                topic,
                event_id: Some(id.as_bytes()),
                position: EventPosition::in_first_epoch(3, seq),
                ..Record::default()
            };
            sink.try_send(&record, seq).expect("there is room");
        }
        accepted += count;
        accepted
    };
    send(other, OTHERS);
    reports.wait_for(send(stream, 1));
    server.rabbitmq.suspend_leader(stream);
    send(stream, 1);
    server.rabbitmq.replace_leader(stream);
    reports.wait_for(send(stream, LATER));
    reports.assert_complete(accepted);
    assert_eq!(reports.failures(), []);
    let stored: BTreeSet<String> = server.stored(stream).into_iter().map(|it| it.id).collect();
    let lost: Vec<u64> = (OTHERS..accepted)
        .filter(|seq| !stored.contains(&seq.to_string()))
        .collect();
    assert!(
        lost.is_empty(),
        "delivered, and not in the stream: {lost:?}"
    );
    sink.close(PATIENCE);
}
