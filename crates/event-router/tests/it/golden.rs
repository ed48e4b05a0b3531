//! Outcomes recorded from Debezium (tests/golden/README.md).

use std::collections::BTreeMap;

use serde_json::Value as Json;
use walrelay_event_router::{Options, PlanError, Router};
use walrelay_pgoutput::{Message, Tuple, Value, decode};

use crate::messages::{as_relation, event};

const CHANGES: &str = include_str!("../golden/changes.hex");
const CONFIGS: &str = include_str!("../golden/configs.json");
const RECORDED: &str = include_str!("../golden/recorded.jsonl");

/// The messages Postgres sent.
fn messages() -> Vec<Vec<u8>> {
    CHANGES
        .lines()
        .map(|line| {
            let digit = |c: u8| char::from(c).to_digit(16).unwrap() as u8;
            line.as_bytes()
                .chunks(2)
                .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
                .collect()
        })
        .collect()
}

/// The one Relation message among them.
fn relation(messages: &[Vec<u8>]) -> &[u8] {
    let mut relations = messages.iter().filter(|message| message[0] == b'R');
    let relation = relations.next().unwrap();
    assert!(relations.next().is_none());
    relation
}

/// The inserted rows, by the last part of their id as the recording names them.
fn rows(messages: &[Vec<u8>]) -> BTreeMap<String, Tuple<'_>> {
    messages
        .iter()
        .filter_map(|message| match decode(message).unwrap() {
            Message::Insert(insert) => Some(insert.tuple),
            _ => None,
        })
        .map(|row| {
            let Some(Value::Text(id)) = row.values().next() else {
                panic!("a row without an id");
            };
            let id = std::str::from_utf8(id).unwrap();
            let last = id.rsplit('-').next().unwrap().trim_start_matches('0');
            (last.to_owned(), row)
        })
        .collect()
}

fn options(config: &Json) -> Options {
    let mut options = Options::default();
    for (name, value) in config.as_object().unwrap() {
        let value = value.as_str().unwrap();
        match name.as_str() {
            "table.field.event.key" => value.clone_into(&mut options.event_key),
            "table.field.event.payload" => value.clone_into(&mut options.payload),
            "route.by.field" => value.clone_into(&mut options.route_by),
            "route.topic.replacement" => options.topic = value.parse().unwrap(),
            other => panic!("an option the router does not have: {other}"),
        }
    }
    options
}

/// The recording's form of bytes.
fn recorded(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(
        || "<null>".to_owned(),
        |bytes| format!("utf8:{}", std::str::from_utf8(bytes).unwrap()),
    )
}

fn lines() -> impl Iterator<Item = Json> {
    RECORDED
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
}

#[test]
fn every_recorded_record_is_made_byte_for_byte() {
    let messages = messages();
    let relation = as_relation(relation(&messages));
    let rows = rows(&messages);
    let configs: BTreeMap<String, Json> = serde_json::from_str(CONFIGS).unwrap();

    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines().filter(|line| line["columns"].is_null()) {
        let config = line["config"].as_str().unwrap();
        let mut router = Router::new(options(&configs[config]));
        router.relation(&relation).unwrap();
        let routed = router
            .route(relation.id, &rows[line["row"].as_str().unwrap()], &event())
            .unwrap();
        let record = routed.record();
        let headers: Vec<[String; 2]> = record
            .headers
            .iter()
            .map(|header| [header.name.to_owned(), recorded(header.value)])
            .collect();
        let made = serde_json::json!({
            "row": line["row"],
            "config": line["config"],
            "topic": record.topic,
            "key": recorded(record.key),
            "value": recorded(record.value),
            "headers": headers,
        });
        assert_eq!(made, line);
        assert_eq!((record.partition, record.timestamp_ms), (None, None));
        let (name, _) = configs.get_key_value(config).unwrap();
        *compared.entry(name).or_default() += 1;
    }
    let expected: BTreeMap<&str, usize> = configs.keys().map(|name| (name.as_str(), 14)).collect();
    assert_eq!(compared, expected);
    assert_eq!(compared.values().sum::<usize>(), 112);
}

/// Columns whose type is refused.
const REFUSED: [&str; 23] = [
    "byt", "ts", "ts3", "ts0", "tsn", "tsn3", "tsn0", "d", "t", "t3", "ttz", "f4", "f8", "num",
    "num102", "arr", "tarr", "iv", "mny", "bt", "bt8", "vb", "nn_ts",
];

/// Columns that can be used as id, key and payload and not to route by.
const NOT_TO_ROUTE_BY: [&str; 7] = ["i2", "i4", "i8", "o", "b", "nn_i", "def_opt"];

#[test]
fn every_type_reads_as_recorded_or_is_refused() {
    let messages = messages();
    let relation = as_relation(relation(&messages));
    let rows = rows(&messages);

    let (mut equal, mut refused, mut not_to_route_by) = (0, 0, 0);
    for line in lines().filter(|line| !line["columns"].is_null()) {
        let row = &rows[line["row"].as_str().unwrap()];
        for column in line["columns"].as_array().unwrap() {
            let [name, simple, string] = [0, 1, 2].map(|i| column[i].as_str().unwrap());
            // The recording gives columns the names of headers.
            let name = if name == "eventType" { "type" } else { name };
            let mut router = Router::new(Options {
                event_id: name.to_owned(),
                event_key: name.to_owned(),
                payload: name.to_owned(),
                ..Options::default()
            });
            let planned = router.relation(&relation);
            if REFUSED.contains(&name) {
                assert!(
                    matches!(planned, Err(PlanError::UnsupportedType { .. })),
                    "{name}: {planned:?}"
                );
                refused += 1;
                continue;
            }
            assert_eq!(planned, Ok(()), "{name}");
            let routed = router.route(relation.id, row, &event()).unwrap();
            let record = routed.record();
            if name == "nm" {
                // Debezium loses columns of the type `name`.
                assert_eq!((simple, string), ("<null>", "<null>"));
                let name = (line["row"] == "1").then_some(b"nm".as_slice());
                assert_eq!(record.value, name);
                continue;
            }
            assert_eq!(recorded(record.headers[0].value), simple, "{name}");
            assert_eq!(recorded(record.key), string, "{name}");
            assert_eq!(recorded(record.value), string, "{name}");
            equal += 1;

            let planned = Router::new(Options {
                route_by: name.to_owned(),
                ..Options::default()
            })
            .relation(&relation);
            if NOT_TO_ROUTE_BY.contains(&name) {
                assert!(
                    matches!(planned, Err(PlanError::UnsupportedType { .. })),
                    "{name}: {planned:?}"
                );
                not_to_route_by += 1;
            } else {
                assert_eq!(planned, Ok(()), "{name}");
            }
        }
    }
    // 14 rows of 40 columns, one of them of the type `name`.
    assert_eq!(refused, 14 * REFUSED.len());
    assert_eq!(equal, 14 * 16);
    assert_eq!(not_to_route_by, 14 * NOT_TO_ROUTE_BY.len());
}
