//! Decimal texts: JSON numbers, and what Postgres prints of `numeric`.

use num_bigint::BigInt;

/// No number of a schema is larger, and one that is must not cost memory.
const MAX_DIGITS: i64 = 2_000;

/// Digits and where the point stands in them: the number is `unscaled / 10^scale`.
pub(super) struct Decimal {
    unscaled: BigInt,
    scale: i64,
}

/// What a JSON number says; `None` where it is none, or is written with more digits than any type has.
pub(super) fn parse(text: &str) -> Option<Decimal> {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => {
            let (mantissa, exponent) = text.split_at(at);
            (mantissa, exponent.get(1..)?.parse::<i64>().ok()?)
        }
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if digits.is_empty() || !plain(digits) || !plain(fraction) {
        return None;
    }
    let written = i64::try_from(digits.len() + fraction.len()).ok()?;
    if written > MAX_DIGITS || exponent.checked_abs()? > MAX_DIGITS {
        return None;
    }
    let unscaled: BigInt = format!("{whole}{fraction}").parse().ok()?;
    let scale = i64::try_from(fraction.len()).ok()? - exponent;
    Some(Decimal { unscaled, scale })
}

impl Decimal {
    /// The number times `10^scale`, if that is a whole one.
    pub(super) fn at_scale(&self, scale: usize) -> Option<BigInt> {
        let more = i64::try_from(scale).ok()?.checked_sub(self.scale)?;
        let power = u32::try_from(more.unsigned_abs()).ok()?;
        if i64::from(power) > 2 * MAX_DIGITS {
            // Of nought any.
            return (self.unscaled == BigInt::ZERO).then_some(BigInt::ZERO);
        }
        let ten = BigInt::from(10).pow(power);
        if more >= 0 {
            return Some(&self.unscaled * ten);
        }
        let whole = &self.unscaled / &ten;
        (&whole * ten == self.unscaled).then_some(whole)
    }

    /// The whole number that it is.
    pub(super) fn whole(&self) -> Option<i64> {
        i64::try_from(self.at_scale(0)?).ok()
    }

    /// Whether it is a whole number, of any size.
    pub(super) fn is_whole(&self) -> bool {
        self.at_scale(0).is_some()
    }
}

/// Decimal digits of a number.
pub(super) fn digits(number: &BigInt) -> usize {
    match number.magnitude() {
        magnitude if magnitude.bits() == 0 => 0,
        magnitude => magnitude.to_string().len(),
    }
}
