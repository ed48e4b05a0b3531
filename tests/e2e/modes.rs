use walrelay_testkit::Db;

use crate::rig::{Relay, Rig};

const UP: &str = "\"mode\":\"Throughput\"";
const DOWN: &str = "\"mode\":\"Latency\"";

fn changes(relay: &Relay, mode: &str) -> usize {
    relay.log().matches(mode).count()
}

/// Enough to be behind with: transactions of a thousand rows, each key in all of them.
fn backlog(db: &Db) {
    for transaction in 0..150 {
        db.batch(&format!(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'bulk-' || n % 50, 'T', \
             jsonb_build_object('number', {transaction} * 1000 + n, 'text', repeat('x', 200)) \
             FROM generate_series(1, 1000) n",
        ));
    }
}

/// A relay that is behind sends by the one producer, a relay that is not by the other; that it changes
/// between them is not to be seen in what arrives, also when it is killed meanwhile.
#[test]
fn change_with_the_load_and_keep_the_history() {
    let rig = Rig::with_outbox(15);
    let config = rig.config();
    Rig::log_debug(&config);
    let started = || rig.streaming(&config);
    started().ends_well();
    let db = Db::connect(&rig.postgres.url());

    // A backlog, then a trickle.
    backlog(&db);
    let relay = started();
    relay.says(UP);
    rig.caught_up();
    rig.workload().rows(3_000).run();
    relay.says(DOWN);
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0, "nothing failed");

    // A transaction that takes a while to be sent is a backlog too; killed in the midst of it.
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
    rig.caught_up();
    rig.workload().rows(3_000).run();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("modes: {verdict}");
    verdict.assert_clean();
    assert!(verdict.committed >= 456_000, "{verdict}");
    relay.ends_well();
}

/// What is older than half an hour opens no gate of the producer for throughput, and would go one by one to
/// each partition, each after a linger: it goes without gates then.
#[test]
fn a_backlog_with_timestamps_of_long_ago_is_drained_in_full_requests() {
    let rig = Rig::with_outbox(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch("ALTER TABLE outbox ADD COLUMN at timestamptz");
    let config = rig.config();
    Rig::log_debug(&config);
    let started = || {
        let set = "router.debezium.table.field.event.timestamp=at";
        let relay = rig.start_with(&config, &["--set", set]);
        relay.streaming();
        relay
    };
    started().ends_well();
    // The time of production first, so that the mode is changed before the old ones come.
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
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("of long ago: {verdict}");
    verdict.assert_clean();
    assert_eq!(verdict.committed, 120_000);
    assert_eq!(verdict.duplicates, 0, "nothing failed");
    relay.ends_well();
}
