//! `walrelay where`: each of its answers, and that only evidence makes one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use walrelay_testkit::{
    Db, HttpReceiver, Nats, QueueOptions, RabbitMq, Reaction, Redis, eventually,
};

use crate::docs::block;
use crate::endpoint::{LISTEN, address, at, metric};
use crate::old_rows;
use crate::rig::{PATIENCE, Rig, assert_has, edit, insert_of, output_with, said};

/// An id that no event has.
const NONE: &str = "00000000-0000-4000-8000-000000000000";

/// Runs the command, and returns its document. The exit code must fit the answer.
#[track_caller]
fn document(config: &Path, id: &str, options: &[&str]) -> Value {
    let all = [&["--output", "json"], options].concat();
    let output = output_with(&format!("where {id}"), config, &all);
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON: {}", said(&output)));
    let expected = i32::from(document["answer"] == json!("no-evidence"));
    assert_eq!(output.status.code(), Some(expected), "{document}");
    document
}

/// Asserts the answer, and returns the document.
#[track_caller]
fn answer(config: &Path, id: &str, options: &[&str], expected: &str) -> Value {
    let document = document(config, id, options);
    assert_eq!(document["answer"], json!(expected), "{document:#}");
    document
}

/// The text of a place in a document.
fn text(document: &Value, place: &str) -> String {
    let places = document["places"].as_array().expect("places");
    let place = places.iter().find(|one| one["place"] == json!(place));
    let text = place.and_then(|place| place["text"].as_str());
    text.unwrap_or_default().to_owned()
}

/// Inserts an event, and returns its id.
fn insert(db: &Db, key: &str, number: u32) -> String {
    insert_of(db, "order", key, number);
    db.value(&format!(
        "SELECT id::text FROM outbox WHERE payload->>'number' = '{number}'"
    ))
}

#[test]
fn an_event_is_behind_the_slot_then_delivered_and_stays_so_without_its_row() {
    let rig = Rig::with_outbox(17);
    let db = rig.db();
    let config = rig.config();
    let before = insert(&db, "before", 1);
    // Without a slot nothing is known of the log.
    let none = answer(&config, &before, &[], "no-evidence");
    assert_has(&text(&none, "log"), &["there is no slot walrelay"]);
    rig.create_slot();
    let waiting = insert(&db, "key", 2);
    let behind = answer(&config, &waiting, &[], "behind-slot");
    assert!(behind["behind_slot"]["behind_bytes"].as_u64() > Some(0));
    assert_eq!(behind["record"], Value::Null);

    let relay = rig.streaming(&config);
    rig.caught_up();
    let records = rig.records(1);
    let delivered = answer(&config, &waiting, &[], "delivered");
    let command = block("docs/how-to/where.md", "where");
    let (command, _) = command.rsplit_once(' ').expect("an id");
    let command = command.strip_prefix("walrelay ").expect("walrelay");
    let shown = output_with(&format!("{command} {waiting}"), &config, &[]);
    assert_has(
        &said(&shown),
        &["delivered\n", "the row is there", "Kafka "],
    );
    let record = &delivered["record"];
    assert_eq!(record["topic"], json!(records[0].topic));
    assert_eq!(record["partition"], json!(records[0].partition));
    assert_eq!(record["offset"], json!(records[0].offset));
    assert!(record["written_ms"].as_i64() > Some(0), "{record}");
    // The slot is beyond this row, whose event it never had: that is no evidence.
    let never = answer(&config, &before, &[], "no-evidence");
    assert_eq!(never["rows"][0]["table"], json!("public.outbox"));
    assert_has(&text(&never, "log"), &["not among the events behind"]);
    let shown = output_with(&format!("where {before}"), &config, &[]);
    assert_has(
        &said(&shown),
        &["no-evidence", "no evidence that the event was sent"],
    );

    db.batch(&format!("DELETE FROM outbox WHERE id = '{waiting}'"));
    let topic = ["--topic", &records[0].topic];
    let gone = answer(&config, &waiting, &topic, "delivered");
    assert_has(&text(&gone, "public.outbox"), &["not in the table"]);
    let none = answer(&config, NONE, &topic, "no-evidence");
    assert_has(&text(&none, "Kafka"), &["not among 1 records"]);
    let none = answer(&config, NONE, &[], "no-evidence");
    assert_has(&text(&none, "Kafka"), &["--topic"]);
    let wrong = output_with("where no-uuid", &config, &[]);
    assert_eq!(wrong.status.code(), Some(1));
    assert_has(&said(&wrong), &["not known: ", "uuid"]);
    relay.ends_well();
}

#[test]
fn a_table_without_an_index_of_the_id_is_not_read() {
    let rig = Rig::with_outbox(17);
    let db = rig.db();
    db.batch("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey");
    let config = rig.config();
    rig.create_slot();
    let id = insert(&db, "key", 1);
    let behind = answer(&config, &id, &[], "behind-slot");
    assert_has(
        &text(&behind, "public.outbox"),
        &["no index of it begins with id"],
    );
}

