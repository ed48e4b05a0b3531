//! PRUNING.md: its configuration, its right, its command, and the table that stays empty.

use std::fs;
use std::path::Path;
use std::process::Command;

use walrelay_testkit::{Db, History, eventually};

use super::{block, psql};
use crate::rig::{PATIENCE, Rig};

const DOCUMENT: &str = "docs/PRUNING.md";

#[test]
fn the_ways_of_the_page() {
    let rig = Rig::with_outbox(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch(
        "ALTER TABLE outbox ALTER id SET DEFAULT gen_random_uuid(), ADD created_at timestamptz DEFAULT now(); \
         CREATE ROLE walrelay LOGIN REPLICATION PASSWORD 'x'; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')",
    );
    psql(&db, &format!("{}\n", block(DOCUMENT, "prune-grant")));
    db.query(
        "SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')",
        &[],
    );
    let lines = format!("\n{}\n", block(DOCUMENT, "prune-config"));
    let config = rig.config_with(&rig.url_as("walrelay", "x", "postgres"), &lines);
    let relay = rig.streaming(&config);

    // The table stays empty, and the event arrives.
    db.batch(&block(DOCUMENT, "insert-and-delete"));
    let records = || History::records(&rig.bootstrap, &rig.prefix, 1, PATIENCE);
    eventually(PATIENCE, || records().len() == 1);
    let rows = || db.query("SELECT count(*) FROM outbox", &[])[0].get::<_, i64>(0);
    assert_eq!(rows(), 0);

    // Old rows go, a young one stays.
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'Order', '1', 'T', '1', now() - days * interval '1 day' \
         FROM generate_series(0, 30, 10) AS days",
    );
    // A binary of that name, as a shell finds it.
    let binary = Path::new(env!("CARGO_BIN_EXE_walrelay"));
    let folder = binary.parent().expect("a folder").display();
    let searched = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-ec", &block(DOCUMENT, "prune")])
        .env("PATH", format!("{folder}:{searched}"))
        .env("WALRELAY_CONFIG", &config)
        .output()
        .expect("a shell");
    assert!(output.status.success(), "{output:?}");
    eventually(PATIENCE, || rows() == 1);
    assert!(
        fs::read_to_string(&config)
            .expect("it is there")
            .contains("[prune]")
    );
    relay.ends_well();
}
