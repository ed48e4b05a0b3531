use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;
use walrelay_testkit::{Db, Kafka, eventually, servers};

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
    let relay = rig.streaming(&rig.config_with(&rig.postgres.url(), more));
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
    let relay = rig.streaming(&rig.config_with(&rig.postgres.url(), more));
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

fn insert(rig: &Rig, kind: &str, number: u32) {
    Db::connect(&rig.postgres.url()).batch(&format!(
        "INSERT INTO outbox VALUES (gen_random_uuid(), '{kind}', '{kind}', 'T', \
         '{{\"number\": {number}}}')"
    ));
}

/// As a log in JSON has it.
fn does_not_exist(rig: &Rig, kind: &str) -> String {
    format!(
        "\"waiting_for\":\"topic \\\"{}{kind}\\\" does not exist",
        rig.prefix
    )
}

/// A topic that is missing is named long before librdkafka gives its record up, also while records go to
/// other topics.
#[test]
fn that_are_missing_are_named_at_once() {
    let kafka = Kafka::builder().auto_create(false).start();
    let rig = rig(&kafka);
    kafka.create_topic(&format!("{}payment", rig.prefix), 1, &[]);
    let relay = rig.streaming(&rig.config());
    insert(&rig, "payment", 1);
    rig.caught_up();
    let start = Instant::now();
    insert(&rig, "order", 1);
    let mut number = 1;
    eventually(PATIENCE, || {
        number += 1;
        insert(&rig, "payment", number);
        relay.log().contains(&does_not_exist(&rig, "order"))
    });
    let named = start.elapsed();
    eprintln!("a missing topic was named after {named:?}");
    // Two seconds are promised; a busy machine may take one more to look.
    assert!(named < Duration::from_secs(3), "{named:?}");
    assert!(!relay.log().contains("trying again"), "{}", relay.log());

    kafka.create_topic(&format!("{}order", rig.prefix), 1, &[]);
    rig.caught_up();
    rig.verdict().assert_clean_but_for_ragged();
    relay.ends_well();
}

/// A broker that is away is named as well.
#[test]
fn are_not_blamed_for_a_broker_that_is_away() {
    let kafka = Kafka::builder().auto_create(false).start();
    let rig = rig(&kafka);
    kafka.create_topic(&format!("{}order", rig.prefix), 1, &[]);
    let relay = rig.streaming(&rig.config());
    insert(&rig, "order", 1);
    rig.caught_up();
    kafka.kill();
    insert(&rig, "order", 2);
    relay.says(&format!(
        "\"waiting_for\":\"no broker answers: {}",
        rig.bootstrap
    ));
    kafka.start_again();
    rig.caught_up();
    rig.verdict().assert_clean_but_for_ragged();
    relay.ends_well();
}

/// A stop with a record whose topic is missing: nothing is tried again, and the exit code and one line
/// say that the record is unsent and why.
#[test]
fn that_are_missing_end_a_stop_with_a_reason() {
    let kafka = Kafka::builder().auto_create(false).start();
    let rig = rig(&kafka);
    let mut end = Lsn::ZERO;
    // Named while librdkafka waits for the topic; refused before the stop, once or in a row.
    for (round, (more, words)) in [
        ("", "does not exist"),
        (
            "\"topic.metadata.propagation.max.ms\" = 500\n\n[delivery]\nbackoff_initial = \"20s\"\n\
             backoff_max = \"20s\"\n",
            "trying again",
        ),
        (
            "\"topic.metadata.propagation.max.ms\" = 500\n\n[delivery]\nbackoff_initial = \"20ms\"\nbackoff_max = \"50ms\"\n\
             \n[poison]\nrejected = \"skip\"\n",
            "trying again",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let relay = rig.streaming(&rig.config_with(&rig.postgres.url(), more));
        if round == 0 {
            insert(&rig, "order", 1);
            let at =
                Db::connect(&rig.postgres.url()).text("SELECT pg_current_wal_insert_lsn()::text");
            end = at.expect("a position").parse().expect("a position");
        }
        relay.says(words);
        let start = Instant::now();
        let (code, log) = relay.terminate();
        let lasted = start.elapsed();
        assert_eq!(code, Some(75), "{log}");
        let (_, after) = log.split_once("asked to stop").expect("it was asked");
        assert!(
            after
                .contains("not drained: 1 record is unsent or not acknowledged [drain-incomplete]"),
            "{log}"
        );
        let topic = format!("topic \"{}order\"", rig.prefix);
        assert!(after.contains(&topic), "the reason is not named: {log}");
        for words in ["trying again", "gave the topic up", "skipped an event"] {
            assert!(!after.contains(words), "{words} after a stop: {log}");
        }
        eprintln!("round {round}: stopped after {lasted:?}");
        assert!(lasted < Duration::from_secs(10), "{lasted:?}");
        let confirmed = rig.slot().read().expect("the slot").confirmed_flush;
        assert!(confirmed < end, "{confirmed} >= {end}: it was confirmed");
    }
    kafka.create_topic(&format!("{}order", rig.prefix), 1, &[]);
    let relay = rig.streaming(&rig.config());
    rig.caught_up();
    rig.verdict().assert_clean();
    relay.ends_well();
}
