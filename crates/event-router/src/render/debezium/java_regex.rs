//! Translates Java's regular expressions for the crate `regex`: classes are ASCII, and the dot does
//! not match line terminators. A pattern that needs backtracking is refused.

use regex::Regex;

use crate::value::cursor::Cursor;

/// The reason why a Java pattern is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("regular expression, character {position}: {problem}")]
pub struct JavaRegexError {
    /// Position in the pattern, counted in characters from 1.
    pub position: usize,
    /// The fault at that position.
    pub problem: RegexProblem,
}

/// A fault of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegexProblem {
    /// Lookahead or lookbehind.
    #[error(
        "looking ahead or behind, as in (?=…), (?!…) and (?<=…), is not supported: it takes a matcher that goes back over the text; write the groups that you want to keep"
    )]
    LookAround,
    /// A back-reference to a group.
    #[error(
        "references to groups, as \\1 and \\k<name>, are not supported in the expression: they take a matcher that goes back over the text"
    )]
    BackReference,
    /// A possessive quantifier or an atomic group.
    #[error(
        "possessive quantifiers and atomic groups, as in *+, ++ and (?>…), are not supported; write the plain quantifier"
    )]
    Possessive,
    /// A flag other than `s`.
    #[error("the flag {0:?} is not supported; there is s, at the beginning: (?s)")]
    Flag(char),
    /// An escape that is not supported.
    #[error("{0} is not supported")]
    Escape(String),
    /// Another error of syntax.
    #[error("{0}")]
    Syntax(String),
}

/// A pattern of Kafka Connect's `RegexRouter`. The pattern must match the whole text; then its
/// first match is replaced.
#[derive(Debug, Clone)]
pub(crate) struct JavaRegex {
    whole: Regex,
    first: Regex,
}

impl JavaRegex {
    pub(crate) fn parse(pattern: &str) -> Result<Self, JavaRegexError> {
        let mut translator = Translator {
            text: Cursor::new(pattern),
            out: String::new(),
            dot_all: false,
        };
        translator.translate()?;
        let compile = |pattern: &str| {
            regex::RegexBuilder::new(pattern)
                .size_limit(1 << 20)
                .build()
                .or_else(|error| RegexProblem::Syntax(summary(&error)).at(1))
        };
        let first = compile(&translator.out)?;
        let whole = compile(&format!(r"\A(?:{})\z", translator.out))?;
        Ok(Self { whole, first })
    }

    /// Returns the names of the groups by number; group 0 is the whole match.
    pub(crate) fn names(&self) -> Vec<Option<&str>> {
        self.first.capture_names().collect()
    }

    /// Matches the whole text; returns the text before the first match, the groups, and the text
    /// after it. `None` unless the whole text matches.
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

impl RegexProblem {
    fn at<T>(self, position: usize) -> Result<T, JavaRegexError> {
        let problem = self;
        Err(JavaRegexError { position, problem })
    }
}

/// Returns the last line of the error. The lines before it point into the pattern.
fn summary(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

struct Translator<'p> {
    text: Cursor<'p>,
    out: String,
    dot_all: bool,
}

/// Names of ASCII classes, for `\p{…}`.
const POSIX: [&str; 12] = [
    "Lower", "Upper", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print", "Blank", "Cntrl",
    "XDigit", "Space",
];

/// Java's dot, which does not match line terminators.
const DOT: &str = r"[^\n\r\x{85}\x{2028}\x{2029}]";

type Done = Result<(), JavaRegexError>;

fn syntax(message: &str, position: usize) -> Done {
    RegexProblem::Syntax(message.to_owned()).at(position)
}

impl Translator<'_> {
    fn translate(&mut self) -> Done {
        while let Some(c) = self.text.peek() {
            match c {
                '\\' => self.escape(false)?,
                '[' => self.class()?,
                '(' => self.group()?,
                '*' | '+' | '?' | '{' => self.quantifier(c)?,
                '.' if self.dot_all => self.replace("(?s:.)"),
                '.' => self.replace(DOT),
                // Unlike this translation, Java's `$` also matches before a final line terminator.
                '$' => self.replace(r"(?:\z)"),
                '^' => self.replace(r"\A"),
                ']' => self.replace(r"\]"),
                '}' => self.replace(r"\}"),
                '\0' => return syntax("a NUL character", self.text.position),
                _ => self.copy(1),
            }
        }
        Ok(())
    }

    /// Replaces the next character by `translated`.
    fn replace(&mut self, translated: &str) {
        self.text.next();
        self.out.push_str(translated);
    }

    fn quantifier(&mut self, first: char) -> Done {
        let start = self.text.position;
        self.copy(1);
        if first == '{' {
            let counts = self.text.take_while(|c| matches!(c, '0'..='9' | ','));
            self.out.push_str(counts);
            if self.text.peek() != Some('}') {
                return syntax("an incomplete repetition; write \\{ for a brace", start);
            }
            self.copy(1);
        }
        match self.text.peek() {
            Some('+') => return RegexProblem::Possessive.at(self.text.position),
            Some('?') => self.copy(1),
            _ => {}
        }
        Ok(())
    }

    /// Copies the next `count` characters.
    fn copy(&mut self, count: usize) {
        for _ in 0..count {
            self.out.extend(self.text.next());
        }
    }

