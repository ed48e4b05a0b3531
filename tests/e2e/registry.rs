//! Values in the wire format of a schema registry, decoded as by a consumer with the schema of
//! their id.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use serde_json::{Value, json};
use walrelay_sink::dlq_headers;
use walrelay_testkit::{
    Authority, Delivered, History, Mishap, SchemaRegistry, Verdict, eventually,
};

use crate::check::Checked;
use crate::rig::{
    PATIENCE, Rig, assert_has, assert_lacks, command_with, ends, output_with, refused, said,
    stdout, wait_rows,
};

/// Schema of the rows of [`Workload`](walrelay_testkit::Workload).
const AVRO: &str = r#"{"type": "record", "name": "Event", "namespace": "shop", "fields": [
    {"name": "number", "type": "long"},
    {"name": "key", "type": "string", "default": ""},
    {"name": "text", "type": ["null", "string"], "default": null},
    {"name": "tags", "type": {"type": "array", "items": ["null", "boolean", "long"]}, "default": []}
]}"#;

fn section(url: &str, format: &str, more: &str) -> String {
    format!(
        "\n[router.registry]\nurl = \"{url}\"\nformat = \"{format}\"\ntimeout = \"2s\"\n{more}\n"
    )
}

impl Rig {
    fn subject(&self, kind: &str) -> String {
        format!("{}{kind}-value", self.prefix)
    }

    /// The checker's verdict on the decoded values.
    fn decoded(&self, registry: &SchemaRegistry) -> Verdict {
        let mut history = self.history();
        decode_values(&mut history, registry);
        history.check()
    }

    fn insert(&self, kind: &str, payload: &str) -> String {
        let sql = format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), '{kind}', 'key', 'T', '{payload}') \
             RETURNING id::text"
        );
        self.db().value(&sql)
    }
}

/// Replaces the values of both sides by their JSON, in one notation.
fn decode_values(history: &mut History, registry: &SchemaRegistry) {
    for record in &mut history.records {
        record.payload = Some(decoded(record, registry).to_string().into_bytes());
    }
    for row in &mut history.committed {
        let payload = row.payload.as_deref().expect("a payload");
        let json: Value = serde_json::from_slice(payload).expect("JSON");
        row.payload = Some(json.to_string().into_bytes());
    }
}

/// The id of the schema of a value.
fn id(record: &Delivered) -> u32 {
    let value = record.payload.as_deref().expect("a value");
    u32::from_be_bytes(value[1..5].try_into().expect("four bytes"))
}

/// Decodes a value as a consumer does, by the schema that the registry has under its id.
fn decoded(record: &Delivered, registry: &SchemaRegistry) -> Value {
    let value = record.payload.as_deref().expect("a value");
    let (head, mut body) = value.split_at(5);
    assert_eq!(head[0], 0, "{value:?}");
    let schema = registry.schema(id(record));
    let (subject, schema) = schema.expect("the registry knows the id");
    assert_eq!(subject, format!("{}-value", record.topic));
    match Schema::parse_str(&schema) {
        // The JSON Schemas of these tests are no Avro schemas.
        Err(_) => serde_json::from_slice(body).expect("JSON"),
        Ok(schema) => {
            let reader = GenericDatumReader::builder(&schema).build();
            let reader = reader.expect("a reader");
            let value = reader.read_value(&mut body).expect("a datum");
            assert!(body.is_empty(), "{} bytes are left", body.len());
            value.try_into().expect("JSON")
        }
    }
}

