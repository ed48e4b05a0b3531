//! Streams of Redis, NATS and RabbitMQ, with the faults that the test of a Kafka topic plants.

use std::path::Path;

use serde_json::{Value, json};
use walrelay_testkit::{
    AmqpMessage, Db, Nats, NatsMessage, Publication, QueueOptions, RabbitMq, Redis, RedisReply,
    StreamEntry, eventually,
};

use super::verify;
use crate::rig::{PATIENCE, Rig, insert_of, json_lines, output_with, refused};

/// The rows of a clean stream.
const ROWS: u32 = 10_000;

/// Inserts rows of 100 keys in several transactions, whose payload has the time. `kinds`: the number
/// of their types.
fn insert(db: &Db, rows: u32, kinds: u32) {
    for begin in (0..rows).step_by(500) {
        let end = rows.min(begin + 500) - 1;
        db.batch(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'order', 'k' || n % 100, 'T' || n / 100 % {kinds}, \
             json_build_object('number', n, \
             'at', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)::jsonb \
             FROM generate_series({begin}, {end}) n"
        ));
    }
}

/// Waits until the clock is behind a time in milliseconds since 1970, and returns that time as text.
fn clock_behind(db: &Db, millis: u64) -> String {
    eventually(PATIENCE, || {
        let now = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        db.value::<i64>(now).unsigned_abs() > millis + 1
    });
    db.value(&format!(
        "SELECT to_char(to_timestamp({}::numeric / 1000) AT TIME ZONE 'UTC', \
         'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
        millis + 1
    ))
}

fn redis_config(rig: &Rig, server: &Redis, stream: &str, more: &str) -> std::path::PathBuf {
    rig.config_and(&format!(
        "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\n\
         stream = \"{stream}\"\n{more}",
        server.port()
    ))
}

/// Runs `verify-topic` on the stream of a test with all rows, whose last entry or message is late.
#[track_caller]
fn count(config: &Path, topic: &str, options: &str, code: i32, expected: [u64; 5]) -> Value {
    let (report, counts) = verify(config, topic, options, code);
    assert_eq!(counts, expected, "{report}");
    report
}

/// Asserts that a report is of all rows.
#[track_caller]
fn is_whole(report: &Value) {
    for (name, value) in [
        ("records", json!(ROWS)),
        ("events", json!(ROWS)),
        ("keys", json!(100)),
        ("rows", json!(ROWS)),
        ("positions", json!(true)),
        ("begin_late", json!([])),
    ] {
        assert_eq!(report[name], value, "{name}");
    }
}

