//! Writes values as text, byte for byte as Kafka Connect's converters do.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::options::JsonOptions;
use super::schema::{CONNECT_DATE, DECIMAL, Data, Schema, SchemaType};
use super::{java, temporal};
use crate::value::decimal::Decimal;
use crate::value::json::short_escape;

/// The Java code whose text is reproduced.
#[derive(Clone, Copy)]
pub(super) enum Style {
    /// Kafka Connect's `JsonConverter`.
    Json(JsonOptions),
    /// `Values.convertToString`, which `SimpleHeaderConverter` calls: similar to JSON.
    Simple,
    /// `value.toString()`, which `StringConverter` calls. Bytes become base64; Java writes the
    /// address of an object.
    Java,
}

pub(super) const OBJECT: [&str; 3] = ["{", ",", "}"];

impl Style {
    /// Appends a value to `out`. `embedded`: the value is within another.
    pub(super) fn value(
        self,
        schema: Option<&Schema>,
        data: &Data<'_>,
        embedded: bool,
        out: &mut Vec<u8>,
    ) {
        match data {
            Data::Null => match self.replacement_of_null(schema) {
                Some(default) => self.value(schema, default, embedded, out),
                None => push("null", out),
            },
            Data::Boolean(it) => push(if *it { "true" } else { "false" }, out),
            Data::Int(it) => print(*it, out),
            Data::Float(it) => self.number(&java::float_text(*it), out),
            Data::Double(it) => self.number(&java::double_text(*it), out),
            Data::Text(it) => self.string(it, embedded, out),
            Data::Bytes(it) => self.string(&STANDARD.encode(it), embedded, out),
            Data::Decimal(it) => self.decimal(schema, it, out),
            Data::Instant(it) => self.instant(schema, *it, out),
            Data::List(items) => self.list(schema, items, out),
            Data::Map(entries) => self.map(entries, out),
            Data::Struct(values) => self.structure(schema, values, out),
        }
    }

    fn replacement_of_null(self, schema: Option<&Schema>) -> Option<&Data<'static>> {
        match self {
            Self::Json(options) if options.replace_null_with_default => schema?.default.as_ref(),
            _ => None,
        }
    }

    fn decimal(self, schema: Option<&Schema>, number: &Decimal, out: &mut Vec<u8>) {
        let is_decimal = schema.is_none_or(|schema| schema.is(DECIMAL));
        match self {
            Self::Json(options) if !options.decimal_numbers || !is_decimal => {
                string(&STANDARD.encode(number.unscaled_bytes()), out);
            }
            _ => push(&number.text(), out),
        }
    }

    fn instant(self, schema: Option<&Schema>, millis: i64, out: &mut Vec<u8>) {
        match self {
            Self::Json(_) if schema.is_some_and(|schema| schema.is(CONNECT_DATE)) => {
                print(millis.div_euclid(temporal::DAY_MILLIS), out);
            }
            Self::Json(_) => print(millis, out),
            Self::Simple => push(&temporal::connect_text(millis), out),
            Self::Java => push(&temporal::date_text(millis), out),
        }
    }

    fn list(self, schema: Option<&Schema>, items: &[Data<'_>], out: &mut Vec<u8>) {
        let item = match schema.map(|schema| &schema.kind) {
            Some(SchemaType::Array(item)) => Some(&**item),
            _ => None,
        };
        let comma = if let Self::Java = self { ", " } else { "," };
        sequence(items, ["[", comma, "]"], out, |data, out| {
            self.value(item, data, true, out);
        });
    }

    fn map(self, entries: &[(String, Option<String>)], out: &mut Vec<u8>) {
        match self {
            Self::Json(_) => map(entries, string, out),
            Self::Simple => map(entries, simple, out),
            Self::Java => sequence(entries, ["{", ", ", "}"], out, |(key, value), out| {
                push(key, out);
                out.push(b'=');
                push(value.as_deref().unwrap_or("null"), out);
            }),
        }
    }

    fn structure(self, schema: Option<&Schema>, values: &[Data<'_>], out: &mut Vec<u8>) {
        let fields = fields(schema).iter().zip(values);
        if let Self::Java = self {
            let set = fields.filter(|(_, value)| !value.is_null());
            let around = ["Struct{", ",", "}"];
            return sequence(set, around, out, |((name, schema), value), out| {
                push(name, out);
                out.push(b'=');
                self.value(Some(schema), value, true, out);
            });
        }
        sequence(fields, OBJECT, out, |((name, schema), value), out| {
            self.string(name, true, out);
            out.push(b':');
            self.value(Some(schema), value, true, out);
        });
    }

    fn string(self, text: &str, embedded: bool, out: &mut Vec<u8>) {
        match self {
            Self::Json(_) => string(text, out),
            Self::Simple if embedded => simple(text, out),
            Self::Simple | Self::Java => push(text, out),
        }
    }

    /// Appends a number. Jackson writes NaN and the infinities in quotes.
    fn number(self, text: &str, out: &mut Vec<u8>) {
        match self {
            Self::Json(_) if !text.ends_with(|c: char| c.is_ascii_digit()) => string(text, out),
            _ => push(text, out),
        }
    }
}

fn push(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(text.as_bytes());
}

fn print(number: i64, out: &mut Vec<u8>) {
    // Writing to a Vec does not fail.
    let _ = write!(out, "{number}");
}

/// Appends the items with `open` before, `separator` between and `close` after them.
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

/// Appends a map as a JSON object; `string` writes its keys and values.
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

/// Returns the fields of a struct's schema.
fn fields(schema: Option<&Schema>) -> &[(String, Schema)] {
    match schema.map(|schema| &schema.kind) {
        Some(SchemaType::Struct(fields)) => fields,
        _ => &[],
    }
}

/// Appends a text in quotes, with escapes for quotes and backslashes only.
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

/// Appends a string as Jackson writes it to bytes: characters beyond the BMP become two escapes,
/// other characters beyond ASCII stay as they are.
pub(super) fn string(text: &str, out: &mut Vec<u8>) {
    // The first byte of a character beyond the BMP is 0xF0 or higher.
    escaped(text, 0xf0, out);
}

/// Appends a string as Jackson writes it to characters, with escapes for quotes, backslashes and
/// control characters only.
pub(super) fn characters(text: &str, out: &mut Vec<u8>) {
    escaped(text, 0xff, out);
}

/// Appends a string in quotes, with escapes for characters whose first UTF-8 byte is at least
/// `high`.
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
        let item = Schema::new(SchemaType::Struct(vec![(
            "b".to_owned(),
            Schema::new(SchemaType::Int32),
        )]));
        let schema = Schema::new(SchemaType::Array(Box::new(item)));
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
