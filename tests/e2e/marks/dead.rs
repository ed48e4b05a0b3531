//! `mark_dead`: a row says that its event is a dead letter, because the destination acknowledged the dead
//! letter, until it is redriven.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use walrelay_lsn::Lsn;
use walrelay_sink::dlq_headers;
use walrelay_testkit::{Db, History, Producer, eventually};

use crate::old_rows::{self, PRUNE, count, insert, insert_row, rig};
use crate::rig::{
    PATIENCE, Relay, Rig, SLOT, assert_has, assert_lacks, done, edit, lsn_of, output_with, refused,
    said,
};

const DEAD: &str = "outbox WHERE status = 'DEAD_LETTER' AND attempts = 1 AND failed_at IS NOT NULL \
                    AND sent_at IS NULL AND length(last_error) > 10";
const SENT: &str = "outbox WHERE status = 'SENT' AND sent_at IS NOT NULL";
const STORED: &str = "walrelay_state.dead";

fn topic(rig: &Rig) -> String {
    format!("dead.{}letters", rig.prefix)
}

/// Creates an outbox with the columns of a polling relay, and a configuration that marks its rows.
pub(super) fn marking_dead(major: u32) -> (Rig, PathBuf) {
    marking_dead_in(rig(major))
}

fn marking_dead_in(rig: Rig) -> (Rig, PathBuf) {
    rig.db().batch(
        "ALTER TABLE outbox ADD status text NOT NULL DEFAULT 'PENDING', ADD attempts int NOT NULL DEFAULT 0, \
         ADD last_error text, ADD failed_at timestamptz",
    );
    let poison = format!(
        "\n[prune]\n\n[poison]\nunroutable = \"dead-letter\"\noversize = \"dead-letter\"\ntopic = \"{}\"\n",
        topic(&rig)
    );
    let config = old_rows::config(&rig, &poison);
    edit(
        &config,
        "mark_sent = \"sent_at = now()\"",
        "mark_sent = \"status = 'SENT', sent_at = now() -- sent\"\n\
         mark_dead = \"status = 'DEAD_LETTER', attempts = {attempts}, last_error = {error}, failed_at = now() -- dead\"",
    );
    (rig, config)
}

/// Inserts a row whose event becomes a dead letter.
fn insert_unroutable(db: &Db, key: &str) {
    insert_row(db, "NULL", key, "'\"secret-value\"'");
}

/// Starts a relay that stores the key of a dead letter, because its row cannot be marked.
fn with_a_stored_key(event: &str) -> (Rig, PathBuf, Relay) {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    refuse_marks(&db);
    let relay = rig.streaming(&config);
    insert_unroutable(&db, event);
    relay.says("no mark now");
    (rig, config, relay)
}

/// Returns the name of the dead letter of an event, as `dlq` wants it.
fn dead_letter(config: &Path, event: &str) -> String {
    let listed = done(&output_with("dlq list --output json", config, &[]));
    let letter = listed
        .lines()
        .find(|line| line.contains(event))
        .expect("a dead letter");
    let letter: serde_json::Value = serde_json::from_str(letter).expect("JSON");
    let lsn = letter["lsn"].as_str().expect("an LSN");
    format!("{lsn} {}", letter["row"])
}

/// Waits until the topic has so many dead letters.
fn wait_letters(rig: &Rig, letters: i64) {
    eventually(PATIENCE, || {
        History::count(&rig.bootstrap, &topic(rig)) == Some(letters)
    });
}

/// Asserts that Postgres has not confirmed the event with this position, at which its commit record starts.
fn assert_unconfirmed(rig: &Rig, event: Lsn) {
    let slot = rig.slot().read().expect("the slot");
    assert!(slot.confirmed_flush <= event, "Postgres has it confirmed");
}

/// Makes each mark of a dead letter fail.
fn refuse_marks(db: &Db) {
    db.batch(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN RAISE EXCEPTION ''no mark now''; END'; \
         CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.status = 'DEAD_LETTER') \
         EXECUTE FUNCTION refuse()",
    );
}

