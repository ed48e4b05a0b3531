//! Formats the checks as a table and as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::item::{Check, Group, Item, Summary, Verdict};
use crate::cli::paint;
use crate::commands::terminal::wrap::wrapped;
use walrelay_observe::{printable_json, printable_lines};

/// Writes a table by group, and a line with the totals.
pub(super) fn table(
    checks: &[(Item, Check)],
    colours: bool,
    columns: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let width = checks.iter().map(|(item, _)| item.name().len()).max();
    let width = width.unwrap_or(0);
    for group in Group::ALL {
        let of_group = checks.iter().filter(|(item, _)| item.group() == group);
        for (at, (item, check)) in of_group.enumerate() {
            if at == 0 {
                writeln!(out, "{}", paint(colours, "1", item.group_name()))?;
            }
            let (word, colour) = match check.verdict {
                Verdict::Pass => ("pass", "32"),
                Verdict::Warn => ("warn", "33"),
                Verdict::Fail { .. } => ("FAIL", "1;31"),
            };
            let wrap = |text: &str| wrapped(text, width + 10, columns);
            let mut text = printable_lines(&check.finding);
            if let Verdict::Fail { id, .. } = check.verdict {
                let id = format!("[{id}]");
                let end_of_line = text.find('\n').unwrap_or(text.len());
                text.insert_str(end_of_line, &format!(" {id}"));
                text = wrap(&text).replacen(&id, &paint(colours, "2", &id), 1);
            } else {
                text = wrap(&text);
            }
            if let Some(remedy) = &check.remedy {
                // One text, so that the colour is in no line before it is wrapped.
                let remedy = wrap(&format!("\nhelp: {}", printable_lines(remedy)));
                text += &remedy.replacen("help:", &paint(colours, "1;32", "help:"), 1);
            }
            let word = paint(colours, colour, word);
            writeln!(out, "  {word}  {:<width$}  {text}", item.name())?;
        }
    }
    let Summary {
        checks,
        pass,
        warn,
        fail,
    } = Summary::count(checks);
    writeln!(
        out,
        "{checks} checks: {pass} pass, {warn} warn, {fail} fail"
    )
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
    /// The id of the failure; `null` unless the check failed.
    id: Option<&'static str>,
    finding: &'a str,
    remedy: Option<&'a str>,
}

/// Writes one document on one line.
pub(super) fn json(checks: &[(Item, Check)], out: &mut dyn Write) -> io::Result<()> {
    let lines = checks.iter().map(|(item, check)| Line {
        group: item.group_name(),
        item: item.name(),
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
        summary: Summary::count(checks),
    };
    let document = serde_json::to_string(&document)?;
    writeln!(out, "{}", printable_json(&document))
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_failure::Exit;

    fn checks() -> [(Item, Check); 3] {
        let finding = "it is\u{1b}[31m another\ncause: x\u{202e}";
        let fail = Check::fail(("slot-plugin", Exit::Config), finding, "use another");
        let warn = Check::warn("it is off", "ALTER SYSTEM;\nSELECT 1;");
        [
            (Item::Slot, fail),
            (Item::File, Check::pass("walrelay.toml")),
            (Item::KeepSize, warn),
        ]
    }

    #[test]
    fn a_table_has_groups_remedies_and_figures() {
        let mut out = Vec::new();
        table(&checks(), false, 200, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "configuration\n  \
               pass  file                    walrelay.toml\n\
             postgres\n  \
               FAIL  slot                    it is\\u{1b}[31m another [slot-plugin]\n                                  \
               cause: x\\u{202e}\n                                \
               help: use another\n  \
               warn  max-slot-wal-keep-size  it is off\n                                \
               help: ALTER SYSTEM;\n                                  \
               SELECT 1;\n\
             3 checks: 1 pass, 1 warn, 1 fail\n"
        );
        let mut out = Vec::new();
        table(&checks(), true, 200, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("\u{1b}[1;31mFAIL\u{1b}[0m  slot"), "{out}");
        let mut narrow = Vec::new();
        table(&checks(), false, 62, &mut narrow).unwrap();
        let narrow = String::from_utf8(narrow).unwrap();
        let lines = "it is\\u{1b}[31m another\n                                [slot-plugin]\n";
        assert!(narrow.contains(lines), "{narrow}");
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 62),
            "{narrow}"
        );
    }

    #[test]
    fn json_is_one_document() {
        let mut out = Vec::new();
        json(&checks(), &mut out).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(document["summary"]["fail"], 1);
        assert_eq!(document["checks"][0]["id"], "slot-plugin");
        assert_eq!(document["checks"][1]["remedy"], serde_json::Value::Null);
        let text = String::from_utf8(out).unwrap();
        assert!(
            !text.trim_end().contains(walrelay_observe::is_hidden),
            "{text}"
        );
    }
}
