//! What a run that is not the relay's own changes: which events it takes, and where they go.

use std::str::FromStr;

/// Events whose parts equal given texts: `type = 'OrderPlaced' and key = 'order-42'`.
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

/// Why a text is no [`Selection`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; the form is: type = 'OrderPlaced' and key = 'order-42'")]
pub struct SelectionError {
    what: String,
}

/// The parts of an event, as bytes.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) kind: Option<&'a [u8]>,
    pub(super) key: Option<&'a [u8]>,
    pub(super) topic: &'a str,
    pub(super) id: Option<&'a [u8]>,
}

impl Selection {
    pub(super) fn asks_for_type(&self) -> bool {
        self.terms
            .iter()
            .any(|(subject, _)| *subject == Subject::Type)
    }

    pub(super) fn takes(&self, parts: Parts<'_>) -> bool {
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
        let mut rest = text.trim_start();
        loop {
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            let subject = match name {
                "type" => Subject::Type,
                "key" => Subject::Key,
                "topic" => Subject::Topic,
                "id" => Subject::Id,
                _ => return Err(wrong("each condition begins with type, key, topic or id")),
            };
            let value = after.trim_start().strip_prefix('=');
            let value = value.ok_or_else(|| wrong(format!("= is missing after {name}")))?;
            let (text, after) = literal(value.trim_start())
                .ok_or_else(|| wrong(format!("{name} is compared with a text in single quotes")))?;
            terms.push((subject, text));
            let after = after.trim();
            if after.is_empty() {
                return Ok(Self { terms });
            }
            rest = after
                .strip_prefix("and ")
                .or_else(|| after.strip_prefix("AND "))
                .ok_or_else(|| wrong("conditions are joined by and"))?
                .trim_start();
        }
    }
}

/// A text in single quotes, in which two of them are one; and what follows.
fn literal(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('\'')?;
    let mut value = String::new();
    loop {
        let end = rest.find('\'')?;
        value.push_str(rest.get(..end)?);
        rest = rest.get(end + 1..)?;
        match rest.strip_prefix('\'') {
            Some(more) => {
                value.push('\'');
                rest = more;
            }
            None => return Some((value, rest)),
        }
    }
}

fn wrong(what: impl Into<String>) -> SelectionError {
    SelectionError { what: what.into() }
}

/// Other topics than the route's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicChange {
    /// Each topic with this text before it.
    Prefix(String),
    /// This one for all.
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
        assert!(of("type = 'A'").takes(parts("A")));
        assert!(!of("type='B'").takes(parts("A")));
        assert!(of(" type = 'A' and key = 'it''s' AND topic='orders' ").takes(parts("A")));
        assert!(!of("type = 'A' and topic = 'other'").takes(parts("A")));
        assert!(!of("id = ''").takes(parts("A")), "no id equals no text");
        assert!(of("type = 'A'").asks_for_type() && !of("key = ''").asks_for_type());
    }

    #[test]
    fn what_is_no_selection_is_refused_with_the_reason() {
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
