//! `[source] snapshot`: the rows from before the slot are relayed once, and the stream continues
//! from there.

mod displaced;
mod first_start;
mod gate;
mod ordered;
mod resend;
mod rewritten;
mod slot_limit;
mod slow;

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use walrelay_testkit::{Cut, Delivered, eventually, rng, seed_setting};
use walrelay_throwaway::Signal;

use crate::check::Checked;
use crate::endpoint::{LISTEN, address, get, status};
use crate::rig::{
    PATIENCE, Relay, Rig, SLOT, assert_has, assert_lacks, edit, ends, output_with, run_command,
    said, wait_rows, with_source,
};
use gate::{GATED, Gate};

/// An outbox with a column that orders the rows of each key as they were committed.
fn rig(major: u32) -> Rig {
    let rig = Rig::with_outbox(major);
    // The number is assigned while the writer holds the lock of its key.
    rig.db()
        .batch("ALTER TABLE outbox ADD seq bigserial; CREATE INDEX ON outbox (seq)");
    rig
}

/// Inserts this many rows, a multiple of 300, by one statement. The workload continues their numbers.
fn fill(rig: &Rig, rows: u32) {
    rig.db().batch(&format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), (ARRAY['order', 'payment', 'customer'])[1 + n % 3], 'key-' || n / 3 % 100, 'T', \
         jsonb_build_object('number', n / 300 + 1, 'text', repeat('x', 150)) FROM generate_series(0, {rows} - 1) n; \
         UPDATE outbox_keys k SET n = (SELECT count(*) FROM outbox o \
         WHERE (o.aggregatetype, o.aggregateid) = (k.aggregatetype, k.aggregateid)); ANALYZE outbox"
    ));
}

/// A configuration with these lines in `[source]`.
fn config(rig: &Rig, lines: &str) -> PathBuf {
    with_source(rig.config(), lines)
}

const INITIAL: &str = "snapshot = \"initial\"\nsnapshot_order = [\"seq\"]";

/// Rows from before, during and after the snapshot arrive, each once and in order, while eight
/// writers write.
fn undisturbed(major: u32) {
    let rig = rig(major);
    rig.workload().rows(5_000).seed(1).run();
    let load = rig.workload().rate(1_500.0).seed(2).start();
    eventually(PATIENCE, || load.written().rows > 500);
    // On a busy machine the server may be silent for longer than the default allows.
    let lines = format!("{INITIAL}\nwal_sender_timeout = \"60s\"");
    let config = config(&rig, &lines);
    let relay = rig.start(&config);
    relay.says("the snapshot is complete");
    relay.streaming();
    wait_rows(&load, 1_000);
    load.stop();
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("snapshot on Postgres {major}: {verdict}");
    verdict.assert_nothing_repeated();
    let log = relay.ends_well();
    assert_lacks(&log, &["trying again"]);
    // The next start reads no rows again.
    let relay = rig.streaming(&config);
    assert_lacks(&relay.log(), &["snapshot"]);
    // The temporary slot ends with its session.
    let db = rig.db();
    eventually(PATIENCE, || {
        let slots: Vec<String> = db.column("SELECT slot_name::text FROM pg_replication_slots", &[]);
        slots == [SLOT]
    });
}

tests! {
    fn a_snapshot_is_complete_and_repeats_nothing_on_postgres_15() { undisturbed(15) }
    fn a_snapshot_is_complete_and_repeats_nothing_on_postgres_17() { undisturbed(17) }
    fn a_snapshot_is_complete_and_repeats_nothing_on_postgres_18() { undisturbed(18) }
}

/// These versions are not in the cache that the tests fill: `scripts/fetch-servers.sh 14.20.0
/// 16.11.0`.
#[test]
#[ignore = "needs Postgres 14 and 16"]
fn a_snapshot_is_the_same_on_postgres_14_and_16() {
    for major in [14, 16] {
        undisturbed(major);
        same_records(major);
    }
}

