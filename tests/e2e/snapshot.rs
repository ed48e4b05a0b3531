//! `[source] snapshot`: the rows that are there before the slot are relayed once, and the stream goes on from there.

mod resend;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use walrelay_testkit::{Cut, Db, Delivered, History, eventually, eventually_some};

use crate::endpoint::{free_address, get, status};
use crate::rig::{Checked, PATIENCE, Relay, Rig, SLOT, ends, output_with, said};

/// A rig whose outbox has a column that orders its rows per key as they were committed.
fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    // Given out while the writer holds the lock of its key.
    db(&rig).batch("ALTER TABLE outbox ADD seq bigserial; CREATE INDEX ON outbox (seq)");
    rig
}

fn db(rig: &Rig) -> Db {
    Db::connect(&rig.postgres.url())
}

/// A configuration with these lines in `[source]`.
fn config(rig: &Rig, lines: &str) -> PathBuf {
    of_source(&rig.config(), lines)
}

fn of_source(path: &Path, lines: &str) -> PathBuf {
    let text = fs::read_to_string(path).expect("it is there");
    let text = text.replace("[source]\n", &format!("[source]\n{lines}\n"));
    fs::write(path, text).expect("it is written");
    path.to_owned()
}

const INITIAL: &str = "snapshot = \"initial\"\nsnapshot_order = [\"seq\"]";

/// The same, at some thousand rows a second at most.
fn slowly(milliseconds: u32) -> String {
    format!("{INITIAL}\nsnapshot_where = \"pg_sleep(0.00{milliseconds}) IS NOT NULL\"")
}

/// Rows of before, of meanwhile and of after arrive, each once and in order, while eight writers write.
fn undisturbed(major: u32) {
    let rig = rig(major);
    rig.workload().rows(5_000).seed(1).run();
    let load = rig.workload().rate(1_500.0).seed(2).start();
    eventually(PATIENCE, || load.written().rows > 500);
    let relay = rig.start(&config(&rig, INITIAL));
    relay.says("the snapshot is complete");
    relay.streaming();
    let next = load.written().rows + 1_000;
    eventually(PATIENCE, || load.written().rows >= next);
    load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("snapshot on Postgres {major}: {verdict}");
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0, "an undisturbed run repeats nothing");
    let log = relay.ends_well();
    assert!(!log.contains("trying again"), "{log}");
    // The next start reads no rows again.
    let relay = rig.streaming(&config(&rig, INITIAL));
    assert!(!relay.log().contains("snapshot"), "{}", relay.log());
    let left = db(&rig).query(
        "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name <> $1",
        &[&SLOT],
    );
    assert!(left.is_empty(), "the temporary slot is left");
}

#[test]
fn is_complete_and_repeats_nothing_on_postgres_15() {
    undisturbed(15);
}

#[test]
fn is_complete_and_repeats_nothing_on_postgres_17() {
    undisturbed(17);
}

#[test]
fn is_complete_and_repeats_nothing_on_postgres_18() {
    undisturbed(18);
}

/// Not in the cache that the tests fill by themselves: `scripts/fetch-servers.sh 14.20.0 16.11.0`.
#[test]
#[ignore = "needs Postgres 14 and 16"]
fn is_the_same_on_postgres_14_and_16() {
    for major in [14, 16] {
        undisturbed(major);
        same_records(major);
    }
}

/// SIGKILL at random moments of the snapshot, and shortly after it.
#[test]
fn killed_at_random_loses_nothing() {
    let seed = fastrand::u64(..);
    let mut rng = Rng::with_seed(seed);
    let rig = rig(15);
    rig.workload().rows(50_000).seed(3).run();
    let load = rig.workload().rate(500.0).seed(4).start();
    let config = config(&rig, INITIAL);
    let mut within = 0;
    for _ in 0..6 {
        let relay = rig.start(&config);
        eventually(PATIENCE, || {
            let log = relay.log();
            log.contains("the snapshot begins") || log.contains("\"streaming\"")
        });
        sleep(Duration::from_millis(rng.u64(..600)));
        relay.kill();
        within += u32::from(rig.slot().read().is_none());
    }
    let relay = rig.streaming(&config);
    let next = load.written().rows + 500;
    eventually(PATIENCE, || load.written().rows >= next);
    let written = load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!(
        "seed {seed}: SIGKILL x6, {within} of them within the snapshot, 50,000 + {} rows: {verdict}",
        written.rows
    );
    verdict.assert_clean_but_for_ragged();
    relay.ends_well();
}

