//! Values as Java writes them: `toString` for `StringConverter`, `Values.convertToString` for
//! `SimpleHeaderConverter`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::json::{fields, map, separated};
use super::schema::{Data, Schema};
use super::{java, temporal};

/// `value.toString()`, for what is not null. Bytes are base64, where Java writes the address of an
/// object.
pub(crate) fn to_string(schema: Option<&Schema>, data: &Data<'_>, out: &mut Vec<u8>) {
    match data {
        Data::Instant(millis) => out.extend_from_slice(temporal::date_text(*millis).as_bytes()),
        Data::List(items) => {
            out.push(b'[');
            separated(items, b", ", out, |item, out| to_string(None, item, out));
            out.push(b']');
        }
        Data::Map(entries) => {
            out.push(b'{');
            separated(entries, b", ", out, |(key, value), out| {
                out.extend_from_slice(key.as_bytes());
                out.push(b'=');
                out.extend_from_slice(value.as_deref().unwrap_or("null").as_bytes());
            });
            out.push(b'}');
        }
        Data::Struct(values) => {
            out.extend_from_slice(b"Struct{");
            let set = fields(schema).iter().zip(values);
            let set = set.filter(|(_, value)| !value.is_null());
            separated(set, b",", out, |((name, schema), value), out| {
                out.extend_from_slice(name.as_bytes());
                out.push(b'=');
                to_string(Some(schema), value, out);
            });
            out.push(b'}');
        }
        other => scalar(other, out),
    }
}

/// `Values.convertToString`: much like JSON, for what is not null.
pub(crate) fn simple(schema: Option<&Schema>, data: &Data<'_>, embedded: bool, out: &mut Vec<u8>) {
    let quote = |out: &mut Vec<u8>| {
        if embedded {
            out.push(b'"');
        }
    };
    match data {
        Data::Text(text) if embedded => string(text, out),
        Data::Bytes(_) => {
            quote(out);
            scalar(data, out);
            quote(out);
        }
        Data::Instant(millis) => out.extend_from_slice(temporal::connect_text(*millis).as_bytes()),
        Data::List(items) => {
            out.push(b'[');
            separated(items, b",", out, |item, out| simple(None, item, true, out));
            out.push(b']');
        }
        Data::Map(entries) => map(entries, string, out),
        Data::Struct(values) => {
            out.push(b'{');
            let values = fields(schema).iter().zip(values);
            separated(values, b",", out, |((name, schema), value), out| {
                string(name, out);
                out.push(b':');
                simple(Some(schema), value, true, out);
            });
            out.push(b'}');
        }
        other => scalar(other, out),
    }
}

/// In quotes; only quotes and backslashes are escaped.
fn string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

fn scalar(data: &Data<'_>, out: &mut Vec<u8>) {
    let mut text = |text: &str| out.extend_from_slice(text.as_bytes());
    match data {
        Data::Boolean(it) => text(if *it { "true" } else { "false" }),
        Data::Int(it) => text(&it.to_string()),
        Data::Float(it) => text(&java::float_text(*it)),
        Data::Double(it) => text(&java::double_text(*it)),
        Data::Text(it) => text(it),
        Data::Bytes(it) => text(&STANDARD.encode(it)),
        Data::Decimal(it) => text(&it.text()),
        Data::Null | Data::Instant(_) | Data::List(_) | Data::Map(_) | Data::Struct(_) => {
            text("null");
        }
    }
}
