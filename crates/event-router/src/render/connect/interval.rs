//! Parses an interval in `IntervalStyle = postgres`: `1 year 2 mons -3 days -04:05:06.789`.

use super::java;
use crate::value::Malformed;
use crate::value::decimal::Decimal;

/// The fields of an interval, as the JDBC driver reads them.
#[derive(Debug, PartialEq, Default)]
pub(crate) struct Interval {
    /// Years, months, days, hours and minutes.
    whole: [i64; 5],
    seconds: f64,
}

impl Interval {
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        let mut interval = Self::default();
        let mut words = text.split_ascii_whitespace();
        let mut any = false;
        while let Some(word) = words.next() {
            any = true;
            if word.contains(':') {
                interval.parse_time(word)?;
                continue;
            }
            let count: i64 = word.parse()?;
            let place = match words.next() {
                Some("year" | "years") => 0,
                Some("mon" | "mons" | "month" | "months") => 1,
                Some("day" | "days") => 2,
                _ => return Err(Malformed),
            };
            interval.whole[place] = count;
        }
        if any { Ok(interval) } else { Err(Malformed) }
    }

    fn parse_time(&mut self, word: &str) -> Result<(), Malformed> {
        let (sign, time) = match word.strip_prefix('-') {
            Some(time) => (-1, time),
            None => (1, word.strip_prefix('+').unwrap_or(word)),
        };
        let parts: Vec<&str> = time.split(':').collect();
        let [hours, minutes, seconds] = parts.as_slice() else {
            return Err(Malformed);
        };
        let signed = |count: i64| count.checked_mul(sign).ok_or(Malformed);
        self.whole[3] = signed(hours.parse()?)?;
        self.whole[4] = signed(minutes.parse()?)?;
        let seconds: f64 = seconds.parse()?;
        if !seconds.is_finite() {
            return Err(Malformed);
        }
        // Avoids a negative zero, which would be written with its sign.
        self.seconds = if sign < 0 && seconds != 0.0 {
            -seconds
        } else {
            seconds
        };
        Ok(())
    }

    /// Returns the interval in microseconds; a month has 30.4375 days. Computed in floating point,
    /// as in Debezium.
    pub(crate) fn micros(&self) -> i64 {
        const DAYS_PER_MONTH: f64 = 365.25 / 12.0;
        let [years, months, days, hours, minutes] = self.whole.map(|count| count as f64);
        let months = years * 12.0 + months;
        let days = months * DAYS_PER_MONTH + days;
        let minutes = (days * 24.0 + hours) * 60.0 + minutes;
        let seconds = minutes * 60.0 + self.seconds;
        (seconds * 1e6) as i64
    }

    /// Writes the interval by ISO 8601, with every field.
    pub(crate) fn iso(&self) -> String {
        let [years, months, days, hours, minutes] = self.whole;
        // Java: `BigDecimal.valueOf(seconds).stripTrailingZeros().toPlainString()`.
        let seconds = java::double_text(self.seconds);
        let decimal = seconds.parse::<Decimal>();
        let seconds = decimal.map_or(seconds, |decimal| decimal.stripped().plain());
        format!("P{years}Y{months}M{days}DT{hours}H{minutes}M{seconds}S")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_equal_recorded_ones() {
        for (text, micros, iso) in [
            (
                "1 year 2 mons -3 days -04:05:06.789",
                36_543_293_211_000,
                "P1Y2M-3DT-4H-5M-6.789S",
            ),
            ("5 years 3 mons", 165_677_400_000_000, "P5Y3M0DT0H0M0S"),
            ("-1 mons", -2_629_800_000_000, "P0Y-1M0DT0H0M0S"),
            ("00:00:00", 0, "P0Y0M0DT0H0M0S"),
            (
                "100 years 11 mons 29 days 23:59:59.999999",
                3_187_279_799_999_999,
                "P100Y11M29DT23H59M59.999999S",
            ),
            ("-00:00:00.000001", -1, "P0Y0M0DT0H0M-0.000001S"),
            ("178000000 years", i64::MAX, "P178000000Y0M0DT0H0M0S"),
            (
                "1 mon -1 days +25:00:00.1",
                2_633_400_100_000,
                "P0Y1M-1DT25H0M0.1S",
            ),
        ] {
            let interval = Interval::parse(text).unwrap();
            assert_eq!(interval.micros(), micros, "{text}");
            assert_eq!(interval.iso(), iso, "{text}");
        }
        for text in ["", "1", "1 week", "01:02", "1:2:3:4", "x:y:z", "1 day x"] {
            assert_eq!(Interval::parse(text), Err(Malformed), "{text:?}");
        }
    }
}
