//! `walrelay bench` against real servers, with few rows: what it measures, and that it leaves nothing.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;
use walrelay_lab::servers::{ChildGuard, Signal};
use walrelay_testkit::{Db, eventually};

use crate::rig::{PATIENCE, Rig, SLOT, walrelay};

fn bench(rig: &Rig, arguments: &[&str]) -> Command {
    let config = rig.config();
    let mut command = walrelay(&["bench", "--config"]);
    command.arg(config).args(arguments).stdin(Stdio::null());
    command
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Schemas, publications and slots of benchmarks.
fn in_database(db: &Db) -> Vec<String> {
    let rows = db.query(
        "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'walrelay\\_bench%' \
         UNION ALL SELECT pubname::text FROM pg_publication WHERE pubname LIKE 'walrelay\\_bench%' \
         UNION ALL SELECT slot_name::text FROM pg_replication_slots \
         WHERE slot_name LIKE 'walrelay\\_bench%'",
        &[],
    );
    rows.iter().map(|row| row.get(0)).collect()
}

/// Topics that begin so.
fn topics(rig: &Rig, prefix: &str) -> Vec<String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &rig.bootstrap)
        .create()
        .expect("a consumer can be made");
    let metadata = consumer.fetch_metadata(None, PATIENCE);
    let metadata = metadata.expect("the broker answers");
    let names = metadata
        .topics()
        .iter()
        .map(|topic| topic.name().to_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// What it says its topics are called.
fn prefix(said: &str) -> String {
    let (_, rest) = said.split_once("topics named ").expect("the topics' name");
    let (name, _) = rest.split_once('.').expect("a dot");
    name.to_owned()
}

#[track_caller]
fn nothing_is_left(rig: &Rig, db: &Db, said: &str) {
    // The server notices a closed connection, and with it ends a temporary slot, in its own time.
    eventually(PATIENCE, || in_database(db).is_empty());
    let prefix = prefix(said);
    eventually(PATIENCE, || topics(rig, &prefix).is_empty());
}

#[test]
fn everything_is_measured_and_nothing_is_left() {
    let rig = Rig::new(18);
    rig.workload().create_tables();
    let db = Db::connect(&rig.postgres.url());
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
    let said = error(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("3400 rows of about 300 bytes"), "{said}");
    let text = String::from_utf8(output.stdout).expect("text");
    for line in [
        "| walrelay, to nothing |",
        "| walrelay, to Kafka |",
        "| 200 |",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let figures: Value = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
    let drained = figures["drained"].as_array().expect("a list");
    assert_eq!(drained.len(), 2);
    for run in drained {
        assert_eq!(run["rows"], 3000);
        assert_eq!(run["repeated"], false);
        assert!(run["rows_per_second"].as_f64().expect("a figure") > 0.0);
        // The server runs on this machine, so its share is known.
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
fn where_nobody_can_be_asked_it_must_be_agreed_before() {
    let rig = Rig::new(15);
    let db = Db::connect(&rig.postgres.url());
    let output = bench(&rig, &[]).output().expect("it runs");
    let said = error(&output);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(
        said.contains("[bench-not-agreed]") && said.contains("--yes"),
        "{said}"
    );
    // It says what it would have done.
    assert!(said.contains("111000 rows of about 300 bytes"), "{said}");
    assert!(!said.contains(rig.postgres.superuser_password()), "{said}");
    nothing_is_left(&rig, &db, &said);
}

/// In the middle of writing, and in the middle of a rate.
#[test]
fn a_signal_ends_it_and_nothing_is_left() {
    for (signal, arguments, at_work) in [
        (
            Signal::Int,
            ["--rows=100000000", "--only=null"],
            "DO $load$%",
        ),
        (
            Signal::Term,
            ["--seconds=3600", "--only=latency"],
            "EXECUTE put%",
        ),
    ] {
        let rig = Rig::new(15);
        let db = Db::connect(&rig.postgres.url());
        let log = rig.path("bench.log");
        let file = File::create(&log).expect("a file");
        let mut child = ChildGuard::spawn(
            bench(&rig, &arguments)
                .arg("--yes")
                .stdout(Stdio::null())
                .stderr(file),
        )
        .expect("it runs");
        let said = || fs::read_to_string(&log).expect("a file");
        eventually(PATIENCE, || {
            let ended = child.try_wait().expect("a child");
            assert!(ended.is_none(), "{}", said());
            let sql = "SELECT 1 FROM pg_stat_activity WHERE query LIKE $1";
            !db.query(sql, &[&at_work]).is_empty()
        });
        child.signal(signal).expect("a signal is sent");
        eventually(PATIENCE, || child.try_wait().expect("a child").is_some());
        let status = child.wait().expect("a child");
        let said = said();
        assert_eq!(status.code(), Some(75), "{said}");
        assert!(said.contains("[bench-interrupted]"), "{said}");
        assert!(!said.contains("[bench-left]"), "{said}");
        if arguments[1] == "--only=null" {
            eventually(PATIENCE, || in_database(&db).is_empty());
        } else {
            nothing_is_left(&rig, &db, &said);
        }
    }
}

/// What waits in somebody's slot is read by a copy: the slot stays where it is, and its relay gets all.
#[test]
fn a_slot_is_read_by_a_copy_and_stays_where_it_is() {
    let rig = Rig::new(15);
    rig.workload().create_tables();
    rig.relay().terminate();
    let written = rig.workload().rows(600).run();
    let before = rig.slot().read().expect("the slot");
    let db = Db::connect(&rig.postgres.url());
    let rows = written.rows.to_string();
    let output = bench(&rig, &["--copy-of", SLOT, "--rows", &rows]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", error(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.contains(&format!("A backlog of {rows} rows")),
        "{text}"
    );
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
    let relay = rig.relay();
    rig.caught_up();
    rig.verdict().assert_clean();
    relay.terminate();
}

#[test]
fn a_role_that_may_not_create_is_told_what_it_lacks() {
    let rig = Rig::new(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'hunter2'");
    let url = rig
        .postgres
        .url_tcp_for("reader", Some("hunter2"), "postgres")
        .expect("TCP");
    rig.config_with(&url, "");
    let config = rig.path("walrelay.toml");
    let output = walrelay(&["bench", "--yes", "--rows=10", "--only=null", "--config"])
        .arg(config)
        .output()
        .expect("it runs");
    let said = error(&output);
    assert_eq!(output.status.code(), Some(77), "{said}");
    assert!(
        said.contains("[privilege]") && said.contains("GRANT CREATE ON DATABASE"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
    assert!(in_database(&db).is_empty());
}

#[test]
fn without_kafka_only_reading_can_be_measured() {
    let rig = Rig::new(15);
    let config = rig.config();
    let text = fs::read_to_string(&config).expect("the configuration");
    let (source, _) = text.split_once("[sink.kafka]").expect("a sink");
    fs::write(&config, format!("{source}[sink]\nkind = \"stdout\"\n")).expect("written");
    let run = |only: &[&str]| {
        walrelay(&["bench", "--yes", "--rows=500", "--config"])
            .arg(&config)
            .args(only)
            .output()
            .expect("it runs")
    };
    let refused = run(&[]);
    assert_eq!(refused.status.code(), Some(78), "{}", error(&refused));
    assert!(error(&refused).contains("[bench-sink]"));
    let read = run(&["--only=null"]);
    assert!(read.status.success(), "{}", error(&read));
    assert!(String::from_utf8_lossy(&read.stdout).contains("| walrelay, to nothing |"));
}
