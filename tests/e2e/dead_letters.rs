use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;

use walrelay_lsn::Lsn;
use walrelay_sink::{EventPosition, dlq_headers};
use walrelay_testkit::{Db, Delivered, Producer, eventually};

use crate::dlq_streams::SHAPE;
use crate::rig::{
    PATIENCE, Rig, SLOT, assert_has, assert_lacks, edit, ends, output_with, refused, stdout,
    strict_kafka, with_source,
};

/// Servers and a relay whose dead letters go to a topic that the history checker does not read.
struct DeadLetters {
    rig: Rig,
    topic: String,
}

impl DeadLetters {
    fn new(rig: Rig) -> Self {
        rig.workload().create_tables();
        rig.db()
            .batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
        let topic = format!("dead.{}letters", rig.prefix);
        Self { rig, topic }
    }

    fn config(&self, kafka: &str, action: &str, more: &str) -> PathBuf {
        let poison = format!(
            "{kafka}\n[poison]\nunroutable = \"{action}\"\noversize = \"{action}\"\n\
             rejected = \"{action}\"\nundecodable = \"{action}\"\ntopic = \"{}\"\n{more}",
            self.topic
        );
        self.rig.config_and(&poison)
    }

    fn db(&self) -> Db {
        self.rig.db()
    }

    /// Inserts a row; `number` counts within the key.
    fn insert(&self, kind: &str, key: &str, number: u32) -> String {
        let payload = format!("'{{\"number\": {number}}}'");
        self.insert_payload(kind, key, &payload)
    }

    fn insert_payload(&self, kind: &str, key: &str, payload: &str) -> String {
        let sql = format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), {kind}, '{key}', 'T', {payload}) \
             RETURNING id::text"
        );
        self.db().value(&sql)
    }

    /// A configuration with dead letters for events without a topic, parked keys, and the action
    /// `refused` for events that Kafka refuses.
    fn parking_config(&self, kafka: &str, refused: &str, more: &str) -> PathBuf {
        let poison = format!(
            "{kafka}\n[poison]\nunroutable = \"dead-letter\"\noversize = \"{refused}\"\n\
             rejected = \"{refused}\"\npark_key = true\ntopic = \"{}\"\n{more}",
            self.topic
        );
        self.rig.config_and(&poison)
    }

    /// Inserts a good event. Returns its id and a position at or after the end of its transaction.
    fn insert_good(&self, key: &str, number: u32) -> (String, Lsn) {
        let id = self.insert("'order'", key, number);
        (id, self.db().insert_lsn())
    }

    /// Ids of the records with this key in a topic, of at least `count` records.
    fn ids(&self, topic: &str, key: &str, count: usize) -> Vec<String> {
        let records = self.rig.records_in(topic, count).into_iter();
        records
            .filter(|record| record.key_text() == key)
            .filter_map(|record| record.id)
            .collect()
    }

    /// Asserts that a parked event whose transaction ends at `end` was neither confirmed nor given
    /// up.
    #[track_caller]
    fn assert_nothing_given_up(&self, log: &str, end: Lsn) {
        let named = format!("topic \"{}\"", self.topic);
        assert_has(log, &["a dead letter was not delivered", &named]);
        assert_lacks(log, &["skipped an event", "gave the topic up"]);
        let confirmed = self.rig.slot().confirmed();
        assert!(
            confirmed < end,
            "an event was confirmed that is in no topic: {confirmed} >= {end}"
        );
    }

    /// The records in the topic of dead letters, at least `count`.
    fn dead_letters(&self, count: usize) -> Vec<Delivered> {
        self.rig.records_in(&self.topic, count)
    }

    /// Asserts that all rows but these arrived in their own topics.
    fn assert_others_arrived(&self, diverted: &[&str]) {
        // The checker wants a topic and a number for each row, so remove those rows first.
        for id in diverted {
            self.db()
                .batch(&format!("DELETE FROM outbox WHERE id = '{id}'"));
        }
        self.rig.verdict().assert_clean_but_for_ragged();
    }
}

fn class(dead_letter: &Delivered) -> Option<&str> {
    dead_letter.header(dlq_headers::CLASS)
}

/// A payload larger than the client's `message.max.bytes`.
const LARGE: &str = "jsonb_build_object('number', 1, 'text', repeat('secret-value', 200000))";

