//! Kafka Connect's `JsonConverter`, to the byte.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::schema::{CONNECT_DATE, DECIMAL, Data, Kind, Schema};
use super::{java, temporal};

/// Options of a `JsonConverter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonOptions {
    /// Whether `{"schema":…,"payload":…}` is around each value (`schemas.enable`).
    pub schemas: bool,
    /// Whether decimals are numbers and not base64 (`decimal.format=NUMERIC`).
    pub decimal_numbers: bool,
    /// Whether null in a field of a struct that has a default is that default
    /// (`replace.null.with.default`).
    pub replace_null_with_default: bool,
}

impl Default for JsonOptions {
    /// Kafka Connect's defaults.
    fn default() -> Self {
        Self {
            schemas: true,
            decimal_numbers: false,
            replace_null_with_default: true,
        }
    }
}

impl JsonOptions {
    /// Everything that stands before the payload, for values of `schema`.
    pub(crate) fn prefix(self, schema: Option<&Schema>, out: &mut Vec<u8>) {
        if self.schemas {
            out.extend_from_slice(b"{\"schema\":");
            match schema {
                Some(schema) => self.schema(schema, None, out),
                None => out.extend_from_slice(b"null"),
            }
            out.extend_from_slice(b",\"payload\":");
        }
    }

    /// Everything that stands after it.
    pub(crate) fn suffix(self, out: &mut Vec<u8>) {
        if self.schemas {
            out.push(b'}');
        }
    }

    /// A schema, as a field of a struct where it has a name.
    fn schema(self, schema: &Schema, field: Option<&str>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":");
        let mut kind = |name: &str| out.extend_from_slice(name.as_bytes());
        match &schema.kind {
            Kind::Boolean => kind("\"boolean\""),
            Kind::Int16 => kind("\"int16\""),
            Kind::Int32 => kind("\"int32\""),
            Kind::Int64 => kind("\"int64\""),
            Kind::Float32 => kind("\"float\""),
            Kind::Float64 => kind("\"double\""),
            Kind::String => kind("\"string\""),
            Kind::Bytes => kind("\"bytes\""),
            Kind::Array(items) => {
                kind("\"array\",\"items\":");
                self.schema(items, None, out);
            }
            Kind::Map => kind(concat!(
                "\"map\",\"keys\":{\"type\":\"string\",\"optional\":false}",
                ",\"values\":{\"type\":\"string\",\"optional\":true}"
            )),
            Kind::Struct(fields) => {
                kind("\"struct\",\"fields\":[");
                separated(fields, b",", out, |(name, schema), out| {
                    self.schema(schema, Some(name), out);
                });
                out.push(b']');
            }
        }
        out.extend_from_slice(b",\"optional\":");
        boolean(schema.optional, out);
        if let Some(name) = &schema.name {
            out.extend_from_slice(b",\"name\":");
            string(name, out);
        }
        if let Some(version) = schema.version {
            out.extend_from_slice(format!(",\"version\":{version}").as_bytes());
        }
        if let Some(doc) = schema.doc {
            out.extend_from_slice(b",\"doc\":");
            string(doc, out);
        }
        if !schema.parameters.is_empty() {
            out.extend_from_slice(b",\"parameters\":{");
            separated(&schema.parameters, b",", out, |(name, value), out| {
                string(name, out);
                out.push(b':');
                string(value, out);
            });
            out.push(b'}');
        }
        if let Some(default) = &schema.default {
            out.extend_from_slice(b",\"default\":");
            self.value(Some(schema), default, out);
        }
        if let Some(field) = field {
            out.extend_from_slice(b",\"field\":");
            string(field, out);
        }
        out.push(b'}');
    }

    /// A value.
    pub(crate) fn value(self, schema: Option<&Schema>, data: &Data<'_>, out: &mut Vec<u8>) {
        let text = |text: &str, out: &mut Vec<u8>| out.extend_from_slice(text.as_bytes());
        match data {
            Data::Null => {
                let default = schema.and_then(|schema| schema.default.as_ref());
                match default.filter(|_| self.replace_null_with_default) {
                    Some(default) => self.value(schema, default, out),
                    None => text("null", out),
                }
            }
            Data::Boolean(it) => boolean(*it, out),
            Data::Int(it) => text(&it.to_string(), out),
            Data::Float(it) => number(&java::float_text(*it), out),
            Data::Double(it) => number(&java::double_text(*it), out),
            Data::Text(it) => string(it, out),
            Data::Bytes(it) => bytes(it, out),
            Data::Decimal(it) => {
                let decimal = schema.is_none_or(|schema| schema.is(DECIMAL));
                if decimal && self.decimal_numbers {
                    text(&it.text(), out);
                } else {
                    bytes(&it.unscaled_bytes(), out);
                }
            }
            Data::Instant(millis) => {
                let days = schema.is_some_and(|schema| schema.is(CONNECT_DATE));
                let count = if days {
                    millis.div_euclid(temporal::DAY_MILLIS)
                } else {
                    *millis
                };
                text(&count.to_string(), out);
            }
            Data::List(items) => {
                let item = match schema.map(|schema| &schema.kind) {
                    Some(Kind::Array(item)) => Some(&**item),
                    _ => None,
                };
                out.push(b'[');
                separated(items, b",", out, |data, out| self.value(item, data, out));
                out.push(b']');
            }
            Data::Map(entries) => map(entries, string, out),
            Data::Struct(values) => {
                out.push(b'{');
                let values = fields(schema).iter().zip(values);
                separated(values, b",", out, |((name, schema), data), out| {
                    string(name, out);
                    out.push(b':');
                    self.value(Some(schema), data, out);
                });
                out.push(b'}');
            }
        }
    }
}

