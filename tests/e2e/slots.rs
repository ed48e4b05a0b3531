//! A slot that does not continue what was relayed stops the relay, which names the lost range. Only
//! `--accept-gap` makes it continue across a gap. In each test some events are relayed by nobody; a
//! relay that skipped them silently would continue, and the test would fail.
//!
//! - [`state_file`]: what is noticed by a state file alone.
//! - [`noted`]: what is noticed by the position that is noted in the database.

mod position_notes;
mod state_file;

use std::path::{Path, PathBuf};

use walrelay_lsn::Lsn;
use walrelay_testkit::{Cut, Db, Delivered, Workload, eventually, servers};

use crate::check::{Checked, WITHOUT_KAFKA};
use crate::rig::{
    PATIENCE, Relay, Rig, SLOT, assert_has, assert_lacks, create_slot, done, ends, insert,
    kafka_in_turn, lsn_of, output_with, refused, with_source,
};

fn drop_slot(db: &Db) {
    db.batch(&format!("SELECT pg_drop_replication_slot('{SLOT}')"));
}

fn make_slot_anew(db: &Db) {
    drop_slot(db);
    create_slot(db, SLOT);
}

fn advance_slot(db: &Db) {
    db.batch(&format!(
        "SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())"
    ));
}

/// The usual configuration with more lines in `[source]`.
fn config_with(rig: &Rig, url: &str, lines: &str) -> PathBuf {
    let more = "\n[delivery]\nbackoff_max = \"500ms\"\n";
    with_source(rig.config_with(url, more), lines)
}

/// The same with a state file.
fn noting(rig: &Rig) -> PathBuf {
    config_with(rig, &rig.postgres.url(), "state_file = \"state\"")
}

/// Starts a relay that may go on behind a gap, and waits until it does.
#[track_caller]
fn accepting(rig: &Rig, config: &Path, words: &str) -> Relay {
    let relay = rig.start_with(config, &["--accept-gap"]);
    relay.streaming();
    relay.says(words);
    relay
}

/// Asserts that `--accept-gap` continues, with the range in the log.
#[track_caller]
fn accepts(rig: &Rig, config: &Path) -> Relay {
    accepting(rig, config, "accepted by --accept-gap")
}

/// The range that an error or a log line names last: `from X … to Y`.
#[track_caller]
fn range(log: &str) -> (Lsn, Lsn) {
    let (_, rest) = log.rsplit_once("committed from ").expect("a range");
    let (from, to) = rest.split_once(" to ").expect("an end");
    (lsn_of(from), lsn_of(to))
}

/// Inserts event 2, which no relay can see now. Returns the range of the log that it is in.
fn insert_unseen(db: &Db) -> (Lsn, Lsn) {
    let begin = db.flush_lsn();
    insert(db, 2);
    (begin, db.flush_lsn())
}

/// Asserts that the range that the log names contains this one.
#[track_caller]
fn covers(log: &str, (begin, end): (Lsn, Lsn)) {
    let (from, to) = range(log);
    assert!(
        from <= begin && to >= end,
        "{from} to {to} does not cover {begin} to {end}: {log}"
    );
}

/// Starts a relay that relays event 1, and returns it running.
fn relayed_one(rig: &Rig, config: &Path) -> Relay {
    rig.workload().create_tables();
    let relay = rig.streaming(config);
    insert(&rig.db(), 1);
    rig.caught_up();
    relay
}

/// The values in Kafka now. Call it when no relay runs, or when everything is confirmed.
fn delivered(rig: &Rig) -> Vec<String> {
    let records = rig.records(0);
    let values = records.iter().map(Delivered::value_text);
    values.map(str::to_owned).collect()
}

fn numbers(numbers: &[u32]) -> Vec<String> {
    let payload = |number: &u32| format!("{{\"number\": {number}}}");
    numbers.iter().map(payload).collect()
}

/// Asserts that `--accept-gap` continues from there and logs the range, that later events arrive,
/// and that a plain start afterwards finds no fault.
#[track_caller]
fn goes_on(rig: &Rig, config: &Path, expected: &[u32]) {
    let relay = accepts(rig, config);
    insert(&rig.db(), 9);
    rig.caught_up();
    let log = relay.ends_well();
    assert_lacks(&log, &["there is no gap"]);
    assert_eq!(delivered(rig), numbers(expected), "{log}");
    rig.streaming(config).ends_well();
}

