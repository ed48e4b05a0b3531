//! walrelay's configuration while it is being put together: each line knows the settings it is made
//! of.

use std::fmt::Write as _;

/// The sections, in the order in which they are written.
const SECTIONS: &[&str] = &[
    "source",
    "router",
    "router.debezium",
    "router.converters",
    "sink",
    "sink.kafka",
    "sink.topics",
    "delivery",
    "poison",
    "log",
];

/// A value as TOML writes it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Toml {
    /// Already as walrelay reads it, references and all.
    Text(String),
    List(Vec<String>),
    Bool(bool),
    Integer(i64),
}

/// What a line means that walrelay's own configuration refuses.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// Records would be others without it.
    Breaks,
    /// Worth a word.
    Soft,
    /// Nothing: it says what holds anyway. The text says why.
    Harmless(String),
}

/// One line.
pub(super) struct Line {
    pub(super) section: &'static str,
    pub(super) key: String,
    pub(super) value: Toml,
    pub(super) comment: Option<String>,
    /// The settings it is made of, by their numbers; empty for what is written for the sake of
    /// Debezium's defaults.
    pub(super) from: Vec<usize>,
    pub(super) refused: Refused,
}

impl Line {
    /// Section and key.
    pub(super) fn path(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }
}

/// All lines.
#[derive(Default)]
pub(super) struct Draft {
    lines: Vec<Line>,
}

impl Draft {
    pub(super) fn add(&mut self, line: Line) {
        self.lines.push(line);
    }

    pub(super) fn has(&self, section: &str, key: &str) -> bool {
        self.lines
            .iter()
            .any(|line| line.section == section && line.key == key)
    }

    /// Whether anything is in a section or below.
    fn any(&self, section: &str) -> bool {
        self.lines.iter().any(|line| line.section == section)
    }

    /// Takes lines out, by their numbers.
    pub(super) fn remove(&mut self, numbers: &[usize]) -> Vec<Line> {
        let (gone, kept) = std::mem::take(&mut self.lines)
            .into_iter()
            .enumerate()
            .partition::<Vec<_>, _>(|(number, _)| numbers.contains(number));
        self.lines = kept.into_iter().map(|(_, line)| line).collect();
        gone.into_iter().map(|(_, line)| line).collect()
    }

    /// The text below `heading`, and for each of its lines, from the first, the number of the entry
    /// that stands there.
    pub(super) fn render(&self, heading: &str) -> (String, Vec<Option<usize>>) {
        let mut out = String::new();
        let mut places = Vec::new();
        for line in heading.lines() {
            let _ = writeln!(out, "{}", format!("# {line}").trim_end());
            places.push(None);
        }
        for section in SECTIONS.iter().filter(|section| self.any(section)) {
            let _ = writeln!(out, "\n[{section}]");
            places.extend([None, None]);
            let lines = self.lines.iter().enumerate();
            for (number, line) in lines.filter(|(_, line)| line.section == *section) {
                let _ = write!(out, "{} = {}", key(&line.key), value(&line.value));
                if let Some(comment) = &line.comment {
                    let _ = write!(out, "  # {}", super::report::printable(comment));
                }
                out.push('\n');
                places.push(Some(number));
            }
        }
        (out, places)
    }
}

/// Names with dots in quotes, as the documentation writes them.
fn key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !key.is_empty() && key.chars().all(bare) {
        key.to_owned()
    } else {
        string(key)
    }
}

fn value(value: &Toml) -> String {
    match value {
        Toml::Text(text) => string(text),
        Toml::List(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| string(text)).collect();
            format!("[{}]", texts.join(", "))
        }
        Toml::Bool(value) => value.to_string(),
        Toml::Integer(value) => value.to_string(),
    }
}

/// TOML's basic string, on one line.
fn string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
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
        let toml = format!("{} = {}", key(&text), string(&text));
        let table: toml::Table = toml.parse().unwrap();
        assert_eq!(table.get(&text).and_then(toml::Value::as_str), Some(&*text));
    }

    #[test]
    fn lines_know_their_place() {
        let line = |section, key: &str| Line {
            section,
            key: key.to_owned(),
            value: Toml::Bool(true),
            comment: Some("why\nso".to_owned()),
            from: Vec::new(),
            refused: Refused::Soft,
        };
        let mut draft = Draft::default();
        draft.add(line("log", "b"));
        draft.add(line("source", "a.b"));
        let (text, places) = draft.render("one\n\ntwo");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), places.len());
        assert_eq!(&lines[..4], ["# one", "#", "# two", ""]);
        for (number, expected) in [(0, "b = true  # why so"), (1, "\"a.b\" = true  # why so")] {
            let at = places
                .iter()
                .position(|place| *place == Some(number))
                .unwrap();
            assert_eq!(lines[at], expected);
        }
        assert_eq!(draft.remove(&[1])[0].key, "a.b");
        assert!(draft.has("log", "b") && !draft.has("source", "a.b"));
    }
}
