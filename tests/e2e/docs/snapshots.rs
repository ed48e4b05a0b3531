//! docs/how-to/snapshots.md: its configuration, its privilege and its commands.

use walrelay_testkit::eventually;

use super::{block, run_block};
use crate::rig::{PATIENCE, Rig, SLOT, assert_has, edit, psql};

const DOCUMENT: &str = "docs/how-to/snapshots.md";
const ID: &str = "018f5a3e-7c1d-7b1a-9c55-0123456789ab";

/// With a role that may read the table: unsent rows before the slot, then chosen rows again.
#[test]
fn snapshot_and_resend() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
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
    let lines = block(DOCUMENT, "snapshot");
    assert!(lines.starts_with("[source]\n"), "{lines}");
    edit(&path, "[source]\n", &format!("{lines}\n"));
    let relay = rig.start(&path);
    relay.says("the snapshot is complete");
    relay.streaming();
    assert!(rig.slot().read().is_some(), "no slot {SLOT}");
    let records = || rig.records(2);
    assert_eq!(records().len(), 2);

    let printed = run_block(DOCUMENT, "resend", &path);
    assert_has(&printed, &["1 row would be sent again"]);
    eventually(PATIENCE, || records().len() == 3);
    relay.ends_well();
}
