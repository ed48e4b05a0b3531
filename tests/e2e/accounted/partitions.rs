//! A partition is dropped as a whole, so each of its rows must be accounted: those of its own partitions, and
//! those that the publication leaves out.

use walrelay_testkit::Db;

use super::{MAY, STAYS, prune, rows};
use crate::old_rows::{count, insert, insert_row, partitioned};
use crate::rig::{assert_has, create_slot, done, output_with, refused};

const DEAD_LETTERS: &str = "[prune-dead-letters]";

/// Replaces the partition `outbox_1` by one that is partitioned by HASH.
fn divide(db: &Db) {
    db.batch(
        "DROP TABLE outbox_1; \
         CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2020-02-01') \
         PARTITION BY HASH (id); \
         CREATE TABLE outbox_1_a PARTITION OF outbox_1 FOR VALUES WITH (MODULUS 2, REMAINDER 0); \
         CREATE TABLE outbox_1_b PARTITION OF outbox_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    );
}

/// A partition that is partitioned itself has no rows of its own.
#[test]
fn rows_of_the_partitions_of_a_partition_keep_it() {
    let rig = partitioned(17);
    let db = rig.db();
    divide(&db);
    let topic = format!("dead.{}letters", rig.prefix);
    let config = rig.config_and(&format!(
        "{MAY}\n[poison]\nunroutable = \"dead-letter\"\ntopic = \"{topic}\"\n"
    ));
    let relay = rig.streaming(&config);
    insert(&db, 10, "sent");
    insert_row(&db, "NULL", "dead", "'1'");
    // No log has these as rows of the table.
    db.batch(
        "CREATE TABLE outbox_2 (LIKE outbox INCLUDING ALL) PARTITION BY RANGE (id); \
         CREATE TABLE outbox_2_a PARTITION OF outbox_2 DEFAULT; \
         INSERT INTO outbox_2 SELECT gen_random_uuid(), 'order', 'unsent', 'T', '1', '2020-02-15' \
         FROM generate_series(1, 10); \
         ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM ('2020-02-01') TO ('2020-03-01')",
    );
    rig.caught_up();
    let dry = done(&output_with("prune", &config, &["--keep=24h", "--dry-run"]));
    assert_has(
        &dry,
        &[
            "partition public.outbox_1 stays: not all its rows count as sent",
            "partition public.outbox_2 stays",
        ],
    );
    let words = [DEAD_LETTERS, "1 of its rows have an open"];
    refused(&prune(&config), 65, &words);
    let kept = ["sent", "dead", "unsent"].map(|key| rows(&db, key));
    assert_eq!(kept, [10, 1, 10]);
    done(&output_with(
        "dlq drop --class unroutable --yes",
        &config,
        &[],
    ));
    let pruned = refused(&prune(&config), 65, &[STAYS, "10 rows more"]);
    assert_has(&pruned, &["dropped partition public.outbox_1"]);
    assert_eq!((count(&db, "outbox"), rows(&db, "unsent")), (10, 10));
    let leaves = "pg_class WHERE relname IN ('outbox_1', 'outbox_1_a', 'outbox_1_b')";
    assert_eq!(count(&db, leaves), 0);
    let accept = output_with("prune --accept --keep=24h --yes", &config, &[]);
    assert_has(&done(&accept), &["10 rows count as sent"]);
    assert_has(
        &done(&prune(&config)),
        &["dropped partition public.outbox_2"],
    );
    assert_eq!(count(&db, "walrelay_state.account"), 0);
    relay.ends_well();
}

/// No slot carries rows that the row filter leaves out, so no account has them.
#[test]
fn rows_that_the_row_filter_leaves_out_keep_their_partition() {
    let rig = partitioned(15);
    let db = rig.db();
    db.batch(
        "CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM ('2020-02-01') TO ('2020-03-01'); \
         CREATE PUBLICATION walrelay FOR TABLE outbox WHERE (type <> 'out') \
         WITH (publish = 'insert', publish_via_partition_root = true)",
    );
    create_slot(&db, "walrelay");
    let config = rig.config_and(MAY);
    let relay = rig.streaming(&config);
    insert(&db, 5, "sent");
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'left', 'out', '1', at::timestamptz \
         FROM generate_series(1, 5), unnest('{2020-01-15,2020-02-15}'::text[]) AS at",
    );
    rig.caught_up();
    let words = [
        STAYS,
        "partition public.outbox_1 is not dropped: 5 of its rows are in no slot's publication",
    ];
    refused(&prune(&config), 65, &words);
    assert_eq!((rows(&db, "sent"), rows(&db, "left")), (5, 10));
    db.batch("DELETE FROM outbox WHERE type = 'out'");
    assert_has(
        &done(&prune(&config)),
        &[
            "dropped partition public.outbox_1",
            "dropped partition public.outbox_2",
        ],
    );
    relay.ends_well();
}
