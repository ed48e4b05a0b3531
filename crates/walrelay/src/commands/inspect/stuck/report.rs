//! The rows without evidence that they were sent, and why. No I/O.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use walrelay_observe::printable;
use walrelay_postgres_source::UnseenRow;
use walrelay_sink::EventPosition;

use crate::commands::terminal::units::Table;

/// The evidence by which rows count as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Basis {
    /// `mark_sent`.
    Marks,
    /// The account that `[prune]` keeps.
    Account,
    /// No evidence of single rows is kept: only rows behind the slot's position, rows of open dead letters,
    /// and rows that the publication leaves out are found.
    Position,
}

impl Basis {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Marks => "marks",
            Self::Account => "account",
            Self::Position => "position",
        }
    }
}

/// The reason why there is no evidence of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The slot has not confirmed it, and no running relay is known to have read it.
    BehindSlot,
    /// The running relay has read it, and the sink has not acknowledged it.
    WaitsForSink,
    /// It has an open dead letter.
    DeadLetter,
    /// The publication leaves it out now.
    NotPublished,
    /// The slot is beyond it, and nothing shows that the slot carried it.
    NeverSeen,
    /// The log behind the slot was not read to its end, or the dead letters could not be read.
    Unknown,
}

impl Why {
    const fn name(self) -> &'static str {
        match self {
            Self::BehindSlot => "behind-slot",
            Self::WaitsForSink => "waits-for-sink",
            Self::DeadLetter => "dead-letter",
            Self::NotPublished => "not-published",
            Self::NeverSeen => "never-seen",
            Self::Unknown => "unknown",
        }
    }
}

/// The events behind the slot's position, and what is known of the relay.
#[derive(Debug, Clone, Default)]
pub(super) struct Behind {
    /// Positions by the event's id.
    pub(super) positions: HashMap<String, EventPosition>,
    /// The log was read to its end.
    pub(super) is_whole: bool,
    /// The dead letters could be read.
    pub(super) knows_dead_letters: bool,
    /// The position up to which the running relay has read; `None` if it does not tell.
    pub(super) received: Option<u64>,
}

impl Behind {
    /// Returns the reason why there is no evidence of a row.
    pub(super) fn why(&self, row: &UnseenRow) -> Why {
        let position = row.id.as_ref().and_then(|id| self.positions.get(id));
        match position {
            _ if row.has_dead_letter => Why::DeadLetter,
            Some(at) if self.received.is_some_and(|received| received > at.lsn) => {
                Why::WaitsForSink
            }
            Some(_) => Why::BehindSlot,
            None if !row.is_published => Why::NotPublished,
            None if self.is_whole && self.knows_dead_letters => Why::NeverSeen,
            None => Why::Unknown,
        }
    }
}

/// A row, as the report has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StuckRow {
    pub(super) table: String,
    pub(super) row: UnseenRow,
    pub(super) why: Why,
}

/// Rows of ten minutes that are more, or fewer, than those of the account, and that it cannot tell apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) table: String,
    pub(super) from_ms: i64,
    pub(super) rows: i64,
    /// Rows that became dead letters which are lost, or which the relay of another slot has not settled.
    pub(super) dead_letters: i64,
}

/// The report.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) basis: Basis,
    pub(super) older_than: Duration,
    pub(super) now_ms: i64,
    /// The rows, the oldest first.
    pub(super) rows: Vec<StuckRow>,
    pub(super) buckets: Vec<Bucket>,
    /// There are more rows than were asked for.
    pub(super) is_cut: bool,
    /// Why the log behind the slot's position is not known.
    pub(super) log_problem: Option<String>,
    /// Why the dead letters are not known.
    pub(super) letters_problem: Option<String>,
}

impl Report {
    /// Returns true if there are rows without evidence.
    pub(super) fn has_findings(&self) -> bool {
        !self.rows.is_empty() || !self.buckets.is_empty()
    }

    /// Returns false if rows without evidence may be missing, because a place could not be read.
    pub(super) fn is_known(&self) -> bool {
        self.basis != Basis::Position || self.log_problem.is_none()
    }

