//! Values in a schema registry's wire format. What is written as Avro is read back by the reader of
//! the crate `apache_avro`, which shares no code with the writer.

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::types::Value;
use proptest::prelude::*;
use walrelay_event_router::{
    CloudEventMode, CloudEvents, Event, Lookups, Options, Place, Preset, Route, RouteError, Router,
    SchemaMismatch, SchemaMismatchAt, SubjectNames, Template, ValueFormat, ValueSchema, WireFormat,
};
use walrelay_lsn::{Lsn, RelationId, TypeOid};
use walrelay_pgoutput::{Message, PgTimestamp, decode, encode};
use walrelay_sink::Poison;

const EVENT: Event = Event {
    commit_lsn: Lsn::new(8),
    row: 0,
    commit_time: PgTimestamp::new(0),
};

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
        record: Some(Template::parse(record, Place::Topic, &Lookups::new()).unwrap()),
        ..wire(ValueFormat::Json)
    }
}

fn table() -> encode::Table {
    ["id", "aggregatetype", "aggregateid", "type", "payload"]
        .iter()
        .fold(
            encode::Table::new(RelationId::new(7), "public", "outbox"),
            |table, name| {
                let oid = if *name == "payload" { 3802 } else { 25 };
                table.column(name, TypeOid::new(oid))
            },
        )
}

fn announced(mut router: Router) -> Router {
    let body = table().relation();
    let Ok(Message::Relation(relation)) = decode(&body) else {
        panic!("no relation")
    };
    router.relation(&relation).unwrap();
    router
}

fn router(wire: WireFormat) -> Router {
    announced(Router::new(Options::default()).with_wire_format(Some(wire)))
}

/// The value, and the headers' names and values.
type Seen = (Option<Vec<u8>>, Vec<(String, String)>);

fn seen(router: &mut Router, kind: &str, payload: Option<&str>) -> Result<Seen, RouteError> {
    let row = [Some("1b9d"), Some(kind), Some("k"), Some("placed"), payload];
    let body = table().insert(&row);
    let Ok(Message::Insert(insert)) = decode(&body) else {
        panic!("no insert")
    };
    let routed = router.route(insert.relation, &insert.tuple, &EVENT)?;
    let headers = routed.headers().iter().map(|header| {
        let value = header.value.unwrap_or_default();
        let value = String::from_utf8(value.to_vec()).unwrap();
        (header.name.to_owned(), value)
    });
    Ok((routed.value().map(<[u8]>::to_vec), headers.collect()))
}

fn value(router: &mut Router, kind: &str, payload: &str) -> Result<Vec<u8>, RouteError> {
    Ok(seen(router, kind, Some(payload))?.0.expect("a value"))
}

/// Encodes a payload by a schema, and reads it back.
fn avro(schema: &str, payload: &str) -> Result<Value, SchemaMismatch> {
    let mut router = router(wire(ValueFormat::Avro));
    router.learn(
        "outbox.event.Order-value",
        ValueSchema::avro(258, schema).unwrap(),
    );
    match value(&mut router, "Order", payload) {
        Ok(bytes) => {
            assert_eq!(bytes[..5], [0, 0, 0, 1, 2]);
            let schema = Schema::parse_str(schema).unwrap();
            let reader = GenericDatumReader::builder(&schema).build().unwrap();
            let mut rest = &bytes[5..];
            let read = reader.read_value(&mut rest).expect(payload);
            assert!(rest.is_empty(), "{payload}: {rest:?} is left");
            Ok(read)
        }
        Err(RouteError::SchemaMismatch {
            schema_mismatch, ..
        }) => Err(schema_mismatch),
        Err(other) => panic!("{other}"),
    }
}

#[track_caller]
fn schema_mismatch(schema: &str, payload: &str, place: &str, what: SchemaMismatchAt) {
    let schema_mismatch = avro(schema, payload).unwrap_err();
    assert_eq!(
        (schema_mismatch.place(), schema_mismatch.what),
        (place, what),
        "{payload}"
    );
}

