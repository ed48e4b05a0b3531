//! JSON: finding a member of a text, reading strings, writing strings, and a [`tree`].
//!
//! Finding walks over a text once and allocates nothing. It refuses text that is not JSON by RFC 8259,
//! so that records embed only JSON.

pub(crate) mod tree;

use std::io::Write as _;
use std::ops::Range;

use super::{Malformed, Part};

/// Of nested values, like `serde_json`'s: the limit protects the stack.
pub(crate) const MAX_DEPTH: u16 = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The last member of an object by this name, as in Postgres' `jsonb`.
    Member(String),
    /// The item of an array, from 0.
    Item(usize),
}

/// The place of the value at `path`, without blanks around it. Always checks the whole text.
pub(crate) fn find(text: &[u8], path: &[Step]) -> Result<Option<Range<usize>>, Malformed> {
    Scanner { text, at: 0 }.whole(|scanner| scanner.value(Some(path), 0))
}

pub(crate) fn is_json(text: &[u8]) -> bool {
    find(text, &[]).is_ok()
}

/// Appends the text that a JSON string stands for; `string` is one that [`find`] has found, with its
/// quotes. It may lie in the buffer that is appended to.
pub(crate) fn unescape(string: &Part<'_>, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let end = string.len().saturating_sub(1);
    let mut from = 1;
    while from < end {
        let rest = string.resolve(out).and_then(|text| text.get(from..end));
        let rest = rest.unwrap_or_default();
        let (plain, escape) = match rest.iter().position(|byte| *byte == b'\\') {
            Some(at) => (at, rest.get(at..)),
            None => (rest.len(), None),
        };
        let escape = match escape {
            Some(escape) => Some(escaped(escape).ok_or(Malformed)?),
            None => None,
        };
        string.copy(from..from + plain, out);
        from += plain;
        if let Some((c, length)) = escape {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            from += length;
        }
    }
    Ok(())
}

/// The character that the escape at the beginning of `text` stands for, and the escape's length.
/// A lone half of a surrogate pair is no character.
fn escaped(text: &[u8]) -> Option<(char, usize)> {
    let simple = match text.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let first = hex(text.get(2..6)?)?;
            if !(0xd800..0xdc00).contains(&first) {
                return Some((char::from_u32(first)?, 6));
            }
            let second = hex(text.get(6..12)?.strip_prefix(b"\\u")?)?;
            let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
            let c = char::from_u32(0x10000 + ((first - 0xd800) << 10) + low)?;
            return Some((c, 12));
        }
        _ => return None,
    };
    Some((simple, 2))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| {
        Some(number << 4 | char::from(*digit).to_digit(16)?)
    })
}

/// Appends a text as a JSON string, in quotes. It is UTF-8, and may lie in the buffer.
pub(crate) fn string(text: &Part<'_>, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut from = 0;
    while from < text.len() {
        let rest = text.resolve(out).and_then(|text| text.get(from..));
        let rest = rest.unwrap_or_default();
        let plain = rest.iter().position(|byte| must_be_escaped(*byte));
        let plain = plain.unwrap_or(rest.len());
        let special = rest.get(plain).copied();
        text.copy(from..from + plain, out);
        if let Some(byte) = special {
            push_escape(byte, out);
        }
        from += plain + 1;
    }
    out.push(b'"');
}

const fn must_be_escaped(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn push_escape(byte: u8, out: &mut Vec<u8>) {
    match short_escape(byte) {
        Some(escape) => out.extend_from_slice(&[b'\\', escape]),
        // Writing to a Vec does not fail.
        None => drop(write!(out, "\\u{byte:04x}")),
    }
}

/// The character behind the backslash that stands for this byte in a JSON string.
pub(crate) const fn short_escape(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x8 => b'b',
        0xc => b'f',
        _ => return None,
    })
}

/// Whether a text is a JSON number and nothing else.
pub(crate) fn is_number(text: &[u8]) -> bool {
    let mut scanner = Scanner { text, at: 0 };
    scanner.number().is_ok() && scanner.at == text.len()
}

struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
}