/// Dies at each step whose effects differ. After everything is acknowledged and before the slot is made, the next
/// start reads all of it again.
#[test]
fn ended_at_each_failpoint_begins_anew() {
    let rig = rig(18);
    let written = rig.workload().rows(2_000).seed(5).run();
    let config = config(&rig, INITIAL);
    for point in [
        "after-read:3",
        "after-enqueue",
        "after-ack",
        "after-confirm",
    ] {
        let mut relay = Relay::spawn(
            Relay::command(&config).env("WALRELAY_DIE_AT", point),
            &rig.path(&format!("{point}.log")),
        );
        relay.ended();
        assert!(rig.slot().read().is_none(), "{point}: {}", relay.log());
    }
    let relay = rig.streaming(&config);
    relay.says("and slot walrelay is not");
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean_but_for_ragged();
    // Twice everything was acknowledged.
    assert!(verdict.duplicates as u64 >= 2 * written.rows, "{verdict}");
    relay.ends_well();
}

/// The session that reads the rows is lost, and they are read again from the same moment; the session that keeps
/// the snapshot is lost, and another one is made. Rows take longer to come than a silent connection is waited for.
#[test]
fn whose_sessions_are_lost_is_read_again() {
    let rig = rig(15);
    rig.workload().rows(1_500).seed(6).run();
    let (proxy, url) = rig.proxy();
    let lines = format!("{}\nwal_sender_timeout = \"2s\"", slowly(3));
    let config = of_source(&rig.config_with(&url, ""), &lines);
    let relay = rig.start(&config);
    let db = db(&rig);
    let end = |which: &str| {
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE {which}");
        eventually_some(PATIENCE, || {
            let found = db.query(&sql, &[]);
            found.first().map(|row| row.get::<_, i32>(0))
        });
        db.query(
            &format!("SELECT pg_terminate_backend(pid) FROM ({sql}) s"),
            &[],
        );
    };
    end("query LIKE 'COPY (%'");
    relay.says_often("the snapshot begins", 2);
    assert!(
        !relay.log().contains("a new one is made"),
        "{}",
        relay.log()
    );
    end("backend_type = 'walsender'");
    end("query LIKE 'COPY (%'");
    relay.says("a new one is made");
    relay.says_often("the snapshot begins", 3);
    proxy.cut(Cut::Reset);
    relay.says_often("the snapshot begins", 4);
    relay.says("the snapshot is complete");
    rig.caught_up();
    rig.verdict().assert_clean_but_for_ragged();
    relay.ends_well();
}

/// The temporary slot is gone, and the session that reads is not: a look at the catalogs shows it.
#[test]
fn whose_temporary_slot_is_lost_is_made_anew() {
    let rig = rig(15);
    rig.workload().rows(2_500).seed(7).run();
    let relay = rig.start(&config(&rig, &slowly(9)));
    relay.says("the snapshot begins");
    db(&rig).batch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'",
    );
    relay.says("does not keep the snapshot any more");
    relay.says_often("the snapshot begins", 2);
    relay.kill();
}

/// A standby waits, and takes the snapshot over when the first relay is gone.
#[test]
fn is_read_by_one_relay_of_two() {
    let rig = rig(15);
    rig.workload().rows(2_000).seed(8).run();
    let config = config(&rig, &slowly(2));
    let first = rig.start(&config);
    first.says("the snapshot begins");
    let second = rig.start(&config);
    eventually(PATIENCE, || {
        let waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        !db(&rig).query(waits, &[]).is_empty()
    });
    assert!(
        !second.log().contains("the snapshot begins"),
        "{}",
        second.log()
    );
    first.kill();
    second.says("the snapshot begins");
    second.streaming();
    rig.caught_up();
    rig.verdict().assert_clean_but_for_ragged();
    second.ends_well();
}

/// A stop in the middle leaves nothing behind, and the exit code says that it was the middle.
#[test]
fn stopped_in_the_middle_is_begun_anew() {
    let rig = rig(15);
    rig.workload().rows(2_000).seed(9).run();
    let more = "\n[delivery]\ndrain_timeout = \"1s\"\n";
    let config = of_source(&rig.config_with(&rig.postgres.url(), more), &slowly(5));
    let relay = rig.start(&config);
    relay.says("the snapshot begins");
    let (code, log) = relay.terminate();
    assert_eq!(code, Some(75), "{log}");
    assert!(rig.slot().read().is_none(), "{log}");
    let relay = rig.streaming(&config);
    rig.caught_up();
    rig.verdict().assert_clean_but_for_ragged();
    relay.ends_well();
}

