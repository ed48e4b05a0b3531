//! Events of the outbox are written to streams of Redis.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use walrelay_testkit::{Redis, RedisClient, RedisReply, StreamEntry, eventually};

use crate::endpoint::{LISTEN, address, config as config_with_endpoint, metric, status};
use crate::rig::{
    PATIENCE, Rig, assert_has, assert_lacks, done, ends, insert_of, output_with, stdout,
};
use crate::shown::Views;

/// Writes the usual configuration with this sink.
fn config(rig: &Rig, server: &Redis, more: &str) -> PathBuf {
    rig.config_and(&format!(
        "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\n{more}",
        server.port()
    ))
}

fn id(entry: &StreamEntry) -> String {
    entry.text("id").expect("an id").to_owned()
}

fn ids(entries: &[StreamEntry]) -> Vec<String> {
    entries.iter().map(id).collect()
}

fn body(entry: &StreamEntry) -> Value {
    serde_json::from_slice(&entry.fields["payload"]).expect("JSON")
}

fn number(entry: &StreamEntry) -> u64 {
    body(entry)["number"].as_u64().expect("a number")
}

#[test]
fn each_event_is_in_its_stream_once_and_the_poison_is_in_another() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::shared();
    let rig = Rig::without_broker(15).outbox();
    let db = rig.db();
    let stream = format!("{}events", rig.prefix);
    let dead = format!("{}dead", rig.prefix);
    let mut client = server.client();
    let more = format!(
        "stream = \"{stream}\"\nmax_message_size = \"2KiB\"\n\
         [poison]\noversize = \"dead-letter\"\ntopic = \"{dead}\"\n"
    );
    let config = config(&rig, server, &more);
    let relay = rig.streaming(&config);
    done(&output_with("bookmark create start", &config, &[]));
    // 50 events of 5 keys, of which one is too large.
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), CASE n WHEN 17 THEN 'large' ELSE 'order' END, \
         'k' || n % 5, 'T', json_build_object('number', n, \
         'text', CASE n WHEN 17 THEN repeat('x', 3000) ELSE '' END)::jsonb \
         FROM generate_series(0, 49) n",
    );
    rig.caught_up();

    let entries = client.entries(&stream);
    let expected = |kind: &str| -> BTreeSet<String> {
        let sql = "SELECT id::text FROM outbox WHERE aggregatetype = $1";
        db.column(sql, &[&kind]).into_iter().collect()
    };
    assert_eq!(entries.len(), 49, "no repeat");
    let arrived: BTreeSet<String> = ids(&entries).into_iter().collect();
    assert_eq!(arrived, expected("order"), "each event, and no other");
    let numbers: Vec<u64> = entries.iter().map(number).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    let first = &entries[0];
    assert_eq!(first.text("key"), Some("k0"));
    assert_eq!(first.text("header.id"), first.text("id"));
    let (lsn, row) = first.text("position").unwrap().split_once(' ').unwrap();
    let (high, low) = lsn.split_once('/').unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let lsn = (hex(high) << 32) + hex(low);
    assert_eq!(first.id, format!("{lsn}-{row}"));
    let [letter] = &*client.entries(&dead) else {
        panic!("not one dead letter");
    };
    assert_eq!(BTreeSet::from([id(letter)]), expected("large"));
    let header = |name: &str| letter.text(&format!("header.walrelay.dlq.{name}"));
    assert_eq!(header("class"), Some("oversize"));
    assert_eq!(header("topic"), Some(&*stream));
    relay.ends_well();

    // A replay writes the events to other streams under their ids.
    let replay = "replay --from start --topic-prefix again-";
    done(&output_with(replay, &config, &[]));
    assert_eq!(client.entries(&stream), entries);
    let again = client.entries(&format!("again-{stream}"));
    assert_eq!(ids(&again), ids(&entries));

    let list = stdout(&output_with("dlq list --output json", &config, &[]));
    assert_eq!(list.lines().count(), 1);
}

#[test]
fn a_key_that_is_no_stream_is_poison_after_retry_for() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::shared();
    let rig = Rig::without_broker(15).outbox();
    let key = format!("{}text", rig.prefix);
    server.client().done(&format!("SET {key} value"));
    let more = format!("stream = \"{key}\"\n[poison]\nretry_for = \"1s\"\n");
    let config = config(&rig, server, &more);
    let mut relay = rig.streaming(&config);
    insert_of(&rig.db(), "order", "secret-key", 1);
    let log = ends(&mut relay, 78, "delivery");
    assert_has(&log, &[&key, "is no stream", "WRONGTYPE"]);
    assert_lacks(&log, &["secret-"]);
}