/// Each kind of poison among good events of the same keys. All events are delivered, each to its
/// topic, and the slot advances.
#[test]
fn dead_letters_are_written_for_each_kind_of_poison() {
    let dead_letters = DeadLetters::new(Rig::new(15));
    let rig = &dead_letters.rig;
    let narrow = format!("{}narrow", rig.prefix);
    rig.kafka()
        .create_topic(&narrow, 1, &[("max.message.bytes", "20000")]);
    let relay = rig.streaming(&dead_letters.config("", "dead-letter", ""));

    dead_letters.insert("'order'", "k1", 1);
    let no_topic = dead_letters.insert_payload("NULL", "k1", "'\"secret-value\"'");
    let bad_name = dead_letters.insert_payload("'we ird'", "k2", "'\"secret-value\"'");
    // Records in flight at a refusal are sent again, dead letters too, so wait for them first.
    rig.caught_up();
    let large = dead_letters.insert_payload("'order'", "k1", LARGE);
    dead_letters.insert("'order'", "k1", 2);
    rig.caught_up();
    // In one transaction, so in one request: the broker refuses the request because of one record.
    dead_letters.db().batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'narrow', 'key', 'T', \
         jsonb_build_object('number', n, 'text', CASE WHEN n = 50 THEN \
         (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 2000)) ELSE 'x' END) \
         FROM generate_series(1, 100) n",
    );
    let refused: String = dead_letters.db().value(
        "SELECT id::text FROM outbox WHERE aggregatetype = 'narrow' AND length(payload::text) > 20000",
    );
    dead_letters.insert("'order'", "k1", 3);
    rig.caught_up();

    let diverted = [&*no_topic, &*bad_name, &*large, &*refused];
    dead_letters.assert_others_arrived(&diverted);
    let found = dead_letters.dead_letters(4);
    assert_eq!(found.len(), 4, "{found:?}");
    let of = |id: &str| {
        let found = found.iter().find(|found| found.id.as_deref() == Some(id));
        found.expect("the header id")
    };
    for (id, kind, topic, key, omitted) in [
        (&no_topic, "unroutable", None, "k1", false),
        (&bad_name, "unroutable", Some("we ird"), "k2", false),
        (&large, "oversize", Some("order"), "k1", true),
        (&refused, "oversize", Some("narrow"), "key", true),
    ] {
        let found = of(id);
        let header = |name| found.header(name).unwrap_or_default();
        assert_eq!(class(found), Some(kind), "{found:?}");
        assert_eq!(header(dlq_headers::SLOT), "walrelay");
        assert_eq!(header(dlq_headers::TABLE), "public.outbox");
        assert_eq!(header(dlq_headers::EVENT_ID), id);
        let bound_for = topic.map(|topic| format!("{}{topic}", rig.prefix));
        assert_eq!(found.header(dlq_headers::TOPIC), bound_for.as_deref());
        assert_eq!(found.key_text(), key);
        assert_eq!(found.payload.is_none(), omitted, "{found:?}");
        assert_eq!(found.header(dlq_headers::VALUE_BYTES).is_some(), omitted);
        assert!(!header(dlq_headers::CAUSE).is_empty());
        let place = format!("{} {}", header(dlq_headers::LSN), header(dlq_headers::ROW));
        place.parse::<EventPosition>().expect("an identity");
        let time = header(dlq_headers::COMMIT_TIME);
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
    let log = relay.ends_well();
    assert_has(&log, &["\"dead_letters\":4"]);
    // The value of a row.
    assert_lacks(&log, &["secret-value"]);
}