fn dropped_while_no_relay_ran(noting_too: bool) {
    let rig = Rig::new(15);
    let config = if noting_too {
        noting(&rig)
    } else {
        rig.config()
    };
    relayed_one(&rig, &config).ends_well();
    let db = rig.db();
    drop_slot(&db);
    let unseen = insert_unseen(&db);
    let checked = output_with("check", &config, &[]);
    assert_eq!(checked.status.code(), Some(78));
    for _ in 0..2 {
        let log = ends(&mut rig.start(&config), 78, "slot-missing");
        assert_has(&log, &["walrelay init", "walrelay run --accept-gap"]);
        covers(&log, unseen);
        assert!(rig.slot().read().is_none(), "it was made anew");
    }
    // Not without the publication either, while there is a state file or a note.
    db.batch("DROP PUBLICATION walrelay");
    ends(&mut rig.start(&config), 78, "slot-missing");
    goes_on(&rig, &config, &[1, 9]);
}

#[test]
fn a_slot_dropped_while_no_relay_ran_is_not_recreated() {
    dropped_while_no_relay_ran(false);
    dropped_while_no_relay_ran(true);
}

/// On the first day there is neither publication nor slot, so `run` creates both; `init` always
/// creates a slot.
#[test]
fn a_first_run_creates_a_slot_and_init_creates_one_with_a_note() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    rig.relay().ends_well();
    drop_slot(&rig.db());
    let init = output_with("init", &config, &[]);
    let said = String::from_utf8_lossy(&init.stdout).into_owned();
    let parts = ["created slot walrelay", "note: publication walrelay was"];
    assert_has(&said, &parts);
    accepting(&rig, &config, "there is no gap in the log").ends_well();
}

/// A stop while Postgres waits for open transactions before it creates the slot undoes what the
/// first start has made. The next start is a first start again, whether the transaction is still
/// open or not.
#[test]
fn the_slot_of_an_interrupted_first_start_is_created_by_the_next() {
    for ended_first in [true, false] {
        let rig = Rig::with_outbox(15);
        let config = rig.config();
        let writer = rig.db();
        writer.batch("BEGIN; SELECT pg_current_xact_id()");
        let relay = rig.start(&config);
        relay.says("Postgres waits for open transactions");
        let db = rig.db();
        let waiting = "SELECT count(*) FROM pg_replication_slots WHERE active";
        eventually(PATIENCE, || db.value::<i64>(waiting) == 1);
        let (code, log) = relay.terminate();
        assert_eq!(code, Some(0), "{log}");
        if ended_first {
            writer.batch("COMMIT");
        }
        let left = "SELECT (SELECT count(*) FROM pg_replication_slots) \
                    + (SELECT count(*) FROM pg_publication)";
        eventually(PATIENCE, || db.value::<i64>(left) == 0);
        let next = rig.start(&config);
        next.says("Postgres waits for open transactions");
        if !ended_first {
            writer.batch("COMMIT");
        }
        next.streaming();
        insert(&db, 1);
        rig.caught_up();
        assert_lacks(&next.ends_well(), &["slot-missing", "walrelay init"]);
        assert_eq!(delivered(&rig), numbers(&[1]));
        // The slot existed: it is not made anew.
        drop_slot(&db);
        ends(&mut rig.start(&config), 78, "slot-missing");
    }
}

/// Two relays start at the same moment on an empty database. One creates publication and slot, the
/// other waits. Neither takes the other's unfinished set-up for a slot that was dropped.
#[test]
fn one_slot_is_created_by_two_relays_that_start_together() {
    for round in 0..3 {
        let rig = Rig::with_outbox(15);
        let config = rig.config();
        let (first, second) = (rig.start(&config), rig.start(&config));
        let logs = || format!("round {round}: {}\n{}", first.log(), second.log());
        eventually(PATIENCE, || {
            assert!(!logs().contains("\"slot-missing\""), "{}", logs());
            let streams = first.streams() + second.streams();
            let waits = logs().matches("is being read by server process").count();
            streams == 1 && waits > 0
        });
        assert_eq!(logs().matches("created the slot:").count(), 1, "{}", logs());
    }
}

/// With and without a state file: the process itself remembers the position.
fn under_a_relay(id: &str, act: impl Fn(&Db)) {
    for lines in ["", "state_file = \"state\""] {
        let rig = Rig::new(18);
        let (proxy, url) = rig.proxy();
        let config = config_with(&rig, &url, lines);
        let mut relay = relayed_one(&rig, &config);
        let db = rig.db();
        proxy.refuse(true);
        proxy.cut(Cut::Reset);
        rig.slot().wait_inactive(PATIENCE);
        let unseen = insert_unseen(&db);
        act(&db);
        proxy.refuse(false);
        let log = ends(&mut relay, 65, id);
        covers(&log, unseen);
        assert_eq!(delivered(&rig), numbers(&[1]), "{log}");
        if !lines.is_empty() {
            // The next process knows it as well.
            let (code, id) = match id {
                "slot-gone" => (78, "slot-missing"),
                id => (65, id),
            };
            let log = ends(&mut rig.start(&config), code, id);
            covers(&log, unseen);
            goes_on(&rig, &config, &[1, 9]);
        }
    }
}