#[test]
fn a_row_says_that_its_event_is_a_dead_letter_until_it_is_redriven() {
    for major in [14, 18] {
        let (rig, config) = marking_dead(major);
        let db = rig.db();
        let relay = rig.streaming(&config);
        insert(&db, 3, "good");
        insert_unroutable(&db, "redriven");
        insert_unroutable(&db, "dropped");
        let large = "jsonb_build_object('text', repeat('secret-value', 200000))";
        insert_row(&db, "'order'", "large", large);
        insert(&db, 2, "good");
        eventually(PATIENCE, || count(&db, DEAD) == 3);
        eventually(PATIENCE, || count(&db, SENT) == 5);
        assert_eq!(count(&db, STORED), 3);
        // The keys of changed rows are found by their hashes, however many dead letters are open.
        let index = "pg_indexes WHERE tablename = 'dead' AND indexdef LIKE '%(slot, hash, id)'";
        assert_eq!(count(&db, index), 1);
        let shown = db
            .text("SELECT string_agg(last_error, ' ') FROM outbox")
            .expect("errors");
        assert_lacks(&shown, &["secret-value"]);

        // They are no sent rows.
        done(&output_with("prune", &config, &PRUNE));
        assert_eq!((count(&db, "outbox"), count(&db, DEAD)), (3, 3));

        let event = db.text("SELECT id::text FROM outbox WHERE aggregateid = 'dropped'");
        let id = dead_letter(&config, &event.expect("an id"));
        done(&output_with("dlq drop --yes --id", &config, &[&id]));
        let topic = format!("--topic-override={}order", rig.prefix);
        done(&output_with(
            "dlq redrive --class unroutable --yes",
            &config,
            &[&topic],
        ));
        let redriven = format!("{SENT} AND aggregateid = 'redriven'");
        eventually(PATIENCE, || count(&db, &redriven) == 1);
        eventually(PATIENCE, || count(&db, STORED) == 1);
        // The others stay as they are.
        assert_eq!(count(&db, DEAD), 2);
        let log = relay.ends_well();
        assert_lacks(&log, &["secret-value"]);
    }
}

/// Another cluster has a slot of this name, writes into the same topic, and redrives a dead letter of the same position.
#[test]
fn a_resolution_of_another_cluster_resolves_no_dead_letter_of_this_one() {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "open");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    let letters = rig.records_in(&topic(&rig), 1);
    let header = |name| letters[0].header(name).expect("a header").to_owned();
    let own = db.text("SELECT system_identifier::text FROM pg_control_system()");
    assert_eq!(Some(header(dlq_headers::SYSTEM)), own);
    let resolves = format!(
        "{SLOT} {} {}",
        header(dlq_headers::LSN),
        header(dlq_headers::ROW)
    );
    let resolution = [
        (dlq_headers::RESOLVES, &*resolves),
        (dlq_headers::RESOLUTION, dlq_headers::REDRIVEN),
        (dlq_headers::SYSTEM, "1"),
    ];
    let producer = Producer::new(&rig.bootstrap);
    producer.send(&topic(&rig), Some(b"open"), None, &resolution);
    assert!(producer.delivers(PATIENCE));

    // The relay reads the resolution of this one after that.
    insert_unroutable(&db, "dropped");
    eventually(PATIENCE, || count(&db, DEAD) == 2);
    let event = db.text("SELECT id::text FROM outbox WHERE aggregateid = 'dropped'");
    let id = dead_letter(&config, &event.expect("an id"));
    done(&output_with("dlq drop --yes --id", &config, &[&id]));
    let dropped = format!(
        "{STORED} WHERE key <> (SELECT ARRAY[id::text] FROM outbox WHERE aggregateid = 'open')"
    );
    eventually(PATIENCE, || count(&db, &dropped) == 0);
    assert_eq!((count(&db, DEAD), count(&db, SENT)), (2, 0));
    assert_eq!(count(&db, STORED), 1);
    relay.ends_well();
}

