//! What filters do to a value. Each takes a part and gives one: bytes of the row stay where they are
//! as long as they can, everything else is appended to the scratch buffer. What a filter leaves
//! behind there is the caller's to clear away.

use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::json::{self, Step};
use crate::part::{Part, ValueError};

/// A filter, ready to run.
#[derive(Debug)]
pub(super) enum Op {
    /// Postgres' `t` and `f` to `true` and `false`.
    Boolean,
    /// Postgres' `\x…` to the bytes it stands for.
    Unhex,
    /// Bytes to their base64 text.
    Base64,
    Lower,
    Upper,
    Before(Box<str>),
    After(Box<str>),
    Replace(Box<str>, Box<str>),
    /// Instead of NULL.
    Default(Box<str>),
    /// To the JSON that a path leads to.
    Json(Box<[Step]>),
    /// From JSON to text: a string to its content.
    Unquote,
    Lookup(Arc<Table>, Missing),
}

/// A lookup table, sorted.
#[derive(Debug)]
pub(super) struct Table(Box<[(Box<str>, Box<str>)]>);

/// What becomes of a value that a table does not have.
#[derive(Debug)]
pub(super) enum Missing {
    Refuse,
    Keep,
    Text(Box<str>),
}

impl Table {
    pub(super) fn new<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut rows: Vec<(Box<str>, Box<str>)> =
            entries.map(|(from, to)| (from.into(), to.into())).collect();
        rows.sort();
        Self(rows.into())
    }

    fn get(&self, value: &[u8]) -> Option<&str> {
        let rows = &self.0;
        let place = rows.binary_search_by(|(from, _)| from.as_bytes().cmp(value));
        Some(&rows.get(place.ok()?)?.1)
    }
}

impl Op {
    pub(super) fn apply<'t>(
        &self,
        part: Part<'t>,
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, ValueError> {
        if let Self::Default(text) = self {
            return Ok(match part {
                Part::Null => append(scratch, text.as_bytes()),
                part => part,
            });
        }
        let Some(bytes) = part.resolve(scratch) else {
            return Ok(part);
        };
        match self {
            Self::Default(_) => Ok(part),
            Self::Boolean => match bytes {
                b"t" => Ok(Part::Row(b"true")),
                b"f" => Ok(Part::Row(b"false")),
                _ => Err(ValueError::NotBoolean),
            },
            Self::Unhex => unhex(&part, scratch),
            Self::Base64 => base64(&part, scratch),
            Self::Lower => case(part, scratch, Case::Lower),
            Self::Upper => case(part, scratch, Case::Upper),
            Self::Before(separator) => {
                let end = find(bytes, separator.as_bytes()).unwrap_or(bytes.len());
                Ok(sub(part, 0..end))
            }
            Self::After(separator) => {
                let length = bytes.len();
                let found = find(bytes, separator.as_bytes());
                let start = found.map_or(0, |at| at + separator.len());
                Ok(sub(part, start..length))
            }
            Self::Replace(old, new) => Ok(replace(part, scratch, old.as_bytes(), new.as_bytes())),
            Self::Json(path) => {
                let found = json::find(bytes, path).map_err(|_| ValueError::NotJson)?;
                Ok(match found {
                    Some(range) if bytes.get(range.clone()) == Some(b"null") => Part::Null,
                    Some(range) => sub(part, range),
                    None => Part::Null,
                })
            }
            Self::Unquote => unquote(part, scratch),
            Self::Lookup(table, missing) => match (table.get(bytes), missing) {
                (Some(text), _) => Ok(append(scratch, text.as_bytes())),
                (None, Missing::Text(text)) => Ok(append(scratch, text.as_bytes())),
                (None, Missing::Keep) => Ok(part),
                (None, Missing::Refuse) => Err(ValueError::NotInTable),
            },
        }
    }
}

fn append<'t>(scratch: &mut Vec<u8>, bytes: &[u8]) -> Part<'t> {
    let start = scratch.len();
    scratch.extend_from_slice(bytes);
    Part::since(start, scratch)
}