/// One schema is looked up as the latest, one by its text in the configuration, one is registered.
#[test]
fn json_values_have_the_id_of_their_schema() {
    let rig = Rig::with_outbox(15);
    let registry = SchemaRegistry::start();
    registry.register("of others", "JSON", "{\"title\": \"x\"}");
    let schema = |title: &str| json!({"title": title, "type": "object"}).to_string();
    registry.register(&rig.subject("order"), "JSON", "{\"title\": \"old\"}");
    registry.register(&rig.subject("order"), "JSON", &schema("order"));
    let mut more = "register = true\n\n[router.registry.schemas]\n".to_owned();
    for kind in ["payment", "customer"] {
        fs::write(rig.path(&format!("{kind}.json")), schema(kind)).expect("a schema");
        let line = format!("\"{}\" = \"{kind}.json\"\n", rig.subject(kind));
        more.push_str(&line);
    }
    let config = rig.config_and(&section(&registry.url(), "json", &more));
    let relay = rig.streaming(&config);
    rig.workload().rows(3_000).run();
    rig.caught_up();
    let records = rig.history().records;
    let verdict = rig.decoded(&registry);
    eprintln!("JSON Schema: {verdict}");
    verdict.assert_nothing_repeated();
    let ids = records.iter().map(|record| (&*record.topic, id(record)));
    let ids: BTreeMap<&str, u32> = ids.collect();
    assert_eq!(ids.len(), 3);
    let order = format!("{}order", rig.prefix);
    assert_eq!(ids[&*order], 3, "the latest, not the first");
    // A JSON value is the text of the row.
    let (record, rows) = (&records[0], rig.history().committed);
    let row = rows.iter().find(|row| Some(&row.id) == record.id.as_ref());
    let text = row.and_then(|row| row.payload.as_deref()).expect("the row");
    assert_eq!(&record.payload.as_ref().expect("a value")[5..], text);
    // Each schema was requested once.
    assert_eq!(registry.asked().len(), 3, "{:?}", registry.asked());
    relay.ends_well();
}

/// The registry is down when the relay starts, and comes back under load. Until then nothing is
/// sent or confirmed, and feedback continues. Then everything arrives as Avro.
#[test]
fn avro_values_wait_for_a_registry_that_is_away() {
    let rig = Rig::with_outbox(18);
    let address = SchemaRegistry::address_to_come();
    let section = section(&format!("http://{address}"), "avro", "");
    let config = rig.config_and(&section);
    let relay = rig.start_with(&config, &["--set", "source.wal_sender_timeout=2s"]);
    relay.streaming();
    let slot = rig.slot();
    let walsender = slot.wait_active(PATIENCE);
    rig.insert("order", "{\"number\": 1}");
    let first_ends = slot.wal_end();
    let load = rig.workload().rate(1_500.0).start();
    relay.says("waiting for a schema");
    let since = Instant::now();
    let rows = load.written().rows;
    eventually(PATIENCE, || {
        let now = slot.read().expect("the slot");
        assert!(
            now.confirmed_flush < first_ends,
            "confirmed past what waits"
        );
        assert_eq!(now.active_pid, Some(walsender), "feedback stopped");
        since.elapsed() > Duration::from_secs(5) && load.written().rows > rows + 3_000
    });
    let sent = rig.records(0);
    assert!(sent.is_empty(), "{} records were sent", sent.len());
    assert_lacks(&relay.log(), &["the sink"]);
    assert_has(&relay.log(), &["gives no answer for subject"]);

    let registry = SchemaRegistry::start_at(address);
    // The registry answers again, with several faults first, and does not know all schemas yet.
    registry.mishap(Mishap::Status(500, String::new()));
    registry.mishap(Mishap::Status(429, "slow down".to_owned()));
    registry.mishap(Mishap::Close);
    registry.mishap(Mishap::Body("<html>".to_owned()));
    registry.register(&rig.subject("order"), "AVRO", AVRO);
    relay.says("the schema of the subject is known");
    for kind in ["payment", "customer"] {
        registry.register(&rig.subject(kind), "AVRO", AVRO);
    }
    wait_rows(&load, 2_000);
    load.stop();
    rig.db()
        .batch("DELETE FROM outbox WHERE aggregateid = 'key'");
    rig.caught_up();
    let mut history = rig.history();
    // The very first row, which the workload does not know.
    let is_alone = |record: &Delivered| record.key.as_deref() == Some(b"key");
    let alone = history.records.iter().filter(|record| is_alone(record));
    let alone: Vec<Value> = alone.map(|record| decoded(record, &registry)).collect();
    let first = json!({"number": 1, "key": "", "text": null, "tags": []});
    assert_eq!(alone, [first]);
    history.records.retain(|record| !is_alone(record));
    decode_values(&mut history, &registry);
    let verdict = history.check();
    eprintln!("a registry that comes back: {verdict}");
    verdict.assert_clean();
    assert!(verdict.committed > 5_000, "{verdict}");
    relay.ends_well();
}

