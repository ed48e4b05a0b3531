//! `walrelay dlq` with a real Kafka. The test writes the dead letters, with the headers of
//! `walrelay_sink::dlq_headers`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use walrelay_kafka_sink::dlq::DlqWatcher;
use walrelay_kafka_sink::{KafkaConfig, KafkaOptions};
use walrelay_sink::{EventPosition, Parking, dlq_headers};
use walrelay_testkit::{Delivered, History, Kafka, Producer, eventually, eventually_some};
use walrelay_throwaway::ChildGuard;

use crate::endpoint::{LISTEN, address, ask, config, metric};
use crate::page::dead_letters_say;
use crate::rig::{
    PATIENCE, Relay, Rig, SLOT, assert_has, assert_lacks, command_with, done, insert_of,
    json_lines, output_unread, output_with, shared_kafka, stdout, unique,
};

/// A topic of dead letters, the topics that they were meant for, and a configuration.
pub(crate) struct DlqFixture {
    kafka: &'static Kafka,
    dir: TempDir,
    /// Prefix of the topics of this test.
    prefix: String,
    /// Topic of the dead letters.
    pub(crate) topic: String,
    producer: Producer,
}

/// The fields of a dead letter that differ between tests.
pub(crate) struct Draft<'a> {
    pub(crate) id: &'a str,
    pub(crate) class: &'a str,
    pub(crate) key: &'a str,
    /// Topic without the prefix.
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

impl DlqFixture {
    pub(crate) fn new() -> Self {
        let kafka = shared_kafka();
        let number = unique();
        let prefix = format!("dlq{}-{number}.", std::process::id());
        let topic = format!("dead-letters-{prefix}topic");
        kafka.create_topic(&topic, 3, &[]);
        kafka.create_topic(&format!("{prefix}orders"), 3, &[]);
        let fixture = Self {
            dir: TempDir::with_prefix("walrelay-dlq-").expect("a directory"),
            producer: Producer::new(&kafka.bootstrap_servers()),
            kafka,
            prefix,
            topic,
        };
        // Nobody listens at this URL: only Kafka is needed.
        let text = format!(
            "[source]\nurl = \"postgres://nobody@127.0.0.1:1/none\"\ntables = [\"public.outbox\"]\n\
             [sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n\
             \"topic.metadata.propagation.max.ms\" = 1000\n",
            fixture.kafka.bootstrap_servers()
        );
        fs::write(fixture.config(), text).expect("written");
        fixture
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
        let value = draft.omitted.is_none().then_some(value.as_bytes());
        self.write(draft.key, value, &headers);
    }

    fn write(&self, key: &str, value: Option<&[u8]>, headers: &[(&str, &str)]) {
        let key = Some(key.as_bytes());
        self.producer.send(&self.topic, key, value, headers);
        assert!(self.producer.delivers(PATIENCE));
    }

    pub(crate) fn dlq(&self, line: &str) -> Output {
        let line = self.line(line);
        output_with(&line, &self.config(), &[])
    }

    fn line(&self, line: &str) -> String {
        format!("dlq {line} --dead-letter-topic {}", self.topic)
    }

    /// Output of the command, which must succeed.
    #[track_caller]
    fn stdout(&self, line: &str) -> String {
        stdout(&self.dlq(line))
    }

    /// Identities of the dead letters that `list` shows.
    #[track_caller]
    fn listed(&self, filter: &str) -> Vec<String> {
        let dead_letters = json_lines(&self.dlq(&format!("list --output json {filter}")));
        let identity = |dead_letter: &Value| {
            let lsn = dead_letter["lsn"].as_str().expect("text");
            format!("{lsn} {}", dead_letter["row"])
        };
        dead_letters.iter().map(identity).collect()
    }

