use walrelay_lsn::Lsn;
use walrelay_pgoutput::{Relation, Value};
use walrelay_sink::Poison;

use super::*;
use crate::{Event, Options, Preset, Route};

const NOON: PgTimestamp = PgTimestamp::new(820_638_245_678_000);

/// Relation, values other than NULL by column name, and headers.
type Seen = (RelationId, Vec<(String, String)>, Vec<String>);

/// Reads a message; returns its relation, its values by column name, and its headers.
fn row(content: &str) -> Result<Seen, MessageError> {
    let mut messages = Messages::new("outbox", []);
    let body = messages.relation(Messages::ROUTED);
    let names: Vec<String> = relation(&body)
        .columns()
        .map(|c| c.name.to_owned())
        .collect();
    let row = messages.read(content.as_bytes(), NOON)?;
    let values = row.insert.tuple.values();
    let values = names.into_iter().zip(values).filter_map(|(name, value)| {
        let Value::Text(bytes) = value else {
            return None;
        };
        Some((name, String::from_utf8(bytes.to_vec()).unwrap()))
    });
    let headers = row.headers.iter().map(|header| {
        let value = header.value.map(|value| str::from_utf8(value).unwrap());
        format!("{}={}", header.name, value.unwrap_or("(null)"))
    });
    Ok((row.insert.relation, values.collect(), headers.collect()))
}

fn relation(body: &[u8]) -> Relation<'_> {
    match decode(body).unwrap() {
        Message::Relation(relation) => relation,
        other => panic!("{other:?}"),
    }
}

fn value(content: &str, column: &str) -> Option<String> {
    let (_, values, _) = row(content).unwrap();
    let found = values.into_iter().find(|(name, _)| name == column);
    found.map(|(_, value)| value)
}