/// One subject has no schema: earlier events are sent and confirmed, later events wait.
#[test]
fn what_comes_before_a_missing_schema_is_confirmed() {
    let rig = Rig::with_outbox(15);
    let registry = SchemaRegistry::start();
    registry.register(&rig.subject("order"), "AVRO", AVRO);
    let config = rig.config_and(&section(&registry.url(), "avro", ""));
    let relay = rig.streaming(&config);
    for number in 1..=20 {
        rig.insert("order", &format!("{{\"number\": {number}}}"));
    }
    let before = rig.slot().wal_end();
    rig.insert("payment", "{\"number\": 1}");
    let after = rig.slot().wal_end();
    rig.insert("order", "{\"number\": 21}");
    relay.says("error code 40401");
    rig.slot().wait_until(before, PATIENCE);
    let confirmed = rig.slot().confirmed();
    assert!(confirmed < after, "{confirmed} is past what waits");
    let sent = rig.records(20);
    assert_eq!(sent.len(), 20);
    registry.register(&rig.subject("payment"), "AVRO", AVRO);
    rig.caught_up();
    assert_eq!(rig.history().records.len(), 22);
    relay.ends_well();
}

/// A schema that cannot be had, by kind of refusal: exit code, id, and whether the relay waits.
#[test]
fn what_is_not_to_be_had_stops_the_relay_in_time() {
    let error = |status: u16, code: u32| {
        let body = json!({"error_code": code, "message": "words of the registry"});
        Some(Mishap::Status(status, body.to_string()))
    };
    for (mishap, code, id, waits) in [
        (None, 78, "schema-missing", true),
        (error(403, 40301), 77, "registry-access", true),
        (error(503, 50301), 69, "registry-unreachable", true),
        (error(409, 409), 78, "schema-refused", false),
        (error(422, 42201), 78, "schema-refused", false),
        (error(401, 40101), 77, "registry-access", false),
    ] {
        let rig = Rig::with_outbox(15);
        let registry = SchemaRegistry::start();
        registry.always(mishap);
        let secret = "user = \"me\"\npassword = \"s3cret-word\"\n";
        let section = section(&registry.url(), "json", secret);
        let config = rig.config_and(&format!("{section}\n[poison]\nretry_for = \"2s\"\n"));
        let mut relay = rig.streaming(&config);
        let before = rig.slot().wal_end();
        rig.insert("order", "{\"number\": 1, \"word\": \"s3cret-value\"}");
        let after = rig.slot().wal_end();
        let log = ends(&mut relay, code, id);
        assert_eq!(log.contains("waiting for a schema"), waits, "{id}: {log}");
        assert_has(&log, &[&rig.subject("order")]);
        assert_lacks(&log, &["s3cret"]);
        let confirmed = rig.slot().confirmed();
        assert!(
            before <= confirmed && confirmed < after,
            "{id}: {confirmed}"
        );
    }
}

/// Missing schemas and values that do not fit, with a policy of dead letters.
#[test]
fn events_without_a_schema_or_that_do_not_fit_go_where_the_policy_says() {
    let rig = Rig::with_outbox(18);
    let registry = SchemaRegistry::start();
    registry.register(&rig.subject("order"), "AVRO", AVRO);
    let topic = format!("dead.{}letters", rig.prefix);
    let section = section(&registry.url(), "avro", "");
    let config = rig.config_and(&format!(
        "{section}\n[poison]\nrejected = \"dead-letter\"\nundecodable = \"dead-letter\"\n\
         retry_for = \"1s\"\ntopic = \"{topic}\"\n"
    ));
    let relay = rig.streaming(&config);
    rig.insert("order", "{\"number\": 1}");
    let payment = rig.insert("payment", "{\"number\": 1}");
    let schema_mismatch = rig.insert("order", "{\"number\": \"s3cret\"}");
    rig.insert("order", "{\"number\": 2}");
    let second = rig.insert("payment", "{\"number\": 2}");
    let unknown = rig.insert("order", "{\"number\": 3, \"s3cret\": 1}");
    let tombstone = "INSERT INTO outbox VALUES (gen_random_uuid(), 'payment', 'key', 'T', NULL)";
    rig.db().batch(tombstone);
    rig.caught_up();
    let log = relay.ends_well();
    assert_lacks(&log, &["s3cret"]);
    let parts = ["at \\\"number\\\" is not a long", "gave the schema up"];
    assert_has(&log, &parts);

    let dead_letters = rig.records_in(&topic, 4);
    let told: BTreeMap<&str, (&str, &str)> = dead_letters
        .iter()
        .map(|record| {
            let class = record.header(dlq_headers::CLASS).expect("a class");
            assert_eq!(record.header(dlq_headers::TOPIC), None);
            let id = record.id.as_deref().expect("an id");
            (id, (class, record.value_text()))
        })
        .collect();
    let expected = BTreeMap::from([
        (&*payment, ("rejected", "{\"number\": 1}")),
        (
            &*schema_mismatch,
            ("undecodable", "{\"number\": \"s3cret\"}"),
        ),
        (&*second, ("rejected", "{\"number\": 2}")),
        (&*unknown, ("undecodable", "{\"number\": 3, \"s3cret\": 1}")),
    ]);
    assert_eq!(told, expected);
    let records = rig.records(3);
    let (values, tombstones): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| record.payload.is_some());
    let number = |record: &&Delivered| decoded(record, &registry)["number"].clone();
    let numbers: Vec<Value> = values.iter().map(number).collect();
    assert_eq!(numbers, [json!(1), json!(2)]);
    assert_eq!(tombstones.len(), 1);
    assert_eq!(tombstones[0].topic, format!("{}payment", rig.prefix));
}

