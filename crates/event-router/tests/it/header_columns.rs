//! Headers whose names are in a column, or in two arrays.

use walrelay_event_router::{
    CloudEventMode, ColumnFacts, HeadersFrom, Messages, Options, PlanError, Role, RouteError,
    Router, TableFacts, TypeFacts, TypeKind,
};
use walrelay_lsn::TypeOid;
use walrelay_pgoutput::{PgTimestamp, Value};
use walrelay_sink::Poison;

use crate::messages::{
    DEBEZIUM, INT8, JSONB, TEXT, announce, cloud_events, event, headers, insert, relation, route,
    text,
};

const JSON: u32 = 114;
const VARCHAR: u32 = 1043;
const TEXT_ARRAY: u32 = 1009;
const VARCHAR_ARRAY: u32 = 1015;
/// An OID that an `hstore` may have.
const HSTORE: u32 = 16_500;

fn column() -> HeadersFrom {
    HeadersFrom::Column("h".to_owned())
}

fn arrays() -> HeadersFrom {
    HeadersFrom::Arrays {
        names: "h".to_owned(),
        values: "v".to_owned(),
    }
}

/// Announces Debezium's table with these columns behind its own.
fn announced(router: Router, columns: &[(&str, u32)]) -> Result<Router, PlanError> {
    let mut router = router;
    announce(&mut router, &relation(&[&DEBEZIUM, columns].concat()))?;
    Ok(router)
}

fn router(from: HeadersFrom, columns: &[(&str, u32)]) -> Router {
    let router = Router::new(Options::default()).with_headers_from(Some(from));
    announced(router, columns).unwrap_or_else(|error| panic!("{error}"))
}

