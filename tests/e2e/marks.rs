//! `mark_sent`: a row is marked because its insert was read and its event acknowledged, and for no other
//! reason; the position is confirmed afterwards.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use walrelay_testkit::{Db, eventually};

use crate::old_rows::{
    UNMARKED, config, count, insert, marking, partitioned, rig, unseen, wait_until_all_are_marked,
};
use crate::rig::{
    NOWHERE, PATIENCE, Relay, Rig, assert_has, assert_lacks, create_slot, done, edit, output_with,
    refused, run_command, with_source,
};

mod dead;
mod rollback;
mod stored;
mod suspended;

/// Runs a relay until it has marked ten rows.
pub(crate) fn mark_first_rows(rig: &Rig, config: &Path) {
    let db = rig.db();
    let relay = rig.streaming(config);
    insert(&db, 10, "before");
    wait_until_all_are_marked(&db);
    relay.ends_well();
}

/// Bytes of keys that may wait for their marks.
const KEYS: &str = "WALRELAY_SENT_KEYS";
const STORED: &str = "walrelay_state.unmarked";

/// Makes each mark of a row of this key fail.
fn refuse_marks(db: &Db, key: &str) {
    refuse_marks_of(db, "outbox", key);
}

fn refuse_marks_of(db: &Db, table: &str, key: &str) {
    db.batch(&format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN RAISE EXCEPTION ''no mark now''; END'; \
         CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW WHEN (NEW.aggregateid = '{key}') \
         EXECUTE FUNCTION refuse()"
    ));
}

/// Counts the unmarked rows of a key.
fn unmarked(db: &Db, key: &str) -> i64 {
    count(db, &format!("{UNMARKED} AND aggregateid = '{key}'"))
}

/// Waits until no row of a key but `out` is unmarked.
#[track_caller]
fn only_out_is_unmarked(db: &Db, rows: i64) {
    eventually(PATIENCE, || count(db, UNMARKED) == rows);
    assert_eq!(unmarked(db, "out"), rows);
}

/// Starts a relay, which sends and marks one row, and ends it. All rows of the key `out` stay.
#[track_caller]
fn marks_only_its_own(rig: &Rig, config: &Path, rows: i64) {
    let db = rig.db();
    let relay = rig.streaming(config);
    insert(&db, 1, "last");
    rig.caught_up();
    only_out_is_unmarked(&db, rows);
    relay.ends_well();
    assert_eq!(unmarked(&db, "out"), rows);
}

/// A first start is killed amid its snapshot, of which nothing was acknowledged. Then something else makes
/// the slot.
#[test]
fn rows_of_an_unfinished_snapshot_are_not_marked() {
    let rig = rig(15);
    let db = rig.db();
    insert(&db, 20, "out");
    let config = config(&rig, "");
    edit(&config, &rig.bootstrap, NOWHERE);
    let relay = rig.start(&config);
    relay.says("streaming the snapshot");
    relay.kill();
    edit(&config, NOWHERE, &rig.bootstrap);
    create_slot(&db, "walrelay");
    marks_only_its_own(&rig, &config, 20);
}

/// Rows of a snapshot are marked by their hashes: their transactions are unknown.
#[test]
fn rows_of_a_snapshot_are_marked() {
    let rig = rig(18);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox ADD a bool DEFAULT true, ADD b char(5) DEFAULT 'x', ADD c inet DEFAULT '10.0.0.1', \
         ADD d float8 DEFAULT 0.1, ADD e timestamptz DEFAULT now(), ADD f text[] DEFAULT '{a,NULL,\"ä\"}', \
         ADD g bytea DEFAULT '\\x00ff', ADD h text, ADD i interval DEFAULT '1 day 3 s'",
    );
    insert(&db, 20, "snapshot");
    let relay = rig.streaming(&config(&rig, ""));
    wait_until_all_are_marked(&db);
    relay.ends_well();
    rig.verdict().assert_nothing_repeated();
}

/// A switch ends with its snapshot, whose rows are marked by then.
#[test]
fn rows_of_a_switch_are_marked() {
    let rig = rig(18);
    let db = rig.db();
    let configured = config(&rig, "");
    done(&output_with("init", &configured, &[]));
    insert(&db, 20, "snapshot");
    let switched = done(&output_with("cutover switch", &configured, &["--yes"]));
    assert_eq!(count(&db, UNMARKED), 0, "{switched}");
    rig.verdict().assert_nothing_repeated();
}