/// By default, a value that does not fit stops the relay. A value that fits a later version of the
/// schema is encoded with that, even if it was registered just before the event. Messages are
/// encoded like rows.
#[test]
fn a_later_schema_is_asked_for_by_what_does_not_fit() {
    let rig = Rig::with_outbox(15);
    let registry = SchemaRegistry::start();
    let first = registry.register(&rig.subject("order"), "AVRO", AVRO);
    let section = section(&registry.url(), "avro", "");
    let config = rig.config_and(&format!(
        "{section}\n[source.messages]\nprefix = \"outbox\"\n"
    ));
    let mut relay = rig.streaming(&config);
    rig.insert("order", "{\"number\": 1}");
    let emit = |number: u32| {
        let content = json!({
            "id": format!("m{number}"), "aggregate": "order", "key": "key", "type": "T",
            "payload": {"number": number},
        });
        let sql = format!("SELECT pg_logical_emit_message(true, 'outbox', '{content}')");
        rig.db().batch(&sql);
    };
    emit(2);
    rig.caught_up();
    let later = AVRO.replace(
        "{\"name\": \"number\"",
        "{\"name\": \"kind\", \"type\": \"string\", \"default\": \"\"}, {\"name\": \"number\"",
    );
    let second = registry.register(&rig.subject("order"), "AVRO", &later);
    rig.insert("order", "{\"number\": 3}");
    rig.insert("order", "{\"number\": 4, \"kind\": \"new\"}");
    emit(5);
    rig.caught_up();
    let before = rig.slot().wal_end();
    rig.insert("order", "{\"number\": 6, \"kind\": 7, \"s3cret\": 1}");
    let after = rig.slot().wal_end();
    let log = ends(&mut relay, 65, "undecodable");
    assert_has(&log, &["at \"kind\" is not a string", "keep to the schema"]);
    assert_lacks(&log, &["s3cret"]);
    let confirmed = rig.slot().confirmed();
    assert!(before <= confirmed && confirmed < after, "{confirmed}");

    let records = rig.records(5);
    let number = |record: &Delivered| decoded(record, &registry)["number"].clone();
    let seen = records.iter().map(|record| (id(record), number(record)));
    let seen: Vec<(u32, Value)> = seen.collect();
    let expected = [(first, 1), (first, 2), (first, 3), (second, 4), (second, 5)];
    assert_eq!(seen, expected.map(|(id, number)| (id, json!(number))));
    // At first, for the fourth event, and in vain for the sixth.
    assert_eq!(registry.asked().len(), 3);
}

