//! Only rows that were accounted as sent are deleted: each way in which rows come into the table that
//! no relay sent leaves them there.

mod identity;
mod partitions;
mod two_relays;

use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;

use walrelay_testkit::{Db, eventually};

use crate::endpoint::{LISTEN, address, status};
use crate::old_rows::{PRUNE, count, insert, insert_row, partitioned, rig, set_age, unseen};
use crate::rig::{
    NOWHERE, PATIENCE, Relay, Rig, assert_has, create_slot, done, edit, output_with, refused,
    run_command, said, with_source,
};

const MAY: &str = "\n[prune]\nbefore_slot = true\n";
const STAYS: &str = "[prune-unaccounted]";
const MISSING: &str = "[prune-dead-letters-missing]";
/// A payload larger than the client's `message.max.bytes`.
const LARGE: &str = "jsonb_build_object('text', repeat('x', 2000000))";

fn rows(db: &Db, key: &str) -> i64 {
    db.value(&format!(
        "SELECT count(*) FROM outbox WHERE aggregateid = '{key}'"
    ))
}

/// Rows from now on are in other ten minutes than those before.
fn next_bucket(db: &Db) {
    set_age(db, 3);
}

/// Waits until a session is blocked by that with the name `late`.
#[track_caller]
fn wait_for_late(db: &Db) {
    let blocked = "pg_stat_activity a JOIN pg_stat_activity l ON l.pid = ANY (pg_blocking_pids(a.pid)) \
                   WHERE l.application_name = 'late'";
    eventually(PATIENCE, || count(db, blocked) > 0);
}

fn prune(config: &Path) -> Output {
    output_with("prune", config, &PRUNE)
}

/// Runs a relay until it has sent ten rows.
fn send_first_rows(rig: &Rig, config: &Path) {
    let relay = rig.streaming(config);
    insert(&rig.db(), 10, "sent");
    rig.caught_up();
    relay.ends_well();
}

/// Asserts that a relay runs, and that of the rows of both keys only the sent ones are deleted.
#[track_caller]
fn assert_unsent_rows_stay(rig: &Rig, config: &Path, unsent: i64) {
    let db = rig.db();
    let relay = rig.streaming(config);
    rig.caught_up();
    let more = format!("{unsent} rows more than were accounted as sent");
    refused(&prune(config), 65, &[STAYS, &more]);
    assert_eq!((rows(&db, "sent"), rows(&db, "unsent")), (0, unsent));
    let checked = said(&output_with("check", config, &[]));
    assert_has(
        &checked,
        &["old rows stay: rows of public.outbox stay", &more],
    );
    relay.ends_well();
}

/// Something else makes the slot after the first start was killed amid its snapshot.
#[test]
fn rows_of_a_snapshot_that_was_killed_stay() {
    let rig = rig(18);
    let db = rig.db();
    insert(&db, 20, "unsent");
    let lines = "snapshot = \"initial\"\nsnapshot_order = [\"created_at\"]";
    let config = with_source(rig.config_and("\n[prune]\nkeep = \"24h\"\n"), lines);
    edit(&config, &rig.bootstrap, NOWHERE);
    let relay = rig.start(&config);
    relay.says("streaming the snapshot");
    relay.kill();
    edit(&config, NOWHERE, &rig.bootstrap);
    create_slot(&db, "walrelay");
    next_bucket(&db);
    send_first_rows(&rig, &config);
    assert_unsent_rows_stay(&rig, &config, 20);
}

/// The user says that rows from before the first slot may go. A slot that is made again is no first
/// one.
#[test]
fn rows_of_the_time_between_two_slots_stay() {
    let rig = rig(15);
    let db = rig.db();
    insert(&db, 5, "before");
    let config = rig.config_and(MAY);
    done(&output_with("init", &config, &[]));
    send_first_rows(&rig, &config);
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    next_bucket(&db);
    insert(&db, 50, "unsent");
    done(&output_with("slots create", &config, &[]));
    assert_unsent_rows_stay(&rig, &config, 50);
    assert_eq!(rows(&db, "before"), 0);
}

