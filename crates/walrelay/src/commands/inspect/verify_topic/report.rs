//! Formats the findings of `verify-topic`, for people and for programs.

use std::fmt;

use serde_json::{Value, json};
use walrelay_measure::figures::Spread;
use walrelay_observe::printable;

use super::analysis::{At, Finding, FindingKind, Findings};

/// All kinds in the order of the report: the name in JSON, and what the text says of a finding.
const KINDS: [(FindingKind, &str, &str, &str); 5] = [
    (
        FindingKind::Repeated,
        "repeated",
        "repeated events",
        "before at",
    ),
    (
        FindingKind::OutOfOrder,
        "out_of_order",
        "events out of the order of their key",
        "after a newer one at",
    ),
    (
        FindingKind::Stale,
        "stale_keys",
        "keys that end on an older event than their newest",
        "older than",
    ),
    (
        FindingKind::Split,
        "split_keys",
        "keys in two partitions",
        "before at",
    ),
    (FindingKind::Lost, "lost", "rows without a record", ""),
];

/// The report.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) findings: Findings,
    /// The names of the topics, by number.
    pub(super) topics: Vec<String>,
    /// The partitions that have lost their first records, although they were asked for.
    pub(super) trimmed: Vec<String>,
    /// Number of rows that were looked for; `None` without `--against-table`.
    pub(super) rows: Option<u64>,
    /// `--allow-repeats`.
    pub(super) allow_repeats: bool,
}

impl Report {
    /// Returns true if something is wrong.
    pub(super) fn is_wrong(&self) -> bool {
        KINDS.iter().any(|(kind, ..)| {
            let allowed = *kind == FindingKind::Repeated && self.allow_repeats;
            !allowed && self.findings.count(*kind) > 0
        })
    }

    fn latency(&self) -> Option<Spread> {
        Spread::by(|share| self.findings.latency_ms.at(share))
    }

    fn place(&self, at: At) -> String {
        let topic = self.topics.get(at.topic as usize);
        let topic = topic.map_or("", String::as_str);
        format!("{topic}[{}]@{}", at.partition, at.offset)
    }

    pub(super) fn json(&self) -> Value {
        let of = &self.findings;
        let mut report = json!({
            "wrong": self.is_wrong(),
            "topics": self.topics,
            "records": of.records,
            "events": of.events,
            "keys": of.keys,
            "rows": self.rows,
            "without_id": of.without_id,
            "sent_again": of.on_purpose,
            "unjudged": of.unjudged,
            "forgot": of.forgot,
            "positions": of.positions,
            "begin_late": self.trimmed,
            "largest_distance": of.largest_distance,
            "commit_to_record_ms": self.latency(),
            "latency_unknown": of.untimed > 0,
        });
        for (kind, name, ..) in KINDS {
            let shown = of.shown.get(&kind).map_or(&[][..], Vec::as_slice);
            let shown = shown.iter().map(|finding| {
                json!({
                    "id": finding.id,
                    "at": finding.at.map(|at| self.place(at)),
                    "other": finding.other.map(|other| self.place(other)),
                })
            });
            let shown: Vec<Value> = shown.collect();
            report[name] = json!({ "count": of.count(kind), "first": shown });
        }
        report
    }

    fn write_finding(
        &self,
        f: &mut fmt::Formatter<'_>,
        finding: &Finding,
        relation: &str,
    ) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(finding.id.clone());
        words.extend(finding.at.map(|at| format!("at {}", self.place(at))));
        let mut line = words.join(" ");
        if let Some(other) = finding.other {
            line = format!("{line}, {relation} {}", self.place(other));
        }
        writeln!(f, "          {}", printable(&line))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.findings;
        writeln!(
            f,
            "{} records of {}: {} events, {} keys",
            of.records,
            printable(&self.topics.join(", ")),
            of.events,
            of.keys
        )?;
        let order = if of.positions {
            "position in the log"
        } else {
            "first deliveries: no record has a position"
        };
        writeln!(f, "order of a key: {order}")?;
        for (kind, _, what, relation) in KINDS {
            if kind == FindingKind::Lost && self.rows.is_none() {
                continue;
            }
            write!(f, "{:8}  {what}", of.count(kind))?;
            match (kind, self.rows) {
                (FindingKind::Repeated, _) if of.largest_distance > 0 => {
                    write!(f, ", at most {} offsets apart", of.largest_distance)?;
                }
                (FindingKind::Lost, Some(rows)) => write!(f, ", of {rows} rows")?,
                _ => {}
            }
            writeln!(f)?;
            for finding in of.shown.get(&kind).into_iter().flatten() {
                self.write_finding(f, finding, relation)?;
            }
        }
        for (count, what) in [
            (of.without_id, "records have no event's id: not looked at"),
            (
                of.on_purpose,
                "records were sent by replay or resend: no findings",
            ),
            (
                of.unjudged,
                "records or keys are not judged: earlier ones were not read, or are forgotten",
            ),
        ] {
            if count > 0 {
                writeln!(f, "{count:8}  {what}")?;
            }
        }
        if of.forgot {
            writeln!(
                f,
                "ids and keys were forgotten: repeats further apart are not seen (--remember)"
            )?;
        }
        if !self.trimmed.is_empty() {
            writeln!(
                f,
                "records are gone that the topic had before, by retention, compaction or a consumer: {}",
                printable(&self.trimmed.join(", "))
            )?;
        }
        if let Some(Spread { p50, p90, p99, max }) = self.latency() {
            writeln!(
                f,
                "commit to record: p50 {p50} ms, p90 {p90} ms, p99 {p99} ms, max {max} ms"
            )?;
        }
        if of.untimed > 0 {
            writeln!(
                f,
                "commit to record: unknown of {} records: the topic does not tell when they were written",
                of.untimed
            )?;
        }
        let verdict = if self.is_wrong() {
            "something is wrong"
        } else {
            "nothing is wrong"
        };
        writeln!(f, "{verdict}")
    }
}
