//! The operations on a value. Each takes a part and gives one. Bytes of the row are copied only if they
//! change; a result is appended to the scratch buffer. The caller removes intermediate results.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use smallvec::SmallVec;

use super::ast::{Argument as A, Filter, Lookups};
use crate::value::json::{self, Step};
use crate::value::{Part, ValueError, hex_byte};

/// An operation on a value: a filter, or one that the type of a column needs.
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
    /// The value as text; compiled to [`Unquote`](Self::Unquote), [`Base64`](Self::Base64) or nothing.
    Text,
    /// Leaves out NULL; not an operation on a value.
    Optional,
    /// Postgres' `t` and `f` to `true` and `false`.
    Boolean,
    /// Postgres' `\x…` to the bytes it stands for.
    Unhex,
    /// Bytes to their base64 text.
    Base64,
    /// From JSON to text: a string to its content.
    Unquote,
}

/// Replaces a value that a lookup table does not have.
#[derive(Debug, Clone)]
pub(super) enum Otherwise {
    Refuse,
    Keep,
    Text(String),
}

impl Op {
    /// `None`: these are no arguments of this filter.
    pub(super) fn of(filter: &Filter, lookups: &Lookups) -> Option<Self> {
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
            ("json", path) => {
                let step = |argument: &A| match argument {
                    A::Text(name) => Some(Step::Member(name.clone())),
                    A::Number(item) => Some(Step::Item(*item)),
                    A::Keep => None,
                };
                Self::Json(path.iter().map(step).collect::<Option<_>>()?)
            }
            _ => return None,
        })
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
            Self::Base64 => base64(&part, scratch),
            Self::Unquote => unquote(part, scratch)?,
            Self::Lookup(table, otherwise) => {
                let found = str::from_utf8(bytes).ok().and_then(|text| table.get(text));
                match (found, otherwise) {
                    (Some(text), _) | (None, Otherwise::Text(text)) => {
                        Part::appended(text.as_bytes(), scratch)
                    }
                    (None, Otherwise::Keep) => part,
                    (None, Otherwise::Refuse) => return Err(ValueError::NotInTable),
                }
            }
            Self::Lower => case(part, scratch, Case::Lower)?,
            Self::Upper => case(part, scratch, Case::Upper)?,
            Self::Before(separator) => {
                let end = find(bytes, separator.as_bytes()).unwrap_or(bytes.len());
                part.sub(0..end)
            }
            Self::After(separator) => {
                let length = bytes.len();
                let found = find(bytes, separator.as_bytes());
                part.sub(found.map_or(0, |at| at + separator.len())..length)
            }
            Self::Replace(old, new) => replace(part, scratch, old.as_bytes(), new.as_bytes()),
            Self::Json(path) => match json::find(bytes, path).map_err(|_| ValueError::NotJson)? {
                Some(range) if bytes.get(range.clone()) != Some(b"null") => part.sub(range),
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

/// Appends `length` bytes that `fill` makes of the part's.
fn fill<'t>(
    part: &Part<'_>,
    length: usize,
    scratch: &mut Vec<u8>,
    fill: impl FnOnce(&[u8], &mut [u8]) -> bool,
) -> Option<Part<'t>> {
    let start = scratch.len();
    scratch.resize(start + length, 0);
    let (before, made) = scratch.split_at_mut(start);
    let filled = fill(part.resolve(before).unwrap_or_default(), made);
    filled.then(|| Part::Scratch(start..start + length))
}

fn unhex<'t>(part: &Part<'_>, scratch: &mut Vec<u8>) -> Result<Part<'t>, ValueError> {
    let digits = match part.resolve(scratch) {
        Some([b'\\', b'x', digits @ ..]) if digits.len() % 2 == 0 => digits.len(),
        _ => return Err(ValueError::NotHex),
    };
    let made = fill(part, digits / 2, scratch, |text, made| {
        let (pairs, _) = text.get(2..).unwrap_or_default().as_chunks::<2>();
        let mut pairs = pairs.iter().copied().map(hex_byte).zip(made);
        pairs.all(|(read, byte)| read.map(|read| *byte = read).is_some())
    });
    made.ok_or(ValueError::NotHex)
}

