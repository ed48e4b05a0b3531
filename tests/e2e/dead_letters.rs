use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_sink::dlq_headers;
use walrelay_testkit::{Db, Delivered, History, Kafka, eventually, servers};

use crate::rig::{PATIENCE, Rig, ends};

/// A rig whose dead letters go to a topic that the history checker does not read.
struct DeadLetters {
    rig: Rig,
    topic: String,
}

impl DeadLetters {
    fn new(rig: Rig) -> Self {
        rig.workload().create_tables();
        Db::connect(&rig.postgres.url())
            .batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
        let topic = format!("dead.{}letters", rig.prefix);
        Self { rig, topic }
    }

    fn config(&self, kafka: &str, action: &str, more: &str) -> std::path::PathBuf {
        let poison = format!(
            "{kafka}\n[poison]\nunroutable = \"{action}\"\noversize = \"{action}\"\n\
             rejected = \"{action}\"\nundecodable = \"{action}\"\ntopic = \"{}\"\n{more}",
            self.topic
        );
        self.rig.config_with(&self.rig.postgres.url(), &poison)
    }

    fn db(&self) -> Db {
        Db::connect(&self.rig.postgres.url())
    }

    /// One row; its number counts within its key.
    fn insert(&self, kind: &str, key: &str, number: u32) -> String {
        let payload = format!("'{{\"number\": {number}}}'");
        self.insert_payload(kind, key, &payload)
    }

    fn insert_payload(&self, kind: &str, key: &str, payload: &str) -> String {
        let sql = format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), {kind}, '{key}', 'T', {payload}) \
             RETURNING id::text"
        );
        self.db().text(&sql).expect("an id")
    }

    /// With dead letters of what has no topic, keys that are parked, and another action for what Kafka
    /// refuses.
    fn parking_config(&self, kafka: &str, refused: &str, more: &str) -> std::path::PathBuf {
        let poison = format!(
            "{kafka}\n[poison]\nunroutable = \"dead-letter\"\noversize = \"{refused}\"\n\
             rejected = \"{refused}\"\npark_key = true\ntopic = \"{}\"\n{more}",
            self.topic
        );
        self.rig.config_with(&self.rig.postgres.url(), &poison)
    }

    /// A good event of a key, and where its transaction ends at the latest.
    fn insert_good(&self, key: &str, number: u32) -> (String, Lsn) {
        let id = self.insert("'order'", key, number);
        let end = self.db().text("SELECT pg_current_wal_insert_lsn()::text");
        (id, end.expect("a position").parse().expect("a position"))
    }

    /// The ids of this key in a topic, of at least `count` records.
    fn ids(&self, topic: &str, key: &str, count: usize, limit: Duration) -> Vec<String> {
        History::records(&self.rig.bootstrap, topic, count, limit)
            .into_iter()
            .filter(|record| record.key.as_deref() == Some(key.as_bytes()))
            .filter_map(|record| record.id)
            .collect()
    }

    /// A parked event that ends at `end` was neither confirmed nor given up.
    #[track_caller]
    fn assert_nothing_given_up(&self, log: &str, end: Lsn) {
        assert!(log.contains("a dead letter was not delivered"), "{log}");
        let named = format!("topic \"{}\"", self.topic);
        assert!(log.contains(&named), "the topic is not named: {log}");
        for words in ["skipped an event", "gave the topic up"] {
            assert!(!log.contains(words), "{words}: {log}");
        }
        let confirmed = self.rig.slot().read().expect("the slot").confirmed_flush;
        assert!(
            confirmed < end,
            "an event was confirmed that is in no topic: {confirmed} >= {end}"
        );
    }

    /// The dead letters, as they lie in the topic: at least `count`.
    fn dead_letters(&self, count: usize) -> Vec<Delivered> {
        History::records(&self.rig.bootstrap, &self.topic, count, PATIENCE)
    }

    /// What arrived where it was bound for, but for the rows of these ids.
    fn assert_others_arrived(&self, diverted: &[&str]) {
        // They have served: the checker wants a topic and a number of each row.
        for id in diverted {
            self.db()
                .batch(&format!("DELETE FROM outbox WHERE id = '{id}'"));
        }
        let history = self.rig.history_within(Duration::from_secs(20));
        history.check().assert_clean_but_for_ragged();
    }
}

