//! Several events in one message: `outbox.emit_all`.

use std::path::PathBuf;

use serde_json::{Value, json};
use walrelay_testkit::{Db, Delivered, History, emit_in_batches, eventually};

use crate::emitting;
use crate::rig::{PATIENCE, Rig, assert_has, assert_lacks, edit, ends, output_with, said, stdout};
use crate::verify_topic;

/// `[source.messages]`.
const MESSAGES: &str = "\n[source.messages]\nprefix = \"outbox\"\n";
const POSITION: &str = "walrelay-position";

impl Rig {
    /// A configuration for messages only, with a header for the position, after `init`.
    fn for_batches(&self, more: &str) -> PathBuf {
        let position = format!("[router]\nposition_header = \"{POSITION}\"\n");
        let config = self.config_and(&format!("{MESSAGES}\n{position}\n{more}"));
        edit(&config, "tables = [\"public.outbox\"]\n", "");
        stdout(&output_with("init", &config, &[]));
        config
    }

    /// The records, by topic, partition and offset.
    fn in_order(&self, distinct: usize) -> Vec<Delivered> {
        let mut records = self.records(distinct);
        records.sort_by_key(|record| (record.topic.clone(), record.partition, record.offset));
        records
    }
}

/// Writes one batch of events of a key, with these numbers; returns their ids.
fn emit_all(db: &Db, key: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    let ids = format!(
        "SELECT unnest(outbox.emit_all(jsonb_agg(jsonb_build_object('aggregate', 'order', 'key', '{key}', \
         'payload', jsonb_build_object('number', n)) ORDER BY n)))::text \
         FROM generate_series({}, {} - 1) n",
        numbers.start, numbers.end
    );
    db.column(&ids, &[])
}

fn numbers(records: &[Delivered]) -> Vec<u64> {
    let number = |record: &Delivered| {
        let value: Value = serde_json::from_str(record.value_text()).expect("JSON");
        value["number"].as_u64().expect("a number")
    };
    records.iter().map(number).collect()
}

/// The events of each transaction are in batches, single messages and rows. The check uses a table that the
/// relay does not know.
fn through_sigkill(major: u32) {
    let rig = Rig::new(major);
    let db = rig.db();
    let workload = rig.workload().table("public.events");
    workload.create_tables();
    emit_in_batches(&db, "public.events", "public.outbox");
    let config = rig.config_and(MESSAGES);
    let workload = workload.rows(10_000).rate(2_500.0).seed(u64::from(major));
    let (relay, verdict, rows) = emitting::through_sigkill(&rig, &config, &workload, 1_500);
    eprintln!(
        "Postgres {major}, {rows} rows, the rest messages and batches, SIGKILL x5: {verdict}"
    );
    verdict.assert_clean_but_for_ragged();
    let committed = verdict.committed as i64;
    assert!(committed >= 10_000);
    assert!(
        (committed / 8..committed / 2).contains(&rows),
        "{rows} of {committed} are rows"
    );
    relay.ends_well();
}

tests! {
    fn batches_lose_no_event_by_sigkill_on_postgres_15() { through_sigkill(15) }
    fn batches_lose_no_event_by_sigkill_on_postgres_18() { through_sigkill(18) }
}