    fn group(&mut self) -> Done {
        use RegexProblem::{Flag, LookAround, Possessive};

        let (start, rest) = (self.text.position, self.text.rest);
        let looks = ["(?=", "(?!", "(?<=", "(?<!"];
        if looks.iter().any(|look| rest.starts_with(look)) {
            return LookAround.at(start);
        }
        if self.text.take("(?>") {
            return Possessive.at(start);
        }
        if self.text.take("(?<") {
            let name = self.text.take_while(|c| c != '>');
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.bytes().all(|c| c.is_ascii_alphanumeric());
            if !is_name || !self.text.take(">") {
                return syntax(
                    "the name of a group begins with a letter and has letters and digits of ASCII",
                    start,
                );
            }
            self.out.push_str(&["(?<", name, ">"].concat());
        } else if self.text.take("(?:") {
            self.out.push_str("(?:");
        } else if start == 1 && self.text.take("(?s)") {
            self.dot_all = true;
        } else if self.text.take("(?") {
            return Flag(self.text.peek().unwrap_or('?')).at(start);
        } else {
            self.copy(1);
        }
        Ok(())
    }

    /// Translates a class and the classes in it. Intersections have the same meaning in both
    /// syntaxes.
    fn class(&mut self) -> Done {
        let start = self.text.position;
        let mut depth = 0usize;
        let mut first = false;
        while let Some(c) = self.text.peek() {
            let position = self.text.position;
            match c {
                '[' => {
                    depth += 1;
                    self.copy(1);
                    if self.text.peek() == Some('^') {
                        self.copy(1);
                    }
                }
                ']' if first => {
                    return syntax("an empty class; write \\] for a bracket", position);
                }
                ']' => {
                    depth -= 1;
                    self.copy(1);
                    if depth == 0 {
                        return Ok(());
                    }
                }
                '\\' => self.escape(true)?,
                '&' if self.text.rest.starts_with("&&") => self.copy(2),
                // These are operators in a class of the crate `regex`, but characters in one of
                // Java.
                '~' | '&' => {
                    self.out.push('\\');
                    self.copy(1);
                }
                '-' if self.text.rest.starts_with("--") => {
                    let message = "two hyphens in a class; write \\- for one that is meant";
                    return syntax(message, position);
                }
                _ => self.copy(1),
            }
            first = c == '[';
        }
        syntax("a class that is not closed", start)
    }

    fn escape(&mut self, in_class: bool) -> Done {
        let start = self.text.position;
        self.text.next();
        let Some(c) = self.text.next() else {
            return syntax("nothing follows the backslash", start);
        };
        match c {
            'd' => self.out.push_str("[0-9]"),
            'D' => self.out.push_str("[^0-9]"),
            'w' => self.out.push_str("[a-zA-Z0-9_]"),
            'W' => self.out.push_str("[^a-zA-Z0-9_]"),
            's' => self.out.push_str(r"[ \t\n\x0B\x0C\r]"),
            'S' => self.out.push_str(r"[^ \t\n\x0B\x0C\r]"),
            't' | 'n' | 'r' | 'f' => self.out.extend(['\\', c]),
            'A' | 'z' if !in_class => self.out.extend(['\\', c]),
            '1'..='9' | 'k' if !in_class => return RegexProblem::BackReference.at(start),
            'x' | 'u' => {
                let digits = if c == 'x' { 2 } else { 4 };
                let hex: String = self.text.rest.chars().take(digits).collect();
                let valid = hex.len() == digits && hex.bytes().all(|c| c.is_ascii_hexdigit());
                if !valid || c == 'u' && hex.starts_with(['d', 'D']) {
                    return RegexProblem::Escape(format!("\\{c}{hex}")).at(start);
                }
                self.text.take(&hex);
                self.out.push_str(&[r"\x{", &hex, "}"].concat());
            }
            'p' | 'P' => self.property(start, c)?,
            'Q' if !in_class => {
                while !self.text.take("\\E")
                    && let Some(c) = self.text.next()
                {
                    self.literal(c);
                }
            }
            c if c.is_ascii_alphanumeric() => {
                return RegexProblem::Escape(format!("\\{c}")).at(start);
            }
            c => self.literal(c),
        }
        Ok(())
    }

    /// Writes a character literally.
    fn literal(&mut self, c: char) {
        let escaped = regex::escape(c.encode_utf8(&mut [0; 4]));
        self.out.push_str(&escaped);
    }

    /// Translates a property: `\p{Lu}` is a general category, `\p{Alpha}` an ASCII class.
    fn property(&mut self, start: usize, c: char) -> Done {
        let mut name = String::new();
        if self.text.take("{") {
            name.push_str(self.text.take_while(|c| c != '}'));
            self.text.next();
        } else {
            name.extend(self.text.next());
        }
        let category = matches!(name.len(), 1 | 2)
            && name.starts_with(['L', 'M', 'N', 'P', 'S', 'Z', 'C'])
            && name.bytes().all(|c| c.is_ascii_alphabetic());
        if category {
            self.out
                .extend(["\\", c.encode_utf8(&mut [0; 4]), "{", &name, "}"]);
        } else if POSIX.contains(&name.as_str()) {
            let not = if c == 'P' { "^" } else { "" };
            let name = name.to_ascii_lowercase();
            self.out.push_str(&["[[:", not, &name, ":]]"].concat());
        } else {
            return RegexProblem::Escape(format!("\\{c}{{{name}}}")).at(start);
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
        let groups = [&captures[1], &captures[2]];
        assert_eq!((before, groups, after), ("", ["Foo", "Bar"], ""));
        assert_eq!(regex.names(), [None, Some("a"), None]);
        // The first match may be shorter than the whole text: a|ab matches a in ab.
        let regex = JavaRegex::parse("a|ab").unwrap();
        let (_, captures, after) = regex.captures("ab").unwrap();
        assert_eq!((&captures[0], after), ("a", "b"));
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
    fn patterns_that_need_backtracking_are_refused() {
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
