//! Parses dates and times in JSON strings: RFC 3339, and the forms that Postgres prints.

use super::node::Unit;
use crate::value::time::{self, DateTime, TimeOfDay};

/// Returns the days since 1970-01-01 of a date such as `2026-01-02`.
pub(super) fn date(text: &str) -> Option<i64> {
    let date_time = parse(text)?;
    date_time.time.is_none().then(|| date_time.date.days())
}

/// Returns the units since midnight of a time such as `03:04:05`, optionally with a fraction.
pub(super) fn time(text: &str, unit: Unit) -> Option<i64> {
    let (time, offset) = time::time(text.as_bytes())?;
    if offset.is_some() || time.seconds >= 86_400 {
        return None;
    }
    count(time.seconds, time, unit)
}

/// Returns the units since 1970 of a date and a time with an offset, or without one if `local`.
/// Truncated to the unit, towards the past.
pub(super) fn timestamp(text: &str, unit: Unit, local: bool) -> Option<i64> {
    let date_time = parse(text)?;
    let time = date_time.time.filter(is_real)?;
    if date_time.offset.is_none() != local {
        return None;
    }
    count(date_time.seconds(), time, unit)
}

/// Parses a date of the calendar whose year has four digits, with or without a time.
fn parse(text: &str) -> Option<DateTime<'_>> {
    let date_time = time::parse(text.as_bytes())?;
    let is_plain = text.as_bytes().get(4) == Some(&b'-') && !text.ends_with("BC");
    (is_plain && date_time.date.is_real()).then_some(date_time)
}

/// Returns true if the time of day is valid: 24:00:00 is the only time with hour 24.
fn is_real(time: &TimeOfDay<'_>) -> bool {
    time.hour < 24 || time.seconds == 86_400 && time.nanos == 0
}

fn count(seconds: i64, time: TimeOfDay<'_>, unit: Unit) -> Option<i64> {
    let per_second = i128::from(unit);
    let fraction = i128::from(time.nanos) * per_second / 1_000_000_000;
    i64::try_from(i128::from(seconds) * per_second + fraction).ok()
}
