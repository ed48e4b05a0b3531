use std::fmt;
use std::str::FromStr;

/// The one placeholder: Debezium's default `route.topic.regex` names its only group so.
const PLACEHOLDER: &str = "routedByValue";

/// A topic name with the routing column's text in it: `outbox.event.${routedByValue}`.
///
/// The grammar is that of a Java replacement string, as Debezium's `route.topic.replacement` is one:
/// `${routedByValue}` stands for the value, a backslash takes the next character literally, anything
/// else is itself. Numbered groups (`$1`) are refused: there is no regular expression to number.
///
/// The value goes in as it is. A name that Kafka does not allow is for the broker to refuse.
#[derive(Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    pieces: Vec<Piece>,
}

#[derive(Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Value,
}

/// Why a text is not a [`TopicTemplate`]. Positions count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicTemplateError {
    /// There is no topic without a name.
    #[error("topic template: it is empty")]
    Empty,
    /// A `$` that begins no placeholder.
    #[error(
        "topic template, character {position}: a $ begins ${{routedByValue}}; write \\$ for a dollar sign"
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
    /// `${…}` with another name.
    #[error(
        "topic template, character {position}: unknown placeholder ${{{name}}}; there is ${{routedByValue}}"
    )]
    Unknown {
        /// Where the `$` is.
        position: usize,
        /// What stands between the braces.
        name: String,
    },
    /// A backslash with nothing after it.
    #[error("topic template, character {position}: nothing follows the backslash")]
    Backslash {
        /// Where the backslash is.
        position: usize,
    },
}

impl TopicTemplate {
    /// Replaces what `topic` holds by the topic for `value`.
    pub(crate) fn render(&self, value: &str, topic: &mut String) {
        topic.clear();
        for piece in &self.pieces {
            topic.push_str(match piece {
                Piece::Literal(text) => text,
                Piece::Value => value,
            });
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

impl Default for TopicTemplate {
    /// Debezium's `outbox.event.${routedByValue}`.
    fn default() -> Self {
        Self {
            pieces: vec![Piece::Literal("outbox.event.".to_owned()), Piece::Value],
        }
    }
}

impl FromStr for TopicTemplate {
    type Err = TopicTemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(TopicTemplateError::Empty);
        }
        let mut template = Self { pieces: Vec::new() };
        let mut chars = (1..).zip(text.chars());
        while let Some((position, c)) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some((_, escaped)) => template.push_char(escaped),
                    None => return Err(TopicTemplateError::Backslash { position }),
                },
                '$' => {
                    if !matches!(chars.next(), Some((_, '{'))) {
                        return Err(TopicTemplateError::Dollar { position });
                    }
                    let mut name = String::new();
                    loop {
                        match chars.next() {
                            Some((_, '}')) => break,
                            Some((_, c)) => name.push(c),
                            None => return Err(TopicTemplateError::Unclosed { position }),
                        }
                    }
                    if name != PLACEHOLDER {
                        return Err(TopicTemplateError::Unknown { position, name });
                    }
                    template.pieces.push(Piece::Value);
                }
                _ => template.push_char(c),
            }
        }
        Ok(template)
    }
}

/// Gives a text that parses to the same template.
impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;

        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => {
                    for c in text.chars() {
                        if matches!(c, '\\' | '$') {
                            f.write_char('\\')?;
                        }
                        f.write_char(c)?;
                    }
                }
                Piece::Value => write!(f, "${{{PLACEHOLDER}}}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicTemplate({:?})", self.to_string())
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

    #[test]
    fn errors_say_where() {
        use TopicTemplateError as E;
        let parse = |text: &str| text.parse::<TopicTemplate>().unwrap_err();
        assert_eq!(parse(""), E::Empty);
        assert_eq!(parse("a.$1"), E::Dollar { position: 3 });
        assert_eq!(parse("é$"), E::Dollar { position: 2 });
        assert_eq!(parse("a.${routedByValue"), E::Unclosed { position: 3 });
        assert_eq!(parse("trailing\\"), E::Backslash { position: 9 });
        let unknown = parse("ab${type}");
        assert_eq!(
            unknown,
            E::Unknown {
                position: 3,
                name: "type".to_owned()
            }
        );
        assert_eq!(
            unknown.to_string(),
            "topic template, character 3: unknown placeholder ${type}; there is ${routedByValue}"
        );
        assert_eq!(
            parse("$").to_string(),
            "topic template, character 1: a $ begins ${routedByValue}; write \\$ for a dollar sign"
        );
    }

    proptest! {
        #[test]
        fn what_parses_reads_back(text in r"([a-z.\\$é{}]|\$\{routedByValue\}){0,12}") {
            if let Ok(template) = text.parse::<TopicTemplate>() {
                prop_assert_eq!(template.to_string().parse::<TopicTemplate>(), Ok(template));
            }
        }
    }
}
