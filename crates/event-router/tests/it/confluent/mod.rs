//! Values in a schema registry's wire format. The crate `apache_avro`, which shares no code with
//! the encoder, decodes the Avro values.

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::types::Value;
use proptest::prelude::*;
use walrelay_event_router::{
    CloudEventMode, CloudEvents, Lookups, Options, Preset, RouteError, Router, SchemaMismatch,
    SubjectNames, ValueFormat, ValueSchema, WireFormat,
};
use walrelay_sink::Poison;

use crate::messages::{
    OUTBOX, announce, cloud_events, debezium_outbox, headers, insert_texts, relation, route,
    template,
};

mod avro;

fn wire(format: ValueFormat) -> WireFormat {
    WireFormat {
        format,
        subjects: SubjectNames::Topic,
        record: None,
        lookups: Lookups::new(),
    }
}

fn by_record(subjects: SubjectNames, record: &str) -> WireFormat {
    WireFormat {
        subjects,
        record: Some(template(record)),
        ..wire(ValueFormat::Json)
    }
}

fn announced(mut router: Router) -> Router {
    announce(&mut router, &debezium_outbox()).unwrap();
    router
}

fn router(wire: WireFormat) -> Router {
    announced(Router::new(Options::default()).with_wire_format(Some(wire)))
}

/// Creates a schema of a value in this format; `avro` is its text if the format is Avro.
fn schema(format: ValueFormat, avro: &str) -> ValueSchema {
    match format {
        ValueFormat::Json => ValueSchema::json(1),
        ValueFormat::Avro => ValueSchema::avro(1, avro).unwrap(),
    }
}

/// The value and the headers.
type Seen = (Option<Vec<u8>>, Vec<String>);

fn seen(router: &mut Router, kind: &str, payload: Option<&str>) -> Result<Seen, RouteError> {
    let row = [Some("1b9d"), Some(kind), Some("k"), Some("placed"), payload];
    let body = insert_texts(&row);
    let routed = route(router, &body)?;
    Ok((routed.value().map(<[u8]>::to_vec), headers(&routed)))
}

fn value(router: &mut Router, kind: &str, payload: &str) -> Result<Vec<u8>, RouteError> {
    Ok(seen(router, kind, Some(payload))?.0.expect("a value"))
}

/// Decodes all of these bytes by `apache_avro`.
fn read_back(schema: &str, mut bytes: &[u8]) -> Value {
    let schema = Schema::parse_str(schema).unwrap();
    let reader = GenericDatumReader::builder(&schema).build().unwrap();
    let read = reader.read_value(&mut bytes).unwrap();
    assert!(bytes.is_empty(), "{bytes:?} is left of {read:?}");
    read
}

#[test]
fn json_follows_the_id_of_its_schema() {
    let mut router = router(wire(ValueFormat::Json));
    let unknown = RouteError::UnknownSchema {
        subject: "outbox.event.Order-value".to_owned(),
    };
    assert_eq!(value(&mut router, "Order", "{}"), Err(unknown.clone()));
    assert_eq!(unknown.poison(), None);
    router.learn("outbox.event.Order-value", ValueSchema::json(0x0102_0304));
    let payload = "{\"a\": 1.50, \"a\": \"é\"}";
    let bytes = value(&mut router, "Order", payload).unwrap();
    assert_eq!(bytes, [b"\0\x01\x02\x03\x04", payload.as_bytes()].concat());
    // Each subject has its own schema, also when rows of two subjects alternate.
    assert!(value(&mut router, "Other", "1").is_err());
    router.learn("outbox.event.Other-value", ValueSchema::json(9));
    for _ in 0..2 {
        assert_eq!(value(&mut router, "Other", "1").unwrap(), b"\0\0\0\0\x091");
        assert_eq!(
            value(&mut router, "Order", "2").unwrap(),
            b"\0\x01\x02\x03\x042"
        );
    }
    // A later schema replaces the former one, and `clear` keeps the schemas.
    router.learn("outbox.event.Order-value", ValueSchema::json(5));
    router.clear();
    let mut router = announced(router);
    assert_eq!(value(&mut router, "Order", "2").unwrap(), b"\0\0\0\0\x052");
}

#[test]
fn null_needs_no_schema() {
    for format in [ValueFormat::Json, ValueFormat::Avro] {
        let mut router = router(wire(format));
        assert_eq!(seen(&mut router, "Order", None).unwrap().0, None);
        assert_eq!(router.subject(), None);
    }
}

