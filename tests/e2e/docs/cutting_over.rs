//! docs/start/cutover.md: its configuration, its privileges and its commands.

use std::fs;

use walrelay_testkit::eventually;

use super::{block, run_block, shell};
use crate::rig::{PATIENCE, Rig, assert_has, done, edit, output_with, psql};

const DOCUMENT: &str = "docs/start/cutover.md";

/// With a role that may read and mark the table.
#[test]
fn the_page_cuts_over_from_a_polling_relay() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox ADD seq bigserial, ADD status text DEFAULT 'PENDING'; \
         CREATE ROLE walrelay LOGIN REPLICATION PASSWORD 'x'",
    );
    let lines = format!("{}\n", block(DOCUMENT, "cutover-config"));
    let admin = rig.config_and("");
    edit(&admin, "[source]\n", &lines);
    run_block(DOCUMENT, "cutover-init", &admin);
    psql(&db, &format!("{}\n", block(DOCUMENT, "cutover-grant")));
    rig.workload().rows(100).seed(1).run();
    db.batch("UPDATE outbox SET status = 'PROCESSING' WHERE seq % 3 = 0");
    let path = rig.config_with(&rig.url_as("walrelay", "x", "postgres"), "");
    edit(&path, "[source]\n", &lines);
    let mut command = shell(&block(DOCUMENT, "cutover"));
    command
        .env("WALRELAY_CONFIG", &path)
        .env("STOP_POLLER", "true");
    let switched = done(&command.output().expect("a shell"));
    assert_has(&switched, &["Start walrelay run now"]);
    let relay = rig.streaming(&path);
    rig.workload().rows(100).seed(2).run();
    rig.caught_up();
    let unsent = || db.query("SELECT FROM outbox WHERE status <> 'SENT'", &[]);
    eventually(PATIENCE, || unsent().is_empty());
    rig.verdict().assert_nothing_repeated();
    relay.ends_well();
    let written = rig.workload().rows(10).seed(3).run();
    // Roll back with the privileges of the page. Unconfirmed rows stay unmarked.
    let text = fs::read_to_string(&path).expect("the configuration");
    assert!(text.contains("mark_sent"));
    done(&output_with("cutover rollback --yes", &path, &[]));
    assert_eq!(unsent().len() as u64, written.rows);
}