/// `outbox.emit_all` by a role without other privileges, beside `outbox.emit`.
fn as_single_messages(major: u32) {
    let rig = Rig::new(major);
    let config = rig.for_batches("");
    let db = rig.db();
    db.batch("DROP FUNCTION outbox.emit_all");
    let said = stdout(&output_with("init", &config, &[]));
    assert_eq!(said, "created function outbox.emit_all\n", "an upgrade");
    assert_eq!(
        stdout(&output_with("init", &config, &[])),
        "everything is there already\n"
    );

    let relay = rig.streaming(&config);
    db.batch("CREATE ROLE service");
    db.batch("SET ROLE service");
    let given = "7a1b0c5e-0000-4000-8000-000000000001";
    let topic = format!("{}orders.v1", rig.prefix);
    db.batch("BEGIN");
    let before: String = db.value("SELECT outbox.emit('order', 'k', '{\"number\": 0}')::text");
    let ids: Vec<String> = db.column(
        &format!(
            "SELECT unnest(outbox.emit_all('[{{\"aggregate\": \"order\", \"key\": \"k\", \
             \"payload\": {{\"number\": 1, \"text\": \"ä😀\"}}}}, \
             {{\"topic\": \"{topic}\", \"key\": 42, \"id\": \"{given}\", \"type\": \"Placed\", \
             \"headers\": {{\"trace\": \"t\", \"n\": 1.50, \"none\": null}}}}, \
             {{\"aggregate\": \"order\", \"key\": \"k\", \"payload\": {{\"number\": 2}}}}]'))::text"
        ),
        &[],
    );
    let nothing: i64 = db.value("SELECT cardinality(outbox.emit_all('[]'))::int8");
    let after: String = db.value("SELECT outbox.emit('order', 'k', '{\"number\": 3}')::text");
    db.batch("COMMIT");
    assert_eq!((ids.len(), &*ids[1], nothing), (3, given, 0));
    // What is rolled back does not arrive.
    db.batch("BEGIN; SELECT outbox.emit_all('[{\"aggregate\": \"order\"}]'); ROLLBACK");
    for (refused, code) in [
        ("NULL", "22023"),
        ("'{}'", "22023"),
        ("'7'", "22023"),
        ("'[{\"aggregate\": \"a\"}, 7]'", "22023"),
        ("'[{\"aggregate\": \"a\"}, []]'", "22023"),
        ("'[{\"aggregate\": \"a\", \"kye\": \"k\"}]'", "22023"),
        ("'[{\"aggregate\": \"a\", \"key\": 1.5}]'", "22023"),
        ("'[{\"aggregate\": \"a\", \"key\": {}}]'", "22023"),
        ("'[{\"aggregate\": 7}]'", "22023"),
        ("'[{\"aggregate\": \"a\", \"id\": \"no-uuid\"}]'", "22P02"),
        ("'[{\"key\": \"k\"}]'", "22023"),
        ("'[{\"topic\": \"\"}]'", "22023"),
        ("'[{\"topic\": \"t\", \"aggregate\": \"a\"}]'", "22023"),
        ("'[{\"topic\": \"t\", \"headers\": [1]}]'", "22023"),
        (
            "'[{\"topic\": \"t\", \"headers\": {\"a\": {\"b\": 1}}}]'",
            "22023",
        ),
        ("'[{\"topic\": \"t\", \"headers\": {\"a\": []}}]'", "22023"),
        (
            "(SELECT jsonb_agg('{\"topic\": \"t\"}'::jsonb) FROM generate_series(1, 10001))",
            "22023",
        ),
    ] {
        let error = db.try_batch(&format!("SELECT outbox.emit_all({refused})"));
        let error = error.expect_err(refused);
        let found = error.code().map(|code| code.code().to_owned());
        assert_eq!(found.as_deref(), Some(code), "{refused}: {error:?}");
    }
    rig.caught_up();
    let records = rig.in_order(5);
    assert_eq!(records.len(), 5, "{records:?}");
    let (order, named) = records.split_at(4);
    assert_eq!(numbers(order), [0, 1, 2, 3]);
    let seen: Vec<&str> = order
        .iter()
        .filter_map(|record| record.id.as_deref())
        .collect();
    assert_eq!(seen, [&*before, &*ids[0], &*ids[2], &*after]);
    assert_has(order[1].value_text(), &["ä😀"]);
    let named = &named[0];
    assert_eq!((&*named.topic, named.key_text()), (&*topic, "42"));
    assert_eq!(named.payload, None);
    assert_eq!(named.header("trace"), Some("t"));
    assert_eq!(named.header("n"), Some("1.50"));
    // Numbered as rows are, over the whole transaction.
    let position = |record: &Delivered| record.header(POSITION).expect("a position").to_owned();
    let positions = [&order[0], &order[1], named, &order[2], &order[3]].map(position);
    let (commit, _) = positions[0].split_once('/').expect("a number");
    for (number, position) in positions.iter().enumerate() {
        assert_eq!(position, &format!("{commit}/{number:08X}"));
    }
    relay.ends_well();
}

tests! {
    fn batches_are_as_single_messages_on_postgres_15() { as_single_messages(15) }
    fn batches_are_as_single_messages_on_postgres_18() { as_single_messages(18) }
}