/// Starts a relay and kills it, `times` times, within `milliseconds` after the snapshot or the
/// stream has begun. Returns how often it was killed within the snapshot.
fn kill_at_random(rig: &Rig, config: &Path, rng: &mut Rng, times: u32, milliseconds: u64) -> u32 {
    let mut within = 0;
    for _ in 0..times {
        let relay = rig.start(config);
        eventually(PATIENCE, || {
            let log = relay.log();
            log.contains("the snapshot begins") || log.contains("\"streaming\"")
        });
        // The kill shall come at any moment, so there is no condition to wait for.
        sleep(Duration::from_millis(rng.u64(..milliseconds)));
        relay.kill();
        within += u32::from(rig.slot().read().is_none());
    }
    within
}

/// SIGKILL at random moments of the snapshot, and shortly after it.
#[test]
fn a_snapshot_killed_at_random_loses_nothing() {
    let mut rng = rng("snapshot::a_snapshot_killed_at_random_loses_nothing");
    let rig = rig(15);
    rig.workload().rows(50_000).seed(3).run();
    let load = rig.workload().rate(500.0).seed(4).start();
    let config = config(&rig, INITIAL);
    let within = kill_at_random(&rig, &config, &mut rng, 6, 600);
    let relay = rig.streaming(&config);
    wait_rows(&load, 500);
    let written = load.stop();
    let verdict = rig.finish(relay);
    eprintln!(
        "{}: SIGKILL x6, {within} of them within the snapshot, 50,000 + {} rows: {verdict}",
        seed_setting(),
        written.rows
    );
    verdict.assert_clean_but_for_ragged();
}

/// The relay kills itself at each step whose effects differ. If it dies after everything is
/// acknowledged and before the slot exists, the next start reads all rows again.
#[test]
fn a_snapshot_ended_at_each_failpoint_starts_again() {
    let rig = rig(18);
    let written = rig.workload().rows(2_000).seed(5).run();
    let config = config(&rig, INITIAL);
    let points = [
        "after-read:3",
        "after-enqueue",
        "after-ack",
        "before-confirm",
    ];
    for point in points {
        let mut command = run_command(&config);
        command.env("WALRELAY_DIE_AT", point);
        let mut relay = Relay::spawn(&mut command, &rig.path(&format!("{point}.log")));
        relay.ended();
        assert!(rig.slot().read().is_none(), "{point}: {}", relay.log());
    }
    let relay = rig.streaming(&config);
    // The publication says that its slot was never made.
    assert_lacks(&relay.log(), &["and slot walrelay is not"]);
    let verdict = rig.finish(relay);
    verdict.assert_clean_but_for_ragged();
    // Everything was acknowledged twice.
    assert!(verdict.duplicates as u64 >= 2 * written.rows, "{verdict}");
}

/// If the session that reads the rows is lost, they are read again from the same moment. If the
/// session that keeps the snapshot is lost, another snapshot is made. The last reading takes longer
/// than the timeout of a silent connection.
#[test]
fn a_snapshot_whose_sessions_are_lost_is_read_again() {
    let rig = rig(15);
    rig.workload().rows(1_500).seed(6).run();
    let (proxy, url) = rig.proxy();
    let gate = Gate::new(&rig);
    let timeout = Duration::from_secs(2);
    let lines = format!("{GATED}\nwal_sender_timeout = \"2s\"");
    let config = with_source(rig.config_with(&url, ""), &lines);
    let relay = rig.start(&config);
    let db = rig.db();
    // Ends this many sessions, once they are there, and waits until they are gone.
    let end = |sessions: usize, which: &str| {
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE {which}");
        let mut pids: Vec<i32> = Vec::new();
        eventually(PATIENCE, || {
            pids = db.column(&sql, &[]);
            pids.len() == sessions
        });
        db.query(
            "SELECT pg_terminate_backend(pid) FROM unnest($1::int4[]) pid",
            &[&pids],
        );
        let there = "SELECT FROM pg_stat_activity WHERE pid = ANY ($1)";
        eventually(PATIENCE, || db.query(there, &[&pids]).is_empty());
    };
    let reading = "query LIKE 'COPY (%'";
    end(1, reading);
    relay.says_often("the snapshot begins", 2);
    // Said whichever notices the loss first: the next opening, or a look at the catalogs.
    let lost = "does not keep the snapshot any more";
    assert_lacks(&relay.log(), &[lost]);
    end(2, &format!("{reading} OR backend_type = 'walsender'"));
    relay.says(lost);
    relay.says_often("the snapshot begins", 3);
    proxy.cut(Cut::Reset);
    // The server notices the loss of a session when it sends rows.
    db.batch(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {reading}"
    ));
    relay.says_often("the snapshot begins", 4);
    sleep(2 * timeout);
    gate.open();
    relay.says("the snapshot is complete");
    rig.finish(relay).assert_clean_but_for_ragged();
}