/// Every other row of a transaction is refused by the broker. Each is written once, and no good row
/// is sent again for it.
#[test]
fn dead_letters_are_written_once_for_each_refused_row_of_a_transaction() {
    const ROWS: usize = 80;
    let dead_letters = DeadLetters::new(Rig::new(18));
    let rig = &dead_letters.rig;
    let narrow = format!("{}narrow", rig.prefix);
    rig.kafka()
        .create_topic(&narrow, 1, &[("max.message.bytes", "20000")]);
    // Without a lower `batch.size` to try first, which would be tried after a delay. In a delay a
    // standby may have taken the slot, so the relay forgets what is acknowledged.
    let config = dead_letters.config("\"batch.size\" = 10000", "dead-letter", "");
    // The same after a reconnect that takes longer than that.
    let relay = rig.streaming(&with_source(config, "wal_sender_timeout = \"60s\""));
    dead_letters.db().batch(&format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'narrow', 'key', 'T', \
         jsonb_build_object('number', (n + 1) / 2, 'text', CASE WHEN n % 2 = 0 THEN \
         (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 2000)) ELSE 'x' END) \
         FROM generate_series(1, {ROWS}) n"
    ));
    rig.caught_up();
    eprintln!("{} rows refused: {} streams", ROWS / 2, relay.streams());
    let log = relay.ends_well();
    let found = dead_letters.dead_letters(ROWS / 2);
    let ids: HashSet<_> = found.iter().map(|found| found.id.as_deref()).collect();
    assert_eq!((ids.len(), found.len()), (ROWS / 2, ROWS / 2));
    assert_has(&log, &[&format!("\"dead_letters\":{}", ROWS / 2)]);
    let good = rig.records_in(&narrow, ROWS / 2);
    let numbers: Vec<_> = good.iter().map(Delivered::value_text).collect();
    let expected =
        (1..=ROWS / 2).map(|number| format!("{{\"text\": \"x\", \"number\": {number}}}"));
    assert!(
        numbers.into_iter().eq(expected),
        "in order, none twice: {good:?}"
    );
}

