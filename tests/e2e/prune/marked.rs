//! `walrelay prune` beside a relay that marks and deletes rows of the same table, and clients that update them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use walrelay_testkit::eventually;

use crate::endpoint::{LISTEN, address, status};
use crate::old_rows::{MARKED, PRUNE, UNMARKED, config, count, insert, partitioned, rig};
use crate::rig::{
    PATIENCE, assert_has, assert_lacks, done, edit, ends, output_with, refused, wait_rows,
};

/// Runs the command ten times. `isolation`: the default of the relay's role.
fn prune_beside_marks(major: u32, isolation: &str) {
    let rig = rig(major);
    let db = rig.db();
    // A copy of what was committed, and of what was deleted without a mark.
    db.batch(&format!(
        "CREATE TABLE kept (id text); CREATE TABLE unsent (id text); \
         CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF TG_OP = 'INSERT' THEN INSERT INTO kept VALUES (NEW.id); RETURN NEW; END IF; \
         IF OLD.sent_at IS NULL THEN INSERT INTO unsent VALUES (OLD.id); END IF; RETURN OLD; END $$; \
         CREATE TRIGGER keep BEFORE INSERT OR DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep(); \
         CREATE ROLE relay LOGIN SUPERUSER PASSWORD 'x'; \
         ALTER ROLE relay SET default_transaction_isolation TO '{isolation}'"
    ));
    let config = config(&rig, "\n[prune]\nkeep = \"24h\"\npause = \"0ms\"\n");
    let url = rig.url_as("relay", "x", "postgres");
    edit(&config, &rig.postgres.url(), &url);
    let relay = rig.streaming(&config);
    let load = rig.workload().rate(1_000.0).seed(5).start();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = rig.db();
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                client.batch(&format!(
                    "UPDATE {}",
                    MARKED.replacen("WHERE", "SET sent_at = now() WHERE", 1)
                ));
            }
        });
        for _ in 0..10 {
            wait_rows(&load, 200);
            let pruned = output_with("prune", &config, &PRUNE);
            // The client ends also if the command fails.
            stop.fetch_or(!pruned.status.success(), Ordering::SeqCst);
            done(&pruned);
        }
        stop.store(true, Ordering::SeqCst);
    });
    load.stop();
    rig.caught_up();
    eventually(PATIENCE, || count(&db, UNMARKED) == 0);
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!((count(&db, "outbox"), count(&db, "unsent")), (0, 0));
    let kept: BTreeSet<String> = db.column("SELECT id FROM kept", &[]).into_iter().collect();
    let records = rig.records(kept.len());
    let arrived: BTreeSet<String> = records.into_iter().filter_map(|record| record.id).collect();
    assert_eq!(arrived.symmetric_difference(&kept).count(), 0);
    let log = relay.ends_well();
    assert_lacks(&log, &["40001"]);
}

/// A column with the name of another polling relay's mark is added, with a default that all rows get.
#[test]
fn a_column_that_the_relay_does_not_set_marks_no_row() {
    let rig = rig(16);
    let db = rig.db();
    let config = config(&rig, "\n[prune]\n");
    edit(&config, "snapshot_where = \"outbox.sent_at IS NULL\"\n", "");
    insert(&db, 5, "unsent");
    db.batch("ALTER TABLE outbox ADD dispatched_at timestamptz DEFAULT now()");
    done(&output_with("prune", &config, &PRUNE));
    assert_eq!(count(&db, UNMARKED), 5);
    edit(
        &config,
        "mark_sent = \"sent_at = now()\"",
        "mark_sent = \"type = 'SENT'\"",
    );
    let refusal = ["[snapshot-rule]", "among the columns that mark_sent sets"];
    refused(&output_with("prune", &config, &PRUNE), 78, &refusal);
    ends(&mut rig.start(&config), 78, "snapshot-rule");
    assert_eq!(count(&db, UNMARKED), 5);
}

/// The relay's role owns the table, and a policy of a partition hides its rows.
#[test]
fn a_partition_whose_rows_are_hidden_stays() {
    let rig = partitioned(17);
    let db = rig.db();
    let config = config(&rig, "\n[prune]\n");
    rig.streaming(&config).ends_well();
    insert(&db, 5, "unsent");
    db.batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'; GRANT CREATE ON SCHEMA public TO relay; \
         ALTER TABLE outbox OWNER TO relay; ALTER TABLE outbox_1 OWNER TO relay; \
         ALTER TABLE outbox_1 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
    );
    edit(
        &config,
        &rig.postgres.url(),
        &rig.url_as("relay", "x", "postgres"),
    );
    let pruned = output_with("prune", &config, &PRUNE);
    refused(&pruned, 77, &["row-level security", "BYPASSRLS"]);
    assert_eq!(count(&db, UNMARKED), 5);
}

