//! Names the rows of a table that stay, because they are not those that were accounted as sent.

use std::fmt;

use walrelay_pgoutput::calendar::gregorian;
use walrelay_relay::{BUCKET_SECONDS, TableName};

use super::policy::Difference;

/// Buckets that are named in a message, at most.
const NAMED: usize = 3;

/// Rows of a table that are not those that were accounted as sent, so they stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unaccounted {
    /// The table, or the partition that is not dropped.
    pub table: TableName,
    /// The buckets that differ.
    pub buckets: Vec<Difference>,
    /// The stores to which dead letters of these rows were written. Read only if some are missing.
    pub stores: Vec<String>,
    /// The store of dead letters that the configuration names.
    pub read: String,
    /// Columns of the key that the publication does not carry. Without them no row is accounted.
    pub unpublished_key: Vec<String>,
}

/// The way in which rows differ from the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Rows are missing, too many, or others.
    OtherRows,
    /// The store does not have the dead letters of some rows.
    MissingDeadLetters,
    /// Other relays have not settled the dead letters of some rows.
    UnsettledDeadLetters,
}

impl DifferenceKind {
    /// All ways, in the order of messages.
    const ALL: [Self; 3] = [
        Self::OtherRows,
        Self::MissingDeadLetters,
        Self::UnsettledDeadLetters,
    ];
}

impl Unaccounted {
    /// Returns true if rows are missing, too many, or others.
    pub fn has_other_rows(&self) -> bool {
        self.has(DifferenceKind::OtherRows)
    }

    /// Returns true if a bucket differs in this way.
    fn has(&self, kind: DifferenceKind) -> bool {
        self.buckets.iter().any(|one| match kind {
            DifferenceKind::OtherRows => one.rows_differ,
            DifferenceKind::MissingDeadLetters => one.lost_dead_letters > 0,
            DifferenceKind::UnsettledDeadLetters => one.unsettled > 0,
        })
    }

    /// Names the rows that differ in this way; `None` if there are none.
    pub fn text_of(&self, kind: DifferenceKind) -> Option<String> {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_kinds(&mut text, &[kind]);
        self.has(kind).then_some(text)
    }

    /// Writes the table, and the rows that differ in these ways.
    fn write_kinds(&self, f: &mut dyn fmt::Write, kinds: &[DifferenceKind]) -> fmt::Result {
        write!(f, "rows of {} stay: ", self.table)?;
        let kinds = kinds.iter().filter(|kind| self.has(**kind));
        for (number, kind) in kinds.enumerate() {
            if number > 0 {
                write!(f, "; ")?;
            }
            match kind {
                DifferenceKind::OtherRows => self.write_rows(f)?,
                DifferenceKind::MissingDeadLetters => self.write_dead_letters(f)?,
                DifferenceKind::UnsettledDeadLetters => self.write_unsettled(f)?,
            }
        }
        if !self.unpublished_key.is_empty() {
            let columns = self.unpublished_key.join(", ");
            write!(
                f,
                "; no row is accounted while the publication's column list lacks {columns} of the table's key"
            )?;
        }
        Ok(())
    }

    fn write_rows(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let buckets = self.buckets.iter().filter(|one| one.rows_differ);
        let buckets: Vec<&Difference> = buckets.collect();
        let sum = |each: fn(&Difference) -> i64| buckets.iter().map(|one| each(one)).sum::<i64>();
        let more = sum(|one| (one.present - one.accounted).max(0));
        let fewer = sum(|one| (one.accounted - one.present).max(0));
        write!(f, "it has ")?;
        match (more, fewer) {
            (0, 0) => write!(f, "other rows than were accounted as sent")?,
            (more, 0) => write!(f, "{more} rows more than were accounted as sent")?,
            (0, fewer) => write!(f, "{fewer} rows fewer than were accounted as sent")?,
            (more, fewer) => write!(
                f,
                "{more} rows more in some ten minutes, and {fewer} fewer in others, than were accounted as sent"
            )?,
        }
        write_times(f, &buckets)
    }

