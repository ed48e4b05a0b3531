//! The settings of the input, under the names by which the connector knows them.

mod connector;
mod properties;
mod value;

pub use connector::ConnectorError;
use properties::Entry;
pub use properties::PropertiesError;
pub(crate) use value::{Value, percent, variable_name};

/// Whose configuration it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A connector's in Kafka Connect, as JSON or as the properties of a standalone worker.
    Connect,
    /// `application.properties` of Debezium Server.
    Server,
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// As the input has it.
    pub(crate) key: String,
    /// As the connector knows it: without `debezium.source.`, and the producer's begin with
    /// `producer.` in both kinds.
    pub(crate) name: String,
    /// The other file it is from.
    pub(crate) file: Option<&'static str>,
    /// From 1; JSON has none.
    pub(crate) line: Option<usize>,
    /// `None` for null.
    pub(crate) value: Option<Value>,
}

/// A configuration of Debezium's, read and not yet understood.
#[derive(Debug)]
pub struct Input {
    pub(crate) kind: Kind,
    /// Of the connector.
    pub(crate) name: Option<String>,
    pub(crate) settings: Vec<Setting>,
}

/// Why the input cannot be read. No value is part of it.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The JSON of a connector.
    #[error(transparent)]
    Json(#[from] ConnectorError),
    /// Properties of a connector, of Debezium Server or of a worker.
    #[error(transparent)]
    Properties(#[from] PropertiesError),
    /// There is nothing in it.
    #[error("there are no settings in it")]
    Empty,
}

/// Begins the names of what stands beside a connector's `config`.
pub(crate) const BESIDE: &str = "/";

impl Input {
    /// Reads JSON if the text begins as JSON does, properties otherwise; `worker` is the text of a
    /// worker's file.
    ///
    /// # Errors
    /// The text is neither, or holds no settings.
    pub fn parse(text: &str, worker: Option<&str>) -> Result<Self, InputError> {
        let start = text.trim_start_matches('\u{feff}').trim_start();
        let mut input = if start.starts_with(['{', '[', '"']) {
            of_connector(text)?
        } else {
            of_properties(text)?
        };
        if input.settings.is_empty() {
            return Err(InputError::Empty);
        }
        for entry in properties::parse(worker.unwrap_or_default())? {
            input.settings.push(Setting {
                name: renamed(WORKER, &entry.key),
                file: Some("worker"),
                line: Some(entry.line),
                value: Some(Value::of_connect(&entry.key, &entry.value)),
                key: entry.key,
            });
        }
        Ok(input)
    }

    /// The keys of all settings, as the input has them.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|setting| setting.key.as_str())
    }
}

fn of_connector(text: &str) -> Result<Input, InputError> {
    let connector = connector::parse(text)?;
    let setting = |name, key, value| Setting {
        key,
        name,
        file: None,
        line: None,
        value,
    };
    let settings = connector.settings.into_iter().map(|(key, raw)| {
        let value = raw.map(|raw| Value::of_connect(&key, &raw));
        setting(renamed(CONNECT, &key), key, value)
    });
    let beside = connector.beside.into_iter();
    let beside = beside.map(|key| setting(format!("{BESIDE}{key}"), key, None));
    Ok(Input {
        kind: Kind::Connect,
        name: connector.name,
        settings: settings.chain(beside).collect(),
    })
}

fn of_properties(text: &str) -> Result<Input, InputError> {
    let entries = properties::parse(text)?;
    let of_server = |key: &str| key.starts_with("debezium.") || key.starts_with("quarkus.");
    let server = entries.iter().any(|entry| of_server(&entry.key));
    let (kind, names) = if server {
        (Kind::Server, SERVER)
    } else {
        (Kind::Connect, CONNECT)
    };
    let property = |name: &str| {
        let entry = entries.iter().rfind(|entry| entry.key == name)?;
        Some(entry.value.clone())
    };
    let settings = entries.iter().map(|Entry { line, key, value }| Setting {
        key: key.clone(),
        name: renamed(names, key),
        file: None,
        line: Some(*line),
        value: Some(match kind {
            Kind::Connect => Value::of_connect(key, value),
            Kind::Server => Value::of_server(key, value, &property),
        }),
    });
    Ok(Input {
        kind,
        name: None,
        settings: settings.collect(),
    })
}

/// Beginnings of keys, and what the connector's names have instead; the first that fits counts.
type Renames = &'static [(&'static str, &'static str)];

const CONNECT: Renames = &[("producer.override.", "producer.")];

/// As `DebeziumServer.populateEngineProperties` puts them together. Options of `format.` that name
/// no part are for all three converters.
const SERVER: Renames = &[
    ("debezium.source.", ""),
    ("debezium.sink.kafka.producer.", "producer."),
    ("debezium.format.key.", "key.converter."),
    ("debezium.format.value.", "value.converter."),
    ("debezium.format.header.", "header.converter."),
    ("debezium.format.key", "format.key"),
    ("debezium.format.value", "format.value"),
    ("debezium.format.header", "format.header"),
    ("debezium.format.", "converter."),
    ("debezium.", ""),
];

/// What of a worker's file concerns a connector; the rest is `worker.`.
const WORKER: Renames = &[
    ("key.converter", "key.converter"),
    ("value.converter", "value.converter"),
    ("header.converter", "header.converter"),
    ("producer.", "producer."),
    ("topic.creation.enable", "topic.creation.enable"),
    ("bootstrap.servers", "producer.bootstrap.servers"),
    ("", "worker."),
];

fn renamed(renames: Renames, key: &str) -> String {
    let mut renamed = renames
        .iter()
        .filter_map(|(start, name)| Some(format!("{name}{}", key.strip_prefix(start)?)));
    renamed.next().unwrap_or_else(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let input = Input::parse(text, None).unwrap();
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
        let input = Input::parse(
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
            assert!(Input::parse(text, None).is_err(), "{text:?}");
        }
    }
}