#[test]
fn verify_topic_finds_each_planted_fault_in_a_stream_of_redis() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::shared();
    let rig = Rig::without_broker(17).outbox();
    let (db, mut client) = (rig.db(), server.client());
    let stream = format!("{}orders", rig.prefix);
    let config = redis_config(&rig, server, &stream, "");
    let run = |options: &str| output_with(&format!("verify-topic {options}"), &config, &[]);
    refused(&run(&stream), 65, &["[verify-topic-missing]", &stream]);
    let relay = rig.streaming(&config);
    insert(&db, ROWS, 1);
    rig.caught_up();
    let table = "--against-table --where true";
    let report = count(&config, &stream, table, 0, [0; 5]);
    is_whole(&report);
    assert_eq!(report["latency_unknown"], json!(false));
    // Ids that are positions tell no times.
    refused(
        &run(&format!("{stream} --since 1h")),
        78,
        &["[redis-times]", "positions"],
    );
    let report = count(&config, &stream, "--commit-time value:at", 0, [0; 5]);
    assert_eq!(report["commit_to_record_ms"], Value::Null);
    assert_eq!(report["latency_unknown"], json!(true));
    let tail = |options: &str| {
        let line = format!("tail {stream} {options}");
        json_lines(&output_with(&line, &config, &[]))
    };
    let of_key = tail("--key k7");
    assert_eq!(of_key.len(), ROWS as usize / 100);
    assert!(of_key.iter().all(|record| record["key"] == json!("k7")));
    assert_eq!(tail("-n 3").len(), 3);

    let entries = client.entries(&stream);
    let of_key = |key: &str| -> Vec<&StreamEntry> {
        let entries = entries.iter();
        entries
            .filter(|entry| entry.text("key") == Some(key))
            .collect()
    };
    let (k0, k1, k2, k3) = (of_key("k0"), of_key("k1"), of_key("k2"), of_key("k3"));
    let (first, second) = entries.last().unwrap().id.split_once('-').unwrap();
    let mut next: u64 = second.parse().unwrap();
    let mut append = |like: &StreamEntry, other: &[(&str, &str)]| {
        next += 1;
        let id = format!("{first}-{next}");
        let mut words = vec!["XADD", &stream, &id];
        for name in ["id", "key", "payload", "position"] {
            let other = other.iter().find(|(replaced, _)| *replaced == name);
            let value = other.map_or_else(|| like.text(name), |(_, value)| Some(*value));
            words.extend([name, value.expect("a field")]);
        }
        let more = other.iter().filter(|(name, _)| name.contains('.'));
        words.extend(more.flat_map(|(name, value)| [*name, *value]));
        assert!(matches!(
            client.run_words(&words),
            RedisReply::BulkString(_)
        ));
    };
    append(k0[99], &[]);
    let report = count(&config, &stream, "", 1, [1, 0, 0, 0, 0]);
    let repeat = &report["repeated"]["first"][0];
    assert_eq!(repeat["id"], json!(k0[99].text("id")));
    assert_eq!(repeat["at"], json!(format!("{stream}[0]@{ROWS}")));
    // A consumer of the newest value has an older one now.
    append(k1[98], &[]);
    count(&config, &stream, "--allow-repeats", 1, [2, 0, 1, 0, 0]);
    // The first delivery of an event, behind newer ones of its key.
    append(
        k2[99],
        &[
            ("id", "late"),
            ("position", k2[3].text("position").unwrap()),
        ],
    );
    let report = count(&config, &stream, "", 1, [2, 1, 2, 0, 0]);
    assert_eq!(report["out_of_order"]["first"][0]["id"], json!("late"));
    // Sent again by intention: the position is of the time of that.
    append(
        k3[0],
        &[("position", "FFFF/0 0"), ("header.walrelay-resend", "r")],
    );
    let report = count(&config, &stream, "", 1, [2, 1, 3, 0, 0]);
    assert_eq!(report["sent_again"], json!(1));
    let lost = client.run_words(&["XDEL", &stream, &k3[5].id]);
    assert_eq!(lost, RedisReply::Int(1));
    let report = count(&config, &stream, table, 1, [2, 1, 3, 0, 1]);
    assert_eq!(
        report["lost"]["first"][0]["id"],
        json!(k3[5].text("id").unwrap())
    );
    assert_eq!(report["begin_late"], json!([format!("{stream}[0]")]));
    client.done(&format!("SET {stream}-text text"));
    refused(
        &run(&format!("{stream}-text")),
        78,
        &["[redis-stream]", &stream],
    );
    client.run(&format!("DEL {stream} {stream}-text"));
    relay.ends_well();
}

#[test]
fn a_stream_of_redis_whose_server_makes_the_ids_has_times() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::shared();
    let rig = Rig::without_broker(18).outbox();
    let (db, mut client) = (rig.db(), server.client());
    let stream = format!("{}orders", rig.prefix);
    let config = redis_config(&rig, server, &stream, "ids = \"server\"\n");
    let relay = rig.streaming(&config);
    insert(&db, 5, 1);
    rig.caught_up();
    let last = client.entries(&stream).pop().expect("an entry").id;
    let (last, _) = last.split_once('-').unwrap();
    let since = clock_behind(&db, last.parse().unwrap());
    insert(&db, 7, 1);
    rig.caught_up();
    let of_all = count(&config, &stream, "--commit-time value:at", 0, [0; 5]);
    assert_eq!(of_all["records"], json!(12));
    let largest = of_all["commit_to_record_ms"]["max"].as_f64();
    assert!(largest >= Some(0.0), "{of_all}");
    let later = count(&config, &stream, &format!("--since {since}"), 0, [0; 5]);
    assert_eq!(later["records"], json!(7));
    for (from, records) in [(&*since, 7), ("beginning", 12), ("end", 0)] {
        let line = format!("tail {stream} --from {from}");
        let read = json_lines(&output_with(&line, &config, &[]));
        assert_eq!(read.len(), records, "{from}");
    }
    // A time behind the last of several entries is no sign of a stream that was made anew.
    let last = client.entries(&stream).pop().expect("an entry").id;
    let (last, _) = last.split_once('-').unwrap();
    let since = clock_behind(&db, last.parse().unwrap());
    let none = output_with(&format!("tail {stream} --from {since}"), &config, &[]);
    assert_eq!(json_lines(&none).len(), 0);
    client.run(&format!("DEL {stream}"));
    relay.ends_well();
}

