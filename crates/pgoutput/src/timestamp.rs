/// Microseconds between 1970-01-01 and 2000-01-01, both UTC: 10957 days.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// A point in time as Postgres counts it (`TimestampTz`): microseconds since 2000-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgTimestamp(i64);

impl PgTimestamp {
    /// The time `micros` microseconds after 2000-01-01 UTC.
    pub const fn new(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 2000-01-01 UTC, as on the wire.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The time `micros` microseconds after 1970-01-01 UTC; `None` if Postgres cannot count so far
    /// back.
    pub const fn from_unix_micros(micros: i64) -> Option<Self> {
        match micros.checked_sub(EPOCH_MICROS) {
            Some(micros) => Some(Self(micros)),
            None => None,
        }
    }

    /// Microseconds since 1970-01-01 UTC; `None` beyond the range of an `i64`, some 292,000 years
    /// from now.
    pub const fn unix_micros(self) -> Option<i64> {
        self.0.checked_add(EPOCH_MICROS)
    }

    /// Whole milliseconds since 1970-01-01 UTC, rounded towards the past, as Kafka's timestamps
    /// are. Every point in time has them.
    pub const fn unix_millis(self) -> i64 {
        // Dividing first leaves three decimal digits of room: the sum cannot saturate.
        self.0.div_euclid(1000).saturating_add(EPOCH_MICROS / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_epochs_are_where_the_calendar_has_them() {
        assert_eq!(PgTimestamp::new(0).unix_millis(), 946_684_800_000);
        assert_eq!(PgTimestamp::new(-EPOCH_MICROS).unix_micros(), Some(0));
        assert_eq!(
            PgTimestamp::from_unix_micros(0),
            Some(PgTimestamp::new(-EPOCH_MICROS))
        );
        // 2026-01-02 03:04:05.678 UTC
        assert_eq!(
            PgTimestamp::new(820_638_245_678_000).unix_millis(),
            1_767_323_045_678
        );
    }

    #[test]
    fn milliseconds_round_towards_the_past() {
        assert_eq!(PgTimestamp::new(1999).unix_millis(), 946_684_800_001);
        assert_eq!(PgTimestamp::new(-1).unix_millis(), 946_684_799_999);
    }

    #[test]
    fn the_ends_of_the_range_do_not_overflow() {
        assert_eq!(PgTimestamp::new(i64::MAX).unix_micros(), None);
        assert_eq!(PgTimestamp::from_unix_micros(i64::MIN), None);
        assert_eq!(
            PgTimestamp::new(i64::MAX).unix_millis(),
            9_223_372_036_854_775 + 946_684_800_000
        );
        assert_eq!(
            PgTimestamp::new(i64::MIN).unix_millis(),
            -9_223_372_036_854_776 + 946_684_800_000
        );
    }
}