/// The rows of a table that joins the publication and `tables` later, of one that `pass_over` left out
/// for a while, of one that left its published schema, and of a slot that was moved.
#[test]
fn rows_that_a_slot_passed_over_stay() {
    for way in ["joins later", "passed over", "another schema", "moved"] {
        let rig = rig(17);
        let db = rig.db();
        let config = rig.config_and(MAY);
        let publish = match way {
            "joins later" => "FOR TABLE other",
            "passed over" => "FOR TABLE other, outbox",
            "another schema" => "FOR TABLES IN SCHEMA public",
            _ => "FOR TABLE outbox",
        };
        if publish.contains("other") {
            db.batch("CREATE TABLE other (LIKE outbox INCLUDING ALL)");
        }
        db.batch("CREATE SCHEMA elsewhere; DROP TABLE IF EXISTS outbox_keys");
        db.batch(&format!(
            "CREATE PUBLICATION walrelay {publish} WITH (publish = 'insert')"
        ));
        create_slot(&db, "walrelay");
        match way {
            "joins later" | "passed over" => {
                edit(&config, "public.outbox", "public.other");
                let pass_over = (way == "passed over").then_some("pass_over = [\"public.outbox\"]");
                let first = match pass_over {
                    Some(line) => with_source(config.clone(), line),
                    None => config.clone(),
                };
                let relay = rig.streaming(&first);
                insert(&db, 20, "unsent");
                rig.caught_up();
                relay.ends_well();
                if let Some(line) = pass_over {
                    edit(&config, line, "");
                }
                edit(&config, "public.other", "public.outbox");
                db.batch("ALTER PUBLICATION walrelay SET TABLE outbox");
                // Another table was published before.
                let relay = rig.start_with(&config, &["--accept-gap"]);
                relay.streaming();
                relay.ends_well();
            }
            "another schema" => {
                // Of a table with the same OID no log has rows while its schema is not published.
                db.batch("ALTER TABLE outbox SET SCHEMA elsewhere");
                db.batch(
                    "INSERT INTO elsewhere.outbox (id, aggregatetype, aggregateid, type, payload) \
                     SELECT gen_random_uuid(), 'order', 'unsent', 'T', '1' FROM generate_series(1, 20)",
                );
                db.batch("ALTER TABLE elsewhere.outbox SET SCHEMA public");
            }
            _ => {
                insert(&db, 20, "unsent");
                db.batch("SELECT pg_replication_slot_advance('walrelay', pg_current_wal_lsn())");
            }
        }
        next_bucket(&db);
        send_first_rows(&rig, &config);
        assert_unsent_rows_stay(&rig, &config, 20);
    }
}

/// The row filter leaves rows out, and an UPDATE changes later what it goes by.
#[test]
fn rows_that_fit_the_row_filter_later_stay() {
    let rig = rig(15);
    let db = rig.db();
    db.batch(
        "CREATE PUBLICATION walrelay FOR TABLE outbox WHERE (type <> 'out') WITH (publish = 'insert')",
    );
    create_slot(&db, "walrelay");
    let config = rig.config_and(MAY);
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), 'order', key, 'out', '1' FROM generate_series(1, 10), \
         unnest('{unsent,left}'::text[]) AS key",
    );
    next_bucket(&db);
    send_first_rows(&rig, &config);
    // Rows that the filter leaves out today are neither counted nor deleted.
    db.batch("UPDATE outbox SET type = 'T' WHERE aggregateid = 'unsent'");
    assert_unsent_rows_stay(&rig, &config, 10);
    assert_eq!(rows(&db, "left"), 10);
}

/// A snapshot with a condition sends some rows only. Those that it sent are deleted.
#[test]
fn rows_that_a_snapshot_left_out_stay() {
    let rig = rig(18);
    let db = rig.db();
    insert(&db, 20, "unsent");
    next_bucket(&db);
    insert(&db, 10, "sent");
    let lines = "snapshot = \"initial\"\nsnapshot_where = \"aggregateid = 'sent'\"\nsnapshot_order = [\"created_at\"]";
    let config = with_source(rig.config_and("\n[prune]\nkeep = \"24h\"\n"), lines);
    assert_unsent_rows_stay(&rig, &config, 20);
    assert_eq!(rig.records(10).len(), 10);
}

