//! The checks as people and programs see them.

use std::io::{self, Write};

use serde::Serialize;

use super::item::{Check, Group, Summary, Verdict};
use crate::cli::printable;

/// A table by group, and a line of figures.
pub(super) fn table(checks: &[Check], colours: bool, out: &mut dyn Write) -> io::Result<()> {
    let width = checks.iter().map(|check| check.item.name().len()).max();
    let width = width.unwrap_or(0);
    let indent = " ".repeat(width + 10);
    for group in Group::ALL {
        let mut named = false;
        for check in checks.iter().filter(|check| check.item.group() == group) {
            if !named {
                writeln!(out, "{}", paint(colours, "1", group.name()))?;
                named = true;
            }
            let (word, colour) = match check.verdict {
                Verdict::Pass => ("pass", "32"),
                Verdict::Warn => ("warn", "33"),
                Verdict::Fail { .. } => ("FAIL", "1;31"),
            };
            let word = paint(colours, colour, word);
            let finding = printable(&check.finding);
            let mut lines = finding.lines();
            let first = lines.next().unwrap_or_default();
            write!(out, "  {word}  {:<width$}  {first}", check.item.name())?;
            match check.verdict {
                Verdict::Fail { id, .. } => {
                    writeln!(out, " {}", paint(colours, "2", &format!("[{id}]")))?;
                }
                _ => writeln!(out)?,
            }
            for line in lines {
                writeln!(out, "{indent}{line}")?;
            }
            if let Some(remedy) = &check.remedy {
                let remedy = printable(remedy);
                let mut lines = remedy.lines();
                let first = lines.next().unwrap_or_default();
                writeln!(out, "{indent}{} {first}", paint(colours, "1;32", "help:"))?;
                for line in lines {
                    writeln!(out, "{indent}{line}")?;
                }
            }
        }
    }
    let Summary {
        checks,
        pass,
        warn,
        fail,
    } = Summary::of(checks);
    writeln!(
        out,
        "{checks} checks: {pass} pass, {warn} warn, {fail} fail"
    )
}

fn paint(colours: bool, code: &str, text: &str) -> String {
    if colours {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

#[derive(Serialize)]
struct Document<'a> {
    checks: Vec<Line<'a>>,
    summary: Summary,
}

#[derive(Serialize)]
struct Line<'a> {
    group: &'static str,
    item: &'static str,
    verdict: &'static str,
    /// The name of the failure; null of what did not fail.
    id: Option<&'static str>,
    finding: &'a str,
    remedy: Option<&'a str>,
}

/// One document, on one line.
pub(super) fn json(checks: &[Check], out: &mut dyn Write) -> io::Result<()> {
    let lines = checks.iter().map(|check| Line {
        group: check.item.group().name(),
        item: check.item.name(),
        verdict: check.verdict.name(),
        id: match check.verdict {
            Verdict::Fail { id, .. } => Some(id),
            _ => None,
        },
        finding: &check.finding,
        remedy: check.remedy.as_deref(),
    });
    let document = Document {
        checks: lines.collect(),
        summary: Summary::of(checks),
    };
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::super::item::Item;
    use super::*;
    use crate::cli::Exit;

    fn checks() -> Vec<Check> {
        vec![
            Check::fail(
                Item::Slot,
                ("slot-plugin", Exit::Config),
                "it is\u{1b}[31m another\ncause: x",
                "use another",
            ),
            Check::pass(Item::File, "walrelay.toml"),
            Check::warn(Item::KeepSize, "it is off", "ALTER SYSTEM;\nSELECT 1;"),
        ]
    }

    #[test]
    fn a_table_has_groups_remedies_and_figures() {
        let mut out = Vec::new();
        table(&checks(), false, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "configuration\n  \
               pass  file                    walrelay.toml\n\
             postgres\n  \
               FAIL  slot                    it is [31m another [slot-plugin]\n                                \
               cause: x\n                                \
               help: use another\n  \
               warn  max-slot-wal-keep-size  it is off\n                                \
               help: ALTER SYSTEM;\n                                \
               SELECT 1;\n\
             3 checks: 1 pass, 1 warn, 1 fail\n"
        );
        let mut out = Vec::new();
        table(&checks(), true, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("\u{1b}[1;31mFAIL\u{1b}[0m  slot"), "{out}");
    }

    #[test]
    fn json_is_one_document() {
        let mut out = Vec::new();
        json(&checks(), &mut out).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(document["summary"]["fail"], 1);
        assert_eq!(document["checks"][0]["id"], "slot-plugin");
        assert_eq!(document["checks"][1]["remedy"], serde_json::Value::Null);
        assert!(!out.contains(&0x1b), "control characters are escaped");
    }
}
