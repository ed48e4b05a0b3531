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
}

impl fmt::Display for Unaccounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, buckets) = (&self.table, self.buckets.len());
        let sum = |each: fn(&Difference) -> i64| self.buckets.iter().map(each).sum::<i64>();
        let more = sum(|one| (one.present - one.accounted).max(0));
        let fewer = sum(|one| (one.accounted - one.present).max(0));
        write!(f, "rows of {table} stay: it has ")?;
        match (more, fewer) {
            (0, 0) => write!(f, "other rows than were accounted as sent")?,
            (more, 0) => write!(f, "{more} rows more than were accounted as sent")?,
            (0, fewer) => write!(f, "{fewer} rows fewer than were accounted as sent")?,
            (more, fewer) => write!(
                f,
                "{more} rows more in some ten minutes, and {fewer} fewer in others, than were accounted as sent"
            )?,
        }
        write!(f, ", in the ten minutes from ")?;
        for (number, one) in self.buckets.iter().take(NAMED).enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{}", Time(one.bucket))?;
        }
        if buckets > NAMED {
            write!(f, " and {} more", buckets - NAMED)?;
        }
        Ok(())
    }
}

/// The time when a bucket begins.
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
