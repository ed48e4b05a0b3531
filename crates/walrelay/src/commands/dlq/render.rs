//! Dead letters as people and programs see them.

use std::borrow::Cow;
use std::io::{self, Write};

use walrelay_kafka_sink::dlq::{DlqRecord, Listed, Outcome};

use crate::commands::units::columns;
use crate::json;

/// What is shown beside what always is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Columns {
    pub(super) slot: bool,
    pub(super) status: bool,
    pub(super) key: bool,
}

/// What became of a dead letter, in a word.
pub(super) fn status(outcome: Option<Outcome>) -> &'static str {
    outcome.map_or("open", Outcome::name)
}

/// Lines up columns. Keeps every row until it is written.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(columns: Columns) -> Self {
        let mut head = vec!["ID", "CLASS", "COMMITTED", "TABLE", "TOPIC", "EVENT ID"];
        let more = [
            (columns.slot, "SLOT"),
            (columns.status, "STATUS"),
            (columns.key, "KEY"),
            (true, "CAUSE"),
        ];
        head.extend(
            more.iter()
                .filter(|(wanted, _)| *wanted)
                .map(|(_, name)| name),
        );
        Self {
            rows: vec![head.into_iter().map(str::to_owned).collect()],
        }
    }

    pub(super) fn add(&mut self, columns: Columns, listed: &Listed, record: &DlqRecord) {
        let mut row = vec![
            record.id.to_string(),
            printable(&record.class),
            optional(record.commit_time.as_deref()),
            optional(record.table.as_deref()),
            optional(record.topic.as_deref()),
            optional(record.event_id.as_deref().map(text).as_deref()),
        ];
        if columns.slot {
            row.push(printable(&record.slot));
        }
        if columns.status {
            row.push(status(listed.outcome).to_owned());
        }
        if columns.key {
            row.push(optional(record.key.as_deref().map(text).as_deref()));
        }
        row.push(optional(record.cause.as_deref()));
        self.rows.push(row);
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        columns(&self.rows, out)
    }
}

/// One dead letter, for people.
pub(super) fn describe(out: &mut dyn Write, listed: &Listed, record: &DlqRecord) -> io::Result<()> {
    let value = match (record.omitted_bytes, &record.value) {
        (Some(bytes), _) => format!("left out, {bytes} bytes"),
        (None, Some(value)) => format!("{} bytes", value.len()),
        (None, None) => "null".to_owned(),
    };
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let lines = [
        ("letter", record.id.to_string()),
        ("slot", record.slot.clone()),
        ("status", status(listed.outcome).to_owned()),
        ("class", record.class.clone()),
        ("cause", optional(record.cause.as_deref())),
        ("table", optional(record.table.as_deref())),
        ("transaction", number(record.xid.map(i64::from))),
        ("committed", optional(record.commit_time.as_deref())),
        (
            "event id",
            optional(record.event_id.as_deref().map(text).as_deref()),
        ),
        ("topic", optional(record.topic.as_deref())),
        ("partition", number(record.partition.map(i64::from))),
        ("timestamp", number(record.timestamp_ms)),
        (
            "lies at",
            format!(
                "partition {}, offset {}",
                record.position.partition, record.position.offset
            ),
        ),
        ("key", optional(record.key.as_deref().map(text).as_deref())),
        ("value", value),
    ];
    for (name, value) in lines {
        writeln!(out, "{name:<12} {}", printable(&value))?;
    }
    for (name, value) in &record.headers {
        let value = value.as_deref().map_or(Cow::Borrowed("null"), text);
        writeln!(
            out,
            "header       {}: {}",
            printable(name),
            printable(&value)
        )?;
    }
    Ok(())
}

/// What a line of JSON has beside what all have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fields {
    pub(super) key: bool,
    pub(super) headers: bool,
    pub(super) value: bool,
}

/// One object on a line.
pub(super) fn line(status: &str, record: &DlqRecord, fields: Fields) -> Vec<u8> {
    let lsn = record.id.to_string();
    let lsn = lsn.split(' ').next().unwrap_or_default();
    let mut line = Line(b"{".to_vec());
    line.text("slot", Some(&record.slot));
    line.text("lsn", Some(lsn));
    line.number("row", Some(record.id.row));
    line.text("status", Some(status));
    line.text("class", Some(&record.class));
    line.text("cause", record.cause.as_deref());
    line.text("table", record.table.as_deref());
    line.number("xid", record.xid);
    line.text("commit_time", record.commit_time.as_deref());
    line.bytes("event_id", record.event_id.as_deref());
    line.text("topic", record.topic.as_deref());
    line.number("partition", record.partition);
    line.number("timestamp_ms", record.timestamp_ms);
    line.number("omitted_bytes", record.omitted_bytes);
    line.number("letter_partition", Some(record.position.partition));
    line.number("letter_offset", Some(record.position.offset));
    if fields.key {
        line.bytes("key", record.key.as_deref());
    }
    if fields.headers {
        line.headers(&record.headers);
    }
    if fields.value {
        line.bytes("value", record.value.as_deref());
    }
    line.0.extend_from_slice(b"}\n");
    line.0
}

