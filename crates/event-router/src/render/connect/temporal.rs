//! Dates and times: Postgres' ISO texts to numbers, and numbers to Java's texts.

use walrelay_pgoutput::calendar::gregorian;

use crate::value::Malformed;
use crate::value::time::{self, TimeOfDay, julian};

pub(crate) const DAY_MILLIS: i64 = 86_400_000;
pub(crate) const DAY_MICROS: i64 = 86_400_000_000;

/// Debezium's infinity in microseconds, from the milliseconds that the JDBC driver has for it.
const POSITIVE_INFINITY: i128 = 9_223_372_036_825_200_000;
const NEGATIVE_INFINITY: i128 = -9_223_372_036_832_400_000;
/// Infinite dates in Debezium: `-5877611-06-21` and the day after, as its number of days overflows.
const POSITIVE_INFINITY_DAY: i64 = -2_147_472_692;
const NEGATIVE_INFINITY_DAY: i64 = -2_147_472_691;

/// Returns the days since 1970-01-01 of a `date`.
pub(crate) fn date(text: &str) -> Result<i64, Malformed> {
    match text {
        "infinity" => Ok(POSITIVE_INFINITY_DAY),
        "-infinity" => Ok(NEGATIVE_INFINITY_DAY),
        _ => {
            let printed = time::parse(text.as_bytes()).filter(|printed| printed.time.is_none());
            printed.map(|printed| printed.date.days()).ok_or(Malformed)
        }
    }
}

/// Reads a `time` as microseconds since midnight; `24:00:00` is one day.
pub(crate) fn time(text: &str) -> Result<i64, Malformed> {
    match time::time(text.as_bytes()) {
        Some((time, None)) => micros(time),
        _ => Err(Malformed),
    }
}

/// Reads a `timetz` as microseconds since midnight UTC, within the day.
pub(crate) fn time_with_offset(text: &str) -> Result<i64, Malformed> {
    let (time, offset) = time::time(text.as_bytes()).ok_or(Malformed)?;
    let east = offset.map_or(0, |offset| offset.seconds);
    Ok((micros(time)? - east * 1_000_000).rem_euclid(DAY_MICROS))
}

/// Returns the microseconds since midnight. Postgres prints at most six digits of a second.
fn micros(time: TimeOfDay<'_>) -> Result<i64, Malformed> {
    if time.digits > 6 {
        return Err(Malformed);
    }
    Ok(time.seconds * 1_000_000 + time.nanos / 1000)
}

/// A `timestamp` or `timestamptz` in microseconds since 1970-01-01 UTC. The latest ones of Postgres
/// need more than 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timestamp {
    pub(crate) micros: i128,
    pub(crate) infinite: bool,
}

pub(crate) fn timestamp(text: &str) -> Result<Timestamp, Malformed> {
    let (micros, infinite) = match text {
        "infinity" => (POSITIVE_INFINITY, true),
        "-infinity" => (NEGATIVE_INFINITY, true),
        _ => {
            let printed = time::parse(text.as_bytes()).ok_or(Malformed)?;
            let time = printed.time.filter(|time| time.digits <= 6);
            let micros = time.ok_or(Malformed)?.nanos / 1000;
            let micros = i128::from(printed.seconds()) * 1_000_000 + i128::from(micros);
            (micros, false)
        }
    };
    Ok(Timestamp { micros, infinite })
}

/// Writes days since 1970-01-01 as Java's `DateTimeFormatter.ISO_LOCAL_DATE` does.
pub(crate) fn iso_date(days: i64) -> String {
    let (year, month, day) = gregorian(days);
    let year = match year {
        0..=9999 => format!("{year:04}"),
        10_000.. => format!("+{year}"),
        _ => format!("-{:04}", -year),
    };
    format!("{year}-{month:02}-{day:02}")
}

