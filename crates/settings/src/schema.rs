//! [`Keys::json_schema`]: the table of keys as a JSON Schema, by which an editor completes and checks a file.
//!
//! The schema refuses unknown keys and wrong types. It does not demand required keys, because `--set` may add
//! them, and knows no combination of keys: [`read`](crate::read) checks both.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::document::{Entry, Value};
use crate::keys::{Fallback, Keys, OpenSection, Row, Spelling, ValueKind, below};

/// The dialect: the newest one that editors of TOML know.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";
/// A string with an environment variable, which may expand to any text.
const VARIABLE: &str = r"\$\{[A-Z_][A-Z0-9_]*\}";

impl Keys {
    /// Returns the JSON Schema of a file with these keys.
    pub fn json_schema(&self, title: &str, description: &str) -> Json {
        let mut root = Node::default();
        for row in self.rows() {
            let section = root.at(row.section.split('.'));
            match below(&row.path, row.section) {
                None => section.value = Some(value(row)),
                Some(name) => {
                    // A name with dots means the same with quotes and without.
                    section.at([name]).value = Some(value(row));
                    section.at(name.split('.')).value = Some(value(row));
                }
            }
        }
        for open in self.open() {
            root.at(open.at.split('.')).open = Some(open);
        }
        let mut schema = root.object();
        schema.insert("$schema".to_owned(), json!(DIALECT));
        schema.insert("title".to_owned(), json!(title));
        schema.insert("description".to_owned(), json!(description));
        let open = self.open().iter();
        let definitions: Map<_, _> = open
            .map(|open| (open.at.to_owned(), own_names(open)))
            .collect();
        schema.insert("definitions".to_owned(), Json::Object(definitions));
        Json::Object(schema)
    }
}

/// A part of a path: a key, a section, or both.
#[derive(Default)]
struct Node<'k> {
    /// The schema of the key's value.
    value: Option<Json>,
    /// The keys and sections below, by the next part of their path.
    below: BTreeMap<String, Node<'k>>,
    /// The section, if its keys are the user's own names.
    open: Option<&'k OpenSection>,
}

impl Node<'_> {
    /// Returns the node at a path below this one; creates what is missing.
    fn at<'p>(&mut self, path: impl IntoIterator<Item = &'p str>) -> &mut Self {
        path.into_iter().fold(self, |node, part| {
            node.below.entry(part.to_owned()).or_default()
        })
    }

    fn schema(self) -> Json {
        let is_section = !self.below.is_empty() || self.open.is_some();
        match (self.value.clone(), is_section) {
            (Some(value), false) => value,
            (Some(value), true) => json!({ "anyOf": [value, self.object()] }),
            (None, _) => Json::Object(self.object()),
        }
    }

    /// Returns the schema of the section.
    fn object(self) -> Map<String, Json> {
        let others = self.open.map_or(Json::Bool(false), reference);
        let properties = self.below.into_iter();
        let properties: Map<_, _> = properties
            .map(|(name, node)| (name, node.schema()))
            .collect();
        let mut object = Map::new();
        object.insert("type".to_owned(), json!("object"));
        if !properties.is_empty() {
            object.insert("properties".to_owned(), Json::Object(properties));
        }
        object.insert("additionalProperties".to_owned(), others);
        object
    }
}

fn reference(open: &OpenSection) -> Json {
    json!({ "$ref": format!("#/definitions/{}", open.at) })
}

/// Returns the schema of what is below a name of the user's own: a value, or a part of a name with dots.
fn own_names(open: &OpenSection) -> Json {
    let value = if open.nests {
        json!({ "type": ["string", "integer", "boolean"] })
    } else {
        Json::Object(kind_schema(&open.kind))
    };
    let rest = json!({ "type": "object", "additionalProperties": reference(open) });
    json!({ "anyOf": [value, rest] })
}

/// Returns the schema of a key's value.
fn value(row: &Row) -> Json {
    let mut description = plain(&row.doc);
    let mut schema = match row.fallback {
        Fallback::Only(only) => {
            description.push_str(" Only the default is supported.");
            let mut values = vec![json!(only)];
            values.extend(bare(only));
            let mut schema = Map::new();
            schema.insert("enum".to_owned(), json!(values));
            schema
        }
        _ => kind_schema(&row.kind),
    };
    match row.fallback {
        Fallback::Required => description.push_str(" Required."),
        Fallback::Unset => {}
        Fallback::Is(text) | Fallback::Only(text) => {
            let default = default(row, text);
            schema.extend(default.map(|default| ("default".to_owned(), default)));
        }
    }
    schema.insert("description".to_owned(), json!(description));
    Json::Object(schema)
}

