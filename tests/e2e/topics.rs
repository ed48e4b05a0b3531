use walrelay_testkit::{Kafka, eventually, servers};

use crate::rig::{PATIENCE, Rig};

fn rig(kafka: &Kafka) -> Rig {
    let rig = Rig::with(servers::postgres(15), kafka.bootstrap_servers());
    rig.workload().create_tables();
    rig
}

/// A broker that creates nothing by itself, and a relay that is told to.
#[test]
fn are_created_where_configured() {
    let kafka = Kafka::builder().auto_create(false).start();
    let rig = rig(&kafka);
    let more = "\n[sink.topics]\ncreate = true\npartitions = 5\nreplication_factor = 1\n";
    let relay = rig.start(&rig.config_with(&rig.postgres.url(), more));
    relay.streaming();
    rig.workload().rows(2_000).run();
    rig.caught_up();
    let history = rig.history();
    history.check().assert_clean();
    let partitions = history.records.iter().map(|record| record.partition).max();
    assert_eq!(partitions, Some(4), "five partitions, all in use");
    relay.ends_well();
}

/// A topic that is missing may appear: the relay retries, confirms nothing meanwhile, and goes on.
#[test]
fn that_are_missing_are_waited_for() {
    let kafka = Kafka::builder().auto_create(false).start();
    let rig = rig(&kafka);
    // librdkafka's patience with topics it has not heard of.
    let more = "\"topic.metadata.propagation.max.ms\" = 500\n\n\
                [delivery]\nbackoff_max = \"500ms\"\n";
    let relay = rig.start(&rig.config_with(&rig.postgres.url(), more));
    relay.streaming();
    for kind in ["payment", "customer"] {
        kafka.create_topic(&format!("{}{kind}", rig.prefix), 3, &[]);
    }
    let before = rig.slot().wal_end();
    let written = rig.workload().rows(300).run();
    relay.says("trying again");
    let retries = || relay.log().matches("trying again").count();
    eventually(PATIENCE, || retries() >= 3);
    let after = rig.slot().wal_end();
    let confirmed = rig.slot().read().expect("the slot").confirmed_flush;
    assert!(
        confirmed < after,
        "confirmed beyond a record that went nowhere: {before} {confirmed}"
    );

    kafka.create_topic(&format!("{}order", rig.prefix), 3, &[]);
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("topic missing, {} rows: {verdict}", written.rows);
    verdict.assert_clean_but_for_ragged();
    relay.ends_well();
}