/// A routing column is dropped under the relay: dead letters are written from the remaining
/// columns.
#[test]
fn dead_letters_are_written_when_the_routing_column_is_gone() {
    let dead_letters = DeadLetters::new(Rig::new(18));
    let rig = &dead_letters.rig;
    let relay = rig.streaming(&dead_letters.config("", "dead-letter", ""));
    dead_letters.db().batch(
        "ALTER TABLE outbox RENAME aggregatetype TO kind; \
         INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k1', 'T', '{\"number\": 1}'); \
         ALTER TABLE outbox RENAME kind TO aggregatetype",
    );
    dead_letters.insert("'order'", "k1", 2);
    rig.caught_up();
    let found = dead_letters.dead_letters(1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(class(&found[0]), Some("unroutable"));
    let event = (found[0].key_text(), found[0].value_text());
    assert_eq!(event, ("k1", "{\"number\": 1}"));
    relay.ends_well();
}

/// With `[poison] value`, dead letters have the value that an existing consumer expects, and are redriven byte for byte
/// as their events. One whose template lacks the value stays open, and says why.
#[test]
fn dead_letters_have_their_own_shape_and_are_redriven_as_their_events() {
    let dead_letters = DeadLetters::new(Rig::new(18));
    let rig = &dead_letters.rig;
    let config = |shape: &str| {
        let more = format!("value = '{shape}'\n");
        dead_letters.config("", "dead-letter", &more)
    };
    let redrive = |config: &PathBuf| {
        let to = format!("--topic-override={}order", rig.prefix);
        output_with("dlq redrive --all --yes", config, &[&to])
    };
    let page = crate::docs::block("docs/operate/dead-letters.md", "dead-letter-shape");
    assert_has(&page, &[&format!("value = '{SHAPE}'")]);
    let shaped = config(SHAPE);
    let relay = rig.streaming(&shaped);
    let id = dead_letters.insert_payload("NULL", "k1", "'{\"number\": 1, \"text\": \"a  b\"}'");
    dead_letters.insert_payload("'order'", "k2", LARGE);
    rig.caught_up();
    let found = dead_letters.dead_letters(2);
    let row: String = dead_letters.db().value(&format!(
        "SELECT payload::text FROM outbox WHERE id = '{id}'"
    ));
    let event = found.iter().find(|it| it.id.as_deref() == Some(&*id));
    let event = event.expect("the header id");
    let value: serde_json::Value = serde_json::from_str(event.value_text()).expect("JSON");
    let names: BTreeSet<_> = value.as_object().expect("an object").keys().collect();
    let expected = ["attempts", "error", "failed_at", "original_event"];
    assert!(names.iter().copied().eq(&expected), "{names:?}");
    assert!(event.value_text().contains(&row), "{event:?}");
    assert_eq!(value["error"].as_str(), event.header(dlq_headers::CAUSE));
    assert_eq!(value["attempts"], 1);
    // A value that is too large is left out of the shape, too.
    let large = found.iter().find(|it| class(it) == Some("oversize"));
    let large = large.expect("an oversize one");
    assert!(
        large.value_text().contains("\"original_event\": null"),
        "{large:?}"
    );
    assert!(large.header(dlq_headers::VALUE_BYTES).is_some());
    relay.ends_well();

    // The headers say where the value is, whatever the template is by now.
    let without = config("{\"error\": {error}}");
    let output = redrive(&without);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_has(&said, &["was left out of the dead letter"]);
    let redriven = rig.records_in(&format!("{}order", rig.prefix), 1);
    let redriven: Vec<_> = redriven
        .iter()
        .map(|it| (it.key_text(), it.value_text()))
        .collect();
    assert_eq!(redriven, [("k1", &*row)]);

    let relay = rig.streaming(&without);
    dead_letters.insert_payload("NULL", "k3", "'{\"number\": 1}'");
    rig.caught_up();
    let output = redrive(&without);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_has(&said, &["the template of [poison] value had no {value}"]);
    let records = rig.records_in(&format!("{}order", rig.prefix), 1);
    assert_eq!(records.len(), 1, "{records:?}");
    // The shaped value is not shown as that of the event.
    let listed = stdout(&output_with(
        "dlq list --class unroutable --output json",
        &without,
        &[],
    ));
    let letter: serde_json::Value = serde_json::from_str(&listed).expect("one dead letter");
    let name = format!(
        "{} {}",
        letter["lsn"].as_str().expect("an LSN"),
        letter["row"]
    );
    let shown = output_with(&format!("dlq show {name}"), &without, &[]);
    assert_has(&stdout(&shown), &["value        not known"]);
    let shown = output_with(&format!("dlq show {name} --value"), &without, &[]);
    refused(&shown, 65, &["[dlq-value-unrestored]", "had no {value}"]);
    assert!(shown.stdout.is_empty());
    relay.ends_well();
}

/// Skipped events are counted and logged, and no dead letter is written.
#[test]
fn dead_letters_are_not_written_where_events_are_skipped() {
    let dead_letters = DeadLetters::new(Rig::new(15));
    let rig = &dead_letters.rig;
    let relay = rig.streaming(&dead_letters.config("", "skip", ""));
    dead_letters.insert("'order'", "k1", 1);
    let no_topic = dead_letters.insert("NULL", "k1", 2);
    let large = dead_letters.insert_payload("'order'", "k1", LARGE);
    dead_letters.insert("'order'", "k1", 3);
    rig.caught_up();
    dead_letters.assert_others_arrived(&[&no_topic, &large]);
    let log = relay.ends_well();
    assert_has(&log, &["\"skipped\":2"]);
    assert_eq!(log.matches("skipped an event").count(), 2, "{log}");
    // The relay has ended, so no further records will come.
    let found = dead_letters.dead_letters(0);
    assert!(found.is_empty(), "{found:?}");
}

/// With `park_key`, later events of a dead letter's key follow it into the topic, also after a
/// SIGKILL. Other keys, and the same key in other topics, continue.
#[test]
fn dead_letters_park_what_follows_of_their_key() {
    let dead_letters = DeadLetters::new(Rig::new(15));
    let rig = &dead_letters.rig;
    let config = dead_letters.config("", "dead-letter", "park_key = true\n");
    let relay = rig.streaming(&config);
    dead_letters.insert("'order'", "k1", 1);
    let large = dead_letters.insert_payload("'order'", "k1", LARGE);
    let second = dead_letters.insert("'order'", "k1", 2);
    dead_letters.insert("'order'", "k2", 1);
    dead_letters.insert("'payment'", "k1", 1);
    rig.caught_up();
    relay.kill();
    let third = dead_letters.insert("'order'", "k1", 3);
    dead_letters.insert("'order'", "k2", 2);
    let relay = rig.streaming(&config);
    rig.caught_up();
    dead_letters.assert_others_arrived(&[&large, &second, &third]);
    let found = dead_letters.dead_letters(3);
    let classes = found.iter().map(|it| (it.id.as_deref(), class(it)));
    let classes: Vec<_> = classes.collect();
    assert_eq!(
        classes,
        [
            (Some(&*large), Some("oversize")),
            (Some(&*second), Some("parked")),
            (Some(&*third), Some("parked")),
        ],
        "in the order of the commits"
    );
    relay.ends_well();
}

/// An event that no topic could have becomes a dead letter without its value, also if it is to be one for another
/// reason: a dead letter with the value could not be written either, and would stop the relay.
#[test]
fn dead_letters_of_events_that_are_also_too_large_have_no_value() {
    let dead_letters = DeadLetters::new(Rig::new(16));
    let rig = &dead_letters.rig;
    let relay = rig.streaming(&dead_letters.config("", "dead-letter", "park_key = true\n"));
    let first = dead_letters.insert("NULL", "k1", 1);
    let parked = dead_letters.insert_payload("'order'", "k1", LARGE);
    let unroutable = dead_letters.insert_payload("NULL", "k2", LARGE);
    dead_letters.insert("'order'", "k3", 1);
    rig.caught_up();
    let found = dead_letters.dead_letters(3);
    for (id, expected, has_value) in [
        (&first, "unroutable", true),
        (&parked, "oversize", false),
        (&unroutable, "oversize", false),
    ] {
        let of_event = |it: &&Delivered| it.id.as_ref() == Some(id);
        let found = found.iter().find(of_event).expect("its dead letter");
        assert_eq!(class(found), Some(expected), "{found:?}");
        assert_eq!(found.payload.is_some(), has_value, "{found:?}");
    }
    dead_letters.assert_others_arrived(&[&first, &parked, &unroutable]);
    relay.ends_well();
}

/// The relay that takes the slot over knows the key that the first one has just parked, also if the
/// dead letter made the topic.
#[test]
fn dead_letters_park_what_follows_when_another_relay_takes_over() {
    let dead_letters = DeadLetters::new(Rig::new(17));
    let rig = &dead_letters.rig;
    let config = dead_letters.parking_config("", "halt", "");
    let mut relay = rig.streaming(&config);
    let mut expected = Vec::new();
    for round in 1..=4 {
        let standby = rig.start(&config);
        standby.says("standing by");
        standby.says("dead letters of earlier runs are known");
        let key = format!("k{round}");
        let no_topic = dead_letters.insert("NULL", &key, 1);
        rig.caught_up();
        relay.kill();
        let follows = dead_letters.insert("'order'", &key, 2);
        rig.caught_up();
        expected.push((key, [no_topic, follows]));
        relay = standby;
    }
    let found = dead_letters.dead_letters(8);
    for (key, ids) in &expected {
        let of_key = found.iter().filter(|found| found.key_text() == key);
        let of_key = of_key.filter_map(|found| found.id.as_deref());
        assert!(
            of_key.eq(ids.iter().map(String::as_str)),
            "{key}: {found:?}"
        );
    }
    let passed = rig.records(0);
    assert!(passed.is_empty(), "they passed their key's: {passed:?}");
    relay.ends_well();
}

/// Another cluster has a slot of this name, writes into the same topic, and drops a dead letter of the same position.
#[test]
fn dead_letters_park_what_follows_whatever_another_cluster_resolves() {
    let dead_letters = DeadLetters::new(Rig::new(18));
    let rig = &dead_letters.rig;
    let config = dead_letters.parking_config("", "halt", "");
    let relay = rig.streaming(&config);
    let first = dead_letters.insert("NULL", "k1", 1);
    rig.caught_up();
    relay.ends_well();
    let found = dead_letters.dead_letters(1);
    let header = |name| found[0].header(name).expect("a header");
    let (lsn, row) = (header(dlq_headers::LSN), header(dlq_headers::ROW));
    let resolves = format!("{SLOT} {lsn} {row}");
    let resolution = [
        (dlq_headers::RESOLVES, &*resolves),
        (dlq_headers::RESOLUTION, dlq_headers::DROPPED),
        (dlq_headers::SYSTEM, "1"),
    ];
    let producer = Producer::new(&rig.bootstrap);
    producer.send(&dead_letters.topic, Some(b"k1"), None, &resolution);
    assert!(producer.delivers(PATIENCE));
    // It reads all of the topic before it sends an event.
    let relay = rig.streaming(&config);
    let follows = dead_letters.insert("'order'", "k1", 2);
    rig.caught_up();
    let passed = rig.records(0);
    assert!(passed.is_empty(), "they passed their key's: {passed:?}");
    let ids = dead_letters.ids(&dead_letters.topic, "k1", 3);
    assert_eq!(ids, [first, follows]);
    relay.ends_well();
}

/// A topic that does not appear: the relay waits for it, then its events become dead letters, one
/// after the other without further waits, while all other events were sent once.
#[test]
fn dead_letters_are_written_for_a_topic_that_does_not_appear() {
    let kafka = strict_kafka();
    let dead_letters = DeadLetters::new(Rig::with_kafka(15, kafka));
    let rig = &dead_letters.rig;
    kafka.create_topic(&format!("{}order", rig.prefix), 3, &[]);
    kafka.create_topic(&dead_letters.topic, 1, &[]);
    let config = dead_letters.config(
        "\"topic.metadata.propagation.max.ms\" = 500\n",
        "dead-letter",
        "retry_for = \"3s\"\n\n[delivery]\nbackoff_max = \"200ms\"\n",
    );
    let relay = rig.streaming(&config);
    let mut missing = Vec::new();
    for number in 1..=20 {
        dead_letters.insert("'order'", "k1", number);
        missing.push(dead_letters.insert("'missing'", "k1", number));
    }
    relay.says("does not exist: its records wait for it");
    rig.caught_up();
    assert_lacks(&relay.log(), &["trying again", "gave the topic up"]);
    let diverted: Vec<&str> = missing.iter().map(String::as_str).collect();
    dead_letters.assert_others_arrived(&diverted);
    let found = dead_letters.dead_letters(20);
    let ids = found.iter().map(|it| (it.id.as_deref(), class(it)));
    let expected = diverted.iter().map(|id| (Some(*id), Some("rejected")));
    assert!(ids.eq(expected), "each once, in order: {found:?}");
    relay.ends_well();
}

/// By default the relay stops after the same wait, and names the event.
#[test]
fn dead_letters_are_not_written_unless_asked_for() {
    let kafka = strict_kafka();
    let dead_letters = DeadLetters::new(Rig::with_kafka(15, kafka));
    let rig = &dead_letters.rig;
    let config = dead_letters.config(
        "\"topic.metadata.propagation.max.ms\" = 500\n",
        "halt",
        "retry_for = \"2s\"\n\n[delivery]\nbackoff_max = \"200ms\"\n",
    );
    let mut relay = rig.streaming(&config);
    dead_letters.insert("'missing'", "k1", 1);
    let after = rig.slot().wal_end();
    let log = ends(&mut relay, 78, "delivery");
    assert_has(&log, &["row 0 of the transaction"]);
    let confirmed = rig.slot().confirmed();
    assert!(
        confirmed < after,
        "confirmed past an event that went nowhere"
    );
    // The topic appears: nothing was lost. The client may learn of it late.
    kafka.create_topic(&format!("{}missing", rig.prefix), 1, &[]);
    edit(&config, "retry_for = \"2s\"", "retry_for = \"1h\"");
    rig.finish(rig.streaming(&config)).assert_clean();
}

/// A relay that dies with a dead letter in flight writes it again: the same event, the same
/// identity.
#[test]
fn dead_letters_keep_their_identity_through_a_crash() {
    let dead_letters = DeadLetters::new(Rig::new(18));
    let rig = &dead_letters.rig;
    let config = dead_letters.config("", "dead-letter", "");
    let relay = rig.streaming(&config);
    // Many in one transaction, so that the kill comes in between.
    dead_letters.db().batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), \
         CASE WHEN n % 3 = 0 THEN NULL ELSE 'order' END, 'k' || n % 7, 'T', \
         jsonb_build_object('number', n) FROM generate_series(1, 30000) n",
    );
    assert!(!dead_letters.dead_letters(1).is_empty());
    relay.kill();
    let relay = rig.streaming(&config);
    rig.caught_up();
    let found = dead_letters.dead_letters(10_000);
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for dead_letter in &found {
        let [lsn, row] = [dlq_headers::LSN, dlq_headers::ROW].map(|name| dead_letter.header(name));
        let place = format!("{lsn:?} {row:?}");
        let id = dead_letter.id.as_deref().expect("the header id");
        places.entry(place).or_default().push(id);
    }
    eprintln!("{} letters for {} events", found.len(), places.len());
    assert_eq!(places.len(), 10_000, "one identity for each event");
    for (place, ids) in &places {
        assert!(ids.iter().all(|id| id == &ids[0]), "{place}: {ids:?}");
    }
    let db = dead_letters.db();
    let nulls: i64 = db.value("SELECT count(*) FROM outbox WHERE aggregatetype IS NULL");
    assert_eq!(nulls, 10_000);
    db.batch("DELETE FROM outbox WHERE aggregatetype IS NULL");
    dead_letters.assert_others_arrived(&[]);
    relay.ends_well();
}

