//! Dead letters in streams of Redis and NATS park their keys, keep their rows, and are redriven.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use walrelay_testkit::{InTurn, Nats, NatsServer, Redis, RedisServer, eventually};

use crate::rig::{PATIENCE, Rig, assert_lacks, done, insert_of, output_with, stdout, with_source};

tests! {
    fn a_parked_key_flows_again_in_order_in_redis() { parks(Kind::Redis) }
    fn a_parked_key_flows_again_in_order_in_nats() { parks(Kind::Nats) }
    fn a_parked_key_flows_again_in_order_in_an_exclusive_stream() { parks(Kind::ExclusiveNats) }
    fn a_dead_letter_of_its_own_shape_is_redriven_as_its_event_in_redis() { redrives_shaped(Kind::Redis) }
    fn a_dead_letter_of_its_own_shape_is_redriven_as_its_event_in_nats() { redrives_shaped(Kind::Nats) }
    fn a_row_is_kept_beside_its_dead_letter_in_redis() { keeps_rows(Kind::Redis) }
    fn a_row_is_kept_beside_its_dead_letter_in_nats() { keeps_rows(Kind::Nats) }
}

/// The dead letters that an existing consumer expects.
pub(crate) const SHAPE: &str = "{\"original_event\": {value}, \"error\": {error}, \"failed_at\": {failed_at}, \
                                \"attempts\": {attempts}}";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Redis,
    /// Events and dead letters are in one stream.
    Nats,
    /// Nobody but the relay writes to the stream of events.
    ExclusiveNats,
}

enum Server {
    Redis(InTurn<RedisServer>),
    Nats(InTurn<NatsServer>),
}

/// A server, an outbox, and the address of its events and dead letters.
struct Fixture {
    server: Server,
    rig: Rig,
    /// The beginning of the addresses.
    name: String,
    config: PathBuf,
}

impl Fixture {
    /// Returns `None` if there is no such server. `more`: further lines of `[poison]`, and sections.
    fn new(kind: Kind, more: &str) -> Option<Self> {
        let is_wanted = match kind {
            Kind::Redis => Redis::is_wanted(),
            Kind::Nats | Kind::ExclusiveNats => Nats::is_wanted(),
        };
        if !is_wanted {
            return None;
        }
        let server = match kind {
            Kind::Redis => Server::Redis(Redis::in_turn()),
            Kind::Nats | Kind::ExclusiveNats => Server::Nats(Nats::in_turn()),
        };
        let rig = Rig::without_broker(18).outbox();
        let db = rig.db();
        db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
        let name = rig.prefix.trim_end_matches('.').to_owned();
        let (sink, port, address) = match &server {
            Server::Redis(redis) => ("redis", redis.port(), "stream"),
            Server::Nats(nats) => ("nats", nats.port(), "subject"),
        };
        if let Server::Nats(nats) = &server {
            let (events, dead) = (format!("{name}.order"), format!("{name}.dead"));
            let mut client = nats.client();
            if kind == Kind::ExclusiveNats {
                client.create_stream(&name, &[&events], &json!({}));
                client.create_stream(&format!("{name}_dead"), &[&dead], &json!({}));
            } else {
                client.create_stream(&name, &[&events, &dead], &json!({}));
            }
        }
        let exclusive = match kind {
            Kind::ExclusiveNats => format!("exclusive_stream = \"{name}\"\n"),
            Kind::Redis | Kind::Nats => String::new(),
        };
        let config = rig.config_and(&format!(
            "[sink]\nkind = \"{sink}\"\n[sink.{sink}]\nhosts = [\"127.0.0.1:{port}\"]\n\
             {address} = \"{name}.{{aggregatetype}}\"\n{exclusive}\
             [poison]\nunroutable = \"dead-letter\"\npark_key = true\ntopic = \"{name}.dead\"\n{more}"
        ));
        Some(Self {
            server,
            rig,
            name,
            config,
        })
    }

    fn insert(&self, key: &str, number: u32) {
        insert_of(&self.rig.db(), "order", key, number);
    }

    /// Inserts a row that has no address.
    fn spoil(&self, key: &str, payload: &str) {
        self.rig.db().batch(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             VALUES (gen_random_uuid(), NULL, '{key}', 'T', {payload})"
        ));
    }

    fn dlq(&self, line: &str) -> String {
        stdout(&output_with(&format!("dlq {line}"), &self.config, &[]))
    }

    fn open(&self) -> usize {
        self.dlq("list --output json").lines().count()
    }

    /// Returns the values of a key's events that were delivered, in order.
    fn payloads(&self, key: &str) -> Vec<Vec<u8>> {
        let events = format!("{}.order", self.name);
        match &self.server {
            Server::Redis(redis) => {
                let entries = redis.client().entries(&events).into_iter();
                let of_key = entries.filter(|entry| entry.text("key") == Some(key));
                of_key
                    .map(|mut it| it.fields.remove("payload").expect("a payload"))
                    .collect()
            }
            Server::Nats(nats) => {
                let messages = nats.client().messages(&self.name, &events).into_iter();
                let of_key = messages.filter(|it| it.headers["walrelay.key"] == key);
                of_key.map(|message| message.payload).collect()
            }
        }
    }

    /// Returns the numbers of a key's events that were delivered, in order.
    fn numbers(&self, key: &str) -> Vec<u64> {
        let payloads = self.payloads(key);
        let number = |payload: Vec<u8>| {
            let value: Value = serde_json::from_slice(&payload).expect("JSON");
            value["number"].as_u64().expect("a number")
        };
        payloads.into_iter().map(number).collect()
    }

    fn kill(&self) {
        match &self.server {
            Server::Redis(redis) => redis.kill(),
            Server::Nats(nats) => nats.kill(),
        }
    }

    fn start_again(&self) {
        match &self.server {
            Server::Redis(redis) => redis.start_again(),
            Server::Nats(nats) => nats.start_again(),
        }
    }
}