#[test]
fn a_command_deletes_rows_that_others_update_meanwhile() {
    prune_beside_marks(15, "read committed");
}

/// A role or a database may have another default of the isolation level.
#[test]
fn a_command_deletes_such_rows_whatever_isolation_is_the_default() {
    prune_beside_marks(18, "repeatable read");
}

/// The role has lost its right to the schema of the first table.
#[test]
fn a_table_in_a_forbidden_schema_holds_up_no_other() {
    let rig = rig(18);
    let db = rig.db();
    db.batch("CREATE SCHEMA aside; CREATE TABLE aside.outbox (LIKE outbox INCLUDING ALL)");
    let config = config(&rig, "\n[prune]\n");
    edit(&config, "snapshot_where = \"outbox.sent_at IS NULL\"\n", "");
    let tables = "\"aside.outbox\", \"public.outbox\"";
    edit(&config, "\"public.outbox\"", tables);
    let relay = rig.streaming(&config);
    insert(&db, 5, "sent");
    eventually(PATIENCE, || count(&db, MARKED) == 5);
    relay.ends_well();
    db.batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'; GRANT SELECT, UPDATE, DELETE ON outbox TO relay",
    );
    let url = rig.url_as("relay", "x", "postgres");
    edit(&config, &rig.postgres.url(), &url);
    let stays = "rows of aside.outbox stay: a statement failed";
    let why = "permission denied for schema aside";
    let planned = ["--keep=24h", "--dry-run"];
    let planned = done(&output_with("prune", &config, &planned));
    assert_has(&planned, &[stays, why, "5 rows are old enough"]);
    let pruned = output_with("prune", &config, &PRUNE);
    refused(&pruned, 77, &[stays, why, "deleted 5 rows"]);
    assert_eq!(count(&db, "outbox"), 0);
}

/// The age of one table gets another name while the relay runs, and a third table is dropped afterwards.
#[test]
fn a_table_without_an_age_and_a_missing_table_hold_up_no_other() {
    for is_accounted in [false, true] {
        let rig = rig(17);
        let db = rig.db();
        db.batch("CREATE TABLE aside (LIKE outbox INCLUDING ALL); CREATE TABLE gone (LIKE outbox INCLUDING ALL)");
        let lines = format!("\n[prune]\nkeep = \"1s\"\nbefore_slot = true\n{LISTEN}");
        let config = if is_accounted {
            rig.config_and(&lines)
        } else {
            let config = config(&rig, &lines);
            edit(&config, "snapshot_where = \"outbox.sent_at IS NULL\"\n", "");
            config
        };
        let tables = "\"public.aside\", \"public.gone\", \"public.outbox\"";
        edit(&config, "\"public.outbox\"", tables);
        let relay = rig.streaming(&config);
        let address = address(&relay);
        db.batch("ALTER TABLE aside RENAME COLUMN created_at TO made_at");
        insert(&db, 5, "sent");
        let stays = "rows of public.aside stay: the table has no column that tells a row's age";
        relay.says(stays);
        eventually(PATIENCE, || count(&db, "outbox") == 0);
        let shown = status(address)["delivery"]["row_changes"]["prune"].to_string();
        assert_has(&shown, &[stays]);

        edit(&config, "keep = \"1s\"\n", "");
        relay.ends_well();
        let relay = rig.streaming(&config);
        insert(&db, 5, "sent");
        rig.caught_up();
        relay.ends_well();
        db.batch("DROP TABLE gone");
        let planned = ["--keep=24h", "--dry-run"];
        let planned = done(&output_with("prune", &config, &planned));
        let gone = "rows of public.gone stay: the table does not exist";
        assert_has(&planned, &[stays, gone, "5 rows are old enough"]);
        let pruned = output_with("prune", &config, &PRUNE);
        let words = [
            "[prune-column]",
            stays,
            "[prune-table]",
            gone,
            "deleted 5 rows",
        ];
        refused(&pruned, 78, &words);
        assert_eq!(count(&db, "outbox"), 0);
        if is_accounted {
            let accepted = output_with("prune --accept", &config, &PRUNE);
            refused(&accepted, 78, &["[prune-column]", "[prune-table]"]);
        }
    }
}
