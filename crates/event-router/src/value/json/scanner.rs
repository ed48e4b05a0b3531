//! Scans a JSON text and finds the value at a path.

use std::ops::Range;

use super::strings::{hex, must_be_escaped, same};
use crate::value::Malformed;

/// Limit of nested values, equal to `serde_json`'s. Protects the stack.
pub(crate) const MAX_DEPTH: u16 = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The member of this name. The last of several counts, as in Postgres' `jsonb`.
    Member(String),
    /// The item of an array by its index, from 0.
    Item(usize),
}

/// Finds the range of the value at `path`, without whitespace around it. Always validates the whole
/// text.
pub(crate) fn find(text: &[u8], path: &[Step]) -> Result<Option<Range<usize>>, Malformed> {
    Scanner { text, at: 0 }.whole(|scanner| scanner.value(Some(path), 0))
}

pub(crate) fn is_json(text: &[u8]) -> bool {
    find(text, &[]).is_ok()
}

/// Returns true if a text is a JSON number and nothing else.
pub(crate) fn is_number(text: &[u8]) -> bool {
    let mut scanner = Scanner { text, at: 0 };
    scanner.number().is_ok() && scanner.at == text.len()
}

pub(super) struct Scanner<'t> {
    pub(super) text: &'t [u8],
    pub(super) at: usize,
}

impl Scanner<'_> {
    /// Parses the whole text with `value`; only whitespace may be around the value.
    pub(super) fn whole<T>(
        mut self,
        value: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        self.blanks();
        let value = value(&mut self)?;
        self.blanks();
        if self.at < self.text.len() {
            return Err(Malformed);
        }
        Ok(value)
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        if there {
            self.at += 1;
        }
        there
    }

    fn need(&mut self, byte: u8) -> Result<(), Malformed> {
        self.take(byte).then_some(()).ok_or(Malformed)
    }

    /// Skips the opening bracket, then reads the items up to `close` with `item`.
    pub(super) fn items(
        &mut self,
        close: u8,
        mut item: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.at += 1;
        self.blanks();
        if self.take(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            self.blanks();
            if self.take(close) {
                return Ok(());
            }
            self.need(b',')?;
            self.blanks();
        }
    }

    /// Reads a member's name and the colon; returns the range of the name with its quotes.
    pub(super) fn name(&mut self) -> Result<Range<usize>, Malformed> {
        let name = self.string()?;
        self.blanks();
        self.need(b':')?;
        self.blanks();
        Ok(name)
    }

    /// Skips a value; returns the range of the value at `path` in it.
    fn value(
        &mut self,
        path: Option<&[Step]>,
        depth: u16,
    ) -> Result<Option<Range<usize>>, Malformed> {
        if depth >= MAX_DEPTH {
            return Err(Malformed);
        }
        let start = self.at;
        let mut found = None;
        match self.peek() {
            Some(b'{') => self.items(b'}', |scanner| {
                let name = scanner.name()?;
                let name = scanner.text.get(name).unwrap_or_default();
                let rest = match path {
                    Some([Step::Member(wanted), rest @ ..]) if same(name, wanted.as_bytes()) => {
                        Some(rest)
                    }
                    _ => None,
                };
                let place = scanner.value(rest, depth + 1)?;
                if rest.is_some() {
                    found = place;
                }
                Ok(())
            })?,
            Some(b'[') => {
                let mut index = 0;
                self.items(b']', |scanner| {
                    let rest = match path {
                        Some([Step::Item(wanted), rest @ ..]) if *wanted == index => Some(rest),
                        _ => None,
                    };
                    index += 1;
                    let place = scanner.value(rest, depth + 1)?;
                    if rest.is_some() {
                        found = place;
                    }
                    Ok(())
                })?;
            }
            Some(b'"') => {
                self.string()?;
            }
            Some(b't') => self.word(b"true")?,
            Some(b'f') => self.word(b"false")?,
            Some(b'n') => self.word(b"null")?,
            _ => self.number()?,
        }
        Ok(match path {
            Some([]) => Some(start..self.at),
            _ => found,
        })
    }

    pub(super) fn string(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        self.need(b'"')?;
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let plain = rest.iter().position(|byte| must_be_escaped(*byte));
            self.at += plain.ok_or(Malformed)?;
            match self.peek().ok_or(Malformed)? {
                b'"' => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                b'\\' => {
                    let rest = self.text.get(self.at..).unwrap_or_default();
                    let length = match rest.get(1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                        Some(b'u') => {
                            rest.get(2..6).and_then(hex).ok_or(Malformed)?;
                            6
                        }
                        _ => return Err(Malformed),
                    };
                    self.at += length;
                }
                _ => return Err(Malformed),
            }
        }
    }

    pub(super) fn word(&mut self, word: &[u8]) -> Result<(), Malformed> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with(word) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    pub(super) fn number(&mut self) -> Result<(), Malformed> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        (self.at > start).then_some(()).ok_or(Malformed)
    }
}