/// Writes each of the items, with a separator between them.
pub(super) fn separated<T>(
    items: impl IntoIterator<Item = T>,
    separator: &[u8],
    out: &mut Vec<u8>,
    mut write: impl FnMut(T, &mut Vec<u8>),
) {
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(separator);
        }
        write(item, out);
    }
}

/// A map as a JSON object, with `string` for its texts.
pub(super) fn map(
    entries: &[(String, Option<String>)],
    string: fn(&str, &mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    out.push(b'{');
    separated(entries, b",", out, |(key, value), out| {
        string(key, out);
        out.push(b':');
        match value {
            Some(value) => string(value, out),
            None => out.extend_from_slice(b"null"),
        }
    });
    out.push(b'}');
}

/// The fields of a struct's schema.
pub(crate) fn fields(schema: Option<&Schema>) -> &[(String, Schema)] {
    match schema.map(|schema| &schema.kind) {
        Some(Kind::Struct(fields)) => fields,
        _ => &[],
    }
}

fn boolean(it: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if it { b"true" } else { b"false" });
}

/// Jackson puts what is no number in quotes.
fn number(text: &str, out: &mut Vec<u8>) {
    if text.ends_with(|c: char| c.is_ascii_digit()) {
        out.extend_from_slice(text.as_bytes());
    } else {
        string(text, out);
    }
}

fn bytes(bytes: &[u8], out: &mut Vec<u8>) {
    string(&STANDARD.encode(bytes), out);
}

/// A string as Jackson writes it to bytes: what is beyond the BMP as two escapes, all else that is
/// not ASCII as it is.
pub(crate) fn string(text: &str, out: &mut Vec<u8>) {
    // The first byte of what is beyond the BMP is 0xF0 or higher.
    escaped(text, 0xf0, out);
}

/// A string as Jackson writes it to characters: nothing but quotes, backslashes and controls is escaped.
pub(super) fn characters(text: &str, out: &mut Vec<u8>) {
    escaped(text, 0xff, out);
}

/// In quotes, with escapes for the characters whose first byte is `high` or above.
fn escaped(text: &str, high: u8, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let unit = |unit: u16, out: &mut Vec<u8>| {
        out.extend_from_slice(b"\\u");
        for shift in [12, 8, 4, 0] {
            let digit = usize::from(unit >> shift & 0xf);
            out.push(HEX.get(digit).copied().unwrap_or(b'0'));
        }
    };
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' && byte < high {
            continue;
        }
        out.extend_from_slice(text.as_bytes().get(plain..at).unwrap_or_default());
        plain = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0xf0.. => {
                let c = text.get(at..).and_then(|rest| rest.chars().next());
                let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
                for half in c.encode_utf16(&mut [0; 2]) {
                    unit(*half, out);
                }
                plain = at + c.len_utf8();
            }
            control => unit(control.into(), out),
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
    fn strings_are_escaped_as_jackson_does() {
        assert_eq!(quoted("a/é漢"), "\"a/é漢\"");
        assert_eq!(quoted("x😀y"), "\"x\\uD83D\\uDE00y\"");
        assert_eq!(quoted("\"\\\n\r\t\u{8}\u{c}"), r#""\"\\\n\r\t\b\f""#);
        assert_eq!(quoted("\u{1}\u{1f}\u{7f}"), "\"\\u0001\\u001F\u{7f}\"");
        assert_eq!(quoted("😀"), "\"\\uD83D\\uDE00\"");
        assert_eq!(quoted(""), "\"\"");
    }
}
