//! Texts as Java writes them: floating-point numbers, and the order of a `HashMap`.
//!
//! Debezium's bytes contain the results of `Float.toString` and `Double.toString`. Up to Java 18
//! these come from `jdk.internal.math.FloatingDecimal`, which sometimes writes one digit more than
//! needed (`2.0E-3` is the shortest text, `1.23456789012345677E18` has one digit too many). Since
//! Java 19 the text is the shortest. This module reproduces the former, as Debezium's images run on
//! Java 17.

use num_bigint::BigUint;

/// Writes a number as Java's `Double.toString` does.
pub(crate) fn double_text(value: f64) -> String {
    number_text(value.to_bits(), 11, 52)
}

/// Writes a number as Java's `Float.toString` does.
pub(crate) fn float_text(value: f32) -> String {
    number_text(value.to_bits().into(), 8, 23)
}

/// Writes an IEEE 754 number whose exponent and fraction have this many bits.
fn number_text(bits: u64, exponent_bits: i32, fraction_bits: i32) -> String {
    let negative = bits >> (exponent_bits + fraction_bits) != 0;
    let most = (1 << exponent_bits) - 1;
    let exponent = (bits >> fraction_bits) as i32 & most;
    let fraction = bits & ((1 << fraction_bits) - 1);
    let sign = if negative { "-" } else { "" };
    match (exponent, fraction) {
        (0, 0) => return [sign, "0.0"].concat(),
        (exponent, 0) if exponent == most => return [sign, "Infinity"].concat(),
        (exponent, _) if exponent == most => return "NaN".to_owned(),
        _ => {}
    }
    let (exponent, fraction, significant) = if exponent == 0 {
        let significant = 64 - fraction.leading_zeros() as i32;
        let shift = fraction_bits + 1 - significant;
        (1 - shift, fraction << shift, significant)
    } else {
        (exponent, fraction | 1 << fraction_bits, fraction_bits + 1)
    };
    let number = Binary {
        exponent: exponent - most / 2,
        fraction: fraction << (EXP_SHIFT - fraction_bits),
        significant,
    };
    [sign, &digits(number).text()].concat()
}

const EXP_SHIFT: i32 = 52;

/// A positive binary number. The fraction has the width of a double's, with its leading 1.
#[derive(Clone, Copy)]
struct Binary {
    exponent: i32,
    fraction: u64,
    /// Bits of precision: 24 of a float, 53 of a double, fewer of a subnormal number.
    significant: i32,
}

impl Binary {
    /// Returns the number of bits of the fraction without the zeros at its end.
    fn fraction_bits(self) -> i32 {
        EXP_SHIFT + 1 - self.fraction.trailing_zeros() as i32
    }

    /// Returns the number of bits of the fraction after the binary point.
    fn tiny_bits(self) -> i32 {
        (self.fraction_bits() - self.exponent - 1).max(0)
    }

    fn is_integer_of_63_bits(self) -> bool {
        (-21..=62).contains(&self.exponent) && self.tiny_bits() == 0 && self.fraction_bits() < 64
    }

    fn integer_digits(self) -> Digits {
        let surplus = self.exponent - self.significant - 1;
        let insignificant = if self.exponent > self.significant && surplus > 1 {
            (f64::from(surplus) * std::f64::consts::LOG10_2) as u32
        } else {
            0
        };
        let mut integer = if self.exponent >= EXP_SHIFT {
            self.fraction << (self.exponent - EXP_SHIFT)
        } else {
            self.fraction >> (EXP_SHIFT - self.exponent)
        };
        if insignificant != 0 {
            let power = 10u64.pow(insignificant);
            let residue = integer % power;
            integer /= power;
            if residue >= power / 2 {
                integer += 1;
            }
        }
        let text = integer.to_string();
        let exponent = text.len() as i32 + insignificant as i32;
        let digits = text.trim_end_matches('0').bytes().map(|c| c - b'0');
        Digits {
            digits: digits.collect(),
            exponent,
        }
    }

    /// Returns Java's estimate of the decimal exponent.
    fn estimated_exponent(self) -> i32 {
        let mantissa = f64::from_bits((1023 << 52) | (self.fraction & ((1 << 52) - 1)));
        let estimate =
            (mantissa - 1.5) * 0.289_529_654 + 0.176_091_259 + f64::from(self.exponent) * LOG10_2;
        estimate.floor() as i32
    }
}

