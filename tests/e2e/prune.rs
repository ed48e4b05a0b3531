//! `walrelay prune` and `[prune]`: confirmed rows go, no other.

mod million;
mod partitions;

use std::collections::BTreeSet;

use walrelay_testkit::{Db, History, eventually};

use crate::endpoint::{free_address, status};
use crate::rig::{PATIENCE, Rig, ends, output_with, said};

const MAY: &str = "--set=prune.before_slot=true";

fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    // What the workload writes is two days old.
    Db::connect(&rig.postgres.url()).batch(
        "ALTER TABLE outbox ADD created_at timestamptz DEFAULT now() - interval '2 days'; \
         CREATE INDEX ON outbox (created_at)",
    );
    rig
}

fn rows(db: &Db) -> i64 {
    db.query("SELECT count(*) FROM outbox", &[])[0].get(0)
}

/// Rows that are confirmed and old go; those that are young stay, and so do all while one is not confirmed.
#[test]
fn confirmed_rows_go_and_no_other() {
    let rig = rig(15);
    let db = Db::connect(&rig.postgres.url());
    let config = rig.config();
    let prune =
        |more: &[&str]| output_with("prune", &config, &[&[MAY, "--keep=24h"], more].concat());
    let relay = rig.relay();
    rig.workload().rows(200).seed(1).run();
    rig.caught_up();
    relay.ends_well();
    // The relay is down: these rows are not confirmed.
    rig.workload().rows(100).seed(2).run();
    let written = rows(&db);
    let dry = prune(&["--dry-run"]);
    assert!(
        said(&dry).contains(&format!("{written} rows are old enough")),
        "{dry:?}"
    );
    let asked = prune(&[]);
    assert!(
        asked.status.code() == Some(64) && said(&asked).contains("[prune-not-agreed]"),
        "{asked:?}"
    );
    let refused = output_with("prune", &config, &["--keep=24h", "--yes"]);
    assert!(
        said(&refused).contains("[prune-before-slot]"),
        "{refused:?}"
    );
    let early = prune(&["--yes"]);
    assert!(
        early.status.code() == Some(75) && said(&early).contains("[prune-not-confirmed]"),
        "{early:?}"
    );
    assert_eq!(rows(&db), written);

    let relay = rig.relay();
    db.batch("INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, 'young-' || id, type, payload, now() FROM outbox LIMIT 5");
    let locker = Db::connect(&rig.postgres.url());
    locker.batch(
        "BEGIN; SELECT FROM outbox WHERE created_at < now() - interval '1 day' LIMIT 3 FOR UPDATE",
    );
    let done = prune(&["--yes", "--set=prune.batch=100"]);
    assert!(done.status.success(), "{done:?}");
    assert!(
        said(&done).contains(&format!("deleted {} rows", written - 3)),
        "{done:?}"
    );
    assert_eq!(rows(&db), 8);
    locker.batch("COMMIT");
    assert!(rig.verdict().lost.is_empty());
    relay.ends_well();
}

/// The relay itself prunes while rows are written; a relay on standby does not.
#[test]
fn a_relay_deletes_what_it_has_confirmed() {
    let rig = rig(18);
    let db = Db::connect(&rig.postgres.url());
    let address = free_address();
    let lines = format!(
        "\n[prune]\nkeep = \"1s\"\nbefore_slot = true\npause = \"0ms\"\n[http]\nlisten = \"{address}\"\n"
    );
    let config = rig.config_with(&rig.postgres.url(), &lines);
    // What was committed, as the outbox does not hold it.
    db.batch(
        "CREATE TABLE kept (id text); CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS \
         $$BEGIN INSERT INTO kept VALUES (NEW.id::text); RETURN NULL; END$$; \
         CREATE TRIGGER keep AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION keep()",
    );
    let relay = rig.streaming(&config);
    let written = rig.workload().rows(20_000).seed(3).run();
    eventually(PATIENCE, || rows(&db) == 0);
    rig.caught_up();
    eventually(PATIENCE, || {
        status(address)["delivery"]["pruned_rows"] == written.rows
    });
    let committed = db.query("SELECT id FROM kept", &[]);
    let committed: BTreeSet<String> = committed.iter().map(|row| row.get(0)).collect();
    let records = History::records(&rig.bootstrap, &rig.prefix, committed.len(), PATIENCE);
    let arrived: BTreeSet<String> = records.into_iter().filter_map(|record| record.id).collect();
    assert_eq!(committed.len() as u64, written.rows);
    assert!(
        arrived == committed,
        "{} of {} arrived",
        arrived.len(),
        committed.len()
    );
    relay.ends_well();
}

#[test]
fn rows_from_before_the_slot_are_not_deleted_unasked() {
    let rig = rig(15);
    let lines = "\n[prune]\nkeep = \"1s\"\n";
    let config = rig.config_with(&rig.postgres.url(), lines);
    let refused = ends(&mut rig.start(&config), 78, "config-conflict");
    assert!(refused.contains("prune.before_slot"), "{refused}");
}
