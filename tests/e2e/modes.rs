use walrelay_testkit::Db;

use crate::large::caught_up_while_moving;
use crate::rig::{Relay, Rig};

const UP: &str = "\"mode\":\"Throughput\"";
const DOWN: &str = "\"mode\":\"Latency\"";

fn changes(relay: &Relay, mode: &str) -> usize {
    relay.log().matches(mode).count()
}

/// Writes a backlog: 150 transactions of a thousand rows, each key in all of them.
fn backlog(db: &Db) {
    for transaction in 0..150 {
        db.batch(&format!(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'bulk-' || n % 50, 'T', \
             jsonb_build_object('number', {transaction} * 1000 + n, 'text', repeat('x', 200)) \
             FROM generate_series(1, 1000) n",
        ));
    }
}

/// A relay that is behind sends with one producer, otherwise with the other. The records show no
/// trace of the changes, also when the relay is killed meanwhile.
#[test]
fn modes_change_with_the_load_and_keep_the_history() {
    let rig = Rig::with_outbox(15);
    let config = rig.config_debug("");
    let started = || rig.streaming(&config);
    started().ends_well();
    let db = rig.db();

    // A backlog, then single rows.
    backlog(&db);
    let relay = started();
    relay.says(UP);
    rig.caught_up();
    rig.workload().rows(3_000).run();
    relay.says(DOWN);
    rig.caught_up();
    rig.verdict().assert_nothing_repeated();

    // A transaction that takes a while to be sent is a backlog too. Kill the relay in the middle of
    // it.
    let up = changes(&relay, UP);
    for transaction in 1..3 {
        db.batch(&format!(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'bulk-' || n % 50, 'T', \
             jsonb_build_object('number', {transaction} * 200000 + n) \
             FROM generate_series(1, 150000) n",
        ));
    }
    relay.says_often(UP, up + 1);
    relay.kill();
    let relay = started();
    caught_up_while_moving(&rig);
    rig.workload().rows(3_000).run();
    let verdict = rig.finish(relay);
    eprintln!("modes: {verdict}");
    verdict.assert_clean();
    assert!(verdict.committed >= 456_000, "{verdict}");
}

/// Records with timestamps older than half an hour open no gate for the throughput producer, and
/// would be sent one by one to each partition, each after a linger. The producer then sends without
/// gates, one request at a time.
#[test]
fn a_backlog_with_timestamps_of_long_ago_is_drained_in_full_requests() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch("ALTER TABLE outbox ADD COLUMN at timestamptz");
    let config = rig.config_debug("");
    let started = || {
        let set = "router.debezium.table.field.event.timestamp=at";
        let relay = rig.start_with(&config, &["--set", set]);
        relay.streaming();
        relay
    };
    started().ends_well();
    // Rows without a time of their own come first, so that the mode has changed before the old
    // ones.
    for (at, transactions) in [("NULL", 0..60), ("now() - interval '2 hours'", 60..120)] {
        for transaction in transactions {
            db.batch(&format!(
                "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'bulk-' || n % 50, 'T', \
                 jsonb_build_object('number', {transaction} * 1000 + n), {at} \
                 FROM generate_series(1, 1000) n",
            ));
        }
    }
    let relay = started();
    relay.says("one request at a time: timestamps are too old for more");
    let verdict = rig.finish(relay);
    eprintln!("of long ago: {verdict}");
    verdict.assert_counts(120_000, 0);
}
