use walrelay_event_router::{
    ColumnNames, Options, PlanError, Role, RouteError, Router, ValueError,
};
use walrelay_pgoutput::Value;
use walrelay_sink::Poison;

use crate::messages::{
    BOOL, DEBEZIUM, INT8, JSONB, TABLE, TEXT, TIMESTAMPTZ, UUID, announce, as_row, debezium_outbox,
    headers, insert, relation, route, text, text_record,
};

fn router() -> Router {
    let mut router = Router::new(Options::default());
    announce(&mut router, &debezium_outbox()).unwrap();
    router
}

/// Returns the purpose of the value at fault, and its fault.
fn why(error: &RouteError) -> (Role, ValueError) {
    match error {
        RouteError::Value { role, why, .. } => (role.clone(), *why),
        other => panic!("{other:?}"),
    }
}

/// Encodes a row of the default table with one column replaced.
fn row(index: usize, value: Value<'_>) -> Vec<u8> {
    let mut values = ["0-1", "Order", "agg-1", "OrderCreated", "{\"a\": 1}"].map(text);
    values[index] = value;
    insert(&values)
}

#[test]
fn a_row_becomes_a_record() {
    let mut router = router();
    let message = row(0, text("0-1"));
    let routed = route(&mut router, &message).unwrap();
    let record = routed.record();
    assert_eq!(record.topic, "outbox.event.Order");
    assert_eq!(record.key, Some(b"agg-1".as_slice()));
    assert_eq!(record.value, Some(b"{\"a\": 1}".as_slice()));
    assert_eq!((record.partition, record.timestamp_ms), (None, None));
    assert_eq!(record.headers.len(), 1);
    assert_eq!(record.headers[0].name, "id");
    assert_eq!(record.headers[0].value, Some(b"0-1".as_slice()));
}

/// The log has rows from before a column was renamed, with the name of then.
#[test]
fn a_column_is_read_under_each_of_its_names() {
    let mut names = ColumnNames::default();
    names.add("body", ["data".to_owned(), "payload".to_owned()]);
    let options = Options {
        payload: "body".to_owned(),
        ..Options::default()
    };
    let mut router = Router::new(options).with_column_names(names);
    let renamed = |name: &'static str| {
        let mut columns = DEBEZIUM;
        columns[4].0 = name;
        relation(&columns)
    };
    for name in ["payload", "body", "data"] {
        announce(&mut router, &renamed(name)).unwrap();
        let message = row(4, text("{}"));
        assert_eq!(
            route(&mut router, &message).unwrap().value(),
            Some(b"{}".as_slice())
        );
        // A dead letter has it, too.
        let (id, tuple) = as_row(&message);
        let partial = router.partial_row(id, &tuple);
        assert_eq!(partial.value, Some(b"{}".as_slice()), "{name}");
    }
    let error = announce(&mut router, &renamed("other")).unwrap_err();
    assert!(error.to_string().contains("no column \"body\""), "{error}");
}

#[test]
fn null_and_empty_stay_apart() {
    let mut router = router();
    for (value, expected) in [(Value::Null, None), (text(""), Some([].as_slice()))] {
        let message = row(2, value);
        assert_eq!(route(&mut router, &message).unwrap().key(), expected);
        let message = row(4, value);
        assert_eq!(route(&mut router, &message).unwrap().value(), expected);
    }
    let null = row(0, Value::Null);
    let routed = route(&mut router, &null).unwrap();
    assert_eq!(routed.headers().len(), 1);
    assert_eq!(routed.headers()[0].value, None);
}

#[test]
fn an_empty_routing_value_is_a_value() {
    let mut router = router();
    let empty = row(1, text(""));
    // Debezium does the same; Kafka allows the name.
    assert_eq!(route(&mut router, &empty).unwrap().topic(), "outbox.event.");

    let mut bare = Router::new(Options {
        topic: "${routedByValue}".parse().unwrap(),
        ..Options::default()
    });
    announce(&mut bare, &debezium_outbox()).unwrap();
    let error = route(&mut bare, &empty).unwrap_err();
    assert_eq!(why(&error), (Role::RouteBy, ValueError::Empty));
    assert_eq!(error.poison(), Some(Poison::Unroutable));
}