/// Returns a default as an editor inserts it.
fn default(row: &Row, text: &str) -> Option<Json> {
    if row.kind == ValueKind::Scalar
        && let Some(value) = bare(text)
    {
        return Some(value);
    }
    match Entry::from_default(&row.path, &row.kind, text).value {
        Value::Text(text) => Some(json!(text)),
        Value::Bool(value) => Some(json!(value)),
        Value::Integer(value) => Some(json!(value)),
        Value::List(items) => {
            let texts = items.into_iter().map(|(item, _)| item.scalar());
            texts
                .collect::<Option<Vec<String>>>()
                .map(|texts| json!(texts))
        }
        _ => None,
    }
}

/// Returns the boolean or the integer that the text is without its quotes.
fn bare(text: &str) -> Option<Json> {
    let boolean = text.parse::<bool>().map(Json::from);
    boolean
        .or_else(|_| text.parse::<i64>().map(Json::from))
        .ok()
}

/// Returns the schema of the values of a kind.
fn kind_schema(kind: &ValueKind) -> Map<String, Json> {
    let schema = match kind {
        ValueKind::Text | ValueKind::Secret => json!({ "type": "string" }),
        ValueKind::Bool => json!({ "type": "boolean" }),
        ValueKind::Integer { least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        ValueKind::Duration => with_unit("ms|s|m|h|d"),
        ValueKind::Size => with_unit("B|KB|KiB|MB|MiB|GB|GiB"),
        ValueKind::TextList => {
            json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 })
        }
        ValueKind::Names => json!({
            "type": ["string", "array"], "items": { "type": "string" }, "minItems": 1
        }),
        ValueKind::Choice { here, spelling, .. } => {
            let mut other = VARIABLE.to_owned();
            if *spelling == Spelling::Loose {
                let names: Vec<String> = here.iter().map(|name| in_any_case(name)).collect();
                other = format!(r"^\s*({})\s*$|{VARIABLE}", names.join("|"));
            }
            json!({ "anyOf": [{ "enum": here }, { "type": "string", "pattern": other }] })
        }
        ValueKind::Scalar => json!({ "type": ["string", "number", "boolean"] }),
        ValueKind::Template => json!({ "anyOf": [{ "type": "string" }, { "enum": [false] }] }),
    };
    match schema {
        Json::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// Returns the schema of a string with a whole number and a unit.
fn with_unit(units: &str) -> Json {
    json!({ "type": "string", "pattern": format!("^[0-9]+({units})$|{VARIABLE}") })
}

/// Returns a pattern that matches the name in any case. Patterns of JSON Schema have no flag for that.
fn in_any_case(name: &str) -> String {
    let signs = name.chars().map(|sign| match sign {
        'a'..='z' | 'A'..='Z' => {
            format!(
                "[{}{}]",
                sign.to_ascii_lowercase(),
                sign.to_ascii_uppercase()
            )
        }
        sign if r"\^$.|?*+()[]{}".contains(sign) => format!("\\{sign}"),
        sign => sign.to_string(),
    });
    signs.collect()
}

/// Returns the text without the targets of its links, which lead nowhere outside of the reference.
fn plain(doc: &str) -> String {
    let mut text = String::new();
    let mut rest = doc;
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        let parts = link.split_once("](").and_then(|(shown, target)| {
            let (_, after) = target.split_once(')')?;
            (!shown.contains(']')).then_some((shown, after))
        });
        (text, rest) = match parts {
            Some((shown, after)) => (text + shown, after),
            None => (text + "[", link),
        };
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_their_texts() {
        for (doc, expected) in [
            ("no link", "no link"),
            (
                "see [those](#a) and [these](b.md#c).",
                "see those and these.",
            ),
            (
                "`column:placement[:alias]` of [x](#y)",
                "`column:placement[:alias]` of x",
            ),
            ("`[http]` alone", "`[http]` alone"),
        ] {
            assert_eq!(plain(doc), expected);
        }
    }

    #[test]
    fn a_pattern_matches_in_any_case() {
        assert_eq!(in_any_case("a-B.1"), r"[aA]-[bB]\.1");
    }
}