#[test]
fn json_is_the_value_behind_the_id_of_its_schema() {
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
    // Others go by their own; going to and fro changes nothing.
    assert!(value(&mut router, "Other", "1").is_err());
    router.learn("outbox.event.Other-value", ValueSchema::json(9));
    for _ in 0..2 {
        assert_eq!(value(&mut router, "Other", "1").unwrap(), b"\0\0\0\0\x091");
        assert_eq!(
            value(&mut router, "Order", "2").unwrap(),
            b"\0\x01\x02\x03\x042"
        );
    }
    // A later schema takes the former's place; tables that are forgotten leave it.
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
        let schema = match format {
            ValueFormat::Json => ValueSchema::json(1),
            ValueFormat::Avro => ValueSchema::avro(1, "\"string\"").unwrap(),
        };
        router.learn("outbox.event.Order-value", schema.latest());
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
fn subjects_are_called_as_configured() {
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

#[test]
fn it_goes_with_templates_and_with_binary_cloud_events() {
    let template = |text: &str| Template::parse(text, Place::Header, &Lookups::new()).unwrap();
    let events = CloudEvents {
        mode: CloudEventMode::Binary,
        id: None,
        source: template("/orders"),
        kind: template("{type}"),
        time: None,
        subject: None,
        content_type: "application/avro".to_owned(),
        lookups: Lookups::new(),
    };
    let mut router = announced(
        Router::new(Options::default())
            .with_cloud_events(Some(events))
            .with_wire_format(Some(wire(ValueFormat::Avro))),
    );
    let schema = ValueSchema::avro(1, "{\"type\": \"map\", \"values\": \"int\"}").unwrap();
    router.learn("outbox.event.Order-value", schema);
    let (bytes, headers) = seen(&mut router, "Order", Some("{\"a\": 1}")).unwrap();
    assert_eq!(bytes.unwrap(), [0, 0, 0, 0, 1, 2, 2, b'a', 2, 0]);
    let has = |name: &str, value: &str| headers.contains(&(name.to_owned(), value.to_owned()));
    assert!(has("ce_type", "placed") && has("content-type", "application/avro"));

    // An object that is made of the row lies in the buffer that is written to.
    let mut table = encode::Table::new(RelationId::new(8), "public", "outbox");
    for (name, oid) in [
        ("id", 2950),
        ("aggregate_type", 25),
        ("aggregate_id", 25),
        ("event_type", 25),
        ("payload", 3802),
        ("metadata", 3802),
        ("created_at", 1184),
    ] {
        table = table.column(name, TypeOid::new(oid));
    }
    let route = Route::from(Preset::OUTBOX.routes().unwrap());
    for format in [ValueFormat::Json, ValueFormat::Avro] {
        let mut router = Router::new(route.clone()).with_wire_format(Some(wire(format)));
        let body = table.relation();
        let Ok(Message::Relation(relation)) = decode(&body) else {
            panic!("no relation")
        };
        router.relation(&relation).unwrap();
        let text = "{\"type\": \"string\"}";
        let fields: Vec<String> = ["event_id", "event_type", "aggregate_type", "aggregate_id"]
            .iter()
            .map(|name| format!("{{\"name\": \"{name}\", \"type\": {text}}}"))
            .collect();
        let schema = format!(
            "{{\"type\": \"record\", \"name\": \"E\", \"fields\": [{}, \
             {{\"name\": \"payload\", \"type\": {{\"type\": \"map\", \"values\": \"long\"}}}}, \
             {{\"name\": \"metadata\", \"type\": [\"null\", \"string\"]}}, \
             {{\"name\": \"timestamp\", \
               \"type\": {{\"type\": \"long\", \"logicalType\": \"timestamp-micros\"}}}}]}}",
            fields.join(",")
        );
        let learned = match format {
            ValueFormat::Json => ValueSchema::json(1),
            ValueFormat::Avro => ValueSchema::avro(1, &schema).unwrap(),
        };
        router.learn("order.events-value", learned);
        let body = table.insert(&[
            Some("018f5a3e-7c1d-7b1a-9c55-0123456789ab"),
            Some("Order"),
            Some("k"),
            Some("placed"),
            Some("{\"n\": 7}"),
            None,
            Some("2026-01-02 03:04:05.678901+00"),
        ]);
        let Ok(Message::Insert(insert)) = decode(&body) else {
            panic!("no insert")
        };
        let routed = router
            .route(insert.relation, &insert.tuple, &EVENT)
            .unwrap();
        let value = routed.value().unwrap();
        assert_eq!(value[..5], [0, 0, 0, 0, 1]);
        if format == ValueFormat::Json {
            let json: serde_json::Value = serde_json::from_slice(&value[5..]).unwrap();
            assert_eq!(json["payload"]["n"], 7);
            continue;
        }
        let schema = Schema::parse_str(&schema).unwrap();
        let reader = GenericDatumReader::builder(&schema).build().unwrap();
        let Value::Record(fields) = reader.read_value(&mut &value[5..]).unwrap() else {
            panic!("no record")
        };
        let micros = 1_767_323_045_678_901;
        assert_eq!(
            fields[6],
            ("timestamp".to_owned(), Value::TimestampMicros(micros))
        );
        assert_eq!(
            fields[2],
            (
                "aggregate_type".to_owned(),
                Value::String("Order".to_owned())
            )
        );
    }
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn logical(of: &str, name: &str) -> String {
    format!("{{\"type\": \"{of}\", \"logicalType\": \"{name}\"}}")
}

#[test]
fn primitives() {
    use SchemaMismatchAt::{Range, Wants};
    assert_eq!(avro("\"null\"", "null"), Ok(Value::Null));
    assert_eq!(avro("\"boolean\"", "true"), Ok(Value::Boolean(true)));
    for (number, written) in [
        (0, "0"),
        (-1, "-1"),
        (63, "63.0"),
        (64, "64"),
        (1200, "1.2e3"),
        (i32::MAX, "2147483647"),
        (i32::MIN, "-2147483648"),
    ] {
        assert_eq!(
            avro("\"int\"", written),
            Ok(Value::Int(number)),
            "{written}"
        );
        let long = Value::Long(number.into());
        assert_eq!(avro("\"long\"", written), Ok(long), "{written}");
    }
    assert_eq!(
        avro("\"long\"", "-9223372036854775808"),
        Ok(Value::Long(i64::MIN))
    );
    schema_mismatch("\"int\"", "2147483648", "", Range("an int"));
    schema_mismatch("\"long\"", "9223372036854775808", "", Range("a long"));
    schema_mismatch("\"long\"", "1e999999999999", "", Range("a long"));
    schema_mismatch("\"int\"", "1.5", "", Wants("an int"));
    schema_mismatch("\"int\"", "\"1\"", "", Wants("an int"));
    schema_mismatch("\"boolean\"", "1", "", Wants("a boolean"));
    schema_mismatch("\"string\"", "1", "", Wants("a string"));
    assert_eq!(avro("\"double\"", "1"), Ok(Value::Double(1.0)));
    assert_eq!(avro("\"double\"", "-1.5e-7"), Ok(Value::Double(-1.5e-7)));
    assert_eq!(avro("\"float\"", "0.1"), Ok(Value::Float(0.1)));
    schema_mismatch("\"float\"", "1e39", "", Range("a float"));
    schema_mismatch("\"double\"", "1e309", "", Range("a double"));
    assert_eq!(
        avro("\"string\"", "\"a\\u00e9\\n\\ud83d\\ude00\""),
        Ok(text("aé\n😀"))
    );
    schema_mismatch("\"string\"", "\"\\ud83d\"", "", SchemaMismatchAt::NotJson);
    let bytes = Value::Bytes(vec![0, 0x7f, 0xff]);
    assert_eq!(avro("\"bytes\"", "\"\\u0000\\u007fÿ\""), Ok(bytes));
    schema_mismatch("\"bytes\"", "\"\\u0100\"", "", Wants("bytes"));
}

#[test]
fn fixed_enums_arrays_and_maps() {
    let fixed = r#"{"type": "fixed", "name": "F", "size": 2}"#;
    assert_eq!(avro(fixed, "\"ab\""), Ok(Value::Fixed(2, b"ab".to_vec())));
    schema_mismatch(fixed, "\"abc\"", "", SchemaMismatchAt::Size);
    let symbols = r#"{"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}"#;
    assert_eq!(avro(symbols, "\"B\""), Ok(Value::Enum(1, "B".to_owned())));
    schema_mismatch(symbols, "\"s3cret\"", "", SchemaMismatchAt::Symbol);
    let array = r#"{"type": "array", "items": "int"}"#;
    assert_eq!(avro(array, "[]"), Ok(Value::Array(Vec::new())));
    let items = vec![Value::Int(1), Value::Int(2)];
    assert_eq!(avro(array, "[1, 2]"), Ok(Value::Array(items)));
    schema_mismatch(
        array,
        "[1, \"s3cret\"]",
        "[]",
        SchemaMismatchAt::Wants("an int"),
    );
    let map = r#"{"type": "map", "values": "int"}"#;
    // Of several members by one name the last counts, however it is written.
    let read = avro(map, "{\"a\": 1, \"b\": 2, \"\\u0061\": 3}").unwrap();
    let entries = [("a", 3), ("b", 2)];
    let entries = entries.map(|(name, number)| (name.to_owned(), Value::Int(number)));
    assert_eq!(read, Value::Map(entries.into()));
    schema_mismatch(
        map,
        "{\"s3cret\": null}",
        "{}",
        SchemaMismatchAt::Wants("an int"),
    );
}

#[test]
fn logical_types() {
    use SchemaMismatchAt::{Digits, Wants};
    let date = logical("int", "date");
    assert_eq!(avro(&date, "\"1970-01-02\""), Ok(Value::Date(1)));
    assert_eq!(avro(&date, "\"2024-02-29\""), Ok(Value::Date(19_782)));
    assert_eq!(avro(&date, "19782"), Ok(Value::Date(19_782)));
    for wrong in ["\"2026-02-29\"", "\"26-1-1\"", "\"infinity\""] {
        schema_mismatch(&date, wrong, "", Wants("a date"));
    }
    let millis = logical("int", "time-millis");
    assert_eq!(
        avro(&millis, "\"03:04:05.6789\""),
        Ok(Value::TimeMillis(11_045_678))
    );
    let micros = logical("long", "time-micros");
    assert_eq!(
        avro(&micros, "\"03:04:05\""),
        Ok(Value::TimeMicros(11_045_000_000))
    );
    schema_mismatch(&micros, "\"24:00:00\"", "", Wants("a time of day"));

    let stamp = 1_767_323_045_678_901_i64;
    for (unit, read) in [
        ("timestamp-millis", Value::TimestampMillis(stamp / 1000)),
        ("timestamp-micros", Value::TimestampMicros(stamp)),
        ("timestamp-nanos", Value::TimestampNanos(stamp * 1000)),
    ] {
        let schema = logical("long", unit);
        for written in [
            "2026-01-02T03:04:05.678901Z",
            "2026-01-02 03:04:05.678901+00",
            "2026-01-02T04:34:05.678901+01:30",
            "2026-01-01 22:04:05.678901-05",
        ] {
            assert_eq!(
                avro(&schema, &format!("\"{written}\"")),
                Ok(read.clone()),
                "{written}"
            );
        }
        schema_mismatch(
            &schema,
            "\"2026-01-02T03:04:05\"",
            "",
            Wants("a timestamp with an offset"),
        );
    }
    let millis = logical("long", "timestamp-millis");
    assert_eq!(
        avro(&millis, "\"1969-12-31T23:59:59.9999Z\""),
        Ok(Value::TimestampMillis(-1))
    );
    assert_eq!(avro(&millis, "7"), Ok(Value::TimestampMillis(7)));
    let local = logical("long", "local-timestamp-micros");
    let read = Value::LocalTimestampMicros(stamp);
    assert_eq!(avro(&local, "\"2026-01-02T03:04:05.678901\""), Ok(read));
    schema_mismatch(
        &local,
        "\"2026-01-02T03:04:05Z\"",
        "",
        Wants("a timestamp without an offset"),
    );

    let uuid = "018f5a3e-7c1d-7b1a-9c55-0123456789ab";
    let quoted = format!("\"{uuid}\"");
    let fixed = r#"{"type": "fixed", "size": 16, "name": "U", "logicalType": "uuid"}"#;
    for schema in [&*logical("string", "uuid"), fixed] {
        let Ok(Value::Uuid(read)) = avro(schema, &quoted) else {
            panic!("no uuid by {schema}")
        };
        assert_eq!(read.to_string(), uuid);
        schema_mismatch(
            schema,
            "\"018f5a3e7c1d7b1a9c550123456789ab\"",
            "",
            Wants("a uuid"),
        );
    }

    let decimal = r#"{"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}"#;
    let fixed = r#"{"type": "fixed", "size": 4, "name": "D", "logicalType": "decimal",
                   "precision": 6, "scale": 2}"#;
    for schema in [decimal, fixed] {
        for (written, unscaled) in [
            ("12.5", 1250_i32),
            ("\"12.50\"", 1250),
            ("-12.50", -1250),
            ("1.2e1", 1200),
            ("12.500", 1250),
            ("0", 0),
            ("-0.01", -1),
            ("9999.99", 999_999),
        ] {
            let Ok(Value::Decimal(read)) = avro(schema, written) else {
                panic!("no decimal of {written}")
            };
            let read = num_bigint_of(read);
            assert_eq!(read, i128::from(unscaled), "{written}");
        }
        schema_mismatch(schema, "1.255", "", Digits);
        schema_mismatch(schema, "10000", "", Digits);
        schema_mismatch(schema, "\"s3cret\"", "", Wants("a decimal"));
    }
    // Unknown logical types are what lies beneath.
    assert_eq!(
        avro(&logical("string", "color"), "\"red\""),
        Ok(text("red"))
    );
}

/// Of its two's complement.
fn num_bigint_of(decimal: apache_avro::Decimal) -> i128 {
    let bytes: Vec<u8> = decimal.try_into().expect("bytes");
    let sign = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) {
        -1
    } else {
        0
    };
    bytes
        .iter()
        .fold(sign, |number: i128, byte| number << 8 | i128::from(*byte))
}

const ORDER: &str = r#"{"type": "record", "name": "Order", "namespace": "a", "fields": [
    {"name": "id", "type": "long"},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
     "default": "NEW"},
    {"name": "before", "type": ["null", "State"]},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line",
     "fields": [{"name": "sku", "type": "string"}, {"name": "qty", "type": "int", "default": 1},
                {"name": "raw", "type": "bytes", "default": "\u00ff"}]}}, "default": []},
    {"name": "parent", "type": ["null", "Order"], "default": null},
    {"name": "first", "type": "Line", "default": {"sku": "none"}},
    {"name": "tags", "type": {"type": "map", "values": ["string", "long"]}, "default": {"a": "b"}},
    {"name": "due", "type": {"type": "int", "logicalType": "date"}, "default": 3}
]}"#;