/// A row filter is about a column that an UPDATE changes later, so that the row looks as if it had been
/// carried. So does a row that was inserted while a table was published in another way.
#[test]
fn rows_that_the_publication_left_out_are_not_marked() {
    for (major, out, back) in [
        (
            15,
            "SET TABLE outbox WHERE (type <> 'T')",
            "SET TABLE outbox",
        ),
        (18, "DROP TABLE outbox", "ADD TABLE outbox"),
        (17, "SET (publish = 'update')", "SET (publish = 'insert')"),
    ] {
        let rig = rig(major);
        let db = rig.db();
        let (configured, relay) = marking(&rig, 10);
        // One that runs stops by the change.
        relay.ends_well();
        db.batch(&format!("BEGIN; ALTER PUBLICATION walrelay {out}"));
        insert(&db, 20, "out");
        db.batch(&format!("ALTER PUBLICATION walrelay {back}; COMMIT"));
        db.batch("UPDATE outbox SET type = 'U' WHERE aggregateid = 'out'");
        let relay = rig.start_with(&configured, &["--accept-gap"]);
        relay.streaming();
        insert(&db, 5, "after");
        rig.caught_up();
        only_out_is_unmarked(&db, 20);
        relay.ends_well();
        marks_only_its_own(&rig, &configured, 20);
        assert_eq!(rig.records(0).len(), 16, "{out}");
    }
}

/// No column tells rows of this table apart, so none is marked, and the log says so.
#[test]
fn rows_of_a_table_without_a_key_are_not_marked() {
    let rig = rig(18);
    let db = rig.db();
    db.batch("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey");
    let relay = rig.streaming(&config(&rig, ""));
    insert(&db, 3, "first");
    relay.says("rows of this table cannot be marked as sent");
    rig.caught_up();
    let log = relay.ends_well();
    assert_has(&log, &["public.outbox"]);
    assert_eq!(count(&db, UNMARKED), 3);
}

/// A partition is made, filled in a savepoint and attached, all by one transaction, in which other rows
/// are carried.
#[test]
fn rows_that_were_written_before_the_attach_are_not_marked() {
    let rig = partitioned(18);
    let db = rig.db();
    let configured = config(&rig, "");
    let relay = rig.streaming(&configured);
    db.batch(
        "BEGIN; CREATE TABLE outbox_2 (LIKE outbox INCLUDING ALL); SAVEPOINT one; INSERT INTO outbox_2 \
         SELECT gen_random_uuid(), 'order', 'out', 'T', '{\"number\": 1}', '2020-02-15' FROM generate_series(1, 10); \
         RELEASE one; ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM ('2020-02-01') TO ('2020-03-01')",
    );
    insert(&db, 5, "carried");
    db.batch("COMMIT; UPDATE outbox_2 SET type = 'U' WHERE aggregateid = 'out' AND ctid = '(0,1)'");
    rig.caught_up();
    only_out_is_unmarked(&db, 10);
    relay.ends_well();
    marks_only_its_own(&rig, &configured, 10);
}

/// A table joins the publication and the configuration later; another was passed over for a while.
#[test]
fn rows_of_a_table_that_joins_later_are_not_marked() {
    let rig = rig(17);
    let db = rig.db();
    db.batch(
        "CREATE TABLE late (LIKE outbox INCLUDING ALL); CREATE TABLE passed (LIKE outbox INCLUDING ALL); \
         CREATE PUBLICATION walrelay FOR TABLE outbox, passed WITH (publish = 'insert')",
    );
    let configured = with_source(config(&rig, ""), "pass_over = [\"public.passed\"]");
    edit(&configured, "outbox.sent_at", "sent_at");
    create_slot(&db, "walrelay");
    let relay = rig.streaming(&configured);
    let copy = |table: &str| {
        db.batch(&format!(
            "INSERT INTO {table} SELECT gen_random_uuid(), aggregatetype, aggregateid, type, payload FROM outbox"
        ));
    };
    insert(&db, 10, "first");
    copy("late");
    copy("passed");
    rig.caught_up();
    wait_until_all_are_marked(&db);
    relay.ends_well();
    db.batch("ALTER PUBLICATION walrelay ADD TABLE late");
    edit(&configured, "pass_over = [\"public.passed\"]", "");
    let tables = "[\"public.outbox\", \"public.late\", \"public.passed\"]";
    edit(&configured, "[\"public.outbox\"]", tables);
    let relay = rig.streaming(&configured);
    copy("late");
    copy("passed");
    rig.caught_up();
    let marked = |table| count(&db, &format!("{table} WHERE sent_at IS NOT NULL"));
    eventually(PATIENCE, || marked("late") == 10 && marked("passed") == 10);
    relay.ends_well();
    assert_eq!((marked("late"), marked("passed")), (10, 10));
}

