//! A connector's configuration as JSON, read so that nothing gets lost: members that are there twice
//! are kept.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// A JSON value, its numbers as texts.
enum Node {
    Null,
    Scalar(String),
    List,
    Object(Vec<(String, Node)>),
}

/// Why a text is no configuration of a connector. No value is part of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("line {line}, column {column}: not valid JSON")]
    Syntax { line: usize, column: usize },
    #[error("it is not a JSON object")]
    NoObject,
    #[error("{key}: the value is a list or an object; Kafka Connect has texts only")]
    NoText { key: String },
    #[error("Kafka Connect answered with error {code}")]
    ErrorAnswer { code: String },
}

/// The settings of a connector.
pub(super) struct Connector {
    /// From `{"name": …, "config": {…}}`.
    pub(super) name: Option<String>,
    /// Members beside `config`, such as `tasks`.
    pub(super) beside: Vec<String>,
    /// `None` for null.
    pub(super) settings: Vec<(String, Option<String>)>,
}

/// `{"name", "config"}` or the configuration alone.
pub(super) fn parse(text: &str) -> Result<Connector, Malformed> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let node: Node = serde_json::from_str(text).map_err(|error| Malformed::Syntax {
        line: error.line(),
        column: error.column(),
    })?;
    let Node::Object(members) = node else {
        return Err(Malformed::NoObject);
    };
    if let (Some(Node::Scalar(code)), true) = (
        find(&members, "error_code"),
        find(&members, "message").is_some(),
    ) {
        let code = code.clone();
        return Err(Malformed::ErrorAnswer { code });
    }
    let mut connector = Connector {
        name: None,
        beside: Vec::new(),
        settings: Vec::new(),
    };
    if matches!(find(&members, "config"), Some(Node::Object(_))) {
        for (key, node) in members {
            match (key.as_str(), node) {
                ("config", Node::Object(members)) => settings(members, &mut connector)?,
                ("name", Node::Scalar(name)) => connector.name = Some(name),
                _ => connector.beside.push(key),
            }
        }
    } else {
        settings(members, &mut connector)?;
    }
    Ok(connector)
}

fn find<'a>(members: &'a [(String, Node)], key: &str) -> Option<&'a Node> {
    members
        .iter()
        .find(|(name, _)| name == key)
        .map(|(_, node)| node)
}

fn settings(members: Vec<(String, Node)>, connector: &mut Connector) -> Result<(), Malformed> {
    for (key, node) in members {
        let value = match node {
            Node::Null => None,
            Node::Scalar(text) => Some(text),
            Node::List | Node::Object(_) => return Err(Malformed::NoText { key }),
        };
        connector.settings.push((key, value));
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        while items.next_element::<Node>()?.is_some() {}
        Ok(Node::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut members = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if members.len() == 100_000 {
                return Err(A::Error::custom("too many members"));
            }
            members.push((key, map.next_value()?));
        }
        Ok(Node::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, Option<String>)> {
        parse(text).unwrap().settings
    }

    #[test]
    fn with_and_without_a_name() {
        let connector = parse(
            r#"{"name":"c","config":{"a":"b","n":1,"t":true,"z":null},"tasks":[],"type":"source"}"#,
        )
        .unwrap();
        assert_eq!(connector.name.as_deref(), Some("c"));
        assert_eq!(connector.beside, ["tasks", "type"]);
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
    fn a_member_that_is_there_twice_is_read_twice() {
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
