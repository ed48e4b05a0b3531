//! Dates and times: parses texts of Postgres (`DateStyle` ISO, set by the relay) and of RFC 3339; the
//! calendar.

use std::ops::RangeInclusive;

use super::Part;

/// A date; time of day and offset if the text has them.
pub(crate) struct Printed<'t> {
    pub(crate) date: Date,
    /// Absent of a `date`.
    pub(crate) clock: Option<Clock<'t>>,
    pub(crate) offset: Option<Offset<'t>>,
}

/// A day of the calendar. A day beyond the end of the month belongs to the next month.
#[derive(Clone, Copy)]
pub(crate) struct Date {
    /// By astronomers' count: 1 BC is 0.
    year: i64,
    month: u8,
    day: u8,
}

#[derive(Clone, Copy)]
pub(crate) struct Clock<'t> {
    /// `10:34:56.789012`.
    text: &'t [u8],
    /// 24 at most: Postgres knows 24:00:00.
    pub(crate) hour: i64,
    /// Since midnight. A second 60 is the next minute's first.
    pub(crate) seconds: i64,
    pub(crate) nanos: i64,
    /// Digits after the point.
    pub(crate) digits: usize,
}

/// `Z`, `+02`, `-03:30` or `+00:19:32`.
#[derive(Clone, Copy)]
pub(crate) struct Offset<'t> {
    text: &'t [u8],
    /// East of Greenwich.
    pub(crate) seconds: i64,
}

/// Appends the ISO 8601 form, `2024-02-29T10:34:56.789012Z`, which needs no escape in JSON. Appends
/// nothing and gives `false` for other texts, such as `infinity`.
pub(crate) fn iso(text: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(printed) = parse(text) else {
        return false;
    };
    let Date { year, month, day } = printed.date;
    let sign = if year < 0 { "-" } else { "" };
    // Years beyond 9999 are written in full.
    Part::printed(
        format_args!("{sign}{:04}-{month:02}-{day:02}", year.unsigned_abs()),
        out,
    );
    if let Some(clock) = printed.clock {
        out.push(b'T');
        out.extend_from_slice(clock.text);
    }
    match printed.offset {
        None => {}
        Some(Offset { seconds: 0, .. }) => out.push(b'Z'),
        Some(Offset { text, .. }) => {
            out.extend_from_slice(text);
            // ISO 8601 mixes no extended time with a basic offset.
            if text.len() == 3 {
                out.extend_from_slice(b":00");
            }
        }
    }
    true
}

/// Milliseconds since 1970 UTC, rounded towards the past, of a point in time (UTC without an offset) or
/// of such a number. `None` for other texts, and before 1970: Kafka's timestamps are not negative.
pub(crate) fn millis(text: &[u8]) -> Option<i64> {
    let number = std::str::from_utf8(text).ok().map(str::parse);
    let millis = if let Some(Ok(millis)) = number {
        millis
    } else {
        let printed = parse(text)?;
        let nanos = printed.clock.map_or(0, |clock| clock.nanos);
        let seconds = printed.seconds();
        seconds.checked_mul(1000)?.checked_add(nanos / 1_000_000)?
    };
    (millis >= 0).then_some(millis)
}

impl Printed<'_> {
    /// Whole seconds since 1970 UTC; without an offset, UTC is meant.
    pub(crate) fn seconds(&self) -> i64 {
        let of_day = self.clock.map_or(0, |clock| clock.seconds);
        let east = self.offset.map_or(0, |offset| offset.seconds);
        self.date.days() * 86_400 + of_day - east
    }
}

impl Date {
    /// Since 1970-01-01, by Howard Hinnant's `days_from_civil`. A year has at most nine digits.
    pub(crate) fn days(self) -> i64 {
        let (month, day) = (i64::from(self.month), i64::from(self.day));
        let year = if month <= 2 { self.year - 1 } else { self.year };
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        year.div_euclid(400) * 146_097 + day_of_era - 719_468
    }

    pub(crate) fn is_real(self) -> bool {
        let (year, month, day) = (self.year, i64::from(self.month), i64::from(self.day));
        gregorian(self.days()) == (year, month, day)
    }
}

/// Parses a date, then nothing, or a time with or without an offset.
pub(crate) fn parse(text: &[u8]) -> Option<Printed<'_>> {
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
    let (clock, offset) = if rest.is_empty() {
        (None, None)
    } else {
        byte(&mut rest, b" Tt")?;
        let (clock, offset) = clock(rest)?;
        (Some(clock), offset)
    };
    Some(Printed {
        date: Date { year, month, day },
        clock,
        offset,
    })
}

pub(crate) fn clock(text: &[u8]) -> Option<(Clock<'_>, Option<Offset<'_>>)> {
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
    let clock = Clock {
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
    Some((clock, offset))
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

fn two_digits(rest: &mut &[u8], within: RangeInclusive<i64>) -> Option<i64> {
    digits(rest, 2..=2).filter(|number| within.contains(number))
}

/// Takes as many digits as `count` allows, nine at most.
fn digits(rest: &mut &[u8], count: RangeInclusive<usize>) -> Option<i64> {
    let most = rest.iter().take(*count.end());
    let found = most.take_while(|byte| byte.is_ascii_digit()).count();
    if !count.contains(&found) {
        return None;
    }
    let (number, tail) = rest.split_at(found);
    *rest = tail;
    let digit = |sum, digit: &u8| sum * 10 + i64::from(digit - b'0');
    Some(number.iter().fold(0, digit))
}

/// Year, month and day of the Gregorian calendar.
pub(crate) fn gregorian(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let century = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    month_and_day(century * 400 + year, day)
}

/// Year, month and day of the Julian calendar.
pub(crate) fn julian(days: i64) -> (i64, i64, i64) {
    let days = days + 719_470;
    let cycle = days.div_euclid(1461);
    let day = days.rem_euclid(1461);
    let year = (day - day / 1460) / 365;
    month_and_day(cycle * 4 + year, day - 365 * year)
}

/// Years begin in March here.
fn month_and_day(year: i64, day_of_year: i64) -> (i64, i64, i64) {
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    if month < 10 {
        (year, month + 3, day)
    } else {
        (year + 1, month - 9, day)
    }
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
    fn what_postgres_prints_becomes_iso() {
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
            // Beyond 64 bits, to either side of zero if it wrapped.
            ("600000000-01-01", None),
            ("999999999-12-31 23:59:59+00", None),
        ] {
            assert_eq!(millis(text.as_bytes()), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_clock_of_the_wire(micros in 0..(i64::MAX / 2)) {
            // PgTimestamp counts and prints for itself.
            let time = walrelay_pgoutput::PgTimestamp::new(micros);
            let printed = time.to_string();
            prop_assert_eq!(millis(printed.as_bytes()), Some(time.unix_millis()));
            prop_assert_eq!(as_iso(&printed), Some(printed));
        }

        #[test]
        fn any_text_is_taken(text in "[0-9:. TZ+-]{0,32}") {
            let _ = millis(text.as_bytes());
            as_iso(&text);
        }
    }
}
