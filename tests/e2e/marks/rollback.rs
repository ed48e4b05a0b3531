//! `cutover rollback` of a relay that marks rows: it drops the slot only if nothing is lost with it, and
//! marks what the relay could not mark.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use walrelay_testkit::{Db, eventually};

use super::only_out_is_unmarked;
use crate::old_rows::{UNMARKED, config, count, insert, partitioned, rig, unseen};
use crate::rig::{
    PATIENCE, Rig, assert_has, assert_lacks, create_slot, done, edit, output_with, refused,
    with_source,
};

/// Lines that let the relay send events without a table.
const MESSAGES: &str = "\n[source.messages]\nprefix = \"outbox\"\n";

/// Emits an event, inserts a row and deletes it in one transaction, and inserts a row that stays. Returns the
/// ids of these events.
fn write(db: &Db) -> [String; 3] {
    let ids = [(); 3].map(|()| db.value::<String>("SELECT gen_random_uuid()::text"));
    let [emitted, deleted, kept] = &ids;
    db.batch(&format!(
        "SELECT outbox.emit('order', 'emitted', '{{}}', id => '{emitted}')"
    ));
    let insert = |id: &str| {
        format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ('{id}', 'order', '{id}', 'T', '{{}}')"
        )
    };
    db.batch(&format!(
        "BEGIN; {}; DELETE FROM outbox WHERE id = '{deleted}'; COMMIT; {}",
        insert(deleted),
        insert(kept)
    ));
    ids
}

/// Asserts that each of these events is in Kafka, or is in a row that the polling relay sends.
#[track_caller]
fn assert_none_is_lost(rig: &Rig, written: &BTreeSet<String>) {
    let unmarked = rig
        .db()
        .column::<String>(&format!("SELECT id::text FROM {UNMARKED}"), &[]);
    let unmarked: BTreeSet<String> = unmarked.into_iter().collect();
    let records = rig.records(written.len() - unmarked.len());
    let arrived: BTreeSet<String> = records.into_iter().filter_map(|record| record.id).collect();
    let lost = written
        .iter()
        .filter(|id| !arrived.contains(*id) && !unmarked.contains(*id));
    assert_eq!(lost.count(), 0, "of {} events", written.len());
}

/// A rollback drops the slot: events that are not sent and have no row would be lost.
#[test]
fn a_rollback_keeps_a_slot_with_events_that_have_no_row() {
    let rig = rig(18);
    let db = rig.db();
    let config = config(&rig, MESSAGES);
    done(&output_with("init", &config, &[]));
    done(&output_with("cutover switch", &config, &["--yes"]));
    insert(&db, 4, "kept");
    for number in 1..=5 {
        db.batch(&format!(
            "SELECT outbox.emit('order', 'emitted', '{{\"number\": {number}}}')"
        ));
    }
    db.batch("BEGIN");
    insert(&db, 3, "deleted");
    db.batch("DELETE FROM outbox WHERE aggregateid = 'deleted'; COMMIT");
    let rollback = || output_with("cutover rollback", &config, &["--yes"]);
    refused(&rollback(), 75, &["[cutover-unsent-events]", "8 events"]);
    assert!(rig.slot().read().is_some());
    assert_eq!(count(&db, UNMARKED), 4);
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();
    done(&rollback());
    assert!(rig.slot().read().is_none());
    assert_eq!(rig.records(12).len(), 12);
    // A slot of the same name is another one.
    insert(&db, 6, "polled");
    create_slot(&db, "walrelay");
    let relay = rig.streaming(&config);
    relay.ends_well();
    assert_eq!(count(&db, UNMARKED), 6);
}

/// Events without a row are written all the time, so each rollback refuses, and the relay goes on. Once the
/// writers have ended, nothing is left behind.
#[test]
fn a_rollback_beside_writers_leaves_no_event_behind() {
    let rig = rig(15);
    let config = config(&rig, MESSAGES);
    done(&output_with("init", &config, &[]));
    done(&output_with("cutover switch", &config, &["--yes"]));
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let further = |number: usize| {
        let next = rounds.load(Ordering::SeqCst) + number;
        eventually(PATIENCE, || rounds.load(Ordering::SeqCst) >= next);
    };
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let db = rig.db();
            let mut written = BTreeSet::new();
            while !stop.load(Ordering::SeqCst) {
                written.extend(write(&db));
                rounds.fetch_add(1, Ordering::SeqCst);
            }
            written
        });
        for signal in ["TERM", "KILL", "TERM"] {
            let mut relay = rig.streaming(&config);
            further(20);
            let stop_relay = format!("--stop-relay=kill -{signal} {}", relay.pid());
            let back = output_with("cutover rollback", &config, &["--yes", &stop_relay]);
            let slot = "the slot is there";
            refused(&back, 75, &["[cutover-unsent-events]", slot]);
            relay.ended();
            assert!(rig.slot().read().is_some());
        }
        stop.store(true, Ordering::SeqCst);
        writer.join().expect("it writes")
    });
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();
    done(&output_with("cutover rollback", &config, &["--yes"]));
    assert!(rig.slot().read().is_none());
    assert_eq!(count(&rig.db(), UNMARKED), 0);
    assert_none_is_lost(&rig, &written);
}

