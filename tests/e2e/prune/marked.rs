//! `walrelay prune` beside a relay that marks and deletes rows of the same table, and clients that update them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use walrelay_testkit::eventually;

use crate::old_rows::{MARKED, PRUNE, UNMARKED, config, count, rig};
use crate::rig::{PATIENCE, assert_lacks, done, edit, output_with, wait_rows};

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

#[test]
fn a_command_deletes_rows_that_others_update_meanwhile() {
    prune_beside_marks(15, "read committed");
}

/// A role or a database may have another default of the isolation level.
#[test]
fn a_command_deletes_such_rows_whatever_isolation_is_the_default() {
    prune_beside_marks(18, "repeatable read");
}
