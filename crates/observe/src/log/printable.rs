//! Text of servers and files, safe for a log and a terminal: no text can look like a line of
//! walrelay, move the cursor, or reverse what is shown.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Returns true for a character that a terminal obeys or hides: controls (C0, DEL, C1), the
/// separators of lines and paragraphs, and the controls of bidirectional text
/// (<https://www.unicode.org/reports/tr9/>, section 2).
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes hidden characters as Rust does, such as `\n` and `\u{202e}`: the result is one line.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    // Writing to a string does not fail.
    let _ = Printable(&mut out).write_str(text);
    Cow::Owned(out)
}

/// Escapes hidden characters as [`printable`] does, but keeps lines: each line after the first is
/// indented, so that it is no line of its own. Spaces at the end are removed.
pub fn printable_lines(text: &str) -> String {
    let lines = text.trim_end().lines().enumerate();
    let lines = lines.map(|(number, line)| {
        let line = printable(line);
        if number == 0 || line.starts_with(' ') {
            line
        } else {
            Cow::Owned(format!("  {line}"))
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Escapes hidden characters in JSON, where they are in strings only, as `\u202e`. Newlines stay:
/// JSON has them between its members and between documents.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let hidden = |c: char| c != '\n' && is_hidden(c);
    if !json.contains(hidden) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if hidden(c) {
            // Each is a character of the basic plane.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Escapes what is written through it as [`printable`] does.
pub(crate) struct Printable<W>(pub(crate) W);

impl<W: Write> Write for Printable<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_hidden(*c)) {
            self.0.write_str(&rest[..at])?;
            match c {
                '\n' | '\r' | '\t' => write!(self.0, "{}", c.escape_default())?,
                c => write!(self.0, "{}", c.escape_unicode())?,
            }
            rest = &rest[at + c.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_shown() {
        assert_eq!(printable("größe 😀 \\n"), "größe 😀 \\n");
        assert_eq!(
            printable("a\nb\r\t\u{1b}[31m\u{7f}\u{85}\u{202e}\u{2066}\u{2028}"),
            "a\\nb\\r\\t\\u{1b}[31m\\u{7f}\\u{85}\\u{202e}\\u{2066}\\u{2028}"
        );
        assert_eq!(
            printable_lines("a\nerror: b\n  c\u{7}\n"),
            "a\n  error: b\n  c\\u{7}"
        );
    }

    #[test]
    fn json_keeps_its_meaning() {
        let all: String = (0..0x3000).filter_map(char::from_u32).collect();
        let json = serde_json::to_string(&[&all]).unwrap() + "\n";
        let shown = printable_json(&json);
        assert!(!shown.trim_end().contains(is_hidden), "{shown}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [all]);
    }
}