/// One transaction makes a partition, fills it inside a savepoint and attaches it; another one is
/// filled and attached later. No log has these rows as rows of the table.
#[test]
fn rows_that_were_written_before_the_attach_stay() {
    let rig = partitioned(18);
    let db = rig.db();
    let config = rig.config_and(MAY);
    let relay = rig.streaming(&config);
    insert(&db, 10, "sent");
    db.batch(
        "BEGIN; CREATE TABLE outbox_2 (LIKE outbox INCLUDING ALL); SAVEPOINT s; INSERT INTO outbox_2 \
         SELECT gen_random_uuid(), 'order', 'unsent', 'T', '1', '2020-02-15' FROM generate_series(1, 10); \
         RELEASE s; ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM ('2020-02-01') TO ('2020-03-01'); COMMIT",
    );
    db.batch(
        "CREATE TABLE outbox_3 (LIKE outbox INCLUDING ALL); INSERT INTO outbox_3 \
         SELECT gen_random_uuid(), 'order', 'unsent', 'T', '1', '2020-03-15' FROM generate_series(1, 10); \
         ALTER TABLE outbox ATTACH PARTITION outbox_3 FOR VALUES FROM ('2020-03-01') TO ('2020-04-01')",
    );
    rig.caught_up();
    let dry = done(&output_with("prune", &config, &["--keep=24h", "--dry-run"]));
    assert_has(
        &dry,
        &[
            "partition public.outbox_1 is dropped",
            "partition public.outbox_2 stays: not all its rows count as sent",
            "partition public.outbox_3 stays",
        ],
    );
    let pruned = refused(
        &prune(&config),
        65,
        &[STAYS, "rows of public.outbox_2 stay"],
    );
    assert_has(&pruned, &["dropped partition public.outbox_1"]);
    assert_eq!((rows(&db, "sent"), rows(&db, "unsent")), (0, 20));
    // The user says that they may go.
    let accept = output_with("prune --accept --keep=24h --yes", &config, &[]);
    assert_has(&done(&accept), &["20 rows count as sent"]);
    let pruned = done(&prune(&config));
    assert_has(
        &pruned,
        &[
            "dropped partition public.outbox_2",
            "dropped partition public.outbox_3",
        ],
    );
    relay.ends_well();
}

/// A row without a finite time belongs to no ten minutes, so its partition stays.
#[test]
fn rows_without_a_finite_time_keep_their_partition() {
    let rig = partitioned(15);
    let db = rig.db();
    db.batch(
        "CREATE TABLE outbox_0 PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2019-01-01')",
    );
    let config = rig.config_and(MAY);
    let relay = rig.streaming(&config);
    insert(&db, 3, "sent");
    db.batch("UPDATE outbox SET created_at = '-infinity' WHERE ctid IN (SELECT ctid FROM outbox LIMIT 1)");
    rig.caught_up();
    let words = [STAYS, "1 of its rows have no finite time"];
    refused(&prune(&config), 65, &words);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM outbox_0"), 1);
    relay.ends_well();
}

/// A writer that names the partition writes rows into it after it was detached by hand.
#[test]
fn rows_that_are_written_into_a_detached_partition_stay() {
    let rig = partitioned(17);
    let db = rig.db();
    let config = rig.config_and(MAY);
    send_first_rows(&rig, &config);
    // As a relay that was killed before it dropped the partition.
    db.batch(
        "BEGIN; ALTER TABLE outbox DETACH PARTITION outbox_1; COMMENT ON TABLE outbox_1 IS \
         'walrelay has detached this from public.outbox, and drops it once its rows are confirmed'; COMMIT",
    );
    db.batch("INSERT INTO outbox_1 SELECT gen_random_uuid(), aggregatetype, 'late', type, payload FROM outbox_1 LIMIT 3");
    let relay = rig.streaming(&config);
    refused(&prune(&config), 65, &[STAYS, "3 rows more"]);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM outbox_1"), 13);
    db.batch("DELETE FROM outbox_1 WHERE aggregateid = 'late'");
    assert_has(
        &done(&prune(&config)),
        &["dropped partition public.outbox_1"],
    );
    relay.ends_well();
}

