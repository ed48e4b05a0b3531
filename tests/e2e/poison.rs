use walrelay_testkit::{History, Producer};

use crate::rig::{PATIENCE, Rig, SLOT, assert_has, assert_lacks, create_slot, edit, ends, insert};

/// Writes ten good rows, one that cannot be delivered, and ten good ones. The relay stops with an
/// error and exit code 65. The first ten rows are confirmed and not repeated by the next start, the
/// others wait.
fn stops(poison: &str, more: &str, id: &str, words: &str) {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let config = rig.config_and(more);
    let mut relay = rig.streaming(&config);
    let good = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            insert(&db, number);
        }
    };
    // The first record waits for its topic, perhaps for longer than a relay that stops waits for
    // records in flight.
    good(1..2);
    rig.caught_up();
    good(2..11);
    db.batch(poison);
    let after = rig.slot().wal_end();
    good(11..21);
    let log = ends(&mut relay, 65, id);
    assert_has(&log, &[words]);
    // The value of a row.
    assert_lacks(&log, &["secret-value"]);
    let confirmed = rig.slot().confirmed();
    assert!(
        confirmed < after,
        "the poisoned event was confirmed: {confirmed} >= {after}"
    );

    // The next start stops with the same error, and repeats nothing, so what came before is confirmed.
    ends(&mut rig.start(&config), 65, id);
    // Follow the remedy: skip the transaction once it has been taken care of.
    db.batch(&format!(
        "SELECT pg_replication_slot_advance('walrelay', '{after}')"
    ));
    db.batch(
        "DELETE FROM outbox WHERE aggregatetype IS NULL OR aggregatetype <> 'order' \
              OR aggregateid <> 'key'",
    );
    let relay = rig.start_with(&config, &["--accept-gap"]);
    rig.finish(relay).assert_counts(20, 0);
}

#[test]
fn an_event_without_a_topic_stops_the_relay() {
    stops(
        "INSERT INTO outbox VALUES ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', NULL, 'key', 'T', \
         '\"secret-value\"')",
        "",
        "unroutable",
        "a row of public.outbox with the event id \"018f5a3e-7c1d-7b1a-9c55-0123456789ab\" cannot be",
    );
}

#[test]
fn an_event_too_large_for_kafka_stops_the_relay() {
    stops(
        "INSERT INTO outbox VALUES ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', 'order', 'large', 'T', \
         jsonb_build_object('number', 1, 'text', repeat('secret-value', 200000)))",
        "",
        "delivery",
        "a record with the event id \"018f5a3e-7c1d-7b1a-9c55-0123456789ab\" was not delivered",
    );
}

#[test]
fn an_event_with_an_invalid_topic_name_stops_the_relay() {
    stops(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'we ird', 'key', 'T', '\"secret-value\"')",
        "",
        "delivery",
        "we ird",
    );
}

/// A column of timestamps is ahead of the broker's clock.
#[test]
fn an_event_with_a_future_timestamp_stops_the_relay() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch("ALTER TABLE outbox ADD at timestamptz NOT NULL DEFAULT now()");
    let config = rig.config();
    let timestamp = "[router.debezium]\n\"table.field.event.timestamp\" = \"at\"\n";
    edit(&config, "[router.debezium]\n", timestamp);
    let mut relay = rig.streaming(&config);
    insert(&db, 1);
    rig.caught_up();
    db.batch("ALTER TABLE outbox ALTER at SET DEFAULT now() + interval '1 day'");
    insert(&db, 2);
    let log = ends(&mut relay, 65, "delivery");
    assert_has(&log, &["broker's clock", "message.timestamp.after.max.ms"]);
}

/// The broker itself refuses a record in the middle of its key's records. No later record may get
/// through: it would overtake the refused one.
#[test]
fn an_event_that_the_broker_refuses_is_not_overtaken() {
    let rig = Rig::with_outbox(15);
    let topic = format!("{}order", rig.prefix);
    rig.kafka()
        .create_topic(&topic, 1, &[("max.message.bytes", "20000")]);
    let config = rig.config_and("\"batch.size\" = 10000\n");
    let mut relay = rig.streaming(&config);
    rig.db().batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key', 'T', \
         jsonb_build_object('number', n, 'text', \
                            CASE WHEN n = 2000 THEN (SELECT string_agg(md5(random()::text), '') \
                            FROM generate_series(1, 2000)) ELSE repeat('x', 50) END) \
         FROM generate_series(1, 50000) n",
    );
    ends(&mut relay, 65, "delivery");
    // Requests of the relay that were in flight come before this record.
    let producer = Producer::new(&rig.bootstrap);
    let headers = [("id", "marker")];
    producer.send(&topic, None, None, &headers);
    assert!(producer.delivers(PATIENCE));
    let committed = History::committed(&rig.postgres.url(), "public.outbox", &rig.prefix);
    let mut records = rig.records(0);
    let read = records.len();
    records.retain(|record| record.id.as_deref() != Some("marker"));
    assert_eq!(records.len() + 1, read, "the marker was not read");
    let history = History { committed, records };
    let verdict = history.check();
    eprintln!(
        "refused by the broker: {} records got through",
        history.records.len()
    );
    assert!(verdict.reordered.is_empty(), "overtaken: {verdict}");
    // Records before the refused one are sent twice: the second time one by one, to find the record
    // at fault.
    let distinct = history.records.len() - verdict.duplicates;
    assert!(distinct < 2_000, "{verdict}");
}

/// UPDATE, DELETE and TRUNCATE are no events: they are ignored, and counted. A publication of all
/// operations sends them.
#[test]
fn updates_deletes_and_truncates_are_no_poison() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox");
    create_slot(&db, SLOT);
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
    let parts = [
        "\"ignored_updates\":2",
        "\"ignored_deletes\":1",
        "\"ignored_truncates\":1",
    ];
    assert_has(&log, &parts);
}
