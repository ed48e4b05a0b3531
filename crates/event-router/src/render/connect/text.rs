//! Values as texts, to the byte.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::options::JsonOptions;
use super::schema::{CONNECT_DATE, DECIMAL, Data, Kind, Schema};
use super::{java, temporal};
use crate::value::json::short_escape;

/// The author of a text.
#[derive(Clone, Copy)]
pub(super) enum Style {
    /// `JsonConverter`.
    Json(JsonOptions),
    /// `Values.convertToString` for `SimpleHeaderConverter`: much like JSON.
    Simple,
    /// `value.toString()` for `StringConverter`. Bytes are base64, where Java writes the address of
    /// an object.
    Java,
}

pub(super) const OBJECT: [&str; 3] = ["{", ",", "}"];

impl Style {
    /// Appends a value, which may be `embedded` in another.
    pub(super) fn value(
        self,
        schema: Option<&Schema>,
        data: &Data<'_>,
        embedded: bool,
        out: &mut Vec<u8>,
    ) {
        let text = |text: &str, out: &mut Vec<u8>| out.extend_from_slice(text.as_bytes());
        match (data, self) {
            (Data::Null, Self::Json(options)) if options.replace_null_with_default => {
                match schema.and_then(|schema| schema.default.as_ref()) {
                    Some(default) => self.value(schema, default, embedded, out),
                    None => text("null", out),
                }
            }
            (Data::Null, _) => text("null", out),
            (Data::Boolean(true), _) => text("true", out),
            (Data::Boolean(false), _) => text("false", out),
            (Data::Int(it), _) => print(*it, out),
            (Data::Float(it), _) => self.number(&java::float_text(*it), out),
            (Data::Double(it), _) => self.number(&java::double_text(*it), out),
            (Data::Text(it), _) => self.string(it, embedded, out),
            (Data::Bytes(it), _) => self.string(&STANDARD.encode(it), embedded, out),
            (Data::Decimal(it), Self::Json(options))
                if !options.decimal_numbers || !schema.is_none_or(|schema| schema.is(DECIMAL)) =>
            {
                string(&STANDARD.encode(it.unscaled_bytes()), out);
            }
            (Data::Decimal(it), _) => text(&it.text(), out),
            (Data::Instant(millis), Self::Json(_)) => {
                let days = schema.is_some_and(|schema| schema.is(CONNECT_DATE));
                let unit = if days { temporal::DAY_MILLIS } else { 1 };
                print(millis.div_euclid(unit), out);
            }
            (Data::Instant(millis), Self::Simple) => text(&temporal::connect_text(*millis), out),
            (Data::Instant(millis), Self::Java) => text(&temporal::date_text(*millis), out),
            (Data::List(items), _) => {
                let item = match schema.map(|schema| &schema.kind) {
                    Some(Kind::Array(item)) => Some(&**item),
                    _ => None,
                };
                let comma = if let Self::Java = self { ", " } else { "," };
                sequence(items, ["[", comma, "]"], out, |data, out| {
                    self.value(item, data, true, out);
                });
            }
            (Data::Map(entries), Self::Json(_)) => map(entries, string, out),
            (Data::Map(entries), Self::Simple) => map(entries, simple, out),
            (Data::Map(entries), Self::Java) => {
                sequence(entries, ["{", ", ", "}"], out, |(key, value), out| {
                    text(key, out);
                    out.push(b'=');
                    text(value.as_deref().unwrap_or("null"), out);
                });
            }
            (Data::Struct(values), Self::Java) => {
                let set = fields(schema).iter().zip(values);
                let set = set.filter(|(_, value)| !value.is_null());
                sequence(
                    set,
                    ["Struct{", ",", "}"],
                    out,
                    |((name, schema), value), out| {
                        text(name, out);
                        out.push(b'=');
                        self.value(Some(schema), value, true, out);
                    },
                );
            }
            (Data::Struct(values), _) => {
                let values = fields(schema).iter().zip(values);
                sequence(values, OBJECT, out, |((name, schema), value), out| {
                    self.string(name, true, out);
                    out.push(b':');
                    self.value(Some(schema), value, true, out);
                });
            }
        }
    }

    fn string(self, text: &str, embedded: bool, out: &mut Vec<u8>) {
        match self {
            Self::Json(_) => string(text, out),
            Self::Simple if embedded => simple(text, out),
            Self::Simple | Self::Java => out.extend_from_slice(text.as_bytes()),
        }
    }

