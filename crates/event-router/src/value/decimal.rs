//! Decimal numbers of any size, with the semantics of `java.math.BigDecimal`.

use std::str::FromStr;

use num_bigint::BigInt;

use super::Malformed;

/// A decimal number, `unscaled / 10^scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decimal {
    unscaled: BigInt,
    scale: i32,
}

/// A value of Postgres' type `numeric`: a number or a special value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Numeric {
    Number(Decimal),
    NotANumber,
    Infinity,
    NegativeInfinity,
}

/// Limit of digits, and of zeros that an exponent stands for. Above any `numeric`, which has at most 131072 before the point and 16383 after
/// it.
const MAX_DIGITS: usize = 200_000;

/// Limit of the exponent of a power of ten. A schema's scale is input from outside and must not
/// exhaust the memory. Numbers for Avro have at most 2,000 digits and exponents up to 2,000.
const MAX_PLACES: u32 = 4_000;

impl FromStr for Decimal {
    type Err = Malformed;

    /// Parses digits with at most one point, and an optional exponent after `E` or `e`.
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i32 = exponent.parse()?;
        let unsigned = mantissa.strip_prefix(['-', '+']).unwrap_or(mantissa);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let digits = whole.len() + fraction.len();
        let all = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
        if digits == 0 || digits > MAX_DIGITS || !all(whole) || !all(fraction) {
            return Err(Malformed);
        }
        let sign = if mantissa.starts_with('-') { "-" } else { "" };
        let text = [sign, whole, fraction].concat();
        let scale = i32::try_from(fraction.len()).map_err(|_| Malformed)?;
        let scale = scale.checked_sub(exponent).ok_or(Malformed)?;
        if scale.unsigned_abs() as usize > MAX_DIGITS {
            return Err(Malformed);
        }
        Ok(Self {
            unscaled: text.parse().map_err(|_| Malformed)?,
            scale,
        })
    }
}

impl FromStr for Numeric {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        Ok(match text {
            "NaN" => Self::NotANumber,
            "Infinity" => Self::Infinity,
            "-Infinity" => Self::NegativeInfinity,
            number => Self::Number(number.parse()?),
        })
    }
}

impl Decimal {
    /// Returns the unscaled value in two's complement, big-endian, in as few bytes as possible.
    pub(crate) fn unscaled_bytes(&self) -> Vec<u8> {
        self.unscaled.to_signed_bytes_be()
    }

    pub(crate) fn scale(&self) -> i32 {
        self.scale
    }

    /// Rounds the number as Java's `setScale(scale, HALF_UP)` does. Does nothing if the scales
    /// differ by more than 200,000, which numbers of Postgres cannot.
    pub(crate) fn with_scale(mut self, scale: i32) -> Self {
        let places = scale - self.scale;
        if places.unsigned_abs() > 200_000 {
            return self;
        }
        let power = BigInt::from(10u8).pow(places.unsigned_abs());
        if places >= 0 {
            self.unscaled *= power;
        } else {
            let half = &power / 2u8;
            let half = if self.unscaled < BigInt::ZERO {
                -half
            } else {
                half
            };
            self.unscaled = (self.unscaled + half) / power;
        }
        self.scale = scale;
        self
    }

    /// Returns the number times `10^scale`, if it is an integer. `None` also if the scales differ
    /// by more than [`MAX_PLACES`].
    pub(crate) fn exactly(&self, scale: i32) -> Option<BigInt> {
        let places = scale.checked_sub(self.scale)?;
        if self.unscaled == BigInt::ZERO {
            return Some(BigInt::ZERO);
        }
        if places.unsigned_abs() > MAX_PLACES {
            return None;
        }
        let power = BigInt::from(10u8).pow(places.unsigned_abs());
        if places >= 0 {
            return Some(&self.unscaled * power);
        }
        let whole = &self.unscaled / &power;
        (&whole * power == self.unscaled).then_some(whole)
    }

    /// Removes zeros as Java's `stripTrailingZeros` does, but without a negative scale.
    pub(crate) fn stripped(mut self) -> Self {
        if self.unscaled == BigInt::ZERO {
            self.scale = 0;
            return self;
        }
        let text = self.unscaled.to_string();
        let zeros = text.len() - text.trim_end_matches('0').len();
        let zeros = i32::try_from(zeros).unwrap_or(0).min(self.scale.max(0));
        if zeros > 0 {
            self.unscaled /= BigInt::from(10u8).pow(zeros.unsigned_abs());
            self.scale -= zeros;
        }
        let scale = self.scale.max(0);
        self.with_scale(scale)
    }

    /// Writes the number as Java's `toPlainString` does: without an exponent.
    pub(crate) fn plain(&self) -> String {
        let (sign, digits) = self.digits();
        let Ok(scale @ 1..) = usize::try_from(self.scale) else {
            let zeros = if digits == "0" {
                0
            } else {
                self.scale.unsigned_abs()
            };
            return format!("{sign}{digits}{}", "0".repeat(zeros as usize));
        };
        match digits.len().checked_sub(scale) {
            Some(whole @ 1..) => {
                let (whole, fraction) = digits.split_at(whole);
                format!("{sign}{whole}.{fraction}")
            }
            _ => format!("{sign}0.{digits:0>scale$}"),
        }
    }

