//! Rows whose events have an open dead letter are neither marked as sent nor deleted.

use std::path::{Path, PathBuf};

use walrelay_sink::dlq_headers;
use walrelay_testkit::{Producer, eventually};

use crate::old_rows::{self, MARKED, PRUNE, UNMARKED, count, insert_row, partitioned, rig};
use crate::rig::{
    NOWHERE, PATIENCE, Relay, Rig, SLOT, assert_has, done, edit, insert_of, output_with, refused,
    said,
};

/// A payload larger than the client's `message.max.bytes`.
const LARGE: &str = "jsonb_build_object('text', repeat('secret-value', 200000))";

fn topic(rig: &Rig) -> String {
    format!("dead.{}letters", rig.prefix)
}

fn config(rig: &Rig) -> PathBuf {
    let poison = format!(
        "\n[prune]\n\n[poison]\nunroutable = \"dead-letter\"\noversize = \"dead-letter\"\npark_key = true\n\
         topic = \"{}\"\n",
        topic(rig)
    );
    let config = old_rows::config(rig, &poison);
    // The table is renamed.
    edit(&config, "outbox.sent_at", "sent_at");
    config
}

/// Renames the outbox while no relay runs, and starts one.
fn rename(rig: &Rig, config: &Path) -> Relay {
    let db = rig.db();
    db.batch("ALTER TABLE outbox RENAME TO events");
    edit(config, "public.outbox", "public.events");
    rig.streaming(config)
}

/// By the running relay, by `prune` and by a rollback, until the dead letters are resolved.
#[test]
fn open_dead_letters_keep_their_rows() {
    let rig = rig(17);
    let db = rig.db();
    let config = config(&rig);
    let relay = rig.streaming(&config);
    for number in 1..=5 {
        insert_of(&db, "order", "good", number);
    }
    insert_row(&db, "NULL", "parked", "'1'");
    for number in 1..=3 {
        insert_of(&db, "order", "parked", number);
    }
    insert_row(&db, "'order'", "large", LARGE);
    rig.caught_up();
    eventually(PATIENCE, || count(&db, MARKED) == 5);
    // A later round marks this row, and not the others.
    insert_of(&db, "order", "good", 6);
    eventually(PATIENCE, || count(&db, MARKED) == 6);
    assert_eq!(count(&db, UNMARKED), 5);
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!((count(&db, "outbox"), count(&db, UNMARKED)), (5, 5));

    done(&output_with(
        "dlq drop --class unroutable --yes",
        &config,
        &[],
    ));
    done(&output_with(
        "dlq redrive --class parked --yes",
        &config,
        &[],
    ));
    done(&output_with("prune", &config, &PRUNE));
    let log = relay.ends_well();
    assert!(!log.contains("secret-value"), "{log}");
    // Rows of dead letters are never marked, whatever became of these.
    assert_eq!(count(&db, MARKED), 0);
    let rollback = |more: &[&str]| done(&output_with("cutover rollback", &config, more));
    let topic = topic(&rig);
    let one = format!("1 open dead letters are in topic {topic}");
    assert_has(&rollback(&["--dry-run"]), &[&one]);
    let left = format!("left 1 rows unmarked whose events are in topic {topic} alone");
    assert_has(&rollback(&["--yes"]), &[&left]);
    assert!(rig.slot().read().is_none());
    let large = "outbox WHERE sent_at IS NULL AND aggregateid = 'large'";
    // The rows of resolved dead letters are not marked either, so they stay.
    assert_eq!((count(&db, "outbox"), count(&db, large)), (5, 1));
    assert_eq!(rig.records(9).len(), 9);
}

/// A dead letter has the name that the table had then.
#[test]
fn open_dead_letters_keep_their_rows_when_the_table_is_renamed() {
    let rig = rig(18);
    let db = rig.db();
    let config = config(&rig);
    let relay = rig.streaming(&config);
    insert_of(&db, "order", "good", 1);
    insert_row(&db, "NULL", "unroutable", "'1'");
    rig.caught_up();
    eventually(PATIENCE, || count(&db, MARKED) == 1);
    relay.ends_well();
    let relay = rename(&rig, &config);
    db.batch(
        "INSERT INTO events (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), 'order', 'good', 'T', '{\"number\": 2}')",
    );
    let marked = || count(&db, "events WHERE sent_at IS NOT NULL");
    // The relay has chosen rows under the new name.
    eventually(PATIENCE, || marked() == 2);
    done(&output_with("prune", &config, &PRUNE));
    let kept = "events WHERE sent_at IS NULL AND aggregateid = 'unroutable'";
    assert_eq!((count(&db, "events"), count(&db, kept)), (1, 1));
    done(&output_with(
        "dlq drop --class unroutable --yes",
        &config,
        &[],
    ));
    relay.ends_well();
    assert_eq!(marked(), 0);
}

