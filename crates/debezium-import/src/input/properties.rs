//! Parses Java's properties files:
//! <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)>.

use super::InputError;

/// One entry, with the number of its first line.
#[derive(PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) value: String,
}

/// Parses all entries in their order, repeated keys too.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, InputError> {
    let mut entries = Vec::new();
    // A byte order mark is not part of the first key.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = natural_lines(text).enumerate();
    while let Some((index, first)) = lines.next() {
        let first = first.trim_start_matches(is_blank);
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = first.to_owned();
        while continues(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(is_blank)),
                None => break,
            }
        }
        let line = index + 1;
        let (key, value) = split(&logical);
        let read = |text| unescape(text).map_err(|what| InputError::Properties { line, what });
        entries.push(Entry {
            line,
            key: read(key)?,
            value: read(value)?,
        });
    }
    Ok(entries)
}

/// Splits a text into lines, which end with `\n`, `\r` or `\r\n`.
fn natural_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n')
        .flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

/// Returns true if the line continues on the next: it ends with an odd number of backslashes.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits a line into key and value. The key ends before the first blank, `=` or `:` that is not
/// escaped; the blanks and one of the signs belong to neither.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c| {
        let ends = !escaped && (is_blank(c) || matches!(c, '=' | ':'));
        escaped = !escaped && c == '\\';
        ends
    });
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, rest.trim_start_matches(is_blank))
}

/// Decodes escapes. Collects UTF-16 code units, as `\uD83D\uDE00` is one character.
fn unescape(text: &str) -> Result<String, &'static str> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let c = match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', None) => continue,
            ('\\', Some('t')) => '\t',
            ('\\', Some('n')) => '\n',
            ('\\', Some('r')) => '\r',
            ('\\', Some('f')) => '\u{c}',
            ('\\', Some('u')) => {
                let digits = chars.as_str().get(..4);
                let unit = digits
                    .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
                    .and_then(|digits| u16::from_str_radix(digits, 16).ok());
                units.push(unit.ok_or("no four hexadecimal digits after \\u")?);
                chars = chars.as_str()[4..].chars();
                continue;
            }
            (_, Some(c)) | (c, None) => c,
        };
        units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).map_err(|_| "half a surrogate pair after \\u")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let entries = parse(text).unwrap();
        entries.into_iter().map(|e| (e.key, e.value)).collect()
    }

    #[test]
    fn properties_are_read_as_java_reads_them() {
        for (text, key, value) in [
            ("a=b", "a", "b"),
            ("a:b", "a", "b"),
            ("a b", "a", "b"),
            ("  a  =  b  ", "a", "b  "),
            ("a\t\u{c}:\tb", "a", "b"),
            ("a==b", "a", "=b"),
            ("a = : b", "a", ": b"),
            ("a", "a", ""),
            ("a=", "a", ""),
            ("=b", "", "b"),
            ("a\\=b=c", "a=b", "c"),
            ("a\\ b=c", "a b", "c"),
            ("a\\:b c", "a:b", "c"),
            ("a=b\\\n   c", "a", "bc"),
            ("a=b\\\\\nc=d", "a", "b\\"),
            ("a=b\\", "a", "b"),
            ("a\\\n b=c", "ab", "c"),
            ("a=\\t\\n\\q\\\\", "a", "\t\nq\\"),
            ("a=\\u00fc\\uD83D\\uDE00x", "a", "ü😀x"),
            ("a=b\\\n#c", "a", "b#c"),
            ("a=${x}", "a", "${x}"),
            ("\u{feff}a=b", "a", "b"),
            ("a=b\r\nc=d", "a", "b"),
            ("a=b\rc=d", "a", "b"),
        ] {
            let read = pairs(text);
            assert_eq!(read[0], (key.to_owned(), value.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn comments_and_blank_lines_are_skipped() {
        let entries = parse("# a=b\n\n ! c=d \\\n  e = f\n#\\\ng=h\n").unwrap();
        let read: Vec<_> = entries.iter().map(|e| (e.line, e.key.as_str())).collect();
        assert_eq!(read, [(4, "e"), (6, "g")]);
    }

    #[test]
    fn broken_escapes_are_errors_without_text() {
        for text in [
            "x=1\na=secret\\u12g4",
            "x=1\na=\\u12",
            "x=1\na=\\ud83d",
            "x=1\na=\\u+123",
        ] {
            let error = parse(text).err().unwrap().to_string();
            assert!(error.starts_with("line 2: "), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
