//! Keys of sent rows that are stored in `walrelay_state.unmarked` stay until their rows are marked, changed or gone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use walrelay_testkit::{Db, eventually};

use super::{STORED, refuse_marks, refuse_marks_of, unmarked};
use crate::old_rows::{
    UNMARKED, config, count, insert, marking, partitioned, rig, wait_until_all_are_marked,
};
use crate::rig::{PATIENCE, Rig, assert_has, create_slot, done, edit, output_with, refused};

/// Stores the keys of five rows whose marks fail, ends the relay, and lets marks succeed again.
fn with_stored_keys(rig: &Rig) -> PathBuf {
    let db = rig.db();
    let (configured, relay) = marking(rig, 1);
    refuse_marks(&db, "refused");
    insert(&db, 5, "refused");
    relay.says("no mark now");
    rig.caught_up();
    relay.ends_well();
    assert_eq!((count(&db, STORED), unmarked(&db, "refused")), (5, 5));
    db.batch("DROP TRIGGER refuse ON outbox");
    configured
}

/// Creates the table `other` next to the outbox, and writes a configuration that marks the rows of both.
fn with_other_table(rig: &Rig, db: &Db) -> PathBuf {
    db.batch("CREATE TABLE other (LIKE outbox INCLUDING ALL)");
    let configured = config(rig, "");
    let tables = "\"public.outbox\", \"public.other\"";
    edit(&configured, "\"public.outbox\"", tables);
    edit(
        &configured,
        "snapshot_where = \"outbox.sent_at IS NULL\"\n",
        "",
    );
    configured
}

/// Gives new sessions of the relay's role another time zone, in which a `timestamptz` has another text.
fn change_time_zone(db: &Db) {
    db.batch("ALTER ROLE CURRENT_USER SET timezone TO 'Asia/Tokyo'");
}

#[test]
fn stored_rows_are_marked_after_the_time_zone_of_the_role_has_changed() {
    let rig = rig(17);
    let db = rig.db();
    let configured = with_stored_keys(&rig);
    change_time_zone(&db);
    let relay = rig.streaming(&configured);
    insert(&db, 2, "after");
    wait_until_all_are_marked(&db);
    eventually(PATIENCE, || count(&db, STORED) == 0);
    relay.ends_well();
}

/// The walsender, which sends the rows, keeps its time zone, and the session that marks them gets another one.
#[test]
fn rows_are_marked_by_a_session_that_has_another_time_zone() {
    let rig = rig(15);
    let db = rig.db();
    let (_, relay) = marking(&rig, 1);
    change_time_zone(&db);
    db.batch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' \
         AND application_name LIKE 'walrelay%'",
    );
    insert(&db, 5, "after");
    rig.caught_up();
    wait_until_all_are_marked(&db);
    relay.ends_well();
    assert_eq!(rig.records(0).len(), 6, "the stream was opened again");
}

/// The rows of a table without a primary key cannot be told apart for a while.
#[test]
fn stored_keys_stay_while_their_table_has_no_primary_key() {
    let rig = rig(16);
    let db = rig.db();
    let configured = with_stored_keys(&rig);
    db.batch("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey");
    let relay = rig.streaming(&configured);
    relay.says("has no primary key now");
    relay.ends_well();
    assert_eq!(count(&db, STORED), 5);
    let rollback = output_with("cutover rollback", &configured, &["--yes"]);
    refused(&rollback, 78, &["[cutover-key]", "has no primary key now"]);
    assert!(rig.slot().read().is_some());
    db.batch("ALTER TABLE outbox ADD PRIMARY KEY (id)");
    let relay = rig.streaming(&configured);
    wait_until_all_are_marked(&db);
    eventually(PATIENCE, || count(&db, STORED) == 0);
    relay.ends_well();
}

#[test]
fn stored_rows_of_a_renamed_table_are_marked() {
    let rig = rig(18);
    let db = rig.db();
    let configured = with_stored_keys(&rig);
    db.batch("ALTER TABLE outbox RENAME TO outbox_v2");
    edit(&configured, "public.outbox", "public.outbox_v2");
    edit(&configured, "outbox.sent_at", "sent_at");
    let relay = rig.streaming(&configured);
    eventually(PATIENCE, || {
        count(&db, "outbox_v2 WHERE sent_at IS NULL") == 0
    });
    eventually(PATIENCE, || count(&db, STORED) == 0);
    relay.ends_well();
}

/// Rows go on for longer than keys may hold up a position. Those of the table whose column has another name wait, and no
/// others.
#[test]
fn rows_that_are_sent_while_the_column_of_the_mark_is_missing_are_marked_later() {
    let rig = rig(17);
    let db = rig.db();
    let configured = with_other_table(&rig, &db);
    let relay = rig.streaming(&configured);
    db.batch("ALTER TABLE other RENAME COLUMN sent_at TO sent_on");
    let insert = |table: &str, rows: u32| {
        db.batch(&format!(
            "INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'order', 'k', 'T', '1' FROM generate_series(1, {rows})"
        ));
    };
    insert("other", 20);
    relay.says("rows cannot be marked as sent at the moment");
    let stored = format!("SELECT to_regclass('{STORED}')::text");
    eventually(PATIENCE, || db.text(&stored).is_some());
    let for_long = format!("{STORED} WHERE since < clock_timestamp() - interval '15 s'");
    eventually(PATIENCE, || {
        insert("outbox", 1);
        insert("other", 1);
        count(&db, &for_long) > 0
    });
    rig.caught_up();
    wait_until_all_are_marked(&db);
    db.batch("ALTER TABLE other RENAME COLUMN sent_on TO sent_at");
    eventually(PATIENCE, || count(&db, "other WHERE sent_at IS NULL") == 0);
    eventually(PATIENCE, || count(&db, STORED) == 0);
    relay.ends_well();
}

