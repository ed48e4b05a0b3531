//! Durations and sizes as people write them.

use std::time::Duration;

/// A whole number and a unit, nothing else: no blanks, no sign, no fraction.
fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit))
}

/// `"250ms"`, `"1s"`, `"2m"`, `"1h"`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let expected = || {
        "a duration is a whole number and a unit, such as 250ms, 1s, 2m or 1h, below 1000 years"
            .to_owned()
    };
    let (number, unit) = split(text).ok_or_else(expected)?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(expected()),
    };
    number
        .checked_mul(milliseconds)
        // Far below what clocks can add, so that nobody behind this needs to think of overflow.
        .filter(|total| *total <= 31_557_600_000_000)
        .map(Duration::from_millis)
        .ok_or_else(expected)
}

/// Bytes: `"512B"`, `"64KiB"`, `"16MiB"`, `"1GB"`; `K` means 1000, `Ki` 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
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
            ("007s", 7_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)));
        }
        for text in [
            "",
            "1",
            "s",
            "1 s",
            " 1s",
            "-1s",
            "+1s",
            "1.5s",
            "1S",
            "1sec",
            "1s1",
            "1d",
            "1m30s",
            "99999999999999999999s",
            "18446744073709551615h",
            "९s",
        ] {
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
        for text in [
            "",
            "1",
            "MiB",
            "1 MiB",
            "-1B",
            "1.5MiB",
            "1mib",
            "1M",
            "1K",
            "1TiB",
            "1MiBB",
            "18446744073709551615GiB",
        ] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }
}
