use walrelay_event_router::{Options, PlanError, Role, RouteError, Router, ValueError};
use walrelay_lsn::RelationId;
use walrelay_sink::{Disposition, Header, Poison};

use crate::messages::{
    Cell, JSONB, TABLE, TEXT, UUID, announce, debezium_outbox, insert, relation, route, text,
};

const BOOL: u32 = 16;
const INT8: u32 = 20;
const TIMESTAMPTZ: u32 = 1184;

fn router() -> Router {
    let mut router = Router::new(Options::default());
    announce(&mut router, &debezium_outbox()).unwrap();
    router
}

/// What a row's value is needed for, and what is wrong with it.
fn why(error: &RouteError) -> (Role, ValueError) {
    match error {
        RouteError::Value { role, why, .. } => (role.clone(), *why),
        other => panic!("{other:?}"),
    }
}

/// A row of the default table with one column replaced.
fn row(index: usize, cell: Cell) -> Vec<u8> {
    let mut cells = ["0-1", "Order", "agg-1", "OrderCreated", "{\"a\": 1}"].map(text);
    cells[index] = cell;
    insert(&cells)
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

#[test]
fn null_and_empty_stay_apart() {
    let mut router = router();
    let (null, empty) = (row(2, Cell::Null), row(2, text("")));
    assert_eq!(route(&mut router, &null).unwrap().record().key, None);
    assert_eq!(
        route(&mut router, &empty).unwrap().record().key,
        Some([].as_slice())
    );
    let (null, empty) = (row(4, Cell::Null), row(4, text("")));
    assert_eq!(route(&mut router, &null).unwrap().record().value, None);
    assert_eq!(
        route(&mut router, &empty).unwrap().record().value,
        Some([].as_slice())
    );
    let null = row(0, Cell::Null);
    let routed = route(&mut router, &null).unwrap();
    assert_eq!(routed.record().headers.len(), 1);
    assert_eq!(routed.record().headers[0].value, None);
}

#[test]
fn an_empty_routing_value_is_a_value() {
    let mut router = router();
    let empty = row(1, text(""));
    // As Debezium does; Kafka takes the name.
    assert_eq!(
        route(&mut router, &empty).unwrap().record().topic,
        "outbox.event."
    );

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
    let error = route(&mut router, &row(1, Cell::Null)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table public.outbox: column \"aggregatetype\" chooses the topic and is NULL in this row"
    );
    assert_eq!(error.disposition(), Disposition::Fatal);
    let error = route(&mut router, &row(1, Cell::Text(vec![0xff]))).unwrap_err();
    assert_eq!(why(&error), (Role::RouteBy, ValueError::NotUtf8));
    assert_eq!(error.poison(), Some(Poison::Unroutable));
}

#[test]
fn what_a_row_leaves_out_is_not_null() {
    let mut router = router();
    let roles = [
        (0, Role::EventId),
        (1, Role::RouteBy),
        (2, Role::EventKey),
        (4, Role::Payload),
    ];
    for (index, expected) in roles {
        let error = route(&mut router, &row(index, Cell::Unchanged)).unwrap_err();
        assert_eq!(why(&error), (expected.clone(), ValueError::UnchangedToast));
        assert_eq!(error.poison(), Some(Poison::Undecodable));
        let error = route(&mut router, &row(index, Cell::Binary(vec![1]))).unwrap_err();
        assert_eq!(why(&error), (expected, ValueError::Binary));
    }
    // A column that nobody needs may be anything.
    assert!(route(&mut router, &row(3, Cell::Unchanged)).is_ok());
    assert!(route(&mut router, &row(3, Cell::Binary(vec![1]))).is_ok());
}

#[test]
fn errors_and_debug_show_no_values() {
    let mut router = router();
    let secret = insert(&["s3cret-id", "s3cret-type", "s3cret-key", "s3cret", "s3cret"].map(text));
    let routed = route(&mut router, &secret).unwrap();
    let shown = format!("{:?}", routed.record().headers);
    assert!(!shown.contains("s3cret"), "{shown}");
    drop(routed);
    assert!(!format!("{router:?}").contains("s3cret"), "{router:?}");
    for index in [0, 2, 4] {
        let mut cells = ["s3cret-id", "s3cret-type", "s3cret-key", "s3cret", "s3cret"].map(text);
        cells[index] = Cell::Binary(b"s3cret".to_vec());
        let error = route(&mut router, &insert(&cells)).unwrap_err();
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
    let message = insert(&[text("t"), text("Order"), text("f"), Cell::Null]);
    let routed = route(&mut router, &message).unwrap();
    assert_eq!(routed.record().headers[0].value, Some(b"true".as_slice()));
    assert_eq!(routed.record().key, Some(b"false".as_slice()));
    assert_eq!(routed.record().value, None);
    drop(routed);
    let message = insert(&[text("yes"), text("Order"), text("f"), Cell::Null]);
    let error = route(&mut router, &message).unwrap_err();
    assert_eq!(why(&error), (Role::EventId, ValueError::NotBoolean));
}

#[test]
fn one_column_may_play_several_roles() {
    let mut router = Router::new(Options {
        event_key: "id".to_owned(),
        payload: "id".to_owned(),
        route_by: "id".to_owned(),
        ..Options::default()
    });
    announce(&mut router, &relation(&[("id", UUID)])).unwrap();
    let message = insert(&[text("u")]);
    let routed = route(&mut router, &message).unwrap();
    let record = routed.record();
    assert_eq!(record.topic, "outbox.event.u");
    assert_eq!(
        [record.key, record.value, record.headers[0].value],
        [Some(b"u".as_slice()); 3]
    );
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
    assert_eq!(error.disposition(), Disposition::Configuration);

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
    assert_eq!(error.disposition(), Disposition::Configuration);
    let error = announce(&mut router, &table(TEXT, 1007)).unwrap_err();
    assert!(error.to_string().contains("type integer[]"), "{error}");
    let error = announce(&mut router, &table(TEXT, INT8)).unwrap_err();
    assert!(
        matches!(
            error,
            PlanError::UnsupportedType {
                role: Role::RouteBy,
                type_oid: INT8,
                ..
            }
        ),
        "{error:?}"
    );
    // An enum, say.
    assert_eq!(announce(&mut router, &table(16384, 16384)), Ok(()));
}

#[test]
fn a_table_is_planned_anew_when_it_is_announced_anew() {
    let table = RelationId::new(TABLE);
    let mut router = router();
    assert!(router.knows(table));

    // Columns in another order.
    let changed = relation(&[
        ("payload", JSONB),
        ("aggregatetype", TEXT),
        ("id", UUID),
        ("aggregateid", TEXT),
    ]);
    announce(&mut router, &changed).unwrap();
    let message = insert(&["p", "Order", "i", "k"].map(text));
    let routed = route(&mut router, &message).unwrap();
    assert_eq!(routed.record().key, Some(b"k".as_slice()));
    assert_eq!(routed.record().value, Some(b"p".as_slice()));
    drop(routed);

    // A row of the former shape.
    assert_eq!(
        route(&mut router, &row(0, text("0-1")))
            .unwrap_err()
            .to_string(),
        "a row of table public.outbox has 5 columns, the table was announced with 4"
    );

    // Refused: the former plan must not be used any more.
    assert!(announce(&mut router, &relation(&[("id", UUID)])).is_err());
    assert!(!router.knows(table));
    assert_eq!(
        route(&mut router, &message).unwrap_err(),
        RouteError::UnknownRelation { relation: table }
    );

    announce(&mut router, &changed).unwrap();
    assert!(router.knows(table));
    router.clear();
    assert!(!router.knows(table));
}

/// A trace context becomes two headers; without one, and without its column, there are none.
#[test]
fn a_trace_context_becomes_headers() {
    let options = Options {
        trace_context: Some("ctx".to_owned()),
        ..Options::default()
    };
    let mut router = Router::new(options);
    let names = |router: &mut Router, context: Option<Cell>| {
        let cells = ["id", "Order", "order-1", "OrderPlaced", "{}"].map(text);
        let row = insert(&cells.into_iter().chain(context).collect::<Vec<_>>());
        let routed = route(router, &row).unwrap();
        let header = |header: &Header<'_>| {
            let value = header.value.unwrap_or_default();
            format!("{}={}", header.name, String::from_utf8_lossy(value))
        };
        routed.headers().iter().map(header).collect::<Vec<_>>()
    };
    announce(&mut router, &debezium_outbox()).unwrap();
    assert_eq!(names(&mut router, None), ["id=id"]);

    let columns = [
        "id",
        "aggregatetype",
        "aggregateid",
        "type",
        "payload",
        "ctx",
    ];
    announce(&mut router, &relation(&columns.map(|name| (name, TEXT)))).unwrap();
    let context = text("traceparent=00-1-2-01\ntracestate=a\\=b");
    assert_eq!(
        names(&mut router, Some(context)),
        ["id=id", "traceparent=00-1-2-01", "tracestate=a=b"]
    );
    assert_eq!(names(&mut router, Some(Cell::Null)), ["id=id"]);
}
