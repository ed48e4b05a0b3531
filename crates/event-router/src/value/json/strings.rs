//! JSON strings: decodes escapes, and writes text as a string.

use std::io::Write as _;

use crate::value::{Malformed, Part};

/// Appends the text of a JSON string to `out`. `string` is a string that [`find`](super::find) has
/// found, with its quotes; it may be a range of `out`.
pub(crate) fn unescape(string: &Part<'_>, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let end = string.len().saturating_sub(1);
    let mut from = 1;
    while from < end {
        let rest = string.resolve(out).and_then(|text| text.get(from..end));
        let rest = rest.unwrap_or_default();
        let plain = rest.iter().position(|byte| *byte == b'\\');
        let plain = plain.unwrap_or(rest.len());
        let escape = match rest.get(plain..) {
            None | Some([]) => None,
            Some(escape) => Some(escaped(escape).ok_or(Malformed)?),
        };
        string.copy(from..from + plain, out);
        from += plain;
        if let Some((c, length)) = escape {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            from += length;
        }
    }
    Ok(())
}

/// Reads the character of the escape at the beginning of `text`, and the escape's length in bytes.
/// `None` for a lone surrogate.
fn escaped(text: &[u8]) -> Option<(char, usize)> {
    let simple = match text.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let first = hex(text.get(2..6)?)?;
            if !(0xd800..0xdc00).contains(&first) {
                return Some((char::from_u32(first)?, 6));
            }
            let second = hex(text.get(6..12)?.strip_prefix(b"\\u")?)?;
            let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
            let c = char::from_u32(0x10000 + ((first - 0xd800) << 10) + low)?;
            return Some((c, 12));
        }
        _ => return None,
    };
    Some((simple, 2))
}

pub(super) fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| {
        Some(number << 4 | char::from(*digit).to_digit(16)?)
    })
}

/// Appends a text to `out` as a JSON string, in quotes. The text is UTF-8, and may be a range of
/// `out`.
pub(crate) fn string(text: &Part<'_>, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut from = 0;
    while from < text.len() {
        let rest = text.resolve(out).and_then(|text| text.get(from..));
        let rest = rest.unwrap_or_default();
        let plain = rest.iter().position(|byte| must_be_escaped(*byte));
        let plain = plain.unwrap_or(rest.len());
        let special = rest.get(plain).copied();
        text.copy(from..from + plain, out);
        if let Some(byte) = special {
            match short_escape(byte) {
                Some(escape) => out.extend_from_slice(&[b'\\', escape]),
                // Writing to a Vec does not fail.
                None => drop(write!(out, "\\u{byte:04x}")),
            }
        }
        from += plain + 1;
    }
    out.push(b'"');
}

pub(super) const fn must_be_escaped(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Returns the character after the backslash in the two-character escape of this byte.
pub(crate) const fn short_escape(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x8 => b'b',
        0xc => b'f',
        _ => return None,
    })
}

/// Returns true if `text` is the text of this JSON string.
pub(crate) fn same(string: &[u8], text: &[u8]) -> bool {
    let inner = string
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    let mut rest = inner.unwrap_or_default();
    if !rest.contains(&b'\\') {
        return rest == text;
    }
    let mut wanted = text;
    while let Some(byte) = rest.first() {
        let (found, length) = match (byte, escaped(rest)) {
            (b'\\', None) => return false,
            (b'\\', Some((c, length))) => (
                wanted.strip_prefix(c.encode_utf8(&mut [0; 4]).as_bytes()),
                length,
            ),
            (byte, _) => (wanted.strip_prefix(&[*byte]), 1),
        };
        let Some(left) = found else { return false };
        wanted = left;
        rest = rest.get(length..).unwrap_or_default();
    }
    wanted.is_empty()
}