/// Java's literal, which is not the double nearest to log10(2).
#[expect(
    clippy::approx_constant,
    reason = "the estimate must come out as it does in Java"
)]
const LOG10_2: f64 = 0.301_029_995_663_981;

/// Decimal digits, and how many of them are before the point.
struct Digits {
    digits: Vec<u8>,
    exponent: i32,
}

impl Digits {
    fn text(&self) -> String {
        let digits: String = self.digits.iter().map(|d| char::from(b'0' + d)).collect();
        let (whole, power) = match self.exponent {
            exponent @ 1..8 => (exponent as usize, None),
            exponent @ -2..=0 => {
                let zeros = "0".repeat(exponent.unsigned_abs() as usize);
                return format!("0.{zeros}{digits}");
            }
            exponent => (1, Some(exponent - 1)),
        };
        let (before, after) = digits.split_at(whole.min(digits.len()));
        let zeros = "0".repeat(whole - before.len());
        let after = if after.is_empty() { "0" } else { after };
        let power = power.map_or_else(String::new, |power| format!("E{power}"));
        format!("{before}{zeros}.{after}{power}")
    }

    fn round_up(&mut self) {
        for digit in self.digits.iter_mut().rev() {
            if *digit < 9 {
                *digit += 1;
                return;
            }
            *digit = 0;
        }
        // 99…9 becomes 100…0, with one digit more before the point.
        if let Some(first) = self.digits.first_mut() {
            *first = 1;
        }
        self.exponent += 1;
    }
}

/// Generates the digits as `FloatingDecimal.BinaryToASCIIBuffer.dtoa` does, with its names of
/// variables.
fn digits(number: Binary) -> Digits {
    if number.is_integer_of_63_bits() {
        return number.integer_digits();
    }
    let exponent = number.estimated_exponent();
    let mut division = Division::new(number, exponent);
    let mut digits = Digits {
        digits: Vec::with_capacity(18),
        exponent: exponent + 1,
    };
    let (digit, mut low, mut high) = division.next_digit(true);
    if digit == 0 && !high {
        digits.exponent -= 1;
    } else {
        digits.digits.push(digit);
    }
    // Scientific notation always has a digit after the point.
    if !(-2..9).contains(&digits.exponent) {
        (low, high) = (false, false);
    }
    while !low && !high {
        let digit;
        (digit, low, high) = division.next_digit(false);
        digits.digits.push(digit);
    }
    let up = match (high, low) {
        (true, true) => {
            let doubled = division.b << 1u8;
            let odd = digits.digits.last().is_some_and(|digit| digit % 2 == 1);
            doubled > division.tens || doubled == division.tens && odd
        }
        (high, _) => high,
    };
    if up {
        digits.round_up();
    }
    digits
}

/// The division `b / s` that gives the digits. A digit is the last if the rest is within `m` of 0 or
/// of `s`.
struct Division {
    b: BigUint,
    m: BigUint,
    tens: BigUint,
    s: BigUint,
    /// Width of Java's integers in bits, 32 or 64. Java uses them if it estimates that all numbers
    /// fit; overflows affect the result.
    word: Option<u32>,
}

impl Division {
    /// Creates the generator of a number's digits. `exponent` is the estimated decimal exponent.
    fn new(number: Binary, exponent: i32) -> Self {
        let (fraction_bits, tiny_bits) = (number.fraction_bits(), number.tiny_bits());
        let b5 = (-exponent).max(0);
        let mut b2 = b5 + tiny_bits + number.exponent;
        let s5 = exponent.max(0);
        let mut s2 = s5 + tiny_bits;
        let m5 = b5;
        let mut m2 = b2 - number.significant;
        b2 -= fraction_bits - 1;
        let common = b2.min(s2);
        b2 -= common;
        s2 -= common;
        m2 -= common;
        // Below a power of two, the next smaller number is at half the distance.
        if fraction_bits == 1 {
            m2 -= 1;
        }
        if m2 < 0 {
            b2 -= m2;
            s2 -= m2;
            m2 = 0;
        }
        let bits = |five: i32| if five == 0 { 0 } else { power_bits(five) };
        let b_bits = fraction_bits + b2 + bits(b5);
        let tens_bits = s2 + 1 + bits(s5 + 1);
        let scaled = |five: i32, two: i32| BigUint::from(5u8).pow(five as u32) << (two as u32);
        let s = scaled(s5, s2);
        Self {
            b: scaled(b5, b2) * (number.fraction >> number.fraction.trailing_zeros()),
            m: scaled(m5, m2),
            tens: &s * 10u8,
            s,
            word: match (b_bits, tens_bits) {
                (..32, ..32) => Some(32),
                (..64, ..64) => Some(64),
                _ => None,
            },
        }
    }

