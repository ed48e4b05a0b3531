//! Where rows are marked or deleted, each position is noted in the database before the slot confirms it.
//! So rows that a slot has passed over while no relay ran are neither marked nor deleted.

use std::net::TcpListener;
use std::thread::{self, sleep};
use std::time::Duration;

use walrelay_testkit::{Db, eventually};
use walrelay_throwaway::Shutdown;

use crate::marks::mark_first_rows;
use crate::old_rows::{MARK, PRUNE, UNMARKED, config, count, insert, rig};
use crate::rig::{
    PATIENCE, assert_has, assert_lacks, create_slot, done, ends, output_with, refused, said,
    with_source,
};

const NOT_NOTED: &str = "the slot's position cannot be noted";
const PASSED_OVER: &str = "outbox WHERE aggregateid = 'passed-over'";
const SEQUENCE: &str = "walrelay_state.\"position:walrelay\"";

fn advance(db: &Db) {
    db.batch("SELECT pg_replication_slot_advance('walrelay', pg_current_wal_lsn())");
}

fn make_anew(db: &Db) {
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    create_slot(db, "walrelay");
}

/// There is no state file. The start stops until the user accepts the gap, and the rows are neither marked
/// nor deleted before and after it.
#[test]
fn rows_that_a_slot_passed_over_while_no_relay_ran_stay() {
    for (major, act) in [(15, advance as fn(&Db)), (18, make_anew)] {
        let rig = rig(major);
        let db = rig.db();
        let config = config(&rig, "\n[prune]\n");
        mark_first_rows(&rig, &config);
        insert(&db, 20, "passed-over");
        act(&db);
        let prune = || output_with("prune", &config, &PRUNE);
        done(&prune());
        assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (20, 20));
        let checked = said(&output_with("check", &config, &[]));
        assert_has(&checked, &["[slot-passed-over]"]);
        for _ in 0..2 {
            ends(&mut rig.start(&config), 78, "slot-passed-over");
        }
        for arguments in [&["--accept-gap"][..], &[]] {
            let relay = rig.start_with(&config, arguments);
            relay.streaming();
            insert(&db, 5, "after");
            rig.caught_up();
            eventually(PATIENCE, || count(&db, UNMARKED) == 20);
            relay.ends_well();
        }
        done(&prune());
        assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (20, 20));
    }
}

/// A relay deletes rows once another one has accounted them, too. That one's slot is moved: it has not.
#[test]
fn rows_that_the_slot_of_another_relay_passed_over_stay() {
    let rig = rig(17);
    let db = rig.db();
    let config = rig.config_and("\n[prune]\nbefore_slot = true\nslots = [\"other\"]\n");
    let other =
        |more: &[&str]| rig.start_with(&config, &[&["--set=source.slot=other"], more].concat());
    let relay = rig.streaming(&config);
    create_slot(&db, "other");
    let second = other(&[]);
    second.streaming();
    second.ends_well();
    insert(&db, 20, "passed-over");
    rig.caught_up();
    let prune = || output_with("prune", &config, &PRUNE);
    // No client reads that slot. The first relay's notes are log that it has to confirm, too.
    let pruned = thread::scope(|scope| {
        let pruning = scope.spawn(prune);
        while !pruning.is_finished() {
            db.batch("SELECT pg_replication_slot_advance('other', pg_current_wal_lsn())");
            sleep(Duration::from_millis(100));
        }
        pruning.join().expect("it ends")
    });
    refused(&pruned, 65, &["[prune-unaccounted]", "20 rows more"]);
    ends(&mut other(&[]), 78, "slot-passed-over");
    let second = other(&["--accept-gap"]);
    second.streaming();
    refused(&prune(), 65, &["[prune-unaccounted]", "20 rows more"]);
    second.ends_well();
    relay.ends_well();
    assert_eq!(count(&db, "outbox"), 20);
}

/// `init` notes where the slot begins, so also a slot that no relay has read is known.
#[test]
fn a_slot_that_is_moved_before_its_first_relay_is_seen() {
    let rig = rig(17);
    let db = rig.db();
    let config = rig.config_and("\n[prune]\nbefore_slot = true\n");
    done(&output_with("init", &config, &["--role=postgres"]));
    insert(&db, 20, "passed-over");
    advance(&db);
    ends(&mut rig.start(&config), 78, "slot-passed-over");
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.streaming();
    insert(&db, 5, "after");
    rig.caught_up();
    let pruned = output_with("prune", &config, &PRUNE);
    refused(&pruned, 65, &["[prune-unaccounted]", "20 rows more"]);
    relay.ends_well();
    assert_eq!(count(&db, PASSED_OVER), 20);
    assert_eq!(rig.records(5).len(), 5);
}

/// The relay is killed while it creates the slot after an accepted gap, and something else creates it.
#[test]
fn rows_of_an_accepted_gap_stay() {
    let rig = rig(15);
    let db = rig.db();
    let config = rig.config_and("\n[prune]\nbefore_slot = true\n");
    let relay = rig.streaming(&config);
    insert(&db, 5, "before");
    rig.caught_up();
    relay.ends_well();
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    insert(&db, 10, "passed-over");
    let writer = rig.db();
    writer.batch("BEGIN; SELECT pg_current_xact_id()");
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.says("Postgres waits for open transactions");
    relay.kill();
    writer.batch("COMMIT");
    let make = "SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')";
    eventually(PATIENCE, || {
        // The server may complete the slot of the relay that is gone.
        let _ = db.try_batch(make);
        let slot = rig.slot().read();
        slot.is_some_and(|slot| slot.active_pid.is_none())
    });
    let relay = rig.streaming(&config);
    insert(&db, 1, "after");
    rig.caught_up();
    let pruned = output_with("prune", &config, &PRUNE);
    refused(&pruned, 65, &["[prune-unaccounted]", "10 rows more"]);
    relay.ends_well();
    assert_eq!(count(&db, PASSED_OVER), 10);
}

