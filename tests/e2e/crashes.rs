use std::collections::HashSet;
use std::time::{Duration, Instant};

use walrelay_lab::servers::Shutdown;
use walrelay_testkit::{Cut, Db, Direction, eventually};

use crate::rig::{PATIENCE, Rig, SLOT, ends, insert};

/// Ten times SIGKILL, at a moment that the rows written so far decide, of a relay that has confirmed some of
/// them. What is repeated then was not confirmed, to a record.
#[test]
fn by_sigkill_lose_nothing() {
    let rig = Rig::with_outbox(15);
    let mut relay = rig.relay();
    let slot = rig.slot();
    let confirmed = || slot.read().expect("the slot is there").confirmed_flush;
    let mut unconfirmed = HashSet::new();
    let mut from = confirmed();
    let load = rig.workload().rate(2_500.0).seed(7).start();
    for round in 0..10_u64 {
        let next = load.written().rows + 300 + 137 * (round % 5);
        eventually(PATIENCE, || load.written().rows >= next);
        eventually(PATIENCE, || confirmed() > from);
        relay.kill();
        slot.wait_inactive(PATIENCE);
        from = confirmed();
        let behind = behind(&rig);
        eprintln!("kill {round}: {} rows behind {from}", behind.len());
        unconfirmed.extend(behind);
        relay = rig.relay();
    }
    let written = load.stop();
    rig.caught_up();
    let history = rig.history();
    let verdict = history.check();
    eprintln!("SIGKILL x10, {} rows: {verdict}", written.rows);
    verdict.assert_clean_but_for_ragged();
    let mut seen = HashSet::new();
    let ids = history
        .records
        .iter()
        .filter_map(|record| record.id.as_ref());
    let confirmed_and_repeated: Vec<_> = ids
        .filter(|id| !seen.insert(*id) && !unconfirmed.contains(*id))
        .collect();
    assert!(
        confirmed_and_repeated.is_empty(),
        "{confirmed_and_repeated:?}"
    );
    relay.ends_well();
}

/// The ids of the rows that the slot, which nobody reads, is not past: the first column of each INSERT.
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
fn behind(rig: &Rig) -> Vec<String> {
    const UUID: &str = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}";
    let rows = Db::connect(&rig.postgres.url()).query(
        "SELECT (regexp_match(encode(data, 'escape'), '(' || $1 || ')'))[1] \
         FROM pg_logical_slot_peek_binary_changes($2, NULL, NULL, \
              'proto_version', '1', 'publication_names', 'walrelay') \
         WHERE get_byte(data, 0) = ascii('I')",
        &[&UUID, &SLOT],
    );
    rows.iter().map(|row| row.get(0)).collect()
}

/// SIGTERM under load drains: the next start repeats nothing.
#[test]
fn by_sigterm_repeat_nothing() {
    let rig = Rig::with_outbox(18);
    // The relay first: rows from before its slot was made are not relayed.
    let mut relay = rig.relay();
    let load = rig.workload().rate(2_500.0).seed(8).start();
    // Then the topics are there, for which a relay that is asked to stop does not wait.
    eventually(PATIENCE, || load.written().rows >= 1_000);
    rig.caught_up();
    for _ in 0..5 {
        let next = load.written().rows + 1_000;
        eventually(PATIENCE, || load.written().rows >= next);
        relay.ends_well();
        relay = rig.relay();
    }
    load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("SIGTERM x5: {verdict}");
    verdict.assert_clean();
    assert_eq!(
        verdict.duplicates, 0,
        "a drained relay has nothing to repeat"
    );
}

/// SIGTERM in the middle of a large transaction: it is read to its end, so that its first records
/// are not sent again.
#[test]
fn by_sigterm_within_a_transaction_repeat_nothing() {
    let rig = Rig::with_outbox(15);
    let relay = rig.relay();
    // All in one transaction: numbers per key as the checker wants them.
    Db::connect(&rig.postgres.url()).batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || k, 'T', \
         jsonb_build_object('number', n) FROM generate_series(1, 600) n, generate_series(0, 99) k",
    );
    // The first records are there: it is in the middle.
    relay.says("streaming");
    eventually(PATIENCE, || {
        !walrelay_testkit::History::records(&rig.bootstrap, &rig.prefix, 1, Duration::from_secs(1))
            .is_empty()
    });
    relay.ends_well();
    let relay = rig.relay();
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0);
    drop(relay);
}

