//! The log has tables and columns by their names of then: rows of a table that is no outbox are
//! passed over, rows of an outbox arrive under whatever name the log has them.

use std::path::{Path, PathBuf};

use walrelay_testkit::{Db, History, eventually};

use crate::endpoint::{address, config, metric};
use crate::rig::{
    PATIENCE, Rig, SLOT, assert_has, command_with, create_slot, done, ends, insert, insert_of,
    json_lines, output_with, refused, with_source,
};

const ORDERS: &str = "walrelay_passed_over_rows_total{table=\"public.orders\"}";

/// An outbox with its publication and slot, and a relay that is not running.
fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    rig.create_slot();
    rig
}

fn metrics(rig: &Rig) -> PathBuf {
    config(rig, &rig.postgres.url(), "")
}

/// Publishes a business table by mistake, for one transaction that writes to it and to the outbox.
fn mistake(db: &Db, rows: u32) {
    db.batch(&format!(
        "BEGIN; ALTER PUBLICATION walrelay ADD TABLE orders; \
         INSERT INTO orders SELECT n, 'x' FROM generate_series(1, {rows}) n; \
         INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), 'order', 'mistake-{rows}', 'T', '{{\"number\": 1}}'); \
         ALTER PUBLICATION walrelay DROP TABLE orders; COMMIT"
    ));
}

/// The log has the rows for ever: neither a start nor a running relay stops at them, and the eight
/// writers lose nothing. SIGKILL between.
#[test]
fn a_table_that_was_published_by_mistake_is_passed_over() {
    for major in [15, 17] {
        let rig = rig(major);
        let db = rig.db();
        db.batch("CREATE TABLE orders (id int, note text)");
        let config = metrics(&rig);
        let load = rig.workload().rows(4_000).seed(u64::from(major));
        load.create_tables();
        let load = load.start();
        mistake(&db, 30);
        let relay = rig.streaming(&config);
        let endpoint = address(&relay);
        eventually(PATIENCE, || metric(endpoint, ORDERS) == Some(30.0));
        mistake(&db, 5);
        eventually(PATIENCE, || metric(endpoint, ORDERS) == Some(35.0));
        let warning = "rows of this table are passed over";
        assert_eq!(relay.log().matches(warning).count(), 1, "{}", relay.log());
        relay.kill();
        mistake(&db, 7);
        load.wait();
        let relay = rig.streaming(&config);
        let endpoint = address(&relay);
        rig.caught_up();
        eventually(PATIENCE, || metric(endpoint, ORDERS) >= Some(7.0));
        let verdict = rig.finish(relay);
        // Requests of the killed relay may arrive late.
        verdict.assert_clean_but_for_ragged();
        assert!(verdict.committed >= 4_003, "{verdict}");
    }
}

/// `check` names what waits, and `run` stops at it once, with both ways on.
#[test]
fn a_table_that_may_have_been_an_outbox_is_decided_about() {
    let rig = rig(18);
    let db = rig.db();
    db.batch(
        "CREATE TABLE former (LIKE outbox); ALTER PUBLICATION walrelay ADD TABLE former; \
         INSERT INTO former VALUES (gen_random_uuid(), 'former', 'k', 'T', '{\"number\": 1}')",
    );
    insert(&db, 1);
    db.batch("ALTER PUBLICATION walrelay DROP TABLE former");
    let stops = |config: &Path| {
        let log = ends(&mut rig.start(config), 78, "table-unknown");
        let ways = [
            "public.former",
            "former_tables",
            "--pass-over public.former",
        ];
        assert_has(&log, &ways);
        assert_eq!(rig.records(0).len(), 0, "sent before the stop");
        log
    };
    assert_has(&stops(&rig.config()), &["has the columns"]);
    db.batch("DROP TABLE former");
    assert_has(&stops(&rig.config()), &["no table has its OID"]);

    // A pattern gives up no table that may be an outbox.
    let pattern = with_source(rig.config(), "pass_over = [\"public.*\"]");
    stops(&pattern);

    let relay = rig.start_with(&rig.config(), &["--pass-over", "public.former"]);
    relay.streaming();
    relay.says("rows of this table are passed over");
    rig.finish(relay).assert_counts(1, 0);
}

