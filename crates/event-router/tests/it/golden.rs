//! Compares the router with records of Debezium (tests/golden/README.md).
//!
//! The router makes every recorded record, and each part is compared. Each difference must be
//! listed in [`DEVIATIONS`], with the row of `docs/start/debezium.md` that explains it.
//! Each listed deviation must occur.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;
use walrelay_event_router::{Converter, JsonOptions, Options, Routed, Router};
use walrelay_pgoutput::{Message, Relation, Tuple, Value, decode};

use crate::messages::{as_relation, event};
use crate::recorded_options::{handling, options, table};

const CHANGES: &str = include_str!("../golden/changes.hex");
const CONFIGS: &str = include_str!("../golden/configs.json");
const FACTS: &str = include_str!("../golden/facts.json");
const RECORDED: &str = include_str!("../golden/recorded.jsonl");

const TYPES_CHANGES: &str = include_str!("../golden/types/changes.hex");
const TYPES_FACTS: &str = include_str!("../golden/types/facts.json");
const TYPES_RECORDED: &str = include_str!("../golden/types/recorded.jsonl");

const DOCUMENT: &str = include_str!("../../../../docs/start/debezium.md");

/// Decodes the messages that Postgres sent.
fn messages(hex: &str) -> Vec<Vec<u8>> {
    let message = |line: &str| {
        let pairs = (0..line.len()).step_by(2).map(|at| &line[at..at + 2]);
        let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap());
        bytes.collect()
    };
    hex.lines().map(message).collect()
}

/// Returns the Relation message; there must be only one.
fn relation(messages: &[Vec<u8>]) -> Relation<'_> {
    let mut relations = messages.iter().filter(|message| message[0] == b'R');
    let relation = relations.next().unwrap();
    assert!(relations.next().is_none());
    as_relation(relation)
}

/// Returns the inserted rows by the last part of their id, which is their name in the recording.
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

/// Writes bytes in the form of the recording.
fn recorded(bytes: Option<&[u8]>) -> String {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => "<null>".to_owned(),
        Some((Ok(text), _)) => format!("utf8:{text}"),
        Some((Err(_), bytes)) => {
            let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap();
            let pairs = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
            format!("hex:{}", pairs.map(digit).collect::<String>())
        }
    }
}

fn lines(text: &'static str) -> impl Iterator<Item = Json> {
    text.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn json(schemas: bool) -> Converter {
    Converter::Json(JsonOptions {
        schemas,
        ..JsonOptions::default()
    })
}

/// The converters under which headers are recorded.
const HEADER_CONVERTERS: [&str; 4] = ["simple", "string", "json", "json+schema"];

/// Returns a converter by its name in the recording.
fn converter(name: &str) -> Converter {
    match name {
        "string" => Converter::String,
        "simple" => Converter::Simple,
        "json" => json(false),
        "json+schema" => json(true),
        "bytearray" => Converter::ByteArray,
        "binarydata" => Converter::BinaryData(None),
        "binarydata+json" => Converter::BinaryData(Some(Box::new(json(false)))),
        other => panic!("a converter that is not known: {other}"),
    }
}

/// An intended difference from Debezium: the name of its row in the document's table, then config,
/// row, part and converter of the recording, where `*` stands for any. The part is `key`, `value`,
/// or the name of a header.
type Deviation = (&'static str, [&'static str; 4]);

const DEVIATIONS: &[Deviation] = &[
    ("bytes-as-text", ["*", "*", "value", "string"]),
    ("bytes-as-text", ["*", "*", "byt", "string"]),
    ("bytes-as-text", ["*", "*", "num", "string"]),
    ("bytes-as-text", ["*", "*", "bt8", "string"]),
    ("bytes-as-text", ["*", "*", "vb", "string"]),
    ("name-type", ["headers", "1", "nm", "*"]),
];

