//! Avro: which JSON each type of a schema accepts.

use num_bigint::BigInt;
use walrelay_event_router::SchemaMismatchAt::{
    self, Ambiguous, Digits, Missing, NoBranch, NotJson, Range, Size, Symbol, UnknownMember, Wants,
};

use super::*;

/// Encodes a payload by a schema, and decodes it.
fn avro(schema: &str, payload: &str) -> Result<Value, SchemaMismatch> {
    let mut router = router(wire(ValueFormat::Avro));
    router.learn(
        "outbox.event.Order-value",
        ValueSchema::avro(258, schema).unwrap(),
    );
    match value(&mut router, "Order", payload) {
        Ok(bytes) => {
            assert_eq!(bytes[..5], [0, 0, 0, 1, 2]);
            Ok(read_back(schema, &bytes[5..]))
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
    let place = place.to_owned();
    assert_eq!(schema_mismatch, SchemaMismatch { what, place }, "{payload}");
}

#[track_caller]
fn reads(schema: &str, payload: &str, read: Value) {
    assert_eq!(avro(schema, payload), Ok(read), "{payload}");
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn record<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Record(fields.map(|(name, value)| (name.to_owned(), value)).into())
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let entries = entries.map(|(name, value)| (name.to_owned(), value));
    Value::Map(entries.into())
}

fn union(branch: u32, value: Value) -> Value {
    Value::Union(branch, Box::new(value))
}

fn logical(of: &str, name: &str) -> String {
    format!("{{\"type\": \"{of}\", \"logicalType\": \"{name}\"}}")
}

#[test]
fn primitives() {
    for (number, written) in [
        (0, "0"),
        (-1, "-1"),
        (63, "63.0"),
        (64, "64"),
        (1200, "1.2e3"),
        (i32::MAX, "2147483647"),
        (i32::MIN, "-2147483648"),
    ] {
        reads("\"int\"", written, Value::Int(number));
        reads("\"long\"", written, Value::Long(number.into()));
    }
    for (schema, written, read) in [
        ("null", "null", Value::Null),
        ("boolean", "true", Value::Boolean(true)),
        ("long", "-9223372036854775808", Value::Long(i64::MIN)),
        ("double", "1", Value::Double(1.0)),
        ("double", "-1.5e-7", Value::Double(-1.5e-7)),
        ("float", "0.1", Value::Float(0.1)),
        ("string", r#""a\u00e9\n\ud83d\ude00""#, text("aé\n😀")),
        (
            "bytes",
            r#""\u0000\u007fÿ""#,
            Value::Bytes(vec![0, 0x7f, 0xff]),
        ),
    ] {
        reads(&format!("\"{schema}\""), written, read);
    }
    for (schema, written, what) in [
        ("int", "2147483648", Range("an int")),
        ("long", "9223372036854775808", Range("a long")),
        ("long", "1e999999999999", Range("a long")),
        ("int", "1.5", Wants("an int")),
        ("int", "\"1\"", Wants("an int")),
        ("boolean", "1", Wants("a boolean")),
        ("string", "1", Wants("a string")),
        ("float", "1e39", Range("a float")),
        ("double", "1e309", Range("a double")),
        ("string", r#""\ud83d""#, NotJson),
        ("bytes", r#""\u0100""#, Wants("bytes")),
    ] {
        schema_mismatch(&format!("\"{schema}\""), written, "", what);
    }
}

#[test]
fn fixed_enums_arrays_and_maps() {
    let fixed = r#"{"type": "fixed", "name": "F", "size": 2}"#;
    reads(fixed, "\"ab\"", Value::Fixed(2, b"ab".to_vec()));
    schema_mismatch(fixed, "\"abc\"", "", Size);
    let symbols = r#"{"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}"#;
    reads(symbols, "\"B\"", Value::Enum(1, "B".to_owned()));
    schema_mismatch(symbols, "\"s3cret\"", "", Symbol);
    let array = r#"{"type": "array", "items": "int"}"#;
    reads(array, "[]", Value::Array(Vec::new()));
    let items = vec![Value::Int(1), Value::Int(2)];
    reads(array, "[1, 2]", Value::Array(items));
    schema_mismatch(array, "[1, \"s3cret\"]", "[]", Wants("an int"));
    let ints = r#"{"type": "map", "values": "int"}"#;
    // The last of several members of a name counts, also if its name has escapes.
    let read = map([("a", Value::Int(3)), ("b", Value::Int(2))]);
    reads(ints, "{\"a\": 1, \"b\": 2, \"\\u0061\": 3}", read);
    schema_mismatch(ints, "{\"s3cret\": null}", "{}", Wants("an int"));
}

#[test]
fn logical_types() {
    let date = logical("int", "date");
    reads(&date, "\"1970-01-02\"", Value::Date(1));
    reads(&date, "\"2024-02-29\"", Value::Date(19_782));
    reads(&date, "19782", Value::Date(19_782));
    for wrong in ["\"2026-02-29\"", "\"26-1-1\"", "\"infinity\""] {
        schema_mismatch(&date, wrong, "", Wants("a date"));
    }
    let millis = logical("int", "time-millis");
    reads(&millis, "\"03:04:05.6789\"", Value::TimeMillis(11_045_678));
    let micros = logical("long", "time-micros");
    reads(&micros, "\"03:04:05\"", Value::TimeMicros(11_045_000_000));
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
            reads(&schema, &format!("\"{written}\""), read.clone());
        }
        schema_mismatch(
            &schema,
            "\"2026-01-02T03:04:05\"",
            "",
            Wants("a timestamp with an offset"),
        );
    }
    let millis = logical("long", "timestamp-millis");
    reads(
        &millis,
        "\"1969-12-31T23:59:59.9999Z\"",
        Value::TimestampMillis(-1),
    );
    reads(&millis, "7", Value::TimestampMillis(7));
    let local = logical("long", "local-timestamp-micros");
    let read = Value::LocalTimestampMicros(stamp);
    reads(&local, "\"2026-01-02T03:04:05.678901\"", read);
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
            ("12.5", 1250),
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
            assert_eq!(BigInt::from(read), BigInt::from(unscaled), "{written}");
        }
        schema_mismatch(schema, "1.255", "", Digits);
        schema_mismatch(schema, "10000", "", Digits);
        schema_mismatch(schema, "\"s3cret\"", "", Wants("a decimal"));
    }
    // An unknown logical type is read as its underlying type.
    reads(&logical("string", "color"), "\"red\"", text("red"));
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
        let raw = Value::Bytes(vec![0xff]);
        record([("sku", text(sku)), ("qty", Value::Int(qty)), ("raw", raw)])
    };
    let null = || union(0, Value::Null);
    let order = |id, state: (u32, &str), before, lines, parent, tags: Value| {
        record([
            ("id", Value::Long(id)),
            ("state", Value::Enum(state.0, state.1.to_owned())),
            ("before", before),
            ("lines", Value::Array(lines)),
            ("parent", parent),
            ("first", line("none", 1)),
            ("tags", tags),
            ("due", Value::Date(3)),
        ])
    };
    let tags = || map([("a", union(0, text("b")))]);
    let least = |id| order(id, (0, "NEW"), null(), Vec::new(), null(), tags());
    reads(ORDER, "{\"id\": 1}", least(1));
    let read = avro(
        ORDER,
        r#"{"tags": {"n": 5}, "parent": {"id": 1}, "id": 2, "before": "PAID",
           "lines": [{"qty": 2, "sku": "x"}, {"sku": "y"}], "state": "PAID"}"#,
    );
    let expected = order(
        2,
        (1, "PAID"),
        union(1, Value::Enum(1, "PAID".to_owned())),
        vec![line("x", 2), line("y", 1)],
        union(1, least(1)),
        map([("n", union(1, Value::Long(5)))]),
    );
    assert_eq!(read, Ok(expected));
    schema_mismatch(ORDER, "{}", "id", Missing);
    schema_mismatch(ORDER, "[]", "", Wants("an object, of a record"));
    let unknown = "{\"id\": 1, \"s3cret\": 2}";
    schema_mismatch(ORDER, unknown, "", UnknownMember);
    let deep = r#"{"id": 1, "parent": {"id": 2, "lines": [{"sku": "a"}, {"sku": 7}]}}"#;
    schema_mismatch(ORDER, deep, "parent.lines[].sku", Wants("a string"));
    let null = r#"{"id": 1, "state": null}"#;
    schema_mismatch(ORDER, null, "state", Wants("a symbol of an enum"));
    // A repeated name is not an unknown member.
    reads(ORDER, "{\"id\": 7, \"\\u0069d\": 1}", least(1));
}

