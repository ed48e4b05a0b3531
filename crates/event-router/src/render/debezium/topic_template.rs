//! `route.topic.replacement`.

use std::fmt;
use std::str::FromStr;

use super::java_regex::{JavaRegex, JavaRegexError};
use crate::plan::TopicName;

/// The group that Debezium's default `route.topic.regex` has.
const PLACEHOLDER: &str = "routedByValue";

/// Debezium's default `route.topic.regex`.
const DEFAULT_REGEX: &str = "(?<routedByValue>.*)";

/// A topic name with the routing column's text in it: `outbox.event.${routedByValue}`; or, with a
/// regular expression, with what that found in the text.
///
/// The grammar is that of a Java replacement string, as Debezium's `route.topic.replacement` is one:
/// `${name}` and `$1` stand for groups, a backslash takes the next character literally, anything
/// else is itself. A text that the expression does not match as a whole is the topic.
///
/// The value goes in as it is. A name that Kafka does not allow is for the broker to refuse.
#[derive(Clone)]
pub struct TopicTemplate {
    pattern: String,
    /// None for the default one, which matches what has no line terminator in it.
    regex: Option<JavaRegex>,
    pieces: Vec<Piece>,
}

#[derive(Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Group(usize),
}

/// Why a text is not a [`TopicTemplate`]. Positions count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicTemplateError {
    /// There is no topic without a name.
    #[error("topic template: it is empty")]
    Empty,
    /// A `$` that begins no reference.
    #[error(
        "topic template, character {position}: a $ begins ${{routedByValue}} or $1; write \\$ for a dollar sign"
    )]
    Dollar {
        /// Where the `$` is.
        position: usize,
    },
    /// `${` without its `}`.
    #[error("topic template, character {position}: ${{ is not closed by a }}")]
    Unclosed {
        /// Where the `$` is.
        position: usize,
    },
    /// `${…}` with a name that no group of the expression has.
    #[error(
        "topic template, character {position}: unknown placeholder ${{{name}}}; there is {}",
        placeholders(groups)
    )]
    Unknown {
        /// Where the `$` is.
        position: usize,
        /// What stands between the braces.
        name: String,
        /// The names that there are.
        groups: Vec<String>,
    },
    /// `$1` with a number that no group of the expression has.
    #[error(
        "topic template, character {position}: there is no group ${number}; route.topic.regex has {groups}"
    )]
    NoGroup {
        /// Where the `$` is.
        position: usize,
        /// The number.
        number: usize,
        /// How many there are.
        groups: usize,
    },
    /// A backslash with nothing after it.
    #[error("topic template, character {position}: nothing follows the backslash")]
    Backslash {
        /// Where the backslash is.
        position: usize,
    },
    /// The expression is not one.
    #[error(transparent)]
    Regex(#[from] JavaRegexError),
}

fn placeholders(groups: &[String]) -> String {
    if groups.is_empty() {
        return "none".to_owned();
    }
    let groups: Vec<String> = groups.iter().map(|name| format!("${{{name}}}")).collect();
    groups.join(", ")
}

impl TopicTemplate {
    /// A template for what `pattern`, a Java regular expression, finds (`route.topic.regex` and
    /// `route.topic.replacement`).
    pub fn with_regex(pattern: &str, replacement: &str) -> Result<Self, TopicTemplateError> {
        let regex = match pattern {
            DEFAULT_REGEX => None,
            pattern => Some(JavaRegex::parse(pattern)?),
        };
        let mut template = Self {
            pattern: pattern.to_owned(),
            regex,
            pieces: Vec::new(),
        };
        template.read(replacement)?;
        Ok(template)
    }

