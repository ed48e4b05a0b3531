//! Events of the outbox are published to streams of NATS JetStream.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use walrelay_testkit::{Nats, NatsClient, NatsMessage};

use crate::check::Checked;
use crate::endpoint::{address, config as config_with_endpoint, metric, status};
use crate::rig::{
    Relay, Rig, assert_has, assert_lacks, done, ends, insert_of, output_with, refused, run_command,
    stdout,
};
use crate::shown::Views;

fn ids(messages: &[NatsMessage]) -> Vec<String> {
    let ids = messages
        .iter()
        .map(|message| message.headers["Nats-Msg-Id"].clone());
    ids.collect()
}

fn body(message: &NatsMessage) -> Value {
    serde_json::from_slice(&message.payload).expect("JSON")
}

fn number(message: &NatsMessage) -> u64 {
    body(message)["number"].as_u64().expect("a number")
}

#[test]
fn each_event_is_in_the_stream_once_and_the_poison_is_in_another() {
    publishes(false);
}

#[test]
fn each_event_is_once_in_an_exclusive_stream_that_forgets_ids_also_beside_a_replay() {
    publishes(true);
}

/// `exclusive`: with `exclusive_stream`, to a stream whose duplicate window is shorter than a restart.
fn publishes(exclusive: bool) {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::in_turn();
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    let name = rig
        .prefix
        .trim_end_matches(['-', '_', '.'])
        .replace('.', "_");
    let (stream, dead) = (format!("{name}_events"), format!("{name}_dead"));
    let mut client = server.client();
    let config_of = |mut members: Value| {
        if exclusive {
            members["duplicate_window"] = json!(100_000_000);
        }
        members
    };
    let members = config_of(json!({}));
    client.create_stream(&stream, &[&format!("{stream}.>")], &members);
    client.create_stream(&dead, &[&dead], &json!({}));
    // The type of some events is no token of a subject.
    let config = rig.config_and(&format!(
        "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\n\
         subject = \"{stream}.{{aggregatetype}}.{{type}}\"\n\
         {}\n[poison]\nunroutable = \"dead-letter\"\ntopic = \"{dead}\"\n",
        server.port(),
        if exclusive {
            format!("exclusive_stream = \"{stream}\"")
        } else {
            String::new()
        }
    ));
    let relay = rig.streaming(&config);
    done(&output_with("bookmark create start", &config, &[]));
    // Each of these transactions has 50 events of 5 keys, which go to two subjects in turn; every second
    // one has one that is refused.
    let insert = |transaction: u32| {
        let bad = if transaction % 2 == 1 { 17 } else { 50 };
        db.batch(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'order', 'k' || n % 5, \
             CASE n WHEN {bad} THEN 'secret.*' ELSE 'T' || n / 5 % 2 END, \
             json_build_object('number', {transaction} * 50 + n)::jsonb \
             FROM generate_series(0, 49) n"
        ));
    };
    insert(0);
    insert(1);
    rig.caught_up();

    let messages = client.messages(&stream, ">");
    let expected = |is_bad: bool| -> BTreeSet<String> {
        let sql = "SELECT id::text FROM outbox WHERE (type = 'secret.*') = $1";
        db.column(sql, &[&is_bad]).into_iter().collect()
    };
    assert_eq!(messages.len(), 99, "no repeat");
    let arrived: BTreeSet<String> = ids(&messages).into_iter().collect();
    assert_eq!(arrived, expected(false), "each event, and no other");
    let subjects: BTreeSet<&str> = messages.iter().map(|it| &*it.subject).collect();
    let of = |kind: &str| format!("{stream}.order.{kind}");
    assert_eq!(subjects, BTreeSet::from([&*of("T0"), &*of("T1")]));
    let letters = client.messages(&dead, ">");
    let dead_ids = ids(&letters).into_iter().map(|id| {
        assert!(id.starts_with("dead-letter/"), "{id}");
        id.rsplit('/').next().expect("an id").to_owned()
    });
    assert_eq!(dead_ids.collect::<BTreeSet<_>>(), expected(true));
    assert_eq!(letters[0].headers["walrelay.dlq.class"], "unroutable");
    assert_lacks(&relay.log(), &["secret"]);

    // A full stream and a server that goes away are waited for.
    let limits = config_of(json!({"discard": "new", "max_msgs": 1}));
    client.update_stream(&stream, &[&format!("{stream}.>")], &limits);
    insert(2);
    relay.says("waiting for NATS to accept an event");
    client.update_stream(&stream, &[&format!("{stream}.>")], &members);
    rig.caught_up();
    server.kill();
    insert(4);
    relay.says("NATS cannot be reached");
    server.start_again();
    rig.caught_up();
    let mut client = server.client();
    assert_eq!(client.messages(&stream, ">").len(), 99 + 100);

    // A replay writes to another stream, and follows no message.
    let (again, subjects) = (format!("{name}_again"), format!("again-{stream}.>"));
    client.create_stream(&again, &[&subjects], &json!({}));
    let replay = "replay --from start --topic-prefix again-";
    done(&output_with(replay, &config, &[]));
    assert_eq!(client.messages(&again, ">").len(), 99 + 100);
    client.delete_stream(&again);
    insert(6);
    rig.caught_up();
    relay.ends_well();
    assert_eq!(client.messages(&stream, ">").len(), 99 + 150);

    let list = stdout(&output_with("dlq list --output json", &config, &[]));
    assert_eq!(list.lines().count(), 1);
    // An earlier version has written this one.
    let earlier = "Nats-Msg-Id: dead-letter/walrelay/0/1 0/e-1\r\nwalrelay.dlq.class: rejected\r\n\
                   walrelay.dlq.slot: walrelay\r\nwalrelay.dlq.lsn: 0/1\r\n\
                   walrelay.dlq.row: 0\r\nwalrelay.dlq.event.id: e-1\r\n";
    client.publish(&dead, earlier, b"secret-value");
    let redrive = format!("dlq redrive --yes --class rejected --topic-override {stream}.a.b");
    let output = output_with(&redrive, &config, &[]);
    refused(
        &output,
        65,
        &["[dlq-inexact]", "insert event e-1", "dlq drop"],
    );
    assert_eq!(client.messages(&stream, ">").len(), 99 + 150);
    client.delete_stream(&stream);
    client.delete_stream(&dead);
}

