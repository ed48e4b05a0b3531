//! A parser's position in a text.

pub(crate) struct Cursor<'t> {
    pub(crate) rest: &'t str,
    /// Position of the next character, counted in characters from 1.
    pub(crate) position: usize,
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        let (rest, position) = (text, 1);
        Self { rest, position }
    }

    pub(crate) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(crate) fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        self.position += 1;
        Some(c)
    }

    /// Skips `text` if it comes next; returns whether it did.
    pub(crate) fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        if let Some(rest) = rest {
            self.rest = rest;
            self.position += text.chars().count();
        }
        rest.is_some()
    }

    pub(crate) fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.position += taken.chars().count();
        taken
    }

    /// Skips whitespace; returns the position after it.
    pub(crate) fn blanks(&mut self) -> usize {
        self.take_while(char::is_whitespace);
        self.position
    }

    /// Reads up to the closing `quote` and skips it. A doubled quote stands for one, as in SQL.
    pub(crate) fn quoted(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        loop {
            text.push_str(self.take_while(|c| c != quote));
            self.next()?;
            if self.peek() != Some(quote) {
                return Some(text);
            }
            text.extend(self.next());
        }
    }

    /// Reads a text in double quotes, in which a backslash escapes the next character.
    pub(crate) fn backslashed(&mut self) -> Option<String> {
        let mut text = String::new();
        if !self.take("\"") {
            return None;
        }
        loop {
            text.push_str(self.take_while(|c| !matches!(c, '"' | '\\')));
            match self.next()? {
                '"' => return Some(text),
                _ => text.push(self.next()?),
            }
        }
    }
}
