//! A JSON text as a tree, with the distinctions that Jackson makes: whole numbers by their size,
//! members in their order, of several by one name the last value at the first place.

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tree {
    Null,
    Boolean(bool),
    Integer(i64),
    /// A whole number beyond 64 bits.
    BigInteger,
    Double(f64),
    String(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

/// Half of what Jackson takes: what is nested deeper stays a text.
const MAX_DEPTH: usize = 500;

impl Tree {
    /// Whether an array of both is one of a kind.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let width = |number: i64| i32::try_from(number).is_ok();
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => width(*a) == width(*b),
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

/// The value that the whole of `text` is, if it is JSON.
pub(crate) fn parse(text: &str) -> Option<Tree> {
    let mut parser = Parser { text, at: 0 };
    let tree = parser.value(MAX_DEPTH)?;
    parser.blanks();
    (parser.at == text.len()).then_some(tree)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes `wanted` after blanks.
    fn take(&mut self, wanted: u8) -> bool {
        self.blanks();
        let found = self.peek() == Some(wanted);
        if found {
            self.at += 1;
        }
        found
    }

    fn word(&mut self, word: &str, tree: Tree) -> Option<Tree> {
        self.text.get(self.at..)?.strip_prefix(word)?;
        self.at += word.len();
        Some(tree)
    }

    fn value(&mut self, depth: usize) -> Option<Tree> {
        let depth = depth.checked_sub(1)?;
        self.blanks();
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => {
                self.at += 1;
                let mut items = Vec::new();
                if self.take(b']') {
                    return Some(Tree::Array(items));
                }
                loop {
                    items.push(self.value(depth)?);
                    if self.take(b']') {
                        return Some(Tree::Array(items));
                    }
                    if !self.take(b',') {
                        return None;
                    }
                }
            }
            b'"' => self.string().map(Tree::String),
            b't' => self.word("true", Tree::Boolean(true)),
            b'f' => self.word("false", Tree::Boolean(false)),
            b'n' => self.word("null", Tree::Null),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Tree> {
        self.at += 1;
        let mut members: Vec<(String, Tree)> = Vec::new();
        if self.take(b'}') {
            return Some(Tree::Object(members));
        }
        loop {
            self.blanks();
            let name = self.string()?;
            if !self.take(b':') {
                return None;
            }
            let value = self.value(depth)?;
            match members.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = value,
                None => members.push((name, value)),
            }
            if self.take(b'}') {
                return Some(Tree::Object(members));
            }
            if !self.take(b',') {
                return None;
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        if self.peek()? != b'"' {
            return None;
        }
        self.at += 1;
        let mut value = String::new();
        loop {
            let rest = self.text.get(self.at..)?;
            let end = rest.find(|c: char| c == '"' || c == '\\' || c < ' ')?;
            value.push_str(rest.get(..end)?);
            self.at += end;
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(value);
                }
                b'\\' => {
                    let escape = *self.text.as_bytes().get(self.at + 1)?;
                    self.at += 2;
                    value.push(match escape {
                        b'"' | b'\\' | b'/' => escape.into(),
                        b'b' => '\u{8}',
                        b'f' => '\u{c}',
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        b'u' => self.unicode()?,
                        _ => return None,
                    });
                }
                _ => return None,
            }
        }
    }

    /// Behind `\u`, where a half of a pair is followed by the other.
    fn unicode(&mut self) -> Option<char> {
        let first = self.unit()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        self.text.get(self.at..)?.strip_prefix("\\u")?;
        self.at += 2;
        let second = self.unit()?;
        char::decode_utf16([first as u16, second as u16])
            .next()?
            .ok()
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        if !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Option<Tree> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = self.digits()?;
        if whole > 1 && self.text.as_bytes().get(self.at - whole) == Some(&b'0') {
            return None;
        }
        let mut is_whole = true;
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            is_whole = false;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
            is_whole = false;
        }
        let text = self.text.get(start..self.at)?;
        if is_whole {
            return Some(text.parse().map_or(Tree::BigInteger, Tree::Integer));
        }
        text.parse().ok().map(Tree::Double)
    }

    fn digits(&mut self) -> Option<usize> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits = self.at - start;
        (digits > 0).then_some(digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_strings_and_members() {
        assert_eq!(parse(" -0 "), Some(Tree::Integer(0)));
        assert_eq!(parse("9223372036854775807"), Some(Tree::Integer(i64::MAX)));
        assert_eq!(parse("9223372036854775808"), Some(Tree::BigInteger));
        assert_eq!(parse("1e2"), Some(Tree::Double(100.0)));
        assert_eq!(
            parse(r#""\u00e9\ud83d\ude00\n\/""#),
            Some(Tree::String("é😀\n/".to_owned()))
        );
        assert_eq!(
            parse(r#"{"a":1,"b":2,"a":3}"#),
            Some(Tree::Object(vec![
                ("a".to_owned(), Tree::Integer(3)),
                ("b".to_owned(), Tree::Integer(2))
            ]))
        );
    }

    #[test]
    fn what_is_not_json_is_nothing() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "01",
            "1.",
            "1e",
            "-",
            "tru",
            "\"",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\n\"",
            "1 2",
            "{} {}",
            "{a:1}",
            &deep,
        ] {
            assert_eq!(parse(text), None, "{text:.20}");
        }
    }
}