/// The sink gets another topic of dead letters while one is open in the former topic: nothing shows how it is resolved.
#[test]
fn keys_of_dead_letters_in_another_store_are_named_with_the_statement_that_deletes_them() {
    let (rig, config) = marking_dead(18);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "former");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    relay.ends_well();
    // The row was sent by hand.
    db.batch("UPDATE outbox SET status = 'SENT', sent_at = now()");
    let former = topic(&rig);
    edit(&config, &former, "dead.another");
    let said = format!(
        "rows of 1 dead letters stay: walrelay_state.dead says that the dead letters are in kafka {former}"
    );
    let sql = format!(
        "DELETE FROM walrelay_state.dead WHERE slot = 'walrelay' AND store = 'kafka {former}'"
    );
    let words = ["[prune-dead-letters]", &said, &sql];
    refused(&output_with("prune", &config, &PRUNE), 65, &words);
    assert_has(
        &crate::rig::said(&output_with("check", &config, &[])),
        &words[1..],
    );
    assert_eq!(count(&db, "outbox"), 1);
    db.batch(&sql);
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!(count(&db, "outbox"), 0);
}

/// The topic of dead letters is changed while one is open, which is redriven in the former topic.
#[test]
fn a_redriven_dead_letter_in_another_store_needs_a_relay_with_that_store() {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "redriven");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    relay.ends_well();
    let former = topic(&rig);
    let prune = || output_with("prune", &config, &PRUNE);
    let remedy = "Only walrelay run with it marks the rows of redriven ones";
    edit(&config, &former, "dead.another");
    refused(&prune(), 65, &["[prune-dead-letters]", remedy]);
    edit(&config, "dead.another", &former);
    let topic = format!("--topic-override={}order", rig.prefix);
    done(&output_with("dlq redrive --all --yes", &config, &[&topic]));
    done(&prune());
    assert_eq!((count(&db, STORED), count(&db, DEAD)), (1, 1));
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || count(&db, STORED) == 0);
    assert_eq!(count(&db, SENT), 1);
    relay.ends_well();
    edit(&config, &former, "dead.another");
    done(&prune());
    assert_eq!(count(&db, "outbox"), 0);
}

/// `walrelay init` upgrades the table of an earlier build, and `check` names the lacking columns before.
#[test]
fn init_adds_the_columns_that_the_stored_keys_of_an_earlier_build_lack() {
    let (rig, config, relay) = with_a_stored_key("earlier");
    let db = rig.db();
    relay.ends_well();
    db.batch(
        "ALTER TABLE walrelay_state.dead DROP COLUMN system, DROP COLUMN store; \
         ALTER TABLE walrelay_state.dead ADD UNIQUE (slot, lsn, \"row\")",
    );
    let check = || said(&output_with("check", &config, &[]));
    let lacks = "walrelay_state.dead lacks the columns system, store";
    assert_has(&check(), &[lacks, "walrelay init --role"]);
    done(&output_with("init", &config, &[]));
    assert_lacks(&check(), &[lacks]);
    let unique = db.text(
        "SELECT string_agg(pg_get_constraintdef(oid), '; ' ORDER BY conname) FROM pg_constraint \
         WHERE conrelid = 'walrelay_state.dead'::regclass AND contype = 'u' AND conname LIKE '%row%'",
    );
    assert_eq!(
        unique.as_deref(),
        Some("UNIQUE (slot, system, lsn, \"row\")")
    );
    db.batch("DROP TRIGGER refuse ON outbox");
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    relay.ends_well();
    // It changes nothing more.
    done(&output_with("init", &config, &[]));
    assert_eq!(count(&db, STORED), 1);
}