/// Rows that were written while the table was unlogged are in no log.
#[test]
fn rows_of_an_unlogged_time_are_not_marked() {
    let rig = rig(17);
    let db = rig.db();
    let (configured, relay) = marking(&rig, 5);
    relay.ends_well();
    db.batch("ALTER PUBLICATION walrelay DROP TABLE outbox; ALTER TABLE outbox SET UNLOGGED");
    insert(&db, 20, "out");
    db.batch("ALTER TABLE outbox SET LOGGED; ALTER PUBLICATION walrelay ADD TABLE outbox");
    let relay = rig.start_with(&configured, &["--accept-gap"]);
    relay.streaming();
    relay.ends_well();
    marks_only_its_own(&rig, &configured, 20);
}

/// A row is written again under its key after it was sent: the new content went nowhere.
#[test]
fn a_row_that_was_updated_is_another_event() {
    let rig = rig(18);
    let db = rig.db();
    let (configured, relay) = marking(&rig, 5);
    relay.ends_well();
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT id, aggregatetype, aggregateid, type, '{\"number\": 9}' FROM outbox \
         ON CONFLICT (id) DO UPDATE SET payload = excluded.payload, aggregateid = 'out', sent_at = NULL",
    );
    marks_only_its_own(&rig, &configured, 5);
    // Updated before the mark of its insert, by the same transaction.
    db.batch(
        "UPDATE outbox SET sent_at = now(); INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), 'order', 'changed', 'T', '{\"number\": 1}'); \
         UPDATE outbox SET aggregateid = 'out' WHERE aggregateid = 'changed'",
    );
    marks_only_its_own(&rig, &configured, 1);
}

/// `xmin` is another transaction's.
#[test]
fn rows_of_a_savepoint_are_marked() {
    let rig = rig(15);
    let db = rig.db();
    let relay = rig.streaming(&config(&rig, ""));
    db.batch("BEGIN; SAVEPOINT one");
    insert(&db, 5, "released");
    db.batch("RELEASE one; SAVEPOINT two");
    insert(&db, 5, "open");
    db.batch("COMMIT");
    wait_until_all_are_marked(&db);
    relay.ends_well();
    assert_eq!(rig.verdict().committed, 10);
}

/// Rows that are locked hold nothing up: they are stored by their keys, also for the next process, and
/// marked once they are free. A row that was changed meanwhile is not.
#[test]
fn locked_rows_are_marked_once_they_are_free() {
    let rig = rig(17);
    let db = rig.db();
    let configured = config(&rig, "");
    rig.streaming(&configured).ends_well();
    insert(&db, 20, "locked");
    insert(&db, 1, "changed");
    let holder = rig.db();
    holder.batch("BEGIN; SELECT FROM outbox FOR UPDATE");
    let relay = rig.streaming(&configured);
    insert(&db, 5, "free");
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) == 21);
    assert_eq!(count(&db, STORED), 21);
    relay.kill();
    holder.batch("UPDATE outbox SET type = 'U' WHERE aggregateid = 'changed'; COMMIT");
    let relay = rig.streaming(&configured);
    eventually(PATIENCE, || count(&db, STORED) == 0);
    relay.ends_well();
    assert_eq!(count(&db, UNMARKED), 1);
    assert_eq!(unmarked(&db, "changed"), 1);
    rig.verdict().assert_nothing_repeated();
}

/// The position waits for the marks: a relay that is killed before them sends the events again, and marks
/// their rows then.
#[test]
fn rows_of_a_killed_relay_are_marked_by_the_next() {
    let rig = rig(17);
    let db = rig.db();
    db.batch(
        "CREATE FUNCTION hold() RETURNS timestamptz LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN now(); END'",
    );
    let configured = config(&rig, "");
    edit(&configured, "sent_at = now()", "sent_at = hold()");
    let relay = rig.streaming(&configured);
    insert(&db, 20, "killed");
    eventually(PATIENCE, || rig.records(0).len() == 20);
    let marks =
        "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'WITH batch AS%'";
    eventually(PATIENCE, || !db.query(marks, &[]).is_empty());
    relay.kill();
    edit(&configured, "sent_at = hold()", "sent_at = now()");
    let relay = rig.streaming(&configured);
    wait_until_all_are_marked(&db);
    relay.ends_well();
    assert_eq!(rig.records(0).len(), 40, "confirmed before the marks");
    assert_eq!(rig.verdict().committed, 20);
}