#[test]
fn records_with_defaults_and_references_within_the_schema() {
    let line = |sku: &str, qty| {
        Value::Record(vec![
            ("sku".to_owned(), text(sku)),
            ("qty".to_owned(), Value::Int(qty)),
            ("raw".to_owned(), Value::Bytes(vec![0xff])),
        ])
    };
    let null = || Value::Union(0, Box::new(Value::Null));
    let order = |id, state: (u32, &str), before, lines, parent, tags: Value| {
        Value::Record(vec![
            ("id".to_owned(), Value::Long(id)),
            ("state".to_owned(), Value::Enum(state.0, state.1.to_owned())),
            ("before".to_owned(), before),
            ("lines".to_owned(), Value::Array(lines)),
            ("parent".to_owned(), parent),
            ("first".to_owned(), line("none", 1)),
            ("tags".to_owned(), tags),
            ("due".to_owned(), Value::Date(3)),
        ])
    };
    let tags = || {
        let one = Value::Union(0, Box::new(text("b")));
        Value::Map([("a".to_owned(), one)].into())
    };
    let least = |id| order(id, (0, "NEW"), null(), Vec::new(), null(), tags());
    assert_eq!(avro(ORDER, "{\"id\": 1}"), Ok(least(1)));
    let read = avro(
        ORDER,
        r#"{"tags": {"n": 5}, "parent": {"id": 1}, "id": 2, "before": "PAID",
           "lines": [{"qty": 2, "sku": "x"}, {"sku": "y"}], "state": "PAID"}"#,
    );
    let five = Value::Union(1, Box::new(Value::Long(5)));
    let expected = order(
        2,
        (1, "PAID"),
        Value::Union(1, Box::new(Value::Enum(1, "PAID".to_owned()))),
        vec![line("x", 2), line("y", 1)],
        Value::Union(1, Box::new(least(1))),
        Value::Map([("n".to_owned(), five)].into()),
    );
    assert_eq!(read, Ok(expected));
    schema_mismatch(ORDER, "{}", "id", SchemaMismatchAt::Missing);
    schema_mismatch(
        ORDER,
        "[]",
        "",
        SchemaMismatchAt::Wants("an object, of a record"),
    );
    let unknown = "{\"id\": 1, \"s3cret\": 2}";
    schema_mismatch(ORDER, unknown, "", SchemaMismatchAt::UnknownMember);
    let deep = r#"{"id": 1, "parent": {"id": 2, "lines": [{"sku": "a"}, {"sku": 7}]}}"#;
    schema_mismatch(
        ORDER,
        deep,
        "parent.lines[].sku",
        SchemaMismatchAt::Wants("a string"),
    );
    let null = r#"{"id": 1, "state": null}"#;
    schema_mismatch(
        ORDER,
        null,
        "state",
        SchemaMismatchAt::Wants("a symbol of an enum"),
    );
    // A member that comes twice is no unknown one.
    assert_eq!(avro(ORDER, "{\"id\": 7, \"\\u0069d\": 1}"), Ok(least(1)));
}

