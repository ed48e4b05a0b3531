//! CloudEvents 1.0.2 in both modes, for each kind of route.

use CloudEventMode::{Binary, Structured};
use serde_json::Value as Json;
use walrelay_event_router::{
    CloudEventMode, CloudEvents, Lookups, Options, Preset, Route, RouteError, Router, Templates,
    ValueTemplate,
};
use walrelay_sink::Poison;

use crate::messages::{
    DEBEZIUM, PRESETS_ROW, TEXT, TIMESTAMPTZ, TextRecord, announce, cloud_events, debezium_outbox,
    insert_texts, presets_outbox, relation, route, template, text_record,
};

fn events(mode: CloudEventMode, content_type: &str) -> CloudEvents {
    CloudEvents {
        subject: Some(template("{aggregateid}")),
        content_type: content_type.to_owned(),
        ..cloud_events(mode)
    }
}

/// A row of Debezium's table.
const PLACED: [&str; 5] = ["1b9d", "Order", "k", "placed", "{\"a\": 1}"];

fn seen(
    by: impl Into<Route>,
    events: CloudEvents,
    table: &[u8],
    row: &[Option<&str>],
) -> Result<TextRecord, RouteError> {
    let mut router = Router::new(by).with_cloud_events(Some(events));
    announce(&mut router, table).unwrap();
    text_record(&mut router, &insert_texts(row))
}

/// Routes a row of Debezium's table by Debezium's rules.
fn debezium(events: CloudEvents, row: [Option<&str>; 5]) -> Result<TextRecord, RouteError> {
    seen(Options::default(), events, &debezium_outbox(), &row)
}

/// Routes an event of Debezium's table with a further column `at`, which is the time.
fn timed(
    mode: CloudEventMode,
    id: Option<&str>,
    at: Option<&str>,
) -> Result<TextRecord, RouteError> {
    let events = CloudEvents {
        time: Some(template("{at}")),
        kind: template("{type}"),
        ..events(mode, "application/json")
    };
    let table = relation(&[&DEBEZIUM[..], &[("at", TIMESTAMPTZ)]].concat());
    let row = [id, Some("Order"), Some("k"), Some("t"), Some("{}"), at];
    seen(Options::default(), events, &table, &row)
}

#[test]
fn binary_mode_keeps_the_value() {
    let record = debezium(events(Binary, "application/json"), PLACED.map(Some)).unwrap();
    assert_eq!(
        record.headers,
        [
            "id=1b9d",
            "ce_specversion=1.0",
            "ce_id=1b9d",
            "ce_source=/orders",
            "ce_type=com.example.placed",
            "ce_time=2026-01-02T03:04:05.678000Z",
            "ce_subject=k",
            "content-type=application/json",
        ]
    );
    assert_eq!(record.topic, "outbox.event.Order");
    assert_eq!(record.key.as_deref(), Some("k"));
    assert_eq!(record.value.as_deref(), Some("{\"a\": 1}"));
}

#[test]
fn structured_mode_has_everything_in_one_object() {
    let row = [
        "1b\"9d",
        "Order",
        "k",
        "pl\u{e4}ced\n",
        "{\"a\": [1.50, null]}",
    ];
    let record = debezium(events(Structured, "application/json"), row.map(Some)).unwrap();
    assert_eq!(
        record.value.as_deref(),
        Some(
            "{\"specversion\":\"1.0\",\"id\":\"1b\\\"9d\",\"source\":\"/orders\",\
             \"type\":\"com.example.pl\u{e4}ced\\n\",\"time\":\"2026-01-02T03:04:05.678000Z\",\
             \"subject\":\"k\",\"datacontenttype\":\"application/json\",\"data\":{\"a\": [1.50, null]}}"
        )
    );
    let content_type = "content-type=application/cloudevents+json; charset=UTF-8";
    assert_eq!(record.headers, ["id=1b\"9d", content_type]);
    assert_eq!(record.topic, "outbox.event.Order");
    assert_eq!(record.key.as_deref(), Some("k"));
    let read: Json = serde_json::from_str(&record.value.unwrap()).unwrap();
    assert_eq!(read["data"]["a"][0], 1.5);
}