/// One large batch of one key, of which few events are in flight: the relay is killed again and again in its
/// middle, and the batch is delivered in order and whole.
#[test]
fn batches_that_are_cut_in_the_middle_are_sent_again_in_order() {
    const EVENTS: u32 = 10_000;
    let rig = Rig::new(18);
    rig.kafka()
        .create_topic(&format!("{}order", rig.prefix), 1, &[]);
    // So few that the batch takes many times as long as a count of the records.
    let config = rig.for_batches("[delivery]\nmax_in_flight_records = 10\n");
    let db = rig.db();
    emit_all(&db, "first", 0..10);
    emit_all(&db, "k", 0..EVENTS);
    emit_all(&db, "last", 0..10);
    let topic = format!("{}order", rig.prefix);
    let count = || History::count(&rig.bootstrap, &topic).unwrap_or(0);
    let (mut records, mut cuts) = (0, 0);
    for _ in 0..3 {
        let relay = rig.start(&config);
        let whole = i64::from(EVENTS) + 20;
        eventually(PATIENCE, || count() > records + 300 || count() >= whole);
        relay.kill();
        records = count();
        cuts += i64::from(records < i64::from(EVENTS));
    }
    assert!(cuts > 0, "killed too late: {records} records");
    let slot = rig.slot();
    assert!(slot.confirmed() < slot.wal_end());
    let relay = rig.streaming(&config);
    rig.caught_up();
    let records = rig.in_order(EVENTS as usize + 20);
    // First deliveries are in order, and each repetition starts earlier and leaves nothing out.
    let mut next = 0;
    let mut expected = 0;
    let of_key: Vec<Delivered> = records
        .iter()
        .filter(|record| record.key_text() == "k")
        .cloned()
        .collect();
    for number in numbers(&of_key) {
        assert!(number <= expected, "{number} after {expected}");
        expected = number + 1;
        next = next.max(expected);
    }
    assert_eq!((next, expected), (u64::from(EVENTS), u64::from(EVENTS)));
    assert!(
        of_key.len() > EVENTS as usize,
        "nothing was repeated: no cut"
    );
    let last = records.iter().filter(|record| record.key_text() == "last");
    assert!(last.count() >= 10);
    let report = verify_topic::report(&config, &topic, "--allow-repeats", 0);
    assert_eq!(report["events"], json!(EVENTS + 20), "{report}");
    assert_eq!(report["out_of_order"]["count"], json!(0), "{report}");
    relay.ends_well();
}

/// A malformed event stops the relay before it, or is a dead letter by itself: the events around it arrive.
#[test]
fn batches_with_a_malformed_event_meet_the_policy_at_it() {
    let rig = Rig::new(18);
    let dead_letters = format!("{}dead-letters", rig.prefix);
    for topic in [&dead_letters, &format!("{}order", rig.prefix)] {
        rig.kafka().create_topic(topic, 1, &[]);
    }
    let config = rig.for_batches("");
    let db = rig.db();
    let event = |number: u32| {
        format!(
            "{{\"id\": {number}, \"aggregate\": \"order\", \"key\": \"k\", \
             \"payload\": {{\"number\": {number}}}}}"
        )
    };
    let write = |content: &str| {
        db.batch(&format!(
            "SELECT pg_logical_emit_message(true, 'outbox', '{content}')"
        ));
    };
    write(&format!(
        "[{}, {{\"secret-value\": 1}}, {}, {{\"key\": \"k\"}}, {}]",
        event(1),
        event(2),
        event(3)
    ));
    // The rest of a content that is no array is one event.
    write(&format!("[{}, {}", event(4), event(5)));
    write("[]");
    write(&format!("[{}]", event(6)));
    let log = ends(&mut rig.start(&config), 65, "message");
    assert_has(&log, &["event 2 of the batch"]);
    assert_lacks(&log, &["secret-value"]);
    let before = rig.in_order(1);
    assert_eq!(
        numbers(&before),
        [1],
        "what came before is there, and no more"
    );

    let topic = format!("poison.topic={dead_letters}");
    let policy = |action: &str| {
        let set = |class: &str| format!("poison.{class}={action}");
        [set("undecodable"), set("unroutable")]
    };
    let classes = policy("dead-letter");
    let arguments = ["--set", &classes[0], "--set", &classes[1], "--set", &topic];
    let relay = rig.start_with(&config, &arguments);
    relay.streaming();
    rig.caught_up();
    let records = rig.in_order(6);
    let dead: Vec<&Delivered> = records
        .iter()
        .filter(|record| record.topic == dead_letters)
        .collect();
    let values: Vec<&str> = dead
        .iter()
        .map(|record| {
            record
                .payload
                .as_ref()
                .map_or("(null)", |_| record.value_text())
        })
        .collect();
    assert_eq!(values, ["{\"secret-value\": 1}", "(null)", ""]);
    let order: Vec<Delivered> = records
        .iter()
        .filter(|record| record.topic != dead_letters)
        .cloned()
        .collect();
    let mut seen = numbers(&order);
    // The first event may have been sent before the relay stopped, and again after.
    seen.dedup();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    // A dead letter has the position of its event, which later events do not repeat.
    let listed = output_with("dlq list", &config, &arguments);
    assert_has(&said(&listed), &["undecodable", "unroutable"]);
    assert_lacks(&said(&listed), &["secret-value"]);
    relay.ends_well();
    let report = verify_topic::report(
        &config,
        &format!("{}order", rig.prefix),
        "--allow-repeats",
        0,
    );
    assert_eq!(report["events"], json!(6), "{report}");
}