/// TLS with the configured authority or the system's. A server that cannot be verified gets no
/// request.
#[test]
fn a_registry_is_known_by_its_certificate() {
    let rig = Rig::with_outbox(15);
    let authority = Authority::new("registry");
    let registry = SchemaRegistry::start_secure(&authority.server("localhost"));
    registry.register(&rig.subject("order"), "AVRO", AVRO);
    for (name, text) in [
        ("ca.pem", authority.pem()),
        ("other.pem", Authority::new("other").pem()),
        ("empty.pem", String::new()),
    ] {
        fs::write(rig.path(name), text).expect("written");
    }
    let url = registry.url();
    let by_number = url.replace("localhost", "127.0.0.1");
    let secret = "user = \"me\"\npassword = \"s3cret-word\"\n";
    for (url, ca, system, code, words) in [
        (&by_number, Some("ca.pem"), "ca.pem", 69, "certificate"),
        (&url, Some("other.pem"), "ca.pem", 69, "certificate"),
        (&url, None, "other.pem", 69, "certificate"),
        (&url, Some("none.pem"), "ca.pem", 78, "[registry-ca]"),
        (&url, Some("empty.pem"), "ca.pem", 78, "[registry-ca]"),
        (&url, None, "ca.pem", 0, ""),
        (&url, Some("ca.pem"), "other.pem", 0, ""),
    ] {
        let file = ca.map_or(String::new(), |file| format!("ca_file = \"{file}\"\n"));
        let config = rig.config_and(&section(url, "avro", &format!("{file}{secret}")));
        let mut command = command_with("check", &config, &[]);
        command.env("SSL_CERT_FILE", rig.path(system));
        command.env_remove("SSL_CERT_DIR");
        let checked = command.output().expect("walrelay runs");
        let text = said(&checked);
        assert_lacks(&text, &["s3cret"]);
        assert_eq!(checked.status.code(), Some(code), "{url} {ca:?}: {text}");
        assert_has(&text.to_lowercase(), &[words]);
        let is_asked = !registry.asked().is_empty();
        assert!(code == 0 || !is_asked, "{url} {ca:?}: it was asked");
    }

    // With the last configuration of above.
    let relay = rig.streaming(&rig.path("walrelay.toml"));
    rig.insert("order", "{\"number\": 1}");
    rig.caught_up();
    let records = rig.history().records;
    assert_eq!(records.len(), 1);
    assert_eq!(decoded(&records[0], &registry)["number"], json!(1));
    relay.ends_well();
}

/// `check` reads the registry and changes nothing; `route` shows what `run` sends, except for the
/// id.
#[test]
fn check_and_route_know_of_it() {
    let rig = Rig::with_outbox(15);
    let registry = SchemaRegistry::start();
    fs::write(rig.path("order.avsc"), AVRO).expect("a schema");
    let subject = rig.subject("order");
    let named = format!("\n[router.registry.schemas]\n\"{subject}\" = \"order.avsc\"\n");
    let section = section(&registry.url(), "avro", &named);
    let config = rig.config_and(&section);

    let check = |more: &[&str]| Checked::run(&config, more);
    let checked = check(&[]);
    checked.passes("registry/server", &[]);
    checked.passes("postgres/route", &[]);
    checked.fails("registry/schema", &["[schema-missing]", &subject]);
    checked.ends(78);
    let checked = check(&["--set", "router.registry.register=true"]);
    checked.passes("registry/schema", &["not known, run registers it"]);
    checked.ends(0);
    let id = registry.register(&subject, "AVRO", AVRO);
    let checked = check(&[]);
    let known = format!("of {subject}: known, its id is {id}");
    checked.passes("registry/schema", &[&known]);
    checked.ends(0);
    registry.always(Some(Mishap::Status(401, String::new())));
    assert_eq!(check(&[]).code, Some(77));
    drop(registry);
    let checked = check(&[]);
    checked.fails("registry/server", &["[registry-unreachable]"]);
    checked.ends(69);

    let row = |kind: &str| {
        let row = json!({
            "id": "018f5a3e-7c1d-7b1a-9c55-0123456789ab", "aggregatetype": kind,
            "aggregateid": "k", "type": "T", "payload": {"number": 7},
        });
        let path = rig.path("row.json");
        fs::write(&path, row.to_string()).expect("a row");
        output_with("route", &config, &["--row", path.to_str().expect("text")])
    };
    let shown = stdout(&row("order"));
    assert_has(&shown, &[&format!("schema:    subject {subject}; its id")]);
    refused(&row("payment"), 78, &["[schema-file]"]);
}
