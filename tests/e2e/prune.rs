//! `walrelay prune` and `[prune]`: confirmed rows are deleted, no others.

mod marked;
mod million;
mod partitions;

use std::collections::BTreeSet;
use std::time::Instant;

use walrelay_testkit::{Db, eventually};

use crate::endpoint::{LISTEN, address, status};
use crate::rig::{
    PATIENCE, Rig, assert_has, done, edit, ends, json_lines, output_with, refused, said,
};

const MAY: &str = "--set=prune.before_slot=true";
/// The same, as a line of `[prune]`.
const BEFORE_SLOT: &str = "before_slot = true";
/// The section of a relay that notes its positions, and deletes nothing itself.
const NOTING: &str = "\n[prune]\nbefore_slot = true\n";

fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    // Rows of the workload are two days old.
    rig.db().batch(
        "ALTER TABLE outbox ADD created_at timestamptz DEFAULT now() - interval '2 days'; \
         CREATE INDEX ON outbox (created_at)",
    );
    rig
}

fn rows(db: &Db) -> i64 {
    db.value("SELECT count(*) FROM outbox")
}

/// Old confirmed rows are deleted. Young rows stay, and so do all rows while one of them is not
/// confirmed.
#[test]
fn confirmed_rows_go_and_no_other() {
    let rig = rig(15);
    let db = rig.db();
    let config = rig.config_and(NOTING);
    let prune = |more: &[&str]| output_with("prune --keep=24h", &config, more);
    let relay = rig.streaming(&config);
    rig.workload().rows(200).seed(1).run();
    rig.caught_up();
    relay.ends_well();
    // The relay is down: these rows are not confirmed.
    rig.workload().rows(100).seed(2).run();
    let written = rows(&db);
    let dry = said(&prune(&[MAY, "--dry-run"]));
    assert_has(&dry, &[&format!("{written} rows are old enough")]);
    let dry = json_lines(&prune(&[MAY, "--dry-run", "--output=json"]));
    assert_eq!(dry[0]["old_enough"], written);
    refused(&prune(&[MAY]), 64, &["[prune-not-agreed]"]);
    let never = said(&prune(&["--yes", "--set=prune.before_slot=false"]));
    assert_has(&never, &["[prune-before-slot]"]);
    refused(&prune(&[MAY, "--yes"]), 75, &["[prune-not-confirmed]"]);
    assert_eq!(rows(&db), written);

    let relay = rig.streaming(&config);
    db.batch("INSERT INTO outbox SELECT gen_random_uuid(), aggregatetype, 'young-' || id, type, payload, now() FROM outbox LIMIT 5");
    // `prune` waits for the slot for ten seconds.
    rig.caught_up();
    let locker = rig.db();
    locker.batch(
        "BEGIN; SELECT FROM outbox WHERE created_at < now() - interval '1 day' LIMIT 3 FOR UPDATE",
    );
    let pruned = done(&prune(&[MAY, "--yes", "--set=prune.batch=100"]));
    assert_has(&pruned, &[&format!("deleted {} rows", written - 3)]);
    assert_eq!(rows(&db), 8);
    locker.batch("COMMIT");
    assert!(rig.verdict().lost.is_empty());
    relay.ends_well();
}

/// The running relay prunes while rows are written.
#[test]
fn a_relay_deletes_what_it_has_confirmed() {
    let rig = rig(18);
    let db = rig.db();
    let lines = format!("\n[prune]\nkeep = \"1s\"\nbefore_slot = true\npause = \"0ms\"\n{LISTEN}");
    let config = rig.config_and(&lines);
    // A copy of what was committed: the outbox does not keep it.
    db.batch(
        "CREATE TABLE kept (id text); CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS \
         $$BEGIN INSERT INTO kept VALUES (NEW.id::text); RETURN NULL; END$$; \
         CREATE TRIGGER keep AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION keep()",
    );
    let relay = rig.streaming(&config);
    let address = address(&relay);
    let written = rig.workload().rows(20_000).seed(3).run();
    eventually(PATIENCE, || rows(&db) == 0);
    rig.caught_up();
    eventually(PATIENCE, || {
        status(address)["delivery"]["pruned_rows"] == written.rows
    });
    let committed = db.column("SELECT id FROM kept", &[]);
    let committed: BTreeSet<String> = committed.into_iter().collect();
    let records = rig.records(committed.len());
    let arrived: BTreeSet<String> = records.into_iter().filter_map(|record| record.id).collect();
    assert_eq!(committed.len() as u64, written.rows);
    let difference = arrived.symmetric_difference(&committed);
    assert_eq!(difference.count(), 0, "{} arrived", arrived.len());
    relay.ends_well();
}

/// The relay is down, and each of three tables has rows that it has not sent. A prune waits ten seconds for its slot.
#[test]
fn a_slot_that_is_down_is_waited_for_once() {
    let rig = rig(16);
    let db = rig.db();
    db.batch(
        "CREATE TABLE b (LIKE outbox INCLUDING ALL); CREATE TABLE c (LIKE outbox INCLUDING ALL)",
    );
    let config = rig.config_and(NOTING);
    let tables = "\"public.outbox\", \"public.b\", \"public.c\"";
    edit(&config, "\"public.outbox\"", tables);
    let insert = || {
        for table in ["outbox", "b", "c"] {
            db.batch(&format!(
                "INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) \
                 VALUES (gen_random_uuid(), 'order', 'k', 'T', '1')"
            ));
        }
    };
    let relay = rig.streaming(&config);
    insert();
    rig.caught_up();
    relay.ends_well();
    insert();
    let prune = || {
        let begun = Instant::now();
        let pruned = output_with("prune --keep=24h", &config, &[MAY, "--yes"]);
        refused(
            &pruned,
            75,
            &["[prune-not-confirmed]", "have not confirmed"],
        );
        begun.elapsed()
    };
    let all = prune();
    edit(&config, tables, "\"public.outbox\"");
    let one = prune();
    assert!(all < 2 * one, "{all:?}, {one:?}");
}

#[test]
fn rows_from_before_the_slot_are_not_deleted_unasked() {
    let rig = rig(15);
    let lines = "\n[prune]\nkeep = \"1s\"\n";
    let config = rig.config_and(lines);
    let log = ends(&mut rig.start(&config), 78, "config-conflict");
    assert_has(&log, &["prune.before_slot"]);
}

/// The relay does not begin if it could delete nothing, and says what to do.
#[test]
fn a_table_that_tells_no_age_is_refused_at_the_start() {
    let rig = Rig::with_outbox(17);
    let config = rig.config_and(&format!("\n[prune]\nkeep = \"1d\"\n{BEFORE_SLOT}\n"));
    let log = ends(&mut rig.start(&config), 78, "prune-column");
    assert_has(
        &log,
        &["public.outbox has no column occurred_at or created_at"],
    );
    let check = refused(&output_with("check", &config, &[]), 78, &["[prune-column]"]);
    let (_, remedy) = check.split_once("or add one: ").expect("a remedy");
    rig.db().batch(remedy.split(';').next().expect("SQL"));
    let relay = rig.streaming(&config);
    relay.ends_well();
}