/// The temporary slot is gone while the reading session is not: a look at the catalogs notices
/// that.
#[test]
fn a_snapshot_whose_temporary_slot_is_lost_starts_again() {
    let rig = rig(15);
    rig.workload().rows(2_500).seed(7).run();
    let _gate = Gate::new(&rig);
    let relay = rig.start(&config(&rig, GATED));
    relay.says("the snapshot begins");
    rig.db().batch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'",
    );
    relay.says("does not keep the snapshot any more");
    relay.says_often("the snapshot begins", 2);
    relay.kill();
}

/// A standby waits, and takes over the snapshot when the first relay has gone.
#[test]
fn a_snapshot_is_read_by_one_relay_of_two() {
    let rig = rig(15);
    rig.workload().rows(2_000).seed(8).run();
    let gate = Gate::new(&rig);
    let config = config(&rig, GATED);
    let first = rig.start(&config);
    first.says("the snapshot begins");
    let second = rig.start(&config);
    let db = rig.db();
    // The first relay's session has run other queries since it locked.
    let waits = "SELECT FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock%' \
                 AND pid <> pg_backend_pid()";
    eventually(PATIENCE, || !db.query(waits, &[]).is_empty());
    assert_lacks(&second.log(), &["the snapshot begins"]);
    first.kill();
    gate.open();
    second.says("the snapshot begins");
    second.streaming();
    rig.finish(second).assert_clean_but_for_ragged();
}

/// A stop in the middle leaves nothing behind, and has its own exit code.
#[test]
fn a_snapshot_stopped_in_the_middle_starts_again() {
    let rig = rig(15);
    rig.workload().rows(2_000).seed(9).run();
    let more = "\n[delivery]\ndrain_timeout = \"1s\"\n";
    let gate = Gate::new(&rig);
    let config = with_source(rig.config_and(more), GATED);
    let relay = rig.start(&config);
    // Something of it is sent.
    rig.records(1);
    let (code, log) = relay.terminate();
    assert_eq!(code, Some(75), "{log}");
    assert!(rig.slot().read().is_none(), "{log}");
    gate.open();
    rig.finish(rig.streaming(&config))
        .assert_clean_but_for_ragged();
}

/// A stop with enough time for the remaining rows ends with a slot.
#[test]
fn a_snapshot_stopped_near_its_end_is_completed() {
    let rig = rig(15);
    rig.workload().rows(1_000).seed(9).run();
    let gate = Gate::new(&rig);
    let more = "\n[delivery]\ndrain_timeout = \"1h\"\n";
    // On a busy machine an answer may take longer than the default allows.
    let lines = format!("{GATED}\nwal_sender_timeout = \"60s\"");
    let config = with_source(rig.config_and(more), &lines);
    let mut relay = rig.start(&config);
    // Something of it is sent.
    rig.records(1);
    relay.signal(Signal::Term);
    relay.says("draining");
    gate.open();
    let code = relay.ended().code();
    assert_eq!(code, Some(0), "{}", relay.log());
    rig.finish(rig.streaming(&config)).assert_nothing_repeated();
}

