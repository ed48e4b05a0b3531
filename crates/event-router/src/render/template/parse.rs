//! From text to [`Template`].

use std::str::FromStr;

use super::ast::{
    At, Expression, FILTERS, Filter, Lookups, Otherwise, Piece, Place, Source, Template,
    begins_name, continues_name,
};
use super::error::{TemplateError, TemplateProblem as P};
use crate::plan::nearest;
use crate::value::json::Step;

type Result<T> = std::result::Result<T, TemplateError>;

impl Template {
    /// Reads a template for a place.
    pub fn parse(text: &str, place: Place, lookups: &Lookups) -> Result<Self> {
        let template: Self = text.parse()?;
        template.check(place, lookups)?;
        Ok(template)
    }

    /// Whether it can stand in this place, and all its lookup tables exist.
    pub fn check(&self, place: Place, lookups: &Lookups) -> Result<()> {
        let error = |position, problem| Err(TemplateError { position, problem });
        let needed = matches!(place, Place::Topic | Place::Partition | Place::Timestamp);
        if needed && self.is_empty() {
            return error(1, P::Empty);
        }
        for expression in self.expressions() {
            let last = expression.filters.len().saturating_sub(1);
            for (index, (At(position), filter)) in expression.filters.iter().enumerate() {
                match filter {
                    Filter::Lookup { table, .. } if !lookups.contains_key(table) => {
                        let known: Vec<String> = lookups.keys().cloned().collect();
                        let problem = P::UnknownTable {
                            name: table.clone(),
                            nearest: nearest(table, known.iter().map(String::as_str), 0.75),
                            known,
                        };
                        return error(*position, problem);
                    }
                    Filter::Optional if index < last => {
                        return error(*position, P::OptionalNotLast);
                    }
                    Filter::Optional => {
                        if let Some(what) = place.always_there() {
                            let problem = P::NothingToLeaveOut(what);
                            return error(*position, problem);
                        }
                        if self.pieces.len() > 1 {
                            return error(*position, P::OptionalInText);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    /// By the grammar alone; [`check`](Template::check) looks at the rest.
    fn from_str(text: &str) -> Result<Self> {
        template(text)
    }
}

fn template(text: &str) -> Result<Template> {
    let mut reader = Reader {
        rest: text,
        position: 1,
    };
    let mut pieces = Vec::new();
    let mut literal = String::new();
    while let Some(c) = reader.next() {
        match c {
            '{' if reader.take('{') => literal.push('{'),
            '}' if reader.take('}') => literal.push('}'),
            '}' => return reader.before(P::Stray),
            '$' if reader.peek() == Some('{') && !reader.rest.starts_with("{{") => {
                return reader.before(P::Dollar);
            }
            '{' => {
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                let open = reader.position - 1;
                pieces.push(Piece::Value(expression(&mut reader, open)?));
            }
            c => literal.push(c),
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(Template { pieces })
}

/// What follows a `{`, with the `}`.
fn expression(reader: &mut Reader<'_>, open: usize) -> Result<Expression> {
    reader.blanks();
    let source = match reader.peek() {
        Some('"') => Source::Column(reader.quoted('"')?),
        Some('\'') => Source::Text(reader.quoted('\'')?),
        Some(c) if begins_name(c) => Source::Column(reader.name().to_owned()),
        None => return unclosed(open),
        Some(_) => return reader.here(P::Expected("the name of a column")),
    };
    if source == Source::Column(String::new()) {
        return reader.before(P::Expected("the name of a column"));
    }
    let mut filters = Vec::new();
    loop {
        reader.blanks();
        match reader.peek() {
            Some('}') => {
                reader.next();
                return Ok(Expression { source, filters });
            }
            Some('|') if matches!(source, Source::Text(_)) => {
                return reader.here(P::Expected("}; filters are for columns"));
            }
            Some('|') => {
                reader.next();
                reader.blanks();
                let at = At(reader.position);
                filters.push((at, filter(reader)?));
            }
            None => return unclosed(open),
            Some(_) => return reader.here(P::Expected("| and a filter, or }")),
        }
    }
}

fn unclosed<T>(position: usize) -> Result<T> {
    let problem = P::Unclosed;
    Err(TemplateError { position, problem })
}

/// One argument of a filter.
enum Argument {
    Text(String),
    Number(usize),
    Keep,
}

fn filter(reader: &mut Reader<'_>) -> Result<Filter> {
    let position = reader.position;
    let name = reader.name();
    if name.is_empty() {
        return reader.here(P::Expected("the name of a filter"));
    }
    let Some((filter, usage)) = FILTERS.into_iter().find(|(known, _)| *known == name) else {
        let problem = P::UnknownFilter {
            name: name.to_owned(),
            nearest: nearest(name, FILTERS.into_iter().map(|(known, _)| known), 0.75),
        };
        return Err(TemplateError { position, problem });
    };
    let arguments = arguments(reader)?;
    let problem = P::Arguments { filter, usage };
    understood(name, arguments).ok_or(TemplateError { position, problem })
}

fn understood(name: &str, arguments: Vec<Argument>) -> Option<Filter> {
    use Argument as A;
    let mut arguments = arguments.into_iter();
    let mut next = || arguments.next();
    let filter = match name {
        "lower" => Filter::Lower,
        "upper" => Filter::Upper,
        "text" => Filter::Text,
        "optional" => Filter::Optional,
        "before" | "after" | "default" => match (name, next()?) {
            ("default", A::Text(text)) => Filter::Default(text),
            ("before", A::Text(separator)) if !separator.is_empty() => Filter::Before(separator),
            ("after", A::Text(separator)) if !separator.is_empty() => Filter::After(separator),
            _ => return None,
        },
        "replace" => match (next()?, next()?) {
            (A::Text(old), A::Text(new)) if !old.is_empty() => Filter::Replace(old, new),
            _ => return None,
        },
        "lookup" => match (next()?, next()) {
            (A::Text(table), None) => Filter::lookup(table, Otherwise::Refuse),
            (A::Text(table), Some(A::Keep)) => Filter::lookup(table, Otherwise::Keep),
            (A::Text(table), Some(A::Text(text))) => Filter::lookup(table, Otherwise::Text(text)),
            _ => return None,
        },
        _ => {
            let step = |argument| match argument {
                A::Text(name) => Some(Step::Member(name)),
                A::Number(item) => Some(Step::Item(item)),
                A::Keep => None,
            };
            let steps: Option<Vec<Step>> = arguments.map(step).collect();
            return Some(Filter::Json(steps?));
        }
    };
    next().is_none().then_some(filter)
}

/// `(a, b)`, or nothing.
fn arguments(reader: &mut Reader<'_>) -> Result<Vec<Argument>> {
    let mut arguments = Vec::new();
    if !reader.take('(') {
        return Ok(arguments);
    }
    loop {
        reader.blanks();
        let argument = match reader.peek() {
            Some('\'') => Argument::Text(reader.quoted('\'')?),
            Some(c) if c.is_ascii_digit() => match reader.digits().parse() {
                Ok(number) => Argument::Number(number),
                Err(_) => return reader.before(P::Expected("a smaller number")),
            },
            Some(c) if begins_name(c) => {
                let position = reader.position;
                if reader.name() != "keep" {
                    let problem = P::Expected("a 'text' in single quotes, a number or keep");
                    return Err(TemplateError { position, problem });
                }
                Argument::Keep
            }
            _ => return reader.here(P::Expected("a 'text' in single quotes or a number")),
        };
        arguments.push(argument);
        reader.blanks();
        if reader.take(')') {
            return Ok(arguments);
        }
        if !reader.take(',') {
            return reader.here(P::Expected(", or )"));
        }
    }
}

struct Reader<'t> {
    rest: &'t str,
    /// Of what comes next, from 1.
    position: usize,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        self.position += 1;
        Some(c)
    }

    fn take(&mut self, c: char) -> bool {
        let there = self.peek() == Some(c);
        if there {
            self.next();
        }
        there
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.next();
        }
    }

    fn while_(&mut self, wanted: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.position += taken.chars().count();
        taken
    }

    fn name(&mut self) -> &'t str {
        self.while_(continues_name)
    }

    fn digits(&mut self) -> &'t str {
        self.while_(|c| c.is_ascii_digit())
    }

    /// What stands in quotes; a doubled quote is one, as in SQL.
    fn quoted(&mut self, quote: char) -> Result<String> {
        let position = self.position;
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None => {
                    let problem = P::Quote(quote);
                    return Err(TemplateError { position, problem });
                }
                Some(c) if c == quote => {
                    if !self.take(quote) {
                        return Ok(text);
                    }
                    text.push(quote);
                }
                Some(c) => text.push(c),
            }
        }
    }

    /// A problem with what comes next.
    fn here<T>(&self, problem: P) -> Result<T> {
        let position = self.position;
        Err(TemplateError { position, problem })
    }

    /// A problem with the character that was taken last.
    fn before<T>(&self, problem: P) -> Result<T> {
        let position = self.position - 1;
        Err(TemplateError { position, problem })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn written_back(text: &str) -> String {
        let template: Template = text.parse().unwrap_or_else(|error| panic!("{error}"));
        template.to_string()
    }

    #[test]
    fn what_is_understood_is_written_back() {
        for (text, expected) in [
            ("", ""),
            ("orders", "orders"),
            ("{type}", "{type}"),
            ("{ type|before('.')|lower }", "{type | before('.') | lower}"),
            ("a{{b}}c", "a{{b}}c"),
            ("{{}}{a}{{", "{{}}{a}{{"),
            ("$x$${{a}}{'$'}{a}", "$x$${{a}}{'$'}{a}"),
            (r#"{"My ""Column"""}"#, r#"{"My ""Column"""}"#),
            (r#"{"plain"}"#, "{plain}"),
            ("{größe | upper}", "{größe | upper}"),
            ("{a | replace('''', '|}')}", "{a | replace('''', '|}')}"),
            ("{a | json}", "{a | json}"),
            ("{a | json()}", ""),
            ("{a | json('b.c',0 , 'd')}", "{a | json('b.c', 0, 'd')}"),
            ("{a | lookup('t')}", "{a | lookup('t')}"),
            ("{a | lookup('t', keep)}", "{a | lookup('t', keep)}"),
            (
                "{a | lookup('t', 'x') | default('')}",
                "{a | lookup('t', 'x') | default('')}",
            ),
            ("{a | text | optional}", "{a | text | optional}"),
        ] {
            if expected.is_empty() && !text.is_empty() {
                assert!(text.parse::<Template>().is_err(), "{text}");
            } else {
                assert_eq!(written_back(text), expected);
            }
        }
    }

    #[test]
    fn errors_say_where_and_what() {
        for (text, expected) in [
            (
                "é{type",
                "character 2: { is not closed by a }; write {{ for the character itself",
            ),
            (
                "{",
                "character 1: { is not closed by a }; write {{ for the character itself",
            ),
            ("{type |", "character 8: expected the name of a filter"),
            (
                "a}",
                "character 2: a } without its {; write }} for the character itself",
            ),
            (
                "x.${type}",
                "character 3: a column is written {name}, without a dollar sign; write {'$'} for \
                 the character itself",
            ),
            ("{}", "character 2: expected the name of a column"),
            ("{\"\"}", "character 3: expected the name of a column"),
            (
                "{'a' | lower}",
                "character 6: expected }; filters are for columns",
            ),
            ("{1}", "character 2: expected the name of a column"),
            ("{a b}", "character 4: expected | and a filter, or }"),
            (
                "{a | before('.}",
                "character 13: the quote is not closed by another '",
            ),
            (
                "{a | before(.)}",
                "character 13: expected a 'text' in single quotes or a number",
            ),
            ("{a | before('.'}", "character 16: expected , or )"),
            (
                "{a | lookup('t', drop)}",
                "character 18: expected a 'text' in single quotes, a number or keep",
            ),
            (
                "{a | before}",
                "character 6: before is written before('separator')",
            ),
            (
                "{a | before('')}",
                "character 6: before is written before('separator')",
            ),
            ("{a | lower('x')}", "character 6: lower is written lower"),
            (
                "{a | replace('', 'x')}",
                "character 6: replace is written replace('old', 'new')",
            ),
            (
                "{a | json(99999999999999999999999)}",
                "character 33: expected a smaller number",
            ),
            (
                "{type | lowr}",
                "character 9: there is no filter \"lowr\"; did you mean \"lower\"?; filters are \
                 lower, upper, before, after, replace, default, json, lookup, text, optional",
            ),
        ] {
            assert_eq!(
                text.parse::<Template>().unwrap_err().to_string(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn a_place_has_its_own_rules() {
        let lookups = Lookups::from([("topics".to_owned(), BTreeMap::new())]);
        let check =
            |text, place| Template::parse(text, place, &lookups).map_err(|error| error.to_string());
        assert!(check("{a | lookup('topics')}", Place::Topic).is_ok());
        assert_eq!(
            check("{a | lookup('topic')}", Place::Topic).unwrap_err(),
            "character 6: there is no lookup table \"topic\"; did you mean \"topics\"?; tables are \
             topics"
        );
        assert_eq!(
            check("", Place::Topic).unwrap_err(),
            "character 1: it is empty"
        );
        assert!(check("", Place::Key).is_ok());
        for place in [Place::Member, Place::Header, Place::Partition] {
            assert!(check("{a | optional}", place).is_ok());
        }
        assert_eq!(
            check("{''}", Place::Topic).unwrap_err(),
            "character 1: it is empty"
        );
        for place in [Place::Topic, Place::Key, Place::Value, Place::Timestamp] {
            assert!(
                check("{a | optional}", place)
                    .unwrap_err()
                    .contains("cannot be left out")
            );
        }
        assert_eq!(
            check("{a | optional | text}", Place::Header).unwrap_err(),
            "character 6: optional must be the last filter"
        );
        assert_eq!(
            check("x{a | optional}", Place::Header).unwrap_err(),
            "character 7: optional can only stand where the column is all there is"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_refused_at_a_place_in_it(text: String) {
            understood_or_refused(&text)?;
        }

        #[test]
        fn any_text_of_the_right_characters_too(
            text in r#"([a-c{}|()'", $.0-9é]|\{[a-c]|\{\{|lower|before\('|'\)|json|lookup|keep|default| \| ){0,16}"#
        ) {
            understood_or_refused(&text)?;
        }

        #[test]
        fn templates_read_back(text in r"(x|\{\{|\{a( \| (lower|upper|text|json|json\('b', 0\)|default\('z'''\)|before\('\.'\)|replace\('a', ''\)|lookup\('t', keep\))){0,3}\}){0,6}") {
            let template: Template = text.parse().unwrap();
            prop_assert_eq!(template.to_string(), text);
        }
    }

    fn understood_or_refused(text: &str) -> std::result::Result<(), TestCaseError> {
        match text.parse::<Template>() {
            Ok(template) => {
                let again: Template = template.to_string().parse().unwrap();
                prop_assert_eq!(again, template);
            }
            Err(error) => {
                prop_assert!(
                    (1..=text.chars().count() + 1).contains(&error.position),
                    "{error}"
                );
            }
        }
        Ok(())
    }
}
