//! Tests of the import, with inputs of both kinds. The same invariants are checked for every input.

use walrelay_debezium_import::{Outcome, Row};

use self::Expect::{Breaks, Fatal, Line, NoEffect, Supported, Taken, Unsupported, Urgent};
use super::*;
use crate::config::{Config, expand_for_tests};

mod inputs;
mod kafka;
mod postgres;
mod router;
mod sinks;

const CONNECT: &str = r#"{"name": "outbox", "config": {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "database.hostname": "db", "database.port": "5433", "database.user": "cdc",
    "database.password": "hunter2@", "database.dbname": "app",
    "topic.prefix": "srv", "slot.name": "orders", "publication.name": "orders_pub",
    "publication.autocreate.mode": "disabled",
    "table.include.list": "public\\.outbox",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.route.by.field": "aggregate_type",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
    "extended.headers.enabled": "false",
    "producer.override.bootstrap.servers": "broker:9092"
}}"#;

const SERVER: &str = r"debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.database.hostname=db
debezium.source.database.user=cdc
debezium.source.database.password=hunter2@
debezium.source.database.dbname=app
debezium.source.topic.prefix=app
debezium.source.slot.name=outbox
debezium.source.publication.name=outbox_pub
debezium.source.publication.autocreate.mode=filtered
debezium.source.table.include.list=public.outbox
debezium.source.extended.headers.enabled=false
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.route.topic.replacement=app.$${routedByValue}
debezium.format.key=simplestring
debezium.format.value=simplestring
debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=broker:9092
";

/// Imports the input, and checks the invariants of every import.
fn import(text: &str, worker: Option<&str>, tables: &[&str], with_secrets: bool) -> Imported {
    let input = Input::parse(text, worker).unwrap();
    let keys: Vec<String> = input.keys().map(str::to_owned).collect();
    let tables: Vec<String> = tables.iter().map(|table| (*table).to_owned()).collect();
    let options = Options {
        tables: &tables,
        with_secrets,
    };
    let imported = translate(input, options, &Checker);

    let rows: Vec<&str> = imported.report.rows.iter().map(|r| &*r.key).collect();
    assert_eq!(
        rows, keys,
        "each setting is in the report, once and in its place"
    );
    let report = imported.report.text();
    for row in &imported.report.rows {
        let key = row.key.replace(char::is_control, " ");
        let mut lines = report.lines().filter(|line| {
            let rest = line.get("NOT SUPPORTED  ".len()..).unwrap_or_default();
            rest.trim_start_matches("worker: ").starts_with(&key)
        });
        assert!(lines.next().is_some(), "{}: {report}", row.key);
    }
    let all = format!("{report}{}", imported.report.json());
    let toml = &imported.toml;
    for secret in ["hunter2", "s3cret"] {
        assert!(!all.contains(secret), "{all}");
        assert!(with_secrets || !toml.contains(secret), "{toml}");
    }
    if imported.fatal.is_empty() {
        let env = |name: &str| {
            let mut variables = imported.report.variables.iter();
            let known = variables.any(|variable| variable.name == name);
            assert!(known, "{name} is not in the report");
            Some("x".repeat(32))
        };
        let read = Config::parse(toml, "walrelay.toml", &[], &env);
        assert!(read.is_ok(), "{}\n{toml}", read.unwrap_err());
        check_destinations(&imported);
    }
    imported
}

/// Checks that the configuration has each key that the report names as a destination.
fn check_destinations(imported: &Imported) {
    let table: toml::Table = imported.toml.parse().unwrap();
    for row in &imported.report.rows {
        let Outcome::TakenOver { to, .. } = &row.outcome else {
            continue;
        };
        for path in to {
            let sections = [
                "router.debezium",
                "router.converters",
                "sink.kafka",
                "sink.topics",
                "sink.rabbitmq",
                "sink.redis",
                "sink.nats",
                "sink.http",
            ];
            let section = sections
                .into_iter()
                .find(|section| path.starts_with(&format!("{section}.")))
                .unwrap_or_else(|| path.split('.').next().unwrap());
            let key = &path[section.len() + 1..];
            let mut at = &table;
            for part in section.split('.') {
                at = at[part].as_table().unwrap();
            }
            assert!(
                at.contains_key(key),
                "{}: no {path} in\n{}",
                row.key,
                imported.toml
            );
        }
    }
}