/// Marks five rows, one after the other, that are locked when they are sent. Returns the time that it takes.
fn mark_locked_rows(rig: &Rig, db: &Db) -> Duration {
    let begun = Instant::now();
    for _ in 0..5 {
        db.batch(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             VALUES (gen_random_uuid(), 'order', 'locked', 'T', '1')",
        );
        let holder = rig.db();
        holder.batch("BEGIN; SELECT FROM outbox WHERE sent_at IS NULL FOR UPDATE");
        rig.caught_up();
        holder.batch("COMMIT");
        wait_until_all_are_marked(db);
    }
    begun.elapsed()
}

/// The column of one table's mark is missing. Stored keys of the other table are worked off as fast as before.
#[test]
fn stored_rows_do_not_wait_for_a_table_without_the_column_of_the_mark() {
    let rig = rig(18);
    let db = rig.db();
    let configured = with_other_table(&rig, &db);
    let relay = rig.streaming(&configured);
    let before = mark_locked_rows(&rig, &db);
    db.batch("ALTER TABLE other RENAME COLUMN sent_at TO sent_on");
    db.batch(
        "INSERT INTO other (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), 'order', 'k', 'T', '1')",
    );
    relay.says("rows cannot be marked as sent at the moment");
    let stored = format!("{STORED} WHERE \"table\" = '{{public,other}}'");
    eventually(PATIENCE, || count(&db, &stored) == 1);
    let after = mark_locked_rows(&rig, &db);
    // Each of the five rows would wait for 10 s.
    assert!(
        after < 3 * before + Duration::from_secs(15),
        "{after:?}, {before:?}"
    );
    db.batch("ALTER TABLE other RENAME COLUMN sent_on TO sent_at");
    eventually(PATIENCE, || count(&db, &stored) == 0);
    relay.ends_well();
}

/// More rows of a table fail than one pass attempts, and their keys come first. Other rows of the table are sent and
/// marked all the time.
#[test]
fn stored_rows_do_not_wait_for_rows_of_their_table_that_fail() {
    let rig = rig(16);
    let db = rig.db();
    let configured = with_other_table(&rig, &db);
    let relay = rig.streaming(&configured);
    let before = mark_locked_rows(&rig, &db);
    refuse_marks_of(&db, "other", "refused");
    let insert = |rows: u32, key: &str| {
        db.batch(&format!(
            "INSERT INTO other (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'order', '{key}', 'T', '1' FROM generate_series(1, {rows})"
        ));
    };
    let unmarked = |key: &str| {
        let rows = format!("other WHERE sent_at IS NULL AND aggregateid = '{key}'");
        count(&db, &rows)
    };
    insert(60, "refused");
    let stored = format!("SELECT to_regclass('{STORED}')::text");
    eventually(PATIENCE, || db.text(&stored).is_some());
    eventually(PATIENCE, || count(&db, STORED) == 60);
    // Their keys are stored without an attempt.
    insert(5, "good");
    let after = mark_locked_rows(&rig, &db);
    // Each of the five rows would wait for 10 s.
    assert!(
        after < 3 * before + Duration::from_secs(15),
        "{after:?}, {before:?}"
    );
    eventually(PATIENCE, || {
        insert(1, "more");
        unmarked("good") == 0
    });
    assert_eq!(unmarked("refused"), 60);
    db.batch("DROP TRIGGER refuse ON other");
    eventually(PATIENCE, || count(&db, "other WHERE sent_at IS NULL") == 0);
    eventually(PATIENCE, || count(&db, STORED) == 0);
    relay.ends_well();
}

/// Their rows are gone, so they hold up no rollback.
#[test]
fn stored_keys_of_a_dropped_partition_are_deleted() {
    let rig = partitioned(17);
    let db = rig.db();
    let configured = with_stored_keys(&rig);
    db.batch("DROP TABLE outbox_1");
    done(&output_with("cutover rollback", &configured, &["--yes"]));
    assert_eq!((count(&db, STORED), count(&db, UNMARKED)), (0, 0));
}

/// Numbers of transactions wrap around, so an old one looks like a future one.
#[test]
fn stored_rows_are_marked_after_two_billion_transactions() {
    let rig = rig(17);
    let db = rig.db();
    let configured = with_stored_keys(&rig);
    db.batch(&format!(
        "UPDATE {STORED} SET xid = (xid + 2147483648 - 1000) % 4294967296; \
         DELETE FROM outbox WHERE id = (SELECT key[1]::uuid FROM {STORED} LIMIT 1)"
    ));
    let said = done(&output_with("cutover rollback", &configured, &["--yes"]));
    assert_has(&said, &["marked 4 rows"]);
    assert_eq!((count(&db, STORED), count(&db, UNMARKED)), (0, 0));
}

/// No later row of the table has a key that can be used, so nothing is stored for ever.
#[test]
fn parts_of_a_key_are_not_stored() {
    let rig = rig(17);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ADD PRIMARY KEY (id, created_at); \
         CREATE PUBLICATION walrelay FOR TABLE outbox (id, aggregatetype, aggregateid, type, payload) \
         WITH (publish = 'insert')",
    );
    create_slot(&db, "walrelay");
    let relay = rig.streaming(&config(&rig, ""));
    insert(&db, 5, "part");
    relay.says("the publication carries a part of the table's primary key");
    rig.caught_up();
    relay.ends_well();
    let stored = db.text("SELECT to_regclass('walrelay_state.unmarked')::text");
    assert!(stored.is_none_or(|_| count(&db, STORED) == 0));
    assert_eq!(count(&db, UNMARKED), 5);
}
