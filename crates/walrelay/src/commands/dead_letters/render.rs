//! Formats dead letters as a table, as text and as JSON.

use std::fmt::Write as _;

use walrelay_failure::Failure;
use walrelay_observe::printable;
use walrelay_sink_kind::dead_letters::{DlqRecord, Listed, Outcome};

use crate::commands::print_text;
use crate::commands::terminal::units::Table;
use crate::json;

/// The optional columns of a table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Columns<'a> {
    pub(super) slot: bool,
    pub(super) status: bool,
    pub(super) key: bool,
    /// Where a dead letter goes when it is redriven.
    pub(super) destination: Option<Destination<'a>>,
}

/// The destination of redriven dead letters.
#[derive(Debug, Clone, Copy)]
pub(super) enum Destination<'a> {
    /// The topic of each.
    Own,
    /// One topic for all.
    Topic(&'a str),
}

/// Returns the topic that a redriven dead letter goes to; `None` if it cannot be sent.
fn destination<'a>(record: &'a DlqRecord, destination: Destination<'a>) -> Option<&'a str> {
    let topic = match destination {
        Destination::Own => record.topic.as_deref(),
        Destination::Topic(topic) => Some(topic),
    };
    topic.filter(|_| {
        record.omitted_bytes.is_none() && record.unrestored.is_none() && record.is_exact
    })
}

/// Returns the status of a dead letter: `open`, or its outcome.
pub(super) fn status(outcome: Option<Outcome>) -> &'static str {
    outcome.map_or("open", Outcome::name)
}

/// The cell of a dead letter: `-` for `None`.
type Cell<'a> = Box<dyn Fn(&Listed, &DlqRecord) -> Option<String> + 'a>;

/// A table of dead letters, kept in memory until it is written.
pub(super) struct DlqTable<'a> {
    cells: Vec<Cell<'a>>,
    table: Table,
}

impl<'a> DlqTable<'a> {
    pub(super) fn new(columns: Columns<'a>) -> Self {
        let mut heads = Vec::new();
        let mut cells: Vec<Cell<'a>> = Vec::new();
        let mut add = |shown: bool, head, cell: Cell<'a>| {
            if shown {
                heads.push(head);
                cells.push(cell);
            }
        };
        add(
            true,
            "ID",
            Box::new(|_, record| Some(record.id.to_string())),
        );
        add(
            true,
            "CLASS",
            Box::new(|_, record| Some(record.class.clone())),
        );
        add(
            true,
            "COMMITTED",
            Box::new(|_, record| record.commit_time.clone()),
        );
        add(true, "TABLE", Box::new(|_, record| record.table.clone()));
        add(true, "TOPIC", Box::new(|_, record| record.topic.clone()));
        let goes_to = columns.destination;
        add(
            goes_to.is_some(),
            "GOES TO",
            Box::new(move |_, record| destination(record, goes_to?).map(str::to_owned)),
        );
        add(
            true,
            "EVENT ID",
            Box::new(|_, record| text(record.event_id.as_deref())),
        );
        add(
            columns.slot,
            "SLOT",
            Box::new(|_, record| Some(record.slot.clone())),
        );
        add(
            columns.status,
            "STATUS",
            Box::new(|listed, _| Some(status(listed.outcome).to_owned())),
        );
        add(
            columns.key,
            "KEY",
            Box::new(|_, record| text(record.key.as_deref())),
        );
        add(true, "CAUSE", Box::new(|_, record| record.cause.clone()));
        Self {
            cells,
            table: Table::new(heads.into_iter()),
        }
    }

    pub(super) fn add(&mut self, listed: &Listed, record: &DlqRecord) {
        let last = self.cells.len().saturating_sub(1);
        let cells = self.cells.iter().enumerate();
        let cells = cells.map(|(at, cell)| {
            let text = cell(listed, record)?;
            Some(if at < last { shortened(text) } else { text })
        });
        self.table.add(cells);
    }

    pub(super) fn print(&self) -> Result<(), Failure> {
        print_text(&self.table.to_string())
    }
}

/// The most characters of a cell before the last: a longer one, such as a topic of some thousand bytes, would
/// widen every line.
const MAX_CELL: usize = 100;

/// Returns the beginning of a long text, and an ellipsis. `walrelay dlq show` and JSON have the whole.
fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_CELL) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Describes one dead letter as lines of text, without its value.
pub(super) fn describe(listed: &Listed, record: &DlqRecord) -> String {
    let value = match (record.omitted_bytes, &record.value) {
        (None, None) if record.unrestored.is_some() => "not known".to_owned(),
        (Some(bytes), _) => format!("left out, {bytes} bytes"),
        (None, Some(value)) => format!("{} bytes", value.len()),
        (None, None) => "null".to_owned(),
    };
    let optional = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let number = |number: Option<i64>| optional(number.map(|n| n.to_string()));
    let lines = [
        ("letter", record.id.to_string()),
        ("slot", record.slot.clone()),
        ("cluster", optional(record.system.clone())),
        ("status", status(listed.outcome).to_owned()),
        ("class", record.class.clone()),
        ("cause", optional(record.cause.clone())),
        ("table", optional(record.table.clone())),
        ("transaction", number(record.xid.map(i64::from))),
        ("committed", optional(record.commit_time.clone())),
        ("event id", optional(text(record.event_id.as_deref()))),
        ("topic", optional(record.topic.clone())),
        ("partition", number(record.partition.map(i64::from))),
        ("timestamp", number(record.timestamp_ms)),
        (
            "lies at",
            format!(
                "partition {}, offset {}",
                record.position.partition, record.position.offset
            ),
        ),
        ("key", optional(text(record.key.as_deref()))),
        ("value", value),
        (
            "exact",
            match record.unrestored {
                Some(why) => format!("no: {why}"),
                None if record.is_exact => "yes".to_owned(),
                None => "no".to_owned(),
            },
        ),
    ];
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(out, "{name:<12} {}", printable(value));
    };
    for (name, value) in lines {
        line(name, &value);
    }
    for (name, value) in &record.headers {
        let value = text(value.as_deref()).unwrap_or_else(|| "null".to_owned());
        line("header", &format!("{name}: {value}"));
    }
    out
}

