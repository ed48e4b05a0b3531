//! Routes of templates, from the Relation message to the record.

use std::collections::BTreeMap;

use walrelay_event_router::{
    Address, AddressPart, Lookups, Member, Object, Options, PlanError, Preset, Route, RouteError,
    Router, Template, TemplateTarget, Templates, Tokens, ValueTemplate,
};
use walrelay_pgoutput::Value;
use walrelay_sink::Poison;

use crate::messages::{
    BOOL, INT8, JSONB, OUTBOX, TEXT, TIMESTAMPTZ, TextRecord, UUID, announce, as_row, insert,
    relation, route, text, text_record,
};

const BYTEA: u32 = 17;
const INT4: u32 = 23;
const NUMERIC: u32 = 1700;

fn record_of(router: &mut Router, values: &[Value<'_>]) -> Result<TextRecord, RouteError> {
    text_record(router, &insert(values))
}

fn lookups() -> Lookups {
    let topics = BTreeMap::from([("order.placed".to_owned(), "orders".to_owned())]);
    Lookups::from([("topics".to_owned(), topics)])
}

fn template(text: &str, place: TemplateTarget) -> Template {
    Template::parse(text, place, &lookups()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Creates a route with a fixed topic and a null key.
fn bare(value: ValueTemplate) -> Templates {
    Templates {
        id: None,
        topic: template("t", TemplateTarget::Topic),
        key: None,
        value,
        headers: Vec::new(),
        partition: None,
        timestamp: None,
        lookups: lookups(),
    }
}

fn value_route(text: &str) -> Templates {
    bare(ValueTemplate::Text(template(text, TemplateTarget::Value)))
}

fn members_route(members: &[(&str, &str)]) -> Templates {
    let members = members.iter().map(|(name, text)| {
        let member = Member::Template(template(text, TemplateTarget::Member));
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

/// Renders the template `expression` for a column `c`.
fn value_of(
    expression: &str,
    type_oid: u32,
    value: Value<'_>,
) -> Result<Option<String>, RouteError> {
    let mut router = router(value_route(expression), &[("c", type_oid)]);
    Ok(record_of(&mut router, &[value])?.value)
}

/// Renders an object whose only member is the template `expression` for a column `c`; returns the
/// JSON of the member, or `None` if it is left out.
fn json_of(
    expression: &str,
    type_oid: u32,
    value: Value<'_>,
) -> Result<Option<String>, RouteError> {
    let mut router = router(members_route(&[("m", expression)]), &[("c", type_oid)]);
    let object = record_of(&mut router, &[value])?.value.unwrap();
    // The result is JSON for every value.
    let parsed: serde_json::Value = serde_json::from_str(&object).unwrap();
    assert!(parsed.is_object());
    if object == "{}" {
        return Ok(None);
    }
    let member = object.strip_prefix("{\"m\":").unwrap();
    Ok(member.strip_suffix('}').map(str::to_owned))
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
    let values = [
        text("17"),
        text("aaaaaaaa-0000-0000-0000-000000000001"),
        text("order.placed"),
        text(r#"{"total": 12.5}"#),
        text("2026-01-02 03:04:05+00"),
        Value::Null,
    ];
    let expected = TextRecord {
        topic: "order".to_owned(),
        key: Some("aaaaaaaa-0000-0000-0000-000000000001".to_owned()),
        value: Some(r#"{"total": 12.5}"#.to_owned()),
        headers: vec!["event_id=17".to_owned()],
        partition: None,
        timestamp_ms: None,
    };
    assert_eq!(record_of(&mut router, &values), Ok(expected));
    let message = insert(&values);
    let event_id = route(&mut router, &message).unwrap().event_id();
    assert_eq!(event_id, Some(b"17".as_slice()));
}

#[test]
fn outbox_events_of_both_tables() {
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
        let mut values = vec![Value::Null; columns.len()];
        values[..4].copy_from_slice(&["i", "agg", "payment", "{}"].map(text));
        let record = record_of(&mut router, &values).unwrap();
        // A type without a dot is the topic.
        assert_eq!(record.topic, "payment");
        assert_eq!(record.key.as_deref(), Some("agg"));
        assert_eq!(record.value.as_deref(), Some("{}"));
        assert_eq!(record.headers, ["x-outbox-event-id=i"]);
    }
}

#[test]
fn outbox() {
    let mut router = router(Preset::OUTBOX.routes().unwrap(), &OUTBOX);
    let values = [
        text("i"),
        text("Order"),
        text("o \"1\""),
        text("OrderPlaced"),
        text(r#"{"total": 12.5}"#),
        Value::Null,
        text("2026-01-02 03:04:05.678+02"),
    ];
    let record = record_of(&mut router, &values).unwrap();
    assert_eq!(record.topic, "order.events");
    assert_eq!(record.key.as_deref(), Some("o \"1\""));
    assert_eq!(
        record.value.unwrap(),
        "{\"event_id\":\"i\",\"event_type\":\"OrderPlaced\",\"aggregate_type\":\"Order\",\
         \"aggregate_id\":\"o \\\"1\\\"\",\"payload\":{\"total\": 12.5},\"metadata\":null,\
         \"timestamp\":\"2026-01-02T03:04:05.678+02:00\"}"
    );
    let headers = ["event-type=OrderPlaced", "aggregate-id=o \"1\""];
    assert_eq!(record.headers, headers);
}

#[test]
fn the_place_decides_what_null_means() {
    let with = |change: &dyn Fn(&mut Templates)| {
        let mut templates = value_route("{a}");
        change(&mut templates);
        let mut router = router(templates, &[("a", TEXT), ("n", TEXT)]);
        record_of(&mut router, &[text("x"), Value::Null])
    };
    let topic = |text| with(&|t| t.topic = template(text, TemplateTarget::Topic)).unwrap_err();
    let unroutable = topic("{n}");
    assert_eq!(
        unroutable.to_string(),
        "table public.outbox: column \"n\" chooses the topic and is NULL in this row"
    );
    assert_eq!(unroutable.poison(), Some(Poison::Unroutable));
    assert_eq!(topic("x.{n}").poison(), Some(Poison::Unroutable));

    let key = with(&|t| t.key = Some(template("{n}", TemplateTarget::Key)));
    assert_eq!(key.unwrap().key, None);

    let value =
        |text| with(&|t| t.value = ValueTemplate::Text(template(text, TemplateTarget::Value)));
    assert_eq!(value("{n}").unwrap().value, None);
    let within = value("x{n}").unwrap_err();
    assert_eq!(
        within.to_string(),
        "table public.outbox: column \"n\", needed for the value, is NULL in this row"
    );
    assert_eq!(within.poison(), Some(Poison::Undecodable));
    let replaced = value("x{n | default('?')}").unwrap();
    assert_eq!(replaced.value.as_deref(), Some("x?"));

    let headers = |text| {
        let headers = vec![("h".to_owned(), template(text, TemplateTarget::Header))];
        with(&|t| t.headers.clone_from(&headers)).unwrap().headers
    };
    assert_eq!(headers("{n}"), ["h=(null)"]);
    assert!(headers("{n | optional}").is_empty());
    assert_eq!(headers("{a | optional}"), ["h=x"]);

    let partition = |text| with(&|t| t.partition = Some(template(text, TemplateTarget::Partition)));
    let unroutable = partition("{n}").unwrap_err();
    assert_eq!(unroutable.poison(), Some(Poison::Unroutable));
    assert_eq!(partition("{n | optional}").unwrap().partition, None);

    let timestamp = with(&|t| t.timestamp = Some(template("{n}", TemplateTarget::Timestamp)));
    assert_eq!(timestamp.unwrap().timestamp_ms, None);
}

#[test]
fn partition_and_timestamp_are_numbers_of_their_range() {
    let of = |partition: &str, timestamp: &str| {
        let mut templates = value_route("v");
        templates.partition = Some(template("{p}", TemplateTarget::Partition));
        templates.timestamp = Some(template("{t}", TemplateTarget::Timestamp));
        let mut router = router(templates, &[("p", INT4), ("t", TIMESTAMPTZ)]);
        record_of(&mut router, &[text(partition), text(timestamp)])
    };
    let record = of("7", "2024-02-29 12:34:56.789012+02").unwrap();
    assert_eq!(record.partition, Some(7));
    assert_eq!(record.timestamp_ms, Some(1_709_202_896_789));
    for partition in ["-1", "2147483648", "", "x", "+1"] {
        let error = of(partition, "0").unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Unroutable), "{error}");
    }
    for timestamp in ["infinity", "1969-12-31 00:00:00+00", "-5"] {
        let error = of("0", timestamp).unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Undecodable), "{error}");
        let why = "is not a point in time since 1970";
        assert!(error.to_string().contains(why), "{error}");
    }
    let mut templates = value_route("v");
    templates.timestamp = Some(template("{b}", TemplateTarget::Timestamp));
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
fn filters_change_texts() {
    let of = |type_oid, cell: &str, expression: &str| {
        value_of(expression, type_oid, text(cell)).unwrap().unwrap()
    };
    assert_eq!(of(TEXT, "Ä", "{c}"), "Ä");
    assert_eq!(
        of(TEXT, "Order", "<{c | lower}> {{{c}}}"),
        "<order> {Order}"
    );
    assert_eq!(
        of(TEXT, "a.bé.c", "{c | after('.') | before('.') | upper}!"),
        "BÉ!"
    );
    assert_eq!(of(TEXT, "a-b", "{c | replace('-', '')}{'$'}{c}"), "ab$a-b");
    assert_eq!(of(TEXT, "order.placed", "{c | lookup('topics')}"), "orders");
    assert_eq!(of(TEXT, "other", "{c | lookup('topics', keep)}"), "other");
    assert_eq!(
        of(TEXT, "other", "{c | lookup('topics', 'rest') | upper}"),
        "REST"
    );
    let error = value_of("{c | lookup('topics')}", TEXT, text("secret")).unwrap_err();
    assert_eq!(error.poison(), Some(Poison::Unroutable));
    assert_eq!(
        error.to_string(),
        "table public.outbox: column \"c\", needed for the value, is not in the lookup table in \
         this row"
    );
    // Columns of other types than text.
    assert_eq!(of(BOOL, "t", "{c}"), "true");
    assert_eq!(of(BYTEA, "\\x6162", "{c}"), "ab");
    assert_eq!(of(BYTEA, "\\x6162", "{c | text}"), "YWI=");
    assert_eq!(of(BYTEA, "\\x6162", "<{c}>"), "<YWI=>");
    assert_eq!(of(JSONB, "\"x\"", "{c}"), "\"x\"");
    let member = "{c | json('a', 1, 'b')}";
    assert_eq!(of(JSONB, r#"{"a": [0, {"b": "x\ty"}]}"#, member), "x\ty");
    assert_eq!(value_of(member, JSONB, text("{}")), Ok(None));
    assert_eq!(of(JSONB, "{}", "{c | json('a') | default('-')}"), "-");
    // JSON in a string of JSON, which some tables contain.
    let twice = r#"{"a": "{\"b\": 5}"}"#;
    assert_eq!(of(JSONB, twice, "{c | json('a') | json('b')}"), "5");
    let error = value_of("{c | json('a')}", TEXT, text("{")).unwrap_err();
    assert_eq!(error.poison(), Some(Poison::Undecodable));
    // The bytes of `bytea` are the document: {"a":"é"}, and {"a":"\xff"}.
    assert_eq!(of(BYTEA, "\\x7b2261223a22c3a9227d", "{c | json('a')}"), "é");
    let error = value_of("{c | json('a')}", BYTEA, text("\\x7b2261223a22ff227d")).unwrap_err();
    assert_eq!(error.poison(), Some(Poison::Undecodable));
}

#[test]
fn members_are_json_by_the_type_of_their_column() {
    let of = |type_oid, value: Value<'_>, expression: &str| {
        json_of(expression, type_oid, value).unwrap()
    };
    for (type_oid, cell, expected) in [
        (TEXT, "a\"b\\c\n\u{1}é😀", r#""a\"b\\c\n\u0001é😀""#),
        (UUID, "aaaaaaaa-0000", r#""aaaaaaaa-0000""#),
        (INT8, "9007199254740993", "9007199254740993"),
        (NUMERIC, "12.50", "12.50"),
        (NUMERIC, "NaN", "\"NaN\""),
        (701, "-1.5e-07", "-1.5e-07"),
        (701, "-Infinity", "\"-Infinity\""),
        (BOOL, "f", "false"),
        (JSONB, r#"{"a": [1]}"#, r#"{"a": [1]}"#),
        (
            TIMESTAMPTZ,
            "2026-01-02 03:04:05+00",
            r#""2026-01-02T03:04:05Z""#,
        ),
        (TIMESTAMPTZ, "infinity", "\"infinity\""),
        (BYTEA, "\\x6162", "\"YWI=\""),
        (1009, "{a,\"b\"}", r#""{a,\"b\"}""#),
    ] {
        assert_eq!(of(type_oid, text(cell), "{c}").unwrap(), expected, "{cell}");
    }
    for type_oid in [TEXT, INT8, NUMERIC, BOOL, JSONB, TIMESTAMPTZ, BYTEA] {
        assert_eq!(of(type_oid, Value::Null, "{c}").unwrap(), "null");
        assert_eq!(of(type_oid, Value::Null, "{c | optional}"), None);
    }
    for (type_oid, cell, expression, expected) in [
        (INT8, "5", "{c | text}", "\"5\""),
        (JSONB, r#"{"a": 1}"#, "{c | text}", r#""{\"a\": 1}""#),
        (TEXT, r#" {"a": 1} "#, "{c | json}", r#"{"a": 1}"#),
        (JSONB, r#"{"a": "x\n"}"#, "{c | json('a')}", r#""x\n""#),
        (JSONB, r#"{"a": [1]}"#, "{c | json('a')}", "[1]"),
        (
            JSONB,
            r#"{"a": "X\n"}"#,
            "{c | json('a') | lower}",
            r#""x\n""#,
        ),
        (JSONB, "{}", "{c | json('a') | default('none')}", "\"none\""),
        (INT8, "5", "no. {c}", "\"no. 5\""),
    ] {
        assert_eq!(of(type_oid, text(cell), expression).unwrap(), expected);
    }
    for (type_oid, expression, expected) in [
        (INT8, "{c | default('0')}", "0"),
        (JSONB, "{c | default('{}')}", "{}"),
        (TEXT, "{c | default('ä\"')}", r#""ä\"""#),
    ] {
        assert_eq!(of(type_oid, Value::Null, expression).unwrap(), expected);
    }
    let error = json_of("{c}", TEXT, Value::Text(b"\xff")).unwrap_err();
    assert_eq!(error.poison(), Some(Poison::Undecodable));
}

#[test]
fn objects_nest_and_leave_out_members() {
    let member = |text| Member::Template(template(text, TemplateTarget::Member));
    let object = |members: Vec<(&str, Member)>| {
        let members = members.into_iter();
        let members = members.map(|(name, member)| (name.to_owned(), member));
        Object {
            members: members.collect(),
        }
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
        ("v", Member::Integer(-3)),
        ("ok", Member::Boolean(true)),
    ]);
    let templates = bare(ValueTemplate::Object(outer));
    let mut router = router(templates, &[("a", TEXT), ("n", TEXT)]);
    let mut value = |a| {
        let record = record_of(&mut router, &[a, Value::Null]).unwrap();
        record.value.unwrap()
    };
    let expected = r#"{"spec\"version":"1.0","data":{"a":"x"},"v":-3,"ok":true}"#;
    assert_eq!(value(text("x")), expected);
    assert_eq!(value(Value::Null), expected.replace(r#"{"a":"x"}"#, "{}"));
}

#[test]
fn missing_columns_are_refused() {
    let columns = relation(&[("id", UUID), ("event_typ", TEXT), ("payload", JSONB)]);
    let refused =
        |templates: Templates| announce(&mut Router::new(templates), &columns).unwrap_err();
    assert_eq!(
        refused(value_route("{event_type}")).to_string(),
        "table public.outbox has no column \"event_type\" for the value (option \
         router.route.value); its columns are \"id\", \"event_typ\", \"payload\"; did you mean \
         \"event_typ\"?"
    );
    let header = Templates {
        headers: vec![("x".to_owned(), template("{none}", TemplateTarget::Header))],
        ..value_route("v")
    };
    let id = Templates {
        id: Some("uuid".to_owned()),
        ..value_route("v")
    };
    let default = members_route(&[("m", "{payload | default('no json')}")]);
    let error = refused(default.clone());
    assert!(matches!(error, PlanError::Default { .. }), "{error}");
    for (templates, words) in [
        (header, "for header \"x\" (option router.route.headers)"),
        (id, "for the event's id (option router.route.id)"),
        (default, "member \"m\" of the value"),
    ] {
        let error = refused(templates).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn an_unroutable_row_gives_a_partial_row() {
    let columns = [
        ("id", INT8),
        ("aggregate_id", UUID),
        ("type", TEXT),
        ("payload", JSONB),
    ];
    let mut router = router(Preset::EVENTS_OUTBOX.routes().unwrap(), &columns);
    let message = insert(&[text("17"), text("k"), Value::Null, text("{}")]);
    assert!(route(&mut router, &message).is_err());
    let (table, row) = as_row(&message);
    let partial_row = router.partial_row(table, &row);
    let [header] = partial_row.headers();
    assert_eq!((header.name, header.value), ("event_id", Some(&b"17"[..])));
    assert_eq!(partial_row.event_id, Some(&b"17"[..]));
    assert_eq!(partial_row.key, Some(&b"k"[..]));
    assert_eq!(partial_row.value, Some(&b"{}"[..]));
}

#[test]
fn errors_and_debug_show_no_values() {
    let mut router = router(members_route(&[("m", "{a | json('x')}")]), &[("a", TEXT)]);
    let message = insert(&[text(r#"{"x": "s3cret"}"#)]);
    let shown = format!("{:?}", route(&mut router, &message).unwrap());
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(!format!("{router:?}").contains("s3cret"), "{router:?}");
    let error = record_of(&mut router, &[text("s3cret")]).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
}

fn address(topic: &str, routing_key: &str) -> Address {
    let part = |key, text| {
        Some(AddressPart {
            key,
            template: template(text, TemplateTarget::Address),
            tokens: None,
        })
    };
    Address {
        topic: part("sink.x.exchange", topic),
        routing_key: part("sink.x.routing_key", routing_key),
        lookups: lookups(),
    }
}

#[test]
fn each_value_is_one_token_of_a_subject_or_the_row_is_unroutable() {
    let columns = [("type", TEXT), ("region", TEXT)];
    let subject = |tokens| {
        let part = AddressPart {
            key: "sink.x.subject",
            template: template("events.v1.{type | lower}.{region}", TemplateTarget::Address),
            tokens: Some(tokens),
        };
        Address {
            topic: Some(part),
            ..Address::default()
        }
    };
    let of = |tokens, values: &[Value<'static>]| {
        let mut router = router(members_route(&[("m", "{type}")]), &columns);
        router = router.with_address(Some(subject(tokens)));
        announce(&mut router, &relation(&columns)).unwrap();
        let message = insert(values);
        route(&mut router, &message).map(|routed| routed.record().topic.to_owned())
    };
    for tokens in [Tokens::Refuse, Tokens::Replace] {
        let found = of(tokens, &[text("Paid"), text("é-1_x")]);
        assert_eq!(found, Ok("events.v1.paid.é-1_x".to_owned()));
        let error = of(tokens, &[text("Paid"), Value::Null]).unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Unroutable));
    }
    for (value, replaced) in [
        ("a.b", "a_b"),
        ("*", "_"),
        ("a>", "a_"),
        ("a b\t", "a_b_"),
        ("x\r\nPUB", "x__PUB"),
        ("a\u{a0}b", "a_b"),
        ("", "_"),
    ] {
        let values = [text(value), text("secret-region")];
        let error = of(Tokens::Refuse, &values).unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Unroutable), "{value:?}");
        assert!(!format!("{error}").contains("secret"), "{error}");
        let found = of(Tokens::Replace, &values);
        let expected = format!("events.v1.{}.secret-region", replaced.to_lowercase());
        assert_eq!(found, Ok(expected));
    }
}

const EXCHANGE: &str =
    "{aggregate_type | map(Order: 'orders.events', 'Pay.ment': '', default: 'default.events')}";
const ROUTING_KEY: &str = "{event_type | lower | replace('event', '')}";

#[test]
fn an_address_replaces_the_topic_of_every_route() {
    let columns = [
        ("id", TEXT),
        ("aggregate_id", TEXT),
        ("aggregateid", TEXT),
        ("aggregate_type", TEXT),
        ("aggregatetype", TEXT),
        ("event_type", TEXT),
        ("type", TEXT),
        ("payload", TEXT),
        ("metadata", TEXT),
        ("created_at", TIMESTAMPTZ),
    ];
    let templates = Preset::ALL.map(|preset| Route::from(preset.routes().unwrap()));
    let debezium = Route::from(Options::default());
    for route_of in templates.into_iter().chain([debezium]) {
        let mut router = Router::new(route_of).with_address(Some(address(EXCHANGE, ROUTING_KEY)));
        announce(&mut router, &relation(&columns)).unwrap();
        let values = |aggregate, event: Value<'static>| {
            [
                text("7"),
                text("k"),
                text("k"),
                aggregate,
                aggregate,
                event,
                event,
                text("{}"),
                text("{}"),
                text("2026-01-02 03:04:05+00"),
            ]
        };
        let mut routed = |aggregate, event| {
            let message = insert(&values(text(aggregate), event));
            let routed = route(&mut router, &message)?;
            let record = routed.record();
            assert_eq!(record.key, Some(b"k".as_slice()));
            Ok((
                record.topic.to_owned(),
                record.routing_key.map(str::to_owned),
            ))
        };
        for (aggregate, exchange) in [
            ("Order", "orders.events"),
            ("Pay.ment", ""),
            ("default", "default.events"),
        ] {
            let expected = (exchange.to_owned(), Some("orderpaid".to_owned()));
            assert_eq!(routed(aggregate, text("OrderPaidEvent")), Ok(expected));
        }
        let expected = ("orders.events".to_owned(), Some(String::new()));
        assert_eq!(routed("Order", text("Event")), Ok(expected));
        let error: RouteError = routed("Order", Value::Null).unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Unroutable), "{error}");
        assert!(error.to_string().contains("the address"), "{error}");
    }
}

#[test]
fn a_column_that_an_address_lacks_is_named_with_its_key() {
    let mut router = Router::new(Preset::EVENTS_OUTBOX.routes().unwrap())
        .with_address(Some(address("{exchange}", "")));
    let columns = [
        ("id", TEXT),
        ("aggregate_id", TEXT),
        ("type", TEXT),
        ("payload", TEXT),
    ];
    let error = announce(&mut router, &relation(&columns)).unwrap_err();
    assert!(error.to_string().contains("sink.x.exchange"), "{error}");
}
