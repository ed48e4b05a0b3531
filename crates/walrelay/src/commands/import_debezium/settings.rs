//! The settings of the input under the names that the connector knows them by.

use super::value::Value;
use super::{json, properties};

/// Whose configuration it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A connector's in Kafka Connect, as JSON or as the properties of a standalone worker.
    Connect,
    /// `application.properties` of Debezium Server.
    Server,
}

/// One of them.
pub(super) struct Setting {
    /// As the input has it.
    pub(super) key: String,
    /// As the connector knows it: without `debezium.source.`, and the producer's begin with
    /// `producer.` in both kinds.
    pub(super) name: String,
    /// The other file it is from.
    pub(super) file: Option<&'static str>,
    pub(super) line: Option<usize>,
    /// `None` for null.
    pub(super) value: Option<Value>,
}

/// Everything that was read.
pub(super) struct Input {
    pub(super) kind: Kind,
    /// Of the connector.
    pub(super) name: Option<String>,
    pub(super) settings: Vec<Setting>,
}

/// How rows of the worker's file are marked.
pub(super) const WORKER: &str = "worker";

/// What cannot be read. No value is part of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    /// Of JSON.
    #[error(transparent)]
    Json(#[from] json::Malformed),
    /// Of properties.
    #[error(transparent)]
    Properties(#[from] properties::Malformed),
    /// There is nothing in it.
    #[error("there are no settings in it")]
    Empty,
}

/// Reads JSON if the text begins as JSON does, properties otherwise; `worker` is the text of a
/// worker's file.
pub(super) fn read(text: &str, worker: Option<&str>) -> Result<Input, InputError> {
    let first = text
        .trim_start_matches('\u{feff}')
        .trim_start()
        .chars()
        .next();
    let mut input = match first {
        Some('{' | '[' | '"') => connector(text)?,
        _ => from_properties(text)?,
    };
    if input.settings.is_empty() {
        return Err(InputError::Empty);
    }
    if let Some(text) = worker {
        for entry in properties::parse(text)? {
            let value = Value::of_connect(&entry.key, &entry.value);
            input.settings.push(Setting {
                name: worker_name(&entry.key),
                key: entry.key,
                file: Some(WORKER),
                line: Some(entry.line),
                value: Some(value),
            });
        }
    }
    Ok(input)
}

fn connector(text: &str) -> Result<Input, InputError> {
    let connector = json::parse(text)?;
    let settings = connector.settings.into_iter().map(|(key, raw)| Setting {
        name: connect_name(&key),
        value: raw.map(|raw| Value::of_connect(&key, &raw)),
        file: None,
        line: None,
        key,
    });
    let beside = connector.beside.into_iter().map(|key| Setting {
        name: format!("{BESIDE}{key}"),
        value: None,
        file: None,
        line: None,
        key,
    });
    Ok(Input {
        kind: Kind::Connect,
        name: connector.name,
        settings: settings.chain(beside).collect(),
    })
}

/// Begins the names of what stands beside a connector's `config`.
pub(super) const BESIDE: &str = "/";

fn from_properties(text: &str) -> Result<Input, InputError> {
    let entries = properties::parse(text)?;
    let server = |key: &str| key.starts_with("debezium.") || key.starts_with("quarkus.");
    let kind = if entries.iter().any(|entry| server(&entry.key)) {
        Kind::Server
    } else {
        Kind::Connect
    };
    let property = |name: &str| {
        let mut all = entries.iter().rev();
        all.find(|entry| entry.key == name)
            .map(|entry| entry.value.clone())
    };
    let settings = entries.iter().map(|entry| Setting {
        key: entry.key.clone(),
        name: match kind {
            Kind::Connect => connect_name(&entry.key),
            Kind::Server => server_name(&entry.key),
        },
        file: None,
        line: Some(entry.line),
        value: Some(match kind {
            Kind::Connect => Value::of_connect(&entry.key, &entry.value),
            Kind::Server => Value::of_server(&entry.key, &entry.value, &property),
        }),
    });
    Ok(Input {
        kind,
        name: None,
        settings: settings.collect(),
    })
}

fn connect_name(key: &str) -> String {
    match key.strip_prefix("producer.override.") {
        Some(property) => format!("producer.{property}"),
        None => key.to_owned(),
    }
}

/// What of a worker's file concerns a connector; the rest is `worker.`.
fn worker_name(key: &str) -> String {
    let converter = ["key.converter", "value.converter", "header.converter"]
        .iter()
        .any(|prefix| key.starts_with(prefix));
    if converter || key.starts_with("producer.") || key == "topic.creation.enable" {
        key.to_owned()
    } else if key == "bootstrap.servers" {
        "producer.bootstrap.servers".to_owned()
    } else {
        format!("worker.{key}")
    }
}

/// As `DebeziumServer.populateEngineProperties` puts them together.
fn server_name(key: &str) -> String {
    let Some(rest) = key.strip_prefix("debezium.") else {
        return key.to_owned();
    };
    if let Some(option) = rest.strip_prefix("source.") {
        return option.to_owned();
    }
    if let Some(producer) = rest.strip_prefix("sink.kafka.producer.") {
        return format!("producer.{producer}");
    }
    if let Some(format) = rest.strip_prefix("format.") {
        return match format.split_once('.') {
            Some((part @ ("key" | "value" | "header"), option)) => {
                format!("{part}.converter.{option}")
            }
            None if matches!(format, "key" | "value" | "header") => format!("format.{format}"),
            // For all three.
            _ => format!("converter.{format}"),
        };
    }
    rest.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let input = read(text, None).unwrap();
        input.settings.into_iter().map(|s| s.name).collect()
    }

    #[test]
    fn names_are_those_of_the_connector() {
        assert_eq!(
            names(
                "debezium.source.slot.name=a\ndebezium.format.key=json\n\
                 debezium.format.key.schemas.enable=false\ndebezium.format.schemas.enable=false\n\
                 debezium.sink.type=kafka\ndebezium.sink.kafka.producer.acks=all\n\
                 debezium.transforms=x\nquarkus.log.level=INFO\nother=1"
            ),
            [
                "slot.name",
                "format.key",
                "key.converter.schemas.enable",
                "converter.schemas.enable",
                "sink.type",
                "producer.acks",
                "transforms",
                "quarkus.log.level",
                "other"
            ]
        );
        assert_eq!(
            names(r#"{"config":{"producer.override.acks":"all","a":null},"tasks":[]}"#),
            ["producer.acks", "a", "/tasks"]
        );
    }

    #[test]
    fn a_standalone_worker_has_properties_too() {
        let input = read(
            "name=x\nconnector.class=y\n",
            Some("key.converter=z\nrest.port=1"),
        );
        let input = input.unwrap();
        assert_eq!(input.kind, Kind::Connect);
        assert_eq!(input.settings[2].name, "key.converter");
        assert_eq!(input.settings[3].name, "worker.rest.port");
    }

    #[test]
    fn nothing_is_an_error() {
        for text in ["", "\n# nothing\n", "{}", "[1]"] {
            assert!(read(text, None).is_err(), "{text:?}");
        }
    }
}