#[test]
fn a_refused_event_waits_and_then_has_no_evidence_where_the_receiver_keeps_none() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let is_open = Arc::new(AtomicBool::new(false));
    let server = {
        let is_open = Arc::clone(&is_open);
        HttpReceiver::start(false, None, move |_, _| {
            if is_open.load(Ordering::SeqCst) {
                Reaction::Store(200)
            } else {
                Reaction::Answer(422, Vec::new())
            }
        })
    };
    let config = rig.config_and(&format!(
        "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"http://{}/events\"\n\
         dead_letter_url = \"http://{}/dead\"\n[poison]\nrejected = \"dead-letter\"\nretry_for = \"1h\"\n{LISTEN}",
        server.address(),
        server.address()
    ));
    let relay = rig.streaming(&config);
    let address = address(&relay);
    let id = insert(&db, "key", 1);
    eventually(PATIENCE, || {
        metric(address, "walrelay_retrying_keys") == Some(1.0)
    });
    let at = at(address);
    let waits = answer(&config, &id, &[&at], "waits-for-sink");
    assert_has(&text(&waits, "relay"), &["refuses the event", "422"]);
    assert!(waits["refused"]["why"].as_str().is_some(), "{waits:#}");
    assert_has(&text(&waits, "HTTP"), &["keeps no records"]);
    // Without the endpoint only the log is known.
    answer(&config, &id, &[], "behind-slot");

    is_open.store(true, Ordering::SeqCst);
    rig.caught_up();
    let none = answer(&config, &id, &[&at], "no-evidence");
    assert_has(&text(&none, "HTTP"), &["keeps no records"]);
    relay.ends_well();
}

#[test]
fn a_mark_is_evidence_and_a_missing_one_is_none() {
    let rig = old_rows::rig(17);
    let db = rig.db();
    let config = old_rows::config(&rig, "");
    let relay = rig.streaming(&config);
    old_rows::insert(&db, 1, "key");
    old_rows::wait_until_all_are_marked(&db);
    let id: String = db.value("SELECT id::text FROM outbox");
    relay.ends_well();
    // No topic is looked at, so the mark decides.
    let elsewhere = ["--topic", "no.such.topic"];
    let marked = answer(&config, &id, &elsewhere, "marked");
    assert_eq!(marked["rows"][0]["marked"], json!(true));
    db.batch("UPDATE outbox SET sent_at = NULL");
    let none = answer(&config, &id, &elsewhere, "no-evidence");
    assert_eq!(none["rows"][0]["marked"], json!(false));
}

#[test]
fn the_account_is_evidence_if_all_rows_of_the_ten_minutes_agree() {
    let rig = old_rows::rig(17);
    let db = rig.db();
    let config = rig.config_and("\n[prune]\nkeep = \"30d\"\nbefore_slot = true\n");
    let relay = rig.streaming(&config);
    old_rows::insert(&db, 3, "key");
    rig.caught_up();
    let id: String = db.value("SELECT id::text FROM outbox LIMIT 1");
    relay.ends_well();
    let elsewhere = ["--topic", "no.such.topic"];
    answer(&config, &id, &elsewhere, "accounted");
    old_rows::unseen(&db, || old_rows::insert(&db, 1, "unseen"));
    let none = answer(&config, &id, &elsewhere, "no-evidence");
    assert_has(
        &text(&none, "account"),
        &["are not those that were accounted"],
    );
}

#[test]
fn a_dead_letter_is_open_then_redriven_or_dropped() {
    let rig = Rig::with_outbox(17);
    let db = rig.db();
    let config = rig.config_and(&format!(
        "\n[poison]\nunroutable = \"dead-letter\"\noversize = \"dead-letter\"\ntopic = \"dead.{}letters\"\n",
        rig.prefix
    ));
    let relay = rig.streaming(&config);
    db.batch(
        "ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL; \
         INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), NULL, 'key', 'T', '1')",
    );
    rig.caught_up();
    let id: String = db.value("SELECT id::text FROM outbox");
    let open = answer(&config, &id, &[], "dead-letter");
    assert_eq!(open["dead_letters"][0]["status"], json!("open"));
    assert_eq!(open["dead_letters"][0]["class"], json!("unroutable"));
    let position = open["dead_letters"][0]["id"].as_str().expect("a position");
    let drop = output_with("dlq drop --yes", &config, &["--id", position]);
    assert!(drop.status.success(), "{}", said(&drop));
    let dropped = answer(&config, &id, &[], "dropped");
    assert_eq!(dropped["dead_letters"][0]["status"], json!("dropped"));
    relay.ends_well();
}

