//! Rows that the slot does not carry are neither marked as sent nor deleted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use walrelay_testkit::{Db, eventually};

use crate::rig::{
    PATIENCE, Relay, Rig, assert_has, assert_lacks, create_slot, done, edit, insert_of,
    output_with, refused, run_command, said, with_source,
};

pub(crate) const MARK: &str = "snapshot = \"unsent\"\nsnapshot_where = \"outbox.sent_at IS NULL\"\nsnapshot_order = [\"created_at\"]\n\
                    mark_sent = \"sent_at = now()\"";
/// Bytes of keys that the relay notes.
const KEYS: &str = "WALRELAY_SENT_KEYS";
pub(crate) const PRUNE: [&str; 2] = ["--keep=24h", "--yes"];
pub(crate) const UNMARKED: &str = "outbox WHERE sent_at IS NULL";

/// An outbox with a column for the mark, and rows that are old enough to be deleted.
pub(crate) fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    rig.db().batch(
        "ALTER TABLE outbox ADD sent_at timestamptz, \
         ADD created_at timestamptz DEFAULT now() - interval '2 days'",
    );
    rig
}

/// Such an outbox, partitioned by time. [`insert`] writes to its partition `outbox_1`, unless another
/// one has the time.
fn partitioned(major: u32, bounds: &str) -> Rig {
    let rig = Rig::with_outbox(major);
    rig.db().batch(&format!(
        "DROP TABLE outbox; CREATE TABLE outbox (id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, \
         type text NOT NULL, payload jsonb, created_at timestamptz NOT NULL DEFAULT '2020-01-15', sent_at timestamptz, \
         PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at); \
         CREATE TABLE outbox_1 PARTITION OF outbox {bounds}"
    ));
    rig
}

pub(crate) fn config(rig: &Rig, more: &str) -> PathBuf {
    with_source(rig.config_and(more), MARK)
}

/// The same with a state file.
fn with_state_file(rig: &Rig, more: &str) -> PathBuf {
    let state_file = format!("state_file = \"{}\"", rig.path("state").display());
    with_source(config(rig, more), &state_file)
}

/// Runs a relay until it has marked ten rows.
pub(crate) fn mark_first_rows(rig: &Rig, config: &Path) {
    let db = rig.db();
    let relay = rig.streaming(config);
    insert(&db, 10, "before");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    relay.ends_well();
}

/// Waits until the relay has marked all rows, and ends it: each of so many was sent once.
fn assert_marked_and_sent_once(rig: &Rig, relay: Relay, rows: usize) {
    let db = rig.db();
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    relay.ends_well();
    let verdict = rig.verdict();
    assert_eq!(verdict.committed, rows);
    verdict.assert_nothing_repeated();
}

pub(crate) fn count(db: &Db, rows: &str) -> i64 {
    db.value(&format!("SELECT count(*) FROM {rows}"))
}

pub(crate) fn insert(db: &Db, rows: u32, key: &str) {
    for number in 1..=rows {
        insert_of(db, "order", key, number);
    }
}

/// Says that all rows of before are sent, as a user does who has sent what was missing.
pub(crate) fn accept(db: &Db) {
    db.batch("UPDATE walrelay_state.carried SET state = 'accepted' WHERE slot = 'walrelay'");
}

/// A transaction changes the publication, writes rows that are therefore not in the stream, and
/// changes the publication back. No other session sees the change, and a restart does not forget it.
#[test]
fn a_changed_publication_ends_the_marking() {
    for (major, out, back) in [
        (
            15,
            "SET TABLE outbox WHERE (aggregateid <> 'out')",
            "SET TABLE outbox",
        ),
        (18, "DROP TABLE outbox", "ADD TABLE outbox"),
        (17, "SET (publish = 'update')", "SET (publish = 'insert')"),
    ] {
        let rig = rig(major);
        let db = rig.db();
        let relay = rig.streaming(&config(&rig, ""));
        insert(&db, 10, "before");
        eventually(PATIENCE, || {
            count(&db, "outbox WHERE sent_at IS NOT NULL") == 10
        });
        db.batch(&format!("BEGIN; ALTER PUBLICATION walrelay {out}"));
        insert(&db, 20, "out");
        db.batch(&format!("ALTER PUBLICATION walrelay {back}; COMMIT"));
        insert(&db, 5, "after");
        rig.caught_up();
        relay.says("its publication or its partitions were changed");
        // The relay saw the records of the last five acknowledged.
        eventually(PATIENCE, || count(&db, UNMARKED) <= 20);
        relay.ends_well();
        let relay = rig.streaming(&config(&rig, ""));
        relay.says("its publication or its partitions were changed");
        assert_eq!(
            count(&db, "outbox WHERE sent_at IS NULL AND aggregateid = 'out'"),
            20,
            "{out}"
        );
        assert_eq!(count(&db, UNMARKED), 20, "{out}");
        assert_eq!(rig.records(0).len(), 15, "{out}");
        accept(&db);
        eventually(PATIENCE, || count(&db, UNMARKED) == 0);
        relay.ends_well();
    }
}

