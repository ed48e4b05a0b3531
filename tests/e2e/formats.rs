//! What the first release has stored in a database is read by this one; what a later one has stored is refused by
//! its name. The files are tested where they are read.

use walrelay_testkit::eventually;

use crate::check::Checked;
use crate::old_rows::{MARKED, config as marking, count, insert, rig};
use crate::rig::{PATIENCE, assert_has, create_slot, ends, output_with, refused, stdout};

/// The schema as the SQL of walrelay 0.1 makes it. It stays as it is.
const FIRST: &str = include_str!("formats/walrelay_state-0.1.sql");

#[test]
fn the_schema_of_the_first_release_is_read_and_goes_on() {
    let rig = rig(17);
    let db = rig.db();
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    create_slot(&db, "walrelay");
    db.batch(FIRST);
    let config = rig.config_and("\n[prune]\nbefore_slot = true\n");
    let checked = Checked::run(&config, &[]);
    checked.passes("postgres/state-version", &["version 1"]);
    // The error of the last run, and the position that is noted.
    checked.warns(
        "relay/last-run",
        &["[unroutable]", "a row of public.outbox"],
    );
    let shown = stdout(&output_with(
        "status",
        &config,
        &["--set=http.listen=127.0.0.1:9"],
    ));
    assert_has(&shown, &["by [unroutable]: a row of public.outbox"]);
    let relay = rig.streaming(&config);
    insert(&db, 3, "first");
    rig.caught_up();
    relay.ends_well();
    let accounted: i64 = db.value("SELECT sum(rows)::int8 FROM walrelay_state.account");
    assert_eq!(accounted, 3);
    // A relay that marks rows uses the other tables.
    let marking = marking(&rig, "");
    let relay = rig.streaming(&marking);
    insert(&db, 1, "marked");
    rig.caught_up();
    eventually(PATIENCE, || count(&db, MARKED) == 1);
    relay.ends_well();
    // What is noted is compared.
    db.batch("SELECT pg_replication_slot_advance('walrelay', pg_current_wal_lsn())");
    insert(&db, 1, "passed-over");
    db.batch("SELECT pg_replication_slot_advance('walrelay', pg_current_wal_lsn())");
    ends(&mut rig.start(&config), 78, "slot-passed-over");
}

#[test]
fn a_later_schema_is_refused_by_its_version() {
    let rig = rig(17);
    let config = rig.config();
    let db = rig.db();
    rig.streaming(&config).ends_well();
    let comment: String =
        db.value("SELECT obj_description('walrelay_state'::regnamespace, 'pg_namespace')");
    assert_eq!(comment, "walrelay_state version 1");
    db.batch("COMMENT ON SCHEMA walrelay_state IS 'walrelay_state version 3'");
    let log = ends(&mut rig.start(&config), 78, "state-version");
    assert_has(
        &log,
        &[
            "is of version 3",
            "this walrelay knows version 2",
            "newer walrelay",
        ],
    );
    let checked = Checked::run(&config, &[]);
    checked.fails("postgres/state-version", &["[state-version]", "version 3"]);
    refused(&output_with("init", &config, &[]), 78, &["[state-version]"]);
    // The way back of docs/operate/running.md.
    db.batch(&crate::docs::block(
        "docs/operate/running.md",
        "forget-state",
    ));
    rig.streaming(&config).ends_well();
}