    /// Writes the number as Java's `toString` does: with an exponent if the number is small or the
    /// scale negative.
    pub(crate) fn text(&self) -> String {
        let (sign, digits) = self.digits();
        let adjusted = i64::try_from(digits.len()).unwrap_or(0) - 1 - i64::from(self.scale);
        if self.scale >= 0 && adjusted >= -6 {
            return self.plain();
        }
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        match adjusted {
            0 => format!("{sign}{first}{point}{rest}"),
            _ => format!("{sign}{first}{point}{rest}E{adjusted:+}"),
        }
    }

    pub(crate) fn double(&self) -> f64 {
        let text = format!("{}e{}", self.unscaled, -i64::from(self.scale));
        text.parse().unwrap_or(f64::NAN)
    }

    fn digits(&self) -> (&'static str, String) {
        let negative = self.unscaled < BigInt::ZERO;
        let sign = if negative { "-" } else { "" };
        (sign, self.unscaled.magnitude().to_string())
    }
}

impl Numeric {
    /// Writes the number by `decimal.handling.mode=string`, with the special values as Debezium
    /// writes them.
    pub(crate) fn string(&self) -> String {
        match self {
            Self::Number(number) => number.plain(),
            Self::NotANumber => "NAN".to_owned(),
            Self::Infinity => "POSITIVE_INFINITY".to_owned(),
            Self::NegativeInfinity => "NEGATIVE_INFINITY".to_owned(),
        }
    }

    /// Converts the number by `decimal.handling.mode=double`.
    pub(crate) fn double(&self) -> f64 {
        match self {
            Self::Number(number) => number.double(),
            Self::NotANumber => f64::NAN,
            Self::Infinity => f64::INFINITY,
            Self::NegativeInfinity => f64::NEG_INFINITY,
        }
    }
}

/// Parses a `money` as Postgres writes it in locales that group by commas: `-$1,234.56`, `($1.00)`.
pub(crate) fn money(text: &str) -> Result<Decimal, Malformed> {
    let kept = |c: &char| c.is_ascii_digit() || *c == '.';
    let digits: String = text.chars().filter(kept).collect();
    let negative = text.contains('-') || text.starts_with('(');
    let sign = if negative { "-" } else { "" };
    format!("{sign}{digits}").parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn texts_equal_those_of_java() {
        for (text, string, plain) in [
            ("99.90", "99.90", "99.90"),
            ("-0.05", "-0.05", "-0.05"),
            ("-0.0000000001", "-1E-10", "-0.0000000001"),
            ("0.00", "0.00", "0.00"),
            ("0.0000000", "0E-7", "0.0000000"),
            (
                "1234567890123456789.0123456789",
                "1234567890123456789.0123456789",
                "1234567890123456789.0123456789",
            ),
            ("1.0E20", "1.0E+20", "100000000000000000000"),
            ("0.00000012", "1.2E-7", "0.00000012"),
        ] {
            assert_eq!(decimal(text).text(), string);
            assert_eq!(decimal(text).plain(), plain);
        }
    }

    #[test]
    fn bytes_scales_and_doubles() {
        assert_eq!(decimal("99.90").unscaled_bytes(), [0x27, 0x06]);
        assert_eq!(decimal("-0.05").unscaled_bytes(), [0xfb]);
        assert_eq!(decimal("0").unscaled_bytes(), [0]);
        let stripped = decimal("12345.67800").stripped();
        assert_eq!((stripped.scale(), &*stripped.plain()), (3, "12345.678"));
        assert_eq!(decimal("100").stripped().plain(), "100");
        assert_eq!(decimal("0.000").stripped().scale(), 0);
        assert_eq!(decimal("0.005").with_scale(2).plain(), "0.01");
        assert_eq!(decimal("-0.005").with_scale(2).plain(), "-0.01");
        assert!((decimal("12345.678").double() - 12345.678).abs() < f64::EPSILON);
        assert_eq!(money("-$1,234.56").unwrap().plain(), "-1234.56");
        assert_eq!(money("($1.00)").unwrap().plain(), "-1.00");
    }

    #[test]
    fn powers_of_ten_are_bounded() {
        let number: Decimal = "1.5".parse().unwrap();
        assert_eq!(number.exactly(1), Some(BigInt::from(15)));
        assert_eq!(number.exactly(0), None);
        assert!(number.exactly(4_001).is_some());
        assert_eq!(number.exactly(4_002), None);
        assert_eq!(number.exactly(2_000_000_000), None);
    }

    #[test]
    fn other_texts_than_numbers_are_refused() {
        for text in [
            "",
            "-",
            ".",
            "1.2.3",
            "1e",
            "0x1",
            "NaN",
            "1 ",
            "1e99999999999",
        ] {
            assert_eq!(text.parse::<Decimal>(), Err(Malformed), "{text:?}");
        }
        assert_eq!("NaN".parse(), Ok(Numeric::NotANumber));
    }
}