    /// What stands in every topic, between what stands for the value.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(text) => Some(text.as_str()),
            Piece::Group(_) => None,
        })
    }

    /// The topic, where the value has no part in it.
    pub(crate) fn constant(&self) -> Option<String> {
        let alone = |piece: &Piece| matches!(piece, Piece::Literal(_));
        (self.regex.is_none() && self.pieces.iter().all(alone)).then(|| self.literals().collect())
    }

    fn read(&mut self, text: &str) -> Result<(), TopicTemplateError> {
        if text.is_empty() {
            return Err(TopicTemplateError::Empty);
        }
        let mut chars = (1..).zip(text.chars()).peekable();
        while let Some((position, c)) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some((_, escaped)) => self.push_char(escaped),
                    None => return Err(TopicTemplateError::Backslash { position }),
                },
                '$' => match chars.next() {
                    Some((_, '{')) => {
                        let mut name = String::new();
                        loop {
                            match chars.next() {
                                Some((_, '}')) => break,
                                Some((_, c)) => name.push(c),
                                None => return Err(TopicTemplateError::Unclosed { position }),
                            }
                        }
                        let Some(group) = self.group(&name) else {
                            let groups = self.names();
                            return Err(TopicTemplateError::Unknown {
                                position,
                                name,
                                groups,
                            });
                        };
                        self.pieces.push(Piece::Group(group));
                    }
                    Some((_, first @ '0'..='9')) => {
                        let digit = |c: char| c.to_digit(10).map_or(0, |digit| digit as usize);
                        let groups = self.groups();
                        let mut number = digit(first);
                        if number > groups {
                            return Err(TopicTemplateError::NoGroup {
                                position,
                                number,
                                groups,
                            });
                        }
                        // As many digits as there are groups for, as in Java.
                        while let Some((_, c @ '0'..='9')) = chars.peek() {
                            let longer = number.saturating_mul(10).saturating_add(digit(*c));
                            if longer > groups {
                                break;
                            }
                            number = longer;
                            chars.next();
                        }
                        self.pieces.push(Piece::Group(number));
                    }
                    _ => return Err(TopicTemplateError::Dollar { position }),
                },
                _ => self.push_char(c),
            }
        }
        Ok(())
    }

    fn groups(&self) -> usize {
        self.regex.as_ref().map_or(1, JavaRegex::groups)
    }

    fn group(&self, name: &str) -> Option<usize> {
        match &self.regex {
            None => (name == PLACEHOLDER).then_some(1),
            Some(regex) => regex.group(name),
        }
    }

    fn names(&self) -> Vec<String> {
        match &self.regex {
            None => vec![PLACEHOLDER.to_owned()],
            Some(regex) => regex.names(),
        }
    }

    fn push_char(&mut self, c: char) {
        if let Some(Piece::Literal(text)) = self.pieces.last_mut() {
            text.push(c);
        } else {
            self.pieces.push(Piece::Literal(c.to_string()));
        }
    }
}

impl TopicName for TopicTemplate {
    fn render(&self, value: &str, topic: &mut String) {
        topic.clear();
        let Some(regex) = &self.regex else {
            if value.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']) {
                topic.push_str(value);
                return;
            }
            for piece in &self.pieces {
                topic.push_str(match piece {
                    Piece::Literal(text) => text,
                    Piece::Group(_) => value,
                });
            }
            return;
        };
        let Some((before, captures, after)) = regex.captures(value) else {
            topic.push_str(value);
            return;
        };
        topic.push_str(before);
        for piece in &self.pieces {
            topic.push_str(match piece {
                Piece::Literal(text) => text,
                Piece::Group(number) => captures.get(*number).map_or("", |group| group.as_str()),
            });
        }
        topic.push_str(after);
    }
}

impl PartialEq for TopicTemplate {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern && self.pieces == other.pieces
    }
}

impl Eq for TopicTemplate {}

impl Default for TopicTemplate {
    /// Debezium's `outbox.event.${routedByValue}`.
    fn default() -> Self {
        Self {
            pattern: DEFAULT_REGEX.to_owned(),
            regex: None,
            pieces: vec![Piece::Literal("outbox.event.".to_owned()), Piece::Group(1)],
        }
    }
}

impl FromStr for TopicTemplate {
    type Err = TopicTemplateError;

    /// With Debezium's default expression.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::with_regex(DEFAULT_REGEX, text)
    }
}