/// The service changes the key of a row, deletes some, and uses the key of a deleted one again.
#[test]
fn rows_that_others_changed_stay_until_they_are_accepted() {
    let rig = rig(15);
    let db = rig.db();
    let config = rig.config_and(MAY);
    send_first_rows(&rig, &config);
    next_bucket(&db);
    let relay = rig.streaming(&config);
    insert(&db, 10, "unsent");
    rig.caught_up();
    // One row for another: the number is right.
    unseen(&db, || {
        db.batch(
            "CREATE TEMPORARY TABLE gone AS SELECT * FROM outbox \
             WHERE aggregateid = 'unsent' LIMIT 1; DELETE FROM outbox WHERE id IN (SELECT id FROM gone); \
             UPDATE gone SET created_at = created_at + interval '1 microsecond'; INSERT INTO outbox SELECT * FROM gone",
        );
    });
    refused(
        &prune(&config),
        65,
        &[STAYS, "other rows than were accounted as sent"],
    );
    assert_eq!((rows(&db, "sent"), rows(&db, "unsent")), (0, 10));
    // Also if only the hashes differ, the user's word settles them.
    let look = output_with("prune --accept --keep=24h --dry-run", &config, &[]);
    assert_has(&said(&look), &["other rows than were accounted as sent"]);
    db.batch("DELETE FROM outbox WHERE ctid IN (SELECT ctid FROM outbox LIMIT 4)");
    refused(&prune(&config), 65, &[STAYS, "4 rows fewer"]);
    refused(
        &output_with("prune --accept --keep=24h", &config, &[]),
        64,
        &["4 rows fewer", "[prune-not-agreed]"],
    );
    done(&output_with(
        "prune --accept --keep=24h --yes",
        &config,
        &[],
    ));
    assert_has(&done(&prune(&config)), &["deleted 6 rows"]);
    // All are gone, so the account is empty, too.
    insert(&db, 3, "sent");
    rig.caught_up();
    assert_has(&done(&prune(&config)), &["deleted 3 rows"]);
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM walrelay_state.account"),
        0
    );
    relay.ends_well();
}

/// The user agrees to the rows that the command names. Then one more is accounted in the same ten minutes.
#[test]
fn rows_that_change_while_they_are_accepted_stay() {
    let rig = rig(17);
    let db = rig.db();
    let config = rig.config_and(MAY);
    send_first_rows(&rig, &config);
    db.batch("DELETE FROM outbox WHERE ctid IN (SELECT ctid FROM outbox LIMIT 1)");
    let accept = || {
        let accepted = output_with("prune --accept --keep=24h --yes", &config, &[]);
        done(&accepted)
    };
    let late = rig.db();
    late.batch(
        "SET application_name = 'late'; BEGIN; UPDATE walrelay_state.account SET rows = rows + 1",
    );
    thread::scope(|scope| {
        let accepted = scope.spawn(accept);
        wait_for_late(&db);
        late.batch("COMMIT");
        let accepted = accepted.join().expect("the thread does not panic");
        assert_has(&accepted, &["1 rows fewer", "0 rows count as sent"]);
    });
    refused(&prune(&config), 65, &[STAYS, "2 rows fewer"]);
    assert_has(&accept(), &["9 rows count as sent"]);
    assert_has(&done(&prune(&config)), &["deleted 9 rows"]);
}

/// A killed relay's transactions are sent again, and count once.
#[test]
fn rows_that_are_sent_again_count_once() {
    let rig = rig(18);
    let db = rig.db();
    let config = rig.config_and(MAY);
    done(&output_with("init", &config, &[]));
    for point in ["after-enqueue", "after-ack", "before-confirm"] {
        insert(&db, 50, "sent");
        let mut command = run_command(&config);
        command.env("WALRELAY_DIE_AT", point);
        Relay::spawn(&mut command, &rig.path(&format!("{point}.log"))).ended();
    }
    let relay = rig.streaming(&config);
    rig.caught_up();
    assert_has(&done(&prune(&config)), &["deleted 150 rows"]);
    assert!(rig.verdict().lost.is_empty());
    relay.ends_well();
}

