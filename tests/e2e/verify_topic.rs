//! `walrelay verify-topic`: each planted fault is found in a real topic, and nothing in a clean one.
//! [`streams`]: in those of Redis, NATS and RabbitMQ, too.

mod streams;

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use walrelay_testkit::{Delivered, Producer, eventually_some, servers};
use walrelay_throwaway::ChildGuard;

use crate::endpoint;
use crate::rig::{
    PATIENCE, Rig, assert_has, insert_of, json_lines, output_with, refused, said, walrelay,
};

const POSITION: &str = "walrelay-position";
const KINDS: [&str; 5] = [
    "repeated",
    "out_of_order",
    "stale_keys",
    "split_keys",
    "lost",
];

/// Runs the command, which must end with this code; returns the report.
#[track_caller]
pub(crate) fn report(config: &Path, topics: &str, options: &str, code: i32) -> Value {
    let line = format!("verify-topic {topics} --output json {options}");
    let output = output_with(&line, config, &[]);
    assert_eq!(output.status.code(), Some(code), "{}", said(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The report and the counts of all kinds.
#[track_caller]
fn verify(config: &Path, topic: &str, options: &str, code: i32) -> (Value, [u64; 5]) {
    let report = report(config, topic, options, code);
    let counts = KINDS.map(|kind| report[kind]["count"].as_u64().expect("a count"));
    assert_eq!(report["wrong"], json!(code == 1), "{report}");
    (report, counts)
}

/// Writes a record as another process would: with the headers of `like`, and other ones.
fn send(rig: &Rig, like: &Delivered, other: &[(&str, &str)]) {
    let producer = Producer::new(&rig.bootstrap);
    let mut headers: Vec<(&str, &str)> = ["id", POSITION]
        .into_iter()
        .map(|name| (name, like.header(name).expect("a header")))
        .collect();
    headers.retain(|(name, _)| other.iter().all(|(replaced, _)| replaced != name));
    headers.extend(other);
    let (key, value) = (like.key.as_deref(), like.payload.as_deref());
    producer.send(&like.topic, key, value, &headers);
    assert!(producer.delivers(PATIENCE), "it is written");
}

#[test]
fn verify_topic_finds_each_planted_fault() {
    let rig = Rig::with_outbox(17);
    let config = rig.config_and(&format!("\n[router]\nposition_header = \"{POSITION}\"\n"));
    let topic = format!("{}order", rig.prefix);
    let run = |options: &str| output_with(&format!("verify-topic {topic} {options}"), &config, &[]);
    refused(&run(""), 65, &["[verify-topic-missing]", &topic]);
    refused(
        &run("--set sink.kind=stdout"),
        78,
        &["[verify-topic-sink]", "the sink stdout cannot read topics"],
    );
    refused(&run("--against-table"), 78, &["[verify-topic-slot]"]);
    let db = rig.db();
    // From before the slot: no record will be there.
    insert_of(&db, "order", "k1", 0);
    let relay = rig.streaming(&config);
    for number in 1..=30 {
        insert_of(&db, "order", &format!("k{}", number % 3), number);
    }
    rig.caught_up();
    let sent = "--against-table --where \"payload->>'number' <> '0'\"";
    let (report, counts) = verify(&config, &topic, sent, 0);
    assert_eq!(counts, [0; 5], "{report}");
    for (name, value) in [
        ("records", json!(30)),
        ("events", json!(30)),
        ("keys", json!(3)),
        ("rows", json!(30)),
        ("positions", json!(true)),
        ("commit_to_record_ms", Value::Null),
    ] {
        assert_eq!(report[name], value, "{name}");
    }
    let lost: String = db.value("SELECT id::text FROM outbox WHERE payload->>'number' = '0'");
    let (report, counts) = verify(&config, &topic, "--against-table --where true", 1);
    assert_eq!(counts, [0, 0, 0, 0, 1], "{report}");
    assert_eq!(report["lost"]["first"][0]["id"], json!(lost));

    let mut records = rig.records(30);
    records.sort_by_key(|record| (record.partition, record.offset));
    let of_key = |key: &str| -> Vec<&Delivered> {
        let records = records.iter();
        records.filter(|record| record.key_text() == key).collect()
    };
    let (k0, k1, k2) = (of_key("k0"), of_key("k1"), of_key("k2"));
    send(&rig, k0[9], &[("ce_time", "2026-01-02T03:04:05Z")]);
    let (report, counts) = verify(&config, &topic, "", 1);
    assert_eq!(counts, [1, 0, 0, 0, 0], "{report}");
    let repeat = &report["repeated"]["first"][0];
    assert_eq!(repeat["id"], json!(k0[9].id));
    let first = format!("{topic}[{}]@{}", k0[9].partition, k0[9].offset);
    assert_eq!(repeat["other"], json!(first));
    assert!(report["largest_distance"].as_i64() > Some(0));
    let latency = &report["commit_to_record_ms"];
    assert!(latency["max"].as_f64() > Some(0.0), "{latency}");
    verify(&config, &topic, "--allow-repeats", 0);

    // A consumer of the newest value has an older one now.
    send(&rig, k1[8], &[]);
    let (report, counts) = verify(&config, &topic, "--since 1h --allow-repeats", 1);
    assert_eq!(counts, [2, 0, 1, 0, 0], "{report}");
    // A row of an older position, whose first delivery comes now.
    let swapped = [
        ("id", "late"),
        (POSITION, k2[3].header(POSITION).expect("one")),
    ];
    send(&rig, k2[9], &swapped);
    let (report, counts) = verify(&config, &topic, "", 1);
    assert_eq!(counts, [2, 1, 2, 0, 0], "{report}");
    assert_eq!(report["out_of_order"]["first"][0]["id"], json!("late"));
    // By intention: only that the key ends on an older event is left.
    send(&rig, k2[9], &[]);
    send(&rig, k2[0], &[("walrelay-replay", "r")]);
    let (report, counts) = verify(&config, &topic, "", 1);
    assert_eq!(counts, [3, 1, 2, 0, 0], "{report}");
    assert_eq!(report["sent_again"], json!(1));
    let text = run("");
    assert_eq!(text.status.code(), Some(1));
    let words = [
        "35 records of",
        "3  repeated events",
        "late at",
        "something is wrong",
    ];
    assert_has(&said(&text), &words);
    refused(
        &run("--id header:none"),
        65,
        &["[verify-topic-no-ids]", "--id"],
    );
    relay.ends_well();
}

/// The topics of other sinks cannot be read, and the command says why.
#[test]
fn a_sink_without_streams_is_refused_by_name() {
    let rig = Rig::without_broker(18);
    let section = "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"http://127.0.0.1:1/\"\n";
    let config = rig.config_and(section);
    for command in ["verify-topic", "tail"] {
        let output = output_with(&format!("{command} orders"), &config, &[]);
        let id = format!("[{command}-sink]");
        let words = [&*id, "the sink http cannot", "keeps no records"];
        refused(&output, 78, &words);
    }
}

/// The broker of a running demonstration, which does not search by time, is read from its beginning
/// and from its end; a time is refused.
#[test]
fn the_topics_of_a_demo_are_read() {
    let folder = tempfile::tempdir().expect("a directory");
    let shown = folder.path().join("shown");
    let mut command = walrelay(&["demo", "--rate", "50", "--seconds", "3600"]);
    command
        .env("WALRELAY_POSTGRES_BIN", servers::binaries(15).dir())
        .stdin(Stdio::null())
        .stdout(File::create(&shown).expect("a file"));
    let _demo = ChildGuard::spawn(&mut command).expect("walrelay runs");
    let page = eventually_some(PATIENCE, || {
        let shown = fs::read_to_string(&shown).expect("text");
        let (_, rest) = shown.split_once("Status page: http://")?;
        rest.split_once('/')?.0.parse().ok()
    });
    let broker = eventually_some(PATIENCE, || {
        let (_, status) = endpoint::get(page, "/api/status")?;
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let name = status["sink"]["endpoints"][0]["name"].as_str()?;
        Some(name.split('/').next()?.to_owned())
    });
    let config = folder.path().join("walrelay.toml");
    let source = "[source]\nurl = \"postgres://relay@127.0.0.1/app\"\ntables = [\"outbox\"]\n";
    let sink = format!("[sink.kafka]\n\"bootstrap.servers\" = \"{broker}\"\n");
    fs::write(&config, format!("{source}{sink}")).expect("it is written");
    let topic = "outbox.event.Order";
    for line in [
        format!("tail {topic} --follow -n 3"),
        format!("tail {topic} --follow --from end -n 3"),
        format!("tail {topic} -n 3"),
    ] {
        let records = json_lines(&output_with(&line, &config, &[]));
        assert_eq!(records.len(), 3, "{line}");
    }
    assert!(report(&config, topic, "", 0)["records"].as_u64() >= Some(3));
    for line in [
        format!("tail {topic} --from 2026-01-02T03:04:05Z"),
        format!("verify-topic {topic} --since 1h"),
    ] {
        refused(
            &output_with(&line, &config, &[]),
            78,
            &["[kafka-times]", topic],
        );
    }
}
