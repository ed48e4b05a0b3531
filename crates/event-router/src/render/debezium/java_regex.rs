//! Java's regular expressions, as far as the crate `regex` can keep their word.
//!
//! The pattern is translated, so that what is in it means what it means in Java: classes are those
//! of ASCII, the dot takes no line terminator. What cannot be had without backtracking is refused.

use regex::Regex;

/// A Java pattern that is not understood, or that this program refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("regular expression, character {position}: {problem}")]
pub struct JavaRegexError {
    /// Counted in characters, from 1.
    pub position: usize,
    /// What is wrong there.
    pub problem: RegexProblem,
}

/// What is wrong with a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegexProblem {
    /// A group that looks ahead or behind.
    #[error(
        "looking ahead or behind, as in (?=…), (?!…) and (?<=…), is not supported: it takes a matcher that goes back over the text; write the groups that you want to keep"
    )]
    LookAround,
    /// A reference to a group.
    #[error(
        "references to groups, as \\1 and \\k<name>, are not supported in the expression: they take a matcher that goes back over the text"
    )]
    BackReference,
    /// A quantifier or a group that gives nothing back.
    #[error(
        "possessive quantifiers and atomic groups, as in *+, ++ and (?>…), are not supported; write the plain quantifier"
    )]
    Possessive,
    /// A flag other than `s`.
    #[error("the flag {0:?} is not supported; there is s, at the beginning: (?s)")]
    Flag(char),
    /// An escape that Java does not have, or that is not translated.
    #[error("{0} is not supported")]
    Escape(String),
    /// Not closed, empty where it must not be, or another mistake: what the parser says.
    #[error("{0}")]
    Syntax(String),
}

/// A pattern that is applied as Kafka Connect's `RegexRouter` does: it must match the whole text,
/// and then what it finds first is replaced.
#[derive(Debug, Clone)]
pub(crate) struct JavaRegex {
    whole: Regex,
    first: Regex,
}

impl JavaRegex {
    pub(crate) fn parse(pattern: &str) -> Result<Self, JavaRegexError> {
        let translated = Translator {
            chars: pattern.chars().collect(),
            at: 0,
            out: String::new(),
            dot_all: false,
        }
        .translate()?;
        let compile = |pattern: &str| {
            regex::RegexBuilder::new(pattern)
                .size_limit(1 << 20)
                .build()
                .map_err(|error| JavaRegexError {
                    position: 1,
                    problem: RegexProblem::Syntax(summary(&error)),
                })
        };
        let first = compile(&translated)?;
        let whole = compile(&format!(r"\A(?:{translated})\z"))?;
        Ok(Self { whole, first })
    }

    /// How many groups it has, without the whole match.
    pub(crate) fn groups(&self) -> usize {
        self.first.captures_len() - 1
    }

    /// The number of the group of this name.
    pub(crate) fn group(&self, name: &str) -> Option<usize> {
        self.first
            .capture_names()
            .position(|known| known == Some(name))
    }

    /// The names of its groups.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.first.capture_names().flatten();
        names.map(str::to_owned).collect()
    }

    /// What stands before the first match, its groups, and what stands behind, if the whole text
    /// matches.
    pub(crate) fn captures<'t>(
        &self,
        text: &'t str,
    ) -> Option<(&'t str, regex::Captures<'t>, &'t str)> {
        if !self.whole.is_match(text) {
            return None;
        }
        let captures = self.first.captures(text)?;
        let matched = captures.get(0)?;
        let before = text.get(..matched.start())?;
        let after = text.get(matched.end()..)?;
        Some((before, captures, after))
    }
}