/// An event without an address becomes a dead letter, later ones of its key follow it, also through
/// SIGKILL. They are redriven, and the key flows again.
fn parks(kind: Kind) {
    let Some(fixture) = Fixture::new(kind, "") else {
        return;
    };
    let rig = &fixture.rig;
    let (insert, numbers) = (
        |key: &str, number| fixture.insert(key, number),
        |key: &str| fixture.numbers(key),
    );
    let relay = rig.streaming(&fixture.config);
    assert_eq!(fixture.open(), 0, "there is none of them");
    insert("k1", 1);
    fixture.spoil("k1", "'{\"number\": 2}'");
    for number in 3..8 {
        insert("k1", number);
        insert("k2", number);
    }
    rig.caught_up();
    assert_eq!(fixture.open(), 6, "the event, and five behind it");
    relay.kill();
    let relay = rig.streaming(&fixture.config);
    insert("k1", 8);
    insert("k2", 8);
    rig.caught_up();
    assert_eq!((fixture.open(), numbers("k1")), (7, vec![1]));
    assert_eq!(numbers("k2"), [3, 4, 5, 6, 7, 8]);

    let redrive = format!(
        "redrive --yes --all --topic-override {}.order",
        fixture.name
    );
    fixture.dlq(&format!("{redrive} --limit 3"));
    assert_eq!((fixture.open(), numbers("k1")), (4, vec![1, 2, 3, 4]));
    fixture.dlq(&redrive);
    assert_eq!((fixture.open(), numbers("k1")), (0, (1..=8).collect()));
    let mut number = 9;
    eventually(PATIENCE, || {
        // A row that is written before the relay knows of the end of the dead letters is parked.
        insert("k1", number);
        number += 1;
        rig.caught_up();
        let is_open = fixture.open() > 0;
        if is_open {
            fixture.dlq(&redrive);
        }
        !is_open
    });
    assert_eq!(numbers("k1"), (1..u64::from(number)).collect::<Vec<_>>());
    assert!(fixture.dlq("list --resolved --output json").lines().count() >= 7);

    // The resolution of a dead letter without a value differs from it in its headers alone.
    fixture.spoil("k3", "NULL");
    rig.caught_up();
    assert_eq!(fixture.open(), 1);
    fixture.dlq("drop --yes --all");
    assert_eq!(fixture.open(), 0);
    assert_lacks(&relay.log(), &["cannot be read"]);
    relay.ends_well();
}

/// A dead letter whose value is made by `[poison] value` is redriven byte for byte as its event.
fn redrives_shaped(kind: Kind) {
    let shape = format!("value = '{SHAPE}'\n");
    let Some(fixture) = Fixture::new(kind, &shape) else {
        return;
    };
    let relay = fixture.rig.streaming(&fixture.config);
    fixture.spoil("k1", "'{\"number\": 7, \"text\": \"a  \\\\ b\"}'");
    fixture.rig.caught_up();
    assert_eq!(fixture.open(), 1);
    fixture.dlq(&format!(
        "redrive --yes --all --topic-override {}.order",
        fixture.name
    ));
    assert_eq!(fixture.open(), 0);
    let row: String = fixture.rig.db().value("SELECT payload::text FROM outbox");
    assert_eq!(fixture.payloads("k1"), [row.into_bytes()]);
    relay.ends_well();
}

/// A row of a dead letter is never marked, and so not deleted by its mark.
fn keeps_rows(kind: Kind) {
    const MARK: &str = "snapshot = \"unsent\"\nsnapshot_where = \"sent_at IS NULL\"\n\
                        snapshot_order = [\"created_at\"]\nmark_sent = \"sent_at = now()\"";
    let Some(mut fixture) = Fixture::new(kind, "[prune]\n") else {
        return;
    };
    fixture.config = with_source(fixture.config, MARK);
    let (rig, config): (_, &Path) = (&fixture.rig, &fixture.config);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox ADD sent_at timestamptz, \
         ADD created_at timestamptz DEFAULT now() - interval '2 days'",
    );
    let rows = || -> (i64, i64) {
        let count = |sql: &str| db.value(&format!("SELECT count(*) FROM outbox {sql}"));
        (count(""), count("WHERE sent_at IS NULL"))
    };
    let prune = || output_with("prune", config, &["--keep=24h", "--yes"]);
    let relay = rig.streaming(config);
    for number in 1..=5 {
        fixture.insert("good", number);
    }
    fixture.spoil("parked", "'{\"number\": 1}'");
    for number in 2..=4 {
        fixture.insert("parked", number);
    }
    rig.caught_up();
    eventually(PATIENCE, || rows() == (9, 4));
    relay.kill();
    let relay = rig.streaming(config);
    fixture.insert("good", 6);
    eventually(PATIENCE, || rows() == (10, 4));
    // Marks need no dead letter to be read.
    fixture.kill();
    done(&prune());
    fixture.start_again();
    assert_eq!(rows(), (4, 4));
    fixture.dlq(&format!(
        "redrive --yes --all --limit 2 --topic-override {}.order",
        fixture.name
    ));
    assert_eq!(fixture.numbers("parked"), [1, 2]);
    fixture.dlq("drop --yes --all");
    // Rows of dead letters are never marked, whatever became of these.
    done(&prune());
    assert_eq!(rows(), (4, 4));
    relay.ends_well();
}
