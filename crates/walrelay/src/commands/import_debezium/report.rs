//! What became of each setting, and how it is told.

use std::fmt::Write as _;

use crate::json;

/// What became of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is in walrelay's configuration.
    Taken {
        /// The keys there.
        to: Vec<String>,
        /// Where it is not quite the same.
        remark: Option<String>,
    },
    /// walrelay has no use for it.
    NoEffect {
        /// Why.
        why: String,
    },
    /// walrelay does not do it.
    Unsupported {
        /// What it is, and what to do instead.
        remedy: String,
        /// Whether records would be others, or events missing, without it.
        breaks: bool,
    },
}

impl Outcome {
    fn name(&self) -> &'static str {
        match self {
            Self::Taken { .. } => "taken-over",
            Self::NoEffect { .. } => "no-effect",
            Self::Unsupported { .. } => "not-supported",
        }
    }
}

/// One setting of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// As the input has it.
    pub(super) key: String,
    /// The other file it is from, if any.
    pub(super) file: Option<&'static str>,
    /// Its line, where there are lines.
    pub(super) line: Option<usize>,
    pub(super) outcome: Outcome,
}

/// Something that belongs to no setting of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    /// What it is about: a key of walrelay's or of Debezium's.
    pub(super) about: String,
    pub(super) text: String,
    /// Whether somebody has to look before walrelay takes over.
    pub(super) urgent: bool,
}

/// The whole report. No value of a setting is in it that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    /// `connect` or `server`.
    pub(super) kind: &'static str,
    pub(super) rows: Vec<Row>,
    pub(super) notes: Vec<Note>,
    /// Environment variables that the configuration wants, with what to know about them.
    pub(super) variables: Vec<(String, Option<&'static str>)>,
}