/// The partitions were announced under their own names before.
#[test]
fn partitions_are_sent_as_their_root() {
    for major in [15, 18] {
        let rig = Rig::new(major);
        let db = rig.db();
        db.batch(
            "CREATE TABLE outbox (id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, \
             type text NOT NULL, payload jsonb, number int NOT NULL DEFAULT 0) PARTITION BY RANGE (number); \
             CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (100) PARTITION BY LIST (aggregatetype); \
             CREATE TABLE outbox_1_rest PARTITION OF outbox_1 DEFAULT; \
             CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (100) TO (200); \
             CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES FROM (200) TO (300)",
        );
        rig.create_slot();
        let insert = |number: u32| {
            db.batch(&format!(
                "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', '{{\"number\": {number}}}', {number})"
            ));
        };
        for number in [1, 101, 2, 102] {
            insert(number);
        }
        let advice = "ALTER PUBLICATION walrelay SET (publish_via_partition_root = true)";
        let log = ends(&mut rig.start(&rig.config()), 78, "publication-lacks-table");
        assert_has(&log, &["publish_via_partition_root = true"]);
        db.batch(advice);
        for number in [3, 103] {
            insert(number);
        }
        let relay = rig.relay();
        // A partition that the relay does not know when it starts.
        db.batch("CREATE TABLE outbox_4 PARTITION OF outbox FOR VALUES FROM (300) TO (400)");
        insert(301);
        rig.caught_up();
        assert_eq!(numbers(&rig, 7), [1, 101, 2, 102, 3, 103, 301]);
        relay.ends_well();
    }
}

/// A partition that was detached since is a table of its own today, with rows of the outbox in the
/// log.
#[test]
fn a_detached_partition_is_not_passed_over() {
    let rig = Rig::new(17);
    let db = rig.db();
    db.batch(
        "CREATE TABLE outbox (id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, \
         type text NOT NULL, payload jsonb) PARTITION BY LIST (aggregatetype); \
         CREATE TABLE outbox_order PARTITION OF outbox FOR VALUES IN ('order')",
    );
    rig.create_slot();
    insert(&db, 1);
    db.batch(
        "ALTER PUBLICATION walrelay SET (publish_via_partition_root = true); \
         ALTER TABLE outbox DETACH PARTITION outbox_order",
    );
    let log = ends(&mut rig.start(&rig.config()), 78, "table-unknown");
    assert_has(&log, &["public.outbox_order"]);
    let sent = with_source(rig.config(), "former_tables = [\"public.outbox_order\"]");
    let relay = rig.streaming(&sent);
    rig.caught_up();
    assert_eq!(numbers(&rig, 1), [1]);
    relay.ends_well();

    // The other way round: the log has the root's name, and the configuration a partition's.
    db.batch("ALTER TABLE outbox ATTACH PARTITION outbox_order FOR VALUES IN ('order')");
    insert(&db, 2);
    db.batch("ALTER PUBLICATION walrelay SET (publish_via_partition_root = false)");
    let partition = ["--set=source.tables=[\"public.outbox_order\"]"];
    let mut relay = rig.start_with(&rig.config(), &partition);
    let log = ends(&mut relay, 78, "table-above-outbox");
    assert_has(&log, &["public.outbox in the place of public.outbox_order"]);
    db.batch("ALTER PUBLICATION walrelay SET (publish_via_partition_root = true)");
    let relay = rig.relay();
    rig.caught_up();
    assert_eq!(numbers(&rig, 2), [1, 2]);
    relay.ends_well();
}

/// The table has another name in the log, and other columns.
#[test]
fn a_renamed_table_and_column_are_the_same() {
    for (major, option, section) in [
        (15, "[\"body\", \"payload\"]", ""),
        (
            17,
            "\"body\"",
            "\n[router.former_columns]\nbody = \"payload\"\n",
        ),
    ] {
        let rig = rig(major);
        let db = rig.db();
        insert(&db, 1);
        db.batch("ALTER TABLE outbox RENAME TO events");
        let log = ends(&mut rig.start(&rig.config()), 78, "table-missing");
        assert_has(&log, &["If it was renamed, name it as it is named now"]);
        db.batch(
            "INSERT INTO events VALUES (gen_random_uuid(), 'order', 'key', 'T', '{\"number\": 2}'); \
             ALTER TABLE events RENAME payload TO body; \
             INSERT INTO events VALUES (gen_random_uuid(), 'order', 'key', 'T', '{\"number\": 3}')",
        );
        let named = ["--set=source.tables=[\"public.events\"]"];
        let log = said_of_end(&rig, &named, "column-missing");
        let advice = "\"table.field.event.payload\" = [\"body\", \"payload\"]";
        assert_has(&log, &["has no column payload", advice]);
        // The name of now alone: the log has the other one.
        let body = "--set=router.debezium.table.field.event.payload=body";
        let log = said_of_end(&rig, &[named[0], body], "column-missing");
        assert_has(&log, &["no column \"body\"", advice]);

        let both = rig.config_and(section);
        let option = format!("--set=router.debezium.table.field.event.payload={option}");
        let arguments = [named[0], &option];
        let checked = output_with("check", &both, &arguments);
        assert_has(&done(&checked), &[" 0 fail"]);
        let relay = rig.start_with(&both, &arguments);
        relay.streaming();
        rig.caught_up();
        assert_eq!(numbers(&rig, 3), [1, 2, 3]);
        relay.ends_well();
    }
}

