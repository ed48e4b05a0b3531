//! The template of the topic, `route.topic.replacement`.

use std::str::FromStr;

use super::java_regex::{JavaRegex, JavaRegexError};
use crate::value::cursor::Cursor;

/// Name of the group in Debezium's default `route.topic.regex`.
const PLACEHOLDER: &str = "routedByValue";

/// Debezium's default `route.topic.regex`.
const DEFAULT_REGEX: &str = "(?<routedByValue>.*)";

/// Template of a topic: contains the routing column's text, as in `outbox.event.${routedByValue}`,
/// or the groups of a regular expression that matches that text.
///
/// The grammar is that of Java's replacement strings, as in Debezium's `route.topic.replacement`:
/// `${name}` and `$1` are groups, a backslash escapes the next character. If the expression does
/// not match the whole text, the text is the topic.
///
/// The text is inserted unchanged; the broker refuses names that Kafka does not allow.
#[derive(Debug, Clone)]
pub struct TopicTemplate {
    pattern: String,
    /// `None` for the default expression, which matches texts without line terminators.
    regex: Option<JavaRegex>,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Group(usize),
}

/// The reason why a text is not a [`TopicTemplate`]. Positions count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicTemplateError {
    /// The text is empty.
    #[error("topic template: it is empty")]
    Empty,
    /// A `$` that is not followed by a group.
    #[error(
        "topic template, character {0}: a $ begins ${{routedByValue}} or $1; write \\$ for a dollar sign"
    )]
    Dollar(usize),
    /// `${` without `}`.
    #[error("topic template, character {0}: ${{ is not closed by a }}")]
    Unclosed(usize),
    /// `${…}` with a name that is not that of a group.
    #[error(
        "topic template, character {position}: unknown placeholder ${{{name}}}; there is {}",
        placeholders(groups)
    )]
    Unknown {
        /// Position of the `$`.
        position: usize,
        /// Name between the braces.
        name: String,
        /// Names of the groups.
        groups: Vec<String>,
    },
    /// `$1` with a number that is not that of a group.
    #[error(
        "topic template, character {position}: there is no group ${number}; route.topic.regex has {groups}"
    )]
    NoGroup {
        /// Position of the `$`.
        position: usize,
        /// Number after the `$`.
        number: usize,
        /// Number of groups in the expression.
        groups: usize,
    },
    /// A backslash with nothing after it.
    #[error("topic template, character {0}: nothing follows the backslash")]
    Backslash(usize),
    /// The expression is not supported.
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
    /// Creates a template with the groups of `pattern`, a Java regular expression
    /// (`route.topic.regex` and `route.topic.replacement`).
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

    /// Returns the literal texts between the groups.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(text) => Some(text.as_str()),
            Piece::Group(_) => None,
        })
    }

    /// Returns the topic, if it is the same for every text: the expression is the default one, and
    /// the template contains no group.
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

    /// Parses the number of a group. As in Java, takes as many digits as give the number of a
    /// group.
    fn numbered(
        &self,
        first: usize,
        text: &mut Cursor<'_>,
        position: usize,
    ) -> Result<usize, TopicTemplateError> {
        let regex = self.regex.as_ref();
        let groups = regex.map_or(1, |regex| regex.names().len() - 1);
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
    /// Returns Debezium's `outbox.event.${routedByValue}`.
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

    /// Parses a template for Debezium's default expression.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::with_regex(DEFAULT_REGEX, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_debeziums() {
        let template = "outbox.event.${routedByValue}".parse::<TopicTemplate>();
        assert_eq!(template, Ok(TopicTemplate::default()));
    }

    /// Topics for numbered groups and for other expressions than the default one were recorded from
    /// Kafka Connect's `RegexRouter`.
    #[test]
    fn a_template_renders_literals_groups_and_escapes() {
        let default = DEFAULT_REGEX;
        for (pattern, replacement, value, expected) in [
            (
                default,
                "outbox.event.${routedByValue}",
                "Order",
                "outbox.event.Order",
            ),
            (default, "${routedByValue}", "we ird/Ünï", "we ird/Ünï"),
            (default, "a${routedByValue}b${routedByValue}", "-", "a-b-"),
            (default, "always-the-same", "Order", "always-the-same"),
            (default, r"cost\$\{x\}\\", "Order", r"cost${x}\"),
            // A value is text, not a template.
            (
                default,
                "x.${routedByValue}",
                "${routedByValue}$1\\",
                r"x.${routedByValue}$1\",
            ),
            (default, "x.$1.$0", "a", "x.a.a"),
            (default, "x.$1", "a\nb", "a\nb"),
            ("(.)(.*)", r"a.$12x$1\$\x$01", "Order", "a.O2xO$xO"),
            ("Foo(.*)", "z.$1", "Order", "Order"),
            ("Ord(.*)", "z.$1.$0", "Order", "z.er.Order"),
            ("(?<a>x)?(.*)", "[${a}$2]", "y", "[y]"),
        ] {
            let mut topic = "what was there before".to_owned();
            let template = TopicTemplate::with_regex(pattern, replacement).unwrap();
            template.render(value, &mut topic);
            assert_eq!(topic, expected, "{replacement} of {pattern}");
        }
        assert!(TopicTemplate::with_regex("(?=x)", "x").is_err());
    }

    #[test]
    fn errors_say_where() {
        use TopicTemplateError as E;
        let no_group = E::NoGroup {
            position: 3,
            number: 2,
            groups: 1,
        };
        let unknown = E::Unknown {
            position: 3,
            name: "type".to_owned(),
            groups: vec!["routedByValue".to_owned()],
        };
        assert_eq!(
            unknown.to_string(),
            "topic template, character 3: unknown placeholder ${type}; there is ${routedByValue}"
        );
        assert_eq!(
            E::Dollar(1).to_string(),
            "topic template, character 1: a $ begins ${routedByValue} or $1; write \\$ for a dollar sign"
        );
        for (text, error) in [
            ("", E::Empty),
            ("$", E::Dollar(1)),
            ("a.$x", E::Dollar(3)),
            ("a.$2", no_group),
            ("é$", E::Dollar(2)),
            ("a.${routedByValue", E::Unclosed(3)),
            ("trailing\\", E::Backslash(9)),
            ("ab${type}", unknown),
        ] {
            assert_eq!(text.parse::<TopicTemplate>(), Err(error), "{text}");
        }
    }
}