/// Writes microseconds since midnight as Java's `DateTimeFormatter.ISO_LOCAL_TIME` does, with
/// `digits` digits of the fraction, or as few as possible.
pub(crate) fn iso_time(micros: i64, digits: Option<usize>) -> String {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = format!("{hours:02}:{minutes:02}:{seconds:02}");
    let fraction = format!("{fraction:06}");
    let fraction = match digits {
        None => fraction.trim_end_matches('0'),
        Some(digits) => fraction.get(..digits).unwrap_or(&fraction),
    };
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

/// Writes a point in time, in UTC, as Java's `DateTimeFormatter.ISO_OFFSET_DATE_TIME` does.
pub(crate) fn iso_instant(micros: i128, digits: Option<usize>) -> String {
    let day = iso_date(micros.div_euclid(DAY_MICROS.into()) as i64);
    let time = iso_time(micros.rem_euclid(DAY_MICROS.into()) as i64, digits);
    format!("{day}T{time}Z")
}

/// Writes a date as Java's `java.util.Date.toString` does in UTC: the Julian calendar before 15
/// October 1582, and years BC without their sign.
pub(crate) fn date_text(millis: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    const FIRST_GREGORIAN_DAY: i64 = -141_427;
    let days = millis.div_euclid(DAY_MILLIS);
    let calendar = if days < FIRST_GREGORIAN_DAY {
        julian
    } else {
        gregorian
    };
    let (year, month, day) = calendar(days);
    let year = if year > 0 { year } else { 1 - year };
    let week_day = DAYS.get(days.rem_euclid(7) as usize).unwrap_or(&"");
    let month = MONTHS.get((month - 1) as usize).unwrap_or(&"");
    let time = iso_time(millis.rem_euclid(DAY_MILLIS) / 1000 * 1_000_000, None);
    format!("{week_day} {month} {day:02} {time} UTC {year}")
}

/// Writes a `java.util.Date` as Kafka Connect's `Values` does: only the time of day before
/// 1970-01-02, only the date at midnight, else both.
pub(crate) fn connect_text(millis: i64) -> String {
    let time = iso_time(millis.rem_euclid(DAY_MILLIS) * 1000, Some(3));
    let day = iso_date(millis.div_euclid(DAY_MILLIS));
    let day = day.strip_prefix('+').unwrap_or(&day);
    if millis < DAY_MILLIS {
        format!("{time}Z")
    } else if millis % DAY_MILLIS == 0 {
        day.to_owned()
    } else {
        format!("{day}T{time}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_both_eras() {
        for (text, days) in [
            ("1970-01-01", 0),
            ("2024-02-29", 19782),
            ("0044-03-15 BC", -735_160),
            ("12024-01-01", 3_672_148),
            ("infinity", -2_147_472_692),
            ("-infinity", -2_147_472_691),
        ] {
            assert_eq!(date(text), Ok(days), "{text}");
        }
        assert_eq!(iso_date(-735_160), "-0043-03-15");
        assert_eq!(iso_date(3_672_148), "+12024-01-01");
        assert_eq!(iso_date(-2_147_472_692), "-5877611-06-21");
        for text in [
            "",
            "2024",
            "2024-1",
            "2024-13-01",
            "2024-01-01x",
            "-2024-01-01",
            "today",
        ] {
            assert_eq!(date(text), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn days_read_back() {
        for days in (-3_000_000..3_000_000).step_by(997) {
            let text = iso_date(days);
            let text = text.strip_prefix('+').unwrap_or(&text);
            if !text.starts_with('-') && text > "0000" {
                assert_eq!(date(text), Ok(days), "{text}");
            }
        }
    }

    #[test]
    fn times_with_and_without_offset() {
        assert_eq!(time("12:34:56.789012"), Ok(45_296_789_012));
        assert_eq!(time("24:00:00"), Ok(86_400_000_000));
        assert_eq!(
            time_with_offset("12:34:56.789012-05:30"),
            Ok(65_096_789_012)
        );
        assert_eq!(time_with_offset("24:00:00+00"), Ok(0));
        assert_eq!(iso_time(37_800_100_000, None), "10:30:00.1");
        for text in [
            "",
            "1:2:3",
            "12:34",
            "12:34:56.1234567",
            "25:00:00",
            "12:34:56+2",
        ] {
            assert_eq!(time_with_offset(text), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn timestamps_with_offset_and_era() {
        for (text, micros, infinite) in [
            ("2024-02-29 10:34:56.789012", 1_709_202_896_789_012, false),
            (
                "2024-02-29 12:34:56.789012+02",
                1_709_202_896_789_012,
                false,
            ),
            ("1969-12-31 23:59:59.999999", -1, false),
            ("0044-03-15 00:00:00 BC", -63_517_824_000_000_000, false),
            ("0044-03-15 00:00:00+00 BC", -63_517_824_000_000_000, false),
            ("infinity", POSITIVE_INFINITY, true),
            ("-infinity", NEGATIVE_INFINITY, true),
        ] {
            let expected = Timestamp { micros, infinite };
            assert_eq!(timestamp(text), Ok(expected), "{text}");
        }
        assert_eq!(
            iso_instant(-63_517_824_000_000_000, Some(6)),
            "-0043-03-15T00:00:00.000000Z"
        );
        assert_eq!(iso_instant(-1, None), "1969-12-31T23:59:59.999999Z");
    }

    #[test]
    fn dates_of_java() {
        for (millis, text, connect) in [
            (
                1_709_210_096_789,
                "Thu Feb 29 12:34:56 UTC 2024",
                "2024-02-29T12:34:56.789Z",
            ),
            (
                -63_517_824_000_000,
                "Fri Mar 17 00:00:00 UTC 44",
                "00:00:00.000Z",
            ),
            (
                -62_135_596_800_000,
                "Mon Jan 03 00:00:00 UTC 1",
                "00:00:00.000Z",
            ),
            (86_400_000, "Fri Jan 02 00:00:00 UTC 1970", "1970-01-02"),
            (
                9_224_286_393_600_000,
                "Sat Jan 01 00:00:00 UTC 294276",
                "294276-01-01",
            ),
            (
                -2_147_472_692 * DAY_MILLIS,
                "Wed Mar 02 00:00:00 UTC 5877491",
                "00:00:00.000Z",
            ),
        ] {
            assert_eq!(date_text(millis), text);
            assert_eq!(connect_text(millis), connect);
        }
    }
}
