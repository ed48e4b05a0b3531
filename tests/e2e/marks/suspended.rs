//! A relay that is suspended while it marks rows keeps none locked: each mark is one statement.

use walrelay_testkit::{Db, eventually};
use walrelay_throwaway::Signal;

use super::dead::marking_dead;
use crate::old_rows::{
    UNMARKED, config, count, insert, insert_row, rig, wait_until_all_are_marked,
};
use crate::rig::{PATIENCE, Relay};

/// Lets each change of a row wait until `gate` has a row.
fn gated(db: &Db) {
    db.batch(
        "CREATE TABLE gate (is_open bool); CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN WHILE NOT EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NEW; END'; \
         CREATE TRIGGER hold BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION hold()",
    );
}

/// Suspends a relay while the server marks a row, and asserts that another session may change the row.
fn suspend_during_the_mark(db: &Db, relay: &Relay) {
    let marking = "pg_stat_activity WHERE state = 'active' AND query LIKE 'WITH batch AS%'";
    eventually(PATIENCE, || count(db, marking) == 1);
    relay.signal(Signal::Stop);
    db.batch("INSERT INTO gate VALUES (true)");
    eventually(PATIENCE, || count(db, marking) == 0);
    // The server has executed the mark, and the relay does not read the answer.
    db.batch("SET lock_timeout = '3s'; UPDATE outbox SET type = 'U'; RESET lock_timeout");
    relay.signal(Signal::Cont);
}

#[test]
fn a_suspended_relay_keeps_no_sent_row_locked() {
    let rig = rig(18);
    let db = rig.db();
    gated(&db);
    let relay = rig.streaming(&config(&rig, ""));
    insert(&db, 3, "suspended");
    suspend_during_the_mark(&db, &relay);
    wait_until_all_are_marked(&db);
    relay.ends_well();
    assert_eq!(count(&db, &format!("{UNMARKED} OR type <> 'U'")), 0);
}

#[test]
fn a_suspended_relay_keeps_no_row_of_a_dead_letter_locked() {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    gated(&db);
    let relay = rig.streaming(&config);
    insert_row(&db, "NULL", "suspended", "'1'");
    suspend_during_the_mark(&db, &relay);
    eventually(PATIENCE, || {
        count(&db, "outbox WHERE status = 'DEAD_LETTER' AND type = 'U'") == 1
    });
    eventually(PATIENCE, || {
        count(
            &db,
            "walrelay_state.dead WHERE marked AND marked_hash IS NOT NULL",
        ) == 1
    });
    relay.ends_well();
}