/// RFC 4648, section 4: the standard alphabet, with padding.
pub(crate) fn base64<'t>(part: &Part<'_>, scratch: &mut Vec<u8>) -> Part<'t> {
    let length = part.len().div_ceil(3) * 4;
    let made = fill(part, length, scratch, |bytes, encoded| {
        // The slice has the encoded length, the only thing that can fail.
        STANDARD.encode_slice(bytes, encoded).is_ok()
    });
    made.unwrap_or_default()
}

#[derive(Clone, Copy)]
enum Case {
    Lower,
    Upper,
}

fn case<'t>(part: Part<'t>, scratch: &mut Vec<u8>, case: Case) -> Result<Part<'t>, ValueError> {
    let bytes = part.resolve(scratch).unwrap_or_default();
    let changes = |byte: &u8| match case {
        Case::Lower => byte.is_ascii_uppercase(),
        Case::Upper => byte.is_ascii_lowercase(),
    };
    if bytes.is_ascii() {
        if !bytes.iter().any(changes) {
            return Ok(part);
        }
        let copy = match part {
            Part::Row(bytes) => Part::appended(bytes, scratch),
            other => other,
        };
        if let Part::Scratch(range) = &copy
            && let Some(text) = scratch.get_mut(range.clone())
        {
            match case {
                Case::Lower => text.make_ascii_lowercase(),
                Case::Upper => text.make_ascii_uppercase(),
            }
        }
        return Ok(copy);
    }
    // A copy: the text may lie in the buffer that is appended to.
    let copy: SmallVec<[u8; 64]> = SmallVec::from_slice(bytes);
    let text = str::from_utf8(&copy).map_err(|_| ValueError::NotUtf8)?;
    let start = scratch.len();
    let mut push = |c: char| scratch.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    match case {
        Case::Lower => text
            .chars()
            .flat_map(char::to_lowercase)
            .for_each(&mut push),
        Case::Upper => text
            .chars()
            .flat_map(char::to_uppercase)
            .for_each(&mut push),
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
        // An object, an array, a number, a truth value: its JSON is its text.
        return Ok(part);
    };
    if !inner.contains(&b'\\') {
        let end = 1 + inner.len();
        return Ok(part.sub(1..end));
    }
    let start = scratch.len();
    json::unescape(&part, scratch).map_err(|_| ValueError::NotJson)?;
    Ok(Part::since(start, scratch))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::value::json::Step;

    /// What `op` makes of `text`, told of a text of the row and of one in the scratch buffer.
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

    fn texts(op: &Op, cases: &[(&str, &str)]) {
        for (text, expected) in cases {
            let found = applied(op, text.as_bytes()).unwrap().unwrap();
            assert_eq!(
                String::from_utf8(found).unwrap(),
                *expected,
                "{op:?} of {text:?}"
            );
        }
    }

    #[test]
    fn each_does_what_it_says() {
        texts(
            &Op::Lower,
            &[
                ("OrderPlaced", "orderplaced"),
                ("ÄÖ-İ", "äö-i\u{307}"),
                ("", ""),
            ],
        );
        texts(
            &Op::Upper,
            &[
                ("order", "ORDER"),
                ("straße", "STRASSE"),
                ("ORDER", "ORDER"),
            ],
        );
        let before = Op::Before(".".into());
        texts(
            &before,
            &[
                ("order.placed.now", "order"),
                ("order", "order"),
                (".x", ""),
                ("", ""),
            ],
        );
        let after = Op::After("::".into());
        texts(&after, &[("a::b::c", "b::c"), ("a:b", "a:b"), ("a::", "")]);
        let replace = Op::Replace("ab".into(), "abab".into());
        texts(
            &replace,
            &[
                ("xaby", "xababy"),
                ("abab", "abababab"),
                ("ba", "ba"),
                ("", ""),
            ],
        );
        let gone = Op::Replace(".".into(), String::new());
        texts(&gone, &[("a.b.c", "abc"), (".", "")]);
        texts(&Op::Boolean, &[("t", "true"), ("f", "false")]);
        texts(&Op::Default("x".into()), &[("", ""), ("a", "a")]);
        texts(&Op::Unhex, &[("\\x", ""), ("\\x616Bc3a9", "aké")]);
        texts(
            &Op::Base64,
            &[
                ("", ""),
                ("f", "Zg=="),
                ("fo", "Zm8="),
                ("foo", "Zm9v"),
                ("foobar", "Zm9vYmFy"),
            ],
        );
        texts(
            &Op::Unquote,
            &[
                (r#""a""#, "a"),
                (r#""""#, ""),
                (r#""a\n\u00e9\ud83d\ude00b""#, "a\né😀b"),
                ("1.5", "1.5"),
            ],
        );
        let json = Op::Json([Step::Member("a".to_owned())].into());
        texts(
            &json,
            &[
                (r#"{"a": {"b": 1}}"#, r#"{"b": 1}"#),
                (r#" {"a":"x"}"#, r#""x""#),
            ],
        );
        assert_eq!(applied(&json, br#"{"b": 1}"#), Ok(None));
        assert_eq!(applied(&json, br#"{"a": null}"#), Ok(None));
        assert_eq!(applied(&json, b"x"), Err(ValueError::NotJson));
    }

    #[test]
    fn null_stays_null_but_for_the_default() {
        let mut scratch = Vec::new();
        for op in [
            Op::Lower,
            Op::Unhex,
            Op::Boolean,
            Op::Json([].into()),
            Op::Before(".".into()),
        ] {
            assert!(
                matches!(op.apply(Part::Null, &mut scratch), Ok(Part::Null)),
                "{op:?}"
            );
        }
        let part = Op::Default("x".into())
            .apply(Part::Null, &mut scratch)
            .unwrap();
        assert_eq!(part.resolve(&scratch), Some(b"x".as_slice()));
    }

    #[test]
    fn a_table_has_what_it_was_given() {
        let rows = [("order.placed", "orders"), ("a", "1"), ("", "empty")];
        let table = rows.map(|(from, to)| (from.to_owned(), to.to_owned()));
        let with = |otherwise| Op::Lookup(table.clone().into(), otherwise);
        texts(
            &with(Otherwise::Refuse),
            &[("a", "1"), ("order.placed", "orders"), ("", "empty")],
        );
        assert_eq!(
            applied(&with(Otherwise::Refuse), b"b"),
            Err(ValueError::NotInTable)
        );
        texts(&with(Otherwise::Keep), &[("b", "b"), ("a", "1")]);
        texts(
            &with(Otherwise::Text("z".into())),
            &[("b", "z"), ("a", "1")],
        );
    }

    #[test]
    fn what_cannot_be_read_is_a_fault() {
        assert_eq!(applied(&Op::Lower, b"\xff"), Err(ValueError::NotUtf8));
        assert_eq!(applied(&Op::Boolean, b"yes"), Err(ValueError::NotBoolean));
        for text in ["", "616b", "\\x6", "\\x6g", "\\y"] {
            assert_eq!(
                applied(&Op::Unhex, text.as_bytes()),
                Err(ValueError::NotHex),
                "{text}"
            );
        }
        assert_eq!(
            applied(&Op::Unquote, br#""\ud83d""#),
            Err(ValueError::NotJson)
        );
    }

    proptest! {
        #[test]
        fn texts_are_changed_as_the_standard_library_does(text: String, old in "[a-zé.]{1,2}", new in "[a-z.]{0,3}") {
            let made = |op: Op| String::from_utf8(applied(&op, text.as_bytes()).unwrap().unwrap()).unwrap();
            // str::to_lowercase knows that a sigma at the end of a word is another letter.
            if !text.contains('Σ') {
                prop_assert_eq!(made(Op::Lower), text.to_lowercase());
            }
            prop_assert_eq!(made(Op::Upper), text.to_uppercase());
            prop_assert_eq!(made(Op::Replace(old.as_str().into(), new.as_str().into())), text.replace(&old, &new));
            let (before, after) = text.split_once(&old).unwrap_or((&text, &text));
            prop_assert_eq!(made(Op::Before(old.as_str().into())), before);
            prop_assert_eq!(made(Op::After(old.as_str().into())), after);
        }

        #[test]
        fn any_bytes_are_taken(bytes: Vec<u8>) {
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
