//! The report of a translation, as text for a terminal and as JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;

use crate::draft::printable;

/// The outcome of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// The setting is in walrelay's configuration.
    TakenOver {
        /// Keys of the configuration.
        to: Vec<String>,
        /// The difference in meaning, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        remark: Option<String>,
    },
    /// walrelay does not need the setting.
    NoEffect {
        /// The reason why the setting is not needed.
        why: String,
    },
    /// walrelay does not support the setting.
    NotSupported {
        /// The setting's effect, and the remedy.
        remedy: String,
        /// True if records differ, or events are missing, without the setting.
        #[serde(rename = "changes_records")]
        breaks: bool,
    },
}

/// One setting of the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Key in the input.
    pub key: String,
    /// The other file that the setting is from, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<&'static str>,
    /// Line in its file, from 1; `None` for JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Outcome of the setting.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A note that concerns no setting of the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Key of walrelay's configuration or of Debezium's.
    pub about: String,
    /// Text of the note.
    pub text: String,
    /// True if the note is to be read before walrelay takes over.
    pub urgent: bool,
}

/// An environment variable that the configuration refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Name in upper case, as walrelay requires.
    pub name: String,
    /// Remark for the person who sets the variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<&'static str>,
}

/// The report of a translation. Contains no value that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `connect` or `server`.
    #[serde(rename = "from")]
    pub kind: &'static str,
    /// The settings in the order of the input.
    #[serde(rename = "settings")]
    pub rows: Vec<Row>,
    /// Notes that concern no setting.
    pub notes: Vec<Note>,
    /// Environment variables to set.
    #[serde(rename = "environment")]
    pub variables: Vec<Variable>,
}

impl Report {
    /// Returns the keys of all settings that are not supported.
    pub(crate) fn unsupported(&self) -> impl Iterator<Item = &str> {
        self.not_supported(false)
    }

    /// Returns the keys of the unsupported settings without which records differ or events are
    /// missing.
    pub fn breaking(&self) -> impl Iterator<Item = &str> {
        self.not_supported(true)
    }

    fn not_supported(&self, breaking: bool) -> impl Iterator<Item = &str> {
        self.rows.iter().filter_map(move |row| match row.outcome {
            Outcome::NotSupported { breaks, .. } if breaks || !breaking => Some(&*row.key),
            _ => None,
        })
    }

    /// Writes the report for a terminal: a line for each setting, in the order of the input.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (mut taken, mut none, mut not) = (0, 0, 0);
        for row in &self.rows {
            let file = row.file.map(|file| format!("{file}: ")).unwrap_or_default();
            let line = row.line.map(|line| format!(" (line {line})"));
            let setting = format!("{file}{}{}", row.key, line.unwrap_or_default());
            let (count, text) = match &row.outcome {
                Outcome::TakenOver { to, remark } => {
                    let remark = remark.as_ref().map(|remark| format!("; {remark}"));
                    let to = format!("{}{}", to.join(", "), remark.unwrap_or_default());
                    (&mut taken, format!("taken over     {setting} -> {to}"))
                }
                Outcome::NoEffect { why } => {
                    (&mut none, format!("no effect      {setting}: {why}"))
                }
                Outcome::NotSupported { remedy, .. } => {
                    (&mut not, format!("NOT SUPPORTED  {setting}: {remedy}"))
                }
            };
            *count += 1;
            let _ = writeln!(out, "{}", printable(&text));
        }
        for (urgent, heading) in [(true, "look at this first"), (false, "also")] {
            let notes = self.notes.iter().filter(|note| note.urgent == urgent);
            for (at, Note { about, text, .. }) in notes.enumerate() {
                if at == 0 {
                    let _ = writeln!(out, "\n{heading}:");
                }
                let _ = writeln!(out, "  {}", printable(&format!("{about}: {text}")));
            }
        }
        if !self.variables.is_empty() {
            out.push_str("\nenvironment variables to set:\n");
        }
        for Variable { name, remark } in &self.variables {
            let remark = remark.map(|remark| format!(": {remark}"));
            let _ = writeln!(out, "  {name}{}", remark.unwrap_or_default());
        }
        let _ = writeln!(
            out,
            "\n{} setting(s): {taken} taken over, {none} without effect here, {not} not supported",
            self.rows.len(),
        );
        out
    }

    /// Writes the report for programs: one JSON object on one line. Control characters that JSON
    /// allows are escaped too, as terminals interpret them.
    pub fn json(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        let mut out = String::with_capacity(json.len() + 1);
        for c in json.chars() {
            if c.is_control() {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            } else {
                out.push(c);
            }
        }
        out.push('\n');
        out
    }
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
        let taken = Outcome::TakenOver {
            to: vec!["source.slot".to_owned()],
            remark: Some("as it is".to_owned()),
        };
        let unsupported = Outcome::NotSupported {
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
                row("b\u{1b}[31m\u{9b}", None, none),
                row("c", None, unsupported),
            ],
            notes: vec![Note {
                about: "slot".to_owned(),
                text: "look".to_owned(),
                urgent: true,
            }],
            variables: vec![Variable {
                name: "PGPASSWORD".to_owned(),
                remark: None,
            }],
        }
    }

    #[test]
    fn text_for_a_terminal() {
        assert_eq!(
            report().text(),
            "taken over     a (line 3) -> source.slot; as it is\n\
             no effect      b [31m : not needed\n\
             NOT SUPPORTED  c: do \"this\"\n\n\
             look at this first:\n  slot: look\n\n\
             environment variables to set:\n  PGPASSWORD\n\n\
             3 setting(s): 1 taken over, 1 without effect here, 1 not supported\n"
        );
    }

    #[test]
    fn json_for_programs() {
        assert_eq!(
            report().json(),
            "{\"from\":\"server\",\"settings\":[\
             {\"key\":\"a\",\"line\":3,\"outcome\":\"taken-over\",\"to\":[\"source.slot\"],\
             \"remark\":\"as it is\"},\
             {\"key\":\"b\\u001b[31m\\u009b\",\"outcome\":\"no-effect\",\"why\":\"not needed\"},\
             {\"key\":\"c\",\"outcome\":\"not-supported\",\"remedy\":\"do \\\"this\\\"\",\
             \"changes_records\":true}],\
             \"notes\":[{\"about\":\"slot\",\"text\":\"look\",\"urgent\":true}],\
             \"environment\":[{\"name\":\"PGPASSWORD\"}]}\n"
        );
        assert_eq!(report().breaking().collect::<Vec<_>>(), ["c"]);
    }
}