/// The optional members of a JSON object.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fields {
    pub(super) key: bool,
    pub(super) headers: bool,
    pub(super) value: bool,
}

/// Returns one dead letter as a JSON object on a line.
pub(super) fn json_line(status: &str, record: &DlqRecord, fields: Fields) -> Vec<u8> {
    json_line_to(status, record, fields, None)
}

/// Returns the same, with the member `goes_to` as [`Columns::destination`].
pub(super) fn json_line_to(
    status: &str,
    record: &DlqRecord,
    fields: Fields,
    goes_to: Option<Destination<'_>>,
) -> Vec<u8> {
    let lsn = record.id.published_lsn().to_string();
    let mut line = JsonLine(b"{".to_vec());
    line.text("slot", Some(&record.slot));
    line.text("system", record.system.as_deref());
    line.text("lsn", Some(&lsn));
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
    if let Some(goes_to) = goes_to {
        line.text("goes_to", destination(record, goes_to));
    }
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

/// A JSON object on one line, written by [`json`](crate::json): bytes that are not UTF-8 become
/// base64, and control characters are escaped.
struct JsonLine(Vec<u8>);

impl JsonLine {
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

/// Bytes as text; what is not UTF-8 is replaced.
fn text(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use walrelay_sink_kind::dead_letters::DlqRecordId;

    use super::*;
    use crate::commands::dead_letters::tests::record;

    fn listed(record: &DlqRecord) -> Listed {
        Listed {
            name: DlqRecordId {
                slot: Arc::from("orders"),
                id: record.id,
                system: None,
            },
            position: record.position,
            outcome: Some(Outcome::Dropped),
        }
    }

    fn table(columns: Columns<'_>) -> String {
        let record = record();
        let mut table = DlqTable::new(columns);
        table.add(&listed(&record), &record);
        table.table.to_string()
    }

    #[test]
    fn a_table_lines_up_and_shows_no_row() {
        assert_eq!(
            table(Columns::default()),
            "ID      CLASS     COMMITTED                    TABLE          TOPIC  EVENT ID  CAUSE\n\
             0/10 2  oversize  2026-01-02T03:04:05.678900Z  public.outbox  -      \u{fffd}         \
             too\\u{1b}[31mlarge\n"
        );
        let all = table(Columns {
            slot: true,
            status: true,
            key: true,
            destination: None,
        });
        assert!(all.contains("orders  dropped  row-key  too"), "{all}");
        assert!(!all.contains("row-value"), "{all}");
        let to = |destination| {
            table(Columns {
                destination: Some(destination),
                ..Columns::default()
            })
        };
        assert!(to(Destination::Topic("orders.v2")).contains("-      orders.v2"));
        assert!(to(Destination::Own).contains("TOPIC  GOES TO"));
    }

    #[test]
    fn a_long_topic_widens_no_line() {
        let long = DlqRecord {
            topic: Some("é".repeat(4_000)),
            cause: Some("c".repeat(4_000)),
            ..record()
        };
        let mut table = DlqTable::new(Columns::default());
        table.add(&listed(&long), &long);
        table.add(&listed(&record()), &record());
        let shown = table.table.to_string();
        assert!(
            shown.contains(&format!(" {}…  ", "é".repeat(100))),
            "{shown}"
        );
        // The cause is the last cell.
        assert!(shown.contains(&"c".repeat(4_000)));
        let lengths: Vec<usize> = shown.lines().map(|line| line.chars().count()).collect();
        assert!(lengths[0] < 300 && lengths[2] < 300, "{lengths:?}");
        assert!(describe(&listed(&long), &long).contains(&"é".repeat(4_000)));
    }

    #[test]
    fn a_line_has_the_fields_that_are_asked_for() {
        let record = record();
        let parsed = |fields| -> Value {
            let line = json_line("open", &record, fields);
            let line = String::from_utf8(line).unwrap();
            assert_eq!(line.lines().count(), 1);
            serde_json::from_str(&line).unwrap()
        };
        let mut expected = json!({
            "slot": "orders", "system": "7", "lsn": "0/10", "row": 2, "status": "open", "class": "oversize",
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
        let record = record();
        let shown = describe(&listed(&record), &record);
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
        assert!(describe(&listed(&omitted), &omitted).contains("left out, 77 bytes"));
    }
}