/// Rows of open dead letters stay. They also stay while the configuration names another topic, to which
/// a relay may write dead letters meanwhile.
#[test]
fn rows_of_dead_letters_stay_until_their_topic_says_that_they_are_resolved() {
    let rig = rig(17);
    let db = rig.db();
    let topic = format!("dead.{}letters", rig.prefix);
    let poison = |topic: &str| -> PathBuf {
        rig.config_and(&format!(
            "{MAY}\n[poison]\nunroutable = \"dead-letter\"\noversize = \"dead-letter\"\ntopic = \"{topic}\"\n{LISTEN}"
        ))
    };
    let config = poison(&topic);
    let relay = rig.streaming(&config);
    insert(&db, 10, "sent");
    for (kind, payload) in [("NULL", "'1'"), ("'order'", LARGE)] {
        insert_row(&db, kind, "dead", payload);
    }
    rig.caught_up();
    relay.ends_well();
    let renamed = format!("{topic}.renamed");
    let other = poison(&renamed);
    edit(&other, "before_slot", "keep = \"10s\"\nbefore_slot");
    let missing = |rows: u32, was: &str, is: &str| {
        format!("{rows} of its rows became dead letters in {was}, and [poison] topic is {is} now")
    };
    let words = [
        MISSING,
        &missing(2, &topic, &renamed),
        "set [poison] topic back",
    ];
    refused(&prune(&other), 65, &words);
    let checked = said(&output_with("check", &other, &[]));
    assert_has(&checked, &["old rows stay", words[1]]);
    next_bucket(&db);
    let relay = rig.streaming(&other);
    insert_row(&db, "NULL", "dead", "'1'");
    relay.says(words[1]);
    let at = address(&relay);
    eventually(PATIENCE, || {
        let problems = status(at)["problems"].to_string();
        problems.contains("WalrelayRowsStay") && problems.contains(words[1])
    });
    rig.caught_up();
    relay.ends_well();
    refused(&prune(&other), 65, &words);
    assert_eq!((rows(&db, "sent"), rows(&db, "dead")), (10, 3));
    let config = poison(&topic);
    let of_renamed = missing(1, &renamed, &topic);
    refused(&prune(&config), 65, &[MISSING, &of_renamed]);
    assert_eq!((rows(&db, "sent"), rows(&db, "dead")), (0, 3));
    let accepted = output_with("prune --accept --keep=24h --yes", &config, &[]);
    assert_has(&done(&accepted), &["1 rows count as sent"]);
    assert_has(&done(&prune(&config)), &["deleted 1 rows"]);
    assert_eq!(rows(&db, "dead"), 2, "open dead letters of this topic");
    done(&output_with(
        "dlq drop --class unroutable --yes",
        &config,
        &[],
    ));
    done(&prune(&config));
    assert_eq!(rows(&db, "dead"), 2, "they are accounted together");
    done(&output_with(
        "dlq drop --class oversize --yes",
        &config,
        &[],
    ));
    assert_has(&done(&prune(&config)), &["deleted 2 rows"]);
}

/// Writes a configuration that prunes, and makes dead letters of events without a topic.
fn with_dead_letters(rig: &Rig) -> PathBuf {
    let topic = format!("dead.{}letters", rig.prefix);
    rig.config_and(&format!(
        "{MAY}\n[poison]\nunroutable = \"dead-letter\"\ntopic = \"{topic}\"\n"
    ))
}

/// Nothing reads the dead letters for a while. Only rows of ten minutes with a dead letter depend on them.
#[test]
fn rows_without_a_dead_letter_are_deleted_while_dead_letters_cannot_be_read() {
    let rig = rig(16);
    let db = rig.db();
    let config = with_dead_letters(&rig);
    let relay = rig.streaming(&config);
    insert(&db, 10, "sent");
    // Its ten minutes come first.
    next_bucket(&db);
    insert_row(&db, "NULL", "dead", "'1'");
    rig.caught_up();
    relay.ends_well();
    edit(&config, &rig.bootstrap, NOWHERE);
    refused(&prune(&config), 75, &["[prune-dead-letters]"]);
    assert_eq!((rows(&db, "sent"), rows(&db, "dead")), (0, 1));
    edit(&config, NOWHERE, &rig.bootstrap);
    done(&output_with("dlq drop --all --yes", &config, &[]));
    assert_has(&done(&prune(&config)), &["deleted 1 rows"]);
}

/// Rows that differ from the account are named next to those whose dead letters cannot be read.
#[test]
fn rows_that_differ_hide_no_rows_of_dead_letters() {
    let rig = rig(16);
    let db = rig.db();
    let config = with_dead_letters(&rig);
    let relay = rig.streaming(&config);
    insert(&db, 1, "sent");
    next_bucket(&db);
    insert_row(&db, "NULL", "dead", "'1'");
    rig.caught_up();
    relay.ends_well();
    edit(&config, &rig.bootstrap, NOWHERE);
    db.batch("UPDATE outbox SET id = gen_random_uuid() WHERE aggregateid = 'sent'");
    refused(&prune(&config), 65, &[STAYS, "[prune-dead-letters]"]);
    assert_eq!((rows(&db, "sent"), rows(&db, "dead")), (1, 1));
}

