//! Dates and times: parses the texts of Postgres (`DateStyle` ISO, which the relay sets) and of RFC
//! 3339, and computes with the calendar.

use std::ops::RangeInclusive;

use walrelay_pgoutput::calendar::{gregorian, month_and_day};

use super::Part;

/// A parsed date, with the time of day and the offset if the text has them.
pub(crate) struct DateTime<'t> {
    pub(crate) date: Date,
    /// `None` for a `date`.
    pub(crate) time: Option<TimeOfDay<'t>>,
    pub(crate) offset: Option<Offset<'t>>,
}

/// A date of the proleptic Gregorian calendar. A day after the end of the month counts on into the
/// next.
#[derive(Clone, Copy)]
pub(crate) struct Date {
    /// Astronomical year: 1 BC is 0.
    year: i64,
    month: u8,
    day: u8,
}

/// A time of day.
#[derive(Clone, Copy)]
pub(crate) struct TimeOfDay<'t> {
    /// The text, such as `10:34:56.789012`.
    text: &'t [u8],
    /// The hour, at most 24: Postgres allows 24:00:00.
    pub(crate) hour: i64,
    /// Seconds since midnight. Second 60 is the first of the next minute.
    pub(crate) seconds: i64,
    pub(crate) nanos: i64,
    /// Number of digits after the point.
    pub(crate) digits: usize,
}

/// An offset from UTC: `Z`, `+02`, `-03:30` or `+00:19:32`.
#[derive(Clone, Copy)]
pub(crate) struct Offset<'t> {
    text: &'t [u8],
    /// Seconds east of Greenwich.
    pub(crate) seconds: i64,
}

/// Appends the ISO 8601 form, such as `2024-02-29T10:34:56.789012Z`, which needs no escape in JSON.
/// For other texts, such as `infinity`, appends nothing and returns `false`.
pub(crate) fn iso(text: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(date_time) = parse(text) else {
        return false;
    };
    let Date { year, month, day } = date_time.date;
    let sign = if year < 0 { "-" } else { "" };
    // `:04` does not truncate years beyond 9999.
    Part::printed(
        format_args!("{sign}{:04}-{month:02}-{day:02}", year.unsigned_abs()),
        out,
    );
    if let Some(time) = date_time.time {
        out.push(b'T');
        out.extend_from_slice(time.text);
    }
    match date_time.offset {
        None => {}
        Some(Offset { seconds: 0, .. }) => out.push(b'Z'),
        Some(Offset { text, .. }) => {
            out.extend_from_slice(text);
            // ISO 8601 allows no basic offset (`+02`) after a time in extended format.
            if text.len() == 3 {
                out.extend_from_slice(b":00");
            }
        }
    }
    true
}

/// Reads the milliseconds since 1970 UTC of a point in time, rounded towards the past, or of a text
/// that is such a number. A time without an offset is in UTC. `None` for other texts, and before
/// 1970: timestamps of Kafka are not negative.
pub(crate) fn millis(text: &[u8]) -> Option<i64> {
    let number = std::str::from_utf8(text).ok().map(str::parse);
    let millis = if let Some(Ok(millis)) = number {
        millis
    } else {
        let date_time = parse(text)?;
        let nanos = date_time.time.map_or(0, |time| time.nanos);
        let seconds = date_time.seconds();
        seconds.checked_mul(1000)?.checked_add(nanos / 1_000_000)?
    };
    (millis >= 0).then_some(millis)
}

/// Returns the microseconds since 1970-01-01 UTC of a `timestamptz`, `timestamp` or `date` as Postgres
/// writes it with `DateStyle` ISO. A text without an offset is in UTC. `None`: the text is no finite
/// time, such as `infinity`, or lies beyond 64 bits.
pub fn epoch_micros(text: &[u8]) -> Option<i64> {
    let parsed = parse(text)?;
    let micros = parsed.time.map_or(0, |time| time.nanos / 1000);
    parsed.seconds().checked_mul(1_000_000)?.checked_add(micros)
}

impl DateTime<'_> {
    /// Returns the whole seconds since 1970 UTC; a time without an offset is in UTC.
    pub(crate) fn seconds(&self) -> i64 {
        let of_day = self.time.map_or(0, |time| time.seconds);
        let east = self.offset.map_or(0, |offset| offset.seconds);
        self.date.days() * 86_400 + of_day - east
    }
}

