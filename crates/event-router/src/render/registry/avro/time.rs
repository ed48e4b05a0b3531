//! Dates and times in JSON texts: RFC 3339, and what Postgres prints.

use super::node::Unit;
use crate::value::time::{self, Clock, Printed};

/// Days since 1970-01-01 of `2026-01-02`.
pub(super) fn date(text: &str) -> Option<i64> {
    let printed = parse(text)?;
    printed.clock.is_none().then(|| printed.date.days())
}

/// Since midnight, of `03:04:05` with or without a fraction.
pub(super) fn time(text: &str, unit: Unit) -> Option<i64> {
    let (clock, offset) = time::clock(text.as_bytes())?;
    if offset.is_some() || clock.seconds >= 86_400 {
        return None;
    }
    count(clock.seconds, clock, unit)
}

/// Since 1970, of a date and a time with an offset; of a local one without. What is finer than the unit
/// is cut off, towards the past.
pub(super) fn timestamp(text: &str, unit: Unit, local: bool) -> Option<i64> {
    let printed = parse(text)?;
    let clock = printed.clock.filter(is_real)?;
    if printed.offset.is_none() != local {
        return None;
    }
    count(printed.seconds(), clock, unit)
}

/// Years of four digits, and days that there are.
fn parse(text: &str) -> Option<Printed<'_>> {
    let printed = time::parse(text.as_bytes())?;
    let is_plain = text.as_bytes().get(4) == Some(&b'-') && !text.ends_with("BC");
    (is_plain && printed.date.is_real()).then_some(printed)
}

/// 24:00:00 is the only time of hour 24.
fn is_real(clock: &Clock<'_>) -> bool {
    clock.hour < 24 || clock.seconds == 86_400 && clock.nanos == 0
}

fn count(seconds: i64, clock: Clock<'_>, unit: Unit) -> Option<i64> {
    let per_second = i128::from(unit);
    let fraction = i128::from(clock.nanos) * per_second / 1_000_000_000;
    i64::try_from(i128::from(seconds) * per_second + fraction).ok()
}
