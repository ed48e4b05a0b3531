//! The operations on a value. Each takes a part and returns one. Bytes of the row are copied only
//! if they change; results are appended to the scratch buffer. The caller removes intermediate
//! results.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use smallvec::SmallVec;

use super::ast::{Argument as A, Filter, Lookups, Tokens};
use crate::value::json::{self, Step};
use crate::value::{Part, ValueError, hex_byte};

/// An operation on a value: a filter, or a conversion that the type of a column needs.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Lower,
    Upper,
    Before(String),
    After(String),
    Replace(String, String),
    Default(String),
    Json(Vec<Step>),
    Lookup(BTreeMap<String, String>, Otherwise),
    /// Converts the value to text. Compiled to [`Unquote`](Self::Unquote), [`Base64`](Self::Base64)
    /// or no operation.
    Text,
    /// Leaves out NULL. Not an operation on a value: compiled to a flag of the column.
    Optional,
    /// Converts Postgres' `t` and `f` to `true` and `false`.
    Boolean,
    /// Converts Postgres' `\x…` to bytes.
    Unhex,
    /// Checks that bytes which are read as JSON are UTF-8.
    Utf8,
    /// Converts bytes to base64.
    Base64,
    /// Converts JSON to text: a string becomes its content.
    Unquote,
    /// Makes one token of an address, see [`Tokens`].
    Token(Tokens),
}

/// The replacement for a value that the lookup table does not contain.
#[derive(Debug, Clone)]
pub(super) enum Otherwise {
    Refuse,
    Keep,
    Text(String),
}

