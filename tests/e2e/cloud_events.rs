//! CloudEvents in both modes, as a consumer gets them.

use serde_json::{Value, json};
use walrelay_testkit::Delivered;

use crate::rig::Rig;

const IDS: [&str; 3] = [
    "018f5a3e-7c1d-7b1a-9c55-000000000001",
    "018f5a3e-7c1d-7b1a-9c55-000000000002",
    "018f5a3e-7c1d-7b1a-9c55-000000000003",
];

/// Delivers three rows, one of them without a value, and a message. The type of the last row is in
/// no lookup table.
fn delivered(mode: &str) -> Vec<Delivered> {
    let rig = Rig::with_outbox(18);
    let more = format!(
        "\n[router.cloudevents]\nmode = \"{mode}\"\nsource = \"/shop/{{aggregatetype | lower}}\"\n\
         type = \"{{type | lookup('types', keep)}}\"\nsubject = \"{{aggregateid}}\"\n\n\
         [router.lookup.types]\nT1 = \"com.example.created\"\nT2 = \"com.example.deleted\"\n\n\
         [source.messages]\nprefix = \"outbox\"\n"
    );
    let config = rig.config_and(&more);
    let relay = rig.streaming(&config);
    let db = rig.db();
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
    let mut records = rig.records(4);
    records.sort_by_key(|record| record.id.clone());
    assert_eq!(records.len(), 4);
    records
}

/// Whether the text is a time of RFC 3339 in UTC.
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
fn binary_mode_has_attributes_in_headers_next_to_the_value() {
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
            assert_eq!(record.header(name), Some(value), "{name} of {id}");
        }
        assert!(
            record.header("ce_time").is_some_and(is_a_time),
            "{record:?}"
        );
        assert_eq!(record.key_text(), subject);
    }
    let values: Vec<Option<&[u8]>> = records.iter().map(|r| r.payload.as_deref()).collect();
    let expected = [Some("{\"a\": 1.50}"), None, Some("[\"é\"]"), Some("7")];
    assert_eq!(values, expected.map(|value| value.map(str::as_bytes)));
}

#[test]
fn structured_mode_has_one_object() {
    let records = delivered("structured");
    let data = [
        Some(json!({"a": 1.5})),
        None,
        Some(json!(["é"])),
        Some(json!(7)),
    ];
    for ((record, (id, kind, subject)), data) in records.iter().zip(EXPECTED).zip(data) {
        let media = "application/cloudevents+json; charset=UTF-8";
        assert_eq!(record.header("content-type"), Some(media));
        assert_eq!(record.header("ce_id"), None);
        // There is an object also without data.
        let mut event: Value = serde_json::from_str(record.value_text()).expect("JSON");
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