    fn age(&self, at_ms: i64) -> u64 {
        u64::try_from(self.now_ms.saturating_sub(at_ms) / 1000).unwrap_or(0)
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|one| {
            json!({
                "table": one.table,
                "id": one.row.id,
                "type": one.row.kind,
                "at_ms": one.row.at_ms,
                "age_seconds": self.age(one.row.at_ms),
                "why": one.why.name(),
            })
        });
        let buckets = self.buckets.iter().map(|one| {
            json!({
                "table": one.table,
                "from_ms": one.from_ms,
                "rows": one.rows,
                "dead_letters": one.dead_letters,
            })
        });
        json!({
            "evidence": self.basis.name(),
            "older_than_seconds": self.older_than.as_secs(),
            "rows": rows.collect::<Vec<_>>(),
            "buckets": buckets.collect::<Vec<_>>(),
            "more": self.is_cut,
            "log_problem": self.log_problem,
            "dead_letter_problem": self.letters_problem,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.rows.is_empty() {
            let mut table = Table::new(["age", "table", "id", "type", "why"].into_iter());
            for one in &self.rows {
                let cells = [
                    Some(format!("{} s", self.age(one.row.at_ms))),
                    Some(one.table.clone()),
                    one.row.id.clone(),
                    one.row.kind.clone(),
                    Some(one.why.name().to_owned()),
                ];
                table.add(cells.into_iter());
            }
            write!(f, "{table}")?;
        }
        for Bucket {
            table,
            from_ms,
            rows,
            dead_letters,
        } in &self.buckets
        {
            if *dead_letters > 0 {
                writeln!(
                    f,
                    "{table} has {dead_letters} rows that became dead letters which are lost, or which the relay of another \
                     slot has not settled, in the ten minutes from {} s ago",
                    self.age(*from_ms)
                )?;
                continue;
            }
            let (number, word) = (
                rows.unsigned_abs(),
                if *rows < 0 { "fewer" } else { "more" },
            );
            let how = if *rows == 0 {
                "other rows than".to_owned()
            } else {
                format!("{number} rows {word} than")
            };
            writeln!(
                f,
                "{table} has {how} were accounted as sent, in the ten minutes from {} s ago; which ones, the account does not \
                 tell",
                self.age(*from_ms)
            )?;
        }
        if self.is_cut {
            writeln!(f, "and more rows: --limit")?;
        }
        if let Some(why) = &self.log_problem {
            writeln!(
                f,
                "the log behind the slot is not known: {}",
                printable(why)
            )?;
        }
        if let Some(why) = &self.letters_problem {
            writeln!(f, "the dead letters are not known: {}", printable(why))?;
        }
        let seconds = self.older_than.as_secs();
        match (self.has_findings(), self.basis) {
            (true, _) => writeln!(
                f,
                "no evidence that these rows, older than {seconds} s, were sent"
            ),
            (false, Basis::Position) if !self.is_known() => writeln!(
                f,
                "not known: rows older than {seconds} s may be behind the slot. Run the command again"
            ),
            (false, Basis::Position) => writeln!(
                f,
                "no row older than {seconds} s is behind the slot, a dead letter, or left out by the publication. Of other rows \
                 no evidence is kept: set [source] mark_sent or [prune] keep"
            ),
            (false, Basis::Account) => writeln!(
                f,
                "each row older than {seconds} s and of a past ten minutes counts as sent: acknowledged, or accepted by you (before_slot, walrelay prune \
                 --accept)"
            ),
            (false, Basis::Marks) => writeln!(
                f,
                "there is evidence that each row older than {seconds} s was sent"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str) -> UnseenRow {
        UnseenRow {
            at_ms: 1_000,
            id: Some(id.to_owned()),
            kind: Some("order.placed".to_owned()),
            is_published: true,
            has_dead_letter: false,
        }
    }

    #[test]
    fn the_reason_is_told_by_evidence() {
        let position = EventPosition::in_first_epoch(0x200, 1);
        let behind = |received, is_whole| Behind {
            positions: HashMap::from([("a".to_owned(), position)]),
            is_whole,
            knows_dead_letters: true,
            received,
        };
        let unknown = Behind {
            knows_dead_letters: false,
            ..behind(None, true)
        };
        assert_eq!(unknown.why(&row("b")), Why::Unknown);
        let dead = UnseenRow {
            has_dead_letter: true,
            ..row("a")
        };
        let left_out = UnseenRow {
            is_published: false,
            ..row("b")
        };
        for (expected, row, received, is_whole) in [
            (Why::BehindSlot, row("a"), None, true),
            (Why::BehindSlot, row("a"), Some(0x200), true),
            (Why::WaitsForSink, row("a"), Some(0x201), false),
            (Why::DeadLetter, dead, Some(0x201), true),
            (Why::NotPublished, left_out, None, false),
            (Why::NeverSeen, row("b"), None, true),
            (Why::Unknown, row("b"), None, false),
        ] {
            let found = behind(received, is_whole).why(&row);
            assert_eq!(found, expected, "{row:?} {received:?}");
        }
    }

    #[test]
    fn the_report_names_rows_and_says_what_it_knows() {
        let report = |basis, rows: Vec<StuckRow>, buckets| Report {
            basis,
            older_than: Duration::from_secs(300),
            now_ms: 601_000,
            rows,
            buckets,
            is_cut: false,
            log_problem: None,
            letters_problem: None,
        };
        let stuck = StuckRow {
            table: "public.outbox".to_owned(),
            row: row("a"),
            why: Why::NeverSeen,
        };
        let bucket = |rows| Bucket {
            table: "public.outbox".to_owned(),
            from_ms: 0,
            rows,
            dead_letters: 0,
        };
        let found = report(Basis::Account, vec![stuck], vec![bucket(2), bucket(-1)]);
        let text = found.to_string();
        for words in [
            "600 s  public.outbox  a   order.placed  never-seen\n",
            "public.outbox has 2 rows more than were accounted as sent, in the ten minutes from 601 s ago",
            "1 rows fewer than",
            "no evidence that these rows, older than 300 s, were sent\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(found.has_findings());
        assert_eq!(found.json()["rows"][0]["why"], json!("never-seen"));
        // Rows of before the slot count by the user's word.
        let none = report(Basis::Account, Vec::new(), Vec::new()).to_string();
        assert!(none.contains("acknowledged, or accepted by you"), "{none}");
        let none = report(Basis::Marks, Vec::new(), Vec::new());
        assert!(
            none.to_string()
                .starts_with("there is evidence that each row")
        );
        let lost = Bucket {
            dead_letters: 3,
            ..bucket(0)
        };
        let text = report(Basis::Account, Vec::new(), vec![lost]).to_string();
        assert!(
            text.contains("has 3 rows that became dead letters which are lost"),
            "{text}"
        );
        // Without the log nothing is claimed of rows that may be in it.
        let mut unread = report(Basis::Position, Vec::new(), Vec::new());
        unread.log_problem = Some("no free slot".to_owned());
        assert!(
            !unread.is_known()
                && unread
                    .to_string()
                    .contains("not known: rows older than 300 s")
        );
        // Without evidence nothing is claimed.
        let none = report(Basis::Position, Vec::new(), Vec::new()).to_string();
        assert!(none.contains("Of other rows no evidence is kept"), "{none}");
    }
}