/// Runs a relay that ends with 78 and this error; returns its log.
#[track_caller]
fn said_of_end(rig: &Rig, arguments: &[&str], id: &str) -> String {
    ends(&mut rig.start_with(&rig.config(), arguments), 78, id)
}

/// The advice for a publication of a schema is SQL that works, and what waits is passed over.
#[test]
fn a_publication_of_a_schema_is_narrowed() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    db.batch(
        "CREATE TABLE orders (id int, note text); \
         CREATE PUBLICATION walrelay FOR TABLES IN SCHEMA public WITH (publish = 'insert')",
    );
    create_slot(&db, SLOT);
    let both = |number| {
        db.batch("INSERT INTO orders VALUES (1, 'x')");
        insert(&db, number);
    };
    both(1);
    let config = metrics(&rig);
    let log = ends(&mut rig.start(&config), 78, "publication-foreign-table");
    assert_has(&log, &["public.orders", "--pass-over 'public.*'"]);
    let (_, sql) = log.split_once("run ALTER").expect("SQL");
    let (sql, _) = sql.split_once(", which puts").expect("its end");
    let narrowed = format!("ALTER{}", sql.replace("\\\"", "\""));

    // The publication as it is, by name.
    let relay = rig.start_with(&config, &["--pass-over", "public.*"]);
    relay.streaming();
    both(2);
    rig.caught_up();
    relay.says("as [source] pass_over says");
    let endpoint = address(&relay);
    eventually(PATIENCE, || metric(endpoint, ORDERS) == Some(2.0));
    relay.ends_well();

    both(3);
    db.batch(&narrowed);
    both(4);
    // Nothing shows that the tables had entries of their own before the schema was taken out.
    ends(&mut rig.start(&config), 78, "publication-changed");
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.streaming();
    rig.caught_up();
    let endpoint = address(&relay);
    eventually(PATIENCE, || metric(endpoint, ORDERS) == Some(1.0));
    rig.verdict().assert_counts(4, 0);
    relay.ends_well();
}

/// Numbers of the events in the order of their topic, once so many were read.
#[track_caller]
fn numbers(rig: &Rig, events: usize) -> Vec<u64> {
    let records = History::records(&rig.bootstrap, &rig.prefix, events, PATIENCE);
    let numbers = records.iter().map(|record| {
        let payload: serde_json::Value = serde_json::from_str(record.value_text()).expect("JSON");
        payload["number"].as_u64().expect("a number")
    });
    numbers.collect()
}

/// A replay reads older rows than any relay: the same rules hold.
#[test]
fn a_replay_passes_over_and_follows_names() {
    let rig = rig(17);
    let db = rig.db();
    db.batch("CREATE TABLE orders (id int, note text)");
    done(&output_with("bookmark create before", &rig.config(), &[]));
    mistake(&db, 3);
    insert_of(&db, "order", "key", 2);
    db.batch("ALTER TABLE outbox RENAME TO events");
    let tables = "--set=source.tables=[\"public.events\"]";
    let replay = ["--from=before", "--sink=stdout", tables];
    // A replay keeps its note in the current directory.
    let replayed = || {
        let mut command = command_with("replay", &rig.config(), &replay);
        let output = command.current_dir(rig.folder()).output();
        output.expect("walrelay runs")
    };
    assert_eq!(json_lines(&replayed()).len(), 2);
    db.batch("CREATE TABLE spare (LIKE events); BEGIN; ALTER PUBLICATION walrelay ADD TABLE spare; \
              INSERT INTO spare SELECT * FROM events LIMIT 1; ALTER PUBLICATION walrelay DROP TABLE spare; COMMIT");
    refused(&replayed(), 78, &["[table-unknown]", "public.spare"]);
}
