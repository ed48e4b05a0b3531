//! Values in the wire format of a schema registry: decoded on the consumer's side, by the schema that
//! their id names there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use serde_json::{Value, json};
use walrelay_sink::dlq_headers;
use walrelay_testkit::{
    Authority, Db, Delivered, History, Mishap, SchemaRegistry, Verdict, check, eventually,
};

use crate::rig::{Checked, PATIENCE, Rig, ends, output, walrelay};

/// Of what [`Workload`](walrelay_testkit::Workload) writes.
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
    fn with_registry(&self, section: &str) -> PathBuf {
        self.config_with(&self.postgres.url(), section)
    }

    fn subject(&self, kind: &str) -> String {
        format!("{}{kind}-value", self.prefix)
    }

    /// The checker's judgement of what is behind the ids, with each value decoded.
    fn decoded(&self, registry: &SchemaRegistry) -> Verdict {
        let mut history = self.history();
        for record in &mut history.records {
            let json = decoded(record, registry);
            record.payload = Some(json.to_string().into_bytes());
        }
        for row in &mut history.committed {
            let payload = row.payload.as_deref().expect("a payload");
            let json: Value = serde_json::from_slice(payload).expect("JSON");
            row.payload = Some(json.to_string().into_bytes());
        }
        check(&history.committed, &history.records)
    }

    fn insert(&self, kind: &str, payload: &str) -> String {
        let sql = format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), '{kind}', 'key', 'T', '{payload}') \
             RETURNING id::text"
        );
        Db::connect(&self.postgres.url()).text(&sql).expect("an id")
    }
}

/// As a consumer reads it: by the schema that the registry has under the id.
fn decoded(record: &Delivered, registry: &SchemaRegistry) -> Value {
    let value = record.payload.as_deref().expect("a value");
    let (head, mut body) = value.split_at(5);
    assert_eq!(head[0], 0, "{value:?}");
    let id = u32::from_be_bytes(head[1..].try_into().expect("four bytes"));
    let (subject, schema) = registry.schema(id).expect("the registry knows the id");
    assert_eq!(subject, format!("{}-value", record.topic));
    match Schema::parse_str(&schema) {
        // JSON Schemas of these tests are no Avro schemas.
        Err(_) => serde_json::from_slice(body).expect("JSON"),
        Ok(schema) => {
            let reader = GenericDatumReader::builder(&schema)
                .build()
                .expect("a reader");
            let value = reader.read_value(&mut body).expect("a datum");
            assert!(body.is_empty(), "{} bytes are left", body.len());
            value.try_into().expect("JSON")
        }
    }
}

/// One schema is looked up as the latest, one as it stands in the configuration, one is registered.
#[test]
fn json_values_have_the_id_of_their_schema() {
    let rig = Rig::new(15);
    let registry = SchemaRegistry::start();
    registry.register("of others", "JSON", "{\"title\": \"x\"}");
    let schema = |title: &str| json!({"title": title, "type": "object"}).to_string();
    registry.register(&rig.subject("order"), "JSON", "{\"title\": \"old\"}");
    registry.register(&rig.subject("order"), "JSON", &schema("order"));
    let mut more = "register = true\n\n[router.registry.schemas]\n".to_owned();
    for kind in ["payment", "customer"] {
        std::fs::write(rig.path(&format!("{kind}.json")), schema(kind)).expect("a schema");
        let line = format!("\"{}\" = \"{kind}.json\"\n", rig.subject(kind));
        more.push_str(&line);
    }
    rig.workload().create_tables();
    let config = rig.with_registry(&section(&registry.url(), "json", &more));
    let relay = rig.streaming(&config);
    rig.workload().rows(3_000).run();
    rig.caught_up();
    let records = rig.history().records;
    let verdict = rig.decoded(&registry);
    eprintln!("JSON Schema: {verdict}");
    verdict.assert_clean();
    assert_eq!(verdict.duplicates, 0);
    let ids: BTreeMap<&str, u8> = records
        .iter()
        .map(|record| {
            (
                record.topic.as_str(),
                record.payload.as_ref().expect("a value")[4],
            )
        })
        .collect();
    assert_eq!(ids.len(), 3);
    assert_eq!(
        ids[&*format!("{}order", rig.prefix)],
        3,
        "the latest, not the first"
    );
    // A JSON value is the text of the row.
    let (record, rows) = (&records[0], rig.history().committed);
    let row = rows.iter().find(|row| Some(&row.id) == record.id.as_ref());
    let text = row.and_then(|row| row.payload.as_deref()).expect("the row");
    assert_eq!(&record.payload.as_ref().expect("a value")[5..], text);
    // Each was asked for once.
    assert_eq!(registry.asked().len(), 3, "{:?}", registry.asked());
    relay.ends_well();
}