#[test]
fn what_is_not_json_does_not_fit() {
    for format in [ValueFormat::Json, ValueFormat::Avro] {
        let mut router = router(wire(format));
        let schema = schema(format, "\"string\"").latest();
        router.learn("outbox.event.Order-value", schema);
        for payload in ["", "s3cret", "{\"a\":}", "1 2", &"[".repeat(200)] {
            let error = value(&mut router, "Order", payload).unwrap_err();
            assert_eq!(error.poison(), Some(Poison::Undecodable));
            assert_eq!(
                error.to_string(),
                "table public.outbox: the value is not JSON, or nested too deep, by the schema of \
                 subject \"outbox.event.Order-value\""
            );
        }
    }
}

#[test]
fn subjects_are_named_as_configured() {
    for (subjects, expected) in [
        (SubjectNames::Record, "com.acme.placed"),
        (
            SubjectNames::TopicRecord,
            "outbox.event.Order-com.acme.placed",
        ),
    ] {
        let mut router = router(by_record(subjects, "com.acme.{type}"));
        let error = value(&mut router, "Order", "{}").unwrap_err();
        assert_eq!(
            error,
            RouteError::UnknownSchema {
                subject: expected.to_owned()
            }
        );
        router.learn(expected, ValueSchema::json(1));
        assert!(value(&mut router, "Order", "{}").is_ok());
        assert_eq!(router.subject(), Some(expected));
    }
    let mut router = router(by_record(SubjectNames::Record, "{aggregatetype}"));
    let error = value(&mut router, "", "{}").unwrap_err();
    assert!(
        error.to_string().contains("the name of the record"),
        "{error}"
    );
}

/// A schema of the values of the preset `outbox`.
const EVENT: &str = r#"{"type": "record", "name": "E", "fields": [
    {"name": "event_id", "type": "string"}, {"name": "event_type", "type": "string"},
    {"name": "aggregate_type", "type": "string"}, {"name": "aggregate_id", "type": "string"},
    {"name": "payload", "type": {"type": "map", "values": "long"}},
    {"name": "metadata", "type": ["null", "string"]},
    {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"#;

#[test]
fn a_schema_id_works_with_templates_and_binary_cloud_events() {
    let events = CloudEvents {
        kind: template("{type}"),
        content_type: "application/avro".to_owned(),
        ..cloud_events(CloudEventMode::Binary)
    };
    let mut router = announced(
        Router::new(Options::default())
            .with_cloud_events(Some(events))
            .with_wire_format(Some(wire(ValueFormat::Avro))),
    );
    let map = schema(
        ValueFormat::Avro,
        "{\"type\": \"map\", \"values\": \"int\"}",
    );
    router.learn("outbox.event.Order-value", map);
    let (bytes, headers) = seen(&mut router, "Order", Some("{\"a\": 1}")).unwrap();
    assert_eq!(bytes.unwrap(), [0, 0, 0, 0, 1, 2, 2, b'a', 2, 0]);
    let has = |header: &str| headers.iter().any(|found| found == header);
    assert!(has("ce_type=placed") && has("content-type=application/avro"));

    // An object is rendered into the scratch buffer, which the encoder appends to.
    for format in [ValueFormat::Json, ValueFormat::Avro] {
        let preset = Preset::OUTBOX.routes().unwrap();
        let mut router = Router::new(preset).with_wire_format(Some(wire(format)));
        announce(&mut router, &relation(&OUTBOX)).unwrap();
        router.learn("order.events-value", schema(format, EVENT));
        let body = insert_texts(&[
            Some("018f5a3e-7c1d-7b1a-9c55-0123456789ab"),
            Some("Order"),
            Some("k"),
            Some("placed"),
            Some("{\"n\": 7}"),
            None,
            Some("2026-01-02 03:04:05.678901+00"),
        ]);
        let routed = route(&mut router, &body).unwrap();
        let (header, value) = routed.value().unwrap().split_at(5);
        assert_eq!(header, [0, 0, 0, 0, 1]);
        if format == ValueFormat::Json {
            let json: serde_json::Value = serde_json::from_slice(value).unwrap();
            assert_eq!(json["payload"]["n"], 7);
            continue;
        }
        let Value::Record(fields) = read_back(EVENT, value) else {
            panic!("no record")
        };
        assert_eq!(fields[6].0, "timestamp");
        assert_eq!(fields[6].1, Value::TimestampMicros(1_767_323_045_678_901));
        assert_eq!(fields[2].0, "aggregate_type");
        assert_eq!(fields[2].1, Value::String("Order".to_owned()));
    }
}