/// Events are written after the rollback has looked for them, and before it ends: its bookmark has them, also if
/// none was wanted.
#[test]
fn a_rollback_says_which_bookmark_has_events_that_were_written_meanwhile() {
    for more in [&["--yes"][..], &["--yes", "--no-bookmark"]] {
        events_are_written_while_a_slot_is_dropped(more);
    }
}

fn events_are_written_while_a_slot_is_dropped(more: &[&str]) {
    let rig = rig(18);
    let db = rig.db();
    let config = config(&rig, MESSAGES);
    done(&output_with("init", &config, &[]));
    done(&output_with("cutover switch", &config, &["--yes"]));
    let relay = rig.streaming(&config);
    let mut written = BTreeSet::from(write(&db));
    rig.caught_up();
    relay.ends_well();
    // The rollback forgets the position once the slot is dropped.
    let holder = rig.db();
    holder.batch("BEGIN; ALTER SEQUENCE walrelay_state.\"position:walrelay\" CACHE 1");
    let back = thread::scope(|scope| {
        let rollback = scope.spawn(|| output_with("cutover rollback", &config, more));
        eventually(PATIENCE, || rig.slot().read().is_none());
        written.extend(write(&db));
        holder.batch("COMMIT");
        rollback.join().expect("it ends")
    });
    let replay = "walrelay replay --from rolled_back";
    let words = [
        "[cutover-unsent-events]",
        "dropped slot walrelay",
        "2 events",
        replay,
    ];
    let said = refused(&back, 75, &words);
    assert_lacks(&said, &["the slot is there"]);
    done(&output_with(
        "replay --from rolled_back --yes",
        &config,
        &[],
    ));
    assert_eq!(
        count(&db, UNMARKED),
        1,
        "the polling relay sends this row, too"
    );
    assert_none_is_lost(&rig, &written);
}

/// A rollback marks the stored rows, waits for their locks, and keeps a copy of the slot.
#[test]
fn a_rollback_marks_rows_that_could_not_be_marked() {
    let rig = rig(17);
    let db = rig.db();
    let configured = config(&rig, "");
    rig.streaming(&configured).ends_well();
    insert(&db, 20, "locked");
    let holder = rig.db();
    holder.batch("BEGIN; SELECT FROM outbox FOR UPDATE");
    let relay = rig.streaming(&configured);
    rig.caught_up();
    relay.ends_well();
    // The log has neither of these.
    unseen(&db, || insert(&db, 3, "out"));
    let rollback = thread::spawn({
        let configured = configured.clone();
        move || output_with("cutover rollback", &configured, &["--yes"])
    });
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'WITH batch AS%'";
    eventually(PATIENCE, || !db.query(waits, &[]).is_empty());
    holder.batch("COMMIT");
    let said = done(&rollback.join().expect("it ends"));
    assert_has(
        &said,
        &[
            "marked 20 rows",
            "bookmark rolled_back",
            "walrelay bookmark drop rolled_back",
        ],
    );
    only_out_is_unmarked(&db, 3);
    assert!(rig.slot().read().is_none());
    done(&output_with(
        "bookmark drop rolled_back --yes",
        &configured,
        &[],
    ));
    let slots: i64 = count(&db, "pg_replication_slots");
    assert_eq!(slots, 0);
}

/// Starts a relay and ends it, so that the slot exists and the next events wait in it.
fn stopped(rig: Rig) -> (Rig, Db, PathBuf) {
    let db = rig.db();
    let config = config(&rig, "");
    rig.streaming(&config).ends_well();
    (rig, db, config)
}

/// Asserts that a rollback refuses because of so many events, and that the slot and the unmarked rows stay.
#[track_caller]
fn refused_for(rig: &Rig, config: &Path, events: u32) -> String {
    let unmarked = count(&rig.db(), UNMARKED);
    let back = output_with("cutover rollback", config, &["--yes"]);
    let events = format!("{events} events");
    let said = refused(&back, 75, &["[cutover-unsent-events]", &events]);
    assert!(rig.slot().read().is_some());
    assert_eq!(count(&rig.db(), UNMARKED), unmarked);
    said
}