#[test]
fn unroutable_rows_name_table_and_column() {
    let mut router = router();
    let error = route(&mut router, &row(1, Value::Null)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table public.outbox: column \"aggregatetype\" chooses the topic and is NULL in this row"
    );
    let error = route(&mut router, &row(1, Value::Text(b"\xff"))).unwrap_err();
    assert_eq!(why(&error), (Role::RouteBy, ValueError::NotUtf8));
    assert_eq!(error.poison(), Some(Poison::Unroutable));
}

#[test]
fn left_out_values_are_errors() {
    let mut router = router();
    for (value, problem) in [
        (Value::UnchangedToast, ValueError::UnchangedToast),
        (Value::Binary(b"\x01"), ValueError::Binary),
    ] {
        for (index, role) in [
            (0, Role::EventId),
            (1, Role::RouteBy),
            (2, Role::EventKey),
            (4, Role::Payload),
        ] {
            let error = route(&mut router, &row(index, value)).unwrap_err();
            assert_eq!(why(&error), (role, problem));
            assert_eq!(error.poison(), Some(Poison::Undecodable));
        }
        // A column that the plan does not need may be left out.
        assert!(route(&mut router, &row(3, value)).is_ok());
    }
}

#[test]
fn errors_and_debug_show_no_values() {
    let mut router = router();
    let values = ["s3cret-id", "s3cret-type", "s3cret-key", "s3cret", "s3cret"].map(text);
    let secret = insert(&values);
    let routed = route(&mut router, &secret).unwrap();
    let shown = format!("{:?}", routed.record().headers);
    assert!(!shown.contains("s3cret"), "{shown}");
    drop(routed);
    assert!(!format!("{router:?}").contains("s3cret"), "{router:?}");
    for index in [0, 2, 4] {
        let mut values = values;
        values[index] = Value::Binary(b"s3cret");
        let error = route(&mut router, &insert(&values)).unwrap_err();
        assert!(!format!("{error:?} {error}").contains("s3cret"));
    }
}

#[test]
fn booleans_are_written_as_java_writes_them() {
    let mut router = Router::new(Options::default());
    let table = relation(&[
        ("id", BOOL),
        ("aggregatetype", TEXT),
        ("aggregateid", BOOL),
        ("payload", BOOL),
    ]);
    announce(&mut router, &table).unwrap();
    let message = insert(&[text("t"), text("Order"), text("f"), Value::Null]);
    let record = text_record(&mut router, &message).unwrap();
    assert_eq!(record.headers, ["id=true"]);
    assert_eq!(record.key.as_deref(), Some("false"));
    assert_eq!(record.value, None);
    let message = insert(&[text("yes"), text("Order"), text("f"), Value::Null]);
    let error = route(&mut router, &message).unwrap_err();
    assert_eq!(why(&error), (Role::EventId, ValueError::NotBoolean));
}

#[test]
fn one_column_can_have_several_roles() {
    let mut router = Router::new(Options {
        event_key: "id".to_owned(),
        payload: "id".to_owned(),
        route_by: "id".to_owned(),
        ..Options::default()
    });
    announce(&mut router, &relation(&[("id", UUID)])).unwrap();
    let record = text_record(&mut router, &insert(&[text("u")])).unwrap();
    assert_eq!(record.topic, "outbox.event.u");
    assert_eq!(record.headers, ["id=u"]);
    assert_eq!(record.key.as_deref(), Some("u"));
    assert_eq!(record.value.as_deref(), Some("u"));
}

#[test]
fn the_type_column_need_not_exist() {
    let mut router = Router::new(Options {
        event_type: "nowhere".to_owned(),
        ..Options::default()
    });
    assert_eq!(announce(&mut router, &debezium_outbox()), Ok(()));
}