fn headers(dead_letter: &Delivered) -> BTreeMap<&str, Option<&str>> {
    dead_letter
        .headers
        .iter()
        .map(|(name, value)| {
            let value = value.as_deref().map(std::str::from_utf8);
            (name.as_str(), value.map(|value| value.expect("text")))
        })
        .collect()
}

/// Larger than `message.max.bytes` of the client.
const LARGE: &str = "jsonb_build_object('number', 1, 'text', repeat('secret-value', 200000))";

/// Each kind of poison, among good events of the same keys. All is carried, each to where it belongs,
/// and the slot moves on.
#[test]
fn are_written_for_each_kind_of_poison() {
    let dead_letters = DeadLetters::new(Rig::new(15));
    let rig = &dead_letters.rig;
    let narrow = format!("{}narrow", rig.prefix);
    rig.kafka()
        .create_topic(&narrow, 1, &[("max.message.bytes", "20000")]);
    let relay = rig.streaming(&dead_letters.config("", "dead-letter", ""));

    dead_letters.insert("'order'", "k1", 1);
    let no_topic = dead_letters.insert_payload("NULL", "k1", "'\"secret-value\"'");
    let bad_name = dead_letters.insert_payload("'we ird'", "k2", "'\"secret-value\"'");
    // What is still on its way when a record is refused is sent again, dead letters too.
    rig.caught_up();
    let large = dead_letters.insert_payload("'order'", "k1", LARGE);
    dead_letters.insert("'order'", "k1", 2);
    rig.caught_up();
    // In one transaction, so in one request: the broker refuses the request, and only one is meant.
    dead_letters.db().batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'narrow', 'key', 'T', \
         jsonb_build_object('number', n, 'text', CASE WHEN n = 50 THEN \
         (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 2000)) ELSE 'x' END) \
         FROM generate_series(1, 100) n",
    );
    let refused = dead_letters
        .db()
        .text("SELECT id::text FROM outbox WHERE aggregatetype = 'narrow' AND length(payload::text) > 20000")
        .expect("an id");
    dead_letters.insert("'order'", "k1", 3);
    rig.caught_up();

    let diverted = [&*no_topic, &*bad_name, &*large, &*refused];
    dead_letters.assert_others_arrived(&diverted);
    let found = dead_letters.dead_letters(4);
    assert_eq!(found.len(), 4, "{found:?}");
    let by_id: BTreeMap<&str, &Delivered> = found
        .iter()
        .map(|dead_letter| {
            (
                dead_letter.id.as_deref().expect("the header id"),
                dead_letter,
            )
        })
        .collect();
    for (id, class, topic, key, omitted) in [
        (&no_topic, "unroutable", None, "k1", false),
        (&bad_name, "unroutable", Some("we ird"), "k2", false),
        (&large, "oversize", Some("order"), "k1", true),
        (&refused, "oversize", Some("narrow"), "key", true),
    ] {
        let found = by_id[id.as_str()];
        let headers = headers(found);
        assert_eq!(headers[dlq_headers::CLASS], Some(class), "{headers:?}");
        assert_eq!(headers[dlq_headers::SLOT], Some("walrelay"));
        assert_eq!(headers[dlq_headers::TABLE], Some("public.outbox"));
        assert_eq!(headers[dlq_headers::EVENT_ID], Some(id.as_str()));
        let intended = headers.get(dlq_headers::TOPIC).copied().flatten();
        let bound_for = topic.map(|topic| format!("{}{topic}", rig.prefix));
        assert_eq!(intended, bound_for.as_deref());
        assert_eq!(found.key.as_deref(), Some(key.as_bytes()));
        assert_eq!(found.payload.is_none(), omitted, "{headers:?}");
        assert_eq!(headers.contains_key(dlq_headers::VALUE_BYTES), omitted);
        assert!(!headers[dlq_headers::CAUSE].unwrap_or_default().is_empty());
        let place = format!(
            "{} {}",
            headers[dlq_headers::LSN].unwrap_or_default(),
            headers[dlq_headers::ROW].unwrap_or_default()
        );
        place
            .parse::<walrelay_sink::EventPosition>()
            .expect("a letter's identity");
        let time = headers[dlq_headers::COMMIT_TIME].unwrap_or_default();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
    let log = relay.ends_well();
    assert!(log.contains("\"dead_letters\":4"), "{log}");
    assert!(!log.contains("secret-value"), "a row's value was logged");
}

