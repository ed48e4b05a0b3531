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

/// As JSON, as Jackson writes it to characters.
pub(crate) fn json(entries: &[(String, Option<String>)]) -> String {
    let mut out = Vec::new();
    json::map(entries, json::characters, &mut out);
    String::from_utf8_lossy(&out).into_owned()
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
