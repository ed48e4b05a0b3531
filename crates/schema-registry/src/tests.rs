use std::time::{Duration, Instant};

use walrelay_event_router::WireFormat;
use walrelay_testkit::{Mishap, PATIENCE, SchemaRegistry};

use super::*;

const RECORD: &str =
    r#"{"type": "record", "name": "a.Order", "fields": [{"name": "n", "type": "long"}]}"#;

fn config(urls: &[String], format: ValueFormat) -> RegistrySettings {
    RegistrySettings {
        urls: urls.to_vec(),
        login: None,
        ca_file: None,
        timeout: PATIENCE,
        register: false,
        schemas: BTreeMap::new(),
        wire: WireFormat {
            format,
            subjects: SubjectNames::Topic,
            record: None,
            lookups: walrelay_event_router::Lookups::new(),
        },
    }
}

fn with_file(mut config: RegistrySettings, subject: &str, text: &str) -> RegistrySettings {
    let file = SchemaFile {
        path: "order.avsc".into(),
        text: text.to_owned(),
    };
    config.schemas.insert(subject.to_owned(), file);
    config
}

fn ask(config: &RegistrySettings, subject: &str) -> Result<ValueSchema, SchemaError> {
    let registry = Registry::new(config).expect("a client");
    futures_executor::block_on(registry.ask(subject))
}

fn id(config: &RegistrySettings, subject: &str) -> Result<u32, SchemaFailure> {
    let answer = ask(config, subject).map(|schema| schema.id());
    answer.map_err(|error| error.kind)
}

fn lines(server: &SchemaRegistry) -> Vec<String> {
    server.asked().into_iter().map(|asked| asked.line).collect()
}

#[test]
fn the_latest_schema_is_looked_up_by_the_name_of_its_subject() {
    let server = SchemaRegistry::start();
    server.register("other", "JSON", "{}");
    let wanted = server.register("we ird/ü-value", "AVRO", RECORD);
    let config = config(&[server.url()], ValueFormat::Avro);
    let schema = ask(&config, "we ird/ü-value").unwrap();
    assert_eq!((schema.id(), schema.name()), (wanted, Some("a.Order")));
    assert_eq!(
        lines(&server),
        ["GET /subjects/we%20ird%2F%C3%BC-value/versions/latest"]
    );
    assert_eq!(id(&config, "none"), Err(SchemaFailure::Missing));
}

#[test]
fn a_schema_of_the_configuration_is_looked_up_or_registered() {
    let server = SchemaRegistry::start();
    server.register("o-value", "AVRO", "\"string\"");
    let looked_up = config(&[server.url()], ValueFormat::Avro);
    let mut looked_up = with_file(looked_up, "o-value", RECORD);
    assert_eq!(id(&looked_up, "o-value"), Err(SchemaFailure::Missing));
    // Another notation of the same schema counts as equal.
    let spaced = RECORD.replace(':', " : ");
    let known = server.register("o-value", "AVRO", &spaced);
    assert_eq!(id(&looked_up, "o-value"), Ok(known));

    let other = SchemaRegistry::start();
    looked_up.urls = vec![other.url()];
    looked_up.register = true;
    assert_eq!(id(&looked_up, "o-value"), Ok(1));
    assert_eq!(id(&looked_up, "o-value"), Ok(1), "it is registered once");
    let asked = other.asked();
    assert_eq!(asked[0].line, "POST /subjects/o-value/versions");
    assert_eq!(asked[0].body, serde_json::json!({"schema": RECORD}));

    let json = with_file(config(&[other.url()], ValueFormat::Json), "j-value", "{}");
    let json = RegistrySettings {
        register: true,
        ..json
    };
    assert_eq!(id(&json, "j-value"), Ok(2));
    let body = serde_json::json!({"schema": "{}", "schemaType": "JSON"});
    assert_eq!(other.asked()[2].body, body);
}