    /// Generates the next digit; tells whether rounding down or up from there is precise enough.
    fn next_digit(&mut self, first: bool) -> (u8, bool, bool) {
        let quotient = &self.b / &self.s;
        self.b = (&self.b - &quotient * &self.s) * 10u8;
        self.m = &self.m * 10u8;
        let (low, high) = if let Some(bits) = self.word {
            let wrapped = |number: i64| match bits {
                32 => i64::from(number as i32),
                _ => number,
            };
            let [b, m, tens] = [&self.b, &self.m, &self.tens]
                .map(|number| wrapped(number.iter_u64_digits().next().unwrap_or(0) as i64));
            if first || m > 0 {
                (b < m, wrapped(b.wrapping_add(m)) > tens)
            } else {
                (true, true)
            }
        } else {
            (self.b < self.m, &self.b + &self.m >= self.tens)
        };
        (u8::try_from(&quotient).unwrap_or(9), low, high)
    }
}

/// Returns the number of bits of a power of five: `N_5_BITS`, and Java's estimate beyond that
/// table.
fn power_bits(five: i32) -> i32 {
    if five < 27 {
        64 - 5u128.pow(five as u32).leading_zeros() as i32 + 64
    } else {
        five * 3
    }
}

/// Sorts entries into the iteration order of a `java.util.HashMap`. No key occurs twice.
pub(crate) fn sort_as_hash_map<V>(entries: &mut [(String, V)]) {
    let mut capacity: usize = 16;
    while entries.len() > capacity / 4 * 3 {
        capacity *= 2;
    }
    entries.sort_by_key(|(key, _)| {
        let hash = string_hash(key);
        (hash ^ (hash >> 16)) as usize & (capacity - 1)
    });
}

/// Computes Java's `String.hashCode`.
fn string_hash(text: &str) -> u32 {
    text.encode_utf16().fold(0u32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(unit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are the output of Java 17.
    #[test]
    fn doubles_as_java_17_writes_them() {
        for (value, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
            (1e10, "1.0E10"),
            (1e-5, "1.0E-5"),
            (1e7, "1.0E7"),
            (9_999_999.0, "9999999.0"),
            (0.001, "0.001"),
            (0.000_999, "9.99E-4"),
            (123_456_789.123, "1.23456789123E8"),
            (1.234_567_890_123_456_7E18, "1.23456789012345677E18"),
            (9_007_199_254_740_993.0, "9.007199254740992E15"),
            (1e21, "1.0E21"),
        ] {
            assert_eq!(double_text(value), text);
        }
        for (value, text) in [
            (1e10, "1.0E10"),
            (123_456.79, "123456.79"),
            (1.1, "1.1"),
            (f32::MAX, "3.4028235E38"),
            // The sum of `b` and `m` overflows in Java.
            (5.393_484_3E25, "5.3934843E25"),
            (-0.05, "-0.05"),
        ] {
            assert_eq!(float_text(value), text);
        }
    }

    #[test]
    fn every_text_reads_back() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let double = f64::from_bits(random);
            if double.is_finite() {
                assert_eq!(double_text(double).parse::<f64>(), Ok(double));
            }
            let float = f32::from_bits(random as u32);
            if float.is_finite() {
                assert_eq!(float_text(float).parse::<f32>(), Ok(float));
            }
        }
    }

    #[test]
    fn keys_are_in_the_order_of_a_hash_map() {
        // Output of System.out.println(new HashMap<>(...)) in Java 17.
        let keys = ["z", "aa", "b", "hello world", "c d", "a"];
        let mut entries = keys.map(|key| (key.to_owned(), ()));
        sort_as_hash_map(&mut entries);
        let order = entries.map(|(key, ())| key);
        assert_eq!(order, ["aa", "a", "b", "c d", "z", "hello world"]);
    }
}