impl Op {
    /// Creates the operation of a filter; `None` if the filter does not accept these arguments.
    pub(super) fn from_filter(filter: &Filter, lookups: &Lookups) -> Option<Self> {
        let table = |table| lookups.get(table).cloned().unwrap_or_default();
        Some(match (filter.name, filter.arguments.as_slice()) {
            ("lower", []) => Self::Lower,
            ("upper", []) => Self::Upper,
            ("text", []) => Self::Text,
            ("optional", []) => Self::Optional,
            ("before", [A::Text(at)]) if !at.is_empty() => Self::Before(at.clone()),
            ("after", [A::Text(at)]) if !at.is_empty() => Self::After(at.clone()),
            ("default", [A::Text(text)]) => Self::Default(text.clone()),
            ("replace", [A::Text(old), A::Text(new)]) if !old.is_empty() => {
                Self::Replace(old.clone(), new.clone())
            }
            ("lookup", [A::Text(name)]) => Self::Lookup(table(name), Otherwise::Refuse),
            ("lookup", [A::Text(name), A::Keep]) => Self::Lookup(table(name), Otherwise::Keep),
            ("lookup", [A::Text(name), A::Text(text)]) => {
                Self::Lookup(table(name), Otherwise::Text(text.clone()))
            }
            ("map", [_, ..]) => Self::map(&filter.arguments)?,
            ("json", path) => {
                let step = |argument: &A| match argument {
                    A::Text(name) => Some(Step::Member(name.clone())),
                    A::Number(item) => Some(Step::Item(*item)),
                    A::Keep | A::Entry(..) => None,
                };
                Self::Json(path.iter().map(step).collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    /// Creates a lookup whose table is in the template. A value that is listed twice is refused.
    fn map(entries: &[A]) -> Option<Self> {
        let (mut table, mut otherwise) = (BTreeMap::new(), None);
        for entry in entries {
            let repeated = match entry {
                A::Entry(Some(value), text) => table.insert(value.clone(), text.clone()),
                A::Entry(None, text) => otherwise.replace(text.clone()),
                _ => return None,
            };
            if repeated.is_some() {
                return None;
            }
        }
        let otherwise = otherwise.map_or(Otherwise::Refuse, Otherwise::Text);
        Some(Self::Lookup(table, otherwise))
    }

    pub(super) fn apply<'t>(
        &self,
        part: Part<'t>,
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, ValueError> {
        let Some(bytes) = part.resolve(scratch) else {
            return Ok(match (self, part) {
                (Self::Default(text), Part::Null) => Part::appended(text.as_bytes(), scratch),
                (_, part) => part,
            });
        };
        Ok(match self {
            Self::Boolean => match bytes {
                b"t" => Part::Row(b"true"),
                b"f" => Part::Row(b"false"),
                _ => return Err(ValueError::NotBoolean),
            },
            Self::Unhex => unhex(&part, scratch)?,
            Self::Utf8 => match str::from_utf8(bytes) {
                Ok(_) => part,
                Err(_) => return Err(ValueError::NotJson),
            },
            Self::Base64 => base64(&part, scratch),
            Self::Unquote => unquote(part, scratch)?,
            Self::Token(tokens) => token(part, *tokens, scratch)?,
            Self::Lookup(table, otherwise) => {
                let entry = str::from_utf8(bytes).ok().and_then(|text| table.get(text));
                match (entry, otherwise) {
                    (Some(text), _) | (None, Otherwise::Text(text)) => {
                        Part::appended(text.as_bytes(), scratch)
                    }
                    (None, Otherwise::Keep) => part,
                    (None, Otherwise::Refuse) => return Err(ValueError::NotInTable),
                }
            }
            Self::Lower => case(part, scratch, u8::to_ascii_lowercase, char::to_lowercase)?,
            Self::Upper => case(part, scratch, u8::to_ascii_uppercase, char::to_uppercase)?,
            Self::Before(separator) => {
                let end = find(bytes, separator.as_bytes()).unwrap_or(bytes.len());
                part.slice(0..end)
            }
            Self::After(separator) => {
                let length = bytes.len();
                let position = find(bytes, separator.as_bytes());
                part.slice(position.map_or(0, |at| at + separator.len())..length)
            }
            Self::Replace(old, new) => replace(part, scratch, old.as_bytes(), new.as_bytes()),
            Self::Json(path) => match json::find(bytes, path).map_err(|_| ValueError::NotJson)? {
                Some(range) if bytes.get(range.clone()) != Some(b"null") => part.slice(range),
                _ => Part::Null,
            },
            Self::Default(_) | Self::Text | Self::Optional => part,
        })
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    match wanted {
        [byte] => bytes.iter().position(|other| other == byte),
        _ => bytes
            .windows(wanted.len())
            .position(|window| window == wanted),
    }
}

/// Appends `length` bytes, which `fill` computes from the part's bytes.
fn fill<'t>(
    part: &Part<'_>,
    length: usize,
    scratch: &mut Vec<u8>,
    fill: impl FnOnce(&[u8], &mut [u8]) -> bool,
) -> Option<Part<'t>> {
    let start = scratch.len();
    scratch.resize(start + length, 0);
    let (before, output) = scratch.split_at_mut(start);
    let filled = fill(part.resolve(before).unwrap_or_default(), output);
    filled.then(|| Part::Scratch(start..start + length))
}

fn unhex<'t>(part: &Part<'_>, scratch: &mut Vec<u8>) -> Result<Part<'t>, ValueError> {
    let digits = match part.resolve(scratch) {
        Some([b'\\', b'x', digits @ ..]) if digits.len() % 2 == 0 => digits.len(),
        _ => return Err(ValueError::NotHex),
    };
    let output = fill(part, digits / 2, scratch, |text, output| {
        let (pairs, _) = text.get(2..).unwrap_or_default().as_chunks::<2>();
        let mut pairs = pairs.iter().copied().map(hex_byte).zip(output);
        pairs.all(|(read, byte)| read.map(|read| *byte = read).is_some())
    });
    output.ok_or(ValueError::NotHex)
}

/// Appends the part in base64 by RFC 4648, section 4: the standard alphabet, with padding.
pub(crate) fn base64<'t>(part: &Part<'_>, scratch: &mut Vec<u8>) -> Part<'t> {
    let length = part.len().div_ceil(3) * 4;
    let output = fill(part, length, scratch, |bytes, encoded| {
        // `encode_slice` fails only if the slice is too short.
        STANDARD.encode_slice(bytes, encoded).is_ok()
    });
    output.unwrap_or_default()
}