#[test]
fn verify_topic_finds_each_planted_fault_in_a_stream_of_nats() {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::in_turn();
    let rig = Rig::without_broker(18).outbox();
    let (db, mut client) = (rig.db(), server.client());
    let stream = rig
        .prefix
        .trim_end_matches(['-', '_', '.'])
        .replace('.', "_");
    // In a shorter window the test may repeat an id.
    let members = json!({"duplicate_window": 100_000_000});
    client.create_stream(&stream, &[&format!("{stream}.>")], &members);
    let config = rig.config_and(&format!(
        "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\n\
         subject = \"{stream}.{{aggregatetype}}.{{type}}\"\n",
        server.port()
    ));
    let run = |options: &str| output_with(&format!("verify-topic {options}"), &config, &[]);
    for none in ["NONE", "there.is.none"] {
        refused(&run(none), 65, &["[verify-topic-missing]", none]);
    }
    let relay = rig.streaming(&config);
    insert(&db, ROWS, 2);
    rig.caught_up();
    let table = "--against-table --where true --commit-time value:at";
    let report = count(&config, &stream, table, 0, [0; 5]);
    is_whole(&report);
    let latency = &report["commit_to_record_ms"];
    assert!(latency["max"].as_f64() > Some(0.0), "{latency}");
    // One of two subjects.
    let subject = format!("{stream}.order.T1");
    let report = count(&config, &subject, table, 0, [0; 5]);
    assert_eq!(report["records"], json!(ROWS / 2));
    assert_eq!(report["rows"], json!(ROWS / 2));
    let tail = |options: &str| {
        let line = format!("tail {stream} {options}");
        json_lines(&output_with(&line, &config, &[]))
    };
    assert_eq!(tail("--key k7").len(), ROWS as usize / 100);

    let messages = client.messages(&stream, ">");
    let of_key = |key: &str| -> Vec<&NatsMessage> {
        let messages = messages.iter();
        messages
            .filter(|message| message.headers["walrelay.key"] == key)
            .collect()
    };
    let (k0, k1, k2, k3) = (of_key("k0"), of_key("k1"), of_key("k2"), of_key("k3"));
    let mut append = |like: &NatsMessage, other: &[(&str, &str)]| {
        let mut headers = like.headers.clone();
        headers.retain(|name, _| {
            ["Nats-Msg-Id", "walrelay.key", "walrelay.position"].contains(&&**name)
        });
        let other = other.iter();
        headers.extend(other.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let mut lines = String::new();
        for (name, value) in &headers {
            lines.extend([name, ": ", value, "\r\n"]);
        }
        eventually(PATIENCE, || {
            let answer = client.publish(&like.subject, &lines, &like.payload);
            answer["seq"].is_u64() && answer.get("duplicate").is_none()
        });
    };
    append(k0[99], &[]);
    let report = count(&config, &stream, "", 1, [1, 0, 0, 0, 0]);
    let repeat = &report["repeated"]["first"][0];
    assert_eq!(repeat["id"], json!(k0[99].headers["Nats-Msg-Id"]));
    let first = format!("{stream}[0]@{}", k0[99].seq);
    assert_eq!(repeat["other"], json!(first));
    append(k1[98], &[]);
    count(
        &config,
        &stream,
        "--since 1h --allow-repeats",
        1,
        [2, 0, 1, 0, 0],
    );
    let position = &*k2[3].headers["walrelay.position"];
    let swapped = [("Nats-Msg-Id", "late"), ("walrelay.position", position)];
    append(k2[99], &swapped);
    let report = count(&config, &stream, "", 1, [2, 1, 2, 0, 0]);
    assert_eq!(report["out_of_order"]["first"][0]["id"], json!("late"));
    // A dead letter is no event.
    append(k3[99], &[("walrelay.dlq.class", "oversize")]);
    let report = count(&config, &stream, "", 1, [2, 1, 2, 0, 0]);
    assert_eq!(report["without_id"], json!(1));
    let call = format!("STREAM.MSG.DELETE.{stream}");
    for lost in [&k3[5], &messages.first().expect("a message")] {
        let deleted = client.api(&call, &json!({"seq": lost.seq}));
        assert_eq!(deleted["success"], true, "{deleted}");
    }
    let report = count(&config, &stream, table, 1, [2, 1, 2, 0, 2]);
    assert_eq!(report["begin_late"], json!([format!("{stream}[0]")]));
    let lost = report["lost"]["first"].to_string();
    assert!(lost.contains(&k3[5].headers["Nats-Msg-Id"]), "{lost}");

    // From a time on, which no message has, behind many that are deleted.
    let purge = json!({"seq": messages[9_000].seq});
    let purged = client.api(&format!("STREAM.PURGE.{stream}"), &purge);
    assert_eq!(purged["success"], true, "{purged}");
    let last = client.api(
        &format!("STREAM.MSG.GET.{stream}"),
        &json!({"last_by_subj": ">"}),
    );
    let text = last["message"]["time"].as_str().expect("a time");
    let sql = format!("SELECT floor(extract(epoch FROM '{text}'::timestamptz) * 1000)::bigint");
    let since = clock_behind(&db, db.value::<i64>(&sql).unsigned_abs());
    insert(&db, 7, 2);
    rig.caught_up();
    let later = count(&config, &stream, &format!("--since {since}"), 0, [0; 5]);
    assert_eq!(later["records"], json!(7));
    assert_eq!(tail(&format!("--from {since}")).len(), 7);
    assert_eq!(tail("--from end").len(), 0);
    client.delete_stream(&stream);
    relay.ends_well();
}

#[test]
fn verify_topic_finds_each_planted_fault_in_a_stream_of_rabbitmq() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let (server, management) = RabbitMq::start_managed();
    let rig = Rig::without_broker(18).outbox();
    let (db, mut client) = (rig.db(), server.client());
    client.declare_exchange("events", "topic");
    for (queue, queue_type, key) in [
        ("all", "stream", "#"),
        ("some", "stream", "order.T1"),
        ("classic", "classic", "order.#"),
    ] {
        let options = QueueOptions {
            queue_type,
            ..QueueOptions::default()
        };
        client.declare_queue(queue, options);
        client.bind(queue, "events", key);
    }
    let with = |more: &str| {
        rig.config_and(&format!(
            "[sink]\nkind = \"rabbitmq\"\n[sink.rabbitmq]\nhosts = [\"127.0.0.1:{}\"]\n\
             username = \"guest\"\npassword = \"guest\"\nexchange = \"events\"\n\
             routing_key = \"{{aggregatetype}}.{{type}}\"\n{more}",
            server.port()
        ))
    };
    let config = with(&format!(
        "management_url = \"http://127.0.0.1:{management}\"\n"
    ));
    let run = |options: &str| output_with(&format!("verify-topic {options}"), &config, &[]);
    refused(&run("none"), 65, &["[verify-topic-missing]", "none"]);
    // From before the slot: no message will be there.
    insert_of(&db, "order", "k3", 1_000_000);
    let relay = rig.streaming(&config);
    insert(&db, ROWS, 2);
    rig.caught_up();
    let table = "--against-table --where \"payload->>'number' <> '1000000'\"";
    let report = count(&config, "all", table, 0, [0; 5]);
    is_whole(&report);
    let report = count(&config, "some", table, 0, [0; 5]);
    assert_eq!(report["records"], json!(ROWS / 2));
    assert_eq!(report["rows"], json!(ROWS / 2));
    // A row is looked for in each stream that has it.
    let report = count(&config, "all some", table, 0, [0; 5]);
    assert_eq!(report["rows"], json!(ROWS));
    let report = count(&config, "all", "--commit-time value:at", 0, [0; 5]);
    assert_eq!(report["latency_unknown"], json!(true));
    // A queue keeps its messages.
    refused(
        &run("classic"),
        78,
        &["[rabbitmq-no-stream]", "type is stream"],
    );
    assert_eq!(client.messages("classic"), u64::from(ROWS));
    let tail = |options: &str| json_lines(&output_with(&format!("tail {options}"), &config, &[]));
    assert_eq!(tail("all --key k7").len(), ROWS as usize / 100);
    assert_eq!(tail("all -n 3").len(), 3);

    let messages = server.client().first_of_stream("all", ROWS as usize);
    let of_key = |key: &str| -> Vec<&AmqpMessage> {
        let messages = messages.iter();
        messages
            .filter(|message| message.header("walrelay.key") == Some(key))
            .collect()
    };
    let (k0, k1, k2, k3) = (of_key("k0"), of_key("k1"), of_key("k2"), of_key("k3"));
    client.select_confirms();
    let mut append = |like: &AmqpMessage, id: Option<&str>, other: &[(&str, &str)]| {
        let position = (
            "walrelay.position",
            like.header("walrelay.position").unwrap(),
        );
        let mut headers = vec![position];
        headers.retain(|(name, _)| other.iter().all(|(replaced, _)| replaced != name));
        headers.extend(other);
        client.publish([Publication {
            exchange: "",
            routing_key: "all",
            message_id: id.or(like.message_id.as_deref()).unwrap(),
            key: like.header("walrelay.key").unwrap(),
            headers: &headers,
            body: &like.body,
        }]);
    };
    append(k0[99], None, &[]);
    let report = count(&config, "all", "", 1, [1, 0, 0, 0, 0]);
    let repeat = &report["repeated"]["first"][0];
    assert_eq!(repeat["id"], json!(k0[99].message_id));
    assert_eq!(repeat["at"], json!(format!("all[0]@{ROWS}")));
    append(k1[98], None, &[]);
    count(&config, "all", "--allow-repeats", 1, [2, 0, 1, 0, 0]);
    let position = k2[3].header("walrelay.position").unwrap();
    append(k2[99], Some("late"), &[("walrelay.position", position)]);
    let report = count(&config, "all", "", 1, [2, 1, 2, 0, 0]);
    assert_eq!(report["out_of_order"]["first"][0]["id"], json!("late"));
    let sent_again = [("walrelay.position", "FFFF/0 0"), ("walrelay-resend", "r")];
    append(k3[0], None, &sent_again);
    let report = count(&config, "all", "", 1, [2, 1, 3, 0, 0]);
    assert_eq!(report["sent_again"], json!(1));
    let all = "--against-table --where true";
    let report = count(&config, "all", all, 1, [2, 1, 3, 0, 1]);
    let lost: String = db.value("SELECT id::text FROM outbox WHERE payload->>'number' = '1000000'");
    assert_eq!(report["lost"]["first"][0]["id"], json!(lost));

    // Chunks have times; a message has none. Times are seconds.
    let now = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let since = clock_behind(&db, db.value::<i64>(now).unsigned_abs() + 1_000);
    insert(&db, 7, 1);
    rig.caught_up();
    let later = count(&config, "all", &format!("--since {since}"), 0, [0; 5]);
    assert_eq!(later["records"], json!(7));
    for (from, records) in [(&*since, 7), ("end", 0), ("2100-01-01T00:00:00Z", 0)] {
        assert_eq!(tail(&format!("all --from {from}")).len(), records, "{from}");
    }
    // AMQP does not tell which rows are in a stream.
    let blind = with("");
    let output = output_with(&format!("verify-topic all {table}"), &blind, &[]);
    refused(&output, 78, &["[rabbitmq-bindings]", "set management_url"]);
    relay.ends_well();
}