/// Commands that read the log find single events of a batch: `where` behind the slot, and `replay`.
#[test]
fn batches_are_single_events_for_commands() {
    let rig = Rig::new(18);
    let config = rig.for_batches("");
    let db = rig.db();
    let ids = emit_all(&db, "k", 0..10);
    let topic = format!("{}order", rig.prefix);
    let answer = |id: &str, expected: &str| {
        let line = format!("where {id} --topic {topic} --output json");
        let output = output_with(&line, &config, &[]);
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("no JSON: {}", said(&output)));
        assert_eq!(document["answer"], json!(expected), "{document:#}");
        document
    };
    answer(&ids[4], "behind-slot");
    // `check` passes what waits to a core.
    stdout(&output_with("check", &config, &[]));
    stdout(&output_with("bookmark create before", &config, &[]));
    let relay = rig.streaming(&config);
    rig.caught_up();
    let records = rig.in_order(10);
    assert_eq!(numbers(&records), (0..10).collect::<Vec<u64>>());
    let document = answer(&ids[4], "delivered");
    assert_eq!(document["record"]["offset"], json!(records[4].offset));
    let replay = format!("replay --from before --yes --where \"id = '{}'\"", ids[4]);
    stdout(&output_with(&replay, &config, &[]));
    let records = rig.records(10);
    let again = records
        .iter()
        .filter(|record| record.id.as_deref() == Some(&*ids[4]));
    assert_eq!((records.len(), again.count()), (11, 2));
    relay.ends_well();
}

/// `walrelay route --message` shows each event of a batch, and names the wrong ones.
#[test]
fn route_shows_the_events_of_a_batch() {
    let rig = Rig::without_broker(18);
    let config = rig.config_and(MESSAGES);
    let file = rig.path("batch.json");
    let route = |content: &str, output: &str| {
        std::fs::write(&file, content).expect("the file is written");
        let line = format!("route --message {} --output {output}", file.display());
        output_with(&line, &config, &[])
    };
    let batch = r#"[{"aggregate": "order", "key": "a", "payload": {"n": 1}, "headers": {"trace": "t"}},
        {"secret-value": 1}, {"topic": "orders.v1", "key": "b"}]"#;
    let output = route(batch, "json");
    assert_eq!(output.status.code(), Some(65), "{}", said(&output));
    assert_has(
        &said(&output),
        &[
            "event 2 of the message cannot be routed [undecodable]",
            "undecodable",
        ],
    );
    assert_lacks(&said(&output), &["secret-value"]);
    let lines: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let topic = format!("{}order", rig.prefix);
    assert_eq!(lines.len(), 3);
    assert_eq!(
        (&lines[0]["topic"], &lines[0]["key"]),
        (&json!(topic), &json!("a"))
    );
    assert_has(&lines[0].to_string(), &["trace"]);
    assert_eq!(lines[1]["class"], json!("undecodable"));
    assert_eq!(lines[2]["topic"], json!("orders.v1"));

    let single = stdout(&route(r#"{"topic": "orders.v1", "key": "b"}"#, "text"));
    assert_has(&single, &["topic:     orders.v1\n", "key:       b\n"]);
    let none = output_with(
        &format!("route --message {}", file.display()),
        &rig.config(),
        &[],
    );
    assert_eq!(none.status.code(), Some(64), "{}", said(&none));
    assert_has(
        &said(&none),
        &["messages are no events of this configuration"],
    );
}