    /// Asserts that the command fails with this code and these words.
    #[track_caller]
    fn fails(&self, line: &str, code: i32, words: &[&str]) {
        let output = self.dlq(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {error}");
        assert_has(&error, words);
        assert_lacks(&error, &["secret-value"]);
    }

    /// Writes dead letters of these rows, whose keys are `k0`, `k1` … in turn.
    fn dead_letters(&self, rows: u32, keys: u32) {
        for row in 0..rows {
            self.dead_letter(&draft(&format!("0/A00 {row}"), &format!("k{}", row % keys)));
        }
    }

    /// Records in the topics that the dead letters were meant for, in order per partition.
    fn arrived(&self, count: usize) -> Vec<Delivered> {
        let bootstrap = self.kafka.bootstrap_servers();
        History::records(&bootstrap, &self.prefix, count, PATIENCE)
    }

    /// The rows that arrived, per key.
    fn rows(&self, count: usize) -> BTreeMap<String, Vec<u32>> {
        let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for record in self.arrived(count) {
            let (_, row) = record.value_text().rsplit_once(' ').expect("a row");
            let row = row.parse().expect("a number");
            let key = record.key_text().to_owned();
            found.entry(key).or_default().push(row);
        }
        found
    }

    /// Changes the maximum size of a record in the topic of dead letters, and waits until the broker
    /// keeps to it: until it takes a record of the key `k0`, or refuses it.
    fn allow_bytes(&self, number: &str, takes: bool) {
        self.kafka
            .alter_topic(&self.topic, "max.message.bytes", number);
        eventually(PATIENCE, || {
            let producer = Producer::new(&self.kafka.bootstrap_servers());
            producer.send(&self.topic, Some(b"k0"), Some(b"no dead letter"), &[]);
            producer.delivers(PATIENCE) == takes
        });
    }
}

#[test]
fn letters_are_listed_and_shown_without_rows() {
    let fixture = DlqFixture::new();
    assert_eq!(fixture.listed(""), [""; 0]);
    fixture.dead_letter(&draft("0/A00 0", "secret-key"));
    fixture.dead_letter(&draft("0/A00 0", "secret-key"));
    fixture.dead_letter(&Draft {
        topic: None,
        class: "unroutable",
        ..draft("0/A00 1", "b")
    });
    fixture.dead_letter(&Draft {
        slot: "other",
        ..draft("0/A00 2", "c")
    });
    fixture.dead_letter(&draft("0/B00 3", "d"));
    fixture.write("x", None, &[("id", "somebody else's")]);

    let output = fixture.dlq("list");
    let table = stdout(&output);
    let note = String::from_utf8_lossy(&output.stderr);
    assert_eq!(table.lines().count(), 4, "{table}");
    let parts = [
        "3 open dead letters",
        "1 records in the topic are no dead letters",
    ];
    assert_has(&note, &parts);
    let parts = [
        "0/A00 0",
        "rejected",
        "public.outbox",
        "event-0",
        "the broker said no",
    ];
    assert_has(&table, &parts);
    assert_lacks(&table, &["secret"]);
    assert_has(&fixture.stdout("list --keys"), &["secret-key"]);

    let of_topic = format!("--topic {}orders", fixture.prefix);
    let cases: [(&str, &[&str]); 10] = [
        ("--class unroutable", &["0/A00 1"]),
        (
            "--class unroutable --class rejected --limit 2",
            &["0/A00 0", "0/A00 1"],
        ),
        ("--key d", &["0/B00 3"]),
        ("--event-id event-3", &["0/B00 3"]),
        ("--table public.other", &[]),
        (&of_topic, &["0/A00 0", "0/B00 3"]),
        (
            "--since 2026-01-02T04:04:01+01:00 --until 2026-01-02T03:04:03Z",
            &["0/A00 1"],
        ),
        ("--slot other", &["0/A00 2"]),
        ("--all-slots", &["0/A00 2", "0/A00 0", "0/A00 1", "0/B00 3"]),
        ("--id '0/A00 1' --id '0/B00 3'", &["0/A00 1", "0/B00 3"]),
    ];
    for (filter, expected) in cases {
        assert_eq!(fixture.listed(filter), expected, "{filter}");
    }

    let shown = fixture.stdout("show 0/A00 0");
    let parts = ["secret-key", "trace: secret-header", "status       open"];
    assert_has(&shown, &parts);
    assert_lacks(&shown, &["secret-value"]);
    let value = fixture.stdout("show '0/A00 0' --value");
    // The exit code is that of the command also if nobody reads what it prints.
    for line in [
        "show '0/A00 0' --output table",
        "show '0/A00 0' --output json",
        "list --output json",
    ] {
        let line = fixture.line(line);
        done(&output_unread(command_with(&line, &fixture.config(), &[])));
    }
    assert_eq!(value, "secret-value of 0/A00 0");
    let lines = json_lines(&fixture.dlq("show '0/A00 0' --output json --value"));
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["value"], "secret-value of 0/A00 0");
    let header = serde_json::json!(["trace", "secret-header"]);
    assert_eq!(lines[0]["headers"][1], header);
    fixture.fails("show '0/A00 9'", 64, &["[dlq-letter]", "0/A00 9"]);
    fixture.fails("show A00", 64, &["[dlq-letter]", "LSN and row"]);
}

