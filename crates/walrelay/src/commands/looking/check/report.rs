//! Formats the checks as a table and as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::item::{Check, Group, Item, Summary, Verdict};
use walrelay_observe::{printable_json, printable_lines};

/// Writes a table by group, and a line with the totals.
pub(super) fn table(
    checks: &[(Item, Check)],
    colours: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let width = checks.iter().map(|(item, _)| item.name().len()).max();
    let width = width.unwrap_or(0);
    let indented = format!("\n{}", " ".repeat(width + 10));
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
            let mut text = printable_lines(&check.finding);
            if let Verdict::Fail { id, .. } = check.verdict {
                let id = paint(colours, "2", &format!("[{id}]"));
                let end_of_line = text.find('\n').unwrap_or(text.len());
                text.insert_str(end_of_line, &format!(" {id}"));
            }
            if let Some(remedy) = &check.remedy {
                let help = paint(colours, "1;32", "help:");
                text = format!("{text}\n{help} {}", printable_lines(remedy));
            }
            let (word, text) = (paint(colours, colour, word), text.replace('\n', &indented));
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
    use crate::cli::Exit;

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
        table(&checks(), false, &mut out).unwrap();
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
        let text = String::from_utf8(out).unwrap();
        assert!(
            !text.trim_end().contains(walrelay_observe::is_hidden),
            "{text}"
        );
    }
}
