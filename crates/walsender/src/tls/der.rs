//! As much of DER (X.690) as is needed to look into a certificate (RFC 5280), every length checked.
//!
//! Nothing here decides whether a certificate's issuer is trusted; that is `webpki`'s work.

use std::time::Duration;

use rustls::pki_types::UnixTime;

const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// `[0]`, explicit: a certificate's version, the hash in the parameters of RSASSA-PSS.
const CONTEXT_0: u8 = 0xA0;

/// A reader of consecutive elements.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

/// One element.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// With tag and length.
    pub(super) whole: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The next element; `None` at the end and for anything that is not definite-length DER with a
    /// one-byte tag.
    pub(super) fn next(&mut self) -> Option<Element<'a>> {
        let input = self.0;
        let (&tag, rest) = input.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7F => (usize::from(first), rest),
            // A certificate of 16 MiB and more is none.
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
                let length = digits
                    .iter()
                    .fold(0, |length, &digit| length << 8 | usize::from(digit));
                (length, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let whole = input.get(..input.len() - rest.len())?;
        self.0 = rest;
        Some(Element {
            tag,
            content,
            whole,
        })
    }

    /// The content of the next element, which must have this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let element = self.next()?;
        (element.tag == tag).then_some(element.content)
    }
}

/// The fields of a certificate that are of interest here.
pub(super) struct Certificate<'a> {
    /// Version 1, the form that knows no extensions and so no subjectAltName.
    pub(super) is_version_1: bool,
    /// Whether its issuer has the name of its subject.
    pub(super) is_self_issued: bool,
    /// `notBefore`, `notAfter`.
    pub(super) validity: (UnixTime, UnixTime),
    /// The SubjectPublicKeyInfo, whole.
    pub(super) public_key_info: &'a [u8],
    signature_algorithm: Reader<'a>,
}

impl<'a> Certificate<'a> {
    /// Takes a certificate apart; `None` if it has not the form of RFC 5280, section 4.1.
    pub(super) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut certificate = Reader(Reader(der).expect(SEQUENCE)?);
        let mut body = Reader(certificate.expect(SEQUENCE)?);
        let signature_algorithm = Reader(certificate.expect(SEQUENCE)?);
        // version [0] DEFAULT v1, serialNumber, signature, issuer, validity, subject, key
        let is_version_1 = body.0.first() != Some(&CONTEXT_0);
        if !is_version_1 {
            body.next()?;
        }
        let _serial_number = body.next()?;
        let _signature = body.next()?;
        let issuer = body.next()?;
        let mut validity = Reader(body.expect(SEQUENCE)?);
        let validity = (time(validity.next()?)?, time(validity.next()?)?);
        let subject = body.next()?;
        let public_key_info = body.next().filter(|key| key.tag == SEQUENCE)?.whole;
        Some(Self {
            is_version_1,
            is_self_issued: issuer.whole == subject.whole,
            validity,
            public_key_info,
            signature_algorithm,
        })
    }

    /// The object identifier of the signature algorithm, and for RSASSA-PSS (RFC 4055, 3.1) the
    /// one of the hash in its parameters, if it is not the default (SHA-1).
    pub(super) fn signature_algorithm(&self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let mut algorithm = self.signature_algorithm;
        let identifier = algorithm.expect(OBJECT_IDENTIFIER)?;
        Some((identifier, pss_hash(algorithm)))
    }
}

/// Of `parameters`, a sequence that starts with an explicitly tagged algorithm identifier.
fn pss_hash(mut parameters: Reader<'_>) -> Option<&[u8]> {
    let mut fields = Reader(parameters.expect(SEQUENCE)?);
    let mut hash = Reader(fields.expect(CONTEXT_0)?);
    Reader(hash.expect(SEQUENCE)?).expect(OBJECT_IDENTIFIER)
}

/// `UTCTime` as `YYMMDDhhmmssZ`, `GeneralizedTime` as `YYYYMMDDhhmmssZ` (RFC 5280, 4.1.2.5).
/// Times before 1970 count as 1970.
fn time(element: Element<'_>) -> Option<UnixTime> {
    let digits = element.content.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let (year_digits, rest) = match element.tag {
        UTC_TIME if digits.len() == 12 => digits.split_at_checked(2)?,
        GENERALIZED_TIME if digits.len() == 14 => digits.split_at_checked(4)?,
        _ => return None,
    };
    let number = |digits: &[u8]| {
        digits
            .iter()
            .fold(0_i64, |number, digit| number * 10 + i64::from(digit - b'0'))
    };
    let year = match (element.tag, number(year_digits)) {
        (UTC_TIME, year @ 0..50) => 2000 + year,
        (UTC_TIME, year) => 1900 + year,
        (_, year) => year,
    };
    let mut pairs = rest.chunks_exact(2).map(number);
    let month = pairs.next().filter(|month| (1..=12).contains(month))?;
    let day = pairs.next().filter(|day| (1..=31).contains(day))?;
    let hour = pairs.next().filter(|hour| *hour < 24)?;
    let minute = pairs.next().filter(|minute| *minute < 60)?;
    let second = pairs.next().filter(|second| *second < 61)?;
    let seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

/// In the Gregorian calendar. Years are counted from March, so that the leap day is the last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days_before_month = (153 * month + 2) / 5;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + days_before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tag: u8, text: &[u8]) -> Option<u64> {
        let element = Element {
            tag,
            content: text,
            whole: text,
        };
        time(element).map(|time| time.as_secs())
    }

    #[test]
    fn times_are_those_of_a_calendar() {
        for (tag, text, expected) in [
            (UTC_TIME, &b"700101000000Z"[..], 0),
            (UTC_TIME, b"240229123456Z", 1_709_210_096),
            (UTC_TIME, b"491231235959Z", 2_524_607_999),
            (UTC_TIME, b"500101000000Z", 0),
            (GENERALIZED_TIME, b"20500101000000Z", 2_524_608_000),
            (GENERALIZED_TIME, b"21000301000000Z", 4_107_542_400),
            (GENERALIZED_TIME, b"99991231235959Z", 253_402_300_799),
        ] {
            assert_eq!(seconds(tag, text), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for (tag, text) in [
            (UTC_TIME, &b"700101000000"[..]),
            (UTC_TIME, b"7001010000Z"),
            (UTC_TIME, b"20500101000000Z"),
            (UTC_TIME, b"701301000000Z"),
            (UTC_TIME, b"700100000000Z"),
            (UTC_TIME, b"70010100000xZ"),
            (GENERALIZED_TIME, b"20500101000000+0100"),
            (OBJECT_IDENTIFIER, b"700101000000Z"),
            (UTC_TIME, b""),
        ] {
            assert_eq!(seconds(tag, text), None, "{text:?}");
        }
    }

    #[test]
    fn lengths_beyond_the_input_are_refused() {
        for input in [
            &b""[..],
            b"\x30",
            b"\x30\x01",
            b"\x30\x80\x00\x00",
            b"\x30\x81",
            b"\x30\x83\xFF\xFF\xFF\x00",
            b"\x30\x84\x00\x00\x00\x01\x00",
        ] {
            assert!(Reader(input).next().is_none(), "{input:?}");
        }
        let element = Reader(b"\x30\x81\x02ab?").next().expect("an element");
        assert_eq!(element.content, b"ab");
        assert_eq!(element.whole, b"\x30\x81\x02ab");
    }
}