/// The relay is killed after the dead letter was acknowledged, before it has stored the key of the row.
#[test]
fn a_relay_that_is_killed_before_it_stores_the_key_marks_the_row_after_its_restart() {
    let (rig, config) = marking_dead(16);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "stored");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    rig.caught_up();
    let lock = rig.db();
    lock.batch(&format!(
        "BEGIN; LOCK TABLE {STORED} IN ACCESS EXCLUSIVE MODE"
    ));
    insert_unroutable(&db, "killed");
    wait_letters(&rig, 2);
    relay.kill();
    let letters = rig.records_in(&topic(&rig), 2);
    let positions = letters
        .iter()
        .filter_map(|of| of.header("walrelay.dlq.lsn"));
    assert_unconfirmed(&rig, positions.map(lsn_of).max().expect("a position"));
    // The server works off the last statement of a relay that was killed.
    let inserts = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE state = 'active' AND query LIKE 'INSERT INTO walrelay_state.dead%'";
    eventually(PATIENCE, || db.query(inserts, &[]).is_empty());
    lock.batch("ROLLBACK");
    assert_eq!(count(&db, STORED), 1);
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || count(&db, DEAD) == 2);
    relay.ends_well();
}

/// The relay is killed after it has stored the key, before it has marked the row. A third dead letter is
/// redriven before its row is marked.
#[test]
fn a_relay_that_is_killed_before_the_mark_marks_the_row_after_its_restart() {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    let relay = rig.streaming(&config);
    refuse_marks(&db);
    insert_unroutable(&db, "killed");
    wait_letters(&rig, 1);
    let stored = || {
        db.text("SELECT to_regclass('walrelay_state.dead')::text")
            .is_some()
    };
    eventually(PATIENCE, || stored() && count(&db, STORED) == 1);
    rig.caught_up();
    relay.kill();
    assert_eq!(count(&db, DEAD), 0);
    let topic = format!("--topic-override={}order", rig.prefix);
    insert_unroutable(&db, "redriven");
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || count(&db, STORED) == 2);
    let event = db.text("SELECT id::text FROM outbox WHERE aggregateid = 'redriven'");
    let id = dead_letter(&config, &event.expect("an id"));
    done(&output_with(
        "dlq redrive --yes --id",
        &config,
        &[&id, &topic],
    ));
    eventually(PATIENCE, || count(&db, SENT) == 1);
    db.batch("DROP TRIGGER refuse ON outbox");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    eventually(PATIENCE, || count(&db, STORED) == 1);
    relay.ends_well();
}

/// Another client marks the row as sent before the relay has marked it as dead. The topic decides, not the row.
#[test]
fn a_row_that_was_changed_before_its_mark_is_not_deleted_while_its_dead_letter_is_open() {
    let (rig, config, relay) = with_a_stored_key("changed");
    let db = rig.db();
    db.batch("UPDATE outbox SET status = 'SENT', sent_at = now(); DROP TRIGGER refuse ON outbox");
    // The key of a later dead letter is looked at after that of the changed row.
    insert_unroutable(&db, "later");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    let looked_at = format!("{STORED} WHERE NOT marked");
    eventually(PATIENCE, || count(&db, &looked_at) == 0);
    assert_eq!(count(&db, STORED), 2);
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!(count(&db, "outbox"), 2);

    let event = db.text("SELECT id::text FROM outbox WHERE aggregateid = 'changed'");
    let id = dead_letter(&config, &event.expect("an id"));
    done(&output_with("dlq drop --yes --id", &config, &[&id]));
    eventually(PATIENCE, || count(&db, STORED) == 1);
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!(count(&db, "outbox"), 1);
    relay.ends_well();
}