/// Rows that were committed while the slot's publication lacked the table are between rows that the
/// relay saw acknowledged. Also in a table without a key, of which each row is like the others: there
/// nothing tells them apart, so none is marked.
#[test]
fn rows_between_acknowledged_ones_stay() {
    for (major, table) in [
        (17, ""),
        (
            15,
            "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ADD number bigserial, \
             ADD PRIMARY KEY (aggregateid, number)",
        ),
        (18, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey"),
    ] {
        let rig = rig(major);
        let db = rig.db();
        if !table.is_empty() {
            db.batch(table);
        }
        let relay = rig.streaming(&config(&rig, ""));
        insert(&db, 3, "first");
        rig.caught_up();
        eventually(PATIENCE, || count(&db, UNMARKED) == 0);
        db.batch("BEGIN; ALTER PUBLICATION walrelay DROP TABLE outbox");
        insert(&db, 7, "out");
        db.batch("ALTER PUBLICATION walrelay ADD TABLE outbox; COMMIT");
        insert(&db, 5, "last");
        rig.caught_up();
        relay.says("its publication or its partitions were changed");
        let keyed = major != 18;
        if keyed {
            eventually(PATIENCE, || count(&db, UNMARKED) <= 7);
        }
        relay.ends_well();
        assert_eq!(
            count(&db, "outbox WHERE sent_at IS NULL AND aggregateid = 'out'"),
            7
        );
        assert_eq!(count(&db, UNMARKED), if keyed { 7 } else { 12 });
        assert_eq!(rig.records(0).len(), 8);
    }
}

/// A mark that fails is rolled back, and made again once it can be: the keys are not lost. The
/// publication was changed, so nothing but the keys tells that the rows were sent.
#[test]
fn a_mark_that_is_rolled_back_is_made_again() {
    let rig = rig(15);
    let db = rig.db();
    let relay = rig.streaming(&config(&rig, ""));
    insert(&db, 2, "before");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    db.batch("ALTER PUBLICATION walrelay SET (publish = 'insert')");
    relay.says("its publication or its partitions were changed");
    db.batch(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN RAISE EXCEPTION ''no mark now''; END'; \
         CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.aggregateid = 'refused') \
         EXECUTE FUNCTION refuse()",
    );
    insert(&db, 10, "refused");
    relay.says("no mark now");
    insert(&db, 10, "other");
    rig.caught_up();
    assert_eq!(
        count(
            &db,
            "outbox WHERE sent_at IS NULL AND aggregateid = 'refused'"
        ),
        10
    );
    db.batch("DROP TRIGGER refuse ON outbox");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    relay.ends_well();
    assert_eq!(rig.verdict().committed, 22);
}

/// A relay that is killed after its rows are confirmed, before it has marked them: the next one marks
/// them, once. So it does where there are more rows than it notes.
#[test]
fn rows_of_a_killed_relay_are_marked_by_the_next() {
    let rig = rig(17);
    let db = rig.db();
    db.batch(
        "CREATE FUNCTION hold() RETURNS timestamptz LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN now(); END'",
    );
    let config = config(&rig, "");
    edit(&config, "sent_at = now()", "sent_at = hold()");
    let relay = rig.streaming(&config);
    insert(&db, 2, "before");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    let holder = rig.db();
    holder.batch("SELECT pg_advisory_lock(7)");
    insert(&db, 20, "killed");
    rig.caught_up();
    assert_eq!(count(&db, UNMARKED), 20);
    relay.kill();
    holder.batch("SELECT pg_advisory_unlock(7)");
    let mut command = run_command(&config);
    command.env(KEYS, "200");
    let relay = Relay::spawn(&mut command, &rig.path("next.log"));
    relay.streaming();
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    insert(&db, 200, "many");
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    relay.ends_well();
    assert_eq!(rig.verdict().committed, 222);
}

/// Commands find a publication that leaves out rows, or a whole table.
#[test]
fn commands_refuse_a_publication_that_leaves_out_rows() {
    let rig = rig(15);
    let db = rig.db();
    let marks = config(&rig, "\n[prune]\n");
    let relay = rig.streaming(&marks);
    insert(&db, 10, "before");
    rig.caught_up();
    relay.ends_well();
    let rollback = || output_with("cutover rollback", &marks, &["--yes"]);
    let prune = || output_with("prune", &marks, &PRUNE);
    db.batch("UPDATE outbox SET sent_at = NULL");
    for (change, why) in [
        (
            "DROP TABLE outbox",
            "does not publish outbox as public.outbox",
        ),
        (
            "ADD TABLE outbox; ALTER PUBLICATION walrelay SET (publish = 'update')",
            "does not publish INSERT",
        ),
    ] {
        db.batch(&format!("ALTER PUBLICATION walrelay {change}"));
        refused(&prune(), 78, &["[not-carried]", why]);
        refused(&rollback(), 78, &["[not-carried]", why]);
    }
    db.batch(
        "ALTER PUBLICATION walrelay SET (publish = 'insert'); CREATE TABLE other (LIKE outbox)",
    );
    let tables = "--set=source.tables=[\"public.other\", \"public.outbox\"]";
    let lacks = output_with("prune", &marks, &[PRUNE[0], PRUNE[1], tables]);
    refused(&lacks, 78, &["[not-carried]", "public.other"]);
    assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (10, 10));
    // What was in the way is gone, and with it what was written meanwhile: no process was there.
    insert(&db, 1, "meanwhile");
    let changed = "its publication or its partitions were changed";
    let dry = output_with("prune", &marks, &["--keep=24h", "--dry-run"]);
    for refusal in [prune(), rollback(), dry] {
        refused(
            &refusal,
            78,
            &["[not-carried]", changed, "SET state = 'accepted'"],
        );
    }
    assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (11, 11));
    assert!(rig.slot().read().is_some());
    accept(&db);
    let relay = rig.streaming(&marks);
    rig.caught_up();
    done(&prune());
    relay.ends_well();
    assert_eq!(count(&db, "outbox"), 0);
}