/// Of a table that is partitioned by time.
#[test]
fn open_dead_letters_keep_their_partition() {
    let rig = partitioned(15);
    let db = rig.db();
    let config = config(&rig);
    let relay = rig.streaming(&config);
    insert_of(&db, "order", "good", 1);
    insert_row(&db, "'order'", "large", LARGE);
    rig.caught_up();
    let prune = || output_with("prune", &config, &PRUNE);
    eventually(PATIENCE, || count(&db, MARKED) == 1);
    refused(&prune(), 65, &["[prune-unmarked]", "public.outbox_1"]);
    assert_eq!(count(&db, "outbox"), 2);
    relay.ends_well();
    let relay = rename(&rig, &config);
    refused(&prune(), 65, &["[prune-unmarked]", "public.outbox_1"]);
    done(&output_with(
        "dlq drop --class oversize --yes",
        &config,
        &[],
    ));
    refused(&prune(), 65, &["[prune-unmarked]", "public.outbox_1"]);
    db.batch("UPDATE events SET sent_at = now() WHERE sent_at IS NULL");
    assert_has(&done(&prune()), &["dropped partition public.outbox_1"]);
    relay.ends_well();
}

/// Without Kafka nothing tells which rows these are, so they cannot be marked.
#[test]
fn open_dead_letters_are_marked_by_a_rollback_only_if_agreed() {
    let rig = rig(18);
    let db = rig.db();
    let config = config(&rig);
    let relay = rig.streaming(&config);
    for number in 1..=20 {
        insert_row(&db, "NULL", &format!("k{number}"), "'1'");
    }
    insert_of(&db, "order", "good", 1);
    rig.caught_up();
    eventually(PATIENCE, || count(&db, MARKED) == 1);
    relay.ends_well();
    edit(&config, &rig.bootstrap, NOWHERE);
    let rollback = |more: &[&str]| output_with("cutover rollback --yes", &config, more);
    refused(
        &rollback(&["--mark-dead-letters"]),
        75,
        &["[cutover-dead-letters]"],
    );
    assert!(rig.slot().read().is_some());
    assert_eq!(count(&db, UNMARKED), 20);
    // They stay unmarked, however many they are.
    let unknown = rollback(&["--dry-run"]);
    assert_has(&said(&unknown), &["the open dead letters cannot be read"]);
    edit(&config, NOWHERE, &rig.bootstrap);
    let marked = done(&rollback(&["--mark-dead-letters"]));
    assert_has(&marked, &["marked 20 rows"]);
    assert!(rig.slot().read().is_none());
    assert_eq!(count(&db, UNMARKED), 0);
}

/// Writes a configuration whose events have the id of a column that may be NULL and need not be unique.
fn config_of_own_ids(rig: &Rig) -> PathBuf {
    rig.db().batch("ALTER TABLE outbox ADD event text");
    let config = config(rig);
    let debezium = format!(
        "[router.debezium]\n\"route.topic.replacement\" = \"{}${{routedByValue}}\"\n",
        rig.prefix
    );
    let custom = format!(
        "[router]\npreset = \"custom\"\n[router.route]\nid = \"event\"\ntopic = \"{}{{aggregatetype}}\"\n\
         key = \"{{aggregateid}}\"\n[router.route.value]\nid = \"{{id}}\"\n",
        rig.prefix
    );
    edit(&config, &debezium, &custom);
    config
}

/// Inserts a row with this id of its event, which becomes a dead letter without a kind. `kind`, `event`: SQL.
fn insert_event(db: &walrelay_testkit::Db, kind: &str, event: &str) {
    db.batch(&format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, event) \
         VALUES (gen_random_uuid(), {kind}, 'k', 'T', '1', {event})"
    ));
}

/// Sends one dead letter with this id, and ends the relay, so that the next events wait.
fn one_dead_letter(rig: &Rig, config: &Path, event: &str) {
    let relay = rig.streaming(config);
    insert_event(&rig.db(), "NULL", event);
    rig.caught_up();
    relay.ends_well();
}

const MARK_DEAD: &[&str] = &["--yes", "--mark-dead-letters"];

/// Asserts that a rollback that shall mark rows of dead letters marks none and keeps the slot.
#[track_caller]
fn marks_none(rig: &Rig, config: &Path, unmarked: &str, words: &str) {
    let db = rig.db();
    let before = count(&db, unmarked);
    let back = output_with("cutover rollback", config, MARK_DEAD);
    assert_eq!(count(&db, unmarked), before, "{back:?}");
    refused(&back, 75, &["[cutover-dead-letters]", words]);
    assert!(rig.slot().read().is_some());
}

