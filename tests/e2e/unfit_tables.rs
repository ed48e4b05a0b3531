//! Tables of which the log has no rows, no content, or the same event twice: each is refused, or `check`
//! warns of it.

use std::path::Path;

use crate::check::Checked;
use crate::rig::{Rig, assert_has, create_slot, ends, with_source};

const ROWS: &str = "aggregatetype text, aggregateid text, type text, payload jsonb";

/// A database with this table.
fn rig(major: u32, table: &str) -> Rig {
    let rig = Rig::new(major);
    rig.db().batch(table);
    rig
}

fn send(rig: &Rig, columns: &str, values: &str) {
    rig.db().batch(&format!(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload{columns}) VALUES ('order', 'a', 'T', '{{}}'{values})"
    ));
}

/// Asserts that `run` and `check` refuse the table, with these words.
#[track_caller]
fn is_refused(rig: &Rig, config: &Path, id: &str, words: &[&str]) {
    let log = ends(&mut rig.start(config), 78, id);
    assert_has(&log, words);
    let id = format!("[{id}]");
    let words = [&[id.as_str()], words].concat();
    Checked::run(config, &[]).fails("postgres/table", &words);
}

fn partitioned(by: &str, first: &str, second: &str) -> String {
    format!(
        "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, {ROWS}, {by}) PARTITION BY {first}; {second}"
    )
}

/// Rows of an unlogged partition are in no log.
#[test]
fn an_unlogged_partition_is_refused() {
    let table = partitioned(
        "d int",
        "RANGE (d)",
        "CREATE TABLE o1 PARTITION OF outbox FOR VALUES FROM (0) TO (10); \
         CREATE UNLOGGED TABLE o2 PARTITION OF outbox FOR VALUES FROM (10) TO (20)",
    );
    let rig = rig(18, &table);
    let config = rig.config();
    is_refused(&rig, &config, "table-kind", &["public.o2", "SET LOGGED"]);
    let db = rig.db();
    db.batch("ALTER TABLE o2 SET LOGGED");
    let mut relay = rig.streaming(&config);
    send(&rig, ", d", ", 1");
    send(&rig, ", d", ", 11");
    rig.caught_up();
    assert_eq!(rig.records(2).len(), 2);
    // One that is attached meanwhile, below a partition.
    db.batch(
        "CREATE TABLE o3 PARTITION OF outbox FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (d); \
         CREATE UNLOGGED TABLE o4 PARTITION OF o3 FOR VALUES FROM (20) TO (30)",
    );
    assert_has(&ends(&mut relay, 78, "table-kind"), &["public.o4"]);
}

/// A mark would move each row to another partition, and so send it again.
#[test]
fn marks_by_the_partition_key_are_refused() {
    let table = partitioned(
        "dispatched boolean NOT NULL DEFAULT false, PRIMARY KEY (id, dispatched)",
        "LIST (dispatched)",
        "CREATE TABLE todo PARTITION OF outbox FOR VALUES IN (false); \
         CREATE TABLE done PARTITION OF outbox FOR VALUES IN (true)",
    );
    let rig = rig(15, &table);
    let lines = "snapshot = \"unsent\"\nsnapshot_where = \"NOT dispatched\"\nsnapshot_order = [\"id\"]\n\
                 mark_sent = \"dispatched = true\"";
    let config = with_source(rig.config(), lines);
    let words = ["mark_sent sets column dispatched", "no partition key"];
    is_refused(&rig, &config, "mark-sent-moves-rows", &words);
}

/// The same by an expression, which is no column of the key itself.
#[test]
fn marks_by_an_expression_of_the_partition_key_are_refused() {
    let table = partitioned(
        "sent_at timestamptz",
        "LIST ((sent_at IS NULL))",
        "CREATE TABLE todo PARTITION OF outbox FOR VALUES IN (true); \
         CREATE TABLE done PARTITION OF outbox FOR VALUES IN (false)",
    );
    for major in [14, 18] {
        let rig = rig(major, &table);
        let lines = "snapshot = \"unsent\"\nsnapshot_where = \"sent_at IS NULL\"\nsnapshot_order = [\"id\"]\n\
                     mark_sent = \"sent_at = now()\"";
        let config = with_source(rig.config(), lines);
        is_refused(
            &rig,
            &config,
            "mark-sent-moves-rows",
            &["mark_sent sets column sent_at"],
        );
    }
}

/// The application archives rows by an UPDATE of the partition key.
#[test]
fn check_warns_of_a_partition_key_that_changes() {
    let warns = |by: &str, key: &str, parts: &str, warns: bool| {
        let rig = rig(18, &partitioned(by, key, parts));
        let checked = Checked::run(&rig.config(), &[]);
        let item = "postgres/publication-partitions";
        if warns {
            checked.warns(item, &["is sent again"]);
        } else {
            checked.passes(item, &[]);
        }
    };
    // The publication is made first, so that there is one to check.
    let made = "CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)";
    let flag = "is_archived boolean NOT NULL DEFAULT false";
    let parts = format!("CREATE TABLE live PARTITION OF outbox DEFAULT; {made}");
    warns(flag, "LIST (is_archived)", &parts, true);
    warns("at timestamptz DEFAULT now()", "RANGE (at)", &parts, false);
    warns(flag, "LIST (aggregatetype)", &parts, false);
    let below = format!(
        "CREATE TABLE live PARTITION OF outbox DEFAULT PARTITION BY LIST (is_archived); {made}"
    );
    warns(flag, "RANGE (id)", &below, true);
}

/// The content of a large object is not in the log.
#[test]
fn a_large_object_is_refused() {
    let id = "id uuid PRIMARY KEY DEFAULT gen_random_uuid()";
    let columns = "aggregatetype text, aggregateid text, type text, payload";
    for of in ["oid", "deep"] {
        let rig = rig(
            18,
            &format!(
                "CREATE DOMAIN lo AS oid; CREATE DOMAIN deep AS lo; CREATE TABLE outbox ({id}, {columns} {of})"
            ),
        );
        let words = ["column payload", "large object", "lo_get("];
        let config = rig.config();
        is_refused(&rig, &config, "column-large-object", &words);
        // The remedy.
        rig.db().batch(
            "ALTER TABLE \"public\".\"outbox\" ALTER COLUMN \"payload\" TYPE bytea USING lo_get(\"payload\")",
        );
        rig.streaming(&config).ends_well();
    }
}

/// An UPDATE that makes a row fit the filter is an INSERT in the log.
#[test]
fn check_and_run_warn_of_updates_beside_a_row_filter() {
    let rig = rig(
        18,
        &format!(
            "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, {ROWS}, ready boolean NOT NULL DEFAULT false, \
             PRIMARY KEY (id, ready)); \
             CREATE PUBLICATION walrelay FOR TABLE outbox WHERE (ready) WITH (publish = 'insert, update')"
        ),
    );
    create_slot(&rig.db(), "walrelay");
    let config = rig.config();
    let words = ["an UPDATE that makes a row fit is an INSERT in the log"];
    Checked::run(&config, &[]).warns("postgres/publication-operations", &words);
    let relay = rig.streaming(&config);
    relay.says("an UPDATE that makes a row fit is sent as an event");
    relay.ends_well();
}
