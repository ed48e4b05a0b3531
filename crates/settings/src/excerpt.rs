//! Places in the file, and excerpts of its lines for messages.

use std::ops::Range;

use crate::error::Location;
use crate::keys;

/// Characters of a line that are shown, at most.
const WIDTH: usize = 120;

/// The configuration file: its name and text.
#[derive(Clone, Copy)]
pub(crate) struct FileText<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

impl FileText<'_> {
    /// Returns the line and column of a byte offset.
    pub(crate) fn place(self, offset: usize) -> Location {
        let (line, start) = self.line_of(offset);
        let before = self.text.get(start..offset).unwrap_or_default();
        Location::At {
            name: self.name.to_owned(),
            line,
            column: before.chars().count() + 1,
        }
    }

    /// Returns the number of the line around `offset`, from 1, and the offset of its start.
    fn line_of(self, offset: usize) -> (usize, usize) {
        let before = self.text.as_bytes();
        let before = &before[..offset.min(before.len())];
        let mut lines = before.split(|byte| *byte == b'\n');
        let number = lines.clone().count();
        let last = lines.next_back().unwrap_or_default();
        (number, before.len() - last.len())
    }

    /// Returns the line around a key or a value, with carets under `span`.
    pub(crate) fn excerpt(self, span: &Range<usize>) -> Option<String> {
        self.excerpt_of(span, false)
    }

    /// Returns the line of an unknown key without its value, because the key may be a misspelt
    /// secret.
    pub(crate) fn excerpt_of_key(self, span: &Range<usize>) -> Option<String> {
        self.excerpt_of(span, true)
    }

    fn excerpt_of(self, span: &Range<usize>, only_key: bool) -> Option<String> {
        let (number, start) = self.line_of(span.start);
        let line = self.text.get(start..)?.lines().next()?;
        let from = self.text.get(start..span.start)?.chars().count();
        let to_end = line.chars().count().saturating_sub(from);
        let length = self
            .text
            .get(span.clone())
            .map_or(1, |text| text.chars().count())
            .clamp(1, to_end.max(1));
        let secret = may_hold_a_secret(line);
        if secret && !line.contains('=') {
            return None;
        }
        let cut = line.find('=').filter(|_| secret || only_key);
        let (shown, from, length) = if let Some(at) = cut {
            let key = &line[..at];
            let value = key.chars().count() + 2;
            let from = from.min(value);
            let length = length.min((value - from).max(1));
            (format!("{key}= …"), from, length)
        } else {
            (line.to_owned(), from, length)
        };
        if from >= WIDTH {
            return None;
        }
        // A tab would misplace the caret, and other control characters may control the terminal.
        let shown: String = shown
            .chars()
            .take(WIDTH)
            .map(|c| match c {
                '\t' => ' ',
                c if c.is_control() => '\u{FFFD}',
                c => c,
            })
            .collect();
        let length = length.min(WIDTH - from);
        let margin = number.to_string();
        Some(format!(
            "  {margin} | {shown}\n  {:width$} | {:from$}{:^<length$}",
            "",
            "",
            "",
            width = margin.len(),
        ))
    }

    /// Returns the line of a syntax error. It may lie inside a string that was never closed, which
    /// may be a secret. So it is shown only if it looks like a key or the head of a section.
    pub(crate) fn excerpt_of_syntax(self, span: &Range<usize>) -> Option<String> {
        let (_, start) = self.line_of(span.start);
        let line = self.text.get(start..)?.lines().next()?;
        let is_complete = line.contains('=') || line.trim_start().starts_with('[');
        is_complete.then(|| self.excerpt(span)).flatten()
    }
}

/// Returns true if a line of the file may show a secret. In doubt it is hidden.
fn may_hold_a_secret(line: &str) -> bool {
    let names_a_file = line.split_once('=').is_some_and(|(key, _)| {
        key.trim_end()
            .trim_end_matches(['"', '\''])
            .ends_with("_file")
    });
    let lower = line.to_ascii_lowercase();
    !names_a_file
        && (keys::names_a_secret(&lower) || lower.contains("url") || lower.contains("://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, needle: &str) -> (Location, Option<String>) {
        let source = FileText { name: "f", text };
        let start = text.find(needle).unwrap();
        let span = start..start + needle.len();
        (source.place(start), source.excerpt(&span))
    }

    #[test]
    fn columns_count_characters() {
        let (place, excerpt) = at("a = 1\n\tü = \"x\"\r\n", "\"x\"");
        assert_eq!(place.to_string(), "f:2:6");
        assert_eq!(excerpt.unwrap(), "  2 |  ü = \"x\"\n    |      ^^^");
    }

    #[test]
    fn lines_with_secrets_end_at_the_equals_sign() {
        for line in [
            "url = \"hunter2\"",
            "\"sasl.password\" = \"hunter2\"",
            "source = { slot = 'a', url = 'hunter2' }",
            "x = 'postgres://a:hunter2@b'",
        ] {
            let (_, excerpt) = at(line, "hunter2");
            let excerpt = excerpt.unwrap();
            assert!(!excerpt.contains("hunter2"), "{excerpt}");
            assert!(excerpt.contains("= …"), "{excerpt}");
        }
        let (_, excerpt) = at("password_file = \"/run/pw\"", "\"/run");
        assert!(excerpt.unwrap().contains("/run/pw"));
    }

    #[test]
    fn a_line_inside_an_open_string_is_not_shown() {
        let text = "url = \"\"\"\nhunter2\\z\"\"\"";
        let source = FileText { name: "f", text };
        let start = text.find("hunter2").unwrap();
        assert_eq!(source.excerpt_of_syntax(&(start..start + 3)), None);
    }

    #[test]
    fn long_lines_and_odd_offsets_do_not_panic() {
        let long = format!("a = \"{}\"", "ü".repeat(500));
        let source = FileText {
            name: "f",
            text: &long,
        };
        for start in 0..=long.len() + 1 {
            let _ = source.place(start);
            let _ = source.excerpt(&(start..start + 1));
            let _ = source.excerpt(&(start..long.len()));
            let _ = source.excerpt_of_syntax(&(start..start));
        }
        let shown = source.excerpt(&(4..long.len())).unwrap();
        assert!(
            shown.lines().all(|line| line.chars().count() <= WIDTH + 6),
            "{shown}"
        );
    }
}
