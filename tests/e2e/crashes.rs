use std::collections::HashSet;
use std::time::{Duration, Instant};

use walrelay_testkit::{Cut, Direction, eventually};
use walrelay_throwaway::{Shutdown, Signal};

use crate::rig::{
    PATIENCE, Rig, SLOT, assert_has, ends, insert, insert_of, lsn_of, wait_rows, with_source,
};

/// SIGKILL, ten times, after certain numbers of rows, of a relay that has confirmed some of them.
/// Exactly the unconfirmed events are repeated.
#[test]
fn a_sigkill_loses_nothing() {
    let rig = Rig::with_outbox(15);
    let mut relay = rig.relay();
    let slot = rig.slot();
    let confirmed = || slot.confirmed();
    let mut unconfirmed = HashSet::new();
    let mut from = confirmed();
    let load = rig.workload().rate(2_500.0).seed(7).start();
    for round in 0..10_u64 {
        wait_rows(&load, 300 + 137 * (round % 5));
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
    let records = history.records.iter();
    let ids = records.filter_map(|record| record.id.as_ref());
    let confirmed_and_repeated: Vec<_> = ids
        .filter(|id| !seen.insert(*id) && !unconfirmed.contains(*id))
        .collect();
    assert!(
        confirmed_and_repeated.is_empty(),
        "{confirmed_and_repeated:?}"
    );
    relay.ends_well();
}

/// Ids of the rows after the slot's position: the first column of each INSERT. Nobody reads the
/// slot meanwhile.
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
fn behind(rig: &Rig) -> Vec<String> {
    const UUID: &str = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}";
    rig.db().column(
        "SELECT (regexp_match(encode(data, 'escape'), '(' || $1 || ')'))[1] \
         FROM pg_logical_slot_peek_binary_changes($2, NULL, NULL, \
              'proto_version', '1', 'publication_names', 'walrelay') \
         WHERE get_byte(data, 0) = ascii('I')",
        &[&UUID, &SLOT],
    )
}

/// Each signal that asks to stop drains under load: the next start repeats nothing.
#[test]
fn a_sigterm_repeats_nothing() {
    let rig = Rig::with_outbox(18);
    // Start the relay first: rows from before its slot are not relayed.
    let mut relay = rig.relay();
    let load = rig.workload().rate(2_500.0).seed(8).start();
    // Wait until the topics exist: a relay that is asked to stop does not wait for topics.
    eventually(PATIENCE, || load.written().rows >= 1_000);
    rig.caught_up();
    for signal in [
        Signal::Term,
        Signal::Hup,
        Signal::Term,
        Signal::Quit,
        Signal::Int,
    ] {
        wait_rows(&load, 1_000);
        relay.signal(signal);
        if matches!(signal, Signal::Hup) && is_hangup_ignored(relay.pid()) {
            // These tests run under nohup, and so does the relay: it goes on.
            wait_rows(&load, 1_000);
            relay.signal(Signal::Term);
        }
        let status = relay.ended();
        assert_eq!(status.code(), Some(0), "{signal:?}: {}", relay.log());
        relay = rig.relay();
    }
    load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("SIGTERM x2, SIGHUP, SIGQUIT, SIGINT: {verdict}");
    verdict.assert_nothing_repeated();
}

/// Whether a process was started with SIGHUP ignored: bit 0 of `SigIgn` in proc(5).
fn is_hangup_ignored(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_some_and(|mask| mask.ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f']))
}

/// SIGTERM in the middle of a large transaction: the relay reads it to its end, so that its first
/// records are not sent again.
#[test]
fn a_sigterm_within_a_transaction_repeats_nothing() {
    let rig = Rig::with_outbox(15);
    let relay = rig.relay();
    // All rows in one transaction, numbered per key for the checker.
    rig.db().batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || k, 'T', \
         jsonb_build_object('number', n) FROM generate_series(1, 600) n, generate_series(0, 99) k",
    );
    // Once the first records have arrived, the relay is in the middle of the transaction.
    assert!(!rig.records(1).is_empty());
    relay.ends_well();
    rig.finish(rig.relay()).assert_nothing_repeated();
}

