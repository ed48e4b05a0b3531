use walrelay_testkit::{Db, Kafka, servers};

use crate::rig::Rig;

/// A transaction of a million rows goes through in bounded memory.
#[test]
fn transaction_of_a_million_rows() {
    // Its records are gone with its broker.
    let kafka = Kafka::builder().start();
    let rig = Rig::with(servers::postgres(15), kafka.bootstrap_servers());
    rig.workload().create_tables();
    let relay = rig.relay();
    Db::connect(&rig.postgres.url()).batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || k, 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 100)) \
         FROM generate_series(1, 10000) n, generate_series(0, 99) k",
    );
    rig.caught_up();
    let memory = relay.peak_memory();
    let verdict = rig.verdict();
    eprintln!("1,000,000 rows in one transaction: {memory} MiB at most; {verdict}");
    verdict.assert_clean();
    assert_eq!((verdict.committed, verdict.duplicates), (1_000_000, 0));
    assert!(memory < 128, "{memory} MiB");
    let (code, log) = relay.terminate();
    assert_eq!(code, Some(0), "{log}");
}

/// A row beside which the buffers are small, with bytes of every kind of character.
#[test]
fn row_of_a_few_megabytes() {
    let rig = Rig::new(18);
    rig.workload().create_tables();
    let config = rig.config_with(
        &rig.postgres.url(),
        "\"message.max.bytes\" = \"10000000\"\n",
    );
    let topic = format!("{}order", rig.prefix);
    rig.kafka()
        .create_topic(&topic, 1, &[("max.message.bytes", "10000000")]);
    let relay = rig.start(&config);
    relay.streaming();
    Db::connect(&rig.postgres.url()).batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-1', 'T', \
         jsonb_build_object('number', n, 'text', repeat('aé漢😀\"\\', 300000)) \
         FROM generate_series(1, 3) n",
    );
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.committed, 3);
    drop(relay);
}
