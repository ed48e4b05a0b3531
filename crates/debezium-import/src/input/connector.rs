//! Parses the JSON of a connector. A repeated member is kept each time.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::InputError;

/// The settings of a connector.
#[derive(Default)]
pub(super) struct Connector {
    /// Name of the connector, in `{"name": …, "config": {…}}`.
    pub(super) name: Option<String>,
    /// Members beside `config`, such as `tasks`.
    pub(super) outside_config: Vec<String>,
    /// Keys and values of the settings; `None` for null.
    pub(super) settings: Vec<(String, Option<String>)>,
}

/// Parses `{"name": …, "config": {…}}`, or the configuration alone.
pub(super) fn parse(text: &str) -> Result<Connector, InputError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Members(members) = object(text)?;
    let find = |key: &str| members.iter().find(|(name, _)| name == key);
    if let (Some((_, code)), Some(_)) = (find("error_code"), find("message"))
        && let Ok(Some(code)) = scalar("error_code", code)
    {
        return Err(InputError::ErrorAnswer { code });
    }
    let mut connector = Connector::default();
    if !find("config").is_some_and(|(_, raw)| raw.get().starts_with('{')) {
        connector.settings = settings(&members)?;
        return Ok(connector);
    }
    for (key, raw) in &members {
        match (key.as_str(), scalar(key, raw)) {
            ("config", _) if raw.get().starts_with('{') => {
                connector.settings.extend(settings(&object(raw.get())?.0)?);
            }
            ("name", Ok(Some(name))) => connector.name = Some(name),
            _ => connector.outside_config.push(key.clone()),
        }
    }
    Ok(connector)
}

fn object(text: &str) -> Result<Members, InputError> {
    serde_json::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => InputError::NoObject,
        _ => InputError::Syntax {
            line: error.line(),
            column: error.column(),
        },
    })
}

type Setting = (String, Option<String>);

fn settings(members: &[(String, Box<RawValue>)]) -> Result<Vec<Setting>, InputError> {
    let read = members.iter();
    read.map(|(key, raw)| Ok((key.clone(), scalar(key, raw)?)))
        .collect()
}

/// Reads the text of a JSON value. Kafka Connect uses numbers and booleans as written.
fn scalar(key: &str, raw: &RawValue) -> Result<Option<String>, InputError> {
    let key = || key.to_owned();
    match raw.get() {
        "null" => Ok(None),
        list_or_object if list_or_object.starts_with(['[', '{']) => {
            Err(InputError::NoText { key: key() })
        }
        string if string.starts_with('"') => match serde_json::from_str(string) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(InputError::Surrogate { key: key() }),
        },
        number_or_bool => Ok(Some(number_or_bool.to_owned())),
    }
}

/// The members of an object in their order, repeated ones too.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, Option<String>)> {
        parse(text).unwrap().settings
    }

    #[test]
    fn a_connector_is_read_with_and_without_a_name() {
        let connector = parse(
            r#"{"name":"c","config":{"a":"b","n":1,"t":true,"z":null},"tasks":[],"type":"source"}"#,
        )
        .unwrap();
        assert_eq!(connector.name.as_deref(), Some("c"));
        assert_eq!(connector.outside_config, ["tasks", "type"]);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            connector.settings,
            [
                ("a".to_owned(), text("b")),
                ("n".to_owned(), text("1")),
                ("t".to_owned(), text("true")),
                ("z".to_owned(), None)
            ]
        );
        assert_eq!(read(r#"{"name":"c","config":"no object"}"#).len(), 2);
        assert_eq!(read("\u{feff}{}"), []);
    }

    #[test]
    fn repeated_members_are_kept() {
        assert_eq!(read(r#"{"a":"1","b":"2","a":"3"}"#).len(), 3);
    }

    #[test]
    fn other_texts_are_refused_without_being_shown() {
        for (text, about) in [
            ("", "not valid JSON"),
            ("{\"a\":\n\"hunter2\"", "line 2"),
            ("[]", "not a JSON object"),
            ("\"hunter2\"", "not a JSON object"),
            (r#"{"a":["hunter2"]}"#, "a: the value is a list"),
            (
                r#"{"error_code":404,"message":"Connector x not found"}"#,
                "error 404",
            ),
        ] {
            let error = parse(text).err().unwrap().to_string();
            assert!(error.contains(about), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