/// The slot is moved while no relay runs, and the user goes on over the gap.
#[test]
fn rows_that_a_moved_slot_passed_over_stay() {
    let rig = rig(17);
    let db = rig.db();
    let config = with_state_file(&rig, "\n[prune]\n");
    mark_first_rows(&rig, &config);
    insert(&db, 20, "gap");
    db.batch("SELECT pg_replication_slot_advance('walrelay', pg_current_wal_lsn())");
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.says("passed over a gap");
    let pruned = output_with("prune", &config, &PRUNE);
    refused(&pruned, 78, &["[not-carried]", "passed over a gap"]);
    assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (30, 20));
    relay.ends_well();
    // A slot that walrelay makes anew, with its snapshot, begins the record anew.
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    let relay = rig.start_with(&config, &["--accept-gap"]);
    assert_marked_and_sent_once(&rig, relay, 30);
}

/// The command that moves the slot, and the one that drops it, say so in the record.
#[test]
fn rows_that_a_command_passed_over_stay() {
    let rig = rig(18);
    let db = rig.db();
    let config = config(&rig, "");
    mark_first_rows(&rig, &config);
    insert(&db, 20, "passed-over");
    // A role that cannot say so in the record cannot move the slot.
    db.batch("CREATE ROLE other LOGIN REPLICATION PASSWORD 'x'");
    let url = format!("--set=source.url={}", rig.url_as("other", "x", "postgres"));
    for line in ["advance walrelay --to now --yes", "drop walrelay --yes"] {
        let command = format!("slots {line}");
        refused(&output_with(&command, &config, &[&url]), 77, &["carried"]);
    }
    assert!(rig.slot().read().is_some());
    let slots = |line: &str| done(&output_with(&format!("slots {line}"), &config, &[]));
    slots("advance walrelay --to now --yes");
    let relay = rig.streaming(&config);
    relay.says("passed over a gap");
    relay.ends_well();
    slots("drop walrelay --yes");
    slots("create");
    let relay = rig.streaming(&config);
    relay.says("its slot was not made by walrelay run or init");
    insert(&db, 5, "after");
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) <= 20);
    relay.ends_well();
    assert_eq!(
        count(
            &db,
            "outbox WHERE sent_at IS NULL AND aggregateid = 'passed-over'"
        ),
        20
    );
    assert_eq!(rig.records(0).len(), 15);
}

