//! Routes of templates, from the Relation message to the record.

use std::collections::BTreeMap;

use walrelay_event_router::{
    Lookups, Member, Object, Place, PlanError, Preset, RouteError, Router, Scalar, Template,
    Templates, ValueTemplate,
};
use walrelay_sink::Poison;

use crate::messages::{Cell, JSONB, OUTBOX, TEXT, UUID, announce, insert, relation, route, text};

const BOOL: u32 = 16;
const BYTEA: u32 = 17;
const INT8: u32 = 20;
const INT4: u32 = 23;
const NUMERIC: u32 = 1700;
const TIMESTAMPTZ: u32 = 1184;

/// A record, owned.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    topic: String,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    partition: Option<i32>,
    timestamp_ms: Option<i64>,
}

impl Made {
    fn value(&self) -> &str {
        std::str::from_utf8(self.value.as_deref().expect("a value")).unwrap()
    }
}

fn made(router: &mut Router, cells: &[Cell]) -> Result<Made, RouteError> {
    let message = insert(cells);
    let routed = route(router, &message)?;
    let record = routed.record();
    Ok(Made {
        topic: record.topic.to_owned(),
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers: record
            .headers
            .iter()
            .map(|header| (header.name.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect(),
        partition: record.partition,
        timestamp_ms: record.timestamp_ms,
    })
}

fn lookups() -> Lookups {
    let topics = BTreeMap::from([("order.placed".to_owned(), "orders".to_owned())]);
    Lookups::from([("topics".to_owned(), topics)])
}

fn template(text: &str, place: Place) -> Template {
    Template::parse(text, place, &lookups()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A route with a fixed topic and a null key.
fn bare(value: ValueTemplate) -> Templates {
    Templates {
        id: None,
        topic: template("t", Place::Topic),
        key: None,
        value,
        headers: Vec::new(),
        partition: None,
        timestamp: None,
        lookups: lookups(),
    }
}

fn of_value(text: &str) -> Templates {
    bare(ValueTemplate::Text(template(text, Place::Value)))
}

fn of_members(members: &[(&str, &str)]) -> Templates {
    let members = members.iter().map(|(name, text)| {
        let member = Member::Template(template(text, Place::Member));
        ((*name).to_owned(), member)
    });
    bare(ValueTemplate::Object(Object {
        members: members.collect(),
    }))
}

fn router(templates: Templates, columns: &[(&str, u32)]) -> Router {
    let mut router = Router::new(templates);
    announce(&mut router, &relation(columns)).unwrap_or_else(|error| panic!("{error}"));
    router
}

/// The value that a template makes of one column.
fn value_of(expression: &str, type_oid: u32, cell: Cell) -> Result<Option<String>, RouteError> {
    let mut router = router(of_value(expression), &[("c", type_oid)]);
    let value = made(&mut router, &[cell])?.value;
    Ok(value.map(|bytes| String::from_utf8(bytes).unwrap()))
}

/// The JSON that a template makes of one column, as the only member of an object.
fn json_of(expression: &str, type_oid: u32, cell: Cell) -> Result<String, RouteError> {
    let mut router = router(of_members(&[("m", expression)]), &[("c", type_oid)]);
    let made = made(&mut router, &[cell])?;
    // Whatever it is, it is JSON.
    let parsed: serde_json::Value = serde_json::from_str(made.value()).unwrap();
    assert!(parsed.is_object());
    Ok(made.value().to_owned())
}

#[test]
fn events_outbox() {
    let columns = [
        ("id", INT8),
        ("aggregate_id", UUID),
        ("type", TEXT),
        ("payload", JSONB),
        ("created_at", TIMESTAMPTZ),
        ("dispatched_at", TIMESTAMPTZ),
    ];
    let mut router = router(Preset::EVENTS_OUTBOX.routes().unwrap(), &columns);
    let cells = [
        text("17"),
        text("aaaaaaaa-0000-0000-0000-000000000001"),
        text("order.placed"),
        text(r#"{"total": 12.5}"#),
        text("2026-01-02 03:04:05+00"),
        Cell::Null,
    ];
    let record = made(&mut router, &cells).unwrap();
    assert_eq!(record.topic, "order");
    assert_eq!(
        record.key.as_deref(),
        Some(b"aaaaaaaa-0000-0000-0000-000000000001".as_slice())
    );
    assert_eq!(record.value(), r#"{"total": 12.5}"#);
    assert_eq!(
        record.headers,
        [("event_id".to_owned(), Some(b"17".to_vec()))]
    );
    assert_eq!((record.partition, record.timestamp_ms), (None, None));
    let message = insert(&cells);
    assert_eq!(
        route(&mut router, &message).unwrap().event_id(),
        Some(b"17".as_slice())
    );
}

#[test]
fn outbox_events_in_both_of_its_shapes() {
    let of = [
        ("id", UUID),
        ("aggregate_id", TEXT),
        ("event_type", TEXT),
        ("payload", JSONB),
        ("occurred_at", TIMESTAMPTZ),
        ("dispatched_at", TIMESTAMPTZ),
        ("attempts", INT4),
        ("last_error", TEXT),
    ];
    let with_status = [
        ("id", UUID),
        ("aggregate_id", TEXT),
        ("event_type", TEXT),
        ("payload", JSONB),
        ("status", TEXT),
        ("attempts", INT4),
        ("created_at", TIMESTAMPTZ),
        ("updated_at", TIMESTAMPTZ),
        ("sent_at", TIMESTAMPTZ),
    ];
    for columns in [of.as_slice(), with_status.as_slice()] {
        let mut router = router(Preset::OUTBOX_EVENTS.routes().unwrap(), columns);
        let mut cells = vec![Cell::Null; columns.len()];
        for (cell, value) in cells.iter_mut().zip(["i", "agg", "payment", "{}"]) {
            *cell = text(value);
        }
        let record = made(&mut router, &cells).unwrap();
        // Without a dot, all of it.
        assert_eq!(record.topic, "payment");
        assert_eq!(record.key.as_deref(), Some(b"agg".as_slice()));
        assert_eq!(record.value(), "{}");
        assert_eq!(
            record.headers,
            [("x-outbox-event-id".to_owned(), Some(b"i".to_vec()))]
        );
    }
}

#[test]
fn outbox() {
    let mut router = router(Preset::OUTBOX.routes().unwrap(), &OUTBOX);
    let cells = [
        text("i"),
        text("Order"),
        text("o \"1\""),
        text("OrderPlaced"),
        text(r#"{"total": 12.5}"#),
        Cell::Null,
        text("2026-01-02 03:04:05.678+02"),
    ];
    let record = made(&mut router, &cells).unwrap();
    assert_eq!(record.topic, "order.events");
    assert_eq!(record.key.as_deref(), Some(b"o \"1\"".as_slice()));
    assert_eq!(
        record.value(),
        "{\"event_id\":\"i\",\"event_type\":\"OrderPlaced\",\"aggregate_type\":\"Order\",\
         \"aggregate_id\":\"o \\\"1\\\"\",\"payload\":{\"total\": 12.5},\"metadata\":null,\
         \"timestamp\":\"2026-01-02T03:04:05.678+02:00\"}"
    );
    let headers = [("event-type", "OrderPlaced"), ("aggregate-id", "o \"1\"")];
    let headers = headers.map(|(name, value)| (name.to_owned(), Some(value.as_bytes().to_vec())));
    assert_eq!(record.headers, headers);
}

#[test]
fn null_means_what_its_place_says() {
    let columns = [("a", TEXT), ("n", TEXT)];
    let row = [text("x"), Cell::Null];
    let with = |change: &dyn Fn(&mut Templates)| {
        let mut templates = of_value("{a}");
        change(&mut templates);
        made(&mut router(templates, &columns), &row)
    };
    let poison = |made: Result<Made, RouteError>| made.unwrap_err().poison();

    let unroutable = with(&|t| t.topic = template("{n}", Place::Topic));
    assert_eq!(
        unroutable.as_ref().unwrap_err().to_string(),
        "table public.outbox: column \"n\" chooses the topic and is NULL in this row"
    );
    assert_eq!(poison(unroutable), Some(Poison::Unroutable));
    let within = with(&|t| t.topic = template("x.{n}", Place::Topic));
    assert_eq!(poison(within), Some(Poison::Unroutable));

    assert_eq!(
        with(&|t| t.key = Some(template("{n}", Place::Key)))
            .unwrap()
            .key,
        None
    );
    let value = |text| ValueTemplate::Text(template(text, Place::Value));
    assert_eq!(with(&|t| t.value = value("{n}")).unwrap().value, None);
    let within = with(&|t| t.value = value("x{n}"));
    assert_eq!(
        within.as_ref().unwrap_err().to_string(),
        "table public.outbox: column \"n\", needed for the value, is NULL in this row"
    );
    assert_eq!(poison(within), Some(Poison::Undecodable));
    assert_eq!(
        with(&|t| t.value = value("x{n | default('?')}"))
            .unwrap()
            .value(),
        "x?"
    );

    let header = |text| vec![("h".to_owned(), template(text, Place::Header))];
    let present = with(&|t| t.headers = header("{n}")).unwrap().headers;
    assert_eq!(present, [("h".to_owned(), None)]);
    let left_out = with(&|t| t.headers = header("{n | optional}"))
        .unwrap()
        .headers;
    assert_eq!(left_out, []);
    let there = with(&|t| t.headers = header("{a | optional}"))
        .unwrap()
        .headers;
    assert_eq!(there, [("h".to_owned(), Some(b"x".to_vec()))]);

    let partition = |text| Some(template(text, Place::Partition));
    let unroutable = with(&|t| t.partition = partition("{n}"));
    assert_eq!(poison(unroutable), Some(Poison::Unroutable));
    let free = with(&|t| t.partition = partition("{n | optional}"))
        .unwrap()
        .partition;
    assert_eq!(free, None);
    let timestamp = with(&|t| t.timestamp = Some(template("{n}", Place::Timestamp)));
    assert_eq!(timestamp.unwrap().timestamp_ms, None);
}

#[test]
fn partition_and_timestamp_are_numbers_of_their_range() {
    let of = |partition: &str, timestamp: &str| {
        let mut templates = of_value("v");
        templates.partition = Some(template("{p}", Place::Partition));
        templates.timestamp = Some(template("{t}", Place::Timestamp));
        let mut router = router(templates, &[("p", INT4), ("t", TIMESTAMPTZ)]);
        made(&mut router, &[text(partition), text(timestamp)])
    };
    let record = of("7", "2024-02-29 12:34:56.789012+02").unwrap();
    assert_eq!(record.partition, Some(7));
    assert_eq!(record.timestamp_ms, Some(1_709_202_896_789));
    for partition in ["-1", "2147483648", "", "x", "+1"] {
        let error = of(partition, "0").unwrap_err();
        assert_eq!(
            error.poison(),
            Some(Poison::Unroutable),
            "{partition}: {error}"
        );
    }
    for timestamp in ["infinity", "1969-12-31 00:00:00+00", "-5"] {
        let error = of("0", timestamp).unwrap_err();
        assert_eq!(
            error.poison(),
            Some(Poison::Undecodable),
            "{timestamp}: {error}"
        );
        assert!(
            error
                .to_string()
                .contains("is not a point in time since 1970"),
            "{error}"
        );
    }
    let mut templates = of_value("v");
    templates.timestamp = Some(template("{b}", Place::Timestamp));
    let error = announce(&mut Router::new(templates), &relation(&[("b", BOOL)])).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "of type boolean, which is not supported for the timestamp (option \
             router.route.timestamp) in this version: use timestamptz, timestamp, date, or a \
             number of milliseconds since 1970"
        ),
        "{error}"
    );
}

#[test]
fn texts_are_what_the_filters_make_of_them() {
    let value = |expression, cell: &str| value_of(expression, TEXT, text(cell)).unwrap().unwrap();
    assert_eq!(value("{c}", "Ä"), "Ä");
    assert_eq!(value("<{c | lower}> {{{c}}}", "Order"), "<order> {Order}");
    assert_eq!(
        value("{c | after('.') | before('.') | upper}!", "a.bé.c"),
        "BÉ!"
    );
    assert_eq!(value("{c | replace('-', '')}{'$'}{c}", "a-b"), "ab$a-b");
    assert_eq!(value("{c | lookup('topics')}", "order.placed"), "orders");
    assert_eq!(value("{c | lookup('topics', keep)}", "other"), "other");
    assert_eq!(
        value("{c | lookup('topics', 'rest') | upper}", "other"),
        "REST"
    );
    let error = value_of("{c | lookup('topics')}", TEXT, text("secret")).unwrap_err();
    assert_eq!(error.poison(), Some(Poison::Unroutable));
    assert_eq!(
        error.to_string(),
        "table public.outbox: column \"c\", needed for the value, is not in the lookup table in \
         this row"
    );
    // Of other types.
    assert_eq!(value_of("{c}", BOOL, text("t")).unwrap().unwrap(), "true");
    assert_eq!(
        value_of("{c}", BYTEA, text("\\x6162")).unwrap().unwrap(),
        "ab"
    );
    assert_eq!(
        value_of("{c | text}", BYTEA, text("\\x6162"))
            .unwrap()
            .unwrap(),
        "YWI="
    );
    assert_eq!(
        value_of("<{c}>", BYTEA, text("\\x6162")).unwrap().unwrap(),
        "<YWI=>"
    );
    assert_eq!(
        value_of("{c}", JSONB, text("\"x\"")).unwrap().unwrap(),
        "\"x\""
    );
    let member = "{c | json('a', 1, 'b')}";
    let document = r#"{"a": [0, {"b": "x\ty"}]}"#;
    assert_eq!(
        value_of(member, JSONB, text(document)).unwrap().unwrap(),
        "x\ty"
    );
    assert_eq!(value_of(member, JSONB, text("{}")), Ok(None));
    assert_eq!(
        value_of("{c | json('a') | default('-')}", JSONB, text("{}"))
            .unwrap()
            .unwrap(),
        "-"
    );
    // JSON in a string in JSON, as some have it.
    let twice = r#"{"a": "{\"b\": 5}"}"#;
    assert_eq!(
        value_of("{c | json('a') | json('b')}", JSONB, text(twice))
            .unwrap()
            .unwrap(),
        "5"
    );
    let error = value_of("{c | json('a')}", TEXT, text("{")).unwrap_err();
    assert_eq!(error.poison(), Some(Poison::Undecodable));
}

#[test]
fn members_are_json_by_the_type_of_their_column() {
    let json = |type_oid, cell: &str| json_of("{c}", type_oid, text(cell)).unwrap();
    assert_eq!(
        json(TEXT, "a\"b\\c\n\u{1}é😀"),
        "{\"m\":\"a\\\"b\\\\c\\n\\u0001é😀\"}"
    );
    assert_eq!(json(UUID, "aaaaaaaa-0000"), r#"{"m":"aaaaaaaa-0000"}"#);
    assert_eq!(json(INT8, "9007199254740993"), r#"{"m":9007199254740993}"#);
    assert_eq!(json(NUMERIC, "12.50"), r#"{"m":12.50}"#);
    assert_eq!(json(NUMERIC, "NaN"), r#"{"m":"NaN"}"#);
    assert_eq!(json(701, "-1.5e-07"), r#"{"m":-1.5e-07}"#);
    assert_eq!(json(701, "-Infinity"), r#"{"m":"-Infinity"}"#);
    assert_eq!(json(BOOL, "f"), r#"{"m":false}"#);
    assert_eq!(json(JSONB, r#"{"a": [1]}"#), r#"{"m":{"a": [1]}}"#);
    assert_eq!(
        json(TIMESTAMPTZ, "2026-01-02 03:04:05+00"),
        r#"{"m":"2026-01-02T03:04:05Z"}"#
    );
    assert_eq!(json(TIMESTAMPTZ, "infinity"), r#"{"m":"infinity"}"#);
    assert_eq!(json(BYTEA, "\\x6162"), r#"{"m":"YWI="}"#);
    assert_eq!(json(1009, "{a,\"b\"}"), r#"{"m":"{a,\"b\"}"}"#);
    for type_oid in [TEXT, INT8, NUMERIC, BOOL, JSONB, TIMESTAMPTZ, BYTEA] {
        assert_eq!(
            json_of("{c}", type_oid, Cell::Null).unwrap(),
            r#"{"m":null}"#
        );
        assert_eq!(
            json_of("{c | optional}", type_oid, Cell::Null).unwrap(),
            "{}"
        );
    }
    let with =
        |expression, type_oid, cell: &str| json_of(expression, type_oid, text(cell)).unwrap();
    assert_eq!(with("{c | text}", INT8, "5"), r#"{"m":"5"}"#);
    assert_eq!(
        with("{c | text}", JSONB, r#"{"a": 1}"#),
        r#"{"m":"{\"a\": 1}"}"#
    );
    assert_eq!(
        with("{c | json}", TEXT, r#" {"a": 1} "#),
        r#"{"m":{"a": 1}}"#
    );
    assert_eq!(
        with("{c | json('a')}", JSONB, r#"{"a": "x\n"}"#),
        r#"{"m":"x\n"}"#
    );
    assert_eq!(
        with("{c | json('a')}", JSONB, r#"{"a": [1]}"#),
        r#"{"m":[1]}"#
    );
    assert_eq!(
        with("{c | json('a') | lower}", JSONB, r#"{"a": "X\n"}"#),
        r#"{"m":"x\n"}"#
    );
    assert_eq!(with("no. {c}", INT8, "5"), r#"{"m":"no. 5"}"#);
    assert_eq!(
        json_of("{c | default('0')}", INT8, Cell::Null).unwrap(),
        r#"{"m":0}"#
    );
    assert_eq!(
        json_of("{c | default('{}')}", JSONB, Cell::Null).unwrap(),
        r#"{"m":{}}"#
    );
    assert_eq!(
        json_of("{c | default('ä\"')}", TEXT, Cell::Null).unwrap(),
        r#"{"m":"ä\""}"#
    );
    let missing = json_of("{c | json('a') | default('none')}", JSONB, text("{}"));
    assert_eq!(missing.unwrap(), r#"{"m":"none"}"#);
    assert_eq!(
        json_of("{c}", TEXT, Cell::Text(vec![0xff]))
            .unwrap_err()
            .poison(),
        Some(Poison::Undecodable)
    );
}

#[test]
fn objects_nest_and_leave_out() {
    let member = |text| Member::Template(template(text, Place::Member));
    let object = |members: Vec<(&str, Member)>| Object {
        members: members
            .into_iter()
            .map(|(name, member)| (name.to_owned(), member))
            .collect(),
    };
    let inner = object(vec![
        ("a", member("{a | optional}")),
        ("n", member("{n | optional}")),
    ]);
    let outer = object(vec![
        ("gone", member("{n | optional}")),
        ("spec\"version", member("1.0")),
        ("data", Member::Object(inner)),
        ("also gone", member("{n | optional}")),
        ("v", Member::Literal(Scalar::Integer(-3))),
        ("ok", Member::Literal(Scalar::Boolean(true))),
    ]);
    let mut router = router(
        bare(ValueTemplate::Object(outer)),
        &[("a", TEXT), ("n", TEXT)],
    );
    let record = made(&mut router, &[text("x"), Cell::Null]).unwrap();
    let expected = r#"{"spec\"version":"1.0","data":{"a":"x"},"v":-3,"ok":true}"#;
    assert_eq!(record.value(), expected);
    let record = made(&mut router, &[Cell::Null, Cell::Null]).unwrap();
    assert_eq!(record.value(), expected.replace(r#"{"a":"x"}"#, "{}"));
}

#[test]
fn what_the_table_has_not_is_refused() {
    let columns = relation(&[("id", UUID), ("event_typ", TEXT), ("payload", JSONB)]);
    let refused =
        |templates: Templates| announce(&mut Router::new(templates), &columns).unwrap_err();
    assert_eq!(
        refused(of_value("{event_type}")).to_string(),
        "table public.outbox has no column \"event_type\" for the value (option \
         router.route.value); its columns are \"id\", \"event_typ\", \"payload\"; did you mean \
         \"event_typ\"?"
    );
    let header = Templates {
        headers: vec![("x".to_owned(), template("{none}", Place::Header))],
        ..of_value("v")
    };
    let error = refused(header).to_string();
    assert!(
        error.contains("for header \"x\" (option router.route.headers)"),
        "{error}"
    );
    let id = Templates {
        id: Some("uuid".to_owned()),
        ..of_value("v")
    };
    let error = refused(id).to_string();
    assert!(
        error.contains("for the event's id (option router.route.id)"),
        "{error}"
    );
    let error = refused(of_members(&[("m", "{payload | default('no json')}")]));
    assert!(matches!(error, PlanError::Default { .. }), "{error}");
    assert!(
        error.to_string().contains("member \"m\" of the value"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_routed_can_be_salvaged() {
    let mut router = router(
        Preset::EVENTS_OUTBOX.routes().unwrap(),
        &[
            ("id", INT8),
            ("aggregate_id", UUID),
            ("type", TEXT),
            ("payload", JSONB),
        ],
    );
    let message = insert(&[text("17"), text("k"), Cell::Null, text("{}")]);
    assert!(route(&mut router, &message).is_err());
    let (table, row) = crate::messages::as_row(&message);
    let partial_row = router.partial_row(table, &row);
    let [header] = partial_row.headers();
    assert_eq!(
        (header.name, header.value),
        ("event_id", Some(b"17".as_slice()))
    );
    assert_eq!(
        [partial_row.event_id, partial_row.key, partial_row.value],
        [
            Some(b"17".as_slice()),
            Some(b"k".as_slice()),
            Some(b"{}".as_slice())
        ]
    );
}

#[test]
fn errors_and_debug_show_no_values() {
    let mut router = router(of_members(&[("m", "{a | json('x')}")]), &[("a", TEXT)]);
    let message = insert(&[text(r#"{"x": "s3cret"}"#)]);
    let shown = format!("{:?}", route(&mut router, &message).unwrap());
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(!format!("{router:?}").contains("s3cret"), "{router:?}");
    let error = made(&mut router, &[text("s3cret")]).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
}