/// A column of the routing that is dropped under the relay: dead letters are written of what is left.
#[test]
fn are_written_when_the_routing_column_is_gone() {
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
    assert_eq!(headers(&found[0])[dlq_headers::CLASS], Some("unroutable"));
    assert_eq!(found[0].key.as_deref(), Some(b"k1".as_slice()));
    assert_eq!(
        found[0].payload.as_deref(),
        Some(b"{\"number\": 1}".as_slice())
    );
    relay.ends_well();
}

/// Skipped ones are counted and named, and leave nothing behind.
#[test]
fn are_not_written_where_events_are_skipped() {
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
    assert!(log.contains("\"skipped\":2"), "{log}");
    assert_eq!(log.matches("skipped an event").count(), 2, "{log}");
    let found = History::records(
        &rig.bootstrap,
        &dead_letters.topic,
        1,
        Duration::from_secs(1),
    );
    assert!(found.is_empty(), "{found:?}");
}

/// With `park_key`, what follows a dead letter's key follows it into the topic, also after a SIGKILL;
/// other keys, and the same key in other topics, go on.
#[test]
fn park_what_follows_of_their_key() {
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
    let classes: Vec<_> = found
        .iter()
        .map(|dead_letter| {
            (
                dead_letter.id.as_deref(),
                headers(dead_letter)[dlq_headers::CLASS],
            )
        })
        .collect();
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

/// A topic that does not appear: waited for, then its events become dead letters, one after the other
/// without waiting again, while everything else was sent once.
#[test]
fn are_written_for_a_topic_that_does_not_appear() {
    let kafka = Kafka::builder().auto_create(false).start();
    let dead_letters =
        DeadLetters::new(Rig::with(servers::postgres(15), kafka.bootstrap_servers()));
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
    relay.says("trying again");
    rig.caught_up();
    relay.says("gave the topic up");
    let diverted: Vec<&str> = missing.iter().map(String::as_str).collect();
    dead_letters.assert_others_arrived(&diverted);
    let found = dead_letters.dead_letters(20);
    let ids: Vec<_> = found
        .iter()
        .filter_map(|dead_letter| dead_letter.id.as_deref())
        .collect();
    assert_eq!(ids, diverted, "each once, in order");
    assert!(
        found
            .iter()
            .all(|dead_letter| headers(dead_letter)[dlq_headers::CLASS] == Some("rejected"))
    );
    relay.ends_well();
}

/// By default the relay stops after as long a wait, and says which event it is.
#[test]
fn are_not_written_unless_asked_for() {
    let kafka = Kafka::builder().auto_create(false).start();
    let dead_letters =
        DeadLetters::new(Rig::with(servers::postgres(15), kafka.bootstrap_servers()));
    let rig = &dead_letters.rig;
    let config = dead_letters.config(
        "\"topic.metadata.propagation.max.ms\" = 500\n",
        "halt",
        "retry_for = \"2s\"\n\n[delivery]\nbackoff_max = \"200ms\"\n",
    );
    let mut relay = rig.streaming(&config);
    dead_letters.insert("'missing'", "k1", 1);
    let after = rig.slot().wal_end();
    ends(&mut relay, 78, "delivery");
    assert!(
        relay.log().contains("row 0 of the transaction"),
        "{}",
        relay.log()
    );
    let confirmed = rig.slot().read().expect("the slot").confirmed_flush;
    assert!(
        confirmed < after,
        "confirmed past an event that went nowhere"
    );
    // It appears: nothing was lost.
    kafka.create_topic(&format!("{}missing", rig.prefix), 1, &[]);
    let relay = rig.streaming(&config);
    rig.caught_up();
    rig.verdict().assert_clean();
    drop(relay);
}

/// A relay that dies with the dead letter on its way writes it again: the same event, the same identity.
#[test]
fn keep_their_identity_through_a_crash() {
    let dead_letters = DeadLetters::new(Rig::new(18));
    let rig = &dead_letters.rig;
    let config = dead_letters.config("", "dead-letter", "");
    let relay = rig.streaming(&config);
    // Many in one transaction, so that the kill falls amid them.
    dead_letters.db().batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), \
         CASE WHEN n % 3 = 0 THEN NULL ELSE 'order' END, 'k' || n % 7, 'T', \
         jsonb_build_object('number', n) FROM generate_series(1, 30000) n",
    );
    eventually(PATIENCE, || {
        !History::records(
            &rig.bootstrap,
            &dead_letters.topic,
            1,
            Duration::from_secs(1),
        )
        .is_empty()
    });
    relay.kill();
    let relay = rig.streaming(&config);
    rig.caught_up();
    let found = dead_letters.dead_letters(10_000);
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for dead_letter in &found {
        let headers = headers(dead_letter);
        let place = format!(
            "{:?} {:?}",
            headers[dlq_headers::LSN],
            headers[dlq_headers::ROW]
        );
        let id = dead_letter.id.as_deref().expect("the header id");
        places.entry(place).or_default().push(id);
    }
    eprintln!("{} letters for {} events", found.len(), places.len());
    assert_eq!(places.len(), 10_000, "one identity for each event");
    for (place, ids) in &places {
        assert!(ids.iter().all(|id| id == &ids[0]), "{place}: {ids:?}");
    }
    let nulls: Vec<String> = dead_letters
        .db()
        .query(
            "SELECT id::text FROM outbox WHERE aggregatetype IS NULL",
            &[],
        )
        .iter()
        .map(|row| row.get(0))
        .collect();
    dead_letters
        .db()
        .batch("DELETE FROM outbox WHERE aggregatetype IS NULL");
    assert_eq!(nulls.len(), 10_000);
    dead_letters.assert_others_arrived(&[]);
    relay.ends_well();
}

