use walrelay_testkit::Db;

use crate::rig::{PATIENCE, Rig, ends, insert};

/// Ten good rows, one that cannot be delivered, ten good ones. The relay stops with a word and exit
/// code 65; the first ten are confirmed and not repeated by the next start, the others wait.
fn stops(poison: &str, more: &str, id: &str, words: &str) {
    let rig = Rig::with_outbox(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let config = rig.config_with(&rig.postgres.url(), more);
    let mut relay = rig.streaming(&config);
    let good = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            insert(&db, number);
        }
    };
    good(1..11);
    let before = rig.slot().wal_end();
    db.batch(poison);
    let after = rig.slot().wal_end();
    good(11..21);
    let code = relay.ended().code();
    assert_eq!(code, Some(65), "{}", relay.log());
    assert!(relay.log().contains(&format!("[{id}]")), "{}", relay.log());
    assert!(relay.log().contains(words), "{}", relay.log());
    assert!(
        !relay.log().contains("secret-value"),
        "a row's value was logged: {}",
        relay.log()
    );
    let confirmed = rig.slot().read().expect("the slot").confirmed_flush;
    assert!(
        confirmed >= before,
        "what came before was not confirmed: {confirmed} < {before}"
    );
    assert!(
        confirmed < after,
        "the poisoned event was confirmed: {confirmed} >= {after}"
    );

    // Again: the same word, and nothing is repeated.
    let mut relay = rig.start(&config);
    assert_eq!(relay.ended().code(), Some(65), "{}", relay.log());
    // As the error's remedy says: past the transaction, once somebody has taken care of it.
    db.batch(&format!(
        "SELECT pg_replication_slot_advance('walrelay', '{after}')"
    ));
    db.batch(
        "DELETE FROM outbox WHERE aggregatetype IS NULL OR aggregatetype <> 'order' \
              OR aggregateid <> 'key'",
    );
    let relay = rig.streaming(&config);
    let slot = rig.slot();
    slot.wait_until(slot.wal_end(), PATIENCE);
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!((verdict.committed, verdict.duplicates), (20, 0));
    relay.ends_well();
}

#[test]
fn without_a_topic_to_go_to() {
    stops(
        "INSERT INTO outbox VALUES ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', NULL, 'key', 'T', \
         '\"secret-value\"')",
        "",
        "unroutable",
        "a row of public.outbox with the event id \"018f5a3e-7c1d-7b1a-9c55-0123456789ab\" cannot be",
    );
}

#[test]
fn too_large_for_kafka() {
    stops(
        "INSERT INTO outbox VALUES ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', 'order', 'large', 'T', \
         jsonb_build_object('number', 1, 'text', repeat('secret-value', 200000)))",
        "",
        "delivery",
        "a record with the event id \"018f5a3e-7c1d-7b1a-9c55-0123456789ab\" was not delivered",
    );
}

#[test]
fn with_a_name_no_topic_can_have() {
    stops(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'we ird', 'key', 'T', '\"secret-value\"')",
        "",
        "delivery",
        "we ird",
    );
}

/// The broker itself refuses a record in the midst of its key's. Nothing behind it may get through:
/// it would overtake.
#[test]
fn refused_by_the_broker_is_not_overtaken() {
    let rig = Rig::with_outbox(15);
    let topic = format!("{}order", rig.prefix);
    rig.kafka()
        .create_topic(&topic, 1, &[("max.message.bytes", "20000")]);
    let config = rig.config_with(&rig.postgres.url(), "\"batch.size\" = 10000\n");
    let mut relay = rig.streaming(&config);
    Db::connect(&rig.postgres.url()).batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key', 'T', \
         jsonb_build_object('number', n, 'text', \
                            CASE WHEN n = 2000 THEN (SELECT string_agg(md5(random()::text), '') \
                            FROM generate_series(1, 2000)) ELSE repeat('x', 50) END) \
         FROM generate_series(1, 50000) n",
    );
    ends(&mut relay, 65, "delivery");
    let history = rig.history_within(std::time::Duration::from_secs(3));
    let verdict = history.check();
    eprintln!(
        "refused by the broker: {} records got through",
        history.records.len()
    );
    assert!(verdict.reordered.is_empty(), "overtaken: {verdict}");
    // Twice: the second time one by one, to find the one that is meant.
    let distinct = history.records.len() - verdict.duplicates;
    assert!(distinct < 2_000, "{verdict}");
}

/// UPDATE, DELETE and TRUNCATE are no events: ignored, counted, survived. A publication of all
/// operations brings them.
#[test]
fn updates_deletes_and_truncates_are_none() {
    let rig = Rig::with_outbox(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox");
    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')");
    let relay = rig.relay();
    insert(&db, 1);
    db.batch("UPDATE outbox SET type = 'U'");
    db.batch("UPDATE outbox SET id = gen_random_uuid()");
    db.batch("DELETE FROM outbox");
    db.batch("TRUNCATE outbox");
    db.batch("SELECT pg_logical_emit_message(true, 'p', 'x')");
    db.batch("SELECT pg_logical_emit_message(false, 'p', 'x')");
    insert(&db, 1);
    insert(&db, 2);
    rig.caught_up();
    let records = rig.history().records;
    assert_eq!(records.len(), 3, "{records:?}");
    let log = relay.ends_well();
    for counted in [
        "\"ignored_updates\":2",
        "\"ignored_deletes\":1",
        "\"ignored_truncates\":1",
    ] {
        assert!(log.contains(counted), "{counted}: {log}");
    }
}