/// A row makes the same record from the snapshot as from the stream, whatever its values. Column
/// lists, row filters, generated columns and partitions apply.
fn same_records(major: u32) {
    let rig = Rig::new(major);
    let db = rig.db();
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
    let config = rig.config_and(more);
    edit(
        &config,
        "[router.debezium]\n",
        "[router.debezium]\n\"table.fields.additional.placement\" = \"note:header,bytes:header,at:header,type:header\"\n",
    );
    let lines = "snapshot = \"initial\"\nsnapshot_unordered = true";
    let relay = rig.streaming(&with_source(config, lines));
    db.batch("DELETE FROM outbox");
    rows("b");
    rig.caught_up();
    let records = rig.records(if major >= 15 { 6 } else { 7 });
    let by_id = |id: &str| records.iter().find(|it| it.id.as_deref() == Some(id));
    for number in 1..=3 {
        let [snapshot, logged] = ["a", "b"].map(|round| {
            let record = by_id(&format!("{round}{number}")).expect("the record");
            let headers = record.headers.iter().filter(|(name, _)| name != "id");
            let headers: Vec<_> = headers.collect();
            (&record.topic, &record.key, &record.payload, headers)
        });
        assert_eq!(snapshot, logged, "row {number} on Postgres {major}");
    }
    assert_eq!(by_id("filtered").is_some(), major < 15);
    relay.ends_well();
}

tests! {
    fn a_snapshot_makes_the_records_that_the_log_makes_on_postgres_15() { same_records(15) }
    fn a_snapshot_makes_the_records_that_the_log_makes_on_postgres_18() { same_records(18) }
}

/// Partitions that are published by their own names are read in one order.
#[test]
fn a_snapshot_reads_partitions_in_one_order() {
    let rig = Rig::new(15);
    let db = rig.db();
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
    edit(
        &config,
        "\"public.outbox\"",
        "\"public.odd\", \"public.even\"",
    );
    let relay = rig.streaming(&config);
    let records = rig.records(500);
    let numbers = records.iter().map(|record| record.value_text().parse());
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>().expect("numbers");
    assert_eq!(numbers, (1..=500).collect::<Vec<_>>());
    relay.ends_well();
}

/// Only rows that no relay has sent, or those of a condition.
#[test]
fn a_snapshot_of_unsent_rows_leaves_the_others_out() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox ADD sent_at timestamptz; \
         INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'k' || n, 'T', to_jsonb(n), \
         CASE WHEN n <= 3 THEN now() END FROM generate_series(1, 5) n",
    );
    let config = config(&rig, "snapshot = \"unsent\"\nsnapshot_unordered = true");
    let checked = Checked::run(&config, &[]);
    checked.passes("postgres/snapshot", &["row(s) are read first"]);
    checked.passes("postgres/slot", &["reads the rows that are there first"]);
    // `init` leaves the creation of the slot to the snapshot.
    let init = said(&output_with("init", &config, &[]));
    assert_has(&init, &["is not created here"]);
    assert!(rig.slot().read().is_none());
    let dry = said(&output_with("init", &config, &["--dry-run"]));
    assert_lacks(&dry, &["pg_create_logical_replication_slot"]);
    let relay = rig.streaming(&config);
    let records = rig.records(2);
    let mut values: Vec<&str> = records.iter().map(Delivered::value_text).collect();
    values.sort_unstable();
    assert_eq!(values, ["4", "5"]);
    relay.ends_well();
}

