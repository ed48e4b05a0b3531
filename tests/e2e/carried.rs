//! Rows that the slot does not carry are neither marked as sent nor deleted.

use std::path::{Path, PathBuf};

use walrelay_testkit::{Db, eventually};

use crate::rig::{
    PATIENCE, Relay, Rig, assert_has, assert_lacks, create_slot, done, insert_of, output_with,
    refused, said, with_source,
};

pub(crate) const MARK: &str = "snapshot = \"unsent\"\nsnapshot_where = \"outbox.sent_at IS NULL\"\nsnapshot_order = [\"created_at\"]\n\
                    mark_sent = \"sent_at = now()\"";
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
    db.batch(
        "INSERT INTO walrelay_state.carried VALUES ('walrelay', 'public.outbox', 0, 'accepted') ON CONFLICT DO NOTHING; \
         UPDATE walrelay_state.carried SET state = 'accepted' WHERE slot = 'walrelay'",
    );
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
    for refusal in [prune(), dry] {
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
    rig.streaming(&config).ends_well();
    slots("drop walrelay --yes");
    slots("create");
    let relay = rig.streaming(&config);
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
    refused(&prune(), 78, &["[not-carried]", "not made by walrelay"]);
    assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (11, 10));
    accept(&db);
    let sent = "rows of public.outbox are marked and deleted";
    // Once the relay has noted a position.
    eventually(PATIENCE, || checked().contains(sent));
    assert_eq!(count(&db, UNMARKED), 10);
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
    eventually(PATIENCE, || count(&db, UNMARKED) == 20);
    rig.caught_up();
    let prune = || output_with("prune", &config, &PRUNE);
    refused(&prune(), 78, &["[not-carried]"]);
    accept(&db);
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