impl Report {
    /// How many of taken over, no effect, not supported.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let mut counts = (0, 0, 0);
        for row in &self.rows {
            match row.outcome {
                Outcome::Taken { .. } => counts.0 += 1,
                Outcome::NoEffect { .. } => counts.1 += 1,
                Outcome::Unsupported { .. } => counts.2 += 1,
            }
        }
        counts
    }

    /// The rows without which records would be others, or events missing.
    pub(super) fn breaking(&self) -> impl Iterator<Item = (&Row, &str)> {
        self.rows.iter().filter_map(|row| match &row.outcome {
            Outcome::Unsupported {
                remedy,
                breaks: true,
            } => Some((row, remedy.as_str())),
            _ => None,
        })
    }

    /// For people: a line for each setting, in the order of the input.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let mark = match &row.outcome {
                Outcome::Taken { .. } => "taken over   ",
                Outcome::NoEffect { .. } => "no effect    ",
                Outcome::Unsupported { .. } => "NOT SUPPORTED",
            };
            let file = row.file.map(|file| format!("{file}: ")).unwrap_or_default();
            let line = row
                .line
                .map(|line| format!(" (line {line})"))
                .unwrap_or_default();
            let words = match &row.outcome {
                Outcome::Taken { to, remark } => {
                    let remark = remark.as_ref().map(|r| format!("; {r}"));
                    format!(" -> {}{}", to.join(", "), remark.unwrap_or_default())
                }
                Outcome::NoEffect { why } => format!(": {why}"),
                Outcome::Unsupported { remedy, .. } => format!(": {remedy}"),
            };
            let line = format!("{mark}  {file}{}{line}{words}", row.key);
            out.push_str(&printable(&line));
            out.push('\n');
        }
        for (urgent, heading) in [(true, "look at this first"), (false, "also")] {
            let mut notes = self.notes.iter().filter(|n| n.urgent == urgent).peekable();
            if notes.peek().is_some() {
                let _ = writeln!(out, "\n{heading}:");
            }
            for note in notes {
                let line = format!("  {}: {}", note.about, note.text);
                out.push_str(&printable(&line));
                out.push('\n');
            }
        }
        if !self.variables.is_empty() {
            out.push_str("\nenvironment variables to set:\n");
            for (name, remark) in &self.variables {
                let _ = match remark {
                    Some(remark) => writeln!(out, "  {name}: {remark}"),
                    None => writeln!(out, "  {name}"),
                };
            }
        }
        let (taken, none, unsupported) = self.counts();
        let _ = writeln!(
            out,
            "\n{} setting(s): {taken} taken over, {none} without effect here, {unsupported} not \
             supported",
            self.rows.len()
        );
        out
    }

    /// For programs: one object.
    pub(super) fn json(&self) -> String {
        let mut out = Vec::new();
        let member = |out: &mut Vec<u8>, name: &str, value: &str| {
            json::string(out, name);
            out.push(b':');
            json::string(out, value);
        };
        out.push(b'{');
        member(&mut out, "from", self.kind);
        out.extend_from_slice(b",\"settings\":[");
        for (index, row) in self.rows.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            member(&mut out, "key", &row.key);
            if let Some(file) = row.file {
                out.push(b',');
                member(&mut out, "file", file);
            }
            if row.line.is_some() {
                out.extend_from_slice(b",\"line\":");
                json::number(&mut out, row.line);
            }
            out.push(b',');
            member(&mut out, "outcome", row.outcome.name());
            match &row.outcome {
                Outcome::Taken { to, remark } => {
                    out.extend_from_slice(b",\"to\":[");
                    for (index, to) in to.iter().enumerate() {
                        if index > 0 {
                            out.push(b',');
                        }
                        json::string(&mut out, to);
                    }
                    out.push(b']');
                    if let Some(remark) = remark {
                        out.push(b',');
                        member(&mut out, "remark", remark);
                    }
                }
                Outcome::NoEffect { why } => {
                    out.push(b',');
                    member(&mut out, "why", why);
                }
                Outcome::Unsupported { remedy, breaks } => {
                    out.push(b',');
                    member(&mut out, "remedy", remedy);
                    let breaks: &[u8] = if *breaks { b"true" } else { b"false" };
                    out.extend_from_slice(b",\"changes_records\":");
                    out.extend_from_slice(breaks);
                }
            }
            out.push(b'}');
        }
        out.extend_from_slice(b"],\"notes\":[");
        for (index, note) in self.notes.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            member(&mut out, "about", &note.about);
            out.push(b',');
            member(&mut out, "text", &note.text);
            let urgent: &[u8] = if note.urgent { b"true" } else { b"false" };
            out.extend_from_slice(b",\"urgent\":");
            out.extend_from_slice(urgent);
            out.push(b'}');
        }
        out.extend_from_slice(b"],\"environment\":[");
        for (index, (name, remark)) in self.variables.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            member(&mut out, "name", name);
            if let Some(remark) = remark {
                out.push(b',');
                member(&mut out, "remark", remark);
            }
            out.push(b'}');
        }
        out.extend_from_slice(b"]}\n");
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Keys come from files, and terminals obey control characters.
pub(super) fn printable(text: &str) -> String {
    let safe = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let row = |key: &str, line, outcome| Row {
            key: key.to_owned(),
            file: None,
            line,
            outcome,
        };
        let taken = Outcome::Taken {
            to: vec!["source.slot".to_owned()],
            remark: Some("as it is".to_owned()),
        };
        let unsupported = Outcome::Unsupported {
            remedy: "do \"this\"".to_owned(),
            breaks: true,
        };
        let none = Outcome::NoEffect {
            why: "not needed".to_owned(),
        };
        Report {
            kind: "server",
            rows: vec![
                row("a", Some(3), taken),
                row("b\u{1b}[31m", None, none),
                row("c", None, unsupported),
            ],
            notes: vec![Note {
                about: "slot".to_owned(),
                text: "look".to_owned(),
                urgent: true,
            }],
            variables: vec![("PGPASSWORD".to_owned(), None)],
        }
    }

    #[test]
    fn for_people() {
        assert_eq!(
            report().text(),
            "taken over     a (line 3) -> source.slot; as it is\n\
             no effect      b [31m: not needed\n\
             NOT SUPPORTED  c: do \"this\"\n\n\
             look at this first:\n  slot: look\n\n\
             environment variables to set:\n  PGPASSWORD\n\n\
             3 setting(s): 1 taken over, 1 without effect here, 1 not supported\n"
        );
    }

    #[test]
    fn for_programs() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["settings"][0]["to"][0], "source.slot");
        assert_eq!(json["settings"][0]["line"], 3);
        assert_eq!(json["settings"][2]["changes_records"], true);
        assert_eq!(json["environment"][0]["name"], "PGPASSWORD");
        assert_eq!(json["notes"][0]["urgent"], true);
        assert_eq!(report().breaking().count(), 1);
    }
}
