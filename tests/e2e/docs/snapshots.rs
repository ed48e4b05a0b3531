//! SNAPSHOTS.md: its configuration, its right and its commands.

use std::fs;

use walrelay_testkit::{Db, History, eventually};

use super::{block, psql, shell, with};
use crate::rig::{PATIENCE, Rig, SLOT};

const DOCUMENT: &str = "docs/SNAPSHOTS.md";
const ID: &str = "018f5a3e-7c1d-7b1a-9c55-0123456789ab";

/// As the role of a relay that may read the table: unsent rows before the slot, then chosen rows again.
#[test]
fn snapshot_and_resend() {
    let rig = Rig::with_outbox(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch(&format!(
        "ALTER TABLE outbox ADD created_at timestamptz DEFAULT now(), ADD sent_at timestamptz; \
         CREATE ROLE walrelay LOGIN REPLICATION PASSWORD 'x'; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert'); \
         INSERT INTO outbox VALUES ('{ID}', 'order', '17', 'T', '{{\"number\": 1}}'), \
         (gen_random_uuid(), 'order', '18', 'T', '{{\"number\": 1}}'); \
         INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '19', 'T', '1', now(), now())"
    ));
    psql(&db, &format!("{}\n", block(DOCUMENT, "grant")));
    let url = rig.url_as("walrelay", "x", "postgres");
    let path = rig.config_with(&url, "");
    let config = fs::read_to_string(&path).expect("the configuration");
    let lines = block(DOCUMENT, "snapshot");
    assert!(lines.starts_with("[source]\n"), "{lines}");
    fs::write(&path, with(&config, "[source]\n", &format!("{lines}\n"))).expect("written");
    let relay = rig.start(&path);
    relay.says("the snapshot is complete");
    relay.streaming();
    assert!(rig.slot().read().is_some(), "no slot {SLOT}");
    let records = || History::records(&rig.bootstrap, &rig.prefix, 2, PATIENCE);
    assert_eq!(records().len(), 2);

    let output = shell(&block(DOCUMENT, "resend"))
        .env("WALRELAY_CONFIG", &path)
        .output()
        .expect("a shell");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("1 row would be sent again"), "{output:?}");
    eventually(PATIENCE, || records().len() == 3);
    relay.ends_well();
}
