//! Formats a record as one line of JSON.

use walrelay_sink::Record;

use crate::json::{bytes, number, string};

/// Appends the line of `record`, with a newline.
pub(crate) fn write(out: &mut Vec<u8>, record: &Record<'_>) {
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
    fn a_line_distinguishes_null_text_and_bytes() {
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
            ..Record::default()
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
            ..Record::default()
        };
        assert_eq!(
            line(&bare),
            json!({
                "topic": "t", "partition": null, "timestamp_ms": null, "key": null, "value": null,
                "headers": [],
            })
        );
    }
}
