use core::fmt;

use crate::calendar::gregorian;

/// Days between 1970-01-01 and 2000-01-01.
const EPOCH_DAYS: i64 = 10_957;
const DAY_MICROS: i64 = 86_400_000_000;
/// Microseconds between 1970-01-01 and 2000-01-01, both UTC.
const EPOCH_MICROS: i64 = EPOCH_DAYS * DAY_MICROS;

/// A point in time as in Postgres (`TimestampTz`): microseconds since 2000-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgTimestamp(i64);

impl PgTimestamp {
    /// Creates the time `micros` microseconds after 2000-01-01 UTC.
    pub const fn new(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since 2000-01-01 UTC, as on the wire.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Creates the time `micros` microseconds after 1970-01-01 UTC; `None` below the range of a
    /// Postgres timestamp.
    pub const fn from_unix_micros(micros: i64) -> Option<Self> {
        match micros.checked_sub(EPOCH_MICROS) {
            Some(micros) => Some(Self(micros)),
            None => None,
        }
    }

    /// Returns the microseconds since 1970-01-01 UTC; `None` beyond the range of an `i64`, which
    /// ends in some 292,000 years.
    pub const fn unix_micros(self) -> Option<i64> {
        self.0.checked_add(EPOCH_MICROS)
    }
}

/// RFC 3339 in UTC with microseconds: `2026-01-02T03:04:05.678000Z`. Years beyond 9999, for which
/// RFC 3339 has no form, are written in full.
impl fmt::Display for PgTimestamp {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "an i64 of microseconds is some 107 million days: nothing here comes near the ends"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, micros) = (self.0.div_euclid(DAY_MICROS), self.0.rem_euclid(DAY_MICROS));
        let (year, month, day) = gregorian(days + EPOCH_DAYS);
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        )
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn a_time_is_written_as_rfc_3339_has_it() {
        for (micros, text) in [
            (0, "2000-01-01T00:00:00.000000Z"),
            (820_638_245_678_000, "2026-01-02T03:04:05.678000Z"),
            (-1, "1999-12-31T23:59:59.999999Z"),
            (-EPOCH_MICROS, "1970-01-01T00:00:00.000000Z"),
            // 2000 has a leap day, 2100 has none.
            (59 * 86_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (60 * 86_400_000_000, "2000-03-01T00:00:00.000000Z"),
            (3_160_857_600_000_000, "2100-03-01T00:00:00.000000Z"),
            (3_160_857_599_999_999, "2100-02-28T23:59:59.999999Z"),
        ] {
            assert_eq!(PgTimestamp::new(micros).to_string(), text);
        }
        // No panic at the ends.
        let ends = [i64::MIN, i64::MAX].map(|micros| PgTimestamp::new(micros).to_string());
        assert!(ends.iter().all(|text| text.ends_with('Z')), "{ends:?}");
    }

    #[test]
    fn both_epochs_are_converted() {
        assert_eq!(PgTimestamp::new(-EPOCH_MICROS).unix_micros(), Some(0));
        assert_eq!(
            PgTimestamp::from_unix_micros(0),
            Some(PgTimestamp::new(-EPOCH_MICROS))
        );
        // 2026-01-02 03:04:05.678 UTC
        assert_eq!(
            PgTimestamp::new(820_638_245_678_000).unix_micros(),
            Some(1_767_323_045_678_000)
        );
        assert_eq!(PgTimestamp::new(i64::MAX).unix_micros(), None);
        assert_eq!(PgTimestamp::from_unix_micros(i64::MIN), None);
    }
}