#[test]
fn letters_are_redriven_in_order_and_dropped() {
    let fixture = DlqFixture::new();
    fixture.dead_letters(30, 3);
    fixture.dead_letter(&Draft {
        omitted: Some("7000000"),
        class: "oversize",
        ..draft("0/B00 50", "k1")
    });
    fixture.dead_letter(&Draft {
        topic: None,
        class: "unroutable",
        ..draft("0/B00 51", "k4")
    });

    let cases: [(&str, &[&str]); 6] = [
        (
            "redrive --key k0",
            &[
                "[dlq-not-confirmed]",
                "10 dead letters are to be sent",
                "--yes",
            ],
        ),
        ("redrive", &["[dlq-no-filter]", "--all"]),
        ("drop --limit 3 --yes", &["[dlq-no-filter]"]),
        ("drop --class oversize", &["[dlq-not-confirmed]", "--yes"]),
        ("redrive --yes --id '0/A00 77'", &["[dlq-letter]"]),
        (
            "redrive --yes --id '0/A00 4'",
            &[
                "[dlq-out-of-order]",
                "walrelay 0/A00 4 is behind walrelay 0/A00 1",
            ],
        ),
    ];
    for (line, words) in cases {
        fixture.fails(line, 64, words);
    }
    let pretended = fixture.stdout("redrive --all --dry-run");
    assert_eq!(pretended.lines().count(), 33, "{pretended}");
    let goes_to = |options: &str| {
        let line = format!("redrive --dry-run --output json {options}");
        let lines = json_lines(&fixture.dlq(&line)).into_iter();
        lines
            .map(|line| line["goes_to"].clone())
            .collect::<Vec<_>>()
    };
    let orders = format!("{}orders", fixture.prefix);
    assert_eq!(goes_to("--id '0/A00 0'"), [orders.as_str()]);
    assert_eq!(goes_to("--id '0/A00 0' --topic-override other"), ["other"]);
    assert_eq!(
        goes_to("--class oversize --class unroutable --out-of-order"),
        [Value::Null, Value::Null]
    );
    fixture.stdout("drop --all --dry-run");
    assert_eq!(fixture.listed("").len(), 32, "a dry run does nothing");

    let done = fixture.stdout("redrive --yes --key k0");
    assert_eq!(done.lines().count(), 10, "{done}");
    assert!(done.starts_with("redriven 0/A00 0\n"), "{done}");
    let words = [
        "20 dead letters redriven, 2 failed",
        "[dlq-value-omitted]",
        "insert event event-50 into the outbox again",
        "transaction 751, commit at LSN 0/B00",
        "[dlq-no-topic]",
        "--topic-override",
    ];
    fixture.fails("redrive --yes --all", 65, &words);
    fixture.stdout(&format!(
        "redrive --yes --class unroutable --topic-override {orders}"
    ));
    fixture.stdout("drop --id '0/B00 50' --yes --output json");
    assert_eq!(fixture.listed(""), [""; 0]);
    assert_eq!(fixture.listed("--resolved").len(), 32);
    let dropped = fixture.stdout("show '0/B00 50'");
    assert_has(&dropped, &["status       dropped"]);

    let rows = fixture.rows(31);
    for key in 0..3 {
        let expected: Vec<u32> = (0..30).filter(|row| row % 3 == key).collect();
        assert_eq!(rows[&format!("k{key}")], expected, "each once and in order");
    }
    assert_eq!(rows["k4"], [51]);
    // The second run finds nothing to do.
    fixture.stdout("redrive --yes --all");
    assert_eq!(fixture.arrived(31).len(), 31);
}

/// A record is written but its resolution cannot be: the same as a kill between the two.
#[test]
fn a_resolution_that_is_not_written_repeats_one_record() {
    let fixture = DlqFixture::new();
    fixture.dead_letters(5, 1);
    fixture.stdout("redrive --yes --all --limit 2");
    fixture.allow_bytes("10", false);
    let words = ["[dlq-not-recorded]", "letter walrelay 0/A00 2"];
    fixture.fails("redrive --yes --all", 69, &words);
    fixture.allow_bytes("1000000", true);
    assert_eq!(fixture.listed(""), ["0/A00 2", "0/A00 3", "0/A00 4"]);
    fixture.stdout("redrive --yes --all");
    assert_eq!(fixture.rows(5)["k0"], [0, 1, 2, 2, 3, 4]);
    assert_eq!(fixture.listed(""), [""; 0]);
}

