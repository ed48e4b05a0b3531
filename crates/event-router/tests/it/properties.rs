use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use walrelay_event_router::{Options, RouteError, Router};
use walrelay_pgoutput::Value;

use crate::messages::{announce, insert, relation, route};

/// A value of a row.
#[derive(Debug, Clone)]
enum Cell {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

impl Cell {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Unchanged => Value::UnchangedToast,
            Self::Text(bytes) => Value::Text(bytes),
            Self::Binary(bytes) => Value::Binary(bytes),
        }
    }
}

/// Generates OIDs that the router knows, and others.
fn type_oid() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => select(vec![25_u32, 1043, 2950, 3802, 16384]),
        2 => select(vec![16_u32, 19, 20, 21, 23, 26, 114, 142, 869, 1042]),
        1 => select(vec![17_u32, 1184, 1700, 1009, 16383, u32::MAX]),
        1 => any::<u32>(),
    ]
}

/// Generates tables that mostly have the needed columns, in any order, among other columns and
/// repeated names.
fn columns() -> impl Strategy<Value = Vec<(String, u32)>> {
    let wanted = ["id", "aggregatetype", "aggregateid", "payload"];
    let name = prop_oneof![
        select(wanted.to_vec()).prop_map(str::to_owned),
        "[a-zé]{0,8}"
    ];
    (
        vec((name, type_oid()), 0..6),
        vec(type_oid(), 4),
        vec(any::<prop::sample::Index>(), 4),
        any::<bool>(),
    )
        .prop_map(move |(mut columns, oids, places, complete)| {
            if complete {
                for ((name, oid), place) in wanted.iter().zip(oids).zip(places) {
                    columns.insert(place.index(columns.len() + 1), ((*name).to_owned(), oid));
                }
            }
            columns
        })
}

fn cell() -> impl Strategy<Value = Cell> {
    prop_oneof![
        12 => ".{0,12}".prop_map(|text| Cell::Text(text.into_bytes())),
        2 => select(vec!["t", "f", ""]).prop_map(|text| Cell::Text(text.as_bytes().to_vec())),
        1 => vec(any::<u8>(), 0..8).prop_map(Cell::Text),
        1 => Just(Cell::Null),
        1 => Just(Cell::Unchanged),
        1 => vec(any::<u8>(), 0..8).prop_map(Cell::Binary),
    ]
}

/// Returns true if Debezium writes a text of this type unchanged.
fn is_verbatim(type_oid: u32) -> bool {
    // Bytes, a list, a time with its zone, and a decimal whose scale is part of the value.
    const WRITTEN_ANEW: [u32; 4] = [17, 1009, 1184, 1700];
    !WRITTEN_ANEW.contains(&type_oid)
}

/// Computes the expected bytes of a column without the router.
fn expected(columns: &[(String, u32)], cells: &[Cell], name: &str) -> Option<Vec<u8>> {
    let index = columns
        .iter()
        .position(|(column, _)| column == name)
        .unwrap();
    match (&cells[index], columns[index].1) {
        (Cell::Null, _) => None,
        (Cell::Text(text), 16) if text == b"t" => Some(b"true".into()),
        (Cell::Text(_), 16) => Some(b"false".into()),
        (Cell::Text(text), _) => Some(text.clone()),
        (other, _) => panic!("routed {name} from {other:?}"),
    }
}

#[test]
fn any_row_is_routed_correctly_or_refused() {
    let routed_rows = std::cell::Cell::new(0);
    let rows = (columns(), vec(cell(), 0..12), 0..10_u8);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(2_000));
    let outcome = runner.run(&rows, |(columns, mut cells, fitting)| {
        if fitting > 0 {
            cells.resize(columns.len(), Cell::Text(b"padding".to_vec()));
        }
        let mut router = Router::new(Options::default());
        let planned = announce(&mut router, &relation(&columns));
        let message = insert(&cells.iter().map(Cell::value).collect::<Vec<_>>());
        match route(&mut router, &message) {
            Ok(routed) => {
                prop_assert_eq!(planned, Ok(()));
                prop_assert_eq!(columns.len(), cells.len());
                let record = routed.record();
                let routed_by = expected(&columns, &cells, "aggregatetype").unwrap();
                let routed_by = String::from_utf8(routed_by).unwrap();
                // The default expression does not match line terminators.
                let topic = if routed_by.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']) {
                    routed_by
                } else {
                    format!("outbox.event.{routed_by}")
                };
                prop_assert_eq!(record.topic, topic);
                let parts = [
                    ("aggregateid", record.key),
                    ("payload", record.value),
                    ("id", record.headers[0].value),
                ];
                for (name, bytes) in parts {
                    let column = columns.iter().find(|(column, _)| column == name).unwrap();
                    if is_verbatim(column.1) {
                        let expected = expected(&columns, &cells, name);
                        prop_assert_eq!(bytes.map(<[u8]>::to_vec), expected);
                    }
                }
                routed_rows.set(routed_rows.get() + 1);
            }
            Err(RouteError::UnknownRelation { .. }) => prop_assert!(planned.is_err()),
            Err(RouteError::ColumnCount {
                announced, found, ..
            }) => {
                prop_assert_ne!(columns.len(), cells.len());
                prop_assert_eq!((announced, found), (columns.len(), cells.len()));
            }
            Err(_) => prop_assert_eq!(planned, Ok(())),
        }
        Ok(())
    });
    outcome.unwrap();
    // The test means something only if enough rows are routed.
    assert!(routed_rows.get() > 100, "{}", routed_rows.get());
}