/// A range of a part, by its own bytes.
fn sub(part: Part<'_>, range: Range<usize>) -> Part<'_> {
    match part {
        Part::Row(bytes) => Part::Row(bytes.get(range).unwrap_or_default()),
        Part::Scratch(whole) => Part::Scratch(whole.start + range.start..whole.start + range.end),
        other => other,
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
    fill: impl FnOnce(&[u8], &mut [u8]) -> Result<(), ValueError>,
) -> Result<Part<'t>, ValueError> {
    let start = scratch.len();
    scratch.resize(start + length, 0);
    let (before, made) = scratch.split_at_mut(start);
    fill(part.resolve(before).unwrap_or_default(), made)?;
    Ok(Part::Scratch(start..start + length))
}

fn unhex<'t>(part: &Part<'_>, scratch: &mut Vec<u8>) -> Result<Part<'t>, ValueError> {
    let digits = match part.resolve(scratch) {
        Some([b'\\', b'x', digits @ ..]) if digits.len() % 2 == 0 => digits.len(),
        _ => return Err(ValueError::NotHex),
    };
    fill(part, digits / 2, scratch, |text, made| {
        let digits = text.get(2..).unwrap_or_default();
        for (pair, byte) in digits.chunks_exact(2).zip(made) {
            let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                return Err(ValueError::NotHex);
            };
            *byte = (high << 4 | low) as u8;
        }
        Ok(())
    })
}

/// RFC 4648, section 4: the standard alphabet, with padding.
pub(crate) fn base64<'t>(part: &Part<'_>, scratch: &mut Vec<u8>) -> Result<Part<'t>, ValueError> {
    let length = part.resolve(scratch).map_or(0, <[u8]>::len);
    fill(part, length.div_ceil(3) * 4, scratch, |bytes, encoded| {
        // The slice has the encoded length, the only thing that can fail.
        let written = STANDARD.encode_slice(bytes, encoded);
        debug_assert_eq!(written.ok(), Some(length.div_ceil(3) * 4));
        Ok(())
    })
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
            Part::Row(bytes) => append(scratch, bytes),
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
    let length = std::str::from_utf8(bytes)
        .map_err(|_| ValueError::NotUtf8)?
        .len();
    let start = scratch.len();
    let mut at = 0;
    while at < length {
        let rest = part.resolve(scratch).and_then(|bytes| bytes.get(at..));
        let Some(c) = rest.and_then(first_char) else {
            return Err(ValueError::NotUtf8);
        };
        at += c.len_utf8();
        let mut push = |c: char| {
            scratch.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        };
        match case {
            Case::Lower => c.to_lowercase().for_each(&mut push),
            Case::Upper => c.to_uppercase().for_each(&mut push),
        }
    }
    Ok(Part::since(start, scratch))
}

/// The first character of a UTF-8 text, without a look at the rest.
fn first_char(bytes: &[u8]) -> Option<char> {
    let length = match bytes.first()? {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    };
    std::str::from_utf8(bytes.get(..length)?)
        .ok()?
        .chars()
        .next()
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
            copy(&part, from..end, scratch);
            return Part::since(start, scratch);
        };
        copy(&part, from..from + at, scratch);
        scratch.extend_from_slice(new);
        from += at + old.len();
    }
}

/// Appends a range of a part.
fn copy(part: &Part<'_>, range: Range<usize>, scratch: &mut Vec<u8>) {
    match sub(part.clone(), range) {
        Part::Row(bytes) => scratch.extend_from_slice(bytes),
        Part::Scratch(range) => scratch.extend_from_within(range),
        _ => {}
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
        return Ok(sub(part, 1..end));
    }
    let start = scratch.len();
    match &part {
        Part::Row(bytes) => json::unescape(bytes, scratch),
        Part::Scratch(range) => json::unescape_within(scratch, range.clone()),
        _ => Ok(()),
    }
    .map_err(|_| ValueError::NotJson)?;
    Ok(Part::since(start, scratch))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let gone = Op::Replace(".".into(), "".into());
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
        let table = Arc::new(Table::new(rows.into_iter()));
        let with = |missing| Op::Lookup(Arc::clone(&table), missing);
        texts(
            &with(Missing::Refuse),
            &[("a", "1"), ("order.placed", "orders"), ("", "empty")],
        );
        assert_eq!(
            applied(&with(Missing::Refuse), b"b"),
            Err(ValueError::NotInTable)
        );
        texts(&with(Missing::Keep), &[("b", "b"), ("a", "1")]);
        texts(&with(Missing::Text("z".into())), &[("b", "z"), ("a", "1")]);
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
