//! docs/how-to/pruning.md: its configurations, its privilege, its command, the table that stays empty, and the
//! partitioned table.

use std::fs;
use std::path::Path;

use walrelay_testkit::eventually;

use super::{block, run_block};
use crate::old_rows::unseen;
use crate::rig::{PATIENCE, Rig, SLOT, assert_has, create_slot, edit, output_with, psql, said};

const DOCUMENT: &str = "docs/how-to/pruning.md";

#[test]
fn the_ways_of_the_page() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox ALTER id SET DEFAULT gen_random_uuid(), ADD created_at timestamptz DEFAULT now(); \
         CREATE ROLE walrelay LOGIN REPLICATION PASSWORD 'x'; \
         CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')",
    );
    psql(&db, &format!("{}\n", block(DOCUMENT, "prune-grant")));
    create_slot(&db, SLOT);
    let lines = format!("\n{}\n", block(DOCUMENT, "prune-config"));
    run_block(DOCUMENT, "prune-init", &rig.config_and(&lines));
    let config = rig.config_with(&rig.url_as("walrelay", "x", "postgres"), &lines);
    let relay = rig.streaming(&config);

    // The table stays empty, and the event arrives.
    db.batch(&block(DOCUMENT, "insert-and-delete"));
    let records = || rig.records(1);
    eventually(PATIENCE, || records().len() == 1);
    let rows = || db.value::<i64>("SELECT count(*) FROM outbox");
    assert_eq!(rows(), 0);

    // Old rows are deleted, a young one stays.
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'Order', '1', 'T', '1', now() - days * interval '1 day' \
         FROM generate_series(0, 30, 10) AS days",
    );
    run_block(DOCUMENT, "prune", &config);
    eventually(PATIENCE, || rows() == 1);
    let text = fs::read_to_string(&config).expect("it is there");
    assert_has(&text, &["[prune]"]);

    // Rows that no relay sent stay until they are accepted.
    unseen(&db, || {
        db.batch(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'Order', '1', 'T', '1', now() - interval '20 days'",
        );
    });
    let refused = output_with("prune", &config, &["--keep=7d", "--yes"]);
    assert_has(&said(&refused), &["[prune-unaccounted]", "1 rows more"]);
    run_block(DOCUMENT, "prune-accept", &config);
    run_block(DOCUMENT, "prune", &config);
    assert_eq!(rows(), 1);
    relay.ends_well();
}

/// The table of `migrations/`, and the role that the relay must be a member of.
#[test]
fn the_partitions_of_the_page() {
    let rig = Rig::new(15);
    let db = rig.db();
    let script = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        fs::read_to_string(path.join(name)).expect("a migration")
    };
    psql(&db, &script("0001_outbox.sql"));
    for _ in 0..2 {
        db.batch(&script("0003_outbox_partitioned.sql"));
    }
    db.batch(
        "DROP TABLE outbox; ALTER ROLE walrelay PASSWORD 'x'; REVOKE outbox_owner FROM walrelay; \
         CREATE TABLE outbox_partitioned_p20200115 PARTITION OF outbox_partitioned \
         FOR VALUES FROM ('2020-01-15 00:00:00+00') TO ('2020-01-16 00:00:00+00'); \
         ALTER TABLE outbox_partitioned_p20200115 OWNER TO outbox_owner",
    );
    let lines = format!("\n{}\nahead = 9\n", block(DOCUMENT, "prune-partitions"));
    let config = rig.config_with(&rig.url_as("walrelay", "x", "postgres"), &lines);
    edit(&config, "public.outbox", "public.outbox_partitioned");
    let partitions = || -> Vec<String> {
        let sql = "SELECT inhrelid::regclass::text FROM pg_inherits \
                   WHERE inhparent = 'outbox_partitioned'::regclass ORDER BY 1";
        db.column(sql, &[])
    };
    assert_eq!(partitions().len(), 5);
    let relay = rig.streaming(&config);
    let refused = output_with("prune", &config, &["--yes"]);
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    assert_has(&said(&refused), &["[prune-owner]"]);

    db.batch("GRANT outbox_owner TO walrelay");
    db.batch(
        "INSERT INTO outbox_partitioned (aggregatetype, aggregateid, type, payload, created_at) \
         VALUES ('Order', '1', 'T', '1', '2020-01-15 12:00:00+00'), ('Order', '2', 'T', '2', now())",
    );
    eventually(PATIENCE, || {
        let parts = partitions();
        // One more if a new day has begun meanwhile.
        (10..=11).contains(&parts.len())
            && !parts.contains(&"outbox_partitioned_p20200115".to_owned())
    });
    let records = || rig.records(2);
    eventually(PATIENCE, || records().len() == 2);
    relay.ends_well();
}
