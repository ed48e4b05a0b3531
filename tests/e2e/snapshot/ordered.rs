//! The order of a snapshot: a table that has none is refused.

use super::config;
use crate::check::Checked;
use crate::rig::{Rig, assert_has, done, edit, ends, output_with};

/// Debezium's table has no column that orders its rows. `check` and `run` refuse a snapshot of it,
/// unless it is asked for by name.
#[test]
fn an_order_is_needed_unless_the_configuration_renounces_it() {
    let rig = Rig::with_outbox(15);
    let rows = rig.workload().rows(50).seed(16).run().rows as usize;
    let path = config(&rig, "snapshot = \"initial\"");
    let words = [
        "public.outbox has no column that orders its rows",
        "snapshot-order",
    ];
    Checked::run(&path, &[]).fails("postgres/snapshot", &words);
    let log = ends(&mut rig.start(&path), 78, "snapshot-order");
    assert_has(
        &log,
        &[words[0], "snapshot_order", "snapshot_unordered = true"],
    );
    assert!(rig.slot().read().is_none(), "{log}");
    edit(
        &path,
        "snapshot = \"initial\"",
        "snapshot = \"initial\"\nsnapshot_unordered = true",
    );
    Checked::run(&path, &[]).passes("postgres/snapshot", &["row(s) are read first"]);
    let relay = rig.streaming(&path);
    assert_eq!(rig.records(rows).len(), rows);
    relay.ends_well();
}

/// The table that `init` makes has a column for it.
#[test]
fn the_order_is_kept_for_the_table_that_init_creates() {
    for major in [15, 18] {
        let rig = Rig::new(major);
        let path = config(&rig, "snapshot = \"initial\"");
        done(&output_with("init", &path, &[]));
        rig.db().batch(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) \
             SELECT 'order', 'key', 'T', to_jsonb(n) FROM generate_series(1, 300) n",
        );
        let relay = rig.streaming(&path);
        let records = rig.records(300);
        let numbers = records.iter().map(|record| record.value_text().parse());
        let numbers: Vec<u32> = numbers.collect::<Result<_, _>>().expect("numbers");
        assert_eq!(numbers, (1..=300).collect::<Vec<_>>(), "Postgres {major}");
        relay.ends_well();
    }
}

/// A column that the index of the primary key only includes is none of the key.
#[test]
fn a_key_of_integers_that_includes_another_column_orders_the_rows() {
    let rig = Rig::with_outbox(16);
    rig.db().batch(
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ADD number bigserial, \
         ADD PRIMARY KEY (number) INCLUDE (id)",
    );
    rig.workload().rows(50).seed(17).run();
    let path = config(&rig, "snapshot = \"initial\"");
    Checked::run(&path, &[]).passes("postgres/snapshot", &["row(s) are read first"]);
}