/// With little room for keys, sending waits for the marks of one large transaction.
#[test]
fn rows_of_a_large_transaction_are_marked() {
    let rig = rig(15);
    let db = rig.db();
    let configured = config(&rig, "");
    let mut command = run_command(&configured);
    command.env(KEYS, "100000");
    let relay = Relay::spawn(&mut command, &rig.path("relay.log"));
    relay.streaming();
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), 'order', \
         'k' || n % 50, 'T', jsonb_build_object('number', n) FROM generate_series(1, 20000) n",
    );
    rig.caught_up();
    wait_until_all_are_marked(&db);
    relay.ends_well();
    assert_eq!(rig.records(0).len(), 20_000);
}

/// Makes each mark take these seconds.
fn slow_marks(db: &Db, seconds: &str) {
    db.batch(&format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END'; \
         CREATE TRIGGER slow AFTER UPDATE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION slow()"
    ));
}

/// Rows arrive faster than the server marks those before: each batch counts as an answer of the server, so
/// nothing is given up.
#[test]
fn marks_go_on_while_rows_arrive_faster() {
    let rig = rig(18);
    let db = rig.db();
    slow_marks(&db, "0.3");
    let relay = rig.start_with(&config(&rig, ""), &["--set=log.level=debug"]);
    relay.streaming();
    let load = rig.workload().rate(300.0).start();
    for _ in 0..2 {
        relay.says("marked rows as sent");
    }
    load.stop();
    wait_until_all_are_marked(&db);
    rig.caught_up();
    assert_lacks(&relay.ends_well(), &["cannot be marked"]);
}

/// The server ends a stream without a status after `wal_sender_timeout`, and the last mark takes longer.
#[test]
fn a_relay_that_ends_waits_for_a_slow_mark() {
    let rig = rig(15);
    let db = rig.db();
    slow_marks(&db, "5");
    let config = config(&rig, "");
    let relay = rig.start_with(&config, &["--set=source.wal_sender_timeout=\"2s\""]);
    relay.streaming();
    insert(&db, 1, "last");
    let marks =
        "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'WITH batch AS%'";
    eventually(PATIENCE, || !db.query(marks, &[]).is_empty());
    relay.ends_well();
    assert_eq!(count(&db, UNMARKED), 0);
}

/// The relay's role may not store keys: nothing is held up, and the rows stay.
#[test]
fn rows_that_cannot_be_marked_or_stored_hold_nothing_up() {
    let rig = rig(18);
    let db = rig.db();
    db.batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'; GRANT SELECT ON outbox TO relay; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')",
    );
    create_slot(&db, "walrelay");
    let url = format!("--set=source.url={}", rig.url_as("relay", "x", "postgres"));
    let relay = rig.start_with(&config(&rig, ""), &[&url]);
    insert(&db, 10, "denied");
    relay.says("permission denied for table outbox");
    relay.says("rows that were sent stay unmarked");
    rig.caught_up();
    relay.ends_well();
    assert_eq!(count(&db, UNMARKED), 10);
}

/// A mark that fails is rolled back, and made again once it can be: the keys are stored. The slot goes
/// on meanwhile, and so do the marks of other rows.
#[test]
fn a_mark_that_is_rolled_back_is_made_again() {
    let rig = rig(15);
    let db = rig.db();
    let (_, relay) = marking(&rig, 2);
    refuse_marks(&db, "refused");
    insert(&db, 10, "refused");
    relay.says("no mark now");
    insert(&db, 10, "other");
    rig.caught_up();
    assert_eq!(unmarked(&db, "refused"), 10);
    db.batch("DROP TRIGGER refuse ON outbox");
    wait_until_all_are_marked(&db);
    relay.ends_well();
    assert_eq!(rig.verdict().committed, 22);
}

