//! The fuzz targets. They are part of the crate so that ordinary tests run their corpora. Each
//! accepts any bytes, and panics only if this crate breaks one of its promises.

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use serde_json::value::RawValue;
use walrelay_lsn::{Lsn, RelationId, TypeOid};
use walrelay_pgoutput::{Message, PgTimestamp, decode, encode};
use walrelay_sink::Poison;

use crate::render::registry::encode;
use crate::value::{Part, json};
use crate::{
    Address, AddressPart, BatchEvent, BatchPlace, Event, HeadersFrom, Lookups, Member,
    MessageError, MessageRow, Messages, Object, Options, Router, Template, TemplateTarget,
    Templates, TopicTemplate, TopicTemplateError, ValueSchema, ValueTemplate,
};

const EVENT: Event = Event {
    epoch: 0,
    commit_lsn: Lsn::new(8),
    row: 0,
    commit_time: PgTimestamp::new(0),
};

/// Asserts that a logical message of any content gives a row of the announced table, or an error
/// without the content; and that each event of a batch does, of which each has its own bytes.
pub fn messages(bytes: &[u8]) {
    let mut messages = Messages::new("outbox", []);
    let mut router = Router::new(Options::default());
    assert!(messages.announce(&mut router).is_ok());
    if !BatchEvent::are_in(bytes) {
        return route_message(messages.read(bytes, EVENT.commit_time), &mut router);
    }
    let (mut place, mut read, mut events) = (BatchPlace::default(), 0, 0);
    while let Some(event) = BatchEvent::at(bytes, place) {
        place = event.next();
        read += event.content().len();
        events += 1;
        route_message(messages.read_event(&event, EVENT.commit_time), &mut router);
    }
    assert!(read <= bytes.len(), "an event has bytes of another");
    assert!(events <= BatchEvent::MOST + 1);
    if let Ok(array) = serde_json::from_slice::<Vec<&RawValue>>(bytes)
        && array.len() as u64 <= BatchEvent::MOST
    {
        assert_eq!(events, array.len() as u64);
    }
}

fn route_message(row: Result<MessageRow<'_>, MessageError>, router: &mut Router) {
    let row = match row {
        Ok(row) => row,
        Err(error) => {
            let shown = format!("{error} {error:?}");
            assert!(shown.len() < 400, "{shown}");
            let _ = error.poison();
            return;
        }
    };
    let headers: Vec<_> = row.headers.iter().map(|header| header.name).collect();
    let named = row.insert.relation == Messages::TABLES[1];
    match router.route(row.insert.relation, &row.insert.tuple, &EVENT) {
        Ok(mut routed) => {
            routed.add_headers(row.headers.iter());
            assert_eq!(routed.headers().len(), 1 + headers.len());
            assert!(!routed.topic().is_empty());
            let value = routed.value().map(serde_json::from_slice::<&RawValue>);
            assert!(value.is_none_or(|value| value.is_ok()), "the value is JSON");
        }
        Err(error) => {
            assert!(!named, "{error}");
            assert_eq!(error.poison(), Some(Poison::Unroutable), "{error}");
        }
    }
}

/// Routes a row whose headers are in a column, or in the arrays before and after a NUL. Each member of a
/// JSON object becomes a header, and no error contains the text.
pub fn header_columns(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let (text, values) = match text.split_once('\0') {
        Some((names, values)) => (names, Some(values)),
        None => (text, None),
    };
    let from = match values {
        None => HeadersFrom::Column("a".to_owned()),
        Some(_) => HeadersFrom::Arrays {
            names: "a".to_owned(),
            values: "b".to_owned(),
        },
    };
    // No type of Postgres itself, so that any text is read.
    let [text_type, of_headers] = [25, 1 << 20].map(TypeOid::new);
    let table = encode::Table::new(RelationId::new(1), "public", "outbox")
        .column("id", text_type)
        .column("aggregatetype", text_type)
        .column("aggregateid", text_type)
        .column("payload", text_type)
        .column("a", of_headers)
        .column("b", of_headers);
    let mut router = Router::new(Options::default()).with_headers_from(Some(from));
    let (announced, row) = (
        table.relation(),
        table.insert(&[Some("1"), Some("t"), None, None, Some(text), values]),
    );
    let (Ok(Message::Relation(relation)), Ok(Message::Insert(insert))) =
        (decode(&announced), decode(&row))
    else {
        unreachable!("messages were made")
    };
    assert!(router.relation(&relation).is_ok());
    let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
    let object = object.ok().filter(|_| values.is_none());
    match router.route(insert.relation, &insert.tuple, &EVENT) {
        Ok(routed) => {
            assert!(routed.headers().len() <= 1_001);
            for name in object.iter().flatten().map(|(name, _)| name) {
                let mut headers = routed.headers().iter();
                assert!(headers.any(|header| header.name == name), "{text:?}");
            }
        }
        Err(error) => {
            let few = object.is_some_and(|_| text.matches(':').count() <= 1_000);
            assert!(!few, "{error}: {text:?}");
            assert_eq!(error.poison(), Some(Poison::Undecodable));
            assert!(error.to_string().len() < 200, "{error}");
        }
    }
}

