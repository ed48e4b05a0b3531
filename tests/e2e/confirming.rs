use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;
use walrelay_testkit::{Db, History, Kafka, eventually, servers};

use crate::rig::{PATIENCE, Rig};

/// Ids that were committed before the log reached a position.
struct Sample {
    ids: BTreeSet<String>,
    upto: Lsn,
}

/// First the snapshot, then the position: each id's commit lies before it.
fn sample(db: &Db) -> Sample {
    let rows = db.query("SELECT id::text FROM outbox", &[]);
    let ids = rows.iter().map(|row| row.get(0)).collect();
    let upto = db
        .text("SELECT pg_current_wal_insert_lsn()::text")
        .expect("a position");
    Sample {
        ids,
        upto: upto.parse().expect("an LSN"),
    }
}

/// The broker dies under load. From then on nothing may be confirmed; what was confirmed must be in
/// the broker's log, read while no relay runs that could mend it; feedback goes on for longer than
/// `wal_sender_timeout`; and when the broker is back, everything arrives.
#[test]
fn never_runs_ahead_of_the_broker() {
    let kafka = Kafka::builder().start();
    let postgres = servers::builder(15)
        .setting("wal_sender_timeout", "3s")
        .start()
        .expect("Postgres starts");
    let rig = Rig::with(postgres, kafka.bootstrap_servers());
    rig.workload().create_tables();
    // A small window, so that the relay is soon back-pressured.
    let config = rig.config_with(
        &rig.postgres.url(),
        "\n[delivery]\nmax_in_flight_records = 1024\n",
    );
    let relay = rig.streaming(&config);
    let slot = rig.slot();
    let walsender = slot.wait_active(PATIENCE);

    let load = rig.workload().rate(3_000.0).start();
    let db = Db::connect(&rig.postgres.url());
    let mut samples = Vec::new();
    let stop = AtomicBool::new(false);
    let frozen = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                samples.push(sample(&db));
            }
        });
        eventually(PATIENCE, || load.written().rows > 3_000);
        let some = slot.wal_end();
        // Something is to have been confirmed, however slow the broker was to start.
        eventually(PATIENCE, || {
            let now = slot.read().expect("the slot").confirmed_flush;
            now >= some && load.written().rows > 6_000
        });
        kafka.kill();
        // Reports that were under way when the broker died may still be confirmed, at the latest
        // with the next status update, a second later.
        let dead_since = Instant::now();
        eventually(PATIENCE, || {
            dead_since.elapsed() > Duration::from_millis(1500)
        });
        let frozen = slot.read().expect("the slot").confirmed_flush;
        let rows = load.written().rows;
        eventually(PATIENCE, || {
            let now = slot.read().expect("the slot");
            assert_eq!(
                now.confirmed_flush, frozen,
                "confirmed while the broker was down"
            );
            assert_eq!(now.active_pid, Some(walsender), "feedback stopped");
            // Beyond the server's timeout, and with more work waiting.
            dead_since.elapsed() > Duration::from_secs(8) && load.written().rows > rows + 3_000
        });
        stop.store(true, Ordering::Relaxed);
        frozen
    });
    assert!(
        relay.log().contains("the sink takes nothing more"),
        "{}",
        relay.log()
    );
    relay.kill();
    load.stop();

    kafka.start_again();
    let delivered: BTreeSet<String> = History::records(
        &rig.bootstrap,
        &rig.prefix,
        usize::MAX,
        Duration::from_secs(5),
    )
    .into_iter()
    .filter_map(|record| record.id)
    .collect();
    let confirmed = samples.iter().rev().find(|sample| sample.upto <= frozen);
    let confirmed = confirmed.expect("something was confirmed before the broker died");
    assert!(
        confirmed.ids.len() > 1_000,
        "too little was confirmed to show anything"
    );
    let early: Vec<&String> = confirmed.ids.difference(&delivered).collect();
    assert!(
        early.is_empty(),
        "confirmed and not in the broker's log: {early:?}"
    );

    let relay = rig.relay();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("broker killed under load: {verdict}");
    verdict.assert_clean_but_for_ragged();
    relay.ends_well();
}

/// The same relay sees the broker through: stopped in order and started again, nothing is repeated,
/// as the producer is idempotent and goes on with what it holds.
#[test]
fn goes_on_when_the_broker_is_back() {
    let kafka = Kafka::builder().start();
    let rig = Rig::with(servers::postgres(18), kafka.bootstrap_servers());
    rig.workload().create_tables();
    let relay = rig.relay();
    let load = rig.workload().rate(2_000.0).start();
    eventually(PATIENCE, || load.written().rows > 2_000);
    kafka.stop();
    let rows = load.written().rows;
    eventually(PATIENCE, || load.written().rows > rows + 4_000);
    kafka.start_again();
    let rows = load.written().rows;
    eventually(PATIENCE, || load.written().rows > rows + 2_000);
    load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("broker restarted under load: {verdict}");
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0);
    relay.ends_well();
}

/// The commit record of a transaction may start exactly where the confirmed one ends. A relay that asked for
/// the log after the confirmed position, instead of from it on, would lose that transaction.
#[test]
fn a_commit_at_the_confirmed_position_is_sent() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    let [first, second] = [(); 2].map(|()| Db::connect(&rig.postgres.url()));
    let slot = rig.slot();
    let begin = |db: &Db, key: &str, number: u32| {
        db.batch(&format!(
            "BEGIN; INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '{key}', 'T', '{{\"number\": {number}}}')"
        ));
    };
    // A record of the server's own may come between the two commits, so it is tried again.
    let adjacent = (1..=20).any(|number| {
        let relay = rig.streaming(&config);
        begin(&first, "first", number);
        begin(&second, "second", number);
        first.batch("COMMIT");
        slot.wait_until(slot.wal_end(), PATIENCE);
        relay.ends_well();
        let confirmed = slot.read().expect("the slot").confirmed_flush;
        let end = first.text("SELECT pg_current_wal_insert_lsn()::text");
        let adjacent = end == Some(confirmed.to_string());
        second.batch("COMMIT");
        adjacent
    });
    assert!(adjacent, "no commit started at the confirmed position");

    let relay = rig.streaming(&config);
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0);
    relay.ends_well();
}