/// Postgres ends the walsender or stops, in each possible way, and comes back.
#[test]
fn crashes_of_postgres_are_survived() {
    let rig = Rig::with_outbox(15);
    let relay = rig.relay();
    let load = rig.workload().rate(1_500.0).seed(9).start();
    let slot = rig.slot();
    for _ in 0..3 {
        wait_rows(&load, 500);
        let walsender = slot.wait_active(PATIENCE);
        rig.db()
            .batch(&format!("SELECT pg_terminate_backend({walsender})"));
        slot.wait_other_reader(walsender, PATIENCE);
    }
    for how in [Shutdown::Fast, Shutdown::Immediate] {
        wait_rows(&load, 500);
        rig.postgres.stop(how).expect("it stops");
        rig.postgres.start_again().expect("it starts again");
    }
    wait_rows(&load, 500);
    load.stop();
    let verdict = rig.finish(relay);
    eprintln!("walsender terminated x3, restart fast, restart immediate: {verdict}");
    verdict.assert_clean();
}

/// The connection to Postgres is reset in the middle of a frame, cut, and stalled.
#[test]
fn faults_of_the_network_are_survived() {
    let rig = Rig::with_outbox(15);
    let (proxy, url) = rig.proxy();
    let config = rig.config_with(&url, "\n[delivery]\nbackoff_max = \"500ms\"\n");
    let limits = "receive_timeout = \"2s\"\nwal_sender_timeout = \"2s\"";
    let config = with_source(config, limits);
    let relay = rig.streaming(&config);
    let load = rig.workload().rate(1_500.0).seed(10).start();
    for bytes in [10_001, 100_003] {
        wait_rows(&load, 300);
        // The reset may hit the control connection, which the stream does not need. Then repeat it.
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(
                Instant::now() < deadline,
                "no reset hits the stream: {}",
                relay.log()
            );
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
    // Applies each fault to a relay that streams, and waits until it streams again.
    let streams_after = |fault: &dyn Fn()| {
        wait_rows(&load, 300);
        let streams = relay.streams();
        fault();
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
    wait_rows(&load, 300);
    load.stop();
    let verdict = rig.finish(relay);
    eprintln!("connection reset x2, cut x2, stalled: {verdict}");
    verdict.assert_clean();
}

/// A second relay on the slot waits and logs that, and takes over when the first has gone.
#[test]
fn another_relay_takes_over_from_one_that_has_gone() {
    let rig = Rig::with_outbox(15);
    let first = rig.relay();
    let (proxy, url) = rig.proxy();
    let second = rig.start(&rig.config_with(&url, ""));
    second.says("is being read by server process");
    let begun = Instant::now();
    let load = rig.workload().rows(2_000).rate(1_000.0).run();
    // Two connections for the first look, and one that goes on looking; another may be closing.
    // The relay tries to stream again every 30 s. There must not be two more for each look, of
    // which there are five a second.
    let most = 4 + 2 * (begun.elapsed().as_secs() / 20);
    assert!(proxy.accepted() <= most, "{} connections", proxy.accepted());
    first.kill();
    second.streaming();
    rig.caught_up();
    let verdict = rig.verdict();
    assert!(verdict.committed as u64 >= load.rows);
    verdict.assert_clean_but_for_ragged();
}

/// The relays of a pair know each other also by a name that servers cut and change: the first goes on
/// where the second has left the slot.
#[test]
fn a_relay_goes_on_after_another_with_a_long_name() {
    let rig = Rig::with_outbox(15);
    let name = format!("walrelay-%C3%A9-{}", "x".repeat(70));
    let url = format!("{}&application_name={name}", rig.postgres.url());
    let config = rig.config_with(&url, "");
    let (db, slot) = (rig.db(), rig.slot());
    let first = rig.streaming(&config);
    insert_of(&db, "order", "key", 1);
    rig.caught_up();
    let walsender = slot.wait_active(PATIENCE);
    first.signal(Signal::Stop);
    db.batch(&format!("SELECT pg_terminate_backend({walsender})"));
    slot.wait_inactive(PATIENCE);
    let second = rig.streaming(&config);
    insert_of(&db, "order", "key", 2);
    rig.caught_up();
    first.signal(Signal::Cont);
    first.says("is being read by server process");
    second.ends_well();
    first.says("another relay has read the slot meanwhile");
    insert_of(&db, "order", "key", 3);
    rig.finish(first).assert_nothing_repeated();
}

/// `transaction_timeout` ends a walsender in the middle of a transaction that takes longer to send:
/// the relay turns it off for its sessions.
#[test]
fn timeouts_of_long_transactions_are_prevented() {
    let rig = Rig::with_outbox(18);
    // Sessions from before the change: the test's own queries may take longer on a busy machine.
    let (db, slot) = (rig.db(), rig.slot());
    db.batch("ALTER DATABASE postgres SET transaction_timeout = '100ms'");
    let relay = rig.relay();
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || k, 'T', \
         jsonb_build_object('number', n) FROM generate_series(1, 1000) n, generate_series(1, 100) k",
    );
    slot.wait_until(slot.wal_end(), PATIENCE);
    // The history is read in new sessions.
    db.batch("ALTER DATABASE postgres RESET transaction_timeout");
    rig.finish(relay).assert_counts(100_000, 0);
}

/// A slot that was relayed and is gone is not created again.
#[test]
fn a_lost_slot_stops_the_relay() {
    let rig = Rig::with_outbox(15);
    let mut relay = rig.relay();
    let walsender = rig.slot().wait_active(PATIENCE);
    let db = rig.db();
    // In one statement, so that the relay cannot reconnect in between.
    db.batch(&format!(
        "DO $$ BEGIN PERFORM pg_terminate_backend({walsender}); \
         WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = {walsender}) LOOP \
         PERFORM pg_stat_clear_snapshot(); END LOOP; \
         PERFORM pg_drop_replication_slot('{SLOT}'); END $$"
    ));
    ends(&mut relay, 65, "slot-gone");
    assert!(rig.slot().read().is_none(), "it was made anew");
}

/// A publication that is dropped stops the relay: rows that are inserted meanwhile would be
/// skipped. Postgres 15 reports an error, 18 a warning.
fn publication_dropped(major: u32) {
    let rig = Rig::with_outbox(major);
    let mut relay = rig.relay();
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    db.batch("DROP PUBLICATION walrelay");
    insert(&db, 1);
    let after = rig.slot().wal_end();
    let log = ends(&mut relay, 78, "publication-not-yet");
    assert_has(&log, &["walrelay"]);
    let confirmed = rig.slot().confirmed();
    assert!(confirmed < after, "rows were passed over and confirmed");
}

tests! {
    fn a_lost_publication_stops_the_relay_on_postgres_15() { publication_dropped(15) }
    fn a_lost_publication_stops_the_relay_on_postgres_18() { publication_dropped(18) }
}

/// The server comes back in an older state, as after the restore of a disk snapshot. Its positions
/// now belong to other transactions, which a relay that continued would skip.
#[test]
fn a_server_in_an_older_state_stops_the_relay() {
    let rig = Rig::with_outbox(15);
    let mut relay = rig.relay();
    rig.workload().rows(200).run();
    rig.caught_up();
    rig.back_up();
    relay.says("trying again");
    rig.workload().rows(2_000).seed(2).run();
    rig.caught_up();
    rig.restore();
    ends(&mut relay, 65, "log-went-back");
}

/// Postgres sends no message when a table is removed from a publication. The relay looks at the
/// catalogs every few seconds, and stops.
#[test]
fn a_table_removed_from_the_publication_stops_the_relay() {
    let rig = Rig::with_outbox(15);
    let mut relay = rig.relay();
    let db = rig.db();
    db.batch("ALTER PUBLICATION walrelay DROP TABLE outbox");
    let dropped: String = db.value("SELECT pg_current_wal_insert_lsn()::text");
    insert(&db, 1);
    let log = ends(&mut relay, 78, "publication-lacks-table");
    assert_has(&log, &["by inserting them again"]);
    let (_, range) = log.split_once("committed to it from ").expect("a range");
    let (from, rest) = range.split_once(" to ").expect("its end");
    let (from, to) = (lsn_of(from), lsn_of(rest));
    // The range begins where the publication carried the table.
    assert!(
        from <= lsn_of(&dropped) && from <= to,
        "{from} {dropped} {to}"
    );
    // The next start names it, too.
    let log = ends(&mut rig.start(&rig.config()), 78, "publication-lacks-table");
    assert_has(&log, &["changes committed to it from "]);
}
