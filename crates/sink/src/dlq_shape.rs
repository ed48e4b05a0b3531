//! The shape of a dead letter's value: `[poison] value`, a template of JSON.
//!
//! The header [`VALUE_AT`](crate::dlq_headers::VALUE_AT) says how and where a value of that shape contains the event's
//! value, so that a reader needs no template: encoding, offset and length in bytes, and a hash of the whole value.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;

/// A template of JSON with placeholders. Each of them stands for a whole JSON value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DlqShape {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

/// A placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Value,
    Key,
    EventId,
    Topic,
    Table,
    Class,
    Error,
    FailedAt,
    Attempts,
}

const FIELDS: [(&str, Field); 9] = [
    ("value", Field::Value),
    ("key", Field::Key),
    ("event_id", Field::EventId),
    ("topic", Field::Topic),
    ("table", Field::Table),
    ("class", Field::Class),
    ("error", Field::Error),
    ("failed_at", Field::FailedAt),
    ("attempts", Field::Attempts),
];

/// The reason why a template is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// No placeholder has this name.
    #[error("{{{name}}} is no placeholder; known are {}", known())]
    Unknown {
        /// The name.
        name: String,
    },
    /// A placeholder is within quotes.
    #[error("{{{name}}} stands for a whole JSON value: write it without quotes")]
    Quoted {
        /// The name of the placeholder.
        name: String,
    },
    /// The template is no JSON.
    #[error("with a value in place of each placeholder it is no JSON: {0}")]
    NoJson(String),
}

fn known() -> String {
    FIELDS.map(|(name, _)| format!("{{{name}}}")).join(", ")
}

/// The parts of a dead letter that a template may name.
#[derive(Default)]
pub struct ShapeFields<'a> {
    /// The event's value; `None`: null, or left out.
    pub value: Option<&'a [u8]>,
    /// The event's key.
    pub key: Option<&'a [u8]>,
    /// The event's id.
    pub event_id: Option<&'a [u8]>,
    /// The event's topic.
    pub topic: Option<&'a str>,
    /// The table of the event.
    pub table: &'a str,
    /// The class of the dead letter.
    pub class: &'a str,
    /// The cause.
    pub error: &'a str,
    /// The time of the dead letter, RFC 3339.
    pub failed_at: &'a str,
    /// The number of processes that gave the event up.
    pub attempts: u64,
}

/// The value of a dead letter by a template.
#[derive(Clone, PartialEq, Eq)]
pub struct Shaped {
    /// The value.
    pub value: Vec<u8>,
    /// The value of the header [`VALUE_AT`](crate::dlq_headers::VALUE_AT).
    pub value_at: String,
}

// Not derived: these hold values of rows.
impl fmt::Debug for ShapeFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ShapeFields");
        shown.field("class", &self.class).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Shaped");
        shown
            .field("value_at", &self.value_at)
            .finish_non_exhaustive()
    }
}