/// Rows that cannot be read are an error before anything is sent, and nothing is left behind.
#[test]
fn a_snapshot_that_cannot_be_read_stops_the_relay() {
    let rig = Rig::with_outbox(15);
    for (lines, id, words) in [
        ("snapshot = \"unsent\"", "snapshot-rule", "dispatched_at"),
        (
            "snapshot = \"initial\"\nsnapshot_where = \"no_such_column\"\nsnapshot_unordered = true",
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
        let checked = Checked::run(&config, &[]);
        checked.fails("postgres/snapshot", &[words, id]);
        let log = ends(&mut rig.start(&config), 78, id);
        assert_has(&log, &[words]);
        assert!(rig.slot().read().is_none());
    }
    // An error that depends on a row.
    rig.db()
        .batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', '', '1')");
    let lines = "snapshot = \"initial\"\nsnapshot_where = \"1 / length(type) > 0\"\n\
                 snapshot_unordered = true";
    let log = ends(&mut rig.start(&config(&rig, lines)), 78, "snapshot-sql");
    assert_has(&log, &["division by zero"]);
    assert!(rig.slot().read().is_none());
    // The role of a relay has no privilege on any table by itself.
    rig.db()
        .batch("CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'");
    let url = rig.url_as("relay", "x", "postgres");
    let config = with_source(rig.config_with(&url, ""), "snapshot = \"initial\"");
    let log = ends(&mut rig.start(&config), 77, "privilege");
    assert_has(&log, &["SELECT on the outbox tables"]);
}

/// The slot is a failover slot if that is configured, although the copy of a slot is none.
#[test]
fn a_snapshot_ends_in_a_failover_slot() {
    let rig = rig(17);
    rig.workload().rows(200).seed(10).run();
    let relay = rig.streaming(&config(&rig, &format!("{INITIAL}\nfailover = true")));
    let kinds = "SELECT failover AND NOT temporary FROM pg_replication_slots";
    assert_eq!(rig.db().column::<bool>(kinds, &[]), [true]);
    rig.finish(relay).assert_clean();
}

/// Endpoint and `status` show the progress.
#[test]
fn a_snapshot_shows_how_far_it_is() {
    let rig = rig(15);
    rig.workload().rows(1_500).seed(11).run();
    rig.db().batch("ANALYZE outbox");
    let gate = Gate::new(&rig);
    let config = with_source(rig.config_and(LISTEN), GATED);
    let relay = rig.start(&config);
    let address = address(&relay);
    relay.says("the snapshot begins");
    eventually(PATIENCE, || {
        status(address)["snapshot"]["rows"].as_u64() > Some(100)
    });
    let report = status(address);
    assert_eq!(report["pipeline"]["state"], "snapshot", "{report:#}");
    assert_eq!(report["snapshot"]["running"], true, "{report:#}");
    let expected = report["snapshot"]["expected_rows"].as_u64();
    let expected = expected.expect("a figure");
    assert!((1_000..3_000).contains(&expected), "{report:#}");
    let (code, ready) = get(address, "/readyz").expect("an answer");
    assert_eq!(code, 503, "{ready}");
    assert_has(&ready, &["reading the snapshot"]);
    let at = format!("--set=http.listen={address}");
    // The command waits some seconds only for the endpoint, whose thread has a low priority.
    eventually(PATIENCE, || {
        let shown = said(&output_with("status", &config, &[&at]));
        shown.contains("reading the snapshot") && shown.contains(" of about ")
    });
    let (_, metrics) = get(address, "/metrics").expect("an answer");
    let lines = [
        "walrelay_snapshot_running 1",
        "walrelay_state{state=\"snapshot\"} 1",
    ];
    assert_has(&metrics, &lines);
    gate.open();
    relay.streaming();
    rig.caught_up();
    let report = status(address);
    assert_eq!(report["snapshot"]["running"], false, "{report:#}");
    assert_eq!(report["snapshot"]["rows_total"], report["snapshot"]["rows"]);
    rig.verdict().assert_clean();
    relay.ends_well();
}

/// A million rows, eight writers and SIGKILL, ten times. Takes minutes: `--ignored`.
#[test]
#[ignore = "takes minutes; docs/adr/measurements/snapshots.md has its figures"]
fn a_snapshot_of_a_million_rows_is_killed_ten_times() {
    let mut rng = rng("snapshot::a_snapshot_of_a_million_rows_is_killed_ten_times");
    let rig = rig(15);
    fill(&rig, 1_000_000);
    let load = rig.workload().rate(1_000.0).seed(4).start();
    let config = config(&rig, INITIAL);
    let within = kill_at_random(&rig, &config, &mut rng, 10, 3_000);
    let relay = rig.start(&config);
    eventually(PATIENCE * 5, || {
        relay.log().contains("the snapshot is complete")
    });
    relay.streaming();
    let written = load.stop();
    rig.caught_up();
    let memory = relay.peak_memory();
    let log = relay.ends_well();
    let mut lines = log.lines();
    let complete = lines.find(|line| line.contains("the snapshot is complete"));
    eprintln!("{}; {memory} MiB at most", complete.unwrap_or_default());
    let verdict = rig.history_within(PATIENCE * 5).check();
    eprintln!(
        "{}: SIGKILL x10, {within} of them within the snapshot, 1,000,000 + {} rows: {verdict}",
        seed_setting(),
        written.rows
    );
    verdict.assert_clean_but_for_ragged();
}