/// A stop that leaves time for the rest ends in a slot.
#[test]
fn stopped_near_its_end_is_completed() {
    let rig = rig(15);
    rig.workload().rows(1_000).seed(9).run();
    let config = config(&rig, &slowly(2));
    let relay = rig.start(&config);
    relay.says("the snapshot begins");
    relay.ends_well();
    let relay = rig.streaming(&config);
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0, "{verdict}");
    relay.ends_well();
}

/// Records by the value of their header `id`, without their position.
fn by_id(records: Vec<Delivered>) -> BTreeMap<String, Delivered> {
    let of = |record: Delivered| (record.id.clone().expect("an id"), record);
    records.into_iter().map(of).collect()
}

fn records(rig: &Rig, count: usize) -> Vec<Delivered> {
    History::records(&rig.bootstrap, &rig.prefix, count, PATIENCE)
}

/// The same row gives the same record by a snapshot as by the log, whatever its values. Column list, row filter,
/// generated columns and partitions count.
fn same_records(major: u32) {
    let rig = Rig::new(major);
    let db = db(&rig);
    let publication = if major >= 15 {
        "outbox (id, aggregatetype, aggregateid, type, payload, note, bytes, at) WHERE (id <> 'filtered')"
    } else {
        "outbox"
    };
    db.batch(&format!(
        "CREATE TABLE outbox (gone int, id text, aggregatetype text, aggregateid text, type text, payload jsonb, \
         hidden text DEFAULT 'not published', note text, bytes bytea, at timestamptz, \
         twice text GENERATED ALWAYS AS (id || id) STORED, PRIMARY KEY (id, aggregatetype)) \
         PARTITION BY LIST (aggregatetype); \
         CREATE TABLE orders PARTITION OF outbox FOR VALUES IN ('order'); \
         CREATE TABLE others PARTITION OF outbox DEFAULT; \
         ALTER TABLE outbox DROP COLUMN gone; \
         CREATE PUBLICATION walrelay FOR TABLE {publication} \
         WITH (publish = 'insert', publish_via_partition_root = true)"
    ));
    let rows = |round: &str| {
        let values = [
            r#"('1', 'order', 'k', 'T', '{"a": "\\ \n \u00e9"}', E'tab\t line\n \\N \\ é', '\x00ff5c', '2026-01-02 03:04:05.678+02')"#,
            "('2', 'other', 'k', 'T', NULL, NULL, NULL, NULL)",
            "('3', 'order', '', 'T', 'null', '', '', 'infinity')",
            "('filtered', 'order', 'k', 'T', '1', 'x', NULL, NULL)",
        ];
        for value in values {
            let value = value.replacen("('", &format!("('{round}"), 1);
            let value = value.replace(&format!("{round}filtered"), "filtered");
            db.batch(&format!(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, note, bytes, at) VALUES {value}"
            ));
        }
    };
    rows("a");
    let more = "\n[router.converters]\n\"value.converter\" = \"json\"\n";
    let config = rig.config_with(&rig.postgres.url(), more);
    let text = fs::read_to_string(&config).expect("it is there");
    let text = text.replace(
        "[router.debezium]\n",
        "[router.debezium]\n\"table.fields.additional.placement\" = \"note:header,bytes:header,at:header,type:header\"\n",
    );
    fs::write(&config, text).expect("it is written");
    let relay = rig.streaming(&of_source(&config, "snapshot = \"initial\""));
    db.batch("DELETE FROM outbox");
    rows("b");
    rig.caught_up();
    let by_id = by_id(records(&rig, if major >= 15 { 6 } else { 7 }));
    for number in 1..=3 {
        let of = |round| {
            let record = &by_id[&format!("{round}{number}")];
            let headers = record.headers.iter().filter(|(name, _)| name != "id");
            (
                record.topic.clone(),
                record.key.clone(),
                record.payload.clone(),
                headers.cloned().collect::<Vec<_>>(),
            )
        };
        assert_eq!(of("a"), of("b"), "row {number} on Postgres {major}");
    }
    assert_eq!(by_id.contains_key("filtered"), major < 15);
    relay.ends_well();
}

#[test]
fn makes_the_records_that_the_log_makes_on_postgres_15() {
    same_records(15);
}

#[test]
fn makes_the_records_that_the_log_makes_on_postgres_18() {
    same_records(18);
}