/// A polling relay reads the new table: the events of the old one would be lost.
#[test]
fn a_rollback_keeps_a_slot_with_events_of_an_exchanged_table() {
    let (rig, db, config) = stopped(rig(18));
    insert(&db, 5, "old");
    db.batch(
        "ALTER TABLE outbox RENAME TO outbox_old; CREATE TABLE outbox (LIKE outbox_old INCLUDING ALL); \
         ALTER PUBLICATION walrelay SET TABLE outbox",
    );
    insert(&db, 2, "new");
    let said = refused_for(&rig, &config, 5);
    assert_has(&said, &["public.outbox", "former_tables"]);
}

/// Its rows are in no table that a polling relay reads.
#[test]
fn a_rollback_keeps_a_slot_with_events_of_a_detached_partition() {
    for via_root in [false, true] {
        let (rig, db, config) = stopped(partitioned(18));
        db.batch(&format!(
            "ALTER PUBLICATION walrelay SET (publish_via_partition_root = {via_root})"
        ));
        insert(&db, 4, "detached");
        db.batch("ALTER TABLE outbox DETACH PARTITION outbox_1");
        refused_for(&rig, &config, 4);
    }
}

/// They are no events: one has no column of an event, and the other is passed over.
#[test]
fn a_rollback_passes_over_rows_of_other_tables() {
    let (rig, db, config) = stopped(rig(17));
    let config = with_source(config, "pass_over = [\"public.orders\"]");
    db.batch(
        "CREATE TABLE customers (id int PRIMARY KEY); CREATE TABLE orders (LIKE outbox INCLUDING ALL); \
         ALTER PUBLICATION walrelay ADD TABLE customers, orders",
    );
    insert(&db, 3, "kept");
    db.batch("INSERT INTO customers VALUES (1), (2); INSERT INTO orders SELECT * FROM outbox");
    db.batch("ALTER PUBLICATION walrelay SET TABLE outbox");
    done(&output_with("cutover rollback", &config, &["--yes"]));
    assert!(rig.slot().read().is_none());
    assert_eq!(count(&db, UNMARKED), 3);
}

/// The row holds the second event: the first one would be lost.
#[test]
fn a_rollback_keeps_a_slot_with_an_event_whose_key_was_used_again() {
    let (rig, db, config) = stopped(rig(16));
    let insert = |text: &str| {
        db.batch(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES \
             ('11111111-1111-1111-1111-111111111111', 'order', 'again', 'T', '{{\"text\": \"{text}\"}}')"
        ));
    };
    insert("first");
    db.batch("DELETE FROM outbox");
    insert("second");
    refused_for(&rig, &config, 1);
    // Also if the log has the first one alone.
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();
    db.batch("DELETE FROM outbox");
    insert("third");
    unseen(&db, || {
        db.batch("DELETE FROM outbox");
        insert("unseen");
    });
    refused_for(&rig, &config, 1);
}

/// The polling relay would send another event.
#[test]
fn a_rollback_keeps_a_slot_with_an_event_whose_row_was_changed() {
    let (rig, db, config) = stopped(rig(15));
    insert(&db, 3, "kept");
    db.batch("UPDATE outbox SET payload = '{}' WHERE payload->>'number' = '2'");
    refused_for(&rig, &config, 1);
    // A row that is marked by hand was sent, whatever it holds.
    db.batch("UPDATE outbox SET sent_at = now() WHERE payload = '{}'");
    done(&output_with("cutover rollback", &config, &["--yes"]));
    assert!(rig.slot().read().is_none());
    assert_eq!(count(&db, UNMARKED), 2);
}

/// Rows that a policy hides may be those of unsent events.
#[test]
fn a_rollback_refuses_rows_that_a_policy_hides() {
    let (rig, db, config) = stopped(rig(18));
    insert(&db, 3, "hidden");
    db.batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'hunter2'; GRANT ALL ON outbox TO relay; \
         GRANT pg_read_all_data, pg_write_all_data TO relay; GRANT ALL ON SCHEMA walrelay_state TO relay; \
         GRANT ALL ON ALL TABLES IN SCHEMA walrelay_state TO relay; \
         ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY visible ON outbox USING (aggregateid <> 'hidden')",
    );
    let url = rig.url_as("relay", "hunter2", "postgres");
    edit(&config, &rig.postgres.url(), &url);
    let back = output_with("cutover rollback", &config, &["--yes"]);
    assert!(!back.status.success(), "{back:?}");
    assert_has(&crate::rig::said(&back), &["row-level security"]);
    assert!(rig.slot().read().is_some());
}
