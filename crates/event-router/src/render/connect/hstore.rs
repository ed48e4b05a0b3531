//! Parses the text of an `hstore`: `"a"=>"1", "b"=>NULL`.

use super::text;
use crate::value::Malformed;
use crate::value::cursor::Cursor;

pub(crate) fn parse(text: &str) -> Result<Vec<(String, Option<String>)>, Malformed> {
    let mut entries = Vec::new();
    each(text, |key, value| entries.push((key, value)))?;
    Ok(entries)
}

/// Calls `entry` with the key and value of each entry.
pub(crate) fn each(
    text: &str,
    mut entry: impl FnMut(String, Option<String>),
) -> Result<(), Malformed> {
    let mut first = true;
    let mut text = Cursor::new(text.trim_start());
    while !text.rest.is_empty() {
        if !std::mem::take(&mut first) && !text.take(", ") {
            return Err(Malformed);
        }
        let key = text.backslashed().ok_or(Malformed)?;
        if !text.take("=>") {
            return Err(Malformed);
        }
        let value = if text.take("NULL") {
            None
        } else {
            Some(text.backslashed().ok_or(Malformed)?)
        };
        entry(key, value);
    }
    Ok(())
}

/// Writes the entries as a JSON object, as Jackson does.
pub(crate) fn json(entries: &[(String, Option<String>)]) -> String {
    let mut out = Vec::new();
    text::map(entries, text::characters, &mut out);
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