/// Partitions that are published by themselves are read in one order.
#[test]
fn reads_partitions_in_one_order() {
    let rig = Rig::new(15);
    let db = db(&rig);
    db.batch(
        "CREATE TABLE outbox (id bigserial, aggregatetype text, aggregateid text, type text, payload jsonb, \
         created_at int) PARTITION BY LIST (type); \
         CREATE TABLE odd PARTITION OF outbox FOR VALUES IN ('odd'); \
         CREATE TABLE even PARTITION OF outbox FOR VALUES IN ('even'); \
         CREATE PUBLICATION walrelay FOR TABLE odd, even WITH (publish = 'insert'); \
         INSERT INTO outbox (aggregatetype, aggregateid, type, payload, created_at) \
         SELECT 'order', 'key', CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, to_jsonb(n), n \
         FROM generate_series(1, 500) n ORDER BY n % 7",
    );
    let config = config(&rig, "snapshot = \"initial\"");
    let text = fs::read_to_string(&config).expect("it is there");
    let text = text.replace("\"public.outbox\"", "\"public.odd\", \"public.even\"");
    fs::write(&config, text).expect("it is written");
    let relay = rig.streaming(&config);
    let records = records(&rig, 500);
    let numbers: Vec<u32> = records
        .iter()
        .map(|record| {
            serde_json::from_slice(record.payload.as_deref().expect("a value")).expect("a number")
        })
        .collect();
    assert_eq!(numbers, (1..=500).collect::<Vec<_>>());
    relay.ends_well();
}

/// Only rows that no relay has sent, or those of a condition.
#[test]
fn of_unsent_rows_leaves_the_others_out() {
    let rig = Rig::with_outbox(15);
    let db = db(&rig);
    db.batch(
        "ALTER TABLE outbox ADD sent_at timestamptz; \
         INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'k' || n, 'T', to_jsonb(n), \
         CASE WHEN n <= 3 THEN now() END FROM generate_series(1, 5) n",
    );
    let config = config(&rig, "snapshot = \"unsent\"");
    let checked = Checked::of(&config, &[]);
    checked.is("postgres/snapshot", "pass", &["row(s) are read first"]);
    checked.is(
        "postgres/slot",
        "pass",
        &["reads the rows that are there first"],
    );
    // `init` leaves the slot to the snapshot.
    let init = output_with("init", &config, &[]);
    assert!(said(&init).contains("is not created here"), "{init:?}");
    assert!(rig.slot().read().is_none());
    let dry = output_with("init", &config, &["--dry-run"]);
    assert!(
        !said(&dry).contains("pg_create_logical_replication_slot"),
        "{dry:?}"
    );
    let relay = rig.streaming(&config);
    let values: Vec<Vec<u8>> = records(&rig, 2)
        .into_iter()
        .filter_map(|record| record.payload)
        .collect();
    assert_eq!(values.len(), 2);
    assert!(
        values
            .iter()
            .all(|value| [b"4", b"5"].contains(&value.as_slice().try_into().expect("a digit")))
    );
    relay.ends_well();
}

/// What cannot be read is an error before anything is sent, and nothing is left behind.
#[test]
fn that_cannot_be_read_stops_the_relay() {
    let rig = Rig::with_outbox(15);
    for (lines, id, words) in [
        ("snapshot = \"unsent\"", "snapshot-rule", "dispatched_at"),
        (
            "snapshot = \"initial\"\nsnapshot_where = \"no_such_column\"",
            "snapshot-sql",
            "no_such_column",
        ),
        (
            "snapshot = \"initial\"\nsnapshot_order = [\"no_such_column\"]",
            "snapshot-sql",
            "no_such_column",
        ),
    ] {
        let config = config(&rig, lines);
        let checked = Checked::of(&config, &[]);
        checked.is("postgres/snapshot", "fail", &[words, id]);
        let mut relay = rig.start(&config);
        let log = ends(&mut relay, 78, id);
        assert!(log.contains(words), "{log}");
        assert!(rig.slot().read().is_none());
    }
    // What only a row shows.
    db(&rig).batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', '', '1')");
    let lines = "snapshot = \"initial\"\nsnapshot_where = \"1 / length(type) > 0\"";
    let mut relay = rig.start(&config(&rig, lines));
    let log = ends(&mut relay, 78, "snapshot-sql");
    assert!(log.contains("division by zero"), "{log}");
    assert!(rig.slot().read().is_none());
    // The role of a relay reads no table by itself.
    db(&rig).batch("CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'");
    let url = rig.url_as("relay", "x", "postgres");
    let config = of_source(&rig.config_with(&url, ""), "snapshot = \"initial\"");
    let mut relay = rig.start(&config);
    let log = relay.ended();
    assert_eq!(log.code(), Some(77), "{}", relay.log());
    assert!(
        relay.log().contains("SELECT on the outbox tables"),
        "{}",
        relay.log()
    );
}