/// The sequence is dropped, then locked, while the relay runs. Events go on, the slot confirms them after
/// a while, and no row is deleted until notes work again. The relay confirmed these positions itself, so
/// nothing is in doubt.
#[test]
fn a_sequence_that_cannot_be_written_stops_neither_events_nor_the_slot() {
    let rig = rig(17);
    let db = rig.db();
    let config = config(&rig, "\n[prune]\n");
    let relay = rig.streaming(&config);
    insert(&db, 5, "before");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    db.batch(&format!("DROP SEQUENCE {SEQUENCE}"));
    insert(&db, 5, "dropped");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    let holder = rig.db();
    holder.batch(&format!("BEGIN; ALTER SEQUENCE {SEQUENCE} INCREMENT 2"));
    insert(&db, 5, "locked");
    relay.says(NOT_NOTED);
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    holder.batch("ROLLBACK");
    relay.says("the positions of the slot are noted again");
    let prune = || output_with("prune", &config, &PRUNE);
    eventually(PATIENCE, || prune().status.success());
    let log = relay.ends_well();
    assert_lacks(&log, &["the slot has passed over"]);
    assert_eq!(count(&db, "outbox"), 0);
    assert_eq!(rig.records(15).len(), 15);
}

/// The server waits until its walsender's client has confirmed all WAL, or is gone, and takes no notes any
/// more. The relay that goes on, and the next one, find the slot where it was noted.
#[test]
fn a_server_that_shuts_down_leaves_no_doubt() {
    let rig = rig(15);
    let db = rig.db();
    let config = config(&rig, "\n[prune]\n");
    let relay = rig.streaming(&config);
    drop(db);
    for _ in 0..3 {
        let db = rig.db();
        insert(&db, 5, "key");
        // A server that shuts down for longer than a mark is tried leaves rows unmarked, and the log says so.
        eventually(PATIENCE, || count(&db, UNMARKED) == 0);
        rig.postgres.stop(Shutdown::Fast).expect("stopped");
        rig.postgres.start_again().expect("started");
        let db = rig.db();
        eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    }
    rig.postgres.stop(Shutdown::Fast).expect("stopped");
    relay.kill();
    rig.postgres.start_again().expect("started");
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert(&db, 1, "next");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    done(&output_with("prune", &config, &PRUNE));
    let log = relay.ends_well();
    assert_lacks(&log, &["the slot has passed over", NOT_NOTED]);
    assert_eq!(count(&db, "outbox"), 0);
}

/// A note is WAL itself, and the server writes some after it. A relay without events notes none of that, so
/// an idle server writes nothing.
#[test]
fn an_idle_server_writes_nothing() {
    for major in [15, 18] {
        let rig = rig(major);
        let db = rig.db();
        db.batch("ALTER SYSTEM SET autovacuum = off");
        db.batch("SELECT pg_reload_conf()");
        let vacuums = "SELECT current_setting('autovacuum') = 'off' AND NOT EXISTS (SELECT FROM pg_stat_activity \
                       WHERE backend_type = 'autovacuum worker')";
        eventually(PATIENCE, || rig.db().value::<bool>(vacuums));
        let config = config(&rig, "\n[prune]\n");
        let relay = rig.streaming(&config);
        insert(&db, 5, "key");
        eventually(PATIENCE, || count(&db, UNMARKED) == 0);
        // The relay sends a status every second, and the server answers with its position.
        eventually(PATIENCE, || {
            let before = rig.slot().wal_end();
            sleep(Duration::from_secs(3));
            rig.slot().wal_end() == before
        });
        // A switch of segments, such as by archive_timeout, is no reason for a note: the server would switch
        // again for it.
        let noted = || db.value::<i64>(&format!("SELECT last_value FROM {SEQUENCE}"));
        let before = noted();
        for _ in 0..2 {
            db.batch("SELECT pg_logical_emit_message(false, 'none', ''); SELECT pg_switch_wal()");
            sleep(Duration::from_secs(3));
            assert_eq!(noted(), before);
        }
        // A command that deletes waits for a position that holds no event.
        done(&output_with("prune", &config, &PRUNE));
        relay.ends_well();
        assert_eq!(count(&db, "outbox"), 0);
    }
}

/// The first of two servers accepts connections and answers none. Notes are made on the server of the
/// stream alone, so they do not wait for the first one each time.
#[test]
fn notes_are_made_on_the_server_of_the_stream() {
    let rig = rig(18);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("its address").port();
    let url = rig.postgres.url_tcp();
    let (user, at) = url.split_once('@').expect("a host");
    let url = format!("{user}@127.0.0.1:{port},{at}?connect_timeout=6");
    let config = with_source(rig.config_with(&url, "\n[prune]\n"), MARK);
    let relay = rig.streaming(&config);
    let db = rig.db();
    insert(&db, 5, "key");
    rig.caught_up();
    let noted = format!(
        "SELECT last_value >= (SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots) FROM {SEQUENCE}"
    );
    eventually(PATIENCE, || db.value::<bool>(&noted));
    let log = relay.ends_well();
    assert_lacks(&log, &[NOT_NOTED]);
}