/// A schema with every type.
const SCHEMA: &str = r#"{"type": "record", "name": "a.R", "fields": [
    {"name": "n", "type": ["null", "long", "double", "boolean", "string", "bytes"], "default": null},
    {"name": "i", "type": "int", "default": -1}, {"name": "f", "type": "float", "default": 0.5},
    {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "default": "A"},
    {"name": "x", "type": {"type": "fixed", "name": "X", "size": 2}, "default": "ab"},
    {"name": "l", "type": {"type": "array", "items": ["null", "R"]}, "default": []},
    {"name": "m", "type": {"type": "map", "values": ["E", "int", "string"]}, "default": {}},
    {"name": "d", "type": ["null",
     {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}], "default": null},
    {"name": "u", "type": ["null", {"type": "string", "logicalType": "uuid"}], "default": null},
    {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"},
     {"type": "int", "logicalType": "date"}], "default": null}]}"#;

/// Encodes any JSON by `SCHEMA`, or by the schema after a NUL. What `SCHEMA` encodes can be
/// decoded whole, and no error contains the JSON.
pub fn avro(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let (json, schema) = match text.split_once('\0') {
        Some((json, schema)) => (json, Some(schema)),
        None => (text, None),
    };
    let Ok(compiled) = ValueSchema::avro(7, schema.unwrap_or(SCHEMA)) else {
        return assert!(schema.is_some(), "the schema of our own");
    };
    let mut out = Vec::new();
    if let Err(schema_mismatch) = encode(&compiled, &Part::Row(json.as_bytes()), &mut out) {
        let shown = format!("{schema_mismatch} {schema_mismatch:?}");
        // An error shows names of the schema, which are shorter than 12 bytes.
        let is_value = json.len() >= 12 && json::is_json(json.as_bytes());
        return assert!(
            schema.is_some() || !is_value || !shown.contains(json),
            "{shown}"
        );
    }
    assert!(out.starts_with(&[0, 0, 0, 0, 7]));
    // `apache_avro` cannot decode by every schema.
    if schema.is_none() {
        let read = Schema::parse_str(SCHEMA).and_then(|schema| {
            let mut rest = out.get(5..).unwrap_or_default();
            let reader = GenericDatumReader::builder(&schema).build()?;
            reader.read_value(&mut rest).map(|_| rest.len())
        });
        assert!(matches!(read, Ok(0)), "{read:?} of {json:?}");
    }
}

/// Parses any topic template, and renders it with the value after a NUL. Errors point into the
/// template, its text parses to the same template, and the value is inserted unchanged.
pub fn topic_templates(bytes: &[u8]) {
    let Some((text, value)) = text_and_value(bytes) else {
        return;
    };
    let template = match text.parse::<TopicTemplate>() {
        Err(error) => {
            let position = match error {
                TopicTemplateError::Empty => return assert!(text.is_empty()),
                TopicTemplateError::Dollar(position)
                | TopicTemplateError::Unclosed(position)
                | TopicTemplateError::Unknown { position, .. }
                | TopicTemplateError::NoGroup { position, .. }
                | TopicTemplateError::Backslash(position) => position,
                TopicTemplateError::Regex(_) => unreachable!("the expression is the default one"),
            };
            let blamed = text.chars().nth(position - 1);
            return assert!(matches!(blamed, Some('$' | '\\')), "{position} of {text:?}");
        }
        Ok(template) => template,
    };
    let mut topic = "what was there before".to_owned();
    // U+E000 stands for the value, unless the template contains it too.
    if !text.contains('\u{E000}') {
        template.render("\u{E000}", &mut topic);
        let expected = topic.replace('\u{E000}', value);
        let lines = value.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']);
        let expected = if lines { value.to_owned() } else { expected };
        template.render(value, &mut topic);
        assert_eq!(topic, expected, "{text:?}");
    }
}

/// Splits the bytes into the text before a NUL and the value after it.
fn text_and_value(bytes: &[u8]) -> Option<(&str, &str)> {
    let text = str::from_utf8(bytes).ok()?;
    Some(text.split_once('\0').unwrap_or((text, "Order")))
}

