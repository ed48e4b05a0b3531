//! The selection of events, and the change of topics, of runs other than the relay itself.

use std::str::FromStr;

use crate::value::cursor::Cursor;

/// A selection of events by their parts: `type = 'OrderPlaced' and key = 'order-42'`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    terms: Vec<(Subject, String)>,
}

/// A part of an event that a [`Selection`] compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Type,
    Key,
    Topic,
    Id,
}

/// The reason why a text is not a [`Selection`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; the form is: type = 'OrderPlaced' and key = 'order-42'")]
pub struct SelectionError {
    what: String,
}

/// The parts of an event that a selection compares.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) kind: Option<&'a [u8]>,
    pub(super) key: Option<&'a [u8]>,
    pub(super) topic: &'a str,
    pub(super) id: Option<&'a [u8]>,
}

impl Selection {
    pub(super) fn compares_type(&self) -> bool {
        let mut terms = self.terms.iter();
        terms.any(|(subject, _)| *subject == Subject::Type)
    }

    pub(super) fn matches(&self, parts: Parts<'_>) -> bool {
        self.terms.iter().all(|(subject, text)| {
            let found = match subject {
                Subject::Type => parts.kind,
                Subject::Key => parts.key,
                Subject::Topic => Some(parts.topic.as_bytes()),
                Subject::Id => parts.id,
            };
            found == Some(text.as_bytes())
        })
    }
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        let mut terms = Vec::new();
        let mut text = Cursor::new(text.trim());
        loop {
            text.blanks();
            let name = text.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
            let subject = match name {
                "type" => Subject::Type,
                "key" => Subject::Key,
                "topic" => Subject::Topic,
                "id" => Subject::Id,
                _ => return Err(wrong("each condition begins with type, key, topic or id")),
            };
            text.blanks();
            if !text.take("=") {
                return Err(wrong(format!("= is missing after {name}")));
            }
            text.blanks();
            let value = text.take("'").then(|| text.quoted('\'')).flatten();
            let value = value
                .ok_or_else(|| wrong(format!("{name} is compared with a text in single quotes")))?;
            terms.push((subject, value));
            text.blanks();
            if text.rest.is_empty() {
                return Ok(Self { terms });
            }
            if !text.take("and ") && !text.take("AND ") {
                return Err(wrong("conditions are joined by and"));
            }
        }
    }
}

fn wrong(what: impl Into<String>) -> SelectionError {
    SelectionError { what: what.into() }
}

/// Change of the route's topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicChange {
    /// Puts this text before each topic.
    Prefix(String),
    /// Replaces all topics by this one.
    To(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(kind: &'static str) -> Parts<'static> {
        Parts {
            kind: Some(kind.as_bytes()),
            key: Some(b"it's"),
            topic: "orders",
            id: None,
        }
    }

    #[test]
    fn every_condition_must_hold() {
        let of = |text: &str| text.parse::<Selection>().unwrap();
        assert!(of("type = 'A'").matches(parts("A")));
        assert!(!of("type='B'").matches(parts("A")));
        assert!(of(" type = 'A' and key = 'it''s' AND topic='orders' ").matches(parts("A")));
        assert!(!of("type = 'A' and topic = 'other'").matches(parts("A")));
        assert!(!of("id = ''").matches(parts("A")), "no id equals no text");
        assert!(of("type = 'A'").compares_type() && !of("key = ''").compares_type());
    }

    #[test]
    fn other_texts_than_selections_are_refused() {
        for (text, about) in [
            ("", "begins with"),
            ("payload = 'x'", "begins with"),
            ("type 'x'", "= is missing after type"),
            ("type = x", "single quotes"),
            ("type = 'x", "single quotes"),
            ("type = 'x' or key = 'y'", "joined by and"),
            ("type = 'x' and", "joined by and"),
            ("type = 'ä' and ü = 'y'", "begins with"),
        ] {
            let error = text.parse::<Selection>().unwrap_err().to_string();
            assert!(error.contains(about), "{text:?}: {error}");
        }
    }
}