/// The subject of stored events is another one than that of their repeats: a stream maps it, and the
/// configuration has changed. The repeats are the events all the same, also those of a replay.
#[test]
fn repeats_under_another_subject_count_as_delivered_and_are_stored_once() {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::in_turn();
    let mut client = server.client();
    for exclusive in [false, true] {
        let rig = Rig::without_broker(18).outbox();
        let name = rig
            .prefix
            .trim_end_matches(['-', '_', '.'])
            .replace('.', "_");
        // Longer than this test.
        let transform = json!({"src": format!("{name}.*"), "dest": "elsewhere.{{wildcard(1)}}"});
        let more = json!({
            "duplicate_window": 3_600_000_000_000_u64,
            "subject_transform": transform,
        });
        client.create_stream(&name, &[&format!("{name}.*")], &more);
        let config = |token: &str| {
            rig.config_and(&format!(
                "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\n\
                 subject = \"{name}.{token}\"\n{}",
                server.port(),
                if exclusive {
                    format!("exclusive_stream = \"{name}\"\n")
                } else {
                    String::new()
                }
            ))
        };
        done(&output_with("init", &config("first"), &[]));
        done(&output_with("bookmark create start", &config("first"), &[]));
        rig.db().batch(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'order', 'k' || n % 5, 'T', \
             json_build_object('number', n)::jsonb FROM generate_series(1, 200) n",
        );
        for token in ["first", "first", "second"] {
            let mut command = run_command(&config(token));
            command.env("WALRELAY_DIE_AT", "before-confirm");
            let mut relay = Relay::spawn(&mut command, &rig.path("killed.log"));
            relay.ended();
            assert_lacks(&relay.log(), &["rejected"]);
        }
        let relay = rig.streaming(&config("third"));
        rig.caught_up();
        relay.ends_well();
        done(&output_with(
            "replay --from start --yes",
            &config("third"),
            &[],
        ));
        let messages = client.messages(&name, ">");
        let mut numbers: Vec<u64> = messages.iter().map(number).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(1..=200), "each event, once");
        assert_eq!(messages[0].subject, "elsewhere.first");
        client.delete_stream(&name);
    }
}

#[test]
fn a_stream_that_was_created_again_is_shown_with_the_command_that_sends_its_events_again() {
    shows_a_loss(false);
}

#[test]
fn an_exclusive_stream_that_was_created_again_is_shown_in_the_same_way() {
    shows_a_loss(true);
}