/// Gives a text that parses to the same template, with the same expression.
impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;

        let mut after_group = false;
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => {
                    for c in text.chars() {
                        if matches!(c, '\\' | '$') || after_group && c.is_ascii_digit() {
                            f.write_char('\\')?;
                        }
                        after_group = false;
                        f.write_char(c)?;
                    }
                }
                Piece::Group(1) if self.regex.is_none() => write!(f, "${{{PLACEHOLDER}}}")?,
                Piece::Group(number) => {
                    write!(f, "${number}")?;
                    after_group = true;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TopicTemplate({:?} of {:?})",
            self.to_string(),
            self.pattern
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn render(template: &str, value: &str) -> String {
        let mut topic = "what was there before".to_owned();
        template
            .parse::<TopicTemplate>()
            .unwrap()
            .render(value, &mut topic);
        topic
    }

    #[test]
    fn default_is_debeziums() {
        assert_eq!(
            TopicTemplate::default(),
            "outbox.event.${routedByValue}".parse().unwrap()
        );
    }

    #[test]
    fn renders_literals_values_and_escapes() {
        assert_eq!(
            render("outbox.event.${routedByValue}", "Order"),
            "outbox.event.Order"
        );
        assert_eq!(render("${routedByValue}", "we ird/Ünï"), "we ird/Ünï");
        assert_eq!(render("a${routedByValue}b${routedByValue}", "-"), "a-b-");
        assert_eq!(render("always-the-same", "Order"), "always-the-same");
        assert_eq!(render(r"cost\$\{x\}\\", "Order"), r"cost${x}\");
        // A value is text, not a template.
        assert_eq!(
            render("x.${routedByValue}", "${routedByValue}$1\\"),
            r"x.${routedByValue}$1\"
        );
    }

    /// Recorded from Kafka Connect's `RegexRouter`.
    #[test]
    fn groups_of_an_expression() {
        let render = |pattern: &str, replacement: &str, value: &str| {
            let mut topic = String::new();
            TopicTemplate::with_regex(pattern, replacement)
                .unwrap()
                .render(value, &mut topic);
            topic
        };
        assert_eq!(render("(.)(.*)", r"a.$12x$1\$\x$01", "Order"), "a.O2xO$xO");
        assert_eq!(render("Foo(.*)", "z.$1", "Order"), "Order");
        assert_eq!(render("Ord(.*)", "z.$1.$0", "Order"), "z.er.Order");
        assert_eq!(render("(?<a>x)?(.*)", "[${a}$2]", "y"), "[y]");
        assert_eq!(render(DEFAULT_REGEX, "x.$1.$0", "a"), "x.a.a");
        assert_eq!(render(DEFAULT_REGEX, "x.$1", "a\nb"), "a\nb");
        assert!(TopicTemplate::with_regex("(?=x)", "x").is_err());
        let numbered = TopicTemplate::with_regex("(.)(.*)", r"$1\2").unwrap();
        assert_eq!(
            TopicTemplate::with_regex("(.)(.*)", &numbered.to_string()),
            Ok(numbered)
        );
    }

    #[test]
    fn errors_say_where() {
        use TopicTemplateError as E;
        let parse = |text: &str| text.parse::<TopicTemplate>().unwrap_err();
        assert_eq!(parse(""), E::Empty);
        assert_eq!(parse("a.$x"), E::Dollar { position: 3 });
        let no_group = E::NoGroup {
            position: 3,
            number: 2,
            groups: 1,
        };
        assert_eq!(parse("a.$2"), no_group);
        assert_eq!(parse("é$"), E::Dollar { position: 2 });
        assert_eq!(parse("a.${routedByValue"), E::Unclosed { position: 3 });
        assert_eq!(parse("trailing\\"), E::Backslash { position: 9 });
        let unknown = parse("ab${type}");
        assert_eq!(
            unknown,
            E::Unknown {
                position: 3,
                name: "type".to_owned(),
                groups: vec!["routedByValue".to_owned()],
            }
        );
        assert_eq!(
            unknown.to_string(),
            "topic template, character 3: unknown placeholder ${type}; there is ${routedByValue}"
        );
        assert_eq!(
            parse("$").to_string(),
            "topic template, character 1: a $ begins ${routedByValue} or $1; write \\$ for a dollar sign"
        );
    }

    proptest! {
        #[test]
        fn what_parses_reads_back(text in r"([a-z.\\$é{}01]|\$\{routedByValue\}){0,12}") {
            if let Ok(template) = text.parse::<TopicTemplate>() {
                prop_assert_eq!(template.to_string().parse::<TopicTemplate>(), Ok(template));
            }
        }
    }
}