#[test]
fn a_server_without_memory_and_one_that_goes_away_are_waited_for() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::in_turn();
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    let stream = format!("{}events", rig.prefix);
    let config = config(&rig, &server, &format!("stream = \"{stream}\"\n"));
    let relay = rig.streaming(&config);
    let insert = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            insert_of(&db, "order", "key", number);
        }
    };
    insert(0..20);
    rig.caught_up();
    server.client().done("CONFIG SET maxmemory 1mb");
    insert(20..40);
    relay.says("Redis accepts no writes at the moment");
    server.client().done("CONFIG SET maxmemory 0");
    rig.caught_up();
    server.kill();
    insert(40..60);
    relay.says("Redis cannot be reached");
    server.start_again();
    rig.caught_up();
    relay.ends_well();
    let entries = server.client().entries(&stream);
    assert!(entries.iter().map(number).eq(0..60));
}

/// A replica is promoted while its old master still takes writes, which are lost with it.
#[test]
fn lost_entries_are_noticed_and_a_replay_writes_them() {
    if !Redis::is_wanted() {
        return;
    }
    let (old, promoted) = (Redis::start(), Redis::start());
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    let stream = format!("{}events", rig.prefix);
    let config = rig.config_and(&format!(
        "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\", \"127.0.0.1:{}\"]\n\
         stream = \"{stream}\"\n",
        old.port(),
        promoted.port()
    ));
    let replica_of = format!("REPLICAOF 127.0.0.1 {}", old.port());
    promoted.client().done(&replica_of);
    let relay = rig.streaming(&config);
    done(&output_with("bookmark create start", &config, &[]));
    let insert = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            insert_of(&db, "order", "key", number);
        }
        rig.caught_up();
    };
    insert(0..10);
    let mut client = promoted.client();
    eventually(PATIENCE, || client.length(&stream) == 10);
    client.done("REPLICAOF NO ONE");
    insert(10..20);
    old.kill();
    insert(20..25);
    relay.says("the destination has lost events that it had acknowledged");
    assert_has(
        &relay.log(),
        &["10 or more entries are gone", "walrelay replay --from"],
    );
    let numbers = |client: &mut RedisClient| -> Vec<u64> {
        client.entries(&stream).iter().map(number).collect()
    };
    assert!(numbers(&mut client).into_iter().eq((0..10).chain(20..25)));
    relay.ends_well();
    done(&output_with("replay --yes --from start", &config, &[]));
    let expected = (0..10).chain(20..25).chain(10..25);
    assert!(numbers(&mut client).into_iter().eq(expected));
}

/// Streams vanish under a relay, whose connection stays.
#[test]
fn a_lost_stream_is_shown_with_the_command_that_writes_its_events_again() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::start();
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    let stream = |kind: &str| format!("{}{kind}", rig.prefix);
    let more = format!(
        "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\nstream = \"{}\"\n",
        server.port(),
        stream("{aggregatetype}")
    );
    let config = config_with_endpoint(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&config);
    done(&output_with("bookmark create start", &config, &[]));
    let mut client = server.client();
    let insert = |kind: &str, numbers: std::ops::Range<u32>| {
        for number in numbers {
            insert_of(&db, kind, "key", number);
        }
        rig.caught_up();
    };
    let numbers = |client: &mut RedisClient, kind: &str| -> Vec<u64> {
        client.entries(&stream(kind)).iter().map(number).collect()
    };
    let lost = || metric(address(&relay), "walrelay_destination_lost_events_total");
    assert_eq!(lost(), Some(0.0), "an alert needs the first value");
    let losses = || status(address(&relay))["sink"]["losses"].clone();
    for (at, (kind, command)) in [
        ("order", "FLUSHALL".to_owned()),
        ("cart", format!("DEL {}", stream("cart"))),
    ]
    .into_iter()
    .enumerate()
    {
        insert(kind, 0..10);
        // Other events do not belong to the range.
        let other = format!("other{at}");
        insert(&other, 0..1);
        client.run(&command);
        insert(kind, 10..15);
        assert!(
            numbers(&mut client, kind).into_iter().eq(10..15),
            "they are delivered"
        );
        assert_eq!(losses()[at]["stream"], *stream(kind));
        let remedy = losses()[at]["remedy"].clone();
        let (command, _) = remedy
            .as_str()
            .and_then(|it| it.split_once(" sends "))
            .expect("one");
        let command = command.strip_prefix("walrelay ").expect("a command");
        done(&output_with(command, &config, &["--yes"]));
        assert!(
            numbers(&mut client, kind)
                .into_iter()
                .eq((10..15).chain(0..10)),
            "{command}"
        );
        assert!(client.length(&stream(&other)) < 2, "it is not repeated");
        let words = [&*stream(kind), "10 or more entries are gone"];
        let views = Views::new(&config, &relay);
        views.show_problem(&words, "walrelay replay --from", "WalrelayDestinationLost");
    }
    assert!(lost() >= Some(20.0));
    assert_eq!(losses()[2], Value::Null);

    // A copy of the stream takes its place. The next look at it is not at once.
    insert("copied", 0..3);
    let (kept, of) = (stream("kept"), stream("copied"));
    client.run(&format!("COPY {of} {kept}"));
    insert("copied", 3..6);
    client.run(&format!("RENAME {kept} {of}"));
    eventually(PATIENCE, || {
        insert("copied", 6..7);
        losses()[2]["stream"] == *of
    });
    let loss = &losses()[2];
    assert_eq!(loss["events"], 3, "{loss}");
    relay.ends_well();
}