/// Changes the case of a text: of ASCII by `ascii`, of other texts by `other`.
fn case<'t, I: Iterator<Item = char>>(
    part: Part<'t>,
    scratch: &mut Vec<u8>,
    ascii: impl Fn(&u8) -> u8,
    other: impl Fn(char) -> I,
) -> Result<Part<'t>, ValueError> {
    let bytes = part.resolve(scratch).unwrap_or_default();
    if bytes.is_ascii() {
        if bytes.iter().all(|byte| ascii(byte) == *byte) {
            return Ok(part);
        }
        let copy = match part {
            Part::Row(bytes) => Part::appended(bytes, scratch),
            other => other,
        };
        if let Part::Scratch(range) = &copy
            && let Some(text) = scratch.get_mut(range.clone())
        {
            for byte in text {
                *byte = ascii(byte);
            }
        }
        return Ok(copy);
    }
    // Copied because the text may be in the buffer that is appended to.
    let copy: SmallVec<[u8; 64]> = SmallVec::from_slice(bytes);
    let text = str::from_utf8(&copy).map_err(|_| ValueError::NotUtf8)?;
    let start = scratch.len();
    for c in text.chars().flat_map(other) {
        scratch.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Ok(Part::since(start, scratch))
}

fn replace<'t>(part: Part<'t>, scratch: &mut Vec<u8>, old: &[u8], new: &[u8]) -> Part<'t> {
    let start = scratch.len();
    let mut from = 0;
    loop {
        let bytes = part.resolve(scratch).unwrap_or_default();
        let rest = bytes.get(from..).unwrap_or_default();
        let Some(at) = find(rest, old) else {
            if from == 0 {
                return part;
            }
            let end = bytes.len();
            part.copy(from..end, scratch);
            return Part::since(start, scratch);
        };
        part.copy(from..from + at, scratch);
        scratch.extend_from_slice(new);
        from += at + old.len();
    }
}

fn unquote<'t>(part: Part<'t>, scratch: &mut Vec<u8>) -> Result<Part<'t>, ValueError> {
    let text = part.resolve(scratch).unwrap_or_default();
    let [b'"', inner @ .., b'"'] = text else {
        // The text of an object, an array, a number or a boolean is its JSON.
        return Ok(part);
    };
    if !inner.contains(&b'\\') {
        let end = 1 + inner.len();
        return Ok(part.slice(1..end));
    }
    let start = scratch.len();
    json::unescape(&part, scratch).map_err(|_| ValueError::NotJson)?;
    Ok(Part::since(start, scratch))
}

/// Makes one token of a value.
fn token<'t>(
    part: Part<'t>,
    tokens: Tokens,
    scratch: &mut Vec<u8>,
) -> Result<Part<'t>, ValueError> {
    let is_wrong = |c: char| matches!(c, '.' | '*' | '>') || c.is_whitespace() || c.is_control();
    let bytes = part.resolve(scratch).unwrap_or_default();
    if tokens == Tokens::Url {
        return part_of_url(&part, scratch);
    }
    let text = str::from_utf8(bytes).map_err(|_| ValueError::NotUtf8)?;
    if !text.is_empty() && !text.contains(is_wrong) {
        return Ok(part);
    }
    match tokens {
        Tokens::Refuse | Tokens::Url => Err(ValueError::NotAToken),
        Tokens::Replace if text.is_empty() => Ok(Part::Row(b"_")),
        Tokens::Replace => {
            let replaced = text.replace(is_wrong, "_");
            Ok(Part::appended(replaced.as_bytes(), scratch))
        }
    }
}

