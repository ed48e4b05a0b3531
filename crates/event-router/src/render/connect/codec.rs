//! Reads the text of a column into its Connect value.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

use super::interval::Interval;
use super::options::BinaryHandling;
use super::schema::Data;
use super::{array, hstore, java, temporal};
use crate::value::decimal::{self, Decimal, Numeric};
use crate::value::{Malformed, hex_byte};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Codec {
    Text,
    Boolean,
    Integer,
    Float,
    Double,
    Bytes,
    BytesText(BinaryHandling),
    Decimal { scale: i32 },
    VariableDecimal,
    NumericDouble,
    NumericText(Option<i32>),
    Money { scale: i32 },
    MoneyDouble,
    MoneyText,
    Date(TimeEncoding),
    Time(TimeEncoding),
    ZonedTime,
    Timestamp(TimeEncoding),
    ZonedTimestamp { digits: Option<usize> },
    IntervalMicros,
    IntervalText,
    Bit,
    Bits,
    Point,
    HstoreJson,
    HstoreMap,
    Array(Box<Codec>),
}

/// The unit or format of dates and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeEncoding {
    Millis,
    Micros,
    Nanos,
    Iso,
    Connect,
}

fn text(text: String) -> Data<'static> {
    Data::Text(Cow::Owned(text))
}

impl Codec {
    /// Reads a text; returns NULL if Debezium has no value for it.
    pub(crate) fn read<'t>(&self, input: &'t str) -> Result<Data<'t>, Malformed> {
        Ok(match self {
            Self::Text => Data::Text(Cow::Borrowed(input)),
            Self::Boolean => Data::Boolean(match input {
                "t" | "true" => true,
                "f" | "false" => false,
                _ => return Err(Malformed),
            }),
            Self::Integer => Data::Int(input.parse()?),
            Self::Float => Data::Float(input.parse()?),
            Self::Double => Data::Double(input.parse()?),
            Self::Bytes => Data::Bytes(bytea(input)?),
            Self::BytesText(handling) => text(bytes_text(&bytea(input)?, *handling)),
            Self::Decimal { scale } => match input.parse()? {
                Numeric::Number(number) => Data::Decimal(number.with_scale(*scale)),
                _ => Data::Null,
            },
            Self::VariableDecimal => match input.parse()? {
                Numeric::Number(number) => variable_scale_decimal(number),
                _ => Data::Null,
            },
            Self::NumericDouble => Data::Double(input.parse::<Numeric>()?.double()),
            Self::NumericText(scale) => text(match (input.parse()?, scale) {
                (Numeric::Number(number), Some(scale)) => number.with_scale(*scale).plain(),
                (number, _) => number.string(),
            }),
            Self::Money { scale } => Data::Decimal(decimal::money(input)?.with_scale(*scale)),
            Self::MoneyDouble => Data::Double(decimal::money(input)?.double()),
            Self::MoneyText => text(decimal::money(input)?.plain()),
            Self::Date(encoding) => date(temporal::date(input)?, *encoding),
            Self::Time(encoding) => time(temporal::time(input)?, *encoding),
            Self::ZonedTime => {
                let micros = temporal::time_with_offset(input)?;
                text(format!("{}Z", temporal::iso_time(micros, None)))
            }
            Self::Timestamp(encoding) => timestamp(temporal::timestamp(input)?, *encoding),
            Self::ZonedTimestamp { digits } => match temporal::timestamp(input)? {
                timestamp if timestamp.infinite => Data::Text(Cow::Borrowed(input)),
                timestamp => text(temporal::iso_instant(timestamp.micros, *digits)),
            },
            Self::IntervalMicros => Data::Int(Interval::parse(input)?.micros()),
            Self::IntervalText => text(Interval::parse(input)?.iso()),
            Self::Bit => match input {
                "0" => Data::Boolean(false),
                "1" => Data::Boolean(true),
                "" => Data::Null,
                _ => return Err(Malformed),
            },
            Self::Bits => Data::Bytes(Cow::Owned(bits(input)?)),
            Self::Point => point(input)?,
            Self::HstoreJson => text(hstore::json(&hstore_entries(input)?)),
            Self::HstoreMap => Data::Map(hstore_entries(input)?),
            Self::Array(element) => array::parse(input, &|text| element.read(text))?,
        })
    }
}