/// Good events are parked while the topic of dead letters accepts no record: they are neither
/// skipped nor confirmed, and are written once the topic accepts them.
#[test]
fn dead_letters_that_their_topic_refuses_stop_the_relay() {
    let dead_letters = DeadLetters::new(Rig::new(15));
    let rig = &dead_letters.rig;
    let limit = |bytes| {
        rig.kafka()
            .alter_topic(&dead_letters.topic, "max.message.bytes", bytes);
    };
    rig.kafka().create_topic(&dead_letters.topic, 1, &[]);
    let mut before = 0;
    for action in ["skip", "halt", "dead-letter"] {
        let config = dead_letters.parking_config("", action, "");
        let mut relay = rig.streaming(&config);
        let poison = dead_letters.insert("NULL", action, 1);
        rig.caught_up();
        limit("10");
        // A broker applies the limit after a moment.
        let mut parked = Vec::new();
        eventually(PATIENCE, || {
            for _ in 0..2 {
                let number = parked.len() as u32 + 2;
                parked.push(dead_letters.insert_good(action, number));
            }
            relay.log().contains("\"id\":\"dlq-write\"")
        });
        let log = ends(&mut relay, 65, "dlq-write");
        let written = dead_letters.ids(&dead_letters.topic, action, before + 1);
        let (_, end) = parked[written.len() - 1];
        dead_letters.assert_nothing_given_up(&log, end);

        limit("1000000");
        let relay = rig.streaming(&config);
        rig.caught_up();
        before += 1 + parked.len();
        let found = dead_letters.ids(&dead_letters.topic, action, before);
        let parked = parked.into_iter().map(|(id, _)| id);
        let expected: Vec<String> = [poison].into_iter().chain(parked).collect();
        assert_eq!(found, expected, "{action}");
        relay.ends_well();
    }
}