/// The configuration changes, and by its condition rows of dead letters would be sent.
#[test]
fn a_row_of_an_open_dead_letter_is_not_deleted_whatever_the_condition_is() {
    for (rig, resolve, keys) in [
        (rig(15), "drop", 0),
        (old_rows::partitioned(18), "redrive", 1),
    ] {
        let (rig, config) = marking_dead_in(rig);
        let db = rig.db();
        // Keys of the partitioned outbox have times, which a session in another zone writes in another way.
        db.batch("ALTER DATABASE postgres SET timezone = 'Asia/Tokyo'");
        let relay = rig.streaming(&config);
        insert_unroutable(&db, "dead");
        insert(&db, 3, "sent");
        eventually(PATIENCE, || count(&db, DEAD) == 1);
        eventually(PATIENCE, || count(&db, SENT) == 3);
        rig.caught_up();
        relay.ends_well();
        edit(&config, "outbox.sent_at IS NULL", "status = 'PENDING'");
        if count(&db, "pg_class WHERE relname = 'outbox_1'") == 1 {
            let pruned = output_with("prune", &config, &PRUNE);
            refused(&pruned, 65, &["1 of its rows have an open dead letter"]);
            assert_eq!(count(&db, "outbox"), 4);
        } else {
            // The keys have its former name.
            db.batch("ALTER TABLE outbox RENAME TO events");
            let renamed = ["--set=source.tables=[\"public.events\"]"];
            done(&output_with(
                "prune",
                &config,
                &[&PRUNE[..], &renamed].concat(),
            ));
            db.batch("ALTER TABLE events RENAME TO outbox");
            assert_eq!(count(&db, "outbox"), 1);
        }
        assert_eq!(count(&db, DEAD), 1);
        // Once the dead letter is resolved, the user's condition decides, also if no relay has seen that.
        let event = db.text("SELECT id::text FROM outbox WHERE aggregateid = 'dead'");
        let id = dead_letter(&config, &event.expect("an id"));
        let topic = format!("--topic-override={}order", rig.prefix);
        let more = [&*id, &*topic];
        let more = if resolve == "drop" { &more[..1] } else { &more };
        done(&output_with(
            &format!("dlq {resolve} --yes --id"),
            &config,
            more,
        ));
        done(&output_with("prune", &config, &PRUNE));
        assert_eq!((count(&db, "outbox"), count(&db, STORED)), (0, keys));
    }
}

/// The stored key names a column that the table does not have any more, so the row of the dead letter is not known.
#[test]
fn rows_stay_while_the_key_column_of_an_open_dead_letter_has_another_name() {
    let (rig, config) = marking_dead(16);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "dead");
    insert(&db, 3, "sent");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    eventually(PATIENCE, || count(&db, SENT) == 3);
    rig.caught_up();
    relay.ends_well();
    let event = db.text("SELECT id::text FROM outbox WHERE aggregateid = 'dead'");
    let id = dead_letter(&config, &event.expect("an id"));
    db.batch("ALTER TABLE outbox RENAME id TO event_id");
    let renamed = "[router.debezium]\n\"table.field.event.id\" = \"event_id\"\n";
    edit(&config, "[router.debezium]\n", renamed);
    let stay = "rows of public.outbox stay: walrelay_state.dead has the keys of 1 dead letters by the columns id";
    let plan = done(&output_with("prune --keep=24h --dry-run", &config, &[]));
    assert_has(&plan, &[stay]);
    let words = ["[prune-dead-letters]", stay, "rename the columns back"];
    refused(&output_with("prune", &config, &PRUNE), 65, &words);
    assert_eq!(count(&db, "outbox"), 4);
    assert_has(&said(&output_with("check", &config, &[])), &words[1..]);
    done(&output_with("dlq drop --yes --id", &config, &[&id]));
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!((count(&db, DEAD), count(&db, "outbox")), (1, 1));
}

/// By the condition of the command, which is another one, the row of the dead letter would be sent.
#[test]
fn a_row_whose_event_becomes_a_dead_letter_while_rows_are_deleted_stays() {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert(&db, 8, "sent");
    eventually(PATIENCE, || count(&db, SENT) == 8);
    rig.caught_up();
    let slowly = [
        "--set=source.snapshot_where=status = 'PENDING'",
        "--set=prune.batch=1",
        "--set=prune.pause=1s",
    ];
    thread::scope(|scope| {
        let pruning =
            scope.spawn(|| output_with("prune", &config, &[&PRUNE[..], &slowly].concat()));
        eventually(PATIENCE, || count(&db, SENT) < 8);
        insert_unroutable(&db, "dead");
        done(&pruning.join().expect("an output"));
    });
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    relay.ends_well();
}