/// Each SIGKILL repeats one record at most, at its place, and loses none.
#[test]
fn a_killed_redrive_goes_on_where_it_was() {
    let fixture = DlqFixture::new();
    fixture.dead_letters(300, 7);
    let bootstrap = fixture.kafka.bootstrap_servers();
    let so_far = || History::records(&bootstrap, &fixture.prefix, 300, Duration::ZERO).len();
    for wanted in [1, 60, 120] {
        let line = fixture.line("redrive --yes --all");
        let mut command = command_with(&line, &fixture.config(), &[]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let running = ChildGuard::spawn(&mut command).expect("walrelay runs");
        eventually(PATIENCE, || so_far() >= wanted);
        // Dropping sends SIGKILL.
        drop(running);
    }
    fixture.stdout("redrive --yes --all");
    let mut repeated = 0;
    for (key, mut rows) in fixture.rows(300) {
        let before = rows.len();
        // A repeat comes right after its record, so the order is kept.
        rows.dedup();
        repeated += before - rows.len();
        let number: u32 = key.trim_start_matches('k').parse().expect("a number");
        let expected: Vec<u32> = (0..300).filter(|row| row % 7 == number).collect();
        assert_eq!(rows, expected, "{key}");
    }
    assert!(repeated <= 3, "{repeated} were repeated");
    assert_eq!(fixture.listed(""), [""; 0]);
}

#[test]
fn a_relay_that_watches_learns_of_letters_and_of_their_end() {
    let fixture = DlqFixture::new();
    let properties = [(
        "bootstrap.servers".to_owned(),
        fixture.kafka.bootstrap_servers(),
    )];
    let config = KafkaConfig::new(properties.into(), KafkaOptions::default()).expect("valid");
    fixture.dead_letter(&draft("0/A00 0", "left"));
    let parking = Arc::new(Parking::new());
    let watch = |topic: &str, parking: &Arc<Parking>| {
        DlqWatcher::start(&config, topic, SLOT, Arc::clone(parking)).expect("it starts")
    };
    let _watcher = watch(&fixture.topic, &parking);
    eventually(PATIENCE, || parking.is_ready());
    let orders = format!("{}orders", fixture.prefix);
    let later: EventPosition = "1/0 0".parse().expect("a position");
    assert!(parking.is_parked(later, &orders, b"left"));
    fixture.dead_letter(&draft("0/B00 0", "new"));
    eventually(PATIENCE, || parking.is_parked(later, &orders, b"new"));
    fixture.stdout("redrive --yes --key new");
    eventually(PATIENCE, || !parking.is_parked(later, &orders, b"new"));
    assert!(parking.is_parked(later, &orders, b"left"));
    fixture.stdout("drop --all --yes");
    eventually(PATIENCE, || parking.open() == 0);

    // Watching a topic does not create it, though this broker creates topics on demand.
    let nothing = Arc::new(Parking::new());
    let missing = format!("{}missing", fixture.topic);
    let _other = watch(&missing, &nothing);
    eventually(PATIENCE, || nothing.is_ready());
    let list = format!("list --dead-letter-topic {missing}");
    let output = fixture.dlq(&list);
    assert_eq!(output.status.code(), Some(64), "given twice");
    let output = output_with(&format!("dlq {list}"), &fixture.config(), &[]);
    let note = String::from_utf8_lossy(&output.stderr);
    assert_has(&note, &["there is no topic"]);
    assert_eq!(output.status.code(), Some(0), "{note}");
}

/// An event without a topic becomes a dead letter, later events of its key are parked, the event is
/// redriven to its topic while more is written, and the key flows again. The history checker
/// verifies the order.
#[test]
fn a_parked_key_flows_again_in_order() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let topic = format!("dead-letters-{}park", rig.prefix);
    let more = format!(
        "\n[poison]\nunroutable = \"dead-letter\"\npark_key = true\ntopic = \"{topic}\"\n{LISTEN}"
    );
    let config = rig.config_and(&more);
    let relay = rig.streaming(&config);
    let address = address(&relay);
    let insert = |key: &str, number: u32| insert_of(&db, "order", key, number);
    let dlq = |line: &str| stdout(&output_with(&format!("dlq {line}"), &config, &[]));
    let open = || dlq("list --output json").lines().count();

    insert("k1", 1);
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), NULL, 'k1', 'T', '{\"number\": 2}')");
    for number in 3..10 {
        insert("k1", number);
        insert("k2", number - 2);
    }
    rig.caught_up();
    assert_eq!(open(), 8, "the event, and seven behind it");
    let redrive = format!(
        "redrive --yes --class unroutable --topic-override {}order",
        rig.prefix
    );
    std::thread::scope(|scope| {
        let redriven = scope.spawn(|| dlq(&redrive));
        for number in 10..60 {
            insert("k1", number);
            // Spread the rows over the time of the redrive.
            if !redriven.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let redriven = redriven.join().expect("it ends");
        assert!(redriven.lines().count() >= 8, "{redriven}");
    });
    let mut number = 60;
    rig.caught_up();
    eventually(PATIENCE, || {
        dlq("redrive --yes --all");
        // A row that is written before the relay knows of the end of the dead letters is parked.
        eventually(PATIENCE, || {
            metric(address, "walrelay_parked_keys") == Some(0.0)
        });
        insert("k1", number);
        number += 1;
        rig.caught_up();
        open() == 0
    });
    // The checker needs the topic of the row. No relay sees an UPDATE.
    db.batch("UPDATE outbox SET aggregatetype = 'order' WHERE aggregatetype IS NULL");
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.delivered as u32, number - 1 + 7);
    relay.ends_well();
}

