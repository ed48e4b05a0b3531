//! A JSON text parsed into a tree that borrows from the text, for readers that need another order.

use std::borrow::Cow;
use std::ops::Range;

use super::scanner::Scanner;
use super::strings::unescape;
use crate::value::{Malformed, Part};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tree<'t> {
    Null,
    Boolean(bool),
    /// The text of the number.
    Number(&'t str),
    /// The text of the string, without quotes and escapes.
    String(Cow<'t, str>),
    Array(Vec<Tree<'t>>),
    /// The members in the order of the text; a name may occur several times.
    Object(Vec<(Cow<'t, str>, Tree<'t>)>),
}

/// Parses `text`, whose values may be nested `max_depth` deep.
pub(crate) fn parse(text: &str, max_depth: u16) -> Result<Tree<'_>, Malformed> {
    let scanner = Scanner {
        text: text.as_bytes(),
        at: 0,
    };
    scanner.whole(|scanner| scanner.tree(text, max_depth))
}

impl<'t> Scanner<'t> {
    fn tree(&mut self, whole: &'t str, depth: u16) -> Result<Tree<'t>, Malformed> {
        let depth = depth.checked_sub(1).ok_or(Malformed)?;
        let start = self.at;
        Ok(match self.peek() {
            Some(b'{') => {
                let mut members = Vec::new();
                self.items(b'}', |scanner| {
                    let name = string(whole, scanner.name()?)?;
                    members.push((name, scanner.tree(whole, depth)?));
                    Ok(())
                })?;
                Tree::Object(members)
            }
            Some(b'[') => {
                let mut items = Vec::new();
                self.items(b']', |scanner| {
                    items.push(scanner.tree(whole, depth)?);
                    Ok(())
                })?;
                Tree::Array(items)
            }
            Some(b'"') => {
                let place = self.string()?;
                Tree::String(string(whole, place)?)
            }
            Some(b't') => self.word(b"true").map(|()| Tree::Boolean(true))?,
            Some(b'f') => self.word(b"false").map(|()| Tree::Boolean(false))?,
            Some(b'n') => self.word(b"null").map(|()| Tree::Null)?,
            _ => {
                self.number()?;
                Tree::Number(whole.get(start..self.at).ok_or(Malformed)?)
            }
        })
    }
}

/// Reads the text of the string at this range; borrowed if it has no escape.
fn string(whole: &str, place: Range<usize>) -> Result<Cow<'_, str>, Malformed> {
    let quoted = whole.get(place).ok_or(Malformed)?;
    if !quoted.contains('\\') {
        let inner = quoted.get(1..quoted.len().saturating_sub(1));
        return inner.map(Cow::Borrowed).ok_or(Malformed);
    }
    let mut text = Vec::with_capacity(quoted.len());
    unescape(&Part::Row(quoted.as_bytes()), &mut text)?;
    let text = String::from_utf8(text);
    text.map(Cow::Owned).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::super::scanner::{MAX_DEPTH, find};
    use super::super::tests::document;
    use super::*;

    /// Converts the tree into a value of `serde_json`.
    fn value(tree: &Tree<'_>) -> Value {
        match tree {
            Tree::Null => Value::Null,
            Tree::Boolean(value) => Value::Bool(*value),
            Tree::Number(digits) => serde_json::from_str(digits).expect("a number"),
            Tree::String(string) => Value::String(string.to_string()),
            Tree::Array(items) => items.iter().map(value).collect(),
            Tree::Object(members) => members
                .iter()
                .map(|(name, member)| (name.to_string(), value(member)))
                .collect(),
        }
    }

    proptest! {
        #[test]
        fn trees_equal_those_of_serde(wanted in document()) {
            for text in [wanted.to_string(), serde_json::to_string_pretty(&wanted).unwrap()] {
                prop_assert_eq!(value(&parse(&text, MAX_DEPTH).unwrap()), wanted.clone());
            }
        }

        #[test]
        fn trees_parse_what_find_accepts(bytes in "[\\[\\]{}:,\"0-9a-e\\\\ .+-]{0,12}|true|fals|nulll") {
            prop_assert_eq!(parse(&bytes, MAX_DEPTH).is_ok(), find(bytes.as_bytes(), &[]).is_ok());
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(&nested(128), MAX_DEPTH).is_ok());
        assert!(parse(&nested(129), MAX_DEPTH).is_err());
        assert!(parse(&"[".repeat(1_000_000), MAX_DEPTH).is_err());
    }

    #[test]
    fn strings_are_texts() {
        let parsed = |text| parse(text, MAX_DEPTH);
        let text = r#""\u00e9\ud83d\ude00\n\/""#;
        assert_eq!(parsed(text), Ok(Tree::String("é😀\n/".into())));
        let members = vec![("a".into(), Tree::Number("1")), ("a".into(), Tree::Null)];
        assert_eq!(
            parsed(r#"{"a":1,"\u0061":null}"#),
            Ok(Tree::Object(members))
        );
        assert_eq!(parsed(r#""\ud800""#), Err(Malformed));
        assert_eq!(parsed("\"\n\""), Err(Malformed));
    }
}