#[test]
fn unions_with_and_without_the_branch() {
    let schema = r#"["null", "string", "long", "double", "boolean",
        {"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "bytes"]"#;
    for (written, read) in [
        ("null", union(0, Value::Null)),
        ("\"a\"", union(1, text("a"))),
        ("{\"string\": \"a\"}", union(1, text("a"))),
        ("5", union(2, Value::Long(5))),
        ("5.5", union(3, Value::Double(5.5))),
        ("{\"double\": 5}", union(3, Value::Double(5.0))),
        ("true", union(4, Value::Boolean(true))),
        ("[1]", union(5, Value::Array(vec![Value::Int(1)]))),
        // No branch has this name: the value is a map.
        ("{\"x\": 1}", union(6, map([("x", Value::Int(1))]))),
        // A branch has this name, but does not accept a number: the value is a map.
        (
            "{\"string\": 1}",
            union(6, map([("string", Value::Int(1))])),
        ),
        ("{\"bytes\": \"ÿ\"}", union(7, Value::Bytes(vec![0xff]))),
    ] {
        reads(schema, written, read);
    }
    schema_mismatch(schema, "[\"s3cret\"]", "", NoBranch);
    schema_mismatch("[\"string\", \"int\"]", "null", "", NoBranch);
    // Beside null there is only one branch, whose error is reported.
    schema_mismatch("[\"null\", \"int\"]", "\"s3cret\"", "", Wants("an int"));
    let bytes_first = "[\"null\", \"bytes\", \"string\"]";
    reads(bytes_first, "\"a\"", union(2, text("a")));
    let named =
        r#"["null", {"type": "record", "name": "a.R", "fields": [{"name": "n", "type": "int"}]}]"#;
    for written in ["{\"n\": 1}", "{\"a.R\": {\"n\": 1}}"] {
        reads(named, written, union(1, record([("n", Value::Int(1))])));
    }
    let optional = r#"["null", {"type": "long", "logicalType": "timestamp-millis"}]"#;
    let read = union(1, Value::TimestampMillis(0));
    reads(optional, "{\"long\": 0}", read);
}

/// Nested unions with exponentially many combinations give an error instead of running for hours.
#[test]
fn too_many_combinations_are_refused() {
    let schema = r#"{"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A",
        {"type": "record", "name": "B", "fields": [{"name": "x", "type": ["null", "A", "B"]},
         {"name": "y", "type": "int", "default": 0}]}]}]}"#;
    let mut payload = "7".to_owned();
    for _ in 0..100 {
        payload = format!("{{\"x\": {payload}}}");
    }
    let schema_mismatch = avro(schema, &payload).unwrap_err();
    assert_eq!(schema_mismatch.what, Ambiguous);
}

#[test]
fn invalid_schemas_are_refused() {
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

/// Generates random values of the schema [`ORDER`], as JSON.
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
    /// `apache_avro` decodes what the router encoded, member by member.
    #[test]
    fn encoded_values_are_decoded(wanted in order()) {
        let read = avro(ORDER, &wanted.to_string()).unwrap();
        let json = serde_json::Value::try_from(read).unwrap();
        prop_assert!(is_within(&wanted, &json), "{} in {}", wanted, json);
    }

    /// No value makes the encoder panic, and no error shows the value.
    #[test]
    fn no_text_panics(text in "\\PC{0,20}|\\{\"id\": [0-9.e-]{1,6}(, \"[a-z]{1,6}\": [0-9\"a-z{}\\[\\]:]{0,8})?\\}") {
        if let Err(schema_mismatch) = avro(ORDER, &text) {
            prop_assert!(schema_mismatch.to_string().len() < 200);
        }
    }
}

/// Returns true if `found`, which has defaults too, contains all of `wanted`.
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