/// A mark that does not make the condition false would be made again and again.
#[test]
fn a_mark_in_vain_is_made_once() {
    let rig = rig(17);
    let db = rig.db();
    db.batch("ALTER TABLE outbox ADD part int, ADD walrelay_note text");
    let config = config(&rig, "");
    edit(
        &config,
        "mark_sent = \"sent_at",
        "mark_sent = \"walrelay_note = 'x', part = 1 -- sent_at",
    );
    let relay = rig.streaming(&config);
    insert(&db, 10, "key");
    relay.says("still count as not sent after mark_sent");
    insert(&db, 10, "key");
    rig.caught_up();
    relay.ends_well();
    assert_eq!(count(&db, "outbox WHERE part IS NULL"), 20);
    let rollback = output_with("cutover rollback", &config, &["--yes"]);
    let words = [
        "[cutover-mark]",
        "mark_sent",
        "no row of this table was marked",
    ];
    refused(&rollback, 78, &words);
    assert!(rig.slot().read().is_some());
}

/// A row that was inserted with the key of a row that was sent, and is gone, is another event: it is
/// not marked by that key, which waits for its mark.
#[test]
fn a_row_with_the_key_of_a_sent_one_is_another_event() {
    let rig = rig(17);
    let db = rig.db();
    let relay = rig.streaming(&config(&rig, ""));
    refuse_marks(&db, "first");
    insert(&db, 3, "first");
    relay.says("no mark now");
    unseen(&db, || {
        db.batch(
            "CREATE TABLE kept AS TABLE outbox; DELETE FROM outbox; \
             UPDATE kept SET aggregateid = 'again'; INSERT INTO outbox SELECT * FROM kept",
        );
    });
    insert(&db, 2, "last");
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) == 3);
    relay.ends_well();
    assert_eq!(unmarked(&db, "again"), 3);
    assert_eq!(rig.records(0).len(), 5);
}

/// A commit that waits for a synchronous standby is sent before it is visible. Its row is marked once it
/// is, and the slot goes on meanwhile.
#[test]
fn a_row_whose_commit_waits_is_marked_once_it_is_visible() {
    let rig = rig(17);
    let db = rig.db();
    let (_, relay) = marking(&rig, 1);
    let standby = |names: &str| {
        db.batch(&format!(
            "ALTER SYSTEM SET synchronous_standby_names = '{names}'"
        ));
        db.batch("SELECT pg_reload_conf()");
    };
    let waits = |pid: i32| {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'";
        db.query(sql, &[&pid])[0].get::<_, i64>(0) == 1
    };
    let session = || {
        let db = rig.db();
        let pid = db.value::<i32>("SELECT pg_backend_pid()");
        (db, pid)
    };
    standby("nobody");
    // Commits wait once the checkpointer has read the setting.
    let is_read = Arc::new(AtomicBool::new(false));
    let (prober, pid) = session();
    let probing = thread::spawn({
        let is_read = Arc::clone(&is_read);
        move || {
            while !is_read.load(Ordering::SeqCst) {
                prober.batch("SELECT pg_logical_emit_message(true, 'probe', '')");
            }
        }
    });
    eventually(PATIENCE, || waits(pid));
    is_read.store(true, Ordering::SeqCst);
    let (writer, pid) = session();
    let waiting = thread::spawn(move || insert(&writer, 1, "waiting"));
    eventually(PATIENCE, || waits(pid));
    // Its event is there, and rounds that mark come after it. No later transaction completes.
    eventually(PATIENCE, || rig.records(0).len() == 2);
    let slot = rig.slot();
    slot.wait_until(slot.wal_end(), PATIENCE);
    assert_eq!(count(&db, "outbox WHERE aggregateid = 'waiting'"), 0);
    standby("");
    waiting.join().expect("the commit ends");
    probing.join().expect("the commit ends");
    wait_until_all_are_marked(&db);
    relay.ends_well();
}

/// The slot is gone, and with it the log of some rows: the snapshot sends them before they are
/// marked.
#[test]
fn rows_of_an_accepted_gap_are_sent_before_they_are_marked() {
    let rig = rig(15);
    let db = rig.db();
    let state_file = format!("state_file = \"{}\"", rig.path("state").display());
    let config = with_source(config(&rig, ""), &state_file);
    mark_first_rows(&rig, &config);
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    insert(&db, 20, "gap");
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.says("the snapshot relays the existing rows");
    // A stop before the slot is opened is not complete, and loses nothing.
    relay.streaming();
    wait_until_all_are_marked(&db);
    relay.ends_well();
    let verdict = rig.verdict();
    assert_eq!(verdict.committed, 30);
    verdict.assert_nothing_repeated();
}
