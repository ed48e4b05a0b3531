//! Texts as Java makes them: floating-point numbers, and the order of a `HashMap`.
//!
//! Debezium's bytes contain what `Float.toString` and `Double.toString` give. Up to Java 18 that is
//! the algorithm of `jdk.internal.math.FloatingDecimal`, which now and then writes one digit more
//! than is needed (`2.0E-3` is right, `1.23456789012345677E18` has one too many); since Java 19 the
//! shortest text is written. Recordings and the images of Debezium are of the former kind, and so is
//! this.

use num_bigint::BigUint;

/// `Double.toString`.
pub(crate) fn double_text(value: f64) -> String {
    number_text(value.to_bits(), 11, 52)
}

/// `Float.toString`.
pub(crate) fn float_text(value: f32) -> String {
    number_text(value.to_bits().into(), 8, 23)
}

/// A number of IEEE 754 with so many bits for its exponent and its fraction.
fn number_text(bits: u64, exponent_bits: i32, fraction_bits: i32) -> String {
    let negative = bits >> (exponent_bits + fraction_bits) != 0;
    let most = (1 << exponent_bits) - 1;
    let exponent = (bits >> fraction_bits) as i32 & most;
    let fraction = bits & ((1 << fraction_bits) - 1);
    let special = match (exponent, fraction) {
        (0, 0) => "0.0",
        (exponent, 0) if exponent == most => "Infinity",
        (exponent, _) if exponent == most => return "NaN".to_owned(),
        _ => "",
    };
    if !special.is_empty() {
        let sign = if negative { "-" } else { "" };
        return [sign, special].concat();
    }
    let (exponent, fraction, significant) = if exponent == 0 {
        let significant = 64 - fraction.leading_zeros() as i32;
        let shift = fraction_bits + 1 - significant;
        (1 - shift, fraction << shift, significant)
    } else {
        (exponent, fraction | 1 << fraction_bits, fraction_bits + 1)
    };
    // The rest is made for the width of a double.
    let fraction = fraction << (EXP_SHIFT - fraction_bits);
    text(negative, exponent - most / 2, fraction, significant)
}

const EXP_SHIFT: i32 = 52;

/// Decimal digits, and how many of them stand before the point.
struct Digits {
    digits: Vec<u8>,
    exponent: i32,
}

fn text(negative: bool, binary_exponent: i32, fraction: u64, significant: i32) -> String {
    let Digits { digits, exponent } = digits(binary_exponent, fraction, significant);
    let digits: String = digits.iter().map(|d| char::from(b'0' + d)).collect();
    let mut out = String::with_capacity(26);
    if negative {
        out.push('-');
    }
    let (whole, power) = match exponent {
        1..8 => (exponent as usize, None),
        -2..=0 => (0, None),
        _ => (1, Some(exponent - 1)),
    };
    if whole == 0 {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', exponent.unsigned_abs() as usize));
        out.push_str(&digits);
        return out;
    }
    let (before, after) = digits.split_at(whole.min(digits.len()));
    out.push_str(before);
    out.extend(std::iter::repeat_n('0', whole - before.len()));
    out.push('.');
    out.push_str(if after.is_empty() { "0" } else { after });
    if let Some(power) = power {
        out.push('E');
        out.push_str(&power.to_string());
    }
    out
}