/// Kills a relay whose event becomes the dead letter with this number, before Postgres has its confirmation. `begin`
/// starts the relay, or makes the event, while no key can be stored; `stored` is true after that.
fn kill_unconfirmed(
    rig: &Rig,
    letters: i64,
    begin: impl FnOnce() -> Relay,
    stored: impl FnMut() -> bool,
) {
    let db = rig.db();
    let lock = rig.db();
    lock.batch(&format!(
        "BEGIN; LOCK TABLE {STORED} IN ACCESS EXCLUSIVE MODE"
    ));
    let relay = begin();
    wait_letters(rig, letters);
    // The walsender reads no confirmation any more.
    let walsender = rig.slot().wait_active(PATIENCE);
    signal("STOP", walsender);
    lock.batch("ROLLBACK");
    eventually(PATIENCE, stored);
    relay.kill();
    db.query("SELECT pg_terminate_backend($1)", &[&walsender]);
    signal("CONT", walsender);
    rig.slot().wait_inactive(PATIENCE);
}

/// Marks the row of a dead letter, and kills the relay before Postgres has its confirmation.
fn marked_and_killed(rig: &Rig, config: &Path) {
    let db = rig.db();
    let relay = rig.streaming(config);
    insert_unroutable(&db, "stored");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    rig.caught_up();
    let begin = || {
        insert_unroutable(&db, "delivered");
        relay
    };
    kill_unconfirmed(rig, 2, begin, || count(&db, DEAD) == 2);
    let event: String = db.value(&format!("SELECT max(lsn)::text FROM {STORED}"));
    assert_unconfirmed(rig, lsn_of(&event));
}

/// Starts a relay that delivers the event.
fn delivering(rig: &Rig, config: &Path) -> Relay {
    let relay = rig.start_with(
        config,
        &["--set=router.debezium.route.by.field=aggregateid"],
    );
    relay.streaming();
    relay
}

const DELIVERED: &str =
    "outbox WHERE status = 'SENT' AND sent_at IS NOT NULL AND aggregateid = 'delivered'";

/// The relay is killed after it has marked the row as that of a dead letter, before Postgres has its confirmation. The
/// next one delivers the event.
#[test]
fn a_row_that_is_marked_as_dead_and_delivered_after_a_sigkill_is_marked_as_sent() {
    for major in [14, 18] {
        let (rig, config) = marking_dead(major);
        let db = rig.db();
        marked_and_killed(&rig, &config);
        let relay = delivering(&rig, &config);
        insert(&db, 1, "later");
        rig.caught_up();
        eventually(PATIENCE, || count(&db, DELIVERED) == 1);
        eventually(PATIENCE, || count(&db, STORED) == 1);
        // That of the other dead letter stays.
        assert_eq!(count(&db, DEAD), 1);
        let log = relay.ends_well();
        assert_lacks(&log, &["was changed since"]);
    }
}

/// The second relay stores the key again, and is killed before it has marked the row.
#[test]
fn a_row_whose_event_is_delivered_after_two_sigkills_is_marked_as_sent() {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    marked_and_killed(&rig, &config);
    refuse_marks(&db);
    let unmarked = format!("{STORED} WHERE NOT marked");
    let stored = || count(&db, &unmarked) == 1;
    kill_unconfirmed(&rig, 3, || rig.start(&config), stored);
    db.batch("DROP TRIGGER refuse ON outbox");
    let relay = delivering(&rig, &config);
    eventually(PATIENCE, || count(&db, DELIVERED) == 1);
    eventually(PATIENCE, || count(&db, STORED) == 1);
    relay.ends_well();
}

/// A trigger refuses the mark of the delivered row, with an error or by undoing it.
#[test]
fn a_delivered_row_of_a_dead_letter_whose_mark_is_refused_holds_up_no_other() {
    for (refusal, words) in [
        ("RAISE EXCEPTION ''no mark now''", "no mark now"),
        ("NEW.sent_at := NULL; RETURN NEW", "a trigger undoes it"),
    ] {
        let (rig, config) = marking_dead(16);
        let db = rig.db();
        marked_and_killed(&rig, &config);
        db.batch(&format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {refusal}; END'; \
             CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW \
             WHEN (OLD.status = 'DEAD_LETTER' AND NEW.status = 'SENT') EXECUTE FUNCTION refuse()"
        ));
        let relay = delivering(&rig, &config);
        insert(&db, 2, "later");
        relay.says(words);
        insert(&db, 2, "last");
        eventually(PATIENCE, || count(&db, SENT) == 4);
        rig.caught_up();
        // It stays as it is, and is attempted again.
        assert_eq!(count(&db, DEAD), 2);
        db.batch("DROP TRIGGER refuse ON outbox");
        eventually(PATIENCE, || count(&db, DELIVERED) == 1);
        relay.ends_well();
    }
}

