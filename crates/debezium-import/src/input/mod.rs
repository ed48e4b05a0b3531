//! The settings of the input, by the names that the connector knows.

mod connector;
mod properties;
mod value;

use properties::Entry;
pub(crate) use value::{Value, percent, variable_name};

/// The program that the configuration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// Kafka Connect: a connector's JSON, or the properties of a standalone worker.
    Connect,
    /// Debezium Server: `application.properties`.
    Server,
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Key in the input.
    pub(crate) key: String,
    /// Name that the connector knows: without `debezium.source.`; names of the producer begin with
    /// `producer.` in both kinds.
    pub(crate) name: String,
    /// The other file that the setting is from, if any.
    pub(crate) file: Option<&'static str>,
    /// Line in its file, from 1; `None` for JSON.
    pub(crate) line: Option<usize>,
    /// Value; `None` for null.
    pub(crate) value: Option<Value>,
}

/// A configuration of Debezium, parsed but not interpreted.
#[derive(Debug)]
pub struct Input {
    pub(crate) program: Program,
    /// Name of the connector.
    pub(crate) name: Option<String>,
    pub(crate) settings: Vec<Setting>,
}

/// The reason why the input cannot be parsed. Contains no values.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The text of a connector is not JSON.
    #[error("line {line}, column {column}: not valid JSON")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// The text of a connector is JSON, but not an object.
    #[error("it is not a JSON object")]
    NoObject,
    /// A setting is a list or an object.
    #[error("{key}: the value is a list or an object; Kafka Connect has texts only")]
    NoText {
        /// Key of the setting.
        key: String,
    },
    /// A text contains half a surrogate pair, which is not Unicode.
    #[error("{key}: half a surrogate pair after \\u")]
    Surrogate {
        /// Key of the setting.
        key: String,
    },
    /// The answer of Kafka Connect's REST API to a failed request.
    #[error("Kafka Connect answered with error {code}")]
    ErrorAnswer {
        /// Status code of HTTP.
        code: String,
    },
    /// Invalid properties of a connector, of Debezium Server or of a worker.
    #[error("line {line}: {what}")]
    Properties {
        /// Line, from 1.
        line: usize,
        /// The fault in words, without the text of the file.
        what: &'static str,
    },
    /// The input has no settings.
    #[error("there are no settings in it")]
    Empty,
}

/// Prefix of the names of members beside a connector's `config`.
pub(crate) const OUTSIDE_CONFIG: &str = "/";

impl Input {
    /// Parses JSON if the text begins like JSON, else properties. `worker` is the text of the
    /// worker's properties file.
    ///
    /// # Errors
    /// A text is neither JSON nor properties, or has no settings.
    pub fn parse(text: &str, worker: Option<&str>) -> Result<Self, InputError> {
        let start = text.trim_start_matches('\u{feff}').trim_start();
        let mut input = if start.starts_with(['{', '[', '"']) {
            read_connector(text)?
        } else {
            read_properties(text)?
        };
        if input.settings.is_empty() {
            return Err(InputError::Empty);
        }
        for entry in properties::parse(worker.unwrap_or_default())? {
            input.settings.push(Setting {
                name: renamed(WORKER, &entry.key),
                file: Some("worker"),
                line: Some(entry.line),
                value: Some(Value::from_connect(&entry.key, &entry.value)),
                key: entry.key,
            });
        }
        Ok(input)
    }

    /// Returns the keys of all settings, as in the input.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|setting| setting.key.as_str())
    }
}

fn read_connector(text: &str) -> Result<Input, InputError> {
    let connector = connector::parse(text)?;
    let setting = |name, key, value| Setting {
        key,
        name,
        file: None,
        line: None,
        value,
    };
    let settings = connector.settings.into_iter().map(|(key, raw)| {
        let value = raw.map(|raw| Value::from_connect(&key, &raw));
        setting(renamed(CONNECT, &key), key, value)
    });
    let outside = connector.outside_config.into_iter();
    let outside = outside.map(|key| setting(format!("{OUTSIDE_CONFIG}{key}"), key, None));
    Ok(Input {
        program: Program::Connect,
        name: connector.name,
        settings: settings.chain(outside).collect(),
    })
}

fn read_properties(text: &str) -> Result<Input, InputError> {
    let entries = properties::parse(text)?;
    let of_server = |key: &str| key.starts_with("debezium.") || key.starts_with("quarkus.");
    let server = entries.iter().any(|entry| of_server(&entry.key));
    let (program, names) = if server {
        (Program::Server, SERVER)
    } else {
        (Program::Connect, CONNECT)
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
        value: Some(match program {
            Program::Connect => Value::from_connect(key, value),
            Program::Server => Value::from_server(key, value, &property),
        }),
    });
    Ok(Input {
        program,
        name: None,
        settings: settings.collect(),
    })
}

/// Prefixes of keys, and their replacements in the connector's names. The first matching prefix
/// counts.
type Renames = &'static [(&'static str, &'static str)];

const CONNECT: Renames = &[("producer.override.", "producer.")];

/// Renames keys as `DebeziumServer.populateEngineProperties` does. Options of `format.` that name
/// no part apply to all three converters.
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

/// The keys of a worker's file that concern a connector; all others get the prefix `worker.`.
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
        assert_eq!(input.program, Program::Connect);
        assert_eq!(input.settings[2].name, "key.converter");
        assert_eq!(input.settings[3].name, "worker.rest.port");
    }

    #[test]
    fn an_empty_input_is_an_error() {
        for text in ["", "\n# nothing\n", "{}", "[1]"] {
            assert!(Input::parse(text, None).is_err(), "{text:?}");
        }
    }
}
