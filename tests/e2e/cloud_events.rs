//! CloudEvents in both modes, as a consumer has them.

use serde_json::{Value, json};
use walrelay_testkit::{Db, Delivered, History};

use crate::rig::{PATIENCE, Rig};

const IDS: [&str; 3] = [
    "018f5a3e-7c1d-7b1a-9c55-000000000001",
    "018f5a3e-7c1d-7b1a-9c55-000000000002",
    "018f5a3e-7c1d-7b1a-9c55-000000000003",
];

/// Three rows, one of them without a value, and a message; the last row's type is in no table.
fn delivered(mode: &str) -> Vec<Delivered> {
    let rig = Rig::with_outbox(18);
    let more = format!(
        "\n[router.cloudevents]\nmode = \"{mode}\"\nsource = \"/shop/{{aggregatetype | lower}}\"\n\
         type = \"{{type | lookup('types', keep)}}\"\nsubject = \"{{aggregateid}}\"\n\n\
         [router.lookup.types]\nT1 = \"com.example.created\"\nT2 = \"com.example.deleted\"\n\n\
         [source.messages]\nprefix = \"outbox\"\n"
    );
    let config = rig.config_with(&rig.postgres.url(), &more);
    let relay = rig.streaming(&config);
    let db = Db::connect(&rig.postgres.url());
    let [first, second, third] = IDS;
    db.batch(&format!(
        "INSERT INTO outbox VALUES ('{first}', 'Order', 'k1', 'T1', '{{\"a\": 1.50}}'), \
         ('{second}', 'Order', 'k1', 'T2', NULL), ('{third}', 'Order', 'k\"2', 'T3', '[\"é\"]')"
    ));
    let content =
        json!({"id": "m1", "aggregate": "Order", "key": "k3", "type": "T1", "payload": 7});
    db.batch(&format!(
        "SELECT pg_logical_emit_message(true, 'outbox', '{content}')"
    ));
    rig.caught_up();
    relay.ends_well();
    let mut records = History::records(&rig.bootstrap, &rig.prefix, 4, PATIENCE);
    records.sort_by_key(|record| record.id.clone());
    assert_eq!(records.len(), 4);
    records
}

fn header<'r>(record: &'r Delivered, name: &str) -> Option<&'r str> {
    let (_, value) = record.headers.iter().find(|(known, _)| known == name)?;
    Some(str::from_utf8(value.as_deref()?).expect("text"))
}

/// RFC 3339, of the commit.
fn is_a_time(text: &str) -> bool {
    text.len() >= 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z')
}

const EXPECTED: [(&str, &str, &str); 4] = [
    (IDS[0], "com.example.created", "k1"),
    (IDS[1], "com.example.deleted", "k1"),
    (IDS[2], "T3", "k\"2"),
    ("m1", "com.example.created", "k3"),
];

#[test]
fn in_binary_mode_are_headers_beside_the_value() {
    let records = delivered("binary");
    for (record, (id, kind, subject)) in records.iter().zip(EXPECTED) {
        for (name, value) in [
            ("id", id),
            ("ce_specversion", "1.0"),
            ("ce_id", id),
            ("ce_source", "/shop/order"),
            ("ce_type", kind),
            ("ce_subject", subject),
            ("content-type", "application/json"),
        ] {
            assert_eq!(header(record, name), Some(value), "{name} of {id}");
        }
        assert!(
            header(record, "ce_time").is_some_and(is_a_time),
            "{record:?}"
        );
        assert_eq!(record.key.as_deref(), Some(subject.as_bytes()));
    }
    let values: Vec<Option<&[u8]>> = records.iter().map(|r| r.payload.as_deref()).collect();
    let expected = [Some("{\"a\": 1.50}"), None, Some("[\"é\"]"), Some("7")];
    assert_eq!(values, expected.map(|value| value.map(str::as_bytes)));
}

#[test]
fn in_structured_mode_are_one_object() {
    let records = delivered("structured");
    let data = [
        Some(json!({"a": 1.5})),
        None,
        Some(json!(["é"])),
        Some(json!(7)),
    ];
    for ((record, (id, kind, subject)), data) in records.iter().zip(EXPECTED).zip(data) {
        let media = "application/cloudevents+json; charset=UTF-8";
        assert_eq!(header(record, "content-type"), Some(media));
        assert_eq!(header(record, "ce_id"), None);
        let value = record
            .payload
            .as_deref()
            .expect("an object, also without data");
        let mut event: Value = serde_json::from_slice(value).expect("JSON");
        let event = event.as_object_mut().expect("an object");
        let time = event.remove("time").expect("a time");
        assert!(time.as_str().is_some_and(is_a_time), "{time}");
        let mut expected = json!({
            "specversion": "1.0", "id": id, "source": "/shop/order", "type": kind, "subject": subject,
        });
        if let Some(data) = data {
            expected["datacontenttype"] = "application/json".into();
            expected["data"] = data;
        }
        assert_eq!(Value::from(event.clone()), expected);
    }
}
