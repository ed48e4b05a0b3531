//! CloudEvents 1.0.2 in both modes, over each route.

use walrelay_event_router::{
    CloudEventMode, CloudEvents, Event, Lookups, Options, Place, Preset, Route, RouteError, Router,
    Template,
};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_sink::Poison;

use crate::messages::{JSONB, TEXT, TIMESTAMPTZ, announce, as_row, insert_texts, relation};

const EVENT: Event = Event {
    commit_lsn: Lsn::new(8),
    row: 0,
    commit_time: PgTimestamp::new(820_638_245_678_000),
};

fn template(text: &str) -> Template {
    Template::parse(text, Place::Header, &Lookups::new()).unwrap()
}

fn events(mode: CloudEventMode, content_type: &str) -> CloudEvents {
    CloudEvents {
        mode,
        id: None,
        source: template("/orders"),
        kind: template("com.example.{type}"),
        time: None,
        subject: Some(template("{aggregateid}")),
        content_type: content_type.to_owned(),
        lookups: Lookups::new(),
    }
}

/// The Relation message of a table of texts but for those named; `at` is a timestamptz, `raw` is bytea.
fn table(columns: &[&str]) -> Vec<u8> {
    let columns = columns.iter().map(|name| {
        let oid = match *name {
            "payload" => JSONB,
            "at" | "created_at" => TIMESTAMPTZ,
            "raw" => 17,
            _ => TEXT,
        };
        (*name, oid)
    });
    relation(&columns.collect::<Vec<_>>())
}

const DEBEZIUM: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];
/// The same, and `at`.
const WITH_TIME: [&str; 6] = [
    "id",
    "aggregatetype",
    "aggregateid",
    "type",
    "payload",
    "at",
];
/// A row of [`DEBEZIUM`].
const PLACED: [Option<&str>; 5] = [
    Some("1b9d"),
    Some("Order"),
    Some("k"),
    Some("placed"),
    Some("{\"a\": 1}"),
];

/// Topic, key, value, headers as text.
type Seen = (String, String, Option<String>, Vec<String>);

fn route(
    route: impl Into<Route>,
    events: CloudEvents,
    table: &[u8],
    row: &[Option<&str>],
) -> Result<Seen, RouteError> {
    let mut router = Router::new(route).with_cloud_events(Some(events));
    announce(&mut router, table).unwrap();
    let body = insert_texts(row);
    let (relation, row) = as_row(&body);
    let routed = router.route(relation, &row, &EVENT)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let headers = routed.headers().iter().map(|header| {
        let value = header.value.map_or("(null)".to_owned(), text);
        format!("{}={value}", header.name)
    });
    Ok((
        routed.topic().to_owned(),
        routed.key().map_or(String::new(), text),
        routed.value().map(text),
        headers.collect(),
    ))
}

