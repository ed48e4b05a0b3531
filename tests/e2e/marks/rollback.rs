//! `cutover rollback` of a relay that marks rows: it drops the slot only if nothing is lost with it, and
//! marks what the relay could not mark.

use std::thread;

use walrelay_testkit::eventually;

use super::only_out_is_unmarked;
use crate::old_rows::{UNMARKED, config, count, insert, rig};
use crate::rig::{PATIENCE, assert_has, create_slot, done, output_with, refused};

/// A rollback drops the slot: events that are not sent and have no row would be lost.
#[test]
fn a_rollback_keeps_a_slot_with_events_that_have_no_row() {
    let rig = rig(18);
    let db = rig.db();
    let config = config(&rig, "\n[source.messages]\nprefix = \"outbox\"\n");
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
    db.batch("BEGIN; ALTER PUBLICATION walrelay DROP TABLE outbox");
    insert(&db, 3, "out");
    db.batch("ALTER PUBLICATION walrelay ADD TABLE outbox; COMMIT");
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