/// The relay's role may write the table, and not what is recorded of it, until `init` lets it. The
/// running relay marks what it sends; of other rows nothing is known.
#[test]
fn nothing_is_deleted_without_the_record() {
    let rig = rig(15);
    let db = rig.db();
    db.batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'; GRANT SELECT, UPDATE, DELETE ON outbox TO relay; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')",
    );
    create_slot(&db, "walrelay");
    let url = format!("--set=source.url={}", rig.url_as("relay", "x", "postgres"));
    // Sent by a relay that marks nothing.
    let relay = rig.start_with(&rig.config_and(""), &[&url]);
    insert(&db, 10, "key");
    rig.caught_up();
    relay.ends_well();
    let admin = config(&rig, "\n[prune]\n");
    let relay = rig.start_with(&admin, &[&url]);
    relay.says("table walrelay_state.carried does not exist");
    insert(&db, 1, "seen");
    eventually(PATIENCE, || {
        count(&db, "outbox WHERE sent_at IS NOT NULL") == 1
    });
    let prune = || output_with("prune", &admin, &[PRUNE[0], PRUNE[1], &url]);
    refused(&prune(), 78, &["[not-carried]", "walrelay init --role"]);
    let checked = || said(&output_with("check", &admin, &[&url]));
    assert_has(
        &checked(),
        &[
            "no row of public.outbox is deleted, and of those that a running relay did not send none is marked",
        ],
    );
    assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (11, 10));
    done(&output_with("init", &admin, &["--role=relay"]));
    // Nobody knows what the slot carries of the rows from before.
    relay.says("its slot was not made by walrelay");
    refused(&prune(), 78, &["[not-carried]", "not made by walrelay"]);
    assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (11, 10));
    accept(&db);
    let sent = "rows of public.outbox are marked and deleted";
    // Once the relay has noted a position.
    eventually(PATIENCE, || checked().contains(sent));
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    done(&prune());
    relay.ends_well();
    assert_eq!(count(&db, "outbox"), 0);
}

/// A slot of this name in another database of the server confirms nothing of this one.
#[test]
fn a_slot_of_another_database_says_nothing() {
    let rig = rig(18);
    let db = rig.db();
    insert(&db, 10, "before");
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    db.batch("CREATE DATABASE other");
    create_slot(
        &Db::connect(&rig.postgres.url_for("postgres", None, "other")),
        "walrelay",
    );
    let pruned = output_with("prune", &config(&rig, "\n[prune]\n"), &PRUNE);
    refused(&pruned, 78, &["[not-carried]", "no slot of this database"]);
    assert_eq!(count(&db, "outbox"), 10);
}

/// Rows of children by INHERITS are seen by a query of the table, and are not published as its
/// rows.
#[test]
fn rows_of_children_are_not_rows_of_the_table() {
    let rig = rig(17);
    let db = rig.db();
    let config = config(&rig, "\n[prune]\n");
    let relay = rig.streaming(&config);
    db.batch("CREATE TABLE child () INHERITS (outbox)");
    insert(&db, 10, "parent");
    db.batch("INSERT INTO child SELECT gen_random_uuid(), aggregatetype, 'child', type, payload, NULL, created_at FROM outbox");
    rig.caught_up();
    eventually(PATIENCE, || {
        count(&db, "ONLY outbox WHERE sent_at IS NULL") == 0
    });
    let dry = done(&output_with("prune", &config, &["--keep=24h", "--dry-run"]));
    assert_has(&dry, &["10 rows are old enough"]);
    done(&output_with("prune", &config, &PRUNE));
    relay.ends_well();
    assert_eq!(count(&db, "ONLY outbox"), 0);
    assert_eq!(count(&db, "child WHERE sent_at IS NULL"), 10);
    assert_eq!(rig.records(10).len(), 10);
}