/// Postgres goes away, in each of its ways, and comes back.
#[test]
fn of_postgres_are_survived() {
    let rig = Rig::with_outbox(15);
    let relay = rig.relay();
    let load = rig.workload().rate(1_500.0).seed(9).start();
    let slot = rig.slot();
    for _ in 0..3 {
        let next = load.written().rows + 500;
        eventually(PATIENCE, || load.written().rows >= next);
        let walsender = slot.wait_active(PATIENCE);
        Db::connect(&rig.postgres.url())
            .batch(&format!("SELECT pg_terminate_backend({walsender})"));
        eventually(PATIENCE, || {
            slot.read()
                .and_then(|slot| slot.active_pid)
                .is_some_and(|pid| pid != walsender)
        });
    }
    for how in [Shutdown::Fast, Shutdown::Immediate] {
        let next = load.written().rows + 500;
        eventually(PATIENCE, || load.written().rows >= next);
        rig.postgres.stop(how).expect("it stops");
        rig.postgres.start_again().expect("it starts again");
    }
    let next = load.written().rows + 500;
    eventually(PATIENCE, || load.written().rows >= next);
    load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("walsender terminated x3, restart fast, restart immediate: {verdict}");
    verdict.assert_clean();
    relay.ends_well();
}

/// The connection to Postgres is reset in the middle of a frame, cut, and stalled.
#[test]
fn of_the_network_are_survived() {
    let rig = Rig::with_outbox(15);
    let (proxy, url) = rig.proxy();
    let config = rig.config_with(&url, "\n[delivery]\nbackoff_max = \"500ms\"\n");
    let text = std::fs::read_to_string(&config).expect("the configuration");
    let text = text.replace(
        "[source]\n",
        "[source]\nreceive_timeout = \"2s\"\nwal_sender_timeout = \"2s\"\n",
    );
    std::fs::write(&config, text).expect("the configuration");
    let relay = rig.streaming(&config);
    let load = rig.workload().rate(1_500.0).seed(10).start();
    let more = |rows: u64| {
        let next = load.written().rows + rows;
        eventually(PATIENCE, || load.written().rows >= next);
    };
    for bytes in [10_001, 100_003] {
        more(300);
        // Now and then it hits the control connection, which the stream does not need: again.
        loop {
            let streams = relay.streams();
            proxy.reset_after(Direction::ToClient, bytes);
            eventually(PATIENCE, || !proxy.reset_pending(Direction::ToClient));
            let enough = Instant::now() + Duration::from_secs(10);
            eventually(PATIENCE, || {
                relay.streams() > streams || Instant::now() > enough
            });
            if relay.streams() > streams {
                break;
            }
        }
    }
    // Each blow falls on a relay that streams.
    let streams_after = |blow: &dyn Fn()| {
        more(300);
        let streams = relay.streams();
        blow();
        eventually(PATIENCE, || relay.streams() > streams);
    };
    for how in [Cut::Reset, Cut::Fin] {
        streams_after(&|| proxy.cut(how));
    }
    streams_after(&|| {
        proxy.stall();
        relay.says("nothing was received from Postgres");
        proxy.resume();
        proxy.cut(Cut::Reset);
    });
    more(300);
    load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("connection reset x2, cut x2, stalled: {verdict}");
    verdict.assert_clean();
    relay.ends_well();
}