/// Percent-encodes a value. Text without reserved characters is unchanged.
fn part_of_url<'t>(part: &Part<'t>, scratch: &mut Vec<u8>) -> Result<Part<'t>, ValueError> {
    let bytes = part.resolve(scratch).unwrap_or_default();
    if matches!(bytes, b"" | b"." | b"..") {
        return Err(ValueError::NotInUrl);
    }
    let mut encoded = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            encoded.push(*byte);
        } else {
            encoded.extend(format!("%{byte:02X}").into_bytes());
        }
    }
    Ok(Part::appended(&encoded, scratch))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Applies `op` to `text` in the row and to `text` in the scratch buffer; both results must be
    /// equal.
    fn applied(op: &Op, text: &[u8]) -> Result<Option<Vec<u8>>, ValueError> {
        let mut scratch = b"before".to_vec();
        let part = op.apply(Part::Row(text), &mut scratch);
        let of_row = part.map(|part| part.resolve(&scratch).map(<[u8]>::to_vec));
        let mut scratch = b"before".to_vec();
        scratch.extend_from_slice(text);
        scratch.extend_from_slice(b"after");
        let part = op.apply(Part::Scratch(6..6 + text.len()), &mut scratch);
        let of_scratch = part.map(|part| part.resolve(&scratch).map(<[u8]>::to_vec));
        assert_eq!(of_row, of_scratch);
        assert!(scratch.starts_with(b"before"));
        of_row
    }

    fn text(op: &Op, text: &str) -> String {
        let found = applied(op, text.as_bytes()).unwrap().unwrap();
        String::from_utf8(found).unwrap()
    }

    #[test]
    fn a_part_of_a_url_is_percent_encoded() {
        let url = &Op::Token(Tokens::Url);
        for (value, expected) in [
            ("a.B-1_~", "a.B-1_~"),
            ("a/ü?{topic}", "a%2F%C3%BC%3F%7Btopic%7D"),
            ("...", "..."),
        ] {
            assert_eq!(text(url, value), expected);
        }
        for wrong in ["", ".", ".."] {
            let found = applied(url, wrong.as_bytes());
            let error = found.unwrap_err();
            assert_eq!(error, ValueError::NotInUrl, "{wrong}");
            // Wildcards are those of NATS.
            assert!(!error.to_string().contains("wildcard"), "{error}");
        }
    }

    #[test]
    fn operations_change_values() {
        let before = &Op::Before(".".into());
        let after = &Op::After("::".into());
        let replace = &Op::Replace("ab".into(), "abab".into());
        let remove = &Op::Replace(".".into(), String::new());
        let default = &Op::Default("x".into());
        let json = &Op::Json([Step::Member("a".to_owned())].into());
        for (op, value, expected) in [
            (&Op::Lower, "OrderPlaced", "orderplaced"),
            (&Op::Lower, "ÄÖ-İ", "äö-i\u{307}"),
            (&Op::Lower, "", ""),
            (&Op::Upper, "order", "ORDER"),
            (&Op::Upper, "straße", "STRASSE"),
            (&Op::Upper, "ORDER", "ORDER"),
            (before, "order.placed.now", "order"),
            (before, "order", "order"),
            (before, ".x", ""),
            (before, "", ""),
            (after, "a::b::c", "b::c"),
            (after, "a:b", "a:b"),
            (after, "a::", ""),
            (replace, "xaby", "xababy"),
            (replace, "abab", "abababab"),
            (replace, "ba", "ba"),
            (replace, "", ""),
            (remove, "a.b.c", "abc"),
            (remove, ".", ""),
            (&Op::Boolean, "t", "true"),
            (&Op::Boolean, "f", "false"),
            (default, "", ""),
            (default, "a", "a"),
            (&Op::Unhex, "\\x", ""),
            (&Op::Unhex, "\\x616Bc3a9", "aké"),
            (&Op::Base64, "", ""),
            (&Op::Base64, "f", "Zg=="),
            (&Op::Base64, "fo", "Zm8="),
            (&Op::Base64, "foo", "Zm9v"),
            (&Op::Base64, "foobar", "Zm9vYmFy"),
            (&Op::Unquote, r#""a""#, "a"),
            (&Op::Unquote, r#""""#, ""),
            (&Op::Unquote, r#""a\n\u00e9\ud83d\ude00b""#, "a\né😀b"),
            (&Op::Unquote, "1.5", "1.5"),
            (json, r#"{"a": {"b": 1}}"#, r#"{"b": 1}"#),
            (json, r#" {"a":"x"}"#, r#""x""#),
        ] {
            assert_eq!(text(op, value), expected, "{op:?} of {value:?}");
        }
        assert_eq!(applied(json, br#"{"b": 1}"#), Ok(None));
        assert_eq!(applied(json, br#"{"a": null}"#), Ok(None));
        assert_eq!(applied(json, b"x"), Err(ValueError::NotJson));
    }

    #[test]
    fn only_the_default_replaces_null() {
        let mut scratch = Vec::new();
        for op in [
            Op::Lower,
            Op::Unhex,
            Op::Boolean,
            Op::Json([].into()),
            Op::Before(".".into()),
        ] {
            let part = op.apply(Part::Null, &mut scratch);
            assert!(matches!(part, Ok(Part::Null)), "{op:?}");
        }
        let default = Op::Default("x".into());
        let part = default.apply(Part::Null, &mut scratch).unwrap();
        assert_eq!(part.resolve(&scratch), Some(b"x".as_slice()));
    }

    #[test]
    fn lookups_map_values() {
        let rows = [("order.placed", "orders"), ("a", "1"), ("", "empty")];
        let table = rows.map(|(from, to)| (from.to_owned(), to.to_owned()));
        let [refuse, keep, other] = [
            Otherwise::Refuse,
            Otherwise::Keep,
            Otherwise::Text("z".into()),
        ]
        .map(|otherwise| Op::Lookup(table.clone().into(), otherwise));
        for (op, value, expected) in [
            (&refuse, "a", "1"),
            (&refuse, "order.placed", "orders"),
            (&refuse, "", "empty"),
            (&keep, "b", "b"),
            (&keep, "a", "1"),
            (&other, "b", "z"),
            (&other, "a", "1"),
        ] {
            assert_eq!(text(op, value), expected, "{op:?} of {value:?}");
        }
        assert_eq!(applied(&refuse, b"b"), Err(ValueError::NotInTable));
    }

    #[test]
    fn invalid_values_are_faults() {
        assert_eq!(applied(&Op::Lower, b"\xff"), Err(ValueError::NotUtf8));
        assert_eq!(applied(&Op::Boolean, b"yes"), Err(ValueError::NotBoolean));
        for text in ["", "616b", "\\x6", "\\x6g", "\\y"] {
            let found = applied(&Op::Unhex, text.as_bytes());
            assert_eq!(found, Err(ValueError::NotHex), "{text}");
        }
        let half = applied(&Op::Unquote, br#""\ud83d""#);
        assert_eq!(half, Err(ValueError::NotJson));
    }

    proptest! {
        #[test]
        fn texts_are_changed_as_the_standard_library_does(value: String, old in "[a-zé.]{1,2}", new in "[a-z.]{0,3}") {
            let of = |op: Op| text(&op, &value);
            // str::to_lowercase has another letter for a sigma at the end of a word.
            if !value.contains('Σ') {
                prop_assert_eq!(of(Op::Lower), value.to_lowercase());
            }
            prop_assert_eq!(of(Op::Upper), value.to_uppercase());
            prop_assert_eq!(of(Op::Replace(old.clone(), new.clone())), value.replace(&old, &new));
            let (before, after) = value.split_once(&old).unwrap_or((&value, &value));
            prop_assert_eq!(of(Op::Before(old.clone())), before);
            prop_assert_eq!(of(Op::After(old.clone())), after);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let ops = [
                Op::Lower, Op::Upper, Op::Unhex, Op::Base64, Op::Unquote, Op::Boolean,
                Op::Json([Step::Item(0)].into()), Op::Replace("a".into(), "b".into()),
            ];
            for op in ops {
                let _ = applied(&op, &bytes);
            }
        }
    }
}