/// The slot is one of failover where that is asked for, though a copy is none.
#[test]
fn ends_in_a_failover_slot() {
    let rig = rig(17);
    rig.workload().rows(200).seed(10).run();
    let relay = rig.streaming(&config(&rig, &format!("{INITIAL}\nfailover = true")));
    let slot = db(&rig).query(
        "SELECT failover, temporary FROM pg_replication_slots WHERE slot_name = $1",
        &[&SLOT],
    );
    let slot = slot.first().expect("the slot");
    assert_eq!((slot.get(0), slot.get(1)), (true, false));
    rig.caught_up();
    rig.verdict().assert_clean();
    relay.ends_well();
}

/// Endpoint and `status` show how far it is.
#[test]
fn shows_how_far_it_is() {
    let rig = rig(15);
    rig.workload().rows(1_500).seed(11).run();
    db(&rig).batch("ANALYZE outbox");
    let address = free_address();
    let more = format!("\n[http]\nlisten = \"{address}\"\n");
    let config = of_source(&rig.config_with(&rig.postgres.url(), &more), &slowly(4));
    let relay = rig.start(&config);
    relay.says("the snapshot begins");
    eventually(PATIENCE, || {
        status(address)["snapshot"]["rows"].as_u64() > Some(100)
    });
    let report = status(address);
    assert_eq!(report["pipeline"]["state"], "snapshot", "{report:#}");
    assert_eq!(report["snapshot"]["running"], true, "{report:#}");
    let expected = report["snapshot"]["expected_rows"]
        .as_u64()
        .expect("a figure");
    assert!((1_000..3_000).contains(&expected), "{report:#}");
    let (code, ready) = get(address, "/readyz").expect("an answer");
    assert!(
        code == 503 && ready.contains("reading the snapshot"),
        "{code} {ready}"
    );
    let shown = said(&output_with("status", &config, &[]));
    assert!(
        shown.contains("reading the snapshot") && shown.contains(" of about "),
        "{shown}"
    );
    let (_, metrics) = get(address, "/metrics").expect("an answer");
    for line in [
        "walrelay_snapshot_running 1",
        "walrelay_state{state=\"snapshot\"} 1",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    relay.streaming();
    rig.caught_up();
    let report = status(address);
    assert_eq!(report["snapshot"]["running"], false, "{report:#}");
    assert_eq!(report["snapshot"]["rows_total"], report["snapshot"]["rows"]);
    rig.verdict().assert_clean();
    relay.ends_well();
}

/// A million rows, eight writers and ten times SIGKILL. Takes minutes: `--ignored`.
#[test]
#[ignore = "takes minutes; docs/SNAPSHOTS.md has its figures"]
fn of_a_million_rows_killed_ten_times() {
    let seed = fastrand::u64(..);
    let mut rng = Rng::with_seed(seed);
    let rig = rig(15);
    // Numbers as the workload goes on with them.
    db(&rig).batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), (ARRAY['order', 'payment', 'customer'])[1 + n % 3], 'key-' || n / 3 % 100, 'T', \
         jsonb_build_object('number', n / 300 + 1, 'text', repeat('x', 150)) FROM generate_series(0, 999999) n; \
         UPDATE outbox_keys k SET n = (SELECT count(*) FROM outbox o \
         WHERE (o.aggregatetype, o.aggregateid) = (k.aggregatetype, k.aggregateid)); ANALYZE outbox",
    );
    let load = rig.workload().rate(1_000.0).seed(4).start();
    let config = config(&rig, INITIAL);
    let mut within = 0;
    for _ in 0..10 {
        let relay = rig.start(&config);
        eventually(PATIENCE, || {
            let log = relay.log();
            log.contains("the snapshot begins") || log.contains("\"streaming\"")
        });
        sleep(Duration::from_millis(rng.u64(..3_000)));
        relay.kill();
        within += u32::from(rig.slot().read().is_none());
    }
    let relay = rig.start(&config);
    eventually(PATIENCE * 5, || {
        relay.log().contains("the snapshot is complete")
    });
    relay.streaming();
    let written = load.stop();
    rig.caught_up();
    let memory = relay.peak_memory();
    let log = relay.ends_well();
    let complete = log
        .lines()
        .find(|line| line.contains("the snapshot is complete"));
    eprintln!("{}; {memory} MiB at most", complete.unwrap_or_default());
    let verdict = rig.history_within(PATIENCE * 5).check();
    eprintln!(
        "seed {seed}: SIGKILL x10, {within} of them within the snapshot, 1,000,000 + {} rows: {verdict}",
        written.rows
    );
    verdict.assert_clean_but_for_ragged();
}
