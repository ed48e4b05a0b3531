//! Postgres' text of an array: `{1,NULL,"a b"}`, nested and with bounds in front.

use std::borrow::Cow;

use crate::value::Malformed;

/// An element of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Element<'a> {
    Null,
    Text(Cow<'a, str>),
    Array(Vec<Element<'a>>),
}

/// Postgres has no arrays of more dimensions.
const MAX_DEPTH: usize = 6;

pub(crate) fn parse(text: &str, delimiter: u8) -> Result<Vec<Element<'_>>, Malformed> {
    let text = match text.strip_prefix('[') {
        // Bounds, where they do not begin at 1: `[2:3]={…}`.
        Some(_) => text.split_once('=').ok_or(Malformed)?.1,
        None => text,
    };
    let mut parser = Parser {
        text,
        at: 0,
        delimiter,
    };
    let elements = parser.array(MAX_DEPTH)?;
    if parser.at == text.len() {
        Ok(elements)
    } else {
        Err(Malformed)
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    delimiter: u8,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += 1;
        }
        found
    }

    fn array(&mut self, depth: usize) -> Result<Vec<Element<'a>>, Malformed> {
        let mut elements = Vec::new();
        if depth == 0 || !self.take(b'{') {
            return Err(Malformed);
        }
        if self.take(b'}') {
            return Ok(elements);
        }
        loop {
            elements.push(match self.peek() {
                Some(b'{') => Element::Array(self.array(depth - 1)?),
                Some(b'"') => Element::Text(self.quoted()?),
                _ => self.bare()?,
            });
            if self.take(b'}') {
                return Ok(elements);
            }
            if !self.take(self.delimiter) {
                return Err(Malformed);
            }
        }
    }

    fn quoted(&mut self) -> Result<Cow<'a, str>, Malformed> {
        self.at += 1;
        let mut owned = String::new();
        let mut from = self.at;
        loop {
            match self.peek().ok_or(Malformed)? {
                b'"' => {
                    let rest = self.text.get(from..self.at).ok_or(Malformed)?;
                    self.at += 1;
                    return Ok(if owned.is_empty() {
                        Cow::Borrowed(rest)
                    } else {
                        owned.push_str(rest);
                        Cow::Owned(owned)
                    });
                }
                b'\\' => {
                    owned.push_str(self.text.get(from..self.at).ok_or(Malformed)?);
                    let escaped = self.text.get(self.at + 1..).ok_or(Malformed)?;
                    let escaped = escaped.chars().next().ok_or(Malformed)?;
                    owned.push(escaped);
                    self.at += 1 + escaped.len_utf8();
                    from = self.at;
                }
                _ => self.at += 1,
            }
        }
    }

    fn bare(&mut self) -> Result<Element<'a>, Malformed> {
        let from = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b'}' => break,
                b'{' | b'"' | b'\\' => return Err(Malformed),
                _ if byte == self.delimiter => break,
                _ => self.at += 1,
            }
        }
        let text = self.text.get(from..self.at).ok_or(Malformed)?;
        if text.is_empty() {
            return Err(Malformed);
        }
        Ok(if text.eq_ignore_ascii_case("NULL") {
            Element::Null
        } else {
            Element::Text(Cow::Borrowed(text))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Element<'_> {
        Element::Text(Cow::Borrowed(text))
    }

    #[test]
    fn elements_quotes_nulls_and_nesting() {
        assert_eq!(parse("{}", b','), Ok(Vec::new()));
        assert_eq!(
            parse(r#"{NULL,"NULL",a b,"a\"b","c\\d",""}"#, b','),
            Ok(vec![
                Element::Null,
                text("NULL"),
                text("a b"),
                text("a\"b"),
                text("c\\d"),
                text("")
            ])
        );
        assert_eq!(
            parse("{{1,2},{3,NULL}}", b','),
            Ok(vec![
                Element::Array(vec![text("1"), text("2")]),
                Element::Array(vec![text("3"), Element::Null])
            ])
        );
        assert_eq!(parse("[2:3]={7,8}", b','), Ok(vec![text("7"), text("8")]));
    }

    #[test]
    fn what_is_no_array_is_refused() {
        let deep = "{".repeat(100_000);
        for text in [
            "", "{", "{1", "{1,}", "{,1}", "{1}}", "1", "{\"a", "{\"a\\", "{a\"b}", "[1:2]", &deep,
        ] {
            assert_eq!(parse(text, b','), Err(Malformed));
        }
    }
}