struct Line(Vec<u8>);

impl Line {
    fn name(&mut self, name: &str) -> &mut Vec<u8> {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        json::string(&mut self.0, name);
        self.0.push(b':');
        &mut self.0
    }

    fn bytes(&mut self, name: &str, value: Option<&[u8]>) {
        json::bytes(self.name(name), value);
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        self.bytes(name, value.map(str::as_bytes));
    }

    fn number<T: ToString>(&mut self, name: &str, value: Option<T>) {
        json::number(self.name(name), value);
    }

    fn headers(&mut self, headers: &[(String, Option<Vec<u8>>)]) {
        let out = self.name("headers");
        out.push(b'[');
        for (index, (name, value)) in headers.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"[" } else { b",[" });
            json::string(out, name);
            out.push(b',');
            json::bytes(out, value.as_deref());
            out.push(b']');
        }
        out.push(b']');
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn optional(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), printable)
}

/// It comes from rows and from servers; a terminal is not to obey it.
fn printable(text: &str) -> String {
    let safe = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use walrelay_kafka_sink::dlq::{DlqRecordId, Position};
    use walrelay_sink::EventPosition;

    use super::*;

    fn record() -> (Listed, DlqRecord) {
        let id = EventPosition { lsn: 16, row: 2 };
        let position = Position {
            partition: 1,
            offset: 7,
        };
        let listed = Listed {
            name: DlqRecordId {
                slot: Arc::from("orders"),
                id,
            },
            position,
            outcome: Some(Outcome::Dropped),
        };
        let record = DlqRecord {
            id,
            slot: "orders".into(),
            class: "oversize".into(),
            cause: Some("too\u{1b}[31mlarge".into()),
            xid: Some(771),
            commit_time: Some("2026-01-02T03:04:05.678900Z".into()),
            table: Some("public.outbox".into()),
            event_id: Some(b"\xff".to_vec()),
            topic: None,
            partition: None,
            timestamp_ms: Some(5),
            omitted_bytes: None,
            key: Some(b"row-key".to_vec()),
            value: Some(b"row-value".to_vec()),
            headers: vec![
                ("id".into(), Some(b"row-header".to_vec())),
                ("n".into(), None),
            ],
            position,
        };
        (listed, record)
    }

    fn table(columns: Columns) -> String {
        let (listed, record) = record();
        let mut table = Table::new(columns);
        table.add(columns, &listed, &record);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_table_lines_up_and_shows_no_row() {
        assert_eq!(
            table(Columns::default()),
            "ID      CLASS     COMMITTED                    TABLE          TOPIC  EVENT ID  CAUSE\n\
             0/10 2  oversize  2026-01-02T03:04:05.678900Z  public.outbox  -      \u{fffd}         \
             too [31mlarge\n"
        );
        let all = table(Columns {
            slot: true,
            status: true,
            key: true,
        });
        assert!(all.contains("orders  dropped  row-key  too"), "{all}");
        assert!(!all.contains("row-value"), "{all}");
    }

    #[test]
    fn a_line_has_what_was_asked_for() {
        let (_, record) = record();
        let parsed = |fields| -> Value {
            let line = line("open", &record, fields);
            let line = String::from_utf8(line).unwrap();
            assert_eq!(line.lines().count(), 1);
            serde_json::from_str(&line).unwrap()
        };
        let mut expected = json!({
            "slot": "orders", "lsn": "0/10", "row": 2, "status": "open", "class": "oversize",
            "cause": "too\u{1b}[31mlarge", "table": "public.outbox", "xid": 771,
            "commit_time": "2026-01-02T03:04:05.678900Z", "event_id": {"base64": "/w=="},
            "topic": null, "partition": null, "timestamp_ms": 5, "omitted_bytes": null,
            "letter_partition": 1, "letter_offset": 7,
        });
        assert_eq!(parsed(Fields::default()), expected);
        expected["key"] = json!("row-key");
        expected["headers"] = json!([["id", "row-header"], ["n", null]]);
        expected["value"] = json!("row-value");
        let all = Fields {
            key: true,
            headers: true,
            value: true,
        };
        assert_eq!(parsed(all), expected);
    }

    #[test]
    fn a_description_has_headers_and_no_value() {
        let (listed, record) = record();
        let mut out = Vec::new();
        describe(&mut out, &listed, &record).unwrap();
        let shown = String::from_utf8(out).unwrap();
        for words in [
            "status       dropped",
            "key          row-key",
            "id: row-header",
            "n: null",
            "9 bytes",
        ] {
            assert!(shown.contains(words), "{words} is not in {shown}");
        }
        assert!(
            !shown.contains("row-value") && !shown.contains('\u{1b}'),
            "{shown}"
        );
        let omitted = DlqRecord {
            omitted_bytes: Some(77),
            value: None,
            ..record
        };
        let mut out = Vec::new();
        describe(&mut out, &listed, &omitted).unwrap();
        assert!(
            String::from_utf8(out)
                .unwrap()
                .contains("left out, 77 bytes")
        );
    }
}