/// The registry is down when the relay starts, and comes back under load. Until then nothing is sent or
/// confirmed, and feedback goes on; then everything arrives as Avro.
#[test]
fn avro_values_wait_for_a_registry_that_is_away() {
    let rig = Rig::with_outbox(18);
    let address = SchemaRegistry::address_to_come();
    let section = section(&format!("http://{address}"), "avro", "");
    let config = rig.with_registry(&section);
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
    let sent = History::records(&rig.bootstrap, &rig.prefix, 0, Duration::from_secs(5));
    assert!(sent.is_empty(), "{} records were sent", sent.len());
    assert!(!relay.log().contains("the sink"), "{}", relay.log());
    assert!(
        relay.log().contains("gives no answer for subject"),
        "{}",
        relay.log()
    );

    let registry = SchemaRegistry::start_at(address);
    // It answers again, but does not know all of them yet; and it hiccups.
    registry.mishap(Mishap::Status(500, String::new()));
    registry.mishap(Mishap::Status(429, "slow down".to_owned()));
    registry.mishap(Mishap::Close);
    registry.mishap(Mishap::Body("<html>".to_owned()));
    registry.register(&rig.subject("order"), "AVRO", AVRO);
    relay.says("the schema of the subject is known");
    for kind in ["payment", "customer"] {
        registry.register(&rig.subject(kind), "AVRO", AVRO);
    }
    let rows = load.written().rows;
    eventually(PATIENCE, || load.written().rows > rows + 2_000);
    load.stop();
    Db::connect(&rig.postgres.url()).batch("DELETE FROM outbox WHERE aggregateid = 'key'");
    rig.caught_up();
    let mut history = rig.history();
    // The first row of all, which the workload does not know.
    let alone = history
        .records
        .iter()
        .filter(|r| r.key.as_deref() == Some(b"key"));
    let alone: Vec<Value> = alone.map(|record| decoded(record, &registry)).collect();
    assert_eq!(
        alone,
        [json!({"number": 1, "key": "", "text": null, "tags": []})]
    );
    history
        .records
        .retain(|record| record.key.as_deref() != Some(b"key"));
    for record in &mut history.records {
        record.payload = Some(decoded(record, &registry).to_string().into_bytes());
    }
    for row in &mut history.committed {
        let json: Value =
            serde_json::from_slice(row.payload.as_deref().expect("a payload")).expect("JSON");
        row.payload = Some(json.to_string().into_bytes());
    }
    let verdict = history.check();
    eprintln!("a registry that comes back: {verdict}");
    verdict.assert_clean();
    assert!(verdict.committed > 5_000, "{verdict}");
    relay.ends_well();
}

/// One subject has no schema: what came before is sent and confirmed, what comes after waits.
#[test]
fn what_comes_before_a_missing_schema_is_confirmed() {
    let rig = Rig::with_outbox(15);
    let registry = SchemaRegistry::start();
    registry.register(&rig.subject("order"), "AVRO", AVRO);
    let config = rig.with_registry(&section(&registry.url(), "avro", ""));
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
    let confirmed = rig.slot().read().expect("the slot").confirmed_flush;
    assert!(confirmed < after, "{confirmed} is past what waits");
    let sent = History::records(&rig.bootstrap, &rig.prefix, 20, PATIENCE);
    assert_eq!(sent.len(), 20);
    registry.register(&rig.subject("payment"), "AVRO", AVRO);
    rig.caught_up();
    assert_eq!(rig.history().records.len(), 22);
    relay.ends_well();
}

/// A schema that is never to be had, by kind of refusal: exit code, id, words.
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
        let config = rig.with_registry(&format!("{section}\n[poison]\nretry_for = \"2s\"\n"));
        let mut relay = rig.streaming(&config);
        let before = rig.slot().wal_end();
        rig.insert("order", "{\"number\": 1, \"word\": \"s3cret-value\"}");
        let after = rig.slot().wal_end();
        let log = ends(&mut relay, code, id);
        assert_eq!(log.contains("waiting for a schema"), waits, "{id}: {log}");
        assert!(log.contains(&rig.subject("order")), "{id}: {log}");
        assert!(!log.contains("s3cret"), "{id}: {log}");
        let confirmed = rig.slot().read().expect("the slot").confirmed_flush;
        assert!(
            before <= confirmed && confirmed < after,
            "{id}: {confirmed}"
        );
    }
}