/// Sums cannot be written for a while. Then the first ones are written with the position up to which they
/// count, and the later ones at once after it: no confirmed row is missing in the account.
#[test]
fn rows_that_are_sent_while_sums_cannot_be_written_are_counted_before_they_are_confirmed() {
    let rig = rig(15);
    let db = rig.db();
    let config = rig.config_and(MAY);
    let relay = rig.streaming(&config);
    let holder = rig.db();
    holder.batch("BEGIN; SELECT FROM walrelay_state.accounts FOR UPDATE");
    insert(&db, 5, "sent");
    eventually(PATIENCE, || {
        count(
            &db,
            "pg_locks WHERE NOT granted AND locktype = 'transactionid'",
        ) > 0
    });
    insert(&db, 5, "sent");
    let end = db.insert_lsn();
    relay.says("the slot's position cannot be noted");
    holder.batch("COMMIT");
    eventually(PATIENCE, || {
        let noted: i64 = db.value("SELECT last_value FROM walrelay_state.\"position:walrelay\"");
        u64::try_from(noted).is_ok_and(|noted| noted >= end.get())
    });
    let counted: i64 = db.value("SELECT sum(rows)::int8 FROM walrelay_state.account");
    assert_eq!(counted, 10);
    relay.ends_well();
    assert_has(&done(&prune(&config)), &["deleted 10 rows"]);
}

/// The server executes the last statement of a killed relay when the next one streams. Then something else
/// changes the account: rows stay until the next connection.
#[test]
fn a_statement_that_a_killed_relay_has_left_adds_nothing() {
    let rig = rig(14);
    let db = rig.db();
    let config = rig.config_and(MAY);
    send_first_rows(&rig, &config);
    let of_killed: String = db.value("SELECT opening::text FROM walrelay_state.accounts");
    let relay = rig.streaming(&config);
    let executed = format!(
        "WITH late AS (UPDATE walrelay_state.accounts SET through = pg_current_wal_lsn() \
         WHERE opening = '{of_killed}' RETURNING slot) SELECT count(*) FROM late"
    );
    assert_eq!(db.value::<i64>(&executed), 0);
    insert(&db, 10, "sent");
    rig.caught_up();
    assert_has(&done(&prune(&config)), &["deleted 20 rows"]);
    db.batch("UPDATE walrelay_state.accounts SET through = '0/8'");
    insert(&db, 5, "unsent");
    relay.says("changed the account of sent rows");
    rig.caught_up();
    refused(&prune(&config), 65, &[STAYS, "5 rows more"]);
    next_bucket(&db);
    relay.ends_well();
    let relay = rig.streaming(&config);
    insert(&db, 5, "sent");
    rig.caught_up();
    refused(&prune(&config), 65, &[STAYS, "5 rows more"]);
    assert_eq!((rows(&db, "sent"), rows(&db, "unsent")), (0, 5));
    relay.ends_well();
}

/// A late row becomes a dead letter while a prune compares the other rows of its bucket, whose dead letters are
/// all resolved.
#[test]
fn a_row_whose_dead_letter_is_accounted_during_a_prune_stays() {
    let rig = rig(16);
    let db = rig.db();
    let config = with_dead_letters(&rig);
    let relay = rig.streaming(&config);
    insert_row(&db, "NULL", "dead", "'1'");
    rig.caught_up();
    relay.ends_well();
    done(&output_with(
        "dlq drop --class unroutable --yes",
        &config,
        &[],
    ));
    let accounted =
        || -> i64 { db.value("SELECT sum(diverted)::int8 FROM walrelay_state.account") };
    assert_eq!(accounted(), 1);
    let late = rig.db();
    late.batch("SET application_name = 'late'; BEGIN");
    insert_row(&late, "NULL", "late", "'1'");
    let add = |number: i32| {
        format!(
            "UPDATE walrelay_state.account SET diverted = diverted + {number}, \
             diverted_high = diverted_high + {number}, diverted_low = diverted_low + {number}"
        )
    };
    late.batch(&add(1));
    thread::scope(|scope| {
        let pruned = scope.spawn(|| prune(&config));
        wait_for_late(&db);
        late.batch("COMMIT");
        let pruned = pruned.join().expect("the thread does not panic");
        assert_has(&done(&pruned), &["deleted 0 rows"]);
    });
    assert_eq!((rows(&db, "dead"), rows(&db, "late")), (1, 1));
    assert_eq!(accounted(), 2, "nothing is settled");
    // Without the late row, the dead letters are those that were compared.
    db.batch("DELETE FROM outbox WHERE aggregateid = 'late'");
    db.batch(&add(-1));
    assert_has(&done(&prune(&config)), &["deleted 1 rows"]);
}