#[test]
fn the_entry_of_redis_and_the_sequence_of_nats_are_named() {
    let rig = Rig::without_broker(17).outbox();
    let db = rig.db();
    let stream = rig.prefix.trim_end_matches('.').replace(['-', '.'], "_");
    if Redis::is_wanted() {
        let server = Redis::shared();
        let config = rig.config_and(&format!(
            "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\nstream = \"{stream}\"\n",
            server.port()
        ));
        let relay = rig.streaming(&config);
        let id = insert(&db, "key", 1);
        rig.caught_up();
        let found = answer(&config, &id, &[], "delivered");
        let entries = server.client().entries(&stream);
        assert_eq!(found["record"]["entry_id"], json!(entries[0].id));
        relay.ends_well();
    }
    if Nats::is_wanted() {
        let server = Nats::in_turn();
        let mut client = server.client();
        client.create_stream(&stream, &[&format!("{stream}.>")], &json!({}));
        let config = rig.config_and(&format!(
            "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\n\
             subject = \"{stream}.{{aggregatetype}}\"\n",
            server.port()
        ));
        let relay = rig.streaming(&config);
        let id = insert(&db, "key", 2);
        rig.caught_up();
        let found = answer(&config, &id, &[], "delivered");
        let record = &found["record"];
        assert_eq!(record["topic"], json!(format!("{stream}.order")));
        assert_eq!(record["offset"], json!(1));
        assert!(record["written_ms"].as_i64() > Some(0), "{record}");
        relay.ends_well();
    }
}

#[test]
fn a_stream_of_rabbitmq_is_searched_and_a_queue_is_not() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::start();
    let rig = Rig::without_broker(18).outbox();
    let (db, mut client) = (rig.db(), server.client());
    client.declare_exchange("events", "topic");
    for (queue, queue_type) in [("all", "stream"), ("classic", "classic")] {
        let options = QueueOptions {
            queue_type,
            ..QueueOptions::default()
        };
        client.declare_queue(queue, options);
        client.bind(queue, "events", "#");
    }
    let config = rig.config_and(&format!(
        "[sink]\nkind = \"rabbitmq\"\n[sink.rabbitmq]\nhosts = [\"127.0.0.1:{}\"]\n\
         username = \"guest\"\npassword = \"guest\"\nexchange = \"events\"\nrouting_key = \"{{aggregatetype}}\"\n",
        server.port()
    ));
    let relay = rig.streaming(&config);
    let id = insert(&db, "key", 1);
    rig.caught_up();
    let found = answer(&config, &id, &["--topic", "all"], "delivered");
    assert_eq!(found["record"]["offset"], json!(0));
    let none = answer(&config, &id, &["--topic", "classic"], "no-evidence");
    assert_has(&text(&none, "RabbitMQ"), &["classic", "no stream"]);
    relay.ends_well();
}

#[test]
fn a_missing_table_is_named() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    let help = said(&output_with("where", &config, &["--help"]));
    assert_has(&help, &["Examples:", "--since", "no-evidence"]);
    edit(&config, "public.outbox", "public.no_such_outbox");
    let none = answer(&config, NONE, &[], "no-evidence");
    let of_table = text(&none, "public.no_such_outbox");
    assert_has(&of_table, &["does not exist"]);
    let usage = output_with("where", &config, &[]);
    assert_eq!(usage.status.code(), Some(64), "{}", said(&usage));
}

#[test]
fn the_endpoint_of_another_relay_is_not_asked_and_two_tables_with_the_id_are_shown() {
    let rig = Rig::with_outbox(17);
    let db = rig.db();
    db.batch("CREATE TABLE other (LIKE outbox INCLUDING ALL)");
    let config = rig.config_and(LISTEN);
    edit(
        &config,
        "\"public.outbox\"",
        "\"public.outbox\", \"public.other\"",
    );
    let relay = rig.streaming(&config);
    let at = at(address(&relay));
    let id = insert(&db, "key", 1);
    rig.caught_up();
    let sent = answer(&config, &id, &[&at], "delivered");
    assert_has(&text(&sent, "relay"), &["streaming"]);
    // The relay of another slot says nothing of this one's events.
    let others = [&at, "--set=source.slot=another"];
    let other = document(&config, &id, &others);
    assert_has(
        &text(&other, "relay"),
        &["is the endpoint of the relay of slot walrelay"],
    );
    relay.ends_well();

    let both = insert(&db, "key", 2);
    db.batch(&format!(
        "INSERT INTO other SELECT * FROM outbox WHERE id = '{both}'"
    ));
    let both_waiting = answer(&config, &both, &[], "behind-slot");
    assert_eq!(both_waiting["rows"].as_array().map(Vec::len), Some(2));
    let log = text(&both_waiting, "log");
    assert_eq!(log.matches("committed at").count(), 2, "{log}");
    let shown = output_with(&format!("where {both}"), &config, &[]);
    assert_has(&said(&shown), &["2 rows have this id"]);
}