#[test]
fn unions_in_plain_json_and_in_avros_own() {
    let of = |place, value| Value::Union(place, Box::new(value));
    let schema = r#"["null", "string", "long", "double", "boolean",
        {"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "bytes"]"#;
    for (written, read) in [
        ("null", of(0, Value::Null)),
        ("\"a\"", of(1, text("a"))),
        ("{\"string\": \"a\"}", of(1, text("a"))),
        ("5", of(2, Value::Long(5))),
        ("5.5", of(3, Value::Double(5.5))),
        ("{\"double\": 5}", of(3, Value::Double(5.0))),
        ("true", of(4, Value::Boolean(true))),
        ("[1]", of(5, Value::Array(vec![Value::Int(1)]))),
        // No branch is called so: the map it looks like.
        (
            "{\"x\": 1}",
            of(6, Value::Map([("x".to_owned(), Value::Int(1))].into())),
        ),
        // A branch is called so, but takes no number.
        (
            "{\"string\": 1}",
            of(6, Value::Map([("string".to_owned(), Value::Int(1))].into())),
        ),
        ("{\"bytes\": \"ÿ\"}", of(7, Value::Bytes(vec![0xff]))),
    ] {
        assert_eq!(avro(schema, written), Ok(read), "{written}");
    }
    schema_mismatch(schema, "[\"s3cret\"]", "", SchemaMismatchAt::NoBranch);
    schema_mismatch(
        "[\"string\", \"int\"]",
        "null",
        "",
        SchemaMismatchAt::NoBranch,
    );
    // Beside null there is one: it says what is wrong.
    schema_mismatch(
        "[\"null\", \"int\"]",
        "\"s3cret\"",
        "",
        SchemaMismatchAt::Wants("an int"),
    );
    let bytes_first = "[\"null\", \"bytes\", \"string\"]";
    assert_eq!(avro(bytes_first, "\"a\""), Ok(of(2, text("a"))));
    let named =
        r#"["null", {"type": "record", "name": "a.R", "fields": [{"name": "n", "type": "int"}]}]"#;
    let record = || of(1, Value::Record(vec![("n".to_owned(), Value::Int(1))]));
    assert_eq!(avro(named, "{\"n\": 1}"), Ok(record()));
    assert_eq!(avro(named, "{\"a.R\": {\"n\": 1}}"), Ok(record()));
    let optional = r#"["null", {"type": "long", "logicalType": "timestamp-millis"}]"#;
    let read = of(1, Value::TimestampMillis(0));
    assert_eq!(avro(optional, "{\"long\": 0}"), Ok(read));
}

/// Exponentially many ways through nested unions end in a word, not in the night.
#[test]
fn too_many_ways_are_refused() {
    let schema = r#"{"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A",
        {"type": "record", "name": "B", "fields": [{"name": "x", "type": ["null", "A", "B"]},
         {"name": "y", "type": "int", "default": 0}]}]}]}"#;
    let mut payload = "7".to_owned();
    for _ in 0..100 {
        payload = format!("{{\"x\": {payload}}}");
    }
    let schema_mismatch = avro(schema, &payload).unwrap_err();
    assert_eq!(schema_mismatch.what, SchemaMismatchAt::Ambiguous);
}