/// Returns true if the deviation explains `was`. Keeps a deviation with `*` from hiding other
/// differences.
fn plausible(name: &str, was: &str) -> bool {
    match name {
        "bytes-as-text" => was.contains("HeapByteBuffer[") || was.contains("[B@"),
        "name-type" => matches!(was, "<null>" | "utf8:null") || was.ends_with("\"payload\":null}"),
        "nested-arrays" | "array-of-bits" | "array-elements" | "array-times" => true,
        other => panic!("a deviation that is not known: {other}"),
    }
}

/// Collects differences, and the deviations that explain others.
struct Comparison {
    deviations: &'static [Deviation],
    equal: usize,
    seen: BTreeSet<usize>,
    differences: Vec<String>,
}

impl Comparison {
    fn allowing(deviations: &'static [Deviation]) -> Self {
        Self {
            deviations,
            equal: 0,
            seen: BTreeSet::new(),
            differences: Vec::new(),
        }
    }

    fn compare(&mut self, place: [&str; 4], was: &str, is: &str) {
        if was == is {
            self.equal += 1;
            return;
        }
        let listed = self.deviations.iter().position(|(name, listed)| {
            let mut places = listed.iter().zip(place);
            places.all(|(listed, found)| *listed == "*" || *listed == found) && plausible(name, was)
        });
        if let Some(listed) = listed {
            self.seen.insert(listed);
        } else {
            let place = place.join(" ");
            let difference = format!("{place}\n was {was}\n is  {is}");
            self.differences.push(difference);
        }
    }

    fn finish(&self) {
        let shown = self.differences.iter().take(12).cloned();
        let shown: Vec<String> = shown.collect();
        let count = self.differences.len();
        assert!(count == 0, "{count} differ\n{}", shown.join("\n"));
        let (seen, listed) = (&self.seen, self.deviations.len());
        assert_eq!(seen.len(), listed, "a listed one does not occur: {seen:?}");
        assert!(self.equal > 5000, "{}", self.equal);
    }
}

