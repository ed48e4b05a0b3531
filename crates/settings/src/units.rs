//! Durations and sizes as written in the configuration.

use std::time::Duration;

/// Splits a text into a whole number and a unit. Blanks, signs and fractions are not allowed.
fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit))
}

/// Parses a duration: `"250ms"`, `"1s"`, `"2m"`, `"1h"`, `"7d"`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = || {
        "a duration is a whole number and a unit, such as 250ms, 1s, 2m, 1h or 7d, below 1000 years"
            .to_owned()
    };
    let (number, unit) = split(text).ok_or_else(expected)?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(expected()),
    };
    number
        .checked_mul(milliseconds)
        // Small enough to be added to an instant without overflow.
        .filter(|total| *total <= 31_557_600_000_000)
        .map(Duration::from_millis)
        .ok_or_else(expected)
}

/// Parses a size in bytes: `"512B"`, `"64KiB"`, `"16MiB"`, `"1GB"`. `K` means 1000, `Ki` 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let expected = || "a size is a whole number and a unit, such as 64KiB, 16MiB or 1GB".to_owned();
    let (number, unit) = split(text).ok_or_else(expected)?;
    let bytes: u64 = match unit {
        "B" => 1,
        "KB" => 1_000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        _ => return Err(expected()),
    };
    number.checked_mul(bytes).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("0ms", 0),
            ("250ms", 250),
            ("1s", 1_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
            ("007s", 7_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)));
        }
        let malformed = [
            "", "1", "s", "1 s", " 1s", "-1s", "+1s", "1.5s", "1S", "1sec", "1s1", "1w", "1m30s",
            "९s",
        ];
        let too_long = ["99999999999999999999s", "18446744073709551615h", "365251d"];
        for text in malformed.into_iter().chain(too_long) {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("512B", 512),
            ("1KB", 1_000),
            ("64KiB", 65_536),
            ("3MB", 3_000_000),
            ("16MiB", 16_777_216),
            ("1GB", 1_000_000_000),
            ("2GiB", 2_147_483_648),
        ] {
            assert_eq!(size(text), Ok(bytes));
        }
        let malformed = [
            "", "1", "MiB", "1 MiB", "-1B", "1.5MiB", "1mib", "1M", "1K", "1TiB", "1MiBB",
        ];
        let too_large = ["18446744073709551615GiB"];
        for text in malformed.into_iter().chain(too_large) {
            assert!(size(text).is_err(), "{text:?}");
        }
    }
}