#[test]
fn binary_mode_leaves_the_value_as_it_is() {
    let events = events(CloudEventMode::Binary, "application/json");
    let seen = route(Options::default(), events, &table(&DEBEZIUM), &PLACED).unwrap();
    assert_eq!(
        seen.3,
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
    let topic_key_value = (&*seen.0, &*seen.1, seen.2.as_deref());
    assert_eq!(
        topic_key_value,
        ("outbox.event.Order", "k", Some("{\"a\": 1}"))
    );
}

#[test]
fn structured_mode_has_everything_in_one_object() {
    let row = [
        Some("1b\"9d"),
        Some("Order"),
        Some("k"),
        Some("pl\u{e4}ced\n"),
        Some("{\"a\": [1.50, null]}"),
    ];
    let events = events(CloudEventMode::Structured, "application/json");
    let seen = route(Options::default(), events, &table(&DEBEZIUM), &row).unwrap();
    assert_eq!(
        seen.2.as_deref(),
        Some(
            "{\"specversion\":\"1.0\",\"id\":\"1b\\\"9d\",\"source\":\"/orders\",\
             \"type\":\"com.example.pl\u{e4}ced\\n\",\"time\":\"2026-01-02T03:04:05.678000Z\",\
             \"subject\":\"k\",\"datacontenttype\":\"application/json\",\"data\":{\"a\": [1.50, null]}}"
        )
    );
    assert_eq!(
        seen.3,
        [
            "id=1b\"9d",
            "content-type=application/cloudevents+json; charset=UTF-8"
        ]
    );
    assert_eq!((&*seen.0, &*seen.1), ("outbox.event.Order", "k"));
    let read: serde_json::Value = serde_json::from_str(&seen.2.unwrap()).unwrap();
    assert_eq!(read["data"]["a"][0], 1.5);
}

#[test]
fn data_that_is_no_json_stands_as_its_content_type_says() {
    let columns = ["id", "aggregatetype", "aggregateid", "type", "body", "raw"];
    let row = [
        Some("1"),
        Some("Order"),
        Some("k"),
        Some("t"),
        Some("a \"b\""),
        Some("\\x00ff"),
    ];
    let value = |column: &str, content_type: &str| {
        let templates = walrelay_event_router::Templates {
            id: Some("id".to_owned()),
            topic: template("orders"),
            key: None,
            value: walrelay_event_router::ValueTemplate::Text(template(&format!("{{{column}}}"))),
            headers: Vec::new(),
            partition: None,
            timestamp: None,
            lookups: Lookups::new(),
        };
        let events = events(CloudEventMode::Structured, content_type);
        let seen = route(templates, events, &table(&columns), &row)?;
        let read: serde_json::Value = serde_json::from_str(&seen.2.unwrap()).unwrap();
        Ok::<_, RouteError>((read["data"].clone(), read["data_base64"].clone()))
    };
    let null = serde_json::Value::Null;
    assert_eq!(
        value("body", "text/plain; charset=utf-8").unwrap(),
        ("a \"b\"".into(), null.clone())
    );
    assert_eq!(
        value("raw", "application/octet-stream").unwrap(),
        (null.clone(), "AP8=".into())
    );
    assert_eq!(
        value("body", "application/octet-stream").unwrap(),
        (null, "YSAiYiI=".into())
    );
    for content_type in ["application/json", "application/vnd.x+JSON;v=1"] {
        let error = value("body", content_type).unwrap_err();
        assert_eq!(error.poison(), Some(Poison::Undecodable), "{error}");
        assert!(!error.to_string().contains("a \"b\""), "{error}");
    }
}

/// An event without data is one. It has a value in structured mode, and none in binary mode.
#[test]
fn null_is_an_event_without_data() {
    let row = [Some("1"), Some("Order"), None, Some("t"), None];
    for (mode, expected) in [
        (CloudEventMode::Binary, false),
        (CloudEventMode::Structured, true),
    ] {
        let events = events(mode, "application/json");
        let seen = route(Options::default(), events, &table(&DEBEZIUM), &row).unwrap();
        assert_eq!(seen.2.is_some(), expected);
        // A subject that is NULL is left out.
        assert!(
            !seen.3.iter().any(|header| header.starts_with("ce_subject")),
            "{:?}",
            seen.3
        );
        if let Some(value) = seen.2 {
            let read: serde_json::Value = serde_json::from_str(&value).unwrap();
            let names: Vec<&String> = read.as_object().unwrap().keys().collect();
            assert_eq!(names, ["id", "source", "specversion", "time", "type"]);
        }
    }
}

#[test]
fn what_an_attribute_cannot_be_is_poison() {
    for (id, kind, at) in [
        (None, "t", "2024-02-29 12:34:56+02"),
        (Some(""), "t", "2024-02-29 12:34:56+02"),
        (Some("1"), "t", "infinity"),
        (Some("1"), "t", "0044-03-15 00:00:00+00 BC"),
        (Some("1"), "t", "secret"),
    ] {
        for mode in [CloudEventMode::Binary, CloudEventMode::Structured] {
            let events = CloudEvents {
                time: Some(template("{at}")),
                kind: template("{type}"),
                ..events(mode, "application/json")
            };
            let row = [
                id,
                Some("Order"),
                Some("k"),
                Some(kind),
                Some("{}"),
                Some(at),
            ];
            let error = route(Options::default(), events, &table(&WITH_TIME), &row).unwrap_err();
            assert_eq!(error.poison(), Some(Poison::Undecodable), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}

#[test]
fn times_are_those_of_rfc_3339() {
    for (at, expected) in [
        (
            "2024-02-29 12:34:56.789+02",
            "2024-02-29T12:34:56.789+02:00",
        ),
        ("2024-02-29 12:34:56+00", "2024-02-29T12:34:56Z"),
        ("2024-02-29 12:34:56", "2024-02-29T12:34:56Z"),
        ("2024-02-29", "2024-02-29T00:00:00Z"),
    ]
    .map(|(at, time)| (Some(at), Some(time)))
    .into_iter()
    .chain([(None, None)])
    {
        let events = CloudEvents {
            time: Some(template("{at}")),
            ..events(CloudEventMode::Binary, "application/json")
        };
        let row = [
            Some("1"),
            Some("Order"),
            Some("k"),
            Some("t"),
            Some("{}"),
            at,
        ];
        let seen = route(Options::default(), events, &table(&WITH_TIME), &row).unwrap();
        let mut headers = seen.3.iter();
        let time = headers.find_map(|header| header.strip_prefix("ce_time="));
        assert_eq!(time, expected);
    }
}

#[test]
fn every_preset_has_an_id_to_offer() {
    let columns = [
        "id",
        "aggregate_type",
        "aggregate_id",
        "event_type",
        "type",
        "payload",
        "metadata",
        "created_at",
    ];
    let row = [
        Some("7"),
        Some("Order"),
        Some("k"),
        Some("order.placed"),
        Some("order.placed"),
        Some("{\"a\": 1}"),
        None,
        Some("2024-02-29 12:34:56+00"),
    ];
    for preset in Preset::ALL {
        let events = CloudEvents {
            subject: None,
            ..events(CloudEventMode::Structured, "application/json")
        };
        let seen = route(preset.routes().unwrap(), events, &table(&columns), &row).unwrap();
        let read: serde_json::Value = serde_json::from_str(&seen.2.unwrap()).unwrap();
        assert_eq!(read["id"], "7", "{}", preset.name);
        assert!(read["data"].is_object(), "{}", preset.name);
        assert!(
            seen.3.last().unwrap().starts_with("content-type="),
            "{}",
            preset.name
        );
    }
}

/// A column that is not there is told when the table is announced.
#[test]
fn a_missing_column_is_told_before_the_first_row() {
    let events = CloudEvents {
        kind: template("{kind}"),
        ..events(CloudEventMode::Binary, "application/json")
    };
    assert_eq!(events.columns(), ["kind", "aggregateid"]);
    let mut router = Router::new(Options::default()).with_cloud_events(Some(events));
    let error = announce(&mut router, &table(&DEBEZIUM)).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("\"kind\"") && error.contains("CloudEvents attribute \"type\""),
        "{error}"
    );
}

/// Scratch buffers are kept.
#[test]
fn nothing_is_allocated_per_row() {
    for mode in [CloudEventMode::Binary, CloudEventMode::Structured] {
        let events = events(mode, "application/json");
        let mut router = Router::new(Options::default()).with_cloud_events(Some(events));
        announce(&mut router, &table(&DEBEZIUM)).unwrap();
        let body = insert_texts(&PLACED);
        let (relation, row) = as_row(&body);
        let mut all = || {
            let routed = router.route(relation, &row, &EVENT).unwrap();
            assert!(routed.headers().len() >= 2);
        };
        all();
        let again = allocation_counter::measure(&mut all);
        assert_eq!(again.count_total, 0, "{mode:?}: {again:?}");
    }
}