    /// Jackson puts NaN and the infinities in quotes.
    fn number(self, text: &str, out: &mut Vec<u8>) {
        match self {
            Self::Json(_) if !text.ends_with(|c: char| c.is_ascii_digit()) => string(text, out),
            _ => out.extend_from_slice(text.as_bytes()),
        }
    }
}

fn print(number: i64, out: &mut Vec<u8>) {
    // Writing to a Vec does not fail.
    let _ = write!(out, "{number}");
}

/// Writes the items, with texts before, between and behind them.
pub(super) fn sequence<T>(
    items: impl IntoIterator<Item = T>,
    [open, separator, close]: [&str; 3],
    out: &mut Vec<u8>,
    mut write: impl FnMut(T, &mut Vec<u8>),
) {
    let mut before = open;
    for item in items {
        out.extend_from_slice(before.as_bytes());
        write(item, out);
        before = separator;
    }
    if before == open {
        out.extend_from_slice(open.as_bytes());
    }
    out.extend_from_slice(close.as_bytes());
}

/// A map as a JSON object, with `string` for its texts.
pub(super) fn map(
    entries: &[(String, Option<String>)],
    string: fn(&str, &mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    sequence(entries, OBJECT, out, |(key, value), out| {
        string(key, out);
        out.push(b':');
        match value {
            Some(value) => string(value, out),
            None => out.extend_from_slice(b"null"),
        }
    });
}

/// The fields of a struct's schema.
fn fields(schema: Option<&Schema>) -> &[(String, Schema)] {
    match schema.map(|schema| &schema.kind) {
        Some(Kind::Struct(fields)) => fields,
        _ => &[],
    }
}

/// In quotes; only quotes and backslashes are escaped.
fn simple(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// A string as Jackson writes it to bytes: characters beyond the BMP as two escapes, all others that
/// are not ASCII as they are.
pub(super) fn string(text: &str, out: &mut Vec<u8>) {
    // The first byte of a character beyond the BMP is 0xF0 or higher.
    escaped(text, 0xf0, out);
}

/// A string as Jackson writes it to characters: only quotes, backslashes and controls are escaped.
pub(super) fn characters(text: &str, out: &mut Vec<u8>) {
    escaped(text, 0xff, out);
}

/// In quotes, with escapes for the characters whose first byte is `high` or above.
fn escaped(text: &str, high: u8, out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' && byte < high {
            continue;
        }
        out.extend_from_slice(text.as_bytes().get(plain..at).unwrap_or_default());
        if let Some(escape) = short_escape(byte) {
            out.extend_from_slice(&[b'\\', escape]);
            plain = at + 1;
            continue;
        }
        let c = text.get(at..).and_then(|rest| rest.chars().next());
        let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
        plain = at + c.len_utf8();
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04X}");
        }
    }
    out.extend_from_slice(text.as_bytes().get(plain..).unwrap_or_default());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(text: &str) -> String {
        let mut out = Vec::new();
        string(text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn structs_within_lists_have_their_fields() {
        let item = Schema::of(Kind::Struct(vec![(
            "b".to_owned(),
            Schema::of(Kind::Int32),
        )]));
        let schema = Schema::of(Kind::Array(Box::new(item)));
        let data = Data::List(vec![Data::Struct(vec![Data::Int(1)])]);
        for (style, expected) in [
            (Style::Java, "[Struct{b=1}]"),
            (Style::Simple, r#"[{"b":1}]"#),
            (Style::Json(JsonOptions::default()), r#"[{"b":1}]"#),
        ] {
            let mut out = Vec::new();
            style.value(Some(&schema), &data, false, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn strings_are_escaped_as_jackson_does() {
        assert_eq!(quoted("a/é漢"), "\"a/é漢\"");
        assert_eq!(quoted("x😀y"), "\"x\\uD83D\\uDE00y\"");
        assert_eq!(quoted("\"\\\n\r\t\u{8}\u{c}"), r#""\"\\\n\r\t\b\f""#);
        assert_eq!(quoted("\u{1}\u{1f}\u{7f}"), "\"\\u0001\\u001F\u{7f}\"");
        assert_eq!(quoted("😀"), "\"\\uD83D\\uDE00\"");
        assert_eq!(quoted(""), "\"\"");
    }
}