#[test]
fn a_missing_column_is_explained() {
    let mut router = Router::new(Options::default());
    let table = relation(&[
        ("id", UUID),
        ("aggregate_id", TEXT),
        ("aggregatetype", TEXT),
        ("payload", JSONB),
    ]);
    let error = announce(&mut router, &table).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table public.outbox has no column \"aggregateid\" for the key (option \
         table.field.event.key); its columns are \"id\", \"aggregate_id\", \"aggregatetype\", \
         \"payload\"; did you mean \"aggregate_id\"?"
    );

    let error = announce(&mut router, &relation(&[("x", UUID)])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table public.outbox has no column \"id\" for the event id (option table.field.event.id); \
         its columns are \"x\""
    );
}

#[test]
fn an_unsupported_type_is_explained() {
    let mut router = Router::new(Options::default());
    let table = |payload, route_by| {
        relation(&[
            ("id", UUID),
            ("aggregateid", TEXT),
            ("aggregatetype", route_by),
            ("payload", payload),
        ])
    };
    let error = announce(&mut router, &table(TEXT, TIMESTAMPTZ)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "column \"aggregatetype\" of table public.outbox is of type timestamptz, which is not \
         supported for the routing value (option route.by.field) in this version: use a character \
         type, uuid, json, jsonb, xml, inet or a type of your own"
    );
    let error = announce(&mut router, &table(TEXT, 1007)).unwrap_err();
    assert!(error.to_string().contains("type integer[]"), "{error}");
    let error = announce(&mut router, &table(TEXT, INT8)).unwrap_err();
    let PlanError::UnsupportedType { role, type_oid, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!((role, type_oid), (Role::RouteBy, INT8));
    // OIDs of user-defined types, such as an enum.
    assert_eq!(announce(&mut router, &table(16384, 16384)), Ok(()));
}

#[test]
fn a_second_announcement_replaces_the_plan() {
    let mut router = router();
    // The same table with its columns in another order.
    let changed = relation(&[
        ("payload", JSONB),
        ("aggregatetype", TEXT),
        ("id", UUID),
        ("aggregateid", TEXT),
    ]);
    announce(&mut router, &changed).unwrap();
    let message = insert(&["p", "Order", "i", "k"].map(text));
    let record = text_record(&mut router, &message).unwrap();
    assert_eq!(record.key.as_deref(), Some("k"));
    assert_eq!(record.value.as_deref(), Some("p"));

    // A row with the former columns.
    let error = route(&mut router, &row(0, text("0-1"))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a row of table public.outbox has 5 columns, the table was announced with 4"
    );

    // The new columns are refused; the former plan must not be used any more.
    assert!(announce(&mut router, &relation(&[("id", UUID)])).is_err());
    let unknown = RouteError::UnknownRelation { relation: TABLE };
    assert_eq!(route(&mut router, &message).unwrap_err(), unknown);

    announce(&mut router, &changed).unwrap();
    assert!(route(&mut router, &message).is_ok());
    router.clear();
    assert_eq!(route(&mut router, &message).unwrap_err(), unknown);
}

/// A trace context becomes two headers. Without a trace context, or without its column, there are
/// none.
#[test]
fn a_trace_context_becomes_headers() {
    let options = Options {
        trace_context: Some("ctx".to_owned()),
        ..Options::default()
    };
    let mut router = Router::new(options);
    let headers_with = |router: &mut Router, context: &[Value<'_>]| {
        let values = ["id", "Order", "order-1", "OrderPlaced", "{}"].map(text);
        let row = insert(&[&values[..], context].concat());
        headers(&route(router, &row).unwrap())
    };
    announce(&mut router, &debezium_outbox()).unwrap();
    assert_eq!(headers_with(&mut router, &[]), ["id=id"]);

    let columns = [&DEBEZIUM[..], &[("ctx", TEXT)]].concat();
    announce(&mut router, &relation(&columns)).unwrap();
    let context = text("traceparent=00-1-2-01\ntracestate=a\\=b");
    assert_eq!(
        headers_with(&mut router, &[context]),
        ["id=id", "traceparent=00-1-2-01", "tracestate=a=b"]
    );
    assert_eq!(headers_with(&mut router, &[Value::Null]), ["id=id"]);
}