#[test]
fn data_is_written_by_its_content_type() {
    let columns = [
        ("id", TEXT),
        ("aggregateid", TEXT),
        ("type", TEXT),
        ("body", TEXT),
        ("raw", 17),
    ];
    let row = ["1", "k", "t", "a \"b\"", "\\x00ff"].map(Some);
    let value = |column: &str, content_type: &str| {
        let templates = Templates {
            id: Some("id".to_owned()),
            topic: template("orders"),
            key: None,
            value: ValueTemplate::Text(template(&format!("{{{column}}}"))),
            headers: Vec::new(),
            partition: None,
            timestamp: None,
            lookups: Lookups::new(),
        };
        let events = events(Structured, content_type);
        let record = seen(templates, events, &relation(&columns), &row)?;
        let read: Json = serde_json::from_str(&record.value.unwrap()).unwrap();
        Ok::<_, RouteError>((read["data"].clone(), read["data_base64"].clone()))
    };
    for (column, content_type, expected) in [
        (
            "body",
            "text/plain; charset=utf-8",
            ("a \"b\"".into(), Json::Null),
        ),
        (
            "raw",
            "application/octet-stream",
            (Json::Null, "AP8=".into()),
        ),
        (
            "body",
            "application/octet-stream",
            (Json::Null, "YSAiYiI=".into()),
        ),
    ] {
        assert_eq!(value(column, content_type), Ok(expected), "{content_type}");
    }
    for content_type in ["application/json", "application/vnd.x+JSON;v=1"] {
        let error = value("body", content_type).unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Undecodable), "{error}");
        assert!(!error.to_string().contains("a \"b\""), "{error}");
    }
}

/// An event without data is valid. It has a value in structured mode, and none in binary mode.
#[test]
fn null_is_an_event_without_data() {
    for mode in [Binary, Structured] {
        let row = [Some("1"), Some("Order"), None, Some("t"), None];
        let record = debezium(events(mode, "application/json"), row).unwrap();
        assert_eq!(record.value.is_some(), mode == Structured);
        // A NULL subject is left out.
        let mut headers = record.headers.iter();
        assert!(!headers.any(|header| header.starts_with("ce_subject")));
        if let Some(value) = record.value {
            let read: Json = serde_json::from_str(&value).unwrap();
            let names: Vec<&String> = read.as_object().unwrap().keys().collect();
            assert_eq!(names, ["id", "source", "specversion", "time", "type"]);
        }
    }
}

#[test]
fn invalid_attributes_are_poison() {
    for (id, at) in [
        (None, "2024-02-29 12:34:56+02"),
        (Some(""), "2024-02-29 12:34:56+02"),
        (Some("1"), "infinity"),
        (Some("1"), "0044-03-15 00:00:00+00 BC"),
        (Some("1"), "secret"),
    ] {
        for mode in [Binary, Structured] {
            let error = timed(mode, id, Some(at)).unwrap_err();
            assert_eq!(error.poison(), Some(Poison::Undecodable), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}

#[test]
fn times_are_those_of_rfc_3339() {
    for (at, expected) in [
        (
            Some("2024-02-29 12:34:56.789+02"),
            Some("2024-02-29T12:34:56.789+02:00"),
        ),
        (Some("2024-02-29 12:34:56+00"), Some("2024-02-29T12:34:56Z")),
        (Some("2024-02-29 12:34:56"), Some("2024-02-29T12:34:56Z")),
        (Some("2024-02-29"), Some("2024-02-29T00:00:00Z")),
        (None, None),
    ] {
        let record = timed(Binary, Some("1"), at).unwrap();
        let mut headers = record.headers.iter();
        let time = headers.find_map(|header| header.strip_prefix("ce_time="));
        assert_eq!(time, expected);
    }
}

#[test]
fn every_preset_has_an_id() {
    let mut row = PRESETS_ROW.map(Some);
    row[5] = None;
    for preset in Preset::ALL {
        let record = seen(
            preset.routes().unwrap(),
            cloud_events(Structured),
            &presets_outbox(),
            &row,
        )
        .unwrap();
        let read: Json = serde_json::from_str(&record.value.unwrap()).unwrap();
        assert_eq!(read["id"], PRESETS_ROW[0], "{}", preset.name);
        assert!(read["data"].is_object(), "{}", preset.name);
        let last = record.headers.last().unwrap();
        assert!(last.starts_with("content-type="), "{}", preset.name);
    }
}

/// A missing column is an error when the table is announced, not at its first row.
#[test]
fn a_missing_column_is_refused_at_the_announcement() {
    let events = CloudEvents {
        kind: template("{kind}"),
        ..events(Binary, "application/json")
    };
    assert_eq!(events.columns(), ["kind", "aggregateid"]);
    let mut router = Router::new(Options::default()).with_cloud_events(Some(events));
    let error = announce(&mut router, &debezium_outbox()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("\"kind\"") && error.contains("CloudEvents attribute \"type\""),
        "{error}"
    );
}

/// The buffers are reused.
#[test]
fn nothing_is_allocated_per_row() {
    for mode in [Binary, Structured] {
        let events = events(mode, "application/json");
        let mut router = Router::new(Options::default()).with_cloud_events(Some(events));
        announce(&mut router, &debezium_outbox()).unwrap();
        let message = insert_texts(&PLACED.map(Some));
        let mut all = || {
            let routed = route(&mut router, &message).unwrap();
            assert!(routed.headers().len() >= 2);
        };
        all();
        let again = allocation_counter::measure(&mut all);
        assert_eq!(again.count_total, 0, "{mode:?}: {again:?}");
    }
}