tests! {
    fn a_slot_dropped_under_a_relay_is_not_recreated() { under_a_relay("slot-gone", drop_slot) }
    fn a_slot_recreated_under_a_relay_is_noticed() { under_a_relay("slot-moved", make_slot_anew) }
    fn a_slot_advanced_under_a_relay_is_noticed() { under_a_relay("slot-moved", advance_slot) }
}

/// Another cluster, which is set up for a relay too, takes over the address.
#[test]
fn a_slot_of_another_cluster_is_noticed() {
    for lines in ["", "state_file = \"state\""] {
        let rig = Rig::new(18);
        let other = Rig::on(servers::another_postgres(18)).outbox();
        other.create_slot();
        let (proxy, url) = rig.proxy();
        let config = config_with(&rig, &url, lines);
        let mut relay = relayed_one(&rig, &config);
        let password = rig.postgres.superuser_password();
        let alter = format!("ALTER ROLE postgres PASSWORD '{password}'");
        other.db().batch(&alter);
        proxy.lead_to(("127.0.0.1", other.postgres.port()));
        proxy.cut(Cut::Reset);
        let log = ends(&mut relay, 65, "other-server");
        assert_has(&log, &["--accept-gap"]);
        let mut relay = rig.start(&config);
        if lines.is_empty() {
            // There is no note on it. The relay trusts what it finds: docs/trust/guarantees.md promises nothing else.
            relay.streaming();
            continue;
        }
        let log = ends(&mut relay, 65, "other-server");
        assert_has(&log, &["system identifier changed"]);
        let checked = Checked::run(&config, &WITHOUT_KAFKA);
        checked.fails("postgres/slot-position", &["[other-server]", "pg_upgrade"]);
        accepts(&rig, &config).ends_well();
        rig.streaming(&config).ends_well();
    }
}

/// The broker is gone and WAL accumulates: the warning comes while the slot can still be saved.
/// Then the slot is lost under the streaming relay, which reports that with the range.
fn warned_of_before_it_is_lost(major: u32) {
    let settings = [
        ("max_slot_wal_keep_size", "96MB"),
        ("min_wal_size", "32MB"),
        ("max_wal_size", "48MB"),
        ("checkpoint_timeout", "1h"),
    ];
    let postgres = servers::postgres_with(major, &settings);
    let kafka = kafka_in_turn();
    let rig = Rig::with(postgres, kafka.bootstrap_servers()).outbox();
    let config = rig.config_and("\n[delivery]\nmax_in_flight_records = 64\n");
    let mut relay = rig.streaming(&config);
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    kafka.kill();
    // From this event on nothing can be confirmed. Earlier WAL still can be, also rows of
    // transactions that are open.
    insert(&db, 3);
    let begin = db.flush_lsn();
    rig.workload().rows(300).seed(3).run();
    relay.says("the sink accepts nothing more");
    let unseen = (begin, db.flush_lsn());
    let status = || db.value::<String>("SELECT wal_status FROM pg_replication_slots");
    let write = |megabytes: u32| {
        db.batch(&format!(
            "SELECT pg_logical_emit_message(false, 'p', repeat('x', 1000000)) \
             FROM generate_series(1, {megabytes})"
        ));
    };
    // Approach the limit, and wait for a warning in between.
    write(64);
    relay.says("more than half of the WAL");
    assert_ne!(status(), "lost", "{}", relay.log());
    write(30);
    relay.says("the slot is about to lose WAL it needs");
    assert_ne!(status(), "lost", "{}", relay.log());
    eventually(PATIENCE, || {
        write(20);
        db.batch("SELECT pg_switch_wal()");
        db.batch("CHECKPOINT");
        status() == "lost"
    });
    let log = ends(&mut relay, 65, "slot-lost");
    covers(&log, unseen);
    assert_has(&log, &["'::xid"]);
    let log = ends(&mut rig.start(&config), 65, "slot-lost");
    covers(&log, unseen);

    kafka.start_again();
    let relay = accepting(&rig, &config, "dropped the slot, which was lost");
    covers(&relay.log(), unseen);
    insert(&db, 2);
    rig.caught_up();
    let log = relay.ends_well();
    let delivered = delivered(&rig);
    assert_eq!(delivered.last(), numbers(&[2]).last(), "{log}");
}

