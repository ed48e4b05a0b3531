//! One record as one line of JSON.

use walrelay_sink::Record;

/// Appends the line of `record`, with its newline.
pub(super) fn write(out: &mut Vec<u8>, record: &Record<'_>) {
    out.extend_from_slice(b"{\"topic\":");
    string(out, record.topic);
    out.extend_from_slice(b",\"partition\":");
    number(out, record.partition);
    out.extend_from_slice(b",\"timestamp_ms\":");
    number(out, record.timestamp_ms);
    out.extend_from_slice(b",\"key\":");
    bytes(out, record.key);
    out.extend_from_slice(b",\"value\":");
    bytes(out, record.value);
    out.extend_from_slice(b",\"headers\":[");
    for (index, header) in record.headers.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"[" } else { b",[" });
        string(out, header.name);
        out.push(b',');
        bytes(out, header.value);
        out.push(b']');
    }
    out.extend_from_slice(b"]}\n");
}

fn number<T: ToString>(out: &mut Vec<u8>, value: Option<T>) {
    match value {
        Some(value) => out.extend_from_slice(value.to_string().as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

fn bytes(out: &mut Vec<u8>, value: Option<&[u8]>) {
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
fn string(out: &mut Vec<u8>, text: &str) {
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
    use serde_json::{Value, json};
    use walrelay_sink::Header;

    use super::*;

    fn line(record: &Record<'_>) -> Value {
        let mut out = Vec::new();
        write(&mut out, record);
        assert_eq!(out.pop(), Some(b'\n'));
        assert!(!out.contains(&b'\n'));
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn a_line_tells_null_text_and_bytes_apart() {
        let headers = [
            Header {
                name: "id",
                value: Some(b"7"),
            },
            Header {
                name: "id",
                value: None,
            },
            Header {
                name: "raw",
                value: Some(b"\xff"),
            },
        ];
        let record = Record {
            topic: "t",
            partition: Some(3),
            timestamp_ms: Some(-1),
            key: Some(b""),
            value: Some(br#"{"a":"b"}"#),
            headers: &headers,
        };
        assert_eq!(
            line(&record),
            json!({
                "topic": "t", "partition": 3, "timestamp_ms": -1, "key": "",
                "value": "{\"a\":\"b\"}",
                "headers": [["id", "7"], ["id", null], ["raw", {"base64": "/w=="}]],
            })
        );
        let bare = Record {
            topic: "t",
            partition: None,
            timestamp_ms: None,
            key: None,
            value: None,
            headers: &[],
        };
        assert_eq!(
            line(&bare),
            json!({
                "topic": "t", "partition": null, "timestamp_ms": null, "key": null, "value": null,
                "headers": [],
            })
        );
    }

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
