//! Writes numbers, bytes and texts as JSON, on one line and safe for a terminal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use walrelay_observe::is_hidden;

/// Appends a number, or null.
pub(crate) fn number<T: ToString>(out: &mut Vec<u8>, value: Option<T>) {
    match value {
        Some(value) => out.extend_from_slice(value.to_string().as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends bytes: a string if they are UTF-8, else `{"base64":"…"}`; null for `None`.
pub(crate) fn bytes(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value.map(std::str::from_utf8) {
        None => out.extend_from_slice(b"null"),
        Some(Ok(text)) => string(out, text),
        Some(Err(_)) => {
            out.extend_from_slice(b"{\"base64\":\"");
            let encoded = STANDARD.encode(value.unwrap_or_default());
            out.extend_from_slice(encoded.as_bytes());
            out.extend_from_slice(b"\"}");
        }
    }
}

/// Appends a string. Quotes, backslashes and controls below U+0020 are escaped (RFC 8259, section
/// 7). Other hidden characters are escaped as well, because lines are shown in terminals.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text;
    let special = |c: char| is_hidden(c) || c == '"' || c == '\\';
    while let Some(at) = rest.find(special) {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let mut tail = rest[at..].chars();
        let c = tail.next().unwrap_or_default();
        rest = tail.as_str();
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            c => out.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes()),
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_is_kept_and_controls_are_escaped() {
        let text: String = (0..0x300)
            .filter_map(char::from_u32)
            .chain("\u{2028}😀".chars())
            .collect();
        let mut out = Vec::new();
        string(&mut out, &text);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        assert!(!String::from_utf8(out).unwrap().chars().any(is_hidden));
    }
}