impl Scanner<'_> {
    /// Reads with `value`, with nothing but blanks around it.
    fn whole<T>(
        mut self,
        value: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        self.blanks();
        let value = value(&mut self)?;
        self.blanks();
        if self.at < self.text.len() {
            return Err(Malformed);
        }
        Ok(value)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        if there {
            self.at += 1;
        }
        there
    }

    fn need(&mut self, byte: u8) -> Result<(), Malformed> {
        self.take(byte).then_some(()).ok_or(Malformed)
    }

    /// The items between the bracket that comes next and `close`, each read by `item`.
    fn items(
        &mut self,
        close: u8,
        mut item: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.at += 1;
        self.blanks();
        if self.take(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            self.blanks();
            if self.take(close) {
                return Ok(());
            }
            self.need(b',')?;
            self.blanks();
        }
    }

    /// A member's name, with its quotes; up to the value.
    fn name(&mut self) -> Result<Range<usize>, Malformed> {
        let name = self.string()?;
        self.blanks();
        self.need(b':')?;
        self.blanks();
        Ok(name)
    }

    /// Walks over a value; gives the place of the value at `path`.
    fn value(
        &mut self,
        path: Option<&[Step]>,
        depth: u16,
    ) -> Result<Option<Range<usize>>, Malformed> {
        if depth >= MAX_DEPTH {
            return Err(Malformed);
        }
        let start = self.at;
        let mut found = None;
        match self.peek() {
            Some(b'{') => self.items(b'}', |scanner| {
                let name = scanner.name()?;
                let name = scanner.text.get(name).unwrap_or_default();
                let rest = match path {
                    Some([Step::Member(wanted), rest @ ..]) if same(name, wanted.as_bytes()) => {
                        Some(rest)
                    }
                    _ => None,
                };
                let place = scanner.value(rest, depth + 1)?;
                if rest.is_some() {
                    found = place;
                }
                Ok(())
            })?,
            Some(b'[') => {
                let mut index = 0;
                self.items(b']', |scanner| {
                    let rest = match path {
                        Some([Step::Item(wanted), rest @ ..]) if *wanted == index => Some(rest),
                        _ => None,
                    };
                    index += 1;
                    let place = scanner.value(rest, depth + 1)?;
                    if rest.is_some() {
                        found = place;
                    }
                    Ok(())
                })?;
            }
            Some(b'"') => {
                self.string()?;
            }
            Some(b't') => self.word(b"true")?,
            Some(b'f') => self.word(b"false")?,
            Some(b'n') => self.word(b"null")?,
            _ => self.number()?,
        }
        Ok(match path {
            Some([]) => Some(start..self.at),
            _ => found,
        })
    }

    fn string(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        self.need(b'"')?;
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let plain = rest.iter().position(|byte| must_be_escaped(*byte));
            self.at += plain.ok_or(Malformed)?;
            match self.peek().ok_or(Malformed)? {
                b'"' => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                b'\\' => {
                    let rest = self.text.get(self.at..).unwrap_or_default();
                    let length = match rest.get(1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                        Some(b'u') => {
                            rest.get(2..6).and_then(hex).ok_or(Malformed)?;
                            6
                        }
                        _ => return Err(Malformed),
                    };
                    self.at += length;
                }
                _ => return Err(Malformed),
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Malformed> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with(word) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Malformed> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        (self.at > start).then_some(()).ok_or(Malformed)
    }
}

