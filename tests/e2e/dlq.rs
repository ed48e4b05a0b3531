//! `walrelay dlq` against a real Kafka; the dead letters are written here, as `walrelay_sink::dlq_headers`
//! says.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::Value;
use tempfile::TempDir;
use walrelay_kafka_sink::dlq::DlqWatcher;
use walrelay_kafka_sink::{KafkaConfig, KafkaOptions};
use walrelay_lab::servers::ChildGuard;
use walrelay_sink::{EventPosition, Parking, dlq_headers};
use walrelay_testkit::{Db, Delivered, History, Kafka, eventually};

use crate::rig::{PATIENCE, Rig, SLOT, TESTS, shared_kafka, walrelay};

/// A topic of dead letters, topics that they were bound for, and a configuration.
pub(crate) struct Desk {
    kafka: Arc<Kafka>,
    dir: TempDir,
    /// Topics of this test begin so.
    prefix: String,
    /// The dead letters'.
    pub(crate) topic: String,
    producer: BaseProducer,
}

/// A dead letter; what is not said is the same in all.
#[derive(Clone)]
pub(crate) struct Draft<'a> {
    pub(crate) id: &'a str,
    pub(crate) class: &'a str,
    pub(crate) key: &'a str,
    /// Without the prefix.
    pub(crate) topic: Option<&'a str>,
    pub(crate) slot: &'a str,
    pub(crate) omitted: Option<&'a str>,
}

pub(crate) fn draft<'a>(id: &'a str, key: &'a str) -> Draft<'a> {
    Draft {
        id,
        class: "rejected",
        key,
        topic: Some("orders"),
        slot: SLOT,
        omitted: None,
    }
}

impl Desk {
    pub(crate) fn new() -> Self {
        let kafka = shared_kafka();
        let number = TESTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let prefix = format!("dlq{}-{number}.", std::process::id());
        let topic = format!("letters-{prefix}topic");
        kafka.create_topic(&topic, 3, &[]);
        kafka.create_topic(&format!("{prefix}orders"), 3, &[]);
        let producer = ClientConfig::new()
            .set("bootstrap.servers", kafka.bootstrap_servers())
            .set("partitioner", "murmur2_random")
            .create()
            .expect("a producer");
        let desk = Self {
            dir: TempDir::with_prefix("walrelay-dlq-").expect("a directory"),
            kafka,
            prefix,
            topic,
            producer,
        };
        // Nobody listens there: only Kafka is needed.
        let text = format!(
            "[source]\nurl = \"postgres://nobody@127.0.0.1:1/none\"\ntables = [\"public.outbox\"]\n\
             [sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n\
             \"topic.metadata.propagation.max.ms\" = 1000\n",
            desk.kafka.bootstrap_servers()
        );
        fs::write(desk.config(), text).expect("written");
        desk
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.path().join("walrelay.toml")
    }

    pub(crate) fn dead_letter(&self, draft: &Draft<'_>) {
        let (lsn, row) = draft.id.split_once(' ').expect("LSN and row");
        let topic = draft.topic.map(|topic| format!("{}{topic}", self.prefix));
        let seconds = row.parse::<u32>().expect("a number") % 60;
        let time = format!("2026-01-02T03:04:{seconds:02}.000000Z");
        let event = format!("event-{row}");
        let mut headers = vec![
            ("id", event.as_str()),
            ("trace", "secret-header"),
            (dlq_headers::CLASS, draft.class),
            (dlq_headers::CAUSE, "the broker said no"),
            (dlq_headers::SLOT, draft.slot),
            (dlq_headers::LSN, lsn),
            (dlq_headers::ROW, row),
            (dlq_headers::XID, "751"),
            (dlq_headers::COMMIT_TIME, &time),
            (dlq_headers::TABLE, "public.outbox"),
            (dlq_headers::EVENT_ID, &event),
        ];
        headers.extend(topic.as_deref().map(|topic| (dlq_headers::TOPIC, topic)));
        headers.extend(draft.omitted.map(|bytes| (dlq_headers::VALUE_BYTES, bytes)));
        let value = format!("secret-value of {}", draft.id);
        self.write(
            draft.key,
            draft.omitted.is_none().then_some(&value),
            &headers,
        );
    }