/// Each case: an answer, the kind of its failure, and a part of the message.
#[test]
fn failures_are_told_apart() {
    use SchemaFailure::{Forbidden, Missing, Refused, Unauthenticated, Unavailable};
    let server = SchemaRegistry::start();
    server.register("s-value", "AVRO", RECORD);
    let config = config(&[server.url()], ValueFormat::Avro);
    let answers = |status: u16, body: String, kind: SchemaFailure, words: &str| {
        server.mishap(Mishap::Status(status, body));
        let error = ask(&config, "s-value").unwrap_err();
        assert_eq!(error.kind, kind, "{status}: {error}");
        let text = error.to_string();
        let prefix = format!("the schema registry at {} answers", server.url());
        assert!(text.starts_with(&prefix) && text.contains(words), "{text}");
        assert!(text.contains("for subject \"s-value\""), "{text}");
    };
    for (status, kind) in [
        (400, Refused),
        (408, Unavailable),
        (503, Unavailable),
        (307, Unavailable),
        (204, Unavailable),
    ] {
        answers(status, String::new(), kind, &format!("status {status}"));
    }
    answers(404, "<html>".to_owned(), Missing, "status 404");
    for (status, code, kind) in [
        (401, 40101, Unauthenticated),
        (403, 40301, Forbidden),
        (404, 40401, Missing),
        (409, 409, Refused),
        (422, 42201, Refused),
        (429, 42901, Unavailable),
        (500, 50001, Unavailable),
    ] {
        let body = format!("{{\"error_code\": {code}, \"message\": \"words\"}}");
        let words = format!("status {status}, error code {code}: words");
        answers(status, body, kind, &words);
    }
    for (body, kind, words) in [
        ("<html>", Unavailable, "not JSON"),
        ("", Unavailable, "not JSON"),
        ("{}", Unavailable, "no id"),
        (r#"{"id": "7", "schema": "\"int\""}"#, Unavailable, "no id"),
        (
            r#"{"id": 2147483648, "schema": "\"int\""}"#,
            Unavailable,
            "no id",
        ),
        (r#"{"id": -1, "schema": "\"int\""}"#, Unavailable, "no id"),
        (r#"{"id": 7}"#, Unavailable, "no schema"),
        (
            r#"{"id": 7, "schema": "\"int"}"#,
            Refused,
            "not an Avro schema",
        ),
        (
            r#"{"id": 7, "schema": "{}", "schemaType": "JSON"}"#,
            Refused,
            "\"JSON\"",
        ),
        (
            r#"{"id": 7, "schema": "\"int\"", "references": [{"name": "x"}]}"#,
            Refused,
            "other subjects",
        ),
    ] {
        server.mishap(Mishap::Body(body.to_owned()));
        let error = ask(&config, "s-value").unwrap_err();
        assert_eq!(error.kind, kind, "{body}: {error}");
        assert!(error.to_string().contains(words), "{body}: {error}");
    }
    server.mishap(Mishap::Close);
    assert_eq!(id(&config, "s-value"), Err(Unavailable));
    assert_eq!(id(&config, "s-value"), Ok(1), "and then it is there");
    let nothing = SchemaRegistry::address_to_come();
    let unreachable = format!("http://{nothing}");
    let config = RegistrySettings {
        urls: vec![unreachable],
        ..config
    };
    let error = ask(&config, "s-value").unwrap_err();
    assert_eq!(error.kind, Unavailable);
    assert!(
        error.to_string().contains("gives no answer for subject"),
        "{error}"
    );
}

#[test]
fn a_request_has_a_timeout() {
    let server = SchemaRegistry::start();
    let hour = Duration::from_secs(3600);
    server.always(Some(Mishap::Stall(hour)));
    let config = RegistrySettings {
        timeout: Duration::from_millis(300),
        ..config(&[server.url()], ValueFormat::Json)
    };
    let begun = Instant::now();
    assert_eq!(id(&config, "s"), Err(SchemaFailure::Unavailable));
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn after_a_failure_the_next_url_is_tried() {
    let nothing = SchemaRegistry::address_to_come();
    let unreachable = format!("http://{nothing}");
    let (first, second) = (SchemaRegistry::start(), SchemaRegistry::start());
    second.register("pad", "JSON", "{}");
    let known = second.register("s", "JSON", "{}");
    let urls = [unreachable, first.url(), second.url()];
    let config = config(&urls, ValueFormat::Json);
    first.mishap(Mishap::Status(503, String::new()));
    assert_eq!(id(&config, "s"), Ok(known));
    // An answer that does not depend on the server is final.
    assert_eq!(id(&config, "s"), Err(SchemaFailure::Missing));
    assert_eq!((first.asked().len(), second.asked().len()), (2, 1));
}

#[test]
fn credentials_are_sent_and_not_shown() {
    let server = SchemaRegistry::start();
    server.register("s", "JSON", "{}");
    let mut config = config(&[server.url()], ValueFormat::Json);
    config.login = Some(RegistryLogin::Basic {
        user: "me".to_owned(),
        password: SecretString::from("hush".to_owned()),
    });
    assert_eq!(id(&config, "s"), Ok(1));
    // Base64 of `me:hush`.
    let basic = Some("Basic bWU6aHVzaA==".to_owned());
    assert_eq!(server.asked()[0].authorization, basic);
    // The answer repeats the password.
    let echo = "{\"error_code\": 40101, \"message\": \"hush is wrong\"}";
    server.mishap(Mishap::Status(401, echo.to_owned()));
    let error = ask(&config, "s").unwrap_err();
    assert!(!error.to_string().contains("hush"), "{error}");
    config.login = Some(RegistryLogin::Bearer(SecretString::from(
        "s3cret".to_owned(),
    )));
    assert_eq!(id(&config, "s"), Ok(1));
    let bearer = Some("Bearer s3cret".to_owned());
    assert_eq!(server.asked()[2].authorization, bearer);
    let registry = Registry::new(&config).unwrap();
    let shown = format!("{registry:?} {config:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn a_subject_with_a_record_in_its_name_must_hold_that_record() {
    let server = SchemaRegistry::start();
    for subject in ["a.Order", "orders-a.Order", "a.Other", "ordersa.Order"] {
        server.register(subject, "AVRO", RECORD);
    }
    let mut config = config(&[server.url()], ValueFormat::Avro);
    for (subjects, subject, fits) in [
        (SubjectNames::Record, "a.Order", true),
        (SubjectNames::Record, "a.Other", false),
        (SubjectNames::TopicRecord, "orders-a.Order", true),
        (SubjectNames::TopicRecord, "ordersa.Order", false),
        (SubjectNames::Topic, "a.Other", true),
    ] {
        config.wire.subjects = subjects;
        let expected = if fits {
            Ok(())
        } else {
            Err(SchemaFailure::Refused)
        };
        assert_eq!(id(&config, subject).map(drop), expected, "{subject}");
    }
}

#[test]
fn a_check_registers_nothing() {
    let server = SchemaRegistry::start();
    let config = config(&[server.url()], ValueFormat::Avro);
    let config = with_file(with_file(config, "a", RECORD), "b", "\"string\"");
    let known = server.register("b", "AVRO", "\"string\"");
    let config = RegistrySettings {
        register: true,
        ..config
    };
    let registry = Registry::new(&config).unwrap();
    assert_eq!(registry.ping(), Ok(()));
    let expected = [("a", Ok(None)), ("b", Ok(Some(known)))];
    assert_eq!(registry.known(), expected);
    assert!(
        server.schema(known + 1).is_none(),
        "something was registered"
    );
    server.always(Some(Mishap::Status(404, String::new())));
    assert_eq!(registry.ping(), Ok(()), "another registry than Confluent's");
    server.always(Some(Mishap::Status(401, String::new())));
    assert_eq!(
        registry.ping().unwrap_err().kind,
        SchemaFailure::Unauthenticated
    );
}