/// Any row without an id, and of its transaction, may be its row.
#[test]
fn a_rollback_marks_no_rows_for_a_dead_letter_without_an_id() {
    let rig = rig(18);
    let db = rig.db();
    let config = config_of_own_ids(&rig);
    one_dead_letter(&rig, &config, "NULL");
    for event in ["NULL", "NULL", "'known'"] {
        insert_event(&db, "'order'", event);
    }
    marks_none(&rig, &config, UNMARKED, "no id");
    done(&output_with("cutover rollback --yes", &config, &[]));
    assert_eq!(count(&db, UNMARKED), 4);
}

/// Its id may be that of another row of the renamed table or of another one.
#[test]
fn a_rollback_marks_no_rows_for_a_dead_letter_of_an_unknown_table() {
    let rig = rig(16);
    let db = rig.db();
    let config = config_of_own_ids(&rig);
    one_dead_letter(&rig, &config, "'7'");
    db.batch("ALTER TABLE outbox RENAME TO events");
    edit(&config, "public.outbox", "public.events");
    let unmarked = "events WHERE sent_at IS NULL";
    marks_none(&rig, &config, unmarked, "not among [source] tables");
}

/// One of several rows with the id of a dead letter was not sent, and nothing tells which one.
#[test]
fn a_rollback_marks_no_rows_for_a_dead_letter_whose_id_several_rows_have() {
    let rig = rig(15);
    let db = rig.db();
    let config = config_of_own_ids(&rig);
    one_dead_letter(&rig, &config, "'7'");
    insert_event(&db, "'order'", "'7'");
    marks_none(&rig, &config, UNMARKED, "several rows");
}

/// The row was deleted, and another one of the same id waits in the slot.
#[test]
fn a_rollback_marks_no_unconfirmed_row_for_a_dead_letter() {
    let rig = rig(17);
    let db = rig.db();
    let config = config_of_own_ids(&rig);
    one_dead_letter(&rig, &config, "'7'");
    db.batch("DELETE FROM outbox");
    one_dead_letter(&rig, &config, "'8'");
    insert_event(&db, "'order'", "'7'");
    let back = done(&output_with("cutover rollback", &config, MARK_DEAD));
    assert_has(&back, &["marked 1 rows", "left 1 rows with the id"]);
    let unmarked = "outbox WHERE sent_at IS NULL AND event = '7'";
    assert_eq!((count(&db, UNMARKED), count(&db, unmarked)), (1, 1));
}

/// The outbox has the rows of the cluster that it was moved from. A row with the id of another cluster's dead letter is
/// another one.
#[test]
fn a_rollback_marks_rows_for_dead_letters_of_the_former_cluster_and_of_no_other() {
    let rig = rig(18);
    let db = rig.db();
    let config = config_of_own_ids(&rig);
    one_dead_letter(&rig, &config, "'7'");
    done(&output_with("dlq drop --all --yes", &config, &[]));
    let producer = Producer::new(&rig.bootstrap);
    let headers = [
        (dlq_headers::CLASS, "unroutable"),
        (dlq_headers::SLOT, SLOT),
        (dlq_headers::SYSTEM, "77"),
        (dlq_headers::LSN, "0/1"),
        (dlq_headers::ROW, "0"),
        (dlq_headers::TABLE, "public.outbox"),
        (dlq_headers::EVENT_ID, "7"),
    ];
    producer.send(&topic(&rig), Some(b"k"), Some(b"1"), &headers);
    assert!(producer.delivers(PATIENCE));
    let refuses = || {
        let back = output_with("cutover rollback", &config, MARK_DEAD);
        let words = [
            "[cutover-dead-letters]",
            "another database cluster",
            "redrive or drop",
        ];
        refused(&back, 65, &words);
        assert!(rig.slot().read().is_some());
        assert_eq!(count(&db, UNMARKED), 1);
    };
    // A role that may not read the system identifier by SQL.
    db.batch(
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; \
         CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'; GRANT ALL ON outbox TO relay; \
         GRANT pg_read_all_data, pg_write_all_data TO relay; GRANT ALL ON SCHEMA walrelay_state TO relay; \
         GRANT ALL ON ALL TABLES IN SCHEMA walrelay_state TO relay",
    );
    let (own, least) = (rig.postgres.url(), rig.url_as("relay", "x", "postgres"));
    edit(&config, &own, &least);
    refuses();
    edit(&config, &least, &own);
    db.batch(&format!(
        "CREATE TABLE walrelay_state.move (slot name, state text, system text, timeline bigint, barrier pg_lsn, \
         former text, relations jsonb DEFAULT '{{}}', at timestamptz DEFAULT now()); \
         INSERT INTO walrelay_state.move (slot, state, system, timeline, former) \
         SELECT '{SLOT}', 'switched', system_identifier::text, 1, '78' FROM pg_control_system()"
    ));
    refuses();
    db.batch("UPDATE walrelay_state.move SET former = '77'");
    let back = done(&output_with("cutover rollback", &config, MARK_DEAD));
    assert_has(&back, &["marked 1 rows"]);
    assert_eq!(count(&db, UNMARKED), 0);
}