/// The configuration of docs/sinks/redis.md, with the test's database and server.
fn example(rig: &Rig, server: &Redis, user: &str) -> PathBuf {
    let page = include_str!("../../docs/sinks/redis.md");
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let password = rig.path("password");
    fs::write(&password, "secret-word\n").expect("a file");
    let port = server.port();
    let replaced = [
        ("postgres://relay@db/app", rig.postgres.url()),
        ("redis.internal:6379", format!("127.0.0.1:{port}")),
        ("tls = true", "tls = false".to_owned()),
        ("username = \"walrelay\"", format!("username = \"{user}\"")),
        (
            "/run/secrets/redis",
            password.to_str().expect("text").to_owned(),
        ),
    ];
    let mut text = example.to_owned();
    for (old, new) in replaced {
        assert!(text.contains(old), "the example has no {old}");
        text = text.replace(old, &new);
    }
    let config = rig.path("example.toml");
    fs::write(&config, text + "\n[log]\nformat = \"json\"\n").expect("a file");
    config
}

#[test]
fn the_example_of_the_page_writes_with_the_rights_of_the_page() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::shared();
    let rig = Rig::without_broker(18);
    let db = rig.db();
    db.batch(
        "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
         aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, \
         payload jsonb NOT NULL, metadata jsonb, created_at timestamptz NOT NULL)",
    );
    let mut client = server.client();
    let page = include_str!("../../docs/sinks/redis.md");
    let rule = page.lines().find(|line| line.starts_with("ACL SETUSER"));
    let rule = rule.expect("a rule").replace("PASSWORD", "secret-word");
    let user = format!("{}user", rig.prefix);
    client.done(&rule.replace("walrelay", &user));
    let config = example(&rig, server, &user);
    let relay = rig.streaming(&config);
    for (aggregate, event) in [("Order", "OrderPaid"), ("Cart", "CartEmptied")] {
        db.batch(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, metadata, \
             created_at) VALUES ('{aggregate}', '42', '{event}', '{{\"total\": 7}}', \
             '{{\"user\": \"u\"}}', '2026-01-02 03:04:05+00')"
        ));
    }
    rig.caught_up();
    relay.ends_well();
    let paid = client.entries("events:order");
    let [paid] = &*paid else {
        panic!("{paid:?}");
    };
    let id: Vec<String> = db.column(
        "SELECT id::text FROM outbox WHERE aggregate_type = 'Order'",
        &[],
    );
    assert_eq!(paid.text("id"), Some(&*id[0]));
    assert_eq!(paid.text("key"), Some("42"));
    assert_eq!(paid.text("header.event-type"), Some("OrderPaid"));
    let found = body(paid);
    let expected = json!({
        "event_id": id[0],
        "event_type": "OrderPaid",
        "aggregate_type": "Order",
        "aggregate_id": "42",
        "payload": {"total": 7},
        "metadata": {"user": "u"},
        "timestamp": found["timestamp"],
    });
    assert_eq!(found, expected);
    assert_eq!(client.entries("events:cart").len(), 1);
    let deleted = client.run(&format!("ACL DELUSER {user}"));
    assert_eq!(deleted, RedisReply::Int(1));
}

/// A running relay looks at the server's settings as `walrelay check` does, and says which of them
/// lose events.
#[test]
fn a_server_that_evicts_is_named_by_the_relay() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::start();
    let mut client = server.client();
    client.done("CONFIG SET maxmemory-policy allkeys-lru");
    let rig = Rig::without_broker(18).outbox();
    let config = config(&rig, &server, LISTEN);
    let relay = rig.streaming(&config);
    let at = address(&relay);
    let title = "Redis Streams may lose events that it has acknowledged";
    let problem = || {
        let problems = status(at)["problems"].as_array().cloned();
        let mut problems = problems.unwrap_or_default().into_iter();
        problems.find(|one| one["title"] == title)
    };
    eventually(PATIENCE, || problem().is_some());
    let problem = problem().expect("it stays");
    assert!(
        problem["reason"]
            .as_str()
            .expect("a reason")
            .contains("allkeys-lru")
    );
    assert!(
        problem["remedy"]
            .as_str()
            .expect("a remedy")
            .contains("noeviction")
    );
    let words = [
        "the destination may lose events",
        "allkeys-lru",
        "noeviction",
    ];
    assert_has(&relay.log(), &words);
    relay.kill();
}