/// The same with the topic of dead letters deleted: the relay waits for it, then stops.
#[test]
fn a_missing_topic_of_dead_letters_is_waited_for() {
    let kafka = strict_kafka();
    let dead_letters = DeadLetters::new(Rig::with_kafka(15, kafka));
    let rig = &dead_letters.rig;
    let topic = format!("{}order", rig.prefix);
    kafka.create_topic(&topic, 1, &[]);
    for (round, action) in ["skip", "halt", "dead-letter"].into_iter().enumerate() {
        kafka.create_topic(&dead_letters.topic, 1, &[]);
        let config = dead_letters.parking_config(
            "\"topic.metadata.propagation.max.ms\" = 500\n",
            action,
            "retry_for = \"2s\"\n\n[delivery]\nbackoff_max = \"200ms\"\n",
        );
        let mut relay = rig.streaming(&config);
        dead_letters.insert("NULL", action, 1);
        rig.caught_up();
        kafka.delete_topics(&[&dead_letters.topic]);
        // Now the broker has deleted the topic.
        relay.says("dead letters: it cannot be read");
        let (first, end) = dead_letters.insert_good(action, 2);
        let (second, _) = dead_letters.insert_good(action, 3);
        let log = ends(&mut relay, 78, "dlq-write");
        dead_letters.assert_nothing_given_up(&log, end);

        // The dead letter is gone with its topic, so nothing is parked any more.
        kafka.create_topic(&dead_letters.topic, 1, &[]);
        edit(&config, "retry_for = \"2s\"", "retry_for = \"1h\"");
        let relay = rig.streaming(&config);
        rig.caught_up();
        let found = dead_letters.ids(&topic, action, 2 * (round + 1));
        assert_eq!(found, [first, second], "{action}");
        relay.ends_well();
        kafka.delete_topics(&[&dead_letters.topic]);
    }
}