/// Routes a row; passes the record or the error to `compare`.
fn make(
    options: &Options,
    relation: &Relation<'_>,
    facts: &str,
    row: &Tuple<'_>,
    compare: impl FnOnce(Result<&Routed<'_>, String>),
) {
    let mut router = Router::new(options.clone());
    router.describe(vec![table(relation, facts)]);
    if let Err(error) = router.relation(relation) {
        return compare(Err(error.to_string()));
    }
    match router.route(relation.id, row, &event()) {
        Ok(routed) => compare(Ok(&routed)),
        Err(error) => compare(Err(error.to_string())),
    }
}

#[test]
fn every_recorded_record_is_made_byte_for_byte() {
    let messages = messages(CHANGES);
    let relation = relation(&messages);
    let rows = rows(&messages);
    let configs: BTreeMap<String, Json> = serde_json::from_str(CONFIGS).unwrap();

    let mut comparison = Comparison::allowing(DEVIATIONS);
    let mut records = 0;
    for line in lines(RECORDED).filter(|line| line["outcome"] == "record") {
        records += 1;
        let config = line["config"].as_str().unwrap();
        let name = line["row"].as_str().unwrap();
        let row = &rows[name];
        let base = options(&configs[config]);
        // The value under each converter, then topic, partition and timestamp, which no converter
        // changes.
        for (converter_name, was) in line["value"].as_object().unwrap() {
            let mut options = base.clone();
            options.value_converter = converter(converter_name);
            let was = was.as_str().unwrap();
            make(&options, &relation, FACTS, row, |routed| match routed {
                Ok(routed) => {
                    let record = routed.record();
                    assert_eq!(record.topic, line["topic"], "{config} {name}");
                    let partition = record.partition.map(|number| number.to_string());
                    assert_eq!(partition.as_deref(), line["partition"].as_str());
                    let timestamp = record.timestamp_ms.map_or(Json::from("event"), Json::from);
                    assert_eq!(timestamp, line["timestamp"], "{config} {name}");
                    // Where Debezium fails, any outcome is fine.
                    if was != "error" {
                        let is = recorded(record.value);
                        comparison.compare([config, name, "value", converter_name], was, &is);
                    }
                }
                Err(error) => assert_eq!(was, "error", "{config} {name} {converter_name} {error}"),
            });
        }
        for (converter_name, was) in line["key"].as_object().unwrap() {
            let mut options = base.clone();
            options.key_converter = converter(converter_name);
            let was = was.as_str().unwrap();
            make(&options, &relation, FACTS, row, |routed| match routed {
                Ok(routed) => {
                    let is = recorded(routed.key());
                    comparison.compare([config, name, "key", converter_name], was, &is);
                }
                Err(error) => assert_eq!(was, "error", "{config} {name} {converter_name} {error}"),
            });
        }
        for converter_name in HEADER_CONVERTERS {
            let mut options = base.clone();
            options.header_converter = converter(converter_name);
            make(&options, &relation, FACTS, row, |routed| {
                let routed = routed.unwrap();
                let headers = line["headers"].as_array().unwrap();
                assert_eq!(routed.headers().len(), headers.len());
                for (header, was) in routed.headers().iter().zip(headers) {
                    assert_eq!(was["name"], header.name);
                    let place = [config, name, header.name, converter_name];
                    let was = was[converter_name].as_str().unwrap();
                    comparison.compare(place, was, &recorded(header.value));
                }
            });
        }
    }
    comparison.finish();
    assert_eq!(records, 360);
}

#[test]
fn every_deviation_is_in_the_document() {
    for (name, _) in DEVIATIONS.iter().chain(TYPE_DEVIATIONS) {
        let row = format!("| `{name}` |");
        assert!(DOCUMENT.contains(&row), "{name} is not listed");
    }
}

const TYPE_DEVIATIONS: &[Deviation] = &[
    ("bytes-as-text", ["*", "*", "*", "string"]),
    ("name-type", ["*", "*", "txtn", "*"]),
    ("nested-arrays", ["*", "*", "ai2d", "*"]),
    ("nested-arrays", ["*", "*", "at2", "*"]),
    ("array-of-bits", ["*", "*", "abit", "*"]),
    ("array-elements", ["*", "*", "anum", "*"]),
    ("array-elements", ["*", "*", "amood", "*"]),
    ("array-times", ["*", "*", "adate", "*"]),
    ("array-times", ["*", "*", "ati", "*"]),
    ("array-times", ["*", "*", "atiz", "*"]),
    ("array-times", ["*", "*", "ats", "*"]),
    ("array-times", ["*", "*", "atz", "*"]),
];

/// Columns of more types, with all options for column values, in headers.
#[test]
fn every_type_reads_as_recorded() {
    let messages = messages(TYPES_CHANGES);
    let relation = relation(&messages);
    let rows = rows(&messages);

    let mut comparison = Comparison::allowing(TYPE_DEVIATIONS);
    for line in lines(TYPES_RECORDED) {
        let connector = line["connector"].to_string();
        let name = line["row"].as_str().unwrap();
        let columns = line["columns"].as_array().unwrap();
        let placement: Vec<String> = columns
            .iter()
            .map(|column| format!("{}:header", column[0].as_str().unwrap()))
            .collect();
        let mut options = options(&serde_json::json!({
            "table.fields.additional.placement": placement.join(","),
        }));
        options.handling = handling(&line["connector"]);
        for (at, converter_name) in HEADER_CONVERTERS.iter().enumerate() {
            options.header_converter = converter(converter_name);
            make(&options, &relation, TYPES_FACTS, &rows[name], |routed| {
                let routed = routed.unwrap();
                for (header, column) in routed.headers()[1..].iter().zip(columns) {
                    assert_eq!(column[0], header.name);
                    let was = column[at + 1].as_str().unwrap();
                    let place = [&connector, name, header.name, converter_name];
                    comparison.compare(place, was, &recorded(header.value));
                }
            });
        }
    }
    comparison.finish();
}
