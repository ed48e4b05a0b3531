//! Dates and times in JSON texts: RFC 3339, and what Postgres prints.

use super::Unit;
use crate::calendar::days;

const DAY_SECONDS: i64 = 86_400;

impl Unit {
    fn per_second(self) -> i128 {
        match self {
            Self::Millis => 1_000,
            Self::Micros => 1_000_000,
            Self::Nanos => 1_000_000_000,
        }
    }
}

/// Days since 1970-01-01 of `2026-01-02`.
pub(super) fn date(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes.get(4) != Some(&b'-') || bytes.get(7) != Some(&b'-') {
        return None;
    }
    let number = |range| digits(text.get(range)?);
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=last).contains(&day) {
        return None;
    }
    days(year, u8::try_from(month).ok()?, u8::try_from(day).ok()?)
}

/// Since midnight, of `03:04:05` with or without a fraction.
pub(super) fn time(text: &str, unit: Unit) -> Option<i64> {
    let (seconds, nanos) = clock(text)?;
    if seconds >= DAY_SECONDS {
        return None;
    }
    i64::try_from(count(seconds, nanos, unit)).ok()
}

/// Since 1970, of a date and a time with an offset; of a local one without. What is finer than the unit
/// is cut off, towards the past.
pub(super) fn timestamp(text: &str, unit: Unit, local: bool) -> Option<i64> {
    let day = date(text.get(..10)?)?;
    let rest = text.get(10..)?.strip_prefix(['T', 't', ' '])?;
    let (time, offset) = match rest.strip_suffix(['Z', 'z']) {
        Some(time) => (time, Some(0)),
        None => match rest.rfind(['+', '-']) {
            Some(at) => {
                let (time, offset) = rest.split_at(at);
                (time, Some(self::offset(offset)?))
            }
            None => (rest, None),
        },
    };
    if offset.is_none() != local {
        return None;
    }
    let (seconds, nanos) = clock(time)?;
    let seconds = day * DAY_SECONDS + seconds - offset.unwrap_or(0);
    i64::try_from(count(seconds, nanos, unit)).ok()
}

fn count(seconds: i64, nanos: i64, unit: Unit) -> i128 {
    let per_second = unit.per_second();
    i128::from(seconds) * per_second + i128::from(nanos) * per_second / 1_000_000_000
}

/// Seconds and nanoseconds of `03:04:05.678`. A second 60 is the next minute's first, `24:00:00` the
/// next day.
fn clock(text: &str) -> Option<(i64, i64)> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    let bytes = whole.as_bytes();
    if bytes.len() != 8 || bytes.get(2) != Some(&b':') || bytes.get(5) != Some(&b':') {
        return None;
    }
    let number = |range| digits(whole.get(range)?);
    let (hours, minutes, seconds) = (number(0..2)?, number(3..5)?, number(6..8)?);
    if minutes > 59 || seconds > 60 || hours > 24 || hours == 24 && minutes + seconds > 0 {
        return None;
    }
    let nanos = match fraction {
        None => 0,
        Some(fraction) if (1..=9).contains(&fraction.len()) => {
            let power = 9 - u32::try_from(fraction.len()).ok()?;
            digits(fraction)? * 10_i64.pow(power)
        }
        Some(_) => return None,
    };
    if hours == 24 && nanos > 0 {
        return None;
    }
    Some(((hours * 60 + minutes) * 60 + seconds, nanos))
}

/// Seconds east of Greenwich of `+02`, `-03:30` or `+00:19:32`.
fn offset(text: &str) -> Option<i64> {
    let (sign, rest) = text.split_at_checked(1)?;
    let mut seconds = 0;
    let mut unit = 3600;
    for part in rest.split(':') {
        if part.len() != 2 || unit == 0 {
            return None;
        }
        let number = digits(part)?;
        if unit < 3600 && number > 59 {
            return None;
        }
        seconds += number * unit;
        unit /= 60;
    }
    Some(if sign == "-" { -seconds } else { seconds })
}

fn digits(text: &str) -> Option<i64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}
