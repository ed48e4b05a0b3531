//! `walrelay bench` with real servers and few rows: what it measures, and that it leaves nothing
//! behind.

use std::fs;
use std::process::{Command, Stdio};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;
use walrelay_testkit::{Db, Program, eventually};
use walrelay_throwaway::Signal;

use crate::rig::{
    PATIENCE, Rig, SLOT, assert_has, assert_lacks, command_with, output_with, refused, stdout,
};

fn bench(rig: &Rig, arguments: &[&str]) -> Command {
    command_with("bench", &rig.config(), arguments)
}

/// Schemas, publications and slots that benchmarks created.
fn in_database(db: &Db) -> Vec<String> {
    db.column(
        "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'walrelay\\_bench%' \
         UNION ALL SELECT pubname::text FROM pg_publication WHERE pubname LIKE 'walrelay\\_bench%' \
         UNION ALL SELECT slot_name::text FROM pg_replication_slots \
         WHERE slot_name LIKE 'walrelay\\_bench%'",
        &[],
    )
}

/// Topics with this prefix.
fn topics(rig: &Rig, prefix: &str) -> Vec<String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &rig.bootstrap)
        .create()
        .expect("a consumer can be made");
    let metadata = consumer.fetch_metadata(None, PATIENCE);
    let metadata = metadata.expect("the broker answers");
    let topics = metadata.topics().iter();
    let names = topics.map(|topic| topic.name().to_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Prefix of the topics, according to the output.
fn prefix(said: &str) -> String {
    let (_, rest) = said.split_once("topics named ").expect("the topics' name");
    let (name, _) = rest.split_once('.').expect("a dot");
    name.to_owned()
}

#[track_caller]
fn nothing_is_left(rig: &Rig, db: &Db, said: &str) {
    // A temporary slot ends only when the server notices the closed connection.
    eventually(PATIENCE, || in_database(db).is_empty());
    let prefix = prefix(said);
    eventually(PATIENCE, || topics(rig, &prefix).is_empty());
}

#[test]
fn everything_is_measured_and_nothing_is_left() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let json = rig.path("figures.json");
    let arguments = [
        "--rows=3000",
        "--rate=200",
        "--seconds=2",
        "--yes",
        "--json",
        json.to_str().expect("text"),
    ];
    let output = bench(&rig, &arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_has(&said, &["3400 rows of about 300 bytes"]);
    let text = stdout(&output);
    let parts = [
        "| walrelay, to nothing |",
        "| walrelay, to Kafka |",
        "| 200 |",
    ];
    assert_has(&text, &parts);
    let figures: Value = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
    let drained = figures["drained"].as_array().expect("a list");
    assert_eq!(drained.len(), 2);
    for run in drained {
        assert_eq!(run["rows"], 3000);
        assert_eq!(run["repeated"], false);
        assert!(run["rows_per_second"].as_f64().expect("a figure") > 0.0);
        // The server runs on this machine, so its CPU is known.
        assert!(run["walsender_cpu"].is_number(), "{run}");
    }
    let latency = &figures["latency"][0];
    assert_eq!(latency["rows"], 400);
    let at = |name: &str| latency["consumed"][name].as_f64().expect("a figure");
    assert!(
        at("p50") > 0.0 && at("p50") <= at("p99") && at("p99") <= at("max"),
        "{latency}"
    );
    nothing_is_left(&rig, &db, &said);
    assert_eq!(db.query("SELECT 1 FROM outbox", &[]).len(), 0);
    assert!(topics(&rig, &rig.prefix).is_empty());
}

#[test]
fn a_bench_without_a_terminal_needs_agreement_beforehand() {
    let rig = Rig::new(15);
    let db = rig.db();
    let output = bench(&rig, &[]).output().expect("it runs");
    // The output says what the command would have done.
    let words = [
        "[bench-not-agreed]",
        "--yes",
        "111000 rows of about 300 bytes",
    ];
    let said = refused(&output, 64, &words);
    assert_lacks(&said, &[rig.postgres.superuser_password()]);
    nothing_is_left(&rig, &db, &said);
}

/// Signals during the writing of the backlog, and while a rate is held.
#[test]
fn a_signal_ends_it_and_nothing_is_left() {
    let backlog = ["--rows=100000000", "--only=null", "--yes"];
    let rate = ["--seconds=3600", "--only=latency", "--yes"];
    for (signal, arguments, at_work) in [
        (Signal::Int, backlog, "DO $load$%"),
        (Signal::Term, rate, "EXECUTE put%"),
    ] {
        let rig = Rig::new(15);
        let db = rig.db();
        let mut command = bench(&rig, &arguments);
        let log = rig.path("bench.log");
        let mut program = Program::spawn_to(&mut command, Stdio::null(), &log);
        let sql = "SELECT 1 FROM pg_stat_activity WHERE query LIKE $1";
        program.until(at_work, || !db.query(sql, &[&at_work]).is_empty());
        program.signal(signal);
        let status = program.ended();
        let said = program.log();
        assert_eq!(status.code(), Some(75), "{said}");
        assert_has(&said, &["[bench-interrupted]"]);
        assert_lacks(&said, &["[bench-left]"]);
        if arguments[1] == "--only=null" {
            eventually(PATIENCE, || in_database(&db).is_empty());
        } else {
            nothing_is_left(&rig, &db, &said);
        }
    }
}

/// A backlog in a user's slot is read from a copy: the slot stays where it is, and its relay gets
/// every event.
#[test]
fn a_slot_is_read_by_a_copy_and_stays_where_it_is() {
    let rig = Rig::with_outbox(15);
    rig.relay().terminate();
    rig.slot().wait_inactive(PATIENCE);
    let written = rig.workload().rows(600).run();
    let before = rig.slot().read().expect("the slot");
    let db = rig.db();
    let rows = written.rows.to_string();
    let output = bench(&rig, &["--copy-of", SLOT, "--rows", &rows]).output();
    let text = stdout(&output.expect("it runs"));
    assert_has(&text, &[&format!("A backlog of {rows} rows")]);
    let after = rig.slot().read().expect("the slot");
    assert_eq!(
        (before.confirmed_flush, before.restart),
        (after.confirmed_flush, after.restart)
    );
    eventually(PATIENCE, || in_database(&db).is_empty());
    assert!(
        topics(&rig, &rig.prefix).is_empty(),
        "nothing went to Kafka"
    );
    rig.finish(rig.relay()).assert_clean();
}

#[test]
fn a_role_that_may_not_create_is_told_what_it_lacks() {
    let rig = Rig::new(15);
    let db = rig.db();
    db.batch("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'hunter2'");
    let url = rig.url_as("reader", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let output = output_with("bench --yes --rows=10 --only=null", &config, &[]);
    let said = refused(&output, 77, &["[privilege]", "GRANT CREATE ON DATABASE"]);
    assert_lacks(&said, &["hunter2"]);
    assert!(in_database(&db).is_empty());
}

#[test]
fn without_kafka_only_reading_can_be_measured() {
    let rig = Rig::new(15);
    let config = rig.config();
    let text = fs::read_to_string(&config).expect("the configuration");
    let (source, _) = text.split_once("[sink.kafka]").expect("a sink");
    fs::write(&config, format!("{source}[sink]\nkind = \"stdout\"\n")).expect("written");
    let run = |only: &[&str]| output_with("bench --yes --rows=500", &config, only);
    refused(&run(&[]), 78, &["[bench-sink]"]);
    let read = stdout(&run(&["--only=null"]));
    assert_has(&read, &["| walrelay, to nothing |"]);
}