tests! {
    fn a_slot_is_warned_of_before_it_is_lost_on_15() { warned_of_before_it_is_lost(15) }
    fn a_slot_is_warned_of_before_it_is_lost_on_18() { warned_of_before_it_is_lost(18) }
}

/// Postgres 18 can invalidate a slot that nobody reads, however much WAL there is.
#[test]
fn a_slot_lost_by_idleness_is_noticed() {
    let settings = [("idle_replication_slot_timeout", "1s")];
    let rig = Rig::on(servers::postgres_with(18, &settings));
    let config = rig.config();
    relayed_one(&rig, &config).ends_well();
    let db = rig.db();
    let unseen = insert_unseen(&db);
    eventually(PATIENCE, || {
        db.batch("CHECKPOINT");
        let reason = "SELECT invalidation_reason FROM pg_replication_slots";
        db.text(reason).as_deref() == Some("idle_timeout")
    });
    let log = ends(&mut rig.start(&config), 65, "slot-lost");
    assert_has(&log, &["(idle_timeout)"]);
    covers(&log, unseen);
    db.batch("ALTER SYSTEM SET idle_replication_slot_timeout = 0");
    db.batch("SELECT pg_reload_conf()");
    goes_on(&rig, &config, &[1, 9]);
}

/// `failover = true` creates a slot of which standbys have a copy, and is refused on versions
/// without such slots.
#[test]
fn a_failover_slot_is_created_from_17_on() {
    let rig = Rig::with_outbox(17);
    let config = config_with(&rig, &rig.postgres.url(), "failover = true");
    rig.streaming(&config).ends_well();
    let db = rig.db();
    let failover = || db.value::<bool>("SELECT failover FROM pg_replication_slots");
    assert!(failover());
    drop_slot(&db);
    done(&output_with("init", &config, &[]));
    assert!(failover());
    // What a relay leaves that is killed between the copy of a snapshot's slot and its alteration.
    drop_slot(&db);
    create_slot(&db, SLOT);
    assert!(!failover());
    let log = accepts(&rig, &config).ends_well();
    assert_has(&log, &["made the slot a failover slot"]);
    assert!(failover());
    let log = rig.streaming(&config).ends_well();
    assert_lacks(&log, &["failover slot"]);

    let old = Rig::with_outbox(15);
    let config = config_with(&old, &old.postgres.url(), "failover = true");
    let log = ends(&mut old.start(&config), 78, "failover-too-old");
    assert_has(&log, &["Postgres 15"]);
    assert!(old.slot().read().is_none());
}

/// A byte that is no UTF-8, in a database of SQL_ASCII, makes the server fail whenever it sends the
/// row. The relay stops at the second time, and names what to pass over; the remedy is followed.
#[test]
fn a_row_that_the_server_cannot_send_stops_the_relay() {
    let rig = Rig::new(15);
    rig.db().batch(
        "CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
    );
    let url = rig.postgres.url().replace("/postgres?", "/bytes?");
    Workload::new(&url).create_tables();
    let config = config_with(&rig, &url, "state_file = \"state\"");
    rig.streaming(&config).ends_well();
    let db = Db::connect(&url);
    insert(&db, 1);
    db.batch(
        "BEGIN; \
         INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'key', 'T', '{\"number\": 2}'); \
         INSERT INTO outbox VALUES (gen_random_uuid(), 'order', E'\\377', 'T', '{\"number\": 3}'); \
         INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'key', 'T', '{\"number\": 4}'); \
         COMMIT",
    );
    insert(&db, 5);
    let xid: String = db.value("SELECT xmin::text FROM outbox WHERE payload->>'number' = '3'");
    let log = ends(&mut rig.start(&config), 65, "unsendable");
    let transaction = format!("cannot send transaction {xid}, which commits at ");
    let rows = "it has failed twice after 1 of its rows, at a row of table public.outbox";
    assert_has(
        &log,
        &[&transaction, rows, "SQLSTATE 22021", "--accept-gap"],
    );
    assert_lacks(&log, &["different servers"]);
    // Whoever only prints what the slot has is not told to move it.
    let print = output_with("run", &config, &["--set", "sink.kind=stdout"]);
    let said = refused(
        &print,
        65,
        &["[unsendable]", &transaction, "need not be moved"],
    );
    assert_lacks(&said, &["slots advance"]);
    let (_, to) = log.rsplit_once("--to ").expect("a position");
    let advance = format!("slots advance walrelay --yes --to {}", lsn_of(to));
    done(&output_with(&advance, &config, &[]));
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.streaming();
    rig.caught_up();
    relay.ends_well();
    let mut found = delivered(&rig);
    found.dedup();
    assert_eq!(
        found,
        numbers(&[1, 2, 5]),
        "the transaction alone is passed over"
    );
}