/// A table that has rows becomes a partition: Postgres publishes none of them.
#[test]
fn rows_of_an_attached_table_stay() {
    let rig = partitioned(15, "FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')");
    let db = rig.db();
    let config = config(&rig, "\n[prune]\n");
    let relay = rig.streaming(&config);
    insert(&db, 10, "carried");
    db.batch(
        "CREATE TABLE outbox_2 (LIKE outbox INCLUDING ALL); \
         INSERT INTO outbox_2 SELECT gen_random_uuid(), aggregatetype, 'filled', type, payload, '2020-02-15' FROM outbox",
    );
    db.batch("ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM ('2020-02-01') TO ('2020-03-01')");
    // One transaction makes and attaches this one.
    db.batch(
        "BEGIN; CREATE TABLE outbox_3 (LIKE outbox INCLUDING ALL); \
         ALTER TABLE outbox ATTACH PARTITION outbox_3 FOR VALUES FROM ('2020-03-01') TO ('2020-04-01'); COMMIT; \
         INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, 'carried', type, payload, '2020-03-15' \
         FROM outbox_1",
    );
    rig.caught_up();
    relay.says("it was made before it was attached");
    eventually(PATIENCE, || count(&db, UNMARKED) == 10);
    let dry = done(&output_with("prune", &config, &["--keep=24h", "--dry-run"]));
    assert_has(&dry, &["partition public.outbox_2 stays"]);
    assert_lacks(&dry, &["outbox_2 is dropped"]);
    let pruned = output_with("prune", &config, &PRUNE);
    let said = refused(&pruned, 78, &["[prune-attached]", "public.outbox_2"]);
    assert_has(
        &said,
        &[
            "dropped partition public.outbox_1",
            "dropped partition public.outbox_3",
        ],
    );
    relay.ends_well();
    assert_eq!(count(&db, "outbox_2 WHERE sent_at IS NULL"), 10);
    assert_eq!(rig.records(20).len(), 20);
}

/// A writer that names the partition writes rows into it after it was detached.
#[test]
fn rows_that_are_written_into_a_detached_partition_stay() {
    let rig = partitioned(17, "FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')");
    let db = rig.db();
    let config = rig.config_and("\n[prune]\nbefore_slot = true\n");
    let relay = rig.streaming(&config);
    insert(&db, 10, "sent");
    rig.caught_up();
    // As a relay that was killed before it dropped the partition.
    db.batch(
        "BEGIN; ALTER TABLE outbox DETACH PARTITION outbox_1; COMMENT ON TABLE outbox_1 IS \
         'walrelay has detached this from public.outbox, and drops it once its rows are confirmed'; COMMIT",
    );
    db.batch("INSERT INTO outbox_1 SELECT gen_random_uuid(), aggregatetype, 'late', type, payload FROM outbox_1 LIMIT 3");
    let prune = || output_with("prune", &config, &PRUNE);
    refused(&prune(), 65, &["[prune-late-rows]", "3 rows were written"]);
    assert_eq!(count(&db, "outbox_1"), 13);
    db.batch("DELETE FROM outbox_1 WHERE aggregateid = 'late'");
    assert_has(&done(&prune()), &["dropped partition public.outbox_1"]);
    relay.ends_well();
}

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
    relay.says("its slot was not made by walrelay run or init");
    relay.ends_well();
    assert_eq!(count(&db, UNMARKED), 6);
}

/// The slot is gone, and with it the log of some rows: the snapshot sends them before they are
/// marked.
#[test]
fn rows_of_an_accepted_gap_are_sent_before_they_are_marked() {
    let rig = rig(15);
    let db = rig.db();
    let config = with_state_file(&rig, "");
    mark_first_rows(&rig, &config);
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    insert(&db, 20, "gap");
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.says("the snapshot relays the rows that are there");
    assert_marked_and_sent_once(&rig, relay, 30);
}