/// Routes a row with these values behind those of Debezium's table; returns the headers behind `id`.
fn more_headers(router: &mut Router, values: &[Value<'_>]) -> Result<Vec<String>, RouteError> {
    let row = ["0-1", "Order", "order-1", "OrderPlaced", "{}"].map(text);
    let row = insert(&[&row, values].concat());
    let mut found = headers(&route(router, &row)?);
    assert_eq!(found.remove(0), "id=0-1");
    Ok(found)
}

fn column_headers(type_oid: u32, value: Value<'_>) -> Result<Vec<String>, RouteError> {
    more_headers(&mut router(column(), &[("h", type_oid)]), &[value])
}

fn array_headers(names: Value<'_>, values: Value<'_>) -> Result<Vec<String>, RouteError> {
    let columns = [("h", TEXT_ARRAY), ("v", VARCHAR_ARRAY)];
    more_headers(&mut router(arrays(), &columns), &[names, values])
}

#[test]
fn each_member_of_an_object_is_a_header() {
    let object = r#"{"trace": "00-\"1\"é\n", "n": 1.50, "ok": true, "none": null,
                     "o": {"b": [1, "x"]}, "l": [], "": "", "é x": "1"}"#;
    for type_oid in [JSON, JSONB, TEXT, VARCHAR, HSTORE] {
        assert_eq!(
            column_headers(type_oid, text(object)).unwrap(),
            [
                "trace=00-\"1\"é\n",
                "n=1.50",
                "ok=true",
                "none=(null)",
                "o={\"b\": [1, \"x\"]}",
                "l=[]",
                "=",
                "é x=1"
            ]
        );
        for none in [text("{}"), text("null"), Value::Null] {
            assert_eq!(column_headers(type_oid, none).unwrap(), [""; 0]);
        }
    }
    // In a column of type json a name may stand twice.
    let twice = column_headers(JSON, text(r#"{"a": 1, "a": 2}"#)).unwrap();
    assert_eq!(twice, ["a=1", "a=2"]);
}

#[test]
fn each_entry_of_an_hstore_is_a_header() {
    for type_oid in [HSTORE, TEXT] {
        let entries = r#""a"=>"1", "b"=>NULL, "c d"=>"x\"y", "é"=>"{\"j\": 1}""#;
        assert_eq!(
            column_headers(type_oid, text(entries)).unwrap(),
            ["a=1", "b=(null)", "c d=x\"y", "é={\"j\": 1}"]
        );
        assert_eq!(column_headers(type_oid, text("")).unwrap(), [""; 0]);
    }
}

#[test]
fn two_arrays_have_names_and_values() {
    let both = array_headers(
        text(r#"{trace,"b, c",NULLS,"NULL"}"#),
        text(r#"[2:5]={"00-1",NULL,"a\"b",""}"#),
    );
    assert_eq!(
        both.unwrap(),
        ["trace=00-1", "b, c=(null)", "NULLS=a\"b", "NULL="]
    );
    for [names, values] in [["{}", "{}"], ["{a,a}", "{1,2}"]] {
        let count = names.matches('a').count();
        assert_eq!(
            array_headers(text(names), text(values)).unwrap().len(),
            count
        );
    }
    for (names, values) in [
        (Value::Null, Value::Null),
        (Value::Null, text("{}")),
        (text("{}"), Value::Null),
    ] {
        assert_eq!(array_headers(names, values).unwrap(), [""; 0]);
    }
}

/// The error of a row names the column and its fault, and never the text.
#[test]
fn other_texts_are_poison() {
    let many: Vec<String> = (0..1_001).map(|n| format!("\"s3cret{n}\": 0")).collect();
    let many = format!("{{{}}}", many.join(","));
    for (type_oid, value, why) in [
        (
            JSONB,
            "[\"s3cret\"]",
            "is neither a JSON object nor an hstore",
        ),
        (JSONB, "\"s3cret\"", "is neither"),
        (JSON, "nul", "is neither"),
        (TEXT, "s3cret", "is neither"),
        (TEXT, "{\"s3cret\": }", "is neither"),
        (TEXT, "{\"s3cret\": 1} {}", "is neither"),
        (JSON, r#"{"s3cret": "\ud83d"}"#, "is neither"),
        (HSTORE, "\"s3cret\"=>\"a\",", "is neither"),
        (JSONB, &many, "has more than 1000 headers"),
    ] {
        let error = column_headers(type_oid, text(value)).unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Undecodable), "{value}");
        let said = error.to_string();
        let start = "table public.outbox: column \"h\", needed for the headers, ";
        assert!(said.starts_with(&format!("{start}{why}")), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
    let not_utf8 = column_headers(TEXT, Value::Text(b"{\"a\": \"\xe4\"}")).unwrap_err();
    assert!(not_utf8.to_string().contains("is not UTF-8"), "{not_utf8}");

    let many = format!("{{{}}}", vec!["s3cret"; 1_001].join(","));
    for (names, values, column, why) in [
        (
            "{s3cret,b}",
            "{1}",
            "v",
            "has not as many items as the array of the names",
        ),
        ("{s3cret}", "{1,2}", "v", "has not as many items"),
        ("{}", "{s3cret}", "v", "has not as many items"),
        (
            "{NULL}",
            "{s3cret}",
            "h",
            "is not an array of one dimension without NULL",
        ),
        ("{{s3cret}}", "{{1}}", "h", "is not an array"),
        ("s3cret", "{1}", "h", "is not an array"),
        ("{a}", "{s3cret", "v", "is not an array of one dimension"),
        (&many, &many, "h", "has more than 1000 headers"),
        (&many, "{}", "h", "has more than 1000 headers"),
    ] {
        let error = array_headers(text(names), text(values)).unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Undecodable), "{names}");
        let said = error.to_string();
        let expected = format!("column {column:?}, needed for the headers, {why}");
        assert!(said.contains(&expected), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
    let thousand = format!("{{{}}}", vec!["a"; 1_000].join(","));
    let thousand = array_headers(text(&thousand), text(&thousand)).unwrap();
    assert_eq!(thousand.len(), 1_000);
}

/// The buffer keeps no more than one header too many, however long the text is.
#[test]
fn the_count_bounds_the_memory() {
    let mut router = router(column(), &[("h", TEXT)]);
    let members = vec!["\"a\":0"; 200_000].join(",");
    let row = ["0-1", "Order", "order-1", "OrderPlaced", "{}"].map(text);
    let object = format!("{{{members}}}");
    let row = insert(&[&row[..], &[text(&object)]].concat());
    let measured = allocation_counter::measure(|| {
        assert!(route(&mut router, &row).is_err());
    });
    assert!(measured.bytes_max < 200_000, "{measured:?}");
}

#[test]
fn a_header_of_the_record_wins_over_one_of_the_row() {
    let plain = Router::new(Options::default())
        .with_headers_from(Some(column()))
        .with_position_header(Some("pos".to_owned()))
        .with_run_header(Some(("run".to_owned(), "7".to_owned())));
    let mut router = announced(plain, &[("h", JSONB)]).unwrap();
    let object = text(r#"{"id": "x", "a": "1", "pos": "x", "run": "x", "ID": "2"}"#);
    let position = "pos=0000000000000100/00000000";
    let found = more_headers(&mut router, &[object]).unwrap();
    assert_eq!(found, ["a=1", "ID=2", position, "run=7"]);

    let events = Router::new(Options::default())
        .with_cloud_events(Some(cloud_events(CloudEventMode::Binary)))
        .with_headers_from(Some(column()));
    let mut router = announced(events, &[("h", JSONB)]).unwrap();
    let object = text(r#"{"ce_type": "x", "ce_own": "1"}"#);
    let found = more_headers(&mut router, &[object]).unwrap();
    let kinds = found.iter().filter(|header| header.starts_with("ce_type="));
    assert_eq!(kinds.count(), 1);
    assert_eq!(found.last().unwrap(), "ce_own=1");
}

/// The row before has no part in a row's headers.
#[test]
fn rows_do_not_share_headers() {
    let mut router = router(column(), &[("h", JSONB)]);
    for (value, expected) in [
        (text(r#"{"a": "1"}"#), vec!["a=1"]),
        (Value::Null, vec![]),
        (text(r#"{"b": "2"}"#), vec!["b=2"]),
    ] {
        assert_eq!(more_headers(&mut router, &[value]).unwrap(), expected);
    }
    assert!(more_headers(&mut router, &[text("[]")]).is_err());
    let after = more_headers(&mut router, &[text("{}")]).unwrap();
    assert_eq!(after, [""; 0]);
}

#[test]
fn columns_of_other_types_are_refused() {
    for (from, columns, refused) in [
        (column(), vec![("h", INT8)], "\"h\""),
        (column(), vec![("h", 17)], "\"h\""),
        (column(), vec![("h", TEXT_ARRAY)], "\"h\""),
        (arrays(), vec![("h", JSONB), ("v", TEXT_ARRAY)], "\"h\""),
        (arrays(), vec![("h", TEXT_ARRAY), ("v", 1016)], "\"v\""),
    ] {
        let router = Router::new(Options::default()).with_headers_from(Some(from));
        let error = announced(router, &columns).unwrap_err();
        assert!(
            matches!(error, PlanError::UnsupportedType { .. }),
            "{error}"
        );
        let said = error.to_string();
        assert!(said.contains(refused) && said.contains("hstore"), "{said}");
    }
    let router = Router::new(Options::default()).with_headers_from(Some(column()));
    let error = announced(router, &[]).unwrap_err();
    let PlanError::MissingColumn { role, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(
        (role, role.option()),
        (&Role::Headers, "router.headers_from")
    );
}

/// A domain is read as the type below it.
#[test]
fn a_domain_over_a_number_is_refused() {
    let domain = |base: u32| TableFacts {
        schema: "public".to_owned(),
        name: "outbox".to_owned(),
        columns: vec![ColumnFacts {
            name: "h".to_owned(),
            type_facts: TypeFacts {
                oid: TypeOid::new(HSTORE),
                name: "d".to_owned(),
                kind: TypeKind::Domain(
                    Box::new(TypeFacts {
                        oid: TypeOid::new(base),
                        name: String::new(),
                        kind: TypeKind::Base,
                    }),
                    -1,
                ),
            },
            not_null: false,
            default: None,
        }],
    };
    for (base, fits) in [(JSONB, true), (INT8, false)] {
        let mut router = Router::new(Options::default()).with_headers_from(Some(column()));
        router.describe(vec![domain(base)]);
        assert_eq!(announced(router, &[("h", HSTORE)]).is_ok(), fits);
    }
}

/// Messages bring their headers themselves, also if the route reads a column that they have.
#[test]
fn messages_have_each_header_once() {
    for from in [HeadersFrom::Column("metadata".to_owned()), arrays()] {
        let mut router = Router::new(Options::default()).with_headers_from(Some(from));
        let mut messages = Messages::new("outbox", []);
        messages.announce(&mut router).unwrap();
        let content = br#"{"id":"7","aggregate":"Order","headers":{"trace":"t"}}"#;
        let row = messages.read(content, PgTimestamp::new(0)).unwrap();
        let mut routed = router
            .route(row.insert.relation, &row.insert.tuple, &event())
            .unwrap();
        routed.add_headers(row.headers.iter());
        assert_eq!(headers(&routed), ["id=7", "trace=t"]);
    }
}
