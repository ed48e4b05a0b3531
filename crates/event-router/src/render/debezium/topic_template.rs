//! `route.topic.replacement`.

use std::fmt;
use std::str::FromStr;

use super::java_regex::{JavaRegex, JavaRegexError};
use crate::value::cursor::Cursor;

/// The group that Debezium's default `route.topic.regex` has.
const PLACEHOLDER: &str = "routedByValue";

/// Debezium's default `route.topic.regex`.
const DEFAULT_REGEX: &str = "(?<routedByValue>.*)";

/// A topic name with the routing column's text, `outbox.event.${routedByValue}`, or with the groups of
/// a regular expression in that text.
///
/// The grammar is that of a Java replacement string, as in Debezium's `route.topic.replacement`:
/// `${name}` and `$1` are groups, a backslash takes the next character literally. A text that the
/// expression does not match as a whole is the topic.
///
/// The text goes in unchanged; the broker refuses names that Kafka does not allow.
#[derive(Clone)]
pub struct TopicTemplate {
    pattern: String,
    /// `None` for the default one, which matches texts without line terminators.
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
    /// The text is empty.
    #[error("topic template: it is empty")]
    Empty,
    /// A `$` that begins no reference.
    #[error(
        "topic template, character {0}: a $ begins ${{routedByValue}} or $1; write \\$ for a dollar sign"
    )]
    Dollar(usize),
    /// `${` without its `}`.
    #[error("topic template, character {0}: ${{ is not closed by a }}")]
    Unclosed(usize),
    /// `${…}` with a name that no group of the expression has.
    #[error(
        "topic template, character {position}: unknown placeholder ${{{name}}}; there is {}",
        placeholders(groups)
    )]
    Unknown {
        /// Where the `$` is.
        position: usize,
        /// The name between the braces.
        name: String,
        /// The names of the groups.
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
        /// The number of groups.
        groups: usize,
    },
    /// A backslash with nothing after it.
    #[error("topic template, character {0}: nothing follows the backslash")]
    Backslash(usize),
    /// The expression is not understood.
    #[error(transparent)]
    Regex(#[from] JavaRegexError),
}

fn placeholders(groups: &[String]) -> String {
    let groups: Vec<String> = groups.iter().map(|name| format!("${{{name}}}")).collect();
    match groups.as_slice() {
        [] => "none".to_owned(),
        groups => groups.join(", "),
    }
}

impl TopicTemplate {
    /// A template for the groups of `pattern`, a Java regular expression (`route.topic.regex` and
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

    /// The texts that stand in every topic, between the groups.
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
        use TopicTemplateError::{Backslash, Dollar, Empty, Unclosed};

        if text.is_empty() {
            return Err(Empty);
        }
        let mut text = Cursor::new(text);
        while let Some(c) = text.next() {
            let position = text.position - 1;
            let c = match c {
                '\\' => text.next().ok_or(Backslash(position))?,
                '$' => {
                    let group = if text.take("{") {
                        let name = text.take_while(|c| c != '}');
                        text.next().ok_or(Unclosed(position))?;
                        self.named(name, position)?
                    } else {
                        let first = text.next().and_then(|c| c.to_digit(10));
                        let first = first.ok_or(Dollar(position))?;
                        self.numbered(first as usize, &mut text, position)?
                    };
                    self.pieces.push(Piece::Group(group));
                    continue;
                }
                c => c,
            };
            match self.pieces.last_mut() {
                Some(Piece::Literal(text)) => text.push(c),
                _ => self.pieces.push(Piece::Literal(c.to_string())),
            }
        }
        Ok(())
    }

    fn named(&self, name: &str, position: usize) -> Result<usize, TopicTemplateError> {
        let names = match &self.regex {
            None => vec![None, Some(PLACEHOLDER)],
            Some(regex) => regex.names(),
        };
        let group = names.iter().position(|known| *known == Some(name));
        group.ok_or_else(|| TopicTemplateError::Unknown {
            position,
            name: name.to_owned(),
            groups: names.into_iter().flatten().map(str::to_owned).collect(),
        })
    }

    /// Takes as many digits as there are groups for, as Java does.
    fn numbered(
        &self,
        first: usize,
        text: &mut Cursor<'_>,
        position: usize,
    ) -> Result<usize, TopicTemplateError> {
        let groups = self
            .regex
            .as_ref()
            .map_or(1, |regex| regex.names().len() - 1);
        let mut number = first;
        if number > groups {
            return Err(TopicTemplateError::NoGroup {
                position,
                number,
                groups,
            });
        }
        while let Some(digit) = text.peek().and_then(|c| c.to_digit(10)) {
            let longer = number.saturating_mul(10).saturating_add(digit as usize);
            if longer > groups {
                break;
            }
            number = longer;
            text.next();
        }
        Ok(number)
    }

    /// Replaces `topic` by the topic for `value`.
    pub(crate) fn render(&self, value: &str, topic: &mut String) {
        topic.clear();
        let captures = match &self.regex {
            None if value.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']) => None,
            None => Some(("", None, "")),
            Some(regex) => regex
                .captures(value)
                .map(|(before, captures, after)| (before, Some(captures), after)),
        };
        let Some((before, captures, after)) = captures else {
            topic.push_str(value);
            return;
        };
        topic.push_str(before);
        for piece in &self.pieces {
            topic.push_str(match (piece, &captures) {
                (Piece::Literal(text), _) => text,
                (Piece::Group(_), None) => value,
                (Piece::Group(number), Some(captures)) => {
                    captures.get(*number).map_or("", |group| group.as_str())
                }
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
        let text = self.to_string();
        write!(f, "TopicTemplate({text:?} of {:?})", self.pattern)
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
        assert_eq!(parse("a.$x"), E::Dollar(3));
        let no_group = E::NoGroup {
            position: 3,
            number: 2,
            groups: 1,
        };
        assert_eq!(parse("a.$2"), no_group);
        assert_eq!(parse("é$"), E::Dollar(2));
        assert_eq!(parse("a.${routedByValue"), E::Unclosed(3));
        assert_eq!(parse("trailing\\"), E::Backslash(9));
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