/// A relay that shares the table with others has a row filter: it marks and deletes its own rows.
#[test]
fn rows_that_a_filter_leaves_out_stay() {
    let rig = rig(15);
    let db = rig.db();
    db.batch(
        "CREATE PUBLICATION walrelay FOR TABLE outbox WHERE (aggregateid <> 'out') WITH (publish = 'insert')",
    );
    create_slot(&db, "walrelay");
    let config = config(&rig, "\n[prune]\n");
    let relay = rig.streaming(&config);
    insert(&db, 20, "out");
    insert(&db, 10, "in");
    relay.says("its slot was not made by walrelay");
    accept(&db);
    eventually(PATIENCE, || count(&db, UNMARKED) == 20);
    rig.caught_up();
    done(&output_with("prune", &config, &PRUNE));
    relay.ends_well();
    done(&output_with("cutover rollback", &config, &["--yes"]));
    assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (20, 20));
    assert_eq!(rig.records(0).len(), 10);
}

/// The transaction that attaches a partition has filled it before.
#[test]
fn rows_that_were_written_before_the_attach_stay() {
    let rig = partitioned(18, "DEFAULT");
    let db = rig.db();
    let config = config(&rig, "\n[prune]\n");
    let relay = rig.streaming(&config);
    db.batch(
        "BEGIN; CREATE TABLE outbox_2 (LIKE outbox INCLUDING ALL); INSERT INTO outbox_2 \
         SELECT gen_random_uuid(), 'order', 'filled', 'T', '{\"number\": 1}' FROM generate_series(1, 10); \
         ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM ('2020-01-01') TO ('2020-02-01'); COMMIT",
    );
    insert(&db, 5, "carried");
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) == 10);
    refused(
        &output_with("prune", &config, &PRUNE),
        78,
        &["[prune-attached]", "public.outbox_2"],
    );
    relay.ends_well();
    assert_eq!((count(&db, "outbox_2"), count(&db, UNMARKED)), (15, 10));
    assert_eq!(rig.records(0).len(), 5);
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
    refused(&rollback, 78, &["[cutover-mark]", "mark_sent"]);
    assert!(rig.slot().read().is_some());
}

/// A row that was inserted with the key of a row that was sent, and is gone, is another event: it is
/// not marked by that key, which waits for its mark.
#[test]
fn a_row_with_the_key_of_a_sent_one_is_another_event() {
    let rig = rig(17);
    let db = rig.db();
    let relay = rig.streaming(&config(&rig, ""));
    db.batch(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN RAISE EXCEPTION ''no mark now''; END'; \
         CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.aggregateid = 'first') \
         EXECUTE FUNCTION refuse()",
    );
    insert(&db, 3, "first");
    relay.says("no mark now");
    db.batch(
        "BEGIN; ALTER PUBLICATION walrelay DROP TABLE outbox; CREATE TABLE kept AS TABLE outbox; DELETE FROM outbox; \
         UPDATE kept SET aggregateid = 'again'; INSERT INTO outbox SELECT * FROM kept; \
         ALTER PUBLICATION walrelay ADD TABLE outbox; COMMIT",
    );
    insert(&db, 2, "last");
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) == 3);
    relay.says("its publication or its partitions were changed");
    relay.ends_well();
    assert_eq!(
        count(
            &db,
            "outbox WHERE sent_at IS NULL AND aggregateid = 'again'"
        ),
        3
    );
    assert_eq!(rig.records(0).len(), 5);
}

/// A commit that waits for a synchronous standby is sent and confirmed before it is visible. Its row
/// is marked once it is.
#[test]
fn a_row_whose_commit_waits_is_marked_once_it_is_visible() {
    let rig = rig(16);
    let db = rig.db();
    let relay = rig.streaming(&config(&rig, ""));
    insert(&db, 1, "before");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
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
    let asked = "SELECT max(query_start)::text FROM pg_stat_activity \
                 WHERE application_name = 'walrelay' AND backend_type = 'client backend'";
    for _ in 0..5 {
        let last = db.text(asked);
        eventually(PATIENCE, || db.text(asked) != last);
    }
    assert_eq!(count(&db, "outbox WHERE aggregateid = 'waiting'"), 0);
    standby("");
    waiting.join().expect("the commit ends");
    probing.join().expect("the commit ends");
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    relay.ends_well();
}
