//! walrelay's configuration while it is written. Each line refers to the settings it comes from.

use std::fmt::Write as _;

/// The sections in the order of the output.
const SECTIONS: &[&str] = &[
    "source",
    "router",
    "router.debezium",
    "router.converters",
    "sink",
    "sink.kafka",
    "sink.topics",
    "sink.rabbitmq",
    "sink.redis",
    "sink.nats",
    "sink.http",
    "delivery",
    "poison",
    "log",
];

/// One line of the configuration.
pub(crate) struct Line {
    pub(crate) section: &'static str,
    pub(crate) key: String,
    /// Value in TOML.
    pub(crate) value: String,
    pub(crate) comment: Option<String>,
    /// Numbers of the settings that the line comes from; empty for a default of Debezium.
    pub(crate) settings: Vec<usize>,
    /// The reason why the line can be left out without loss, if walrelay's configuration refuses
    /// it.
    pub(crate) redundant: Option<&'static str>,
}

impl Line {
    /// Returns true if the line affects the contents of records.
    pub(crate) fn affects_records(&self) -> bool {
        match self.section.strip_prefix("sink.") {
            // The keys that address a record.
            Some("rabbitmq") => matches!(&*self.key, "exchange" | "routing_key"),
            Some("http") => self.key == "url",
            Some(_) => false,
            None => !matches!(self.section, "poison" | "log"),
        }
    }
}

/// All lines, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) lines: Vec<Line>,
}

impl Draft {
    pub(crate) fn has(&self, section: &str, key: &str) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|line| line.section == section && line.key == key)
    }

    /// Returns the value of a key, in TOML.
    pub(crate) fn value(&self, section: &str, key: &str) -> Option<&str> {
        let mut lines = self.lines.iter();
        let line = lines.find(|line| line.section == section && line.key == key)?;
        Some(&line.value)
    }

    /// Writes the TOML; returns it, and for each of its lines the index in `lines`.
    pub(crate) fn render(&self) -> (String, Vec<Option<usize>>) {
        let mut out = String::new();
        let mut entries = Vec::new();
        for section in SECTIONS {
            let lines = self.lines.iter().enumerate();
            let lines = lines.filter(|(_, line)| line.section == *section);
            for (at, (number, line)) in lines.enumerate() {
                if at == 0 {
                    let _ = writeln!(out, "\n[{section}]");
                    entries.extend([None, None]);
                }
                let _ = write!(out, "{} = {}", key(&line.key), line.value);
                if let Some(comment) = &line.comment {
                    let _ = write!(out, "  # {}", printable(comment));
                }
                out.push('\n');
                entries.push(Some(number));
            }
        }
        (out, entries)
    }
}

/// Replaces control characters, which keys from files may contain and terminals interpret.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Writes a key in TOML; names with dots are in quotes, as in the documentation.
fn key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !key.is_empty() && key.chars().all(bare) {
        key.to_owned()
    } else {
        quoted(key)
    }
}

/// Writes a text as a basic string of TOML, on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_back() {
        let text: String = (0..0x300)
            .filter_map(char::from_u32)
            .chain("😀".chars())
            .collect();
        let toml = format!("{} = {}", key(&text), quoted(&text));
        let table: toml::Table = toml.parse().unwrap();
        assert_eq!(table.get(&text).and_then(toml::Value::as_str), Some(&*text));
    }

    #[test]
    fn render_maps_lines_to_entries() {
        let line = |section, key: &str| Line {
            section,
            key: key.to_owned(),
            value: "true".to_owned(),
            comment: Some("why\nso".to_owned()),
            settings: Vec::new(),
            redundant: None,
        };
        let draft = Draft {
            lines: vec![line("log", "b"), line("source", "a.b")],
        };
        let (text, entries) = draft.render();
        assert_eq!(
            text,
            "\n[source]\n\"a.b\" = true  # why so\n\n[log]\nb = true  # why so\n"
        );
        assert_eq!(entries, [None, None, Some(1), None, None, Some(0)]);
        assert!(draft.has("log", "b") && !draft.has("source", "b"));
    }
}
