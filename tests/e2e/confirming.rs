use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;
use walrelay_testkit::{Background, Db, eventually, servers};

use crate::rig::{PATIENCE, Rig, assert_has, insert_of, kafka_in_turn, wait_rows, with_source};

/// Ids of rows that were committed before the WAL reached a position.
struct Sample {
    ids: BTreeSet<String>,
    upto: Lsn,
}

/// Reads the rows first and the position then, so that each commit is before the position.
fn sample(db: &Db) -> Sample {
    let ids = db.column("SELECT id::text FROM outbox", &[]);
    Sample {
        ids: ids.into_iter().collect(),
        upto: db.insert_lsn(),
    }
}

/// The broker dies under load. From then on nothing may be confirmed; confirmed events must be in
/// the Kafka log, which is read while no relay runs that could repair it; feedback continues for
/// longer than `wal_sender_timeout`; and when the broker is back, everything arrives.
#[test]
fn confirming_never_runs_ahead_of_the_broker() {
    let kafka = kafka_in_turn();
    let postgres = servers::postgres_with(15, &[("wal_sender_timeout", "3s")]);
    let rig = Rig::with(postgres, kafka.bootstrap_servers()).outbox();
    // A small window, so that back-pressure begins soon.
    let config = rig.config_and("\n[delivery]\nmax_in_flight_records = 1024\n");
    let relay = rig.streaming(&config);
    let slot = rig.slot();
    let walsender = slot.wait_active(PATIENCE);

    let load = rig.workload().rate(3_000.0).start();
    let db = rig.db();
    let samples = Background::start("samples", move |stop| {
        let mut samples = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            samples.push(sample(&db));
        }
        samples
    });
    eventually(PATIENCE, || load.written().rows > 3_000);
    let some = slot.wal_end();
    // Something must have been confirmed, however slowly the broker started.
    eventually(PATIENCE, || {
        let now = slot.confirmed();
        now >= some && load.written().rows > 6_000
    });
    kafka.kill();
    let dead_since = Instant::now();
    // Reports in flight at the broker's death may still be confirmed.
    let frozen = slot.wait_settled(PATIENCE);
    let rows = load.written().rows;
    eventually(PATIENCE, || {
        let now = slot.read().expect("the slot");
        assert_eq!(
            now.confirmed_flush, frozen,
            "confirmed while the broker was down"
        );
        assert_eq!(now.active_pid, Some(walsender), "feedback stopped");
        // Longer than the server's timeout, and with further rows written.
        dead_since.elapsed() > Duration::from_secs(8) && load.written().rows > rows + 3_000
    });
    let samples = samples.end();
    assert_has(&relay.log(), &["the sink accepts nothing more"]);
    relay.kill();
    load.stop();

    kafka.start_again();
    // A broker that has just started may not know all topics yet. Once it knows them, its log is
    // read to the end: no relay runs that could add to it.
    for kind in ["order", "payment", "customer"] {
        let topic = format!("{}{kind}", rig.prefix);
        assert!(!rig.records_in(&topic, 1).is_empty(), "nothing in {topic}");
    }
    let records = rig.records(0);
    let delivered: BTreeSet<String> = records.into_iter().filter_map(|it| it.id).collect();
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

    let verdict = rig.finish(rig.relay());
    eprintln!("broker killed under load: {verdict}");
    verdict.assert_clean_but_for_ragged();
}

/// The relay survives a restart of the broker and repeats nothing: the producer is idempotent and
/// continues with the records that it holds.
#[test]
fn confirming_goes_on_when_the_broker_is_back() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    let relay = rig.relay();
    let load = rig.workload().rate(2_000.0).start();
    eventually(PATIENCE, || load.written().rows > 2_000);
    // The client gives up a topic that it has not known for 30 s, also if no broker answers.
    rig.caught_up();
    kafka.stop();
    wait_rows(&load, 4_000);
    kafka.start_again();
    wait_rows(&load, 2_000);
    load.stop();
    let verdict = rig.finish(relay);
    eprintln!("broker restarted under load: {verdict}");
    verdict.assert_nothing_repeated();
}

/// Commits would wait for Kafka, and hang while no relay runs: the relay warns.
#[test]
fn waiting_of_a_synchronous_commit_is_warned_of() {
    let rig = Rig::with_outbox(18);
    let relay = rig.relay();
    let db = rig.db();
    db.batch("ALTER SYSTEM SET synchronous_standby_names = '*'");
    db.batch("SELECT pg_reload_conf()");
    let waits = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    eventually(PATIENCE, || db.value::<i64>(waits) == 1);
    let walsender = rig.slot().wait_active(PATIENCE);
    db.batch(&format!("SELECT pg_terminate_backend({walsender})"));
    relay.says("makes this relay a synchronous standby");
    // A relay that is asked to stop while it reconnects cannot say what is confirmed.
    relay.says_often("\"streaming\"", 2);
    relay.ends_well();
}

/// A commit record may begin exactly where the confirmed one ends. A relay that asked for the WAL
/// after the confirmed position, instead of from it on, would lose that transaction.
#[test]
fn a_commit_at_the_confirmed_position_is_sent() {
    let rig = Rig::with_outbox(18);
    rig.create_slot();
    // It notes no positions: a note is WAL behind the position that it confirms.
    let config = with_source(rig.config(), "create = false");
    let [first, second] = [(); 2].map(|()| rig.db());
    let slot = rig.slot();
    let begin = |db: &Db, key: &str, number: u32| {
        db.batch("BEGIN");
        insert_of(db, "order", key, number);
    };
    // The server may write a record of its own between the two commits, so repeat until it does
    // not.
    let adjacent = (1..=20).any(|number| {
        let relay = rig.streaming(&config);
        begin(&first, "first", number);
        begin(&second, "second", number);
        first.batch("COMMIT");
        slot.wait_until(slot.wal_end(), PATIENCE);
        relay.ends_well();
        let adjacent = first.insert_lsn() == slot.confirmed();
        second.batch("COMMIT");
        adjacent
    });
    assert!(adjacent, "no commit started at the confirmed position");

    rig.finish(rig.streaming(&config)).assert_nothing_repeated();
}