/// `FloatingDecimal.BinaryToASCIIBuffer.dtoa`, names as there.
fn digits(binary_exponent: i32, fraction: u64, significant: i32) -> Digits {
    let tail_zeros = fraction.trailing_zeros() as i32;
    let fraction_bits = EXP_SHIFT + 1 - tail_zeros;
    let tiny_bits = (fraction_bits - binary_exponent - 1).max(0);
    if (-21..=62).contains(&binary_exponent) && tiny_bits == 0 && fraction_bits < 64 {
        // A whole number that fits in 63 bits.
        let surplus = binary_exponent - significant - 1;
        let insignificant = if binary_exponent > significant && surplus > 1 {
            (f64::from(surplus) * std::f64::consts::LOG10_2) as u32
        } else {
            0
        };
        let whole = if binary_exponent >= EXP_SHIFT {
            fraction << (binary_exponent - EXP_SHIFT)
        } else {
            fraction >> (EXP_SHIFT - binary_exponent)
        };
        return whole_digits(whole, insignificant);
    }

    let mut exponent = estimated_exponent(fraction, binary_exponent);
    let b5 = (-exponent).max(0);
    let mut b2 = b5 + tiny_bits + binary_exponent;
    let s5 = exponent.max(0);
    let mut s2 = s5 + tiny_bits;
    let m5 = b5;
    let mut m2 = b2 - significant;
    let fraction = fraction >> tail_zeros;
    b2 -= fraction_bits - 1;
    let common = b2.min(s2);
    b2 -= common;
    s2 -= common;
    m2 -= common;
    // The next smaller number is nearer below a power of two.
    if fraction_bits == 1 {
        m2 -= 1;
    }
    if m2 < 0 {
        b2 -= m2;
        s2 -= m2;
        m2 = 0;
    }
    let scaled = |five: i32, two: i32| BigUint::from(5u8).pow(five as u32) << (two as u32);
    // Java computes in machine words where it thinks that all fits, and what overflows shows.
    let bits = |five: i32| if five == 0 { 0 } else { power_bits(five) };
    let b_bits = fraction_bits + b2 + bits(b5);
    let tens_bits = s2 + 1 + bits(s5 + 1);
    let word = match (b_bits, tens_bits) {
        (..32, ..32) => Some(32),
        (..64, ..64) => Some(64),
        _ => None,
    };

    let s = scaled(s5, s2);
    let tens = &s * 10u8;
    let mut b = scaled(b5, b2) * fraction;
    let mut m = scaled(m5, m2);
    let mut digits = Vec::with_capacity(18);
    let wrapped = |number: i64| match word {
        Some(32) => i64::from(number as i32),
        _ => number,
    };
    let in_word = |number: &BigUint| wrapped(number.iter_u64_digits().next().unwrap_or(0) as i64);
    let step = |b: &mut BigUint, m: &mut BigUint, first: bool| {
        let quotient = &*b / &s;
        *b = (&*b - &quotient * &s) * 10u8;
        *m = &*m * 10u8;
        let (low, high) = match word {
            Some(_) => {
                let [b, m, tens] = [&*b, &*m, &tens].map(in_word);
                let sum = wrapped(b.wrapping_add(m));
                if first || m > 0 {
                    (b < m, sum > tens)
                } else {
                    (true, true)
                }
            }
            None => (b < m, &*b + &*m >= tens),
        };
        let digit = u8::try_from(&quotient).unwrap_or(9);
        (digit, low, high)
    };
    let (digit, mut low, mut high) = step(&mut b, &mut m, true);
    if digit == 0 && !high {
        exponent -= 1;
    } else {
        digits.push(digit);
    }
    // There is always a digit after the point.
    if !(-3..8).contains(&exponent) {
        low = false;
        high = false;
    }
    while !low && !high {
        let digit;
        (digit, low, high) = step(&mut b, &mut m, false);
        digits.push(digit);
    }
    let up = match (high, low) {
        (true, true) => {
            let doubled = b << 1u8;
            let odd = digits.last().is_some_and(|digit| digit % 2 == 1);
            doubled > tens || doubled == tens && odd
        }
        (high, _) => high,
    };
    if up {
        round_up(&mut digits, &mut exponent);
    }
    Digits {
        digits,
        exponent: exponent + 1,
    }
}

/// `N_5_BITS`, and what is estimated beyond that table.
fn power_bits(five: i32) -> i32 {
    if five < 27 {
        64 - 5u128.pow(five as u32).leading_zeros() as i32 + 64
    } else {
        five * 3
    }
}

/// Java's literal, which is not the nearest number.
#[expect(
    clippy::approx_constant,
    reason = "the estimate must come out as it does in Java"
)]
const LOG10_2: f64 = 0.301_029_995_663_981;

fn estimated_exponent(fraction: u64, binary_exponent: i32) -> i32 {
    let mantissa = f64::from_bits((1023 << 52) | (fraction & ((1 << 52) - 1)));
    let estimate =
        (mantissa - 1.5) * 0.289_529_654 + 0.176_091_259 + f64::from(binary_exponent) * LOG10_2;
    estimate.floor() as i32
}

fn whole_digits(mut whole: u64, insignificant: u32) -> Digits {
    if insignificant != 0 {
        let power = 10u64.pow(insignificant);
        let residue = whole % power;
        whole /= power;
        if residue >= power / 2 {
            whole += 1;
        }
    }
    let text = whole.to_string();
    let exponent = text.len() as i32 + insignificant as i32;
    let digits = text.trim_end_matches('0').bytes().map(|c| c - b'0');
    Digits {
        digits: digits.collect(),
        exponent,
    }
}

fn round_up(digits: &mut [u8], exponent: &mut i32) {
    for digit in digits.iter_mut().rev() {
        if *digit < 9 {
            *digit += 1;
            return;
        }
        *digit = 0;
    }
    // 99…9 becomes 100…0, one digit longer before the point.
    if let Some(first) = digits.first_mut() {
        *first = 1;
    }
    *exponent += 1;
}

/// Sorts entries in the order of a `java.util.HashMap`. No key occurs twice.
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

/// `String.hashCode`.
fn string_hash(text: &str) -> u32 {
    text.encode_utf16().fold(0u32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(unit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by Java 17.
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
            // A sum that overflows in Java.
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
        // System.out.println(new HashMap<>(...)) of Java 17.
        let keys = ["z", "aa", "b", "hello world", "c d", "a"];
        let mut entries = keys.map(|key| (key.to_owned(), ()));
        sort_as_hash_map(&mut entries);
        let order = entries.map(|(key, ())| key);
        assert_eq!(order, ["aa", "a", "b", "c d", "z", "hello world"]);
    }
}
