//! Texts of an `hstore`: `"a"=>"1", "b"=>NULL`.

use super::json;
use crate::value::Malformed;

pub(crate) fn parse(text: &str) -> Result<Vec<(String, Option<String>)>, Malformed> {
    let mut entries = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let key;
        (key, rest) = quoted(rest)?;
        rest = rest.strip_prefix("=>").ok_or(Malformed)?;
        let value;
        (value, rest) = match rest.strip_prefix("NULL") {
            Some(rest) => (None, rest),
            None => quoted(rest).map(|(value, rest)| (Some(value), rest))?,
        };
        entries.push((key, value));
        if rest.is_empty() {
            break;
        }
        rest = rest.strip_prefix(", ").ok_or(Malformed)?;
    }
    Ok(entries)
}

fn quoted(text: &str) -> Result<(String, &str), Malformed> {
    let text = text.strip_prefix('"').ok_or(Malformed)?;
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, text.get(at + 1..).unwrap_or_default())),
            '\\' => value.push(chars.next().ok_or(Malformed)?.1),
            c => value.push(c),
        }
    }
    Err(Malformed)
}

/// As JSON, as Jackson writes it to characters: nothing but quotes, backslashes and controls is
/// escaped.
pub(crate) fn json(entries: &[(String, Option<String>)]) -> String {
    let mut out = Vec::new();
    let mut text = String::from("{");
    for (at, (key, value)) in entries.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        push(key, &mut out, &mut text);
        text.push(':');
        match value {
            Some(value) => push(value, &mut out, &mut text),
            None => text.push_str("null"),
        }
    }
    text.push('}');
    text
}

fn push(value: &str, scratch: &mut Vec<u8>, text: &mut String) {
    text.push('"');
    for c in value.chars() {
        if u32::from(c) > 0xffff {
            text.push(c);
            continue;
        }
        scratch.clear();
        json::string(c.encode_utf8(&mut [0; 4]), scratch);
        let escaped = std::str::from_utf8(scratch).unwrap_or_default();
        text.push_str(escaped.get(1..escaped.len() - 1).unwrap_or_default());
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_their_json() {
        let entries = parse(r#""a"=>"1", "b"=>NULL, "c d"=>"x\"y😀""#).unwrap();
        assert_eq!(json(&entries), r#"{"a":"1","b":null,"c d":"x\"y😀"}"#);
        assert_eq!(parse(""), Ok(Vec::new()));
        for text in [
            "a=>1",
            "\"a\"",
            "\"a\"=>",
            "\"a\"=>\"b",
            "\"a\"=>\"b\",",
            "\"a\"=>\"b\"x",
        ] {
            assert_eq!(parse(text), Err(Malformed), "{text}");
        }
    }
}