/// Sends a signal to a process of the server.
fn signal(name: &str, process: i32) {
    let sent = Command::new("kill")
        .args([format!("-{name}"), process.to_string()])
        .status();
    assert!(sent.expect("kill").success());
}

#[test]
fn a_mark_of_a_dead_letter_that_fails_is_shown_and_stops_nothing() {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    refuse_marks(&db);
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "dead");
    insert(&db, 3, "good");
    relay.says("no mark now");
    eventually(PATIENCE, || count(&db, SENT) == 3);
    rig.caught_up();
    db.batch("DROP TRIGGER refuse ON outbox");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    relay.ends_well();
}

/// The row is locked when its dead letter's redrive is noticed. Later nothing else tells that it is to be marked.
#[test]
fn a_row_that_is_locked_while_its_dead_letter_is_redriven_is_marked_afterwards() {
    let (rig, config) = marking_dead(16);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "locked");
    insert_unroutable(&db, "free");
    eventually(PATIENCE, || count(&db, DEAD) == 2);
    let holder = rig.db();
    holder.batch("BEGIN; SELECT FROM outbox WHERE aggregateid = 'locked' FOR UPDATE");
    let topic = format!("--topic-override={}order", rig.prefix);
    done(&output_with("dlq redrive --all --yes", &config, &[&topic]));
    // Its key was stored after the other one's, so that was attempted before it.
    eventually(PATIENCE, || {
        count(&db, &format!("{SENT} AND aggregateid = 'free'")) == 1
    });
    holder.batch("COMMIT");
    eventually(PATIENCE, || {
        count(&db, &format!("{SENT} AND aggregateid = 'locked'")) == 1
    });
    eventually(PATIENCE, || count(&db, STORED) == 0);
    relay.ends_well();
}

/// The slow row's attempt takes longer than the server allows for a statement, and more than one round.
#[test]
fn a_row_whose_mark_fails_for_good_holds_up_no_other() {
    let (rig, config) = marking_dead(17);
    let db = rig.db();
    db.batch(
        "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'; \
         CREATE TRIGGER sleep BEFORE UPDATE ON outbox FOR EACH ROW \
         WHEN (NEW.status = 'DEAD_LETTER' AND NEW.aggregateid = 'slow') EXECUTE FUNCTION sleep()",
    );
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "slow");
    let attempted =
        "SELECT FROM pg_stat_activity WHERE state = 'active' AND wait_event = 'PgSleep'";
    eventually(PATIENCE, || !db.query(attempted, &[]).is_empty());
    insert_unroutable(&db, "other");
    insert(&db, 2, "good");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    eventually(PATIENCE, || count(&db, SENT) == 2);
    relay.says("1 rows of dead letters cannot be marked");
    db.batch("DROP TRIGGER sleep ON outbox");
    eventually(PATIENCE, || count(&db, DEAD) == 2);
    relay.ends_well();
}

/// The server is read-only, a statement is cancelled, or a right is missing: the key stays until it can be stored.
#[test]
fn a_key_of_a_dead_letter_that_cannot_be_stored_is_kept() {
    let (rig, config) = marking_dead(16);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "first");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    db.batch(
        "CREATE FUNCTION refuse_key() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN RAISE EXCEPTION ''no key now: %'', TG_ARGV[0] USING ERRCODE = TG_ARGV[0]; END'",
    );
    for (number, state) in [(2, "42501"), (3, "25006"), (4, "57014")] {
        db.batch(&format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON {STORED} FOR EACH STATEMENT EXECUTE FUNCTION refuse_key('{state}')"
        ));
        insert_unroutable(&db, state);
        relay.says(&format!("no key now: {state}"));
        // The position is not held up for ever.
        if state != "25006" {
            rig.caught_up();
        }
        assert_eq!(count(&db, DEAD), number - 1, "{state}");
        db.batch(&format!("DROP TRIGGER refuse ON {STORED}"));
        eventually(PATIENCE, || count(&db, DEAD) == number);
    }
    relay.ends_well();
}