/// Starts a prune that waits for the lock of another session as it deletes a batch, and calls `meanwhile` before that
/// session ends.
fn prune_with_a_slow_batch(rig: &Rig, config: &Path, meanwhile: impl FnOnce()) -> Output {
    thread::scope(|scope| {
        let late = rig.db();
        late.batch(
            "SET application_name = 'late'; BEGIN; UPDATE walrelay_state.account SET rows = rows",
        );
        let more = [PRUNE[0], PRUNE[1], "--set=prune.lock_timeout=10m"];
        let pruned = scope.spawn(move || output_with("prune", config, &more));
        wait_for_late(&rig.db());
        meanwhile();
        late.batch("COMMIT");
        pruned.join().expect("the thread does not panic")
    })
}

/// The sessions that hold the snapshot of a prune.
const SNAPSHOTS: &str =
    "pg_stat_activity WHERE state = 'idle in transaction' AND application_name <> 'late'";

/// The server ends a transaction that is idle for ten seconds.
#[test]
fn a_batch_takes_longer_than_its_snapshot_may_be_idle() {
    let rig = rig(17);
    let db = rig.db();
    let config = rig.config_and(MAY);
    send_first_rows(&rig, &config);
    let old = format!("{SNAPSHOTS} AND xact_start < clock_timestamp() - interval '12 s'");
    let pruned = prune_with_a_slow_batch(&rig, &config, || {
        eventually(PATIENCE, || count(&db, &old) == 1);
    });
    assert_has(&done(&pruned), &["deleted 10 rows"]);
}

/// Rows are deleted by their places, which mean these rows only while the snapshot that has found them is held.
#[test]
fn rows_stay_if_the_snapshot_that_found_them_is_gone() {
    let rig = rig(16);
    let db = rig.db();
    let config = rig.config_and(MAY);
    send_first_rows(&rig, &config);
    let pruned = prune_with_a_slow_batch(&rig, &config, || {
        let ended = format!("SELECT count(pg_terminate_backend(pid)) FROM {SNAPSHOTS}");
        assert_eq!(db.value::<i64>(&ended), 1);
    });
    // Either the server's words, or the connection that it has closed.
    refused(&pruned, 69, &[]);
    assert_eq!(rows(&db, "sent"), 10);
    assert_has(&done(&prune(&config)), &["deleted 10 rows"]);
}

/// The relay's role may not write the account until `init` lets it: what it sends until then is not
/// accounted. Rows of children by INHERITS are no rows of the table.
#[test]
fn rows_stay_while_nothing_can_be_accounted() {
    let rig = rig(15);
    let db = rig.db();
    db.batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'; GRANT SELECT, UPDATE, DELETE ON outbox TO relay; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')",
    );
    create_slot(&db, "walrelay");
    let admin = rig.config_and(MAY);
    let url = format!("--set=source.url={}", rig.url_as("relay", "x", "postgres"));
    let start = || {
        let relay = rig.start_with(&admin, &[&url]);
        relay.streaming();
        relay
    };
    let pruned = || output_with("prune", &admin, &["--keep=24h", "--yes", &url]);
    let relay = start();
    insert(&db, 10, "unsent");
    rig.caught_up();
    refused(
        &pruned(),
        78,
        &["[prune-no-account]", "walrelay init --role"],
    );
    relay.ends_well();
    done(&output_with("init", &admin, &["--role=relay"]));
    let relay = start();
    next_bucket(&db);
    insert(&db, 10, "sent");
    db.batch(
        "CREATE TABLE child () INHERITS (outbox); INSERT INTO child SELECT gen_random_uuid(), aggregatetype, 'child', \
         type, payload, created_at FROM outbox WHERE aggregateid = 'sent'",
    );
    rig.caught_up();
    refused(&pruned(), 65, &[STAYS, "10 rows more"]);
    assert_eq!(
        (rows(&db, "sent"), rows(&db, "unsent"), rows(&db, "child")),
        (0, 10, 10)
    );
    relay.ends_well();
}