#[test]
fn schemas_that_are_of_no_use_are_refused() {
    for (schema, words) in [
        ("", "not an Avro schema"),
        ("{\"type\": \"record\"}", "not an Avro schema"),
        ("\"a.Unknown\"", "not an Avro schema"),
        (
            r#"{"type": "record", "name": "R", "fields": [{"name": "f",
               "type": {"type": "fixed", "name": "F", "size": 2}, "default": "abc"}]}"#,
            "default of field \"f\"",
        ),
    ] {
        let problem = ValueSchema::avro(1, schema).unwrap_err();
        assert!(problem.to_string().contains(words), "{schema}: {problem}");
    }
    let mut deep = "\"int\"".to_owned();
    for _ in 0..200 {
        deep = format!("{{\"type\": \"array\", \"items\": {deep}}}");
    }
    assert!(ValueSchema::avro(1, &deep).is_err());
}

/// A value of the schema below, as JSON.
fn order() -> impl Strategy<Value = serde_json::Value> {
    let line = ("\\PC{0,4}", any::<i32>())
        .prop_map(|(sku, qty)| serde_json::json!({"sku": sku, "qty": qty}));
    let leaf = (
        any::<i64>(),
        prop::collection::vec(line, 0..3),
        any::<bool>(),
    );
    let leaf = leaf.prop_map(|(id, lines, paid)| {
        let state = if paid { "PAID" } else { "NEW" };
        serde_json::json!({"id": id, "lines": lines, "state": state, "before": state})
    });
    leaf.prop_recursive(3, 4, 1, |inner| {
        (any::<i64>(), inner)
            .prop_map(|(id, parent)| serde_json::json!({"id": id, "parent": parent}))
    })
}

