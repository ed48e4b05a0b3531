//! CUTOVER.md: its configuration, its rights and its commands.

use std::fs;

use walrelay_testkit::{Db, eventually};

use super::{block, psql, shell, with};
use crate::rig::{PATIENCE, Rig, done, output};

const DOCUMENT: &str = "docs/CUTOVER.md";

/// As the role of a relay that may read and mark the table.
#[test]
fn from_a_polling_relay() {
    let rig = Rig::with_outbox(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch(
        "ALTER TABLE outbox ADD seq bigserial, ADD status text DEFAULT 'PENDING'; \
         CREATE ROLE walrelay LOGIN REPLICATION PASSWORD 'x'; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')",
    );
    psql(&db, &format!("{}\n", block(DOCUMENT, "cutover-grant")));
    rig.workload().rows(100).seed(1).run();
    db.batch("UPDATE outbox SET status = 'PROCESSING' WHERE seq % 3 = 0");
    let path = rig.config_with(&rig.url_as("walrelay", "x", "postgres"), "");
    let config = fs::read_to_string(&path).expect("the configuration");
    let lines = block(DOCUMENT, "cutover-config");
    fs::write(&path, with(&config, "[source]\n", &format!("{lines}\n"))).expect("written");
    let switched = shell(&block(DOCUMENT, "cutover"))
        .env("WALRELAY_CONFIG", &path)
        .env("STOP_POLLER", "true")
        .output()
        .expect("a shell");
    assert!(
        done(&switched).contains("Start walrelay run now"),
        "{switched:?}"
    );
    let relay = rig.streaming(&path);
    rig.workload().rows(100).seed(2).run();
    rig.caught_up();
    let unsent = || db.query("SELECT FROM outbox WHERE status <> 'SENT'", &[]);
    eventually(PATIENCE, || unsent().is_empty());
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0, "{verdict}");
    relay.ends_well();
    let written = rig.workload().rows(10).seed(3).run();
    // With the rights of the page, and what is not confirmed stays as it is.
    let text = fs::read_to_string(&path).expect("the configuration");
    assert!(text.contains("mark_sent"));
    let config = path.to_str().expect("a path that is text");
    done(&output(&[
        "cutover", "rollback", "--config", config, "--yes",
    ]));
    assert_eq!(unsent().len() as u64, written.rows);
}