impl Date {
    /// Returns the days since 1970-01-01, by Howard Hinnant's `days_from_civil`. The year has at
    /// most nine digits.
    pub(crate) fn days(self) -> i64 {
        let (month, day) = (i64::from(self.month), i64::from(self.day));
        let year = if month <= 2 { self.year - 1 } else { self.year };
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        year.div_euclid(400) * 146_097 + day_of_era - 719_468
    }

    /// Returns true if the month has this day.
    pub(crate) fn is_real(self) -> bool {
        let (year, month, day) = (self.year, i64::from(self.month), i64::from(self.day));
        gregorian(self.days()) == (year, month, day)
    }
}

/// Parses a date, optionally with a time of day, which may have an offset.
pub(crate) fn parse(text: &[u8]) -> Option<DateTime<'_>> {
    let (mut rest, before_christ) = match text.strip_suffix(b" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let year = digits(&mut rest, 4..=9)?;
    byte(&mut rest, b"-")?;
    let month = two_digits(&mut rest, 1..=12)? as u8;
    byte(&mut rest, b"-")?;
    let day = two_digits(&mut rest, 1..=31)? as u8;
    let year = if before_christ { 1 - year } else { year };
    let (time, offset) = if rest.is_empty() {
        (None, None)
    } else {
        byte(&mut rest, b" Tt")?;
        let (time, offset) = time(rest)?;
        (Some(time), offset)
    };
    Some(DateTime {
        date: Date { year, month, day },
        time,
        offset,
    })
}

/// Parses a time of day, optionally with an offset.
pub(crate) fn time(text: &[u8]) -> Option<(TimeOfDay<'_>, Option<Offset<'_>>)> {
    let mut rest = text;
    let hour = two_digits(&mut rest, 0..=24)?;
    byte(&mut rest, b":")?;
    let minute = two_digits(&mut rest, 0..=59)?;
    byte(&mut rest, b":")?;
    let second = two_digits(&mut rest, 0..=60)?;
    let (mut nanos, mut places) = (0, 0);
    if byte(&mut rest, b".").is_some() {
        let before = rest.len();
        nanos = digits(&mut rest, 1..=9)?;
        places = before - rest.len();
        nanos *= 10_i64.pow(9 - u32::try_from(places).ok()?);
    }
    let time = TimeOfDay {
        text: text.get(..text.len() - rest.len())?,
        hour,
        seconds: (hour * 60 + minute) * 60 + second,
        nanos,
        digits: places,
    };
    let offset = match rest {
        [] => None,
        _ => Some(offset(rest)?),
    };
    Some((time, offset))
}

fn offset(text: &[u8]) -> Option<Offset<'_>> {
    if matches!(text, b"Z" | b"z") {
        return Some(Offset { text, seconds: 0 });
    }
    let mut rest = text;
    let west = byte(&mut rest, b"+-")? == b'-';
    let mut seconds = 3600 * two_digits(&mut rest, 0..=99)?;
    for unit in [60, 1] {
        if !rest.is_empty() {
            byte(&mut rest, b":")?;
            seconds += unit * two_digits(&mut rest, 0..=59)?;
        }
    }
    let seconds = if west { -seconds } else { seconds };
    rest.is_empty().then_some(Offset { text, seconds })
}

fn byte(rest: &mut &[u8], allowed: &[u8]) -> Option<u8> {
    let (first, tail) = rest.split_first()?;
    allowed.contains(first).then(|| {
        *rest = tail;
        *first
    })
}

/// Takes two digits whose number is in the range.
fn two_digits(rest: &mut &[u8], within: RangeInclusive<i64>) -> Option<i64> {
    digits(rest, 2..=2).filter(|number| within.contains(number))
}

/// Takes as many digits as `count` allows, at most nine.
fn digits(rest: &mut &[u8], count: RangeInclusive<usize>) -> Option<i64> {
    let most = rest.iter().take(*count.end());
    let length = most.take_while(|byte| byte.is_ascii_digit()).count();
    if !count.contains(&length) {
        return None;
    }
    let (number, tail) = rest.split_at(length);
    *rest = tail;
    let digit = |sum, digit: &u8| sum * 10 + i64::from(digit - b'0');
    Some(number.iter().fold(0, digit))
}

