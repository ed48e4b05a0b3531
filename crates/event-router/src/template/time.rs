//! Points in time as Postgres prints them (`DateStyle` ISO, which the relay's connection fixes).

use crate::calendar;

/// What Postgres prints of a `date`, `timestamp` or `timestamptz`, taken apart.
struct Printed<'t> {
    /// By astronomers' count: 1 BC is 0.
    year: i64,
    month: u8,
    day: u8,
    /// ` 10:34:56.789012`'s parts; absent of a `date`.
    time: Option<Time<'t>>,
}

struct Time<'t> {
    /// `10:34:56.789012`.
    text: &'t [u8],
    hour: u8,
    minute: u8,
    second: u8,
    millis: u16,
    /// `+02`, `-03:30` or `+00:19:32`: sign, text of hours, rest of it, seconds east of Greenwich.
    offset: Option<Offset<'t>>,
}

#[derive(Clone, Copy)]
struct Offset<'t> {
    text: &'t [u8],
    seconds: i64,
}

/// Appends the ISO 8601 form, `2024-02-29T10:34:56.789012Z`; nothing and `false` where there is none,
/// as of `infinity`. Of what is appended nothing needs an escape in JSON.
pub(crate) fn iso(text: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(printed) = parse(text) else {
        return false;
    };
    if printed.year < 0 {
        out.push(b'-');
    }
    // Years beyond 9999 are written in full.
    push_padded(out, printed.year.unsigned_abs(), 4);
    out.push(b'-');
    push_padded(out, u64::from(printed.month), 2);
    out.push(b'-');
    push_padded(out, u64::from(printed.day), 2);
    let Some(time) = printed.time else {
        return true;
    };
    out.push(b'T');
    out.extend_from_slice(time.text);
    match time.offset {
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

/// Milliseconds since 1970 UTC, rounded towards the past; a text of digits is such a number itself.
/// Without an offset, UTC is meant. `None` where it is neither, or before 1970, for Kafka's
/// timestamps are not negative.
pub(crate) fn millis(text: &[u8]) -> Option<i64> {
    let number = || std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    let millis = match number() {
        Some(millis) => millis,
        None => parse(text)?.millis()?,
    };
    (millis >= 0).then_some(millis)
}

impl Printed<'_> {
    fn millis(&self) -> Option<i64> {
        let mut seconds = calendar::days(self.year, self.month, self.day)?.checked_mul(86_400)?;
        let mut millis = 0;
        if let Some(time) = &self.time {
            let east = time.offset.map_or(0, |offset| offset.seconds);
            let of_day =
                i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + i64::from(time.second);
            seconds = seconds.checked_add(of_day - east)?;
            millis = i64::from(time.millis);
        }
        seconds.checked_mul(1000)?.checked_add(millis)
    }
}

fn parse(text: &[u8]) -> Option<Printed<'_>> {
    let (text, before_christ) = match text.strip_suffix(b" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let mut rest = text;
    let year = i64::try_from(digits(&mut rest, 4..=9)?).ok()?;
    byte(&mut rest, b"-")?;
    let month = two_digits(&mut rest, 1..=12)?;
    byte(&mut rest, b"-")?;
    let day = two_digits(&mut rest, 1..=31)?;
    let time = if rest.is_empty() {
        None
    } else {
        byte(&mut rest, b" T")?;
        Some(time(rest)?)
    };
    Some(Printed {
        year: if before_christ { 1 - year } else { year },
        month,
        day,
        time,
    })
}

fn time(text: &[u8]) -> Option<Time<'_>> {
    let mut rest = text;
    // Postgres knows 24:00:00, and some have seen a second 60.
    let hour = two_digits(&mut rest, 0..=24)?;
    byte(&mut rest, b":")?;
    let minute = two_digits(&mut rest, 0..=59)?;
    byte(&mut rest, b":")?;
    let second = two_digits(&mut rest, 0..=60)?;
    let mut millis = 0;
    if byte(&mut rest, b".").is_some() {
        let before = rest;
        digits(&mut rest, 1..=9)?;
        let fraction = before.get(..before.len() - rest.len())?;
        for place in 0..3 {
            let digit = fraction.get(place).map_or(0, |digit| digit - b'0');
            millis = millis * 10 + u16::from(digit);
        }
    }
    let clock = text.get(..text.len() - rest.len())?;
    let offset = match rest {
        [] => None,
        b"Z" => Some(Offset {
            text: rest,
            seconds: 0,
        }),
        _ => Some(offset(rest)?),
    };
    Some(Time {
        text: clock,
        hour,
        minute,
        second,
        millis,
        offset,
    })
}

fn offset(text: &[u8]) -> Option<Offset<'_>> {
    let mut rest = text;
    let west = byte(&mut rest, b"+-")? == b'-';
    let mut seconds = 3600 * i64::from(two_digits(&mut rest, 0..=99)?);
    for unit in [60, 1] {
        if !rest.is_empty() {
            byte(&mut rest, b":")?;
            seconds += unit * i64::from(two_digits(&mut rest, 0..=59)?);
        }
    }
    rest.is_empty().then_some(Offset {
        text,
        seconds: if west { -seconds } else { seconds },
    })
}

fn byte(rest: &mut &[u8], allowed: &[u8]) -> Option<u8> {
    let (first, tail) = rest.split_first()?;
    allowed.contains(first).then(|| {
        *rest = tail;
        *first
    })
}

fn two_digits(rest: &mut &[u8], within: std::ops::RangeInclusive<u8>) -> Option<u8> {
    let number = u8::try_from(digits(rest, 2..=2)?).ok()?;
    within.contains(&number).then_some(number)
}

/// As many digits as there are, up to the end of `count`.
fn digits(rest: &mut &[u8], count: std::ops::RangeInclusive<usize>) -> Option<u64> {
    let found = rest
        .iter()
        .take(*count.end())
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if !count.contains(&found) {
        return None;
    }
    let (number, tail) = rest.split_at(found);
    *rest = tail;
    number.iter().try_fold(0_u64, |sum, digit| {
        sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

fn push_padded(out: &mut Vec<u8>, number: u64, width: usize) {
    let start = out.len();
    let mut rest = number;
    while rest > 0 || out.len() - start < width {
        out.push(b'0' + (rest % 10) as u8);
        rest /= 10;
    }
    if let Some(digits) = out.get_mut(start..) {
        digits.reverse();
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
