//! Outcomes recorded from Debezium (tests/golden/README.md).
//!
//! Every recorded record is made and compared, part by part. What differs must be listed in
//! [`DEVIATIONS`], each with the row of `docs/MIGRATING-FROM-DEBEZIUM.md` that says why; what is
//! listed must differ.

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

const DOCUMENT: &str = include_str!("../../../../docs/MIGRATING-FROM-DEBEZIUM.md");

/// The messages Postgres sent.
fn messages(hex: &str) -> Vec<Vec<u8>> {
    hex.lines()
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
fn relation(messages: &[Vec<u8>]) -> Relation<'_> {
    let mut relations = messages.iter().filter(|message| message[0] == b'R');
    let relation = relations.next().unwrap();
    assert!(relations.next().is_none());
    as_relation(relation)
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

/// The recording's form of bytes.
fn recorded(bytes: Option<&[u8]>) -> String {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => "<null>".to_owned(),
        Some((Ok(text), _)) => format!("utf8:{text}"),
        Some((Err(_), bytes)) => {
            let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap();
            let pairs = bytes
                .iter()
                .map(|byte| [digit(byte >> 4), digit(byte & 0xf)]);
            let hex: String = pairs.flatten().collect();
            format!("hex:{hex}")
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

/// The recording's names of converters.
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

/// Where this router differs on purpose. A config, row or part of `*` is any.
struct Deviation {
    /// A row of the table in the document, by its name there.
    name: &'static str,
    config: &'static str,
    row: &'static str,
    /// `key`, `value`, or the name of a header.
    part: &'static str,
    /// Of the recording.
    converter: &'static str,
}

const fn deviation(
    name: &'static str,
    config: &'static str,
    row: &'static str,
    part: &'static str,
    converter: &'static str,
) -> Deviation {
    Deviation {
        name,
        config,
        row,
        part,
        converter,
    }
}

const DEVIATIONS: &[Deviation] = &[
    deviation("bytes-as-text", "*", "*", "value", "string"),
    deviation("bytes-as-text", "*", "*", "byt", "string"),
    deviation("bytes-as-text", "*", "*", "num", "string"),
    deviation("bytes-as-text", "*", "*", "bt8", "string"),
    deviation("bytes-as-text", "*", "*", "vb", "string"),
    deviation("name-type", "headers", "1", "nm", "*"),
];

/// Whether `was` can differ by this name at all: so that a deviation of all rows hides nothing.
fn plausible(name: &str, was: &str) -> bool {
    match name {
        "bytes-as-text" => was.contains("HeapByteBuffer[") || was.contains("[B@"),
        "name-type" => matches!(was, "<null>" | "utf8:null") || was.ends_with("\"payload\":null}"),
        other => panic!("a deviation that is not known: {other}"),
    }
}

/// Notes what differs, by the names of the deviations that allow for it.
#[derive(Default)]
struct Comparison {
    equal: usize,
    seen: BTreeSet<usize>,
    differences: Vec<String>,
}

impl Comparison {
    fn compare(&mut self, place: [&str; 4], was: &str, is: &str) {
        if was == is {
            self.equal += 1;
            return;
        }
        let [config, row, part, converter] = place;
        let fits = |listed: &str, found: &str| listed == "*" || listed == found;
        let listed = DEVIATIONS.iter().position(|listed| {
            fits(listed.config, config)
                && fits(listed.row, row)
                && fits(listed.part, part)
                && fits(listed.converter, converter)
                && plausible(listed.name, was)
        });
        match listed {
            Some(listed) => {
                self.seen.insert(listed);
            }
            None => self.differences.push(format!(
                "{config} {row} {part} {converter}\n was {was}\n is  {is}"
            )),
        }
    }

    fn finish(&self) {
        let shown = self.differences.iter().take(12).cloned();
        let shown: Vec<String> = shown.collect();
        let count = self.differences.len();
        assert!(count == 0, "{count} differ\n{}", shown.join("\n"));
    }
}

/// The record of a row, with these converters.
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

    let mut comparison = Comparison::default();
    let mut records = 0;
    for line in lines(RECORDED).filter(|line| line["outcome"] == "record") {
        records += 1;
        let config = line["config"].as_str().unwrap();
        let name = line["row"].as_str().unwrap();
        let row = &rows[name];
        let base = options(&configs[config]);
        // Key and value, each under six converters, and what no converter changes.
        for (converter_name, was) in line["value"].as_object().unwrap() {
            let mut options = base.clone();
            options.key_converter = Converter::String;
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
                    // Where Debezium dies a record is as good as an error.
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
        for converter_name in ["simple", "string", "json", "json+schema"] {
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
    assert_eq!(
        comparison.seen.len(),
        DEVIATIONS.len(),
        "one is listed and does not show"
    );
    assert!(comparison.equal > 5000, "{}", comparison.equal);
}

#[test]
fn every_deviation_is_in_the_document() {
    for deviation in DEVIATIONS.iter().chain(TYPE_DEVIATIONS) {
        let row = format!("| `{}` |", deviation.name);
        assert!(DOCUMENT.contains(&row), "{} is not listed", deviation.name);
    }
}

const TYPE_DEVIATIONS: &[Deviation] = &[
    deviation("bytes-as-text", "*", "*", "*", "string"),
    deviation("name-type", "*", "*", "txtn", "*"),
    deviation("nested-arrays", "*", "*", "ai2d", "*"),
    deviation("nested-arrays", "*", "*", "at2", "*"),
    deviation("array-of-bits", "*", "*", "abit", "*"),
    deviation("array-elements", "*", "*", "anum", "*"),
    deviation("array-elements", "*", "*", "amood", "*"),
    deviation("array-times", "*", "*", "adate", "*"),
    deviation("array-times", "*", "*", "ati", "*"),
    deviation("array-times", "*", "*", "atiz", "*"),
    deviation("array-times", "*", "*", "ats", "*"),
    deviation("array-times", "*", "*", "atz", "*"),
];

/// Columns of many more types, under all modes of handling, in headers.
#[test]
fn every_type_reads_as_recorded() {
    let messages = messages(TYPES_CHANGES);
    let relation = relation(&messages);
    let rows = rows(&messages);

    let mut comparison = Comparison::default();
    let mut seen = BTreeSet::new();
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
        for (at, converter_name) in ["simple", "string", "json", "json+schema"]
            .iter()
            .enumerate()
        {
            options.header_converter = converter(converter_name);
            make(&options, &relation, TYPES_FACTS, &rows[name], |routed| {
                let routed = routed.unwrap();
                for (header, column) in routed.headers()[1..].iter().zip(columns) {
                    assert_eq!(column[0], header.name);
                    let was = column[at + 1].as_str().unwrap();
                    let is = recorded(header.value);
                    let listed = TYPE_DEVIATIONS.iter().position(|listed| {
                        (listed.part == "*" || listed.part == header.name)
                            && (listed.converter == "*" || listed.converter == *converter_name)
                            && (listed.name != "bytes-as-text" || plausible(listed.name, was))
                    });
                    if was == is {
                        comparison.equal += 1;
                    } else if let Some(listed) = listed {
                        seen.insert(listed);
                    } else {
                        let place = [&connector, name, header.name, converter_name];
                        comparison
                            .differences
                            .push(format!("{place:?}\n was {was}\n is  {is}"));
                    }
                }
            });
        }
    }
    comparison.finish();
    assert_eq!(
        seen.len(),
        TYPE_DEVIATIONS.len(),
        "one is listed and does not show: {seen:?}"
    );
    assert!(comparison.equal > 5000, "{}", comparison.equal);
}