/// Returns year, month and day of the Julian calendar, from days since 1970-01-01.
pub(crate) fn julian(days: i64) -> (i64, i64, i64) {
    let days = days + 719_470;
    let cycle = days.div_euclid(1461);
    let day = days.rem_euclid(1461);
    let year = (day - day / 1460) / 365;
    month_and_day(cycle * 4 + year, day - 365 * year)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn as_iso(text: &str) -> Option<String> {
        let mut out = b"at ".to_vec();
        let known = iso(text.as_bytes(), &mut out);
        assert!(known || out.len() == 3);
        known.then(|| String::from_utf8(out).unwrap().split_off(3))
    }

    #[test]
    fn postgres_times_become_iso() {
        for (printed, expected) in [
            (
                "2024-02-29 10:34:56.789012+00",
                "2024-02-29T10:34:56.789012Z",
            ),
            ("2024-02-29 10:34:56+00", "2024-02-29T10:34:56Z"),
            ("2024-02-29 10:34:56+02", "2024-02-29T10:34:56+02:00"),
            ("2024-02-29 10:34:56.5-03:30", "2024-02-29T10:34:56.5-03:30"),
            (
                "1880-01-01 00:00:00+00:19:32",
                "1880-01-01T00:00:00+00:19:32",
            ),
            ("2024-02-29 10:34:56.789", "2024-02-29T10:34:56.789"),
            ("2024-02-29", "2024-02-29"),
            ("0044-03-15 00:00:00+00 BC", "-0043-03-15T00:00:00Z"),
            ("0001-03-15 BC", "0000-03-15"),
            ("12024-02-29 10:34:56+00", "12024-02-29T10:34:56Z"),
        ] {
            assert_eq!(as_iso(printed).as_deref(), Some(expected), "{printed}");
        }
        for other in [
            "infinity",
            "-infinity",
            "29.02.2024 10:34:56",
            "",
            "2024-02-29 ",
        ] {
            assert_eq!(as_iso(other), None, "{other}");
        }
    }

    #[test]
    fn milliseconds_are_those_of_the_epoch() {
        for (text, expected) in [
            ("1970-01-01 00:00:00+00", Some(0)),
            ("1970-01-01 00:00:00.9999+00", Some(999)),
            ("2024-02-29 10:34:56.789012+00", Some(1_709_202_896_789)),
            ("2024-02-29 12:34:56.789012+02", Some(1_709_202_896_789)),
            ("2024-02-29T10:34:56.789012Z", Some(1_709_202_896_789)),
            ("2024-02-29 10:34:56.789012", Some(1_709_202_896_789)),
            ("2024-02-29", Some(1_709_164_800_000)),
            ("2000-03-01 00:00:00+00", Some(951_868_800_000)),
            ("1709202896789", Some(1_709_202_896_789)),
            ("1969-12-31 23:59:59.999+00", None),
            ("0044-03-15 00:00:00+00 BC", None),
            ("-1", None),
            ("infinity", None),
            ("", None),
            ("2024-02-29 10:34", None),
            ("2024-13-01", None),
            ("yesterday", None),
            // Beyond 64 bits; a wrapped result would be negative for the first, positive for the
            // second.
            ("600000000-01-01", None),
            ("999999999-12-31 23:59:59+00", None),
        ] {
            assert_eq!(millis(text.as_bytes()), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_time_agrees_with_pg_timestamp(micros in 0..(i64::MAX / 2)) {
            // PgTimestamp has a calendar and a printer of its own.
            let time = walrelay_pgoutput::PgTimestamp::new(micros);
            let printed = time.to_string();
            prop_assert_eq!(millis(printed.as_bytes()), time.unix_micros().map(|micros| micros.div_euclid(1000)));
            prop_assert_eq!(as_iso(&printed), Some(printed));
        }

        #[test]
        fn no_text_panics(text in "[0-9:. TZ+-]{0,32}") {
            let _ = millis(text.as_bytes());
            as_iso(&text);
        }
    }
}