#[test]
fn dlq_says_why_it_cannot_work() {
    let fixture = DlqFixture::new();
    fixture.dead_letter(&Draft {
        topic: Some("no/such"),
        ..draft("0/A00 0", "k")
    });
    fixture.dead_letter(&draft("0/A00 1", "k"));
    let words = [
        "[dlq-refused]",
        "letter walrelay 0/A00 0",
        "1 dead letters redriven, 1 failed",
    ];
    fixture.fails("redrive --yes --all", 65, &words);
    fixture.fails("list --set sink.kind=stdout", 78, &["[dlq-sink]"]);
    fixture.fails(
        "list --set sink.kafka.bootstrap.servers=127.0.0.1:1",
        69,
        &["[kafka-unreachable]", "127.0.0.1:1"],
    );
}

/// The endpoint lists dead letters for the page, without their values, and redrives one: by the token
/// alone.
#[test]
fn the_endpoint_lists_and_redrives_by_token() {
    let fixture = DlqFixture::new();
    fixture.dead_letter(&draft("0/10 1", "key-1"));
    fixture.dead_letter(&draft("0/10 2", "key-2"));
    let rig = Rig::with_outbox(18);
    fs::write(rig.path("token"), "s3cret").expect("written");
    let poison = format!("[poison]\ntopic = \"{}\"\n", fixture.topic);
    let url = rig.postgres.url();
    let (list, redrive) = (
        "GET /api/dead-letters",
        "POST /api/dead-letters/redrive?lsn=0/10&row=1",
    );
    let host = "Host: localhost\r\n";
    let of = |relay: &Relay, what: &str, more: &str| {
        let headers = format!("{host}{more}");
        eventually_some(PATIENCE, || ask(address(relay), what, &headers))
    };

    let relay = rig.streaming(&config(&rig, &url, &poison));
    for what in [list, redrive] {
        let (code, body) = of(&relay, what, "x-walrelay-redrive: 1\r\n");
        assert_eq!(code, 403, "{body}");
        assert_has(&body, &["http.token_file"]);
    }
    relay.ends_well();

    let more = format!("token_file = \"token\"\n{poison}");
    let relay = rig.streaming(&config(&rig, &url, &more));
    let token = "Authorization: Bearer s3cret\r\n";
    assert_eq!(of(&relay, list, "").0, 401);
    let listed = |open: u64| {
        eventually_some(PATIENCE, || {
            let (code, body) = of(&relay, list, token);
            assert_eq!(code, 200, "{body}");
            assert_lacks(&body, &["secret-value", "secret-header"]);
            let json: Value = serde_json::from_str(&body).expect("JSON");
            (json["open"] == open && json["busy"] == false).then_some(json)
        })
    };
    let first = &listed(2)["dead_letters"][0];
    for (member, value) in [
        ("lsn", "0/10"),
        ("event_id", "event-1"),
        ("class", "rejected"),
        ("cause", "the broker said no"),
        ("key", "key-1"),
    ] {
        assert_eq!(first[member], value, "{first:#}");
    }
    // A page of another site cannot send the header.
    assert_eq!(of(&relay, redrive, token).0, 403);
    assert_eq!(listed(2)["redriven"], Value::Null);
    let with_header = format!("{token}x-walrelay-redrive: 1\r\n");
    assert_eq!(
        of(&relay, &redrive.replace("POST", "GET"), &with_header).0,
        405
    );
    eventually(PATIENCE, || of(&relay, redrive, &with_header).0 == 202);
    let left = listed(1);
    assert_eq!(left["redriven"], "0/10 1: 1 redriven", "{left:#}");
    assert_eq!(left["dead_letters"][0]["key"], "key-2", "{left:#}");
    // This run has written none.
    let words = "None since the start. 1 is open, those of former runs included.";
    dead_letters_say(address(&relay), "s3cret", words);
    relay.ends_well();
}