/// A subscriber of that publication would stop at a table that it does not have.
#[test]
fn the_table_of_keys_is_not_created_while_a_publication_carries_all_tables() {
    let (rig, config) = marking_dead(18);
    let db = rig.db();
    let relay = rig.streaming(&config);
    db.batch("CREATE PUBLICATION others FOR ALL TABLES");
    insert_unroutable(&db, "dead");
    relay.says("walrelay_state.dead is missing");
    rig.caught_up();
    let table = "SELECT to_regclass('walrelay_state.dead')::text";
    assert!(db.text(table).is_none());
    db.batch("DROP PUBLICATION others");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    relay.ends_well();
}

/// The relay stopped before it had marked the row as sent.
#[test]
fn a_rollback_marks_the_row_of_a_redriven_dead_letter() {
    let (rig, config) = marking_dead(15);
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "redriven");
    insert_unroutable(&db, "open");
    eventually(PATIENCE, || count(&db, DEAD) == 2);
    rig.caught_up();
    relay.ends_well();
    let event = db.text("SELECT id::text FROM outbox WHERE aggregateid = 'redriven'");
    let id = dead_letter(&config, &event.expect("an id"));
    let topic = format!("--topic-override={}order", rig.prefix);
    done(&output_with(
        "dlq redrive --yes --id",
        &config,
        &[&id, &topic],
    ));
    assert_eq!(count(&db, SENT), 0);
    let said = done(&output_with("cutover rollback --yes", &config, &[]));
    assert_has(&said, &["marked 1 rows", "left 1 rows unmarked"]);
    assert_eq!(
        count(&db, &format!("{SENT} AND aggregateid = 'redriven'")),
        1
    );
    assert_eq!(count(&db, DEAD), 1);
}

/// Such a row would be pruned, and its event is in the topic of dead letters alone.
#[test]
fn a_mark_after_which_the_row_would_count_as_sent_is_not_made() {
    let (rig, config) = marking_dead(15);
    edit(&config, "outbox.sent_at IS NULL", "status = 'PENDING'");
    let db = rig.db();
    let relay = rig.streaming(&config);
    insert_unroutable(&db, "dead");
    insert(&db, 1, "good");
    relay.says("would count as sent after mark_dead");
    eventually(PATIENCE, || count(&db, SENT) == 1);
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!(count(&db, "outbox WHERE status = 'PENDING'"), 1);
    relay.ends_well();
}

#[test]
fn mark_dead_needs_mark_sent_and_values_without_quotes() {
    let (rig, config) = marking_dead(18);
    for (from, to, words) in [
        ("= {error}", "= '{error}'", "write it without quotes"),
        (
            "= {error}",
            "= 'failed: {error}, see'",
            "write it without quotes",
        ),
        ("mark_sent", "# mark_sent", "needs `source.mark_sent`"),
    ] {
        edit(&config, from, to);
        let output = output_with("check --offline", &config, &[]);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        assert_has(&said(&output), &[words]);
        edit(&config, to, from);
    }
    drop(rig);
}

/// The row of a dead letter cannot be told apart for a while.
#[test]
fn a_key_stays_while_its_table_has_no_primary_key() {
    let (rig, config, relay) = with_a_stored_key("stored");
    let db = rig.db();
    relay.ends_well();
    db.batch("DROP TRIGGER refuse ON outbox; ALTER TABLE outbox DROP CONSTRAINT outbox_pkey");
    let relay = rig.streaming(&config);
    relay.says("has no primary key now");
    assert_eq!(count(&db, STORED), 1);
    db.batch("ALTER TABLE outbox ADD PRIMARY KEY (id)");
    eventually(PATIENCE, || count(&db, DEAD) == 1);
    relay.ends_well();
}