/// Whether a JSON string stands for this text.
pub(crate) fn same(string: &[u8], text: &[u8]) -> bool {
    let inner = string
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    let mut rest = inner.unwrap_or_default();
    if !rest.contains(&b'\\') {
        return rest == text;
    }
    let mut wanted = text;
    while let Some(byte) = rest.first() {
        let (found, length) = match (byte, escaped(rest)) {
            (b'\\', None) => return false,
            (b'\\', Some((c, length))) => (
                wanted.strip_prefix(c.encode_utf8(&mut [0; 4]).as_bytes()),
                length,
            ),
            (byte, _) => (wanted.strip_prefix(&[*byte]), 1),
        };
        let Some(left) = found else { return false };
        wanted = left;
        rest = rest.get(length..).unwrap_or_default();
    }
    wanted.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn steps(path: &[&str]) -> Vec<Step> {
        path.iter()
            .map(|step| match step.parse() {
                Ok(index) => Step::Item(index),
                Err(_) => Step::Member((*step).to_owned()),
            })
            .collect()
    }

    fn at<'t>(text: &'t str, path: &[&str]) -> Option<&'t str> {
        find(text.as_bytes(), &steps(path))
            .unwrap()
            .map(|range| &text[range])
    }

    #[test]
    fn members_and_items_are_found() {
        let text = r#" {"a": {"b.c": [1, {"d": "x\n"}, null]}, "e": true, "a\u0041": -1.50e+3 } "#;
        assert_eq!(at(text, &["a", "b.c", "0"]), Some("1"));
        assert_eq!(at(text, &["a", "b.c", "1", "d"]), Some(r#""x\n""#));
        assert_eq!(at(text, &["a", "b.c", "2"]), Some("null"));
        assert_eq!(at(text, &["a", "b.c", "3"]), None);
        assert_eq!(at(text, &["a", "0"]), None);
        assert_eq!(at(text, &["e", "f"]), None);
        assert_eq!(at(text, &["e"]), Some("true"));
        assert_eq!(at(text, &["aA"]), Some("-1.50e+3"));
        assert_eq!(at(text, &["nowhere"]), None);
        assert_eq!(at(text, &[]), Some(text.trim()));
        // As jsonb: the last one counts, also where it does not go on.
        assert_eq!(at(r#"{"a": 1, "a": 2}"#, &["a"]), Some("2"));
        assert_eq!(at(r#"{"a": {"b": 1}, "a": 2}"#, &["a", "b"]), None);
        assert_eq!(at(r#"{"é😀": 1}"#, &["é😀"]), Some("1"));
        assert_eq!(at(r#"{"\u00e9\ud83d\ude00x": 1}"#, &["é😀x"]), Some("1"));
        assert_eq!(at(r#"{"\ud83d": 1}"#, &["x"]), None);
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "}",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "-",
            "nul",
            "nulll",
            "\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u12\"",
            "\"\t\"",
            "1 2",
            "NaN",
            "\u{feff}1",
        ] {
            assert_eq!(find(text.as_bytes(), &[]), Err(Malformed), "{text:?}");
        }
        let deep = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert_eq!(find(&deep(128), &[]), Ok(Some(0..256)));
        assert_eq!(find(&deep(129), &[]), Err(Malformed));
        // A string that is none: half a character.
        let half = br#""\ud83d""#;
        assert_eq!(find(half, &[]), Ok(Some(0..8)));
        assert_eq!(unescape(&Part::Row(half), &mut Vec::new()), Err(Malformed));
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c\"\\\\é\n]{0,2}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn finds_what_serde_finds(value in document(), pretty in any::<bool>(), path in prop::collection::vec("[a-c0-2]", 0..3)) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let expected = path.iter().try_fold(&value, |value, step| match value {
                Value::Array(items) => items.get(step.parse::<usize>().ok()?),
                Value::Object(members) if step.parse::<usize>().is_err() => members.get(*step),
                _ => None,
            });
            let found = find(text.as_bytes(), &steps(&path)).unwrap();
            let read = found.clone().map(|range| serde_json::from_str::<Value>(&text[range]).unwrap());
            prop_assert_eq!(read.as_ref().map(Value::to_string), expected.map(Value::to_string));
            if let (Some(range), Some(Value::String(string))) = (found, expected) {
                let mut out = b"before".to_vec();
                unescape(&Part::Row(&text.as_bytes()[range]), &mut out).unwrap();
                prop_assert_eq!(&out[6..], string.as_bytes());
            }
        }

        #[test]
        fn agrees_with_serde_on_what_json_is(text in r#"[\[\]{}",:0-9eE.+\\untrfals \t-]{0,12}"#) {
            let expected = serde_json::from_str::<Value>(&text).is_ok();
            prop_assert_eq!(find(text.as_bytes(), &[]).is_ok(), expected);
        }

        #[test]
        fn any_bytes_are_walked_without_panic(bytes: Vec<u8>) {
            let _ = find(&bytes, &[Step::Member("a".to_owned()), Step::Item(0)]);
            let _ = unescape(&Part::Row(&bytes), &mut Vec::new());
        }

        #[test]
        fn written_strings_read_back(text: String) {
            let mut out = Vec::new();
            string(&Part::Row(text.as_bytes()), &mut out);
            prop_assert_eq!(&serde_json::from_slice::<String>(&out).unwrap(), &text);

            let mut within = text.clone().into_bytes();
            string(&Part::Scratch(0..text.len()), &mut within);
            prop_assert_eq!(&within[text.len()..], &out);
        }
    }
}