/// A stream is deleted and created under a relay, whose connection stays. `exclusive`: with
/// `exclusive_stream`.
fn shows_a_loss(exclusive: bool) {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::shared();
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    let name = rig
        .prefix
        .trim_end_matches(['-', '_', '.'])
        .replace('.', "_");
    let stream = format!("{name}_events");
    let mut client = server.client();
    let create = |client: &mut NatsClient| client.create_stream(&stream, &[&stream], &json!({}));
    create(&mut client);
    let more = format!(
        "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\nsubject = \"{stream}\"\n{}\n",
        server.port(),
        if exclusive {
            format!("exclusive_stream = \"{stream}\"")
        } else {
            String::new()
        }
    );
    let config = config_with_endpoint(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&config);
    done(&output_with("bookmark create start", &config, &[]));
    let insert = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            insert_of(&db, "order", "key", number);
        }
        rig.caught_up();
    };
    let numbers = |client: &mut NatsClient| -> Vec<u64> {
        client.messages(&stream, ">").iter().map(number).collect()
    };
    let lost = || metric(address(&relay), "walrelay_destination_lost_events_total");
    insert(0..5);
    // The numbers of a stream that is purged go on.
    client.api(&format!("STREAM.PURGE.{stream}"), &json!({}));
    insert(5..10);
    assert_eq!(lost(), Some(0.0));
    client.delete_stream(&stream);
    create(&mut client);
    insert(10..15);
    assert!(
        numbers(&mut client).into_iter().eq(10..15),
        "they are delivered"
    );
    assert_eq!(lost(), Some(10.0));
    let losses = status(address(&relay))["sink"]["losses"].clone();
    assert_eq!(losses[0]["stream"], *stream);
    let (command, _) = losses[0]["remedy"]
        .as_str()
        .and_then(|remedy| remedy.split_once(" sends "))
        .expect("a command");
    let command = command.strip_prefix("walrelay ").expect("a command");
    done(&output_with(command, &config, &["--yes"]));
    assert!(
        numbers(&mut client).into_iter().eq((10..15).chain(0..10)),
        "{command}"
    );
    insert(15..17);
    assert_eq!(lost(), Some(10.0));
    let words = [&*stream, "10 or more entries are gone"];
    let views = Views::new(&config, &relay);
    views.show_problem(&words, "walrelay replay --from", "WalrelayDestinationLost");
    relay.ends_well();
    client.delete_stream(&stream);
}

/// The users of a server, one with the rights of docs/sinks/nats.md.
fn users(page: &str) -> String {
    let rights = page.lines().find(|line| line.starts_with("publish: ["));
    let rights = rights.expect("the rights");
    format!(
        "authorization {{ users: [ {{ user: all, password: all }}, {{ user: walrelay, \
         password: secret-word, permissions: {{ {rights} }} }} ] }}"
    )
}

#[test]
fn the_example_of_the_page_publishes_with_the_rights_of_the_page_and_no_others() {
    if !Nats::is_wanted() {
        return;
    }
    let page = include_str!("../../docs/sinks/nats.md");
    let server = Nats::start_with(&users(page));
    let rig = Rig::without_broker(15);
    let db = rig.db();
    db.batch(
        "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
         aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, \
         payload jsonb NOT NULL, metadata jsonb, created_at timestamptz NOT NULL DEFAULT now())",
    );
    let mut client = server.client_as("all", "all");
    client.create_stream("EVENTS", &["events.>"], &json!({}));
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let password = rig.path("password");
    fs::write(&password, "secret-word\n").expect("a file");
    let mut text = example.to_owned();
    for (old, new) in [
        ("postgres://relay@db/app", rig.postgres.url()),
        ("nats.internal:4222", format!("127.0.0.1:{}", server.port())),
        ("tls = true", "tls = false".to_owned()),
        (
            "/run/secrets/nats",
            password.to_str().expect("text").to_owned(),
        ),
    ] {
        assert!(text.contains(old), "the example has no {old}");
        text = text.replace(old, &new);
    }
    let config = rig.path("example.toml");
    let write = |text: &str| {
        let text = format!("{text}\n[log]\nformat = \"json\"\n");
        fs::write(&config, text).expect("a file");
    };
    write(&text);
    let insert = || {
        db.batch(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('Order', '42', 'OrderPaid', '{\"total\": 7}')",
        );
    };
    let relay = rig.streaming(&config);
    insert();
    rig.caught_up();
    relay.ends_well();
    let [paid] = &*client.messages("EVENTS", ">") else {
        panic!("not one message");
    };
    assert_eq!(paid.subject, "events.order.orderpaid");
    assert_eq!(paid.headers["walrelay.key"], "42");
    assert_eq!(paid.headers["event-type"], "OrderPaid");
    assert_eq!(paid.headers["Nats-Msg-Id"], body(paid)["event_id"]);
    assert_eq!(body(paid)["payload"], json!({"total": 7}));

    write(&text.replace("events.{", "secret-events.{"));
    let mut relay = rig.streaming(&config);
    insert();
    let log = ends(&mut relay, 78, "delivery");
    assert_has(&log, &["may not publish"]);
}

