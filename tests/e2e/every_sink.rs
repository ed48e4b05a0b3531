//! The promises of each sink, while the relay is killed: a line per sink.

use std::collections::BTreeSet;
use std::fs;

use walrelay_testkit::{Committed, Delivered, History, check};

use crate::destination::{Destination, Kind, LARGE};
use crate::rig::{PATIENCE, Rig, shared_kafka, wait_rows};

tests! {
    fn kafka_has_each_event_in_order_after_kills() { every_sink(Kind::Kafka) }
    fn rabbitmq_has_each_event_in_order_after_kills() { every_sink(Kind::RabbitMq("quorum")) }
    fn redis_has_each_event_in_order_after_kills() { every_sink(Kind::Redis) }
    fn nats_has_each_event_in_order_after_kills() { every_sink(Kind::Nats { exclusive: false }) }
    fn an_exclusive_stream_has_each_event_in_order_after_kills() { every_sink(Kind::Nats { exclusive: true }) }
    fn http_1_has_each_event_in_order_after_kills() { every_sink(Kind::Http { two: false }) }
    fn http_2_has_each_event_in_order_after_kills() { every_sink(Kind::Http { two: true }) }
}

/// SIGKILL, again and again while rows are inserted. Each event arrives, in the order of its key; a sink that
/// refuses repeats has it once. The events that are too large are dead letters, and do not hold their keys up.
fn every_sink(kind: Kind) {
    if !kind.is_wanted() {
        return;
    }
    let own;
    let server: &dyn Destination = if kind == Kind::Kafka {
        shared_kafka()
    } else {
        own = kind.start().destination;
        &*own
    };
    let rig = Rig::without_broker(18).outbox();
    let topic = |name: &str| format!("{}{name}", rig.prefix);
    server.create(&["order", "payment", "customer", "dead"].map(topic));
    let config = rig.config();
    let usual = fs::read_to_string(&config).expect("the configuration is read");
    let (usual, _) = usual.split_once("[sink.kafka]").expect("its sink");
    let text = format!(
        "{}\n{}\n{}\npoison.oversize = \"dead-letter\"\npoison.topic = \"{}\"\n{usual}",
        server.settings(),
        server.address_setting(&server.address()),
        server.size_limit(),
        topic("dead"),
    );
    fs::write(&config, text).expect("the configuration is written");

    let mut relay = rig.streaming(&config);
    let db = rig.db();
    let load = rig.workload().rate(1_500.0).seed(11).start();
    for round in 0..6 {
        wait_rows(&load, 200 + 137 * (round % 3));
        // The second of three events of a key.
        db.batch(&format!(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'large-{round}', 'T', \
             jsonb_build_object('number', n, 'text', repeat('x', CASE n WHEN 2 THEN {} ELSE 1 END)) \
             FROM generate_series(1, 3) n",
            LARGE + 1
        ));
        relay.kill();
        relay = rig.streaming(&config);
    }
    load.stop();
    rig.caught_up();

    let rows = History::committed(&rig.postgres.url(), "public.outbox", &rig.prefix);
    let records = server.records(&rig.prefix, rows.len(), PATIENCE);
    let is_large = |row: &Committed| row.payload.as_ref().is_some_and(|it| it.len() > LARGE);
    let (large, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_large);
    let is_dead = |record: &Delivered| record.topic == topic("dead");
    let (dead, records): (Vec<_>, Vec<_>) = records.into_iter().partition(is_dead);
    let verdict = check(&rows, &records);
    eprintln!("{kind}, SIGKILL x6: {verdict}");
    verdict.assert_clean_but_for_ragged();
    assert!(verdict.duplicates == 0 || !server.refuses_repeats());
    // With `exclusive_stream` the server forgets ids at once here, and only events are fenced.
    let refuses_by_id = server.refuses_repeats() && kind != Kind::Nats { exclusive: true };
    assert!(dead.len() == large.len() || !refuses_by_id);
    // NATS has more before the id.
    let dead = dead
        .iter()
        .filter_map(|it| it.id.as_deref()?.rsplit('/').next());
    let large: BTreeSet<&str> = large.iter().map(|row| &*row.id).collect();
    assert_eq!(dead.collect::<BTreeSet<&str>>(), large);
    relay.ends_well();
}
