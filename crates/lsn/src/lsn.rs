use std::fmt;
use std::str::FromStr;

/// A byte position in the write-ahead log (`XLogRecPtr`, an unsigned 64-bit offset).
///
/// Text form as in Postgres' `pg_lsn`: two hexadecimal halves with a slash, `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// `0/0`, `InvalidXLogRecPtr`: no position. In `START_REPLICATION` it means "from the slot's
    /// confirmed position".
    pub const ZERO: Lsn = Lsn(0);
    /// The greatest position, `FFFFFFFF/FFFFFFFF`.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// Creates the position at `offset` bytes.
    pub const fn new(offset: u64) -> Self {
        Self(offset)
    }

    /// Returns the offset in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the bytes of WAL between `earlier` and this position; 0 if `earlier` is not earlier.
    ///
    /// For display (lag). Positions are not computed from it.
    pub const fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns true if this is [`Lsn::ZERO`].
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a `pg_lsn`: two hexadecimal numbers of at most eight digits with a slash
/// between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseLsnError;

impl fmt::Display for ParseLsnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a log position has the form X/Y, two hexadecimal numbers, such as 16/B374D848")
    }
}

impl std::error::Error for ParseLsnError {}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // As strict as Postgres' pg_lsn_in: `u32::from_str_radix` alone would take a leading '+'.
        let half = |digits: &str| {
            let plain = (1..=8).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain
                .then(|| u32::from_str_radix(digits, 16))
                .ok_or(ParseLsnError)?
                .map_err(|_| ParseLsnError)
        };
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        Ok(Lsn(u64::from(half(high)?) << 32 | u64::from(half(low)?)))
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Lsn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Lsn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_that_of_pg_lsn() {
        for (offset, text) in [
            (0, "0/0"),
            (0x16_B374_D848, "16/B374D848"),
            (u64::MAX, "FFFFFFFF/FFFFFFFF"),
        ] {
            assert_eq!(Lsn::new(offset).to_string(), text);
            assert_eq!(text.parse(), Ok(Lsn::new(offset)));
        }
        assert_eq!("ff/a".parse(), Ok(Lsn::new(0xFF_0000_000A)));
    }

    #[test]
    fn what_postgres_refuses_is_refused() {
        for text in [
            "",
            "/",
            "1",
            "1/",
            "/1",
            "1/2/3",
            "+1/0",
            "1/123456789",
            "g/0",
            " 1/0",
            "-1/0",
        ] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text:?}");
        }
    }

    #[test]
    fn distance_never_goes_below_zero() {
        assert_eq!(Lsn::new(10).bytes_since(Lsn::new(4)), 6);
        assert_eq!(Lsn::new(4).bytes_since(Lsn::new(10)), 0);
    }
}