/// The last line of a message that points into a pattern over several lines.
fn summary(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

struct Translator {
    chars: Vec<char>,
    at: usize,
    out: String,
    dot_all: bool,
}

/// Names of classes of ASCII.
const POSIX: [&str; 12] = [
    "Lower", "Upper", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print", "Blank", "Cntrl",
    "XDigit", "Space",
];

/// The dot: no end of a line of Java.
const DOT: &str = r"[^\n\r\x{85}\x{2028}\x{2029}]";

impl Translator {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        let rest = self.chars.get(self.at..).unwrap_or_default();
        text.chars()
            .enumerate()
            .all(|(at, c)| rest.get(at) == Some(&c))
    }

    fn error<T>(at: usize, problem: RegexProblem) -> Result<T, JavaRegexError> {
        Err(JavaRegexError {
            position: at + 1,
            problem,
        })
    }

    fn syntax<T>(at: usize, message: &str) -> Result<T, JavaRegexError> {
        Self::error(at, RegexProblem::Syntax(message.to_owned()))
    }

    /// Writes this in place of the next character.
    fn next(&mut self, translated: &str) {
        self.out.push_str(translated);
        self.at += 1;
    }

    fn translate(mut self) -> Result<String, JavaRegexError> {
        while let Some(c) = self.peek(0) {
            let start = self.at;
            match c {
                '\\' => self.escape(false)?,
                '[' => self.class()?,
                '(' => self.group()?,
                '.' if self.dot_all => self.next("(?s:.)"),
                '.' => self.next(DOT),
                '*' | '+' | '?' | '{' => self.quantifier()?,
                // `$` matches before a final line terminator too.
                '$' => self.next(r"(?:\z)"),
                '^' => self.next(r"\A"),
                ']' => self.next(r"\]"),
                '}' => self.next(r"\}"),
                '\0' => return Self::syntax(start, "a NUL character"),
                c => {
                    self.at += 1;
                    self.out.push(c);
                }
            }
        }
        Ok(self.out)
    }

    fn quantifier(&mut self) -> Result<(), JavaRegexError> {
        let start = self.at;
        let first = self.peek(0).unwrap_or_default();
        self.out.push(first);
        self.at += 1;
        if first == '{' {
            loop {
                match self.peek(0) {
                    Some(c @ ('0'..='9' | ',')) => self.out.push(c),
                    Some('}') => {
                        self.out.push('}');
                        self.at += 1;
                        break;
                    }
                    _ => {
                        return Self::syntax(
                            start,
                            "an incomplete repetition; write \\{ for a brace",
                        );
                    }
                }
                self.at += 1;
            }
        }
        match self.peek(0) {
            Some('+') => Self::error(self.at, RegexProblem::Possessive),
            Some('?') => {
                self.out.push('?');
                self.at += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn group(&mut self) -> Result<(), JavaRegexError> {
        use RegexProblem::{Flag, LookAround, Possessive};

        let start = self.at;
        let refused = [
            ("(?=", LookAround),
            ("(?!", LookAround),
            ("(?<=", LookAround),
            ("(?<!", LookAround),
            ("(?>", Possessive),
        ];
        let refused = refused.into_iter().find(|(text, _)| self.starts_with(text));
        if let Some((_, problem)) = refused {
            return Self::error(start, problem);
        }
        if self.starts_with("(?<") {
            let rest = self.chars.iter().skip(start + 3);
            let name: String = rest.take_while(|c| **c != '>').collect();
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.bytes().all(|c| c.is_ascii_alphanumeric());
            if !is_name || self.peek(3 + name.len()) != Some('>') {
                return Self::syntax(
                    start,
                    "the name of a group begins with a letter and has letters and digits of ASCII",
                );
            }
            self.out.push_str(&["(?<", &name, ">"].concat());
            self.at += 4 + name.len();
        } else if self.starts_with("(?:") {
            self.out.push_str("(?:");
            self.at += 3;
        } else if self.starts_with("(?s)") && start == 0 {
            self.dot_all = true;
            self.at += 4;
        } else if self.starts_with("(?") {
            return Self::error(start, Flag(self.peek(2).unwrap_or('?')));
        } else {
            self.next("(");
        }
        Ok(())
    }

    /// A class, translated piece by piece. Intersections mean the same in both.
    fn class(&mut self) -> Result<(), JavaRegexError> {
        let start = self.at;
        let mut depth = 0usize;
        let mut first = false;
        while let Some(c) = self.peek(0) {
            match c {
                '[' => {
                    depth += 1;
                    first = true;
                    self.out.push('[');
                    self.at += 1;
                    if self.peek(0) == Some('^') {
                        self.out.push('^');
                        self.at += 1;
                    }
                    continue;
                }
                ']' if first => {
                    return Self::syntax(self.at, "an empty class; write \\] for a bracket");
                }
                ']' => {
                    depth -= 1;
                    self.out.push(']');
                    self.at += 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                '\\' => self.escape(true)?,
                '&' if self.starts_with("&&") => {
                    self.out.push_str("&&");
                    self.at += 2;
                }
                // These mean something in a class of the crate and nothing in one of Java.
                '~' | '&' => {
                    self.out.push('\\');
                    self.out.push(c);
                    self.at += 1;
                }
                '-' if self.starts_with("--") => {
                    return Self::syntax(
                        self.at,
                        "two hyphens in a class; write \\- for one that is meant",
                    );
                }
                c => {
                    self.out.push(c);
                    self.at += 1;
                }
            }
            first = false;
        }
        Self::syntax(start, "a class that is not closed")
    }

    fn escape(&mut self, in_class: bool) -> Result<(), JavaRegexError> {
        let start = self.at;
        let Some(c) = self.peek(1) else {
            return Self::syntax(start, "nothing follows the backslash");
        };
        self.at += 2;
        match c {
            'd' => self.out.push_str("[0-9]"),
            'D' => self.out.push_str("[^0-9]"),
            'w' => self.out.push_str("[a-zA-Z0-9_]"),
            'W' => self.out.push_str("[^a-zA-Z0-9_]"),
            's' => self.out.push_str(r"[ \t\n\x0B\x0C\r]"),
            'S' => self.out.push_str(r"[^ \t\n\x0B\x0C\r]"),
            't' | 'n' | 'r' | 'f' => self.out.extend(['\\', c]),
            'A' | 'z' if !in_class => self.out.extend(['\\', c]),
            '1'..='9' | 'k' if !in_class => {
                return Self::error(start, RegexProblem::BackReference);
            }
            'x' | 'u' => {
                let digits = if c == 'x' { 2 } else { 4 };
                let hex: String = (0..digits).filter_map(|ahead| self.peek(ahead)).collect();
                let valid = hex.len() == digits && hex.bytes().all(|c| c.is_ascii_hexdigit());
                if !valid || c == 'u' && matches!(hex.get(..1), Some("d" | "D")) {
                    return Self::error(start, RegexProblem::Escape(format!("\\{c}{hex}")));
                }
                self.at += digits;
                self.out.push_str(&[r"\x{", &hex, "}"].concat());
            }
            'p' | 'P' => self.property(start, c)?,
            'Q' if !in_class => {
                while self.at < self.chars.len() && !self.starts_with("\\E") {
                    let quoted = self.peek(0).unwrap_or_default();
                    self.out
                        .push_str(&regex::escape(quoted.encode_utf8(&mut [0; 4])));
                    self.at += 1;
                }
                self.at = (self.at + 2).min(self.chars.len());
            }
            c if c.is_ascii_alphanumeric() => {
                return Self::error(start, RegexProblem::Escape(format!("\\{c}")));
            }
            c => self
                .out
                .push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
        Ok(())
    }

    /// `\p{Lu}` is a general category, `\p{Alpha}` a class of ASCII.
    fn property(&mut self, start: usize, c: char) -> Result<(), JavaRegexError> {
        let mut name = String::new();
        if self.peek(0) == Some('{') {
            self.at += 1;
            while let Some(c) = self.peek(0).filter(|c| *c != '}') {
                name.push(c);
                self.at += 1;
            }
            self.at += 1;
        } else if let Some(c) = self.peek(0) {
            name.push(c);
            self.at += 1;
        }
        let category = matches!(name.len(), 1 | 2)
            && name.starts_with(['L', 'M', 'N', 'P', 'S', 'Z', 'C'])
            && name.bytes().all(|c| c.is_ascii_alphabetic());
        if category {
            self.out.push('\\');
            self.out.push(c);
            self.out.push_str(&["{", &name, "}"].concat());
        } else if POSIX.contains(&name.as_str()) {
            let not = if c == 'P' { "^" } else { "" };
            self.out
                .push_str(&["[[:", not, &name.to_ascii_lowercase(), ":]]"].concat());
        } else {
            return Self::error(start, RegexProblem::Escape(format!("\\{c}{{{name}}}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(pattern: &str) -> (usize, RegexProblem) {
        let error = JavaRegex::parse(pattern).unwrap_err();
        (error.position, error.problem)
    }

    #[test]
    fn the_whole_text_must_match() {
        let regex = JavaRegex::parse("(?<a>Foo)(.*)").unwrap();
        assert!(regex.captures("Order").is_none());
        assert!(regex.captures("xFoo").is_none());
        let (before, captures, after) = regex.captures("FooBar").unwrap();
        assert_eq!(
            (before, &captures[1], &captures[2], after),
            ("", "Foo", "Bar", "")
        );
        assert_eq!(
            (regex.groups(), regex.group("a"), regex.group("b")),
            (2, Some(1), None)
        );
        // What is found first may be less than the whole: a|ab finds a in ab.
        let (_, captures, after) = JavaRegex::parse("a|ab")
            .unwrap()
            .captures("ab")
            .map(|(b, c, a)| (b, c[0].to_owned(), a))
            .unwrap();
        assert_eq!((captures.as_str(), after), ("a", "b"));
    }

    #[test]
    fn classes_are_those_of_ascii() {
        let matches =
            |pattern: &str, text: &str| JavaRegex::parse(pattern).unwrap().captures(text).is_some();
        assert!(matches(r"\w+", "a_1"));
        assert!(!matches(r"\w+", "é"));
        assert!(!matches(r"\d", "٣"));
        assert!(matches(r"[\w.-]+", "a.b-c"));
        assert!(matches(r"[^\s]+", "é"));
        assert!(!matches(".", "\r"));
        assert!(matches("(?s).", "\r"));
        assert!(matches(r"\p{Lu}\p{Alpha}+", "Éa"));
        assert!(matches(r"\Qa.b\E.", "a.bx"));
        assert!(matches(r"a\.b\-\u0041\x42", "a.b-AB"));
        assert!(matches("[a-z&&[^b]]", "c"));
        assert!(!matches("[a-z&&[^b]]", "b"));
        assert!(matches("a{2,3}?b", "aaab"));
    }

    #[test]
    fn what_takes_a_way_back_is_refused() {
        use RegexProblem::{BackReference, LookAround, Possessive};
        assert_eq!(problem("é(?=x)"), (2, LookAround));
        assert_eq!(problem("(?<!x)"), (1, LookAround));
        assert_eq!(problem(r"(.)\1"), (4, BackReference));
        assert_eq!(problem(r"(?<a>.)\k<a>"), (8, BackReference));
        assert_eq!(problem("a*+"), (3, Possessive));
        assert_eq!(problem("a{2}+"), (5, Possessive));
        assert_eq!(problem("(?>a)"), (1, Possessive));
        assert_eq!(problem("(?i)a"), (1, RegexProblem::Flag('i')));
        assert_eq!(problem(r"\Ga"), (1, RegexProblem::Escape("\\G".to_owned())));
    }

    #[test]
    fn mistakes_are_refused() {
        for pattern in [
            "(",
            ")",
            "[",
            "[]",
            "a{",
            "*",
            "(?<1a>x)",
            "(?<>x)",
            "\\",
            r"\p{IsFoo}",
            r"\u12",
        ] {
            assert!(JavaRegex::parse(pattern).is_err(), "{pattern}");
        }
    }
}