    fn write(&self, key: &str, value: Option<&String>, headers: &[(&str, &str)]) {
        let list = headers
            .iter()
            .fold(OwnedHeaders::new(), |list, (key, value)| {
                list.insert(Header {
                    key,
                    value: Some(*value),
                })
            });
        let mut record = BaseRecord::<str, String>::to(&self.topic)
            .key(key)
            .headers(list);
        record.payload = value;
        self.producer
            .send(record)
            .map_err(|(error, _)| error)
            .expect("queued");
        eventually(PATIENCE, || {
            self.producer.poll(Duration::from_millis(5));
            self.producer.in_flight_count() == 0
        });
    }

    pub(crate) fn dlq(&self, args: &[&str]) -> Output {
        let config = self.config();
        walrelay(&["dlq"])
            .args(args)
            .args(["--dead-letter-topic", &self.topic, "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .output()
            .expect("walrelay runs")
    }

    /// What it printed; it must succeed.
    #[track_caller]
    fn stdout(&self, args: &[&str]) -> String {
        let output = self.dlq(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Names of the dead letters that `list` shows.
    #[track_caller]
    fn listed(&self, args: &[&str]) -> Vec<String> {
        let all = [&["list", "--output", "json"], args].concat();
        let lines = self.stdout(&all);
        lines
            .lines()
            .map(|line| {
                let dead_letter: Value = serde_json::from_str(line).expect("JSON");
                let lsn = dead_letter["lsn"].as_str().expect("text");
                format!("{lsn} {}", dead_letter["row"])
            })
            .collect()
    }

    /// It fails with this code, and says so.
    #[track_caller]
    fn fails(&self, args: &[&str], code: i32, words: &[&str]) {
        let output = self.dlq(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        for words in words {
            assert!(error.contains(words), "{args:?}, not {words:?}: {error}");
        }
        assert!(!error.contains("secret-value"), "{error}");
    }

    /// What arrived where dead letters were bound for, in order per partition.
    fn arrived(&self, count: usize) -> Vec<Delivered> {
        History::records(
            &self.kafka.bootstrap_servers(),
            &self.prefix,
            count,
            PATIENCE,
        )
    }

    /// The rows that arrived, per key.
    fn rows(&self, count: usize) -> BTreeMap<String, Vec<u32>> {
        let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for record in self.arrived(count) {
            let text = |bytes| String::from_utf8(bytes).expect("text");
            let value = text(record.payload.expect("a value"));
            let (_, row) = value.rsplit_once(' ').expect("a row");
            let row = row.parse().expect("a number");
            let key = text(record.key.expect("a key"));
            found.entry(key).or_default().push(row);
        }
        found
    }

    /// Changes how large a record may be in the topic of dead letters.
    fn allow_bytes(&self, number: &str) {
        self.kafka
            .alter_topic(&self.topic, "max.message.bytes", number);
    }
}

#[test]
fn letters_are_listed_and_shown_without_rows() {
    let desk = Desk::new();
    assert_eq!(desk.listed(&[]), [""; 0]);
    desk.dead_letter(&draft("0/A00 0", "secret-key"));
    desk.dead_letter(&draft("0/A00 0", "secret-key"));
    desk.dead_letter(&Draft {
        topic: None,
        class: "unroutable",
        ..draft("0/A00 1", "b")
    });
    desk.dead_letter(&Draft {
        slot: "other",
        ..draft("0/A00 2", "c")
    });
    desk.dead_letter(&draft("0/B00 3", "d"));
    desk.write("x", None, &[("id", "somebody else's")]);

    let output = desk.dlq(&["list"]);
    let (table, note) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(0), "{note}");
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(note.contains("3 open dead letters"), "{note}");
    assert!(
        note.contains("1 records in the topic are no dead letters"),
        "{note}"
    );
    for shown in [
        "0/A00 0",
        "rejected",
        "public.outbox",
        "event-0",
        "the broker said no",
    ] {
        assert!(table.contains(shown), "{shown} is not in {table}");
    }
    assert!(!table.contains("secret"), "{table}");
    assert!(desk.stdout(&["list", "--keys"]).contains("secret-key"));

    for (filter, expected) in [
        (&["--class", "unroutable"][..], &["0/A00 1"][..]),
        (
            &[
                "--class",
                "unroutable",
                "--class",
                "rejected",
                "--limit",
                "2",
            ],
            &["0/A00 0", "0/A00 1"],
        ),
        (&["--key", "d"], &["0/B00 3"]),
        (&["--event-id", "event-3"], &["0/B00 3"]),
        (&["--table", "public.other"], &[]),
        (
            &["--topic", &format!("{}orders", desk.prefix)],
            &["0/A00 0", "0/B00 3"],
        ),
        (
            &[
                "--since",
                "2026-01-02T04:04:01+01:00",
                "--until",
                "2026-01-02T03:04:03Z",
            ],
            &["0/A00 1"],
        ),
        (&["--slot", "other"], &["0/A00 2"]),
        (
            &["--all-slots"],
            &["0/A00 2", "0/A00 0", "0/A00 1", "0/B00 3"],
        ),
        (
            &["--id", "0/A00 1", "--id", "0/B00 3"],
            &["0/A00 1", "0/B00 3"],
        ),
    ] {
        assert_eq!(desk.listed(filter), expected, "{filter:?}");
    }

    let shown = desk.stdout(&["show", "0/A00", "0"]);
    for words in ["secret-key", "trace: secret-header", "status       open"] {
        assert!(shown.contains(words), "{words} is not in {shown}");
    }
    assert!(!shown.contains("secret-value"), "{shown}");
    let value = desk.stdout(&["show", "0/A00 0", "--value"]);
    assert_eq!(value, "secret-value of 0/A00 0");
    let line = desk.stdout(&["show", "0/A00 0", "--output", "json", "--value"]);
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["value"], "secret-value of 0/A00 0");
    assert_eq!(
        line["headers"][1],
        serde_json::json!(["trace", "secret-header"])
    );
    desk.fails(&["show", "0/A00 9"], 64, &["[dlq-letter]", "0/A00 9"]);
    desk.fails(&["show", "A00"], 64, &["[dlq-letter]", "LSN and row"]);
}

#[test]
fn letters_are_redriven_in_order_and_dropped() {
    let desk = Desk::new();
    for row in 0..30 {
        desk.dead_letter(&draft(&format!("0/A00 {row}"), &format!("k{}", row % 3)));
    }
    desk.dead_letter(&Draft {
        omitted: Some("7000000"),
        class: "oversize",
        ..draft("0/B00 50", "k1")
    });
    desk.dead_letter(&Draft {
        topic: None,
        class: "unroutable",
        ..draft("0/B00 51", "k4")
    });

    desk.fails(&["redrive"], 64, &["[dlq-no-filter]", "--all"]);
    desk.fails(&["drop", "--limit", "3", "--yes"], 64, &["[dlq-no-filter]"]);
    desk.fails(
        &["drop", "--class", "oversize"],
        64,
        &["[dlq-not-confirmed]", "--yes"],
    );
    desk.fails(&["redrive", "--id", "0/A00 77"], 64, &["[dlq-letter]"]);
    desk.fails(
        &["redrive", "--id", "0/A00 4"],
        64,
        &[
            "[dlq-out-of-order]",
            "walrelay 0/A00 4 is behind walrelay 0/A00 1",
        ],
    );
    let pretended = desk.stdout(&["redrive", "--all", "--dry-run"]);
    assert_eq!(pretended.lines().count(), 33, "{pretended}");
    desk.stdout(&["drop", "--all", "--dry-run"]);
    assert_eq!(desk.listed(&[]).len(), 32, "a dry run does nothing");

    let done = desk.stdout(&["redrive", "--key", "k0"]);
    assert_eq!(done.lines().count(), 10, "{done}");
    assert!(done.starts_with("redriven 0/A00 0\n"), "{done}");
    desk.fails(
        &["redrive", "--all"],
        65,
        &[
            "20 dead letters redriven, 2 failed",
            "[dlq-value-omitted]",
            "insert event event-50 into the outbox anew",
            "transaction 751, commit at LSN 0/B00",
            "[dlq-no-topic]",
            "--topic-override",
        ],
    );
    let orders = format!("{}orders", desk.prefix);
    desk.stdout(&[
        "redrive",
        "--class",
        "unroutable",
        "--topic-override",
        &orders,
    ]);
    desk.stdout(&["drop", "--id", "0/B00 50", "--yes", "--output", "json"]);
    assert_eq!(desk.listed(&[]), [""; 0]);
    assert_eq!(desk.listed(&["--resolved"]).len(), 32);
    let dropped = desk.stdout(&["show", "0/B00 50"]);
    assert!(dropped.contains("status       dropped"), "{dropped}");

    let rows = desk.rows(31);
    for key in 0..3 {
        let expected: Vec<u32> = (0..30).filter(|row| row % 3 == key).collect();
        assert_eq!(rows[&format!("k{key}")], expected, "each once and in order");
    }
    assert_eq!(rows["k4"], [51]);
    // And again: nothing is left to do.
    desk.stdout(&["redrive", "--all"]);
    assert_eq!(desk.arrived(31).len(), 31);
}

/// The record is written, its resolution cannot be: as if it had been killed between the two.
#[test]
fn a_resolution_that_is_not_written_repeats_one_record() {
    let desk = Desk::new();
    for row in 0..5 {
        desk.dead_letter(&draft(&format!("0/A00 {row}"), "k"));
    }
    desk.stdout(&["redrive", "--all", "--limit", "2"]);
    desk.allow_bytes("10");
    desk.fails(
        &["redrive", "--all"],
        69,
        &["[dlq-not-recorded]", "letter walrelay 0/A00 2"],
    );
    desk.allow_bytes("1000000");
    assert_eq!(desk.listed(&[]), ["0/A00 2", "0/A00 3", "0/A00 4"]);
    desk.stdout(&["redrive", "--all"]);
    assert_eq!(desk.rows(5)["k"], [0, 1, 2, 2, 3, 4]);
    assert_eq!(desk.listed(&[]), [""; 0]);
}

/// Each SIGKILL repeats one record at most, at its place, and loses none.
#[test]
fn redriving_that_is_killed_goes_on_where_it_was() {
    let desk = Desk::new();
    for row in 0..300 {
        desk.dead_letter(&draft(&format!("0/A00 {row}"), &format!("k{}", row % 7)));
    }
    let bootstrap = desk.kafka.bootstrap_servers();
    let so_far = || History::records(&bootstrap, &desk.prefix, 300, Duration::ZERO).len();
    for wanted in [1, 60, 120] {
        let running = ChildGuard::spawn(
            walrelay(&[
                "dlq",
                "redrive",
                "--all",
                "--dead-letter-topic",
                &desk.topic,
            ])
            .arg("--config")
            .arg(desk.config())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
        )
        .expect("walrelay runs");
        eventually(PATIENCE, || so_far() >= wanted);
        // SIGKILL.
        drop(running);
    }
    desk.stdout(&["redrive", "--all"]);
    let mut repeated = 0;
    for (key, mut rows) in desk.rows(300) {
        let before = rows.len();
        // Next to each other: order is kept.
        rows.dedup();
        repeated += before - rows.len();
        let number: u32 = key.trim_start_matches('k').parse().expect("a number");
        let expected: Vec<u32> = (0..300).filter(|row| row % 7 == number).collect();
        assert_eq!(rows, expected, "{key}");
    }
    assert!(repeated <= 3, "{repeated} were repeated");
    assert_eq!(desk.listed(&[]), [""; 0]);
}

#[test]
fn a_relay_that_watches_learns_of_letters_and_of_their_end() {
    let desk = Desk::new();
    let properties = [(
        "bootstrap.servers".to_owned(),
        desk.kafka.bootstrap_servers(),
    )];
    let config = KafkaConfig::new(properties.into(), KafkaOptions::default()).expect("valid");
    desk.dead_letter(&draft("0/A00 0", "left"));
    let parking = Arc::new(Parking::new());
    let watch = |topic: &str, parking: &Arc<Parking>| {
        DlqWatcher::start(&config, topic, SLOT, Arc::clone(parking)).expect("it starts")
    };
    let _watcher = watch(&desk.topic, &parking);
    eventually(PATIENCE, || parking.is_ready());
    let orders = format!("{}orders", desk.prefix);
    let later: EventPosition = "1/0 0".parse().expect("a letter");
    assert!(parking.is_parked(later, &orders, b"left"));
    desk.dead_letter(&draft("0/B00 0", "new"));
    eventually(PATIENCE, || parking.is_parked(later, &orders, b"new"));
    desk.stdout(&["redrive", "--key", "new"]);
    eventually(PATIENCE, || !parking.is_parked(later, &orders, b"new"));
    assert!(parking.is_parked(later, &orders, b"left"));
    desk.stdout(&["drop", "--all", "--yes"]);
    eventually(PATIENCE, || parking.open() == 0);

    // Looking for a topic does not make one, though this broker would.
    let nothing = Arc::new(Parking::new());
    let missing = format!("{}missing", desk.topic);
    let _other = watch(&missing, &nothing);
    eventually(PATIENCE, || nothing.is_ready());
    let output = desk.dlq(&["list", "--dead-letter-topic", &missing]);
    assert_eq!(output.status.code(), Some(64), "given twice");
    let config = desk.config();
    let output = walrelay(&["dlq", "list", "--dead-letter-topic", &missing, "--config"])
        .arg(config)
        .output()
        .expect("walrelay runs");
    let note = String::from_utf8_lossy(&output.stderr);
    assert!(note.contains("there is no topic"), "{note}");
    assert_eq!(output.status.code(), Some(0), "{note}");
}

/// A whole story: an event without a topic, what follows of its key is parked, the event is sent where
/// it belongs while more is written, and the key flows again. The history checker is the judge.
#[test]
fn a_parked_key_flows_again_in_order() {
    let rig = Rig::new(15);
    rig.workload().create_tables();
    let db = Db::connect(&rig.postgres.url());
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let topic = format!("letters-{}park", rig.prefix);
    let poison =
        format!("\n[poison]\nunroutable = \"dead-letter\"\npark_key = true\ntopic = \"{topic}\"\n");
    let config = rig.config_with(&rig.postgres.url(), &poison);
    let relay = rig.start(&config);
    relay.streaming();
    let insert = |kind: &str, key: &str, number: u32| {
        db.batch(&format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), {kind}, '{key}', 'T', \
             '{{\"number\": {number}}}')"
        ));
    };
    let dlq = |args: &[&str]| {
        let output = walrelay(&["dlq"])
            .args(args)
            .arg("--config")
            .arg(&config)
            .output();
        let output = output.expect("walrelay runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    };
    let open = || dlq(&["list", "--output", "json"]).lines().count();

    insert("'order'", "k1", 1);
    insert("NULL", "k1", 2);
    for number in 3..10 {
        insert("'order'", "k1", number);
        insert("'order'", "k2", number - 2);
    }
    rig.caught_up();
    assert_eq!(open(), 8, "the event, and seven behind it");
    let orders = format!("{}order", rig.prefix);
    let redrive = [
        "redrive",
        "--class",
        "unroutable",
        "--topic-override",
        &orders,
    ];
    std::thread::scope(|scope| {
        let redriven = scope.spawn(|| dlq(&redrive));
        for number in 10..60 {
            insert("'order'", "k1", number);
            std::thread::sleep(Duration::from_millis(20));
        }
        let redriven = redriven.join().expect("it ends");
        assert!(redriven.lines().count() >= 8, "{redriven}");
    });
    let mut number = 60;
    eventually(PATIENCE, || {
        dlq(&["redrive", "--all"]);
        insert("'order'", "k1", number);
        number += 1;
        rig.caught_up();
        open() == 0
    });
    // The checker wants to know where it belongs. No relay sees an UPDATE.
    db.batch("UPDATE outbox SET aggregatetype = 'order' WHERE aggregatetype IS NULL");
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.delivered as u32, number - 1 + 7);
    relay.ends_well();
}

#[test]
fn what_cannot_work_says_why() {
    let desk = Desk::new();
    desk.dead_letter(&Draft {
        topic: Some("no/such"),
        ..draft("0/A00 0", "k")
    });
    desk.dead_letter(&draft("0/A00 1", "k"));
    desk.fails(
        &["redrive", "--all"],
        65,
        &[
            "[dlq-refused]",
            "letter walrelay 0/A00 0",
            "1 dead letters redriven, 1 failed",
        ],
    );
    desk.fails(&["list", "--set", "sink.kind=stdout"], 78, &["[dlq-sink]"]);
    desk.fails(
        &["list", "--set", "sink.kafka.bootstrap.servers=127.0.0.1:1"],
        69,
        &["[kafka-unreachable]", "127.0.0.1:1"],
    );
}