/// The same where events may go elsewhere, and values that do not fit.
#[test]
fn events_without_a_schema_or_that_do_not_fit_go_where_the_policy_says() {
    let rig = Rig::with_outbox(18);
    let registry = SchemaRegistry::start();
    registry.register(&rig.subject("order"), "AVRO", AVRO);
    let topic = format!("dead.{}letters", rig.prefix);
    let section = section(&registry.url(), "avro", "");
    let config = rig.with_registry(&format!(
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
    Db::connect(&rig.postgres.url()).batch(tombstone);
    rig.caught_up();
    let log = relay.ends_well();
    assert!(!log.contains("s3cret"), "{log}");
    assert!(log.contains("at \\\"number\\\" is not a long"), "{log}");
    assert!(log.contains("gave the schema up"), "{log}");

    let dead_letters = History::records(&rig.bootstrap, &topic, 4, PATIENCE);
    let header = |record: &Delivered, wanted: &str| {
        let found = record.headers.iter().find(|(name, _)| name == wanted);
        let value = found.and_then(|(_, value)| value.clone());
        value.map(|value| String::from_utf8(value).expect("text"))
    };
    let told: BTreeMap<String, (String, String)> = dead_letters
        .iter()
        .map(|record| {
            let value = record.payload.clone().expect("the value as it was");
            let class = header(record, dlq_headers::CLASS).expect("a class");
            assert_eq!(header(record, dlq_headers::TOPIC), None);
            let id = record.id.clone().expect("an id");
            (id, (class, String::from_utf8(value).expect("text")))
        })
        .collect();
    let expected = [
        (payment, ("rejected", "{\"number\": 1}")),
        (schema_mismatch, ("undecodable", "{\"number\": \"s3cret\"}")),
        (second, ("rejected", "{\"number\": 2}")),
        (unknown, ("undecodable", "{\"number\": 3, \"s3cret\": 1}")),
    ];
    let expected: BTreeMap<String, (String, String)> = expected
        .into_iter()
        .map(|(id, (class, value))| (id, (class.to_owned(), value.to_owned())))
        .collect();
    assert_eq!(told, expected);
    let records = History::records(&rig.bootstrap, &rig.prefix, 3, PATIENCE);
    let (values, tombstones): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| record.payload.is_some());
    let numbers: Vec<Value> = values
        .iter()
        .map(|record| decoded(record, &registry)["number"].clone())
        .collect();
    assert_eq!(numbers, [json!(1), json!(2)]);
    assert_eq!(tombstones.len(), 1);
    assert_eq!(tombstones[0].topic, format!("{}payment", rig.prefix));
}

/// A value that does not fit stops the relay by default; and what fits a later version of the schema
/// goes by that, however short before the event it was registered. Messages are encoded as rows are.
#[test]
fn a_later_schema_is_asked_for_by_what_does_not_fit() {
    let rig = Rig::with_outbox(15);
    let registry = SchemaRegistry::start();
    let first = registry.register(&rig.subject("order"), "AVRO", AVRO);
    let section = section(&registry.url(), "avro", "");
    let config = rig.with_registry(&format!(
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
        Db::connect(&rig.postgres.url()).batch(&sql);
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
    let log = ends(&mut relay, 65, "unroutable");
    assert!(log.contains("at \"kind\" is not a string"), "{log}");
    assert!(log.contains("keep to the schema"), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
    let confirmed = rig.slot().read().expect("the slot").confirmed_flush;
    assert!(before <= confirmed && confirmed < after, "{confirmed}");

    let records = History::records(&rig.bootstrap, &rig.prefix, 5, PATIENCE);
    let seen: Vec<(u32, Value)> = records
        .iter()
        .map(|record| {
            let id = u32::from(record.payload.as_ref().expect("a value")[4]);
            (id, decoded(record, &registry)["number"].clone())
        })
        .collect();
    let expected = [(first, 1), (first, 2), (first, 3), (second, 4), (second, 5)];
    assert_eq!(seen, expected.map(|(id, number)| (id, json!(number))));
    // At first, for the fourth, and in vain for the sixth.
    assert_eq!(registry.asked().len(), 3);
}

/// Over TLS, by an authority of its own or the system's; and who it cannot be sure of is asked nothing.
#[test]
fn a_registry_is_known_by_its_certificate() {
    let rig = Rig::with_outbox(15);
    let authority = Authority::new("registry");
    let registry = SchemaRegistry::start_secure(&authority.server("localhost"));
    registry.register(&rig.subject("order"), "AVRO", AVRO);
    std::fs::write(rig.path("ca.pem"), authority.pem()).expect("written");
    std::fs::write(rig.path("other.pem"), Authority::new("other").pem()).expect("written");
    std::fs::write(rig.path("empty.pem"), "").expect("written");
    let url = registry.url();
    let by_number = url.replace("localhost", "127.0.0.1");
    let secret = "user = \"me\"\npassword = \"s3cret-word\"\n";
    let check = |url: &str, ca: Option<&str>, system: &str| {
        let ca = ca.map_or(String::new(), |file| format!("ca_file = \"{file}\"\n"));
        let config = rig.with_registry(&section(url, "avro", &format!("{ca}{secret}")));
        let mut command = walrelay(&["check", "--config"]);
        command.arg(config).env("SSL_CERT_FILE", rig.path(system));
        command.env_remove("SSL_CERT_DIR");
        let checked = command.output().expect("walrelay runs");
        let text = [checked.stdout, checked.stderr].concat();
        let text = String::from_utf8(text).expect("text");
        assert!(!text.contains("s3cret"), "{text}");
        (checked.status.code(), text)
    };
    for (url, ca, system, code, words) in [
        (&by_number, Some("ca.pem"), "ca.pem", 69, "certificate"),
        (&url, Some("other.pem"), "ca.pem", 69, "certificate"),
        (&url, None, "other.pem", 69, "certificate"),
        (&url, Some("none.pem"), "ca.pem", 78, "[registry-ca]"),
        (&url, Some("empty.pem"), "ca.pem", 78, "[registry-ca]"),
    ] {
        let (found, text) = check(url, ca, system);
        assert_eq!(found, Some(code), "{url} {ca:?}: {text}");
        assert!(text.to_lowercase().contains(words), "{url} {ca:?}: {text}");
        assert!(registry.asked().is_empty(), "{url} {ca:?}: it was asked");
    }
    let (code, text) = check(&url, None, "ca.pem");
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = check(&url, Some("ca.pem"), "other.pem");
    assert_eq!(code, Some(0), "{text}");

    // The configuration of the last one.
    let relay = rig.streaming(&rig.path("walrelay.toml"));
    rig.insert("order", "{\"number\": 1}");
    rig.caught_up();
    let records = rig.history().records;
    assert_eq!(records.len(), 1);
    assert_eq!(decoded(&records[0], &registry)["number"], json!(1));
    relay.ends_well();
}

/// `check` asks and changes nothing; `route` shows what `run` sends, but for the id.
#[test]
fn check_and_route_know_of_it() {
    let rig = Rig::with_outbox(15);
    let registry = SchemaRegistry::start();
    std::fs::write(rig.path("order.avsc"), AVRO).expect("a schema");
    let named = format!(
        "\n[router.registry.schemas]\n\"{}\" = \"order.avsc\"\n",
        rig.subject("order")
    );
    let section = section(&registry.url(), "avro", &named);
    let config = rig.with_registry(&section);
    let config = config.to_str().expect("text");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");

    let subject = rig.subject("order");
    let check = |more: &[&str]| Checked::of(Path::new(config), more);
    let checked = check(&[]);
    checked.is("registry/server", "pass", &[]);
    checked.is("postgres/route", "pass", &[]);
    checked.is("registry/schema", "fail", &["[schema-missing]", &subject]);
    assert_eq!(checked.code, Some(78), "{checked:#?}");
    let checked = check(&["--set", "router.registry.register=true"]);
    checked.is("registry/schema", "pass", &["not known, run registers it"]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    let id = registry.register(&subject, "AVRO", AVRO);
    let checked = check(&[]);
    let known = format!("of {subject}: known, its id is {id}");
    checked.is("registry/schema", "pass", &[&known]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    registry.always(Some(Mishap::Status(401, String::new())));
    assert_eq!(check(&[]).code, Some(77));
    drop(registry);
    let checked = check(&[]);
    checked.is("registry/server", "fail", &["[registry-unreachable]"]);
    assert_eq!(checked.code, Some(69));

    let row = |kind: &str| {
        let row = json!({
            "id": "018f5a3e-7c1d-7b1a-9c55-0123456789ab", "aggregatetype": kind,
            "aggregateid": "k", "type": "T", "payload": {"number": 7},
        });
        std::fs::write(rig.path("row.json"), row.to_string()).expect("a row");
        let path = rig.path("row.json");
        output(&[
            "route",
            "--config",
            config,
            "--row",
            path.to_str().expect("text"),
        ])
    };
    let shown = row("order");
    assert!(shown.status.success(), "{shown:?}");
    let expected = format!("schema:    subject {}; its id", rig.subject("order"));
    assert!(text(&shown.stdout).contains(&expected), "{shown:?}");
    let refused = row("payment");
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    assert!(
        text(&refused.stderr).contains("[schema-file]"),
        "{refused:?}"
    );
}