proptest! {
    /// What the reader reads is what was written, member by member.
    #[test]
    fn what_is_written_reads_back(wanted in order()) {
        let read = avro(ORDER, &wanted.to_string()).unwrap();
        let json = serde_json::Value::try_from(read).unwrap();
        prop_assert!(is_within(&wanted, &json), "{} in {}", wanted, json);
    }

    /// Nothing panics, whatever the value; no error shows it.
    #[test]
    fn any_text_fits_or_does_not(text in "\\PC{0,20}|\\{\"id\": [0-9.e-]{1,6}(, \"[a-z]{1,6}\": [0-9\"a-z{}\\[\\]:]{0,8})?\\}") {
        if let Err(schema_mismatch) = avro(ORDER, &text) {
            prop_assert!(schema_mismatch.to_string().len() < 200);
        }
    }
}

/// Whether all that stands in `wanted` stands in `found`, which has defaults too.
fn is_within(wanted: &serde_json::Value, found: &serde_json::Value) -> bool {
    match (wanted, found) {
        (serde_json::Value::Object(wanted), serde_json::Value::Object(found)) => wanted
            .iter()
            .all(|(name, value)| found.get(name).is_some_and(|found| is_within(value, found))),
        (serde_json::Value::Array(wanted), serde_json::Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(a, b)| is_within(a, b))
        }
        (wanted, found) => wanted == found,
    }
}