/// An expectation of a case. A setting comes with a part of the report's text about it.
enum Expect {
    /// The configuration has this line, regardless of its comment.
    Line(&'static str),
    /// The setting was taken over into this key.
    Taken(&'static str, &'static str),
    /// The setting has no effect.
    NoEffect(&'static str, &'static str),
    /// The setting is not supported, and the configuration is written without it.
    Unsupported(&'static str, &'static str),
    /// The setting is not supported, and nothing is written without `--partial`.
    Breaks(&'static str, &'static str),
    /// Nothing is written, also with `--partial`.
    Fatal(&'static str),
    /// The urgent notes are about these settings.
    Urgent(&'static [&'static str]),
    /// Every setting is supported, and the configuration is written.
    Supported,
}

#[track_caller]
fn expect(imported: &Imported, expected: &[Expect]) {
    let Imported {
        toml,
        report,
        fatal,
    } = imported;
    let outcome = |key: &str, fits: &dyn Fn(&Outcome) -> bool| {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.key == key).collect();
        assert!(rows.iter().any(|row| fits(&row.outcome)), "{key}: {rows:?}");
    };
    let refused = !failures(imported, false).is_empty();
    for expected in expected {
        match expected {
            Line(line) => {
                let mut lines = toml.lines().map(|line| line.split("  # ").next());
                assert!(
                    lines.any(|found| found == Some(line)),
                    "no {line} in\n{toml}"
                );
            }
            Taken(key, path) => outcome(
                key,
                &|it| matches!(it, Outcome::TakenOver { to, .. } if to.iter().any(|to| to == path)),
            ),
            NoEffect(key, words) => outcome(
                key,
                &|it| matches!(it, Outcome::NoEffect { why } if why.contains(words)),
            ),
            Unsupported(key, words) => outcome(
                key,
                &|it| matches!(it, Outcome::NotSupported { remedy, breaks: false } if remedy.contains(words)),
            ),
            Breaks(key, words) => {
                outcome(
                    key,
                    &|it| matches!(it, Outcome::NotSupported { remedy, breaks: true } if remedy.contains(words)),
                );
                assert!(refused, "{key} is not refused");
            }
            Fatal(words) => {
                assert!(fatal.iter().any(|why| why.contains(words)), "{fatal:?}");
                let partial = failures(imported, true);
                assert!(!partial.is_empty(), "--partial does not help");
            }
            Urgent(about) => {
                let urgent = report.notes.iter().filter(|note| note.urgent);
                let urgent: Vec<&str> = urgent.map(|note| &*note.about).collect();
                assert_eq!(urgent, *about);
            }
            Supported => {
                let unsupported = |row: &&Row| matches!(row.outcome, Outcome::NotSupported { .. });
                let unsupported = report.rows.iter().filter(unsupported).count();
                assert_eq!(unsupported, 0, "{}", report.text());
                assert!(!refused, "{fatal:?}");
            }
        }
    }
}

/// The value that removes a setting of [`CONNECT`] in a case.
const REMOVED: &str = "\0";

/// Returns [`CONNECT`] with other settings.
fn connector(changes: &[(&str, &str)]) -> String {
    let mut json: serde_json::Value = serde_json::from_str(CONNECT).unwrap();
    let config = json["config"].as_object_mut().unwrap();
    for (key, value) in changes {
        match *value {
            REMOVED => config.remove(*key),
            value => config.insert((*key).to_owned(), value.into()),
        };
    }
    json.to_string()
}

#[track_caller]
fn connect(changes: &[(&str, &str)], expected: &[Expect]) -> Imported {
    let imported = import(&connector(changes), None, &[], false);
    expect(&imported, expected);
    imported
}

#[track_caller]
fn server(more: &str, expected: &[Expect]) -> Imported {
    let imported = import(&format!("{SERVER}{more}"), None, &[], false);
    expect(&imported, expected);
    imported
}