/// Reads a `bytea` in either format of `bytea_output`, `hex` or `escape`.
fn bytea(input: &str) -> Result<Cow<'_, [u8]>, Malformed> {
    if let Some(hex) = input.strip_prefix("\\x") {
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        let bytes: Option<Vec<u8>> = pairs.iter().copied().map(hex_byte).collect();
        return bytes
            .filter(|_| rest.is_empty())
            .map(Cow::Owned)
            .ok_or(Malformed);
    }
    if !input.contains('\\') {
        return Ok(Cow::Borrowed(input.as_bytes()));
    }
    let mut bytes = Vec::with_capacity(input.len());
    let mut rest = input.as_bytes();
    while let [first, tail @ ..] = rest {
        let byte;
        (byte, rest) = match (first, tail) {
            (b'\\', [b'\\', rest @ ..]) => (b'\\', rest),
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..]) => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest)
            }
            (b'\\', _) => return Err(Malformed),
            (byte, rest) => (*byte, rest),
        };
        bytes.push(byte);
    }
    Ok(Cow::Owned(bytes))
}

fn bytes_text(bytes: &[u8], handling: BinaryHandling) -> String {
    match handling {
        BinaryHandling::Bytes | BinaryHandling::Base64 => STANDARD.encode(bytes),
        BinaryHandling::Base64UrlSafe => URL_SAFE.encode(bytes),
        BinaryHandling::Hex => {
            let digit = |nibble: u8| char::from_digit(nibble.into(), 16);
            let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
            digits.filter_map(digit).collect()
        }
    }
}

fn variable_scale_decimal(number: Decimal) -> Data<'static> {
    let number = number.stripped();
    Data::Struct(vec![
        Data::Int(number.scale().into()),
        Data::Bytes(Cow::Owned(number.unscaled_bytes())),
    ])
}

fn date(days: i64, encoding: TimeEncoding) -> Data<'static> {
    match encoding {
        TimeEncoding::Iso => text(format!("{}Z", temporal::iso_date(days))),
        TimeEncoding::Connect => Data::Instant(days * temporal::DAY_MILLIS),
        _ => Data::Int(days),
    }
}

fn time(micros: i64, encoding: TimeEncoding) -> Data<'static> {
    match encoding {
        TimeEncoding::Millis => Data::Int(micros / 1000),
        TimeEncoding::Micros => Data::Int(micros),
        TimeEncoding::Nanos => Data::Int(micros * 1000),
        TimeEncoding::Iso => {
            let time = temporal::iso_time(micros % temporal::DAY_MICROS, None);
            text(format!("{time}Z"))
        }
        TimeEncoding::Connect => Data::Instant(micros / 1000),
    }
}

fn timestamp(timestamp: temporal::Timestamp, encoding: TimeEncoding) -> Data<'static> {
    let micros = timestamp.micros;
    let millis = micros.div_euclid(1000) as i64;
    let saturated = |count: i128| {
        let count = count.clamp(i64::MIN.into(), i64::MAX.into());
        Data::Int(count as i64)
    };
    match encoding {
        TimeEncoding::Millis => Data::Int(millis),
        TimeEncoding::Micros => saturated(micros),
        TimeEncoding::Nanos => match i64::try_from(micros * 1000) {
            Ok(nanos) => Data::Int(nanos),
            Err(_) if timestamp.infinite => saturated(micros * 1000),
            // Debezium has no value for a time that is out of range.
            Err(_) => Data::Null,
        },
        TimeEncoding::Iso => text(temporal::iso_instant(micros, None)),
        TimeEncoding::Connect => Data::Instant(millis),
    }
}

/// Packs a bit string into bytes, least significant first, without zero bytes at the end.
fn bits(input: &str) -> Result<Vec<u8>, Malformed> {
    let mut bytes = vec![0u8; input.len().div_ceil(8)];
    for (at, bit) in input.bytes().rev().enumerate() {
        let byte = bytes.get_mut(at / 8).ok_or(Malformed)?;
        match bit {
            b'0' => {}
            b'1' => *byte |= 1 << (at % 8),
            _ => return Err(Malformed),
        }
    }
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn point(input: &str) -> Result<Data<'static>, Malformed> {
    let inner = input.strip_prefix('(').ok_or(Malformed)?;
    let inner = inner.strip_suffix(')').ok_or(Malformed)?;
    let (x, y) = inner.split_once(',').ok_or(Malformed)?;
    let (x, y): (f64, f64) = (x.parse()?, y.parse()?);
    // Well-known binary: byte order (1: little-endian), type (1: point), x, y.
    let wkb = [&[1, 1, 0, 0, 0], &x.to_le_bytes()[..], &y.to_le_bytes()[..]].concat();
    let wkb = Data::Bytes(wkb.into());
    Ok(Data::Struct(vec![
        Data::Double(x),
        Data::Double(y),
        wkb,
        Data::Null,
    ]))
}

/// Parses an `hstore`; the entries are in the order of Java's `HashMap`.
fn hstore_entries(input: &str) -> Result<Vec<(String, Option<String>)>, Malformed> {
    let mut entries = hstore::parse(input)?;
    java::sort_as_hash_map(&mut entries);
    Ok(entries)
}