/// A second relay on the slot waits and says so, and takes over when the first is gone.
#[test]
fn of_one_relay_let_another_take_over() {
    let rig = Rig::with_outbox(15);
    let first = rig.relay();
    let (proxy, url) = rig.proxy();
    let second = rig.start(&rig.config_with(&url, ""));
    second.says("is being read by server process");
    let load = rig.workload().rows(2_000).rate(1_000.0).run();
    // Two for the first look, and one that looks on, whose last words may be under way. Not two more
    // for each look.
    assert!(proxy.accepted() <= 4, "{} connections", proxy.accepted());
    first.kill();
    second.streaming();
    rig.caught_up();
    let verdict = rig.verdict();
    assert!(verdict.committed as u64 >= load.rows);
    verdict.assert_clean_but_for_ragged();
}

/// A slot that was being relayed and is gone is not made anew.
#[test]
fn of_the_slot_stop_the_relay() {
    let rig = Rig::with_outbox(15);
    let mut relay = rig.relay();
    let walsender = rig.slot().wait_active(PATIENCE);
    let db = Db::connect(&rig.postgres.url());
    // Within one statement, so that the relay cannot come back in between.
    db.batch(&format!(
        "DO $$ BEGIN PERFORM pg_terminate_backend({walsender}); \
         WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = {walsender}) LOOP \
         PERFORM pg_stat_clear_snapshot(); END LOOP; \
         PERFORM pg_drop_replication_slot('{SLOT}'); END $$"
    ));
    let code = relay.ended().code();
    assert_eq!(code, Some(65), "{}", relay.log());
    assert!(relay.log().contains("[slot-gone]"), "{}", relay.log());
    assert!(rig.slot().read().is_none(), "it was made anew");
}

/// A publication that is dropped stops the relay: what is inserted meanwhile would be passed over.
/// Postgres 15 makes an error of it, 18 a warning.
fn publication_dropped(major: u32) {
    let rig = Rig::with_outbox(major);
    let mut relay = rig.relay();
    let db = Db::connect(&rig.postgres.url());
    insert(&db, 1);
    rig.caught_up();
    db.batch("DROP PUBLICATION walrelay");
    insert(&db, 1);
    let after = rig.slot().wal_end();
    assert_eq!(relay.ended().code(), Some(78), "{}", relay.log());
    assert!(
        relay.log().contains("walrelay"),
        "the publication is not named: {}",
        relay.log()
    );
    let confirmed = rig.slot().read().expect("the slot").confirmed_flush;
    assert!(confirmed < after, "rows were passed over and confirmed");
}

#[test]
fn of_the_publication_stop_the_relay_on_postgres_15() {
    publication_dropped(15);
}

#[test]
fn of_the_publication_stop_the_relay_on_postgres_18() {
    publication_dropped(18);
}

/// The server comes back as an older state of itself, as after a disk's snapshot was restored. Its
/// positions now belong to other transactions: a relay that went on would pass them over.
#[test]
fn of_the_servers_log_stop_the_relay() {
    let rig = Rig::with_outbox(15);
    let mut relay = rig.relay();
    rig.workload().rows(200).run();
    rig.caught_up();
    rig.postgres.stop(Shutdown::Fast).expect("it stops");
    let data = rig.postgres.data_dir();
    let backup = data.with_extension("backup");
    copy(&data, &backup);
    rig.postgres.start_again().expect("it starts again");
    relay.says("trying again");
    rig.workload().rows(2_000).seed(2).run();
    rig.caught_up();
    rig.postgres.stop(Shutdown::Fast).expect("it stops");
    std::fs::remove_dir_all(&data).expect("removed");
    std::fs::rename(&backup, &data).expect("restored");
    rig.postgres.start_again().expect("it starts again");
    ends(&mut relay, 65, "log-went-back");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(status.expect("cp runs").success());
}

/// A table that is taken out of the publication sends no word: the catalogs are looked at every few
/// seconds, and the relay stops.
#[test]
fn of_the_publications_table_stop_the_relay() {
    let rig = Rig::with_outbox(15);
    let mut relay = rig.relay();
    Db::connect(&rig.postgres.url()).batch("ALTER PUBLICATION walrelay DROP TABLE outbox");
    ends(&mut relay, 78, "publication-lacks-table");
}
