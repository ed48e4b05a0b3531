//! Reads the W3C trace context (<https://www.w3.org/TR/trace-context/>) from a column.
//!
//! Debezium's column contains the text of a `java.util.Properties`, written by an OpenTelemetry
//! propagator. A column with only a `traceparent` is accepted too.

use std::borrow::Cow;

/// The headers of a trace context, which are also the keys of the properties.
pub(crate) const HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// Finds the value of the header of this name. `None` if the text is not a trace context: a bad
/// span must not stop an event.
pub(crate) fn header<'t>(text: &'t [u8], name: &str) -> Option<Cow<'t, [u8]>> {
    let text = text.trim_ascii();
    if name == HEADERS[0] && !text.iter().any(|byte| matches!(byte, b'=' | b':' | b'\n')) {
        return (!text.is_empty()).then_some(Cow::Borrowed(text));
    }
    let lines = text.split(|byte| matches!(byte, b'\n' | b'\r'));
    // Java keeps the last property of a key.
    lines.rev().find_map(|line| {
        let rest = line.trim_ascii_start().strip_prefix(name.as_bytes())?;
        let rest = rest.trim_ascii_start();
        let value = rest
            .strip_prefix(b"=")
            .or_else(|| rest.strip_prefix(b":"))?;
        let value = unescaped(value.trim_ascii());
        (!value.is_empty()).then_some(value)
    })
}

/// Removes the backslashes of Java's escapes, such as `\=` for `=`.
fn unescaped(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.contains(&b'\\') {
        return Cow::Borrowed(value);
    }
    let mut bytes = value.iter();
    let mut plain = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        plain.extend(if *byte == b'\\' {
            bytes.next()
        } else {
            Some(byte)
        });
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn properties_and_a_plain_traceparent_are_read() {
        for (text, parent, state) in [
            (PARENT.to_owned(), Some(PARENT), None),
            (format!("traceparent={PARENT}\n"), Some(PARENT), None),
            (
                format!(
                    "#Tue Nov 24 10:00:00 UTC 2026\ntracestate=a\\=b,c\\=d\r\n traceparent : {PARENT}"
                ),
                Some(PARENT),
                Some("a=b,c=d"),
            ),
            (
                format!("traceparent=old\ntraceparent={PARENT}"),
                Some(PARENT),
                None,
            ),
            ("traceparent=\ntracestated=1".to_owned(), None, None),
            ("\\".to_owned(), Some("\\"), None),
            ("tracestate=\\".to_owned(), None, None),
            (String::new(), None, None),
        ] {
            let found = HEADERS.map(|name| header(text.as_bytes(), name));
            let expected = [parent, state].map(|value| value.map(|value| value.as_bytes().into()));
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