    fn write_dead_letters(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let buckets = self.buckets.iter().filter(|one| one.lost_dead_letters > 0);
        let buckets: Vec<&Difference> = buckets.collect();
        let rows: i64 = buckets.iter().map(|one| one.lost_dead_letters).sum();
        let (stores, read) = (self.stores.join(" and "), &self.read);
        if self.stores.iter().eq([read]) {
            write!(
                f,
                "{rows} of its rows became dead letters in {stores}, which does not have them any more"
            )?;
        } else {
            write!(
                f,
                "{rows} of its rows became dead letters in {stores}, and [poison] topic is {read} now"
            )?;
        }
        write_times(f, &buckets)
    }

    fn write_unsettled(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let buckets = self.buckets.iter().filter(|one| one.unsettled > 0);
        let buckets: Vec<&Difference> = buckets.collect();
        let rows: i64 = buckets.iter().map(|one| one.unsettled).sum();
        write!(
            f,
            "{rows} of its rows became dead letters of other relays, which have not settled them"
        )?;
        write_times(f, &buckets)
    }
}

impl fmt::Display for Unaccounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_kinds(f, &DifferenceKind::ALL)
    }
}

/// Writes the times of the first buckets.
fn write_times(f: &mut dyn fmt::Write, buckets: &[&Difference]) -> fmt::Result {
    write!(f, ", in the ten minutes from ")?;
    for (number, one) in buckets.iter().take(NAMED).enumerate() {
        let comma = if number > 0 { ", " } else { "" };
        write!(f, "{comma}{}", Time(one.bucket))?;
    }
    if buckets.len() > NAMED {
        write!(f, " and {} more", buckets.len() - NAMED)?;
    }
    Ok(())
}

/// The time when a bucket starts.
struct Time(i64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.saturating_mul(BUCKET_SECONDS);
        let (year, month, day) = gregorian(seconds.div_euclid(86_400));
        let minute = seconds.rem_euclid(86_400) / 60;
        let (hour, minute) = (minute / 60, minute % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(buckets: &[Difference], stores: &[&str]) -> String {
        let unaccounted = Unaccounted {
            table: TableName::new("public", "outbox"),
            buckets: buckets.to_vec(),
            stores: stores.iter().map(ToString::to_string).collect(),
            read: "dlq".to_owned(),
            unpublished_key: Vec::new(),
        };
        unaccounted.to_string()
    }

    #[test]
    fn a_message_names_rows_and_dead_letters_that_differ() {
        let rows = |bucket, present, accounted| Difference {
            bucket,
            present,
            accounted,
            rows_differ: true,
            ..Difference::default()
        };
        let lost = |bucket| Difference {
            bucket,
            present: 9,
            accounted: 9,
            lost_dead_letters: 2,
            ..Difference::default()
        };
        let unsettled = |bucket| Difference {
            bucket,
            unsettled: 3,
            ..Difference::default()
        };
        for (buckets, stores, expected) in [
            (
                vec![rows(0, 3, 1)],
                &[][..],
                "it has 2 rows more than were accounted as sent, in the ten minutes from 1970-01-01 00:00Z",
            ),
            (
                vec![rows(0, 3, 1), rows(1, 1, 5), rows(2, 1, 1), rows(3, 2, 1)],
                &[],
                "it has 3 rows more in some ten minutes, and 4 fewer in others, than were accounted as sent, in the ten \
                 minutes from 1970-01-01 00:00Z, 1970-01-01 00:10Z, 1970-01-01 00:20Z and 1 more",
            ),
            (
                vec![lost(0), lost(6)],
                &["dlq"],
                "4 of its rows became dead letters in dlq, which does not have them any more, in the ten minutes from \
                 1970-01-01 00:00Z, 1970-01-01 01:00Z",
            ),
            (
                vec![unsettled(6)],
                &[],
                "3 of its rows became dead letters of other relays, which have not settled them, in the ten minutes from \
                 1970-01-01 01:00Z",
            ),
            (
                vec![lost(0), rows(6, 5, 5)],
                &["dlq", "former"],
                "it has other rows than were accounted as sent, in the ten minutes from 1970-01-01 01:00Z; 2 of its rows \
                 became dead letters in dlq and former, and [poison] topic is dlq now, in the ten minutes from 1970-01-01 \
                 00:00Z",
            ),
        ] {
            let expected = format!("rows of public.outbox stay: {expected}");
            assert_eq!(message(&buckets, stores), expected);
        }
    }
}