/// Good events that are parked, and a topic that takes no dead letter any more: they are neither skipped
/// nor confirmed, and are written once the topic takes them.
#[test]
fn that_their_topic_refuses_stop_the_relay() {
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
        // A broker takes a moment to heed the limit.
        let mut parked = Vec::new();
        eventually(PATIENCE, || {
            for _ in 0..2 {
                let number = parked.len() as u32 + 2;
                parked.push(dead_letters.insert_good(action, number));
            }
            relay.log().contains("[dlq-write]")
        });
        let log = ends(&mut relay, 65, "dlq-write");
        let written = dead_letters.ids(
            &dead_letters.topic,
            action,
            before + 1,
            Duration::from_secs(2),
        );
        let (_, end) = parked[written.len() - 1];
        dead_letters.assert_nothing_given_up(&log, end);

        limit("1000000");
        let relay = rig.streaming(&config);
        rig.caught_up();
        before += 1 + parked.len();
        let found = dead_letters.ids(&dead_letters.topic, action, before, PATIENCE);
        let parked = parked.into_iter().map(|(id, _)| id);
        let expected: Vec<String> = [poison].into_iter().chain(parked).collect();
        assert_eq!(found, expected, "{action}");
        relay.ends_well();
    }
}

/// The same with the topic of dead letters deleted: it is waited for, then the relay stops.
#[test]
fn without_their_topic_are_waited_for() {
    let kafka = Kafka::builder().auto_create(false).start();
    let dead_letters =
        DeadLetters::new(Rig::with(servers::postgres(15), kafka.bootstrap_servers()));
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
        // The broker has deleted it.
        relay.says("dead letters: it cannot be read");
        let (first, end) = dead_letters.insert_good(action, 2);
        let (second, _) = dead_letters.insert_good(action, 3);
        relay.says("trying again");
        let log = ends(&mut relay, 78, "dlq-write");
        dead_letters.assert_nothing_given_up(&log, end);

        // The dead letter went with its topic, and so nothing is parked any more.
        kafka.create_topic(&dead_letters.topic, 1, &[]);
        let relay = rig.streaming(&config);
        rig.caught_up();
        let found = dead_letters.ids(&topic, action, 2 * (round + 1), PATIENCE);
        assert_eq!(found, [first, second], "{action}");
        relay.ends_well();
        kafka.delete_topics(&[&dead_letters.topic]);
    }
}