/// OIDs of text, uuid, bigint, double, boolean, bytea, timestamptz and jsonb.
const TYPES: [u32; 8] = [25, 2950, 20, 701, 16, 17, 1184, 3802];

/// Parses any template over columns, and renders it with the text after a NUL in every column.
/// Errors point into the template, and a row becomes a record or an error. An object is JSON.
pub fn templates(bytes: &[u8]) {
    let Some((text, value)) = text_and_value(bytes) else {
        return;
    };
    let template = match text.parse::<Template>() {
        Err(error) => {
            let within = 1..=text.chars().count() + 1;
            return assert!(within.contains(&error.position), "{error} of {text:?}");
        }
        Ok(template) => template,
    };
    let table = [(value.to_owned(), "found".to_owned())];
    let lookups = Lookups::from([("t".to_owned(), table.into())]);
    let Ok(fixed) = "x".parse::<Template>() else {
        unreachable!("a text is a template")
    };
    let plain = Templates {
        id: None,
        topic: fixed.clone(),
        key: None,
        value: ValueTemplate::Text(fixed),
        headers: Vec::new(),
        partition: None,
        timestamp: None,
        lookups,
    };
    let mut names: Vec<&str> = template.columns().collect();
    names.sort_unstable();
    names.dedup();
    // No column has a NUL in its name, and no table of the test has so many columns.
    if names.iter().any(|name| name.contains('\0')) || names.len() > 100 {
        return;
    }
    for place in [
        TemplateTarget::Topic,
        TemplateTarget::Address,
        TemplateTarget::Key,
        TemplateTarget::Value,
        TemplateTarget::Member,
        TemplateTarget::Header,
        TemplateTarget::Partition,
        TemplateTarget::Timestamp,
    ] {
        let (given, mut templates) = (template.clone(), plain.clone());
        let mut address = None;
        match place {
            TemplateTarget::Topic => templates.topic = given,
            TemplateTarget::Address => {
                let part = AddressPart {
                    key: "address",
                    template: given,
                    tokens: None,
                };
                address = Some(Address {
                    routing_key: Some(part),
                    ..Address::default()
                });
            }
            TemplateTarget::Key => templates.key = Some(given),
            TemplateTarget::Value => templates.value = ValueTemplate::Text(given),
            TemplateTarget::Header => templates.headers = vec![("h".to_owned(), given)],
            TemplateTarget::Partition => templates.partition = Some(given),
            TemplateTarget::Timestamp => templates.timestamp = Some(given),
            TemplateTarget::Member => {
                let members = vec![("m".to_owned(), Member::Template(given))];
                templates.value = ValueTemplate::Object(Object { members });
            }
        }
        for type_oid in TYPES {
            // Postgres accepts only JSON in a column of type jsonb.
            let is_possible = type_oid != 3802 || json::is_json(value.as_bytes());
            if is_possible && Template::parse(text, place, &plain.lookups).is_ok() {
                let route = (&templates, address.as_ref());
                rows(route, place, &names, type_oid, value);
            }
        }
    }
}

/// Routes rows of a table whose columns have one type: a row with `value` in all, and one of NULLs.
fn rows(
    (templates, address): (&Templates, Option<&Address>),
    place: TemplateTarget,
    names: &[&str],
    type_oid: u32,
    value: &str,
) {
    let mut table = encode::Table::new(RelationId::new(1), "public", "outbox");
    for name in names {
        table = table.column(name, TypeOid::new(type_oid));
    }
    let mut router = Router::new(templates.clone()).with_address(address.cloned());
    let announced = table.relation();
    let Ok(Message::Relation(relation)) = decode(&announced) else {
        unreachable!("a Relation message was made")
    };
    if router.relation(&relation).is_err() {
        return;
    }
    for value in [Some(value), None] {
        let row = table.insert(&vec![value; names.len()]);
        let Ok(Message::Insert(insert)) = decode(&row) else {
            unreachable!("an Insert message was made")
        };
        match router.route(insert.relation, &insert.tuple, &EVENT) {
            Ok(routed) => {
                let record = routed.record();
                assert!(!record.topic.is_empty());
                assert!(record.partition.is_none_or(|partition| partition >= 0));
                assert!(record.timestamp_ms.is_none_or(|millis| millis >= 0));
                let object = record.value.unwrap_or_default();
                let json = place != TemplateTarget::Member || json::is_json(object);
                assert!(json, "{templates:?} of {value:?}");
            }
            Err(error) => assert!(error.poison().is_some(), "{error}"),
        }
    }
}