/// A dead letter that its stream, or the configuration, does not let in loses nothing: the relay ends
/// before its event, and writes it when it may.
#[test]
fn a_dead_letter_that_is_too_large_stops_the_relay_and_is_written_later() {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::in_turn();
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let name = rig.prefix.trim_end_matches('.');
    let (events, dead) = (format!("{name}.order"), format!("{name}.dead"));
    let mut client = server.client();
    let config = |size: &str| {
        rig.config_and(&format!(
            "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\n\
             subject = \"{name}.{{aggregatetype}}\"\nmax_message_size = \"{size}\"\n\
             [poison]\nunroutable = \"dead-letter\"\ntopic = \"{dead}\"\n",
            server.port()
        ))
    };
    let create = |client: &mut NatsClient, limit: i64| {
        let more = json!({"max_msg_size": limit});
        client.create_stream(name, &[&events, &dead], &more);
    };
    // More than the headers of a dead letter may have besides.
    for (size, limit) in [("1KiB", -1), ("1MiB", 50_000)] {
        create(&mut client, limit);
        let mut relay = rig.streaming(&config(size));
        let before = db.insert_lsn();
        db.batch(
            "INSERT INTO outbox VALUES (gen_random_uuid(), NULL, 'key', 'T', \
             jsonb_build_object('number', 1, 'text', repeat('secret-value', 6000)))",
        );
        let log = ends(&mut relay, 65, "dlq-write");
        assert_lacks(&log, &["secret-"]);
        assert!(rig.slot().confirmed() <= before, "its event is confirmed");
        assert_eq!(client.messages(name, ">"), []);

        client.update_stream(name, &[&events, &dead], &json!({"max_msg_size": -1}));
        let config = config("1MiB");
        let relay = rig.streaming(&config);
        rig.caught_up();
        relay.ends_well();
        let redrive = format!("dlq redrive --yes --all --topic-override {events}");
        done(&output_with(&redrive, &config, &[]));
        let [event] = &*client.messages(name, &events) else {
            panic!("not one event");
        };
        let text = body(event)["text"].as_str().expect("text").len();
        assert_eq!((number(event), text), (1, 72_000));
        client.delete_stream(name);
    }
}

/// With `discard: new` a limit by subject deletes what the stream has acknowledged, unless it is told to refuse.
#[test]
fn a_limit_by_subject_that_deletes_is_named_and_one_that_refuses_is_waited_for() {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::shared();
    let mut client = server.client();
    let rig = Rig::without_broker(18).outbox();
    let name = rig
        .prefix
        .trim_end_matches(['-', '_', '.'])
        .replace('.', "_");
    let (deletes, refuses) = (format!("{name}_deletes"), format!("{name}_refuses"));
    let limit = |most: u32, refuse: bool| {
        json!({
            "discard": "new", "max_msgs_per_subject": most, "discard_new_per_subject": refuse,
        })
    };
    let config = |stream: &str| {
        let more = format!(
            "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\n\
             subject = \"{stream}.{{aggregatetype}}.{{aggregateid}}\"\n",
            server.port()
        );
        config_with_endpoint(&rig, &rig.postgres.url(), &more)
    };
    let item = "nats/nats-discard";
    let insert = || {
        for number in 0..5 {
            insert_of(&rig.db(), "order", "key", number);
        }
    };
    client.create_stream(&deletes, &[&format!("{deletes}.>")], &limit(2, false));
    let relay = rig.streaming(&config(&deletes));
    insert();
    rig.caught_up();
    let checked = Checked::run(&config(&deletes), &[]);
    checked.warns(item, &["oldest messages", &deletes]);
    // NATS has confirmed all: only the warning can tell.
    assert_eq!(client.messages(&deletes, ">").len(), 2);
    relay.ends_well();

    client.create_stream(&refuses, &[&format!("{refuses}.>")], &limit(2, true));
    let relay = rig.streaming(&config(&refuses));
    insert();
    Checked::run(&config(&refuses), &[]).passes(item, &["no stream"]);
    relay.says("a stream is full and refuses events (10077)");
    let numbers = |client: &mut NatsClient| -> Vec<u64> {
        client.messages(&refuses, ">").iter().map(number).collect()
    };
    assert_eq!(numbers(&mut client), [0, 1], "the first ones stay");
    client.update_stream(&refuses, &[&format!("{refuses}.>")], &limit(5, true));
    rig.caught_up();
    assert_eq!(numbers(&mut client), [0, 1, 2, 3, 4]);
    relay.ends_well();
    client.delete_stream(&deletes);
    client.delete_stream(&refuses);
}