impl DlqShape {
    /// Parses a template.
    ///
    /// # Errors
    /// If a placeholder is unknown or within quotes, or if the template is no JSON.
    pub fn parse(template: &str) -> Result<Self, ShapeError> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let (mut quoted, mut escaped) = (false, false);
        let mut rest = template;
        while let Some(c) = rest.chars().next() {
            if let Some(name) = placeholder(rest) {
                let field = FIELDS.iter().find(|(known, _)| *known == name);
                match field {
                    Some(_) if quoted => return Err(ShapeError::Quoted { name: name.into() }),
                    Some((_, field)) => {
                        parts.push(Part::Text(std::mem::take(&mut text)));
                        parts.push(Part::Field(*field));
                        rest = &rest[name.len() + 2..];
                        continue;
                    }
                    None if quoted => {}
                    None => return Err(ShapeError::Unknown { name: name.into() }),
                }
            }
            if c == '"' && !escaped {
                quoted = !quoted;
            }
            escaped = quoted && c == '\\' && !escaped;
            text.push(c);
            rest = &rest[c.len_utf8()..];
        }
        parts.push(Part::Text(text));
        let shape = Self { parts };
        let example = shape.parts.iter().map(|part| match part {
            Part::Text(text) => text,
            Part::Field(_) => "null",
        });
        match serde_json::from_str::<serde_json::Value>(&example.collect::<String>()) {
            Ok(_) => Ok(shape),
            Err(error) => Err(ShapeError::NoJson(error.to_string())),
        }
    }

    /// Returns true if each dead letter has its event's value, so that it can be redriven.
    pub fn has_value(&self) -> bool {
        self.parts.contains(&Part::Field(Field::Value))
    }

    /// Makes the value of a dead letter.
    pub fn render(&self, fields: &ShapeFields<'_>) -> Shaped {
        let mut out = Vec::new();
        let mut place = None;
        for part in &self.parts {
            let start = out.len();
            let text = json_string;
            let optional = |bytes: Option<&[u8]>| bytes.map_or("null".to_owned(), text_or_base64);
            let written = match part {
                Part::Text(text) => text.clone(),
                Part::Field(Field::Value) => {
                    let encoding = encode(fields.value, &mut out);
                    place.get_or_insert((encoding, start, out.len() - start));
                    continue;
                }
                Part::Field(Field::Key) => optional(fields.key),
                Part::Field(Field::EventId) => optional(fields.event_id),
                Part::Field(Field::Topic) => optional(fields.topic.map(str::as_bytes)),
                Part::Field(Field::Table) => text(fields.table),
                Part::Field(Field::Class) => text(fields.class),
                Part::Field(Field::Error) => text(fields.error),
                Part::Field(Field::FailedAt) => text(fields.failed_at),
                Part::Field(Field::Attempts) => fields.attempts.to_string(),
            };
            out.extend_from_slice(written.as_bytes());
        }
        let value_at = match place {
            Some((encoding, offset, length)) => {
                format!("{encoding} {offset} {length} {:016x}", hash(&out))
            }
            None => NOWHERE.to_owned(),
        };
        Shaped {
            value: out,
            value_at,
        }
    }
}

/// The content of the header if the template does not contain the event's value.
const NOWHERE: &str = "none";
const JSON: &str = "json";
const TEXT: &str = "text";
const BASE64: &str = "base64";
const NULL: &str = "null";

