//! Bytes and texts as JSON, on one line and safe for a terminal.

/// Its digits, or null.
pub(crate) fn number<T: ToString>(out: &mut Vec<u8>, value: Option<T>) {
    match value {
        Some(value) => out.extend_from_slice(value.to_string().as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

/// A string where they are UTF-8, `{"base64":"…"}` where not, null where there are none.
pub(crate) fn bytes(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value.map(std::str::from_utf8) {
        None => out.extend_from_slice(b"null"),
        Some(Ok(text)) => string(out, text),
        Some(Err(_)) => {
            out.extend_from_slice(b"{\"base64\":\"");
            base64(out, value.unwrap_or_default());
            out.extend_from_slice(b"\"}");
        }
    }
}

/// RFC 8259, section 7: quotes, backslashes and controls below U+0020 are escaped. DEL and the C1
/// controls are escaped too, for lines end up in terminals.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text;
    let special = |c: char| c.is_control() || c == '"' || c == '\\';
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

/// RFC 4648, section 4: the standard alphabet, with padding.
fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            out.push(if at <= chunk.len() {
                ALPHABET[(bits >> (18 - 6 * at) & 63) as usize]
            } else {
                b'='
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_survives_and_no_control_does() {
        let text: String = (0..0x300)
            .filter_map(char::from_u32)
            .chain("\u{2028}😀".chars())
            .collect();
        let mut out = Vec::new();
        string(&mut out, &text);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        assert!(
            !String::from_utf8(out)
                .unwrap()
                .chars()
                .any(char::is_control)
        );
    }

    #[test]
    fn base64_as_in_the_rfc() {
        for (bytes, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            base64(&mut out, bytes.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let mut out = Vec::new();
        base64(&mut out, &[0xfb, 0xff]);
        assert_eq!(out, b"+/8=");
    }
}