#[test]
fn members_get_the_columns_of_presets() {
    let content = r#" {"id":"7f3e","aggregate":"Order","key":42,"type":"order.placed",
        "payload": {"b" : [1.50, null],"a":"\u00e4"} ,"headers":null} "#;
    let (relation, values, headers) = row(content).unwrap();
    assert_eq!(relation, Messages::ROUTED);
    let expected = [
        ("id", "7f3e"),
        ("event_id", "7f3e"),
        ("aggregate", "Order"),
        ("aggregatetype", "Order"),
        ("aggregate_type", "Order"),
        ("key", "42"),
        ("aggregateid", "42"),
        ("aggregate_id", "42"),
        ("type", "order.placed"),
        ("event_type", "order.placed"),
        // Byte for byte as written, not normalized as in a jsonb column.
        ("payload", r#"{"b" : [1.50, null],"a":"\u00e4"}"#),
        ("created_at", "2026-01-02 03:04:05.678000+00"),
        ("occurred_at", "2026-01-02 03:04:05.678000+00"),
    ];
    assert_eq!(values, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert!(headers.is_empty());
}

#[test]
fn a_topic_replaces_the_aggregate() {
    let (relation, values, _) = row(r#"{"topic":"orders.v1","payload":"x"}"#).unwrap();
    assert_eq!(relation, Messages::NAMED);
    assert!(values.contains(&("topic".to_owned(), "orders.v1".to_owned())));
    assert!(values.contains(&("payload".to_owned(), "\"x\"".to_owned())));
    // Without a topic and an aggregate, as a preset that routes by the type needs none.
    assert_eq!(row(r#"{"type":"a.b"}"#).unwrap().0, Messages::ROUTED);
}

#[test]
fn missing_and_null_members_are_null() {
    assert_eq!(value("{}", "payload"), None);
    assert_eq!(value(r#"{"payload":null,"key":null}"#, "payload"), None);
    assert_eq!(value(r#"{"key":""}"#, "key"), Some(String::new()));
    let empty = value(r#"{"payload":""}"#, "payload");
    assert_eq!(empty.as_deref(), Some("\"\""));
}

#[test]
fn escapes_are_resolved_in_texts() {
    let key = r#"{"key":"\u00e4\"\\\ud83d\ude00"}"#;
    assert_eq!(value(key, "key").as_deref(), Some("ä\"\\😀"));
    // Escapes in the names of members, too.
    assert_eq!(value(r#"{"k\u0065y":"1"}"#, "key").as_deref(), Some("1"));
}

#[test]
fn headers_keep_their_order_and_may_be_null() {
    let content = r#"{"headers":{"trace":"a\nb","n":1.50,"b":true,"none":null,"trace":"c"}}"#;
    let (_, _, headers) = row(content).unwrap();
    assert_eq!(
        headers,
        ["trace=a\nb", "n=1.50", "b=true", "none=(null)", "trace=c"]
    );
    let content = format!(r#"{{"headers":{{"trace":"{}"}}}}"#, "x".repeat(100));
    assert_eq!(row(&content).unwrap().2.len(), 1);
}

#[test]
fn invalid_contents_are_poison() {
    use MessageMember::{Headers, Id, Key, Payload, Type};
    let unknown = MessageError::UnknownMember;
    let twice = |member| MessageError::Twice { member };
    let kind = |member| MessageError::Kind {
        member,
        wanted: match member {
            Headers => "an object of strings, numbers, booleans and nulls",
            _ => "a string or a whole number",
        },
    };
    for content in [
        "",
        "x",
        "[]",
        "null",
        "\"payload\"",
        r#"{"payload":}"#,
        r#"{"payload":1} {}"#,
        r#"{"payload":1"#,
        // The first fault is reported, unless the text is not JSON at all.
        r#"{"secret":1, "key":"#,
    ] {
        let error = row(content).unwrap_err();
        let not_json = matches!(error, MessageError::NotJson { .. });
        assert!(not_json, "{content}: {error:?}");
        assert_eq!(error.poison(), Poison::Undecodable, "{content}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    for (content, expected) in [
        (r#"{"secret":1}"#, unknown.clone()),
        (r#"{"Payload":1}"#, unknown),
        (r#"{"key":"a","key":"b"}"#, twice(Key)),
        (r#"{"payload":null,"payload":1}"#, twice(Payload)),
        (r#"{"key":1.5}"#, kind(Key)),
        (r#"{"key":1e5}"#, kind(Key)),
        (r#"{"key":{}}"#, kind(Key)),
        (r#"{"id":["secret"]}"#, kind(Id)),
        (r#"{"type":true}"#, kind(Type)),
        // Half of a surrogate pair.
        (r#"{"key":"\ud83d"}"#, kind(Key)),
        (r#"{"headers":[]}"#, kind(Headers)),
        (r#"{"headers":"secret"}"#, kind(Headers)),
        (r#"{"headers":{"a":{"secret":1}}}"#, kind(Headers)),
        (r#"{"headers":{"a":[]}}"#, kind(Headers)),
    ] {
        let error = row(content).unwrap_err();
        assert_eq!(error, expected, "{content}");
        assert_eq!(error.poison(), Poison::Undecodable, "{content}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    for (content, expected) in [
        (r#"{"topic":"a","aggregate":"b"}"#, MessageError::TwoTopics),
        (r#"{"topic":""}"#, MessageError::EmptyTopic),
    ] {
        let error = row(content).unwrap_err();
        assert_eq!(error, expected);
        assert_eq!(error.poison(), Poison::Unroutable);
    }
    let mut messages = Messages::new("outbox", []);
    let error = messages.read(b"{\"key\":\"\xe4\"}", NOON).unwrap_err();
    assert_eq!(error, MessageError::NotUtf8 { at: 8 });
}

/// Messages fit every preset, and a topic in the message overrides that of the preset.
#[test]
fn messages_fit_every_preset() {
    let content = br#"{"id":"7","aggregate":"Order","key":"k","type":"order.placed",
        "payload":{"n": 1},"headers":{"trace":"t"}}"#;
    let named = br#"{"topic":"as.it.is","key":"k"}"#;
    let debezium = Route::from(Options::default());
    let presets = Preset::ALL.map(|preset| Route::from(preset.routes().unwrap()));
    let routes = [debezium].into_iter().chain(presets);
    let topics = ["outbox.event.Order", "order", "order", "order.events"];
    for (route, topic) in routes.zip(topics) {
        let mut router = Router::new(route);
        let mut messages = Messages::new("outbox", []);
        messages.announce(&mut router).unwrap();
        let event = Event {
            epoch: 0,
            commit_lsn: Lsn::new(8),
            row: 0,
            commit_time: NOON,
        };
        let row = messages.read(content, NOON).unwrap();
        let routed = router.route(row.insert.relation, &row.insert.tuple, &event);
        let mut routed = routed.unwrap();
        routed.add_headers(row.headers.iter());
        assert_eq!((routed.topic(), routed.key()), (topic, Some(&b"k"[..])));
        let last = routed.headers().last().unwrap();
        assert_eq!((last.name, last.value), ("trace", Some(&b"t"[..])));
        if topic == "order.events" {
            let value = str::from_utf8(routed.value().unwrap()).unwrap();
            assert!(value.contains(r#""metadata":{"trace":"t"}"#), "{value}");
            assert!(value.contains("2026-01-02T03:04:05.678"), "{value}");
        } else {
            assert_eq!(routed.value(), Some(&br#"{"n": 1}"#[..]));
        }
        drop(routed);
        let row = messages.read(named, NOON).unwrap();
        let routed = router.route(row.insert.relation, &row.insert.tuple, &event);
        assert_eq!(routed.unwrap().topic(), "as.it.is");
    }
}

/// `serde_json` skips a payload without recursion, so its depth does not matter.
#[test]
fn depth_does_not_matter() {
    let depth = 200_000;
    let payload = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let content = format!(r#"{{"payload":{payload}}}"#);
    assert_eq!(value(&content, "payload"), Some(payload));
}

#[test]
fn the_route_can_have_other_names() {
    let named = [
        ("customer", MessageMember::Key),
        ("type", MessageMember::Aggregate),
    ];
    let mut messages = Messages::new("outbox", named);
    let body = messages.relation(Messages::NAMED);
    let announced = relation(&body);
    assert_eq!((announced.namespace, announced.name), ("message", "outbox"));
    assert_eq!(announced.id, Messages::NAMED);
    let names: Vec<String> = announced.columns().map(|c| c.name.to_owned()).collect();
    assert_eq!(names[..3], ["customer", "type", "id"]);
    assert_eq!(names.iter().filter(|name| *name == "type").count(), 1);
    let content = br#"{"aggregate":"Order","key":"k"}"#;
    let row = messages.read(content, NOON).unwrap();
    let values: Vec<Value<'_>> = row.insert.tuple.values().take(2).collect();
    assert_eq!(values, [Value::Text(b"k"), Value::Text(b"Order")]);
}

#[test]
fn debug_shows_no_content() {
    let mut messages = Messages::new("outbox", []);
    let content = br#"{"key":"secret","headers":{"a":"secret"}}"#;
    let shown = format!("{:?}", messages.read(content, NOON).unwrap());
    assert!(!shown.contains("secret"), "{shown}");
    let shown = format!("{messages:?}");
    assert!(
        shown.contains("outbox") && !shown.contains("secret"),
        "{shown}"
    );
}

/// The buffers are reused; the one allocation is `serde_json`'s stack of open brackets.
#[test]
fn reading_again_allocates_at_most_once() {
    let mut messages = Messages::new("outbox", []);
    let content = br#"{"id":"7","aggregate":"Order","key":"k","payload":{"a":[1,2]},
        "headers":{"trace":"t","n":1}}"#;
    let mut all = || {
        let row = messages.read(content, NOON).unwrap();
        assert_eq!(row.headers.iter().count(), 2);
    };
    all();
    let again = allocation_counter::measure(&mut all);
    assert!(again.count_total <= 1, "{again:?}");
}