/// Returns the name of the placeholder at the beginning of a text.
fn placeholder(text: &str) -> Option<&str> {
    let (name, _) = text.strip_prefix('{')?.split_once('}')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

/// Appends a value; returns how it is written.
fn encode(value: Option<&[u8]>, out: &mut Vec<u8>) -> &'static str {
    let Some(value) = value else {
        out.extend_from_slice(b"null");
        return NULL;
    };
    match std::str::from_utf8(value) {
        Ok(text) if serde_json::from_str::<IgnoredAny>(text).is_ok() => {
            out.extend_from_slice(value);
            JSON
        }
        Ok(text) => {
            out.extend_from_slice(json_string(text).as_bytes());
            TEXT
        }
        Err(_) => {
            out.extend_from_slice(json_string(&STANDARD.encode(value)).as_bytes());
            BASE64
        }
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn text_or_base64(bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes);
    json_string(text.unwrap_or(&STANDARD.encode(bytes)))
}

/// FNV-1a: recognises a value that another program has changed.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns the event's value out of a dead letter's value; the inner `None` is null. `value_at`: the header.
///
/// # Errors
/// Why the value cannot be restored.
pub fn restore(value: Option<&[u8]>, value_at: &str) -> Result<Option<Vec<u8>>, &'static str> {
    const CHANGED: &str = "its value is not as the relay has written it";
    if value_at == NOWHERE {
        return Err("the template of [poison] value had no {value}");
    }
    let value = value.ok_or(CHANGED)?;
    let mut words = value_at.split(' ');
    let mut next = || words.next().ok_or("walrelay.dlq.value.at cannot be read");
    let (encoding, offset, length, expected) = (next()?, next()?, next()?, next()?);
    if format!("{:016x}", hash(value)) != expected {
        return Err(CHANGED);
    }
    let number = |text: &str| text.parse::<usize>().ok();
    let place = number(offset).zip(number(length));
    let part = place.and_then(|(offset, length)| value.get(offset..offset.checked_add(length)?));
    let part = part.ok_or(CHANGED)?;
    let text = || serde_json::from_slice::<String>(part).map_err(|_| CHANGED);
    match encoding {
        JSON => Ok(Some(part.to_vec())),
        TEXT => Ok(Some(text()?.into_bytes())),
        BASE64 => STANDARD.decode(text()?).map(Some).map_err(|_| CHANGED),
        NULL => Ok(None),
        _ => Err("a later version of walrelay has written its value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = r#"{"original_event": {value}, "error": {error}, "failed_at": {failed_at}, "attempts": {attempts}}"#;

    fn shaped(template: &str, value: Option<&[u8]>) -> Shaped {
        let shape = DlqShape::parse(template).expect("a template");
        shape.render(&ShapeFields {
            value,
            error: "a \"cause\"",
            failed_at: "2026-01-02T03:04:05.678900Z",
            attempts: 1,
            ..ShapeFields::default()
        })
    }

    #[test]
    fn the_members_of_an_existing_consumer_are_written() {
        let shaped_record = shaped(TEMPLATE, Some(br#"{"a": 1.50}"#));
        let expected = r#"{"original_event": {"a": 1.50}, "error": "a \"cause\"", "failed_at": "2026-01-02T03:04:05.678900Z", "attempts": 1}"#;
        assert_eq!(String::from_utf8(shaped_record.value).unwrap(), expected);
        assert!(
            shaped_record.value_at.starts_with("json 19 11 "),
            "{}",
            shaped_record.value_at
        );
    }

    #[test]
    fn every_value_is_restored_byte_for_byte_and_the_whole_is_json() {
        let values: [Option<&[u8]>; 12] = [
            None,
            Some(b""),
            Some(b"null"),
            Some(b" {\"a\" : [1e400, 0.10] }\n"),
            Some(b"\"text\""),
            Some(b"no JSON: {value} \"\\ \n"),
            Some("\u{1F600}\u{7f}\u{0}".as_bytes()),
            Some(b"{\"a\": 1"),
            Some(b"1 2"),
            Some(b"\xff\xfe\x00binary"),
            Some(b"\"\xff\""),
            Some(&[b'['; 500]),
        ];
        for value in values {
            for template in [TEMPLATE, "{value}", "[{value}, {value}, \"{x}\"]"] {
                let shaped_record = shaped(template, value);
                let read: serde_json::Result<IgnoredAny> =
                    serde_json::from_slice(&shaped_record.value);
                assert!(read.is_ok(), "{value:?}");
                let restored = restore(Some(&shaped_record.value), &shaped_record.value_at);
                assert_eq!(restored.as_ref().map(Option::as_deref), Ok(value));
            }
        }
    }

    #[test]
    fn a_value_that_is_missing_or_was_changed_is_not_restored() {
        let without = shaped("{\"error\": {error}}", Some(b"1"));
        let why = restore(Some(&without.value), &without.value_at).unwrap_err();
        assert!(why.contains("had no {value}"), "{why}");
        let Shaped { value, value_at } = shaped(TEMPLATE, Some(b"{\"a\":1}"));
        let mut changed = value.clone();
        // The event's value alone, and behind it.
        for at in [24, value.len() - 2] {
            changed[at] ^= 1;
            assert!(restore(Some(&changed), &value_at).is_err(), "{at}");
            changed.clone_from(&value);
        }
        assert!(restore(Some(&value[1..]), &value_at).is_err());
        assert!(restore(None, &value_at).is_err());
        let hash = value_at.rsplit(' ').next().expect("a hash");
        for at in [
            "",
            "json",
            "json 0 9999 ",
            "json 18446744073709551615 2 ",
            "xml 1 1 ",
            "text 1 2 ",
        ] {
            let at = format!("{at}{hash}");
            assert!(restore(Some(&value), &at).is_err(), "{at}");
        }
    }

    #[test]
    fn a_wrong_template_names_its_fault() {
        for (template, words) in [
            (
                "{\"a\": {vlue}}",
                "{vlue} is no placeholder; known are {value}, {key}",
            ),
            (
                "{\"a\": \"{value}\"}",
                "{value} stands for a whole JSON value",
            ),
            ("{\"a\": \"\\\"{error}\"}", "without quotes"),
            ("{\"a\": {value}", "no JSON"),
            ("{{value}: 1}", "no JSON"),
            ("{value}{error}", "no JSON"),
            ("{\"a\": 1{attempts}}", "no JSON"),
            ("", "no JSON"),
        ] {
            let why = DlqShape::parse(template).unwrap_err().to_string();
            assert!(why.contains(words), "{template}: {why}");
        }
    }
}
