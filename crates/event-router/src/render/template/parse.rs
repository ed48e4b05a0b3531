//! From text to [`Template`].

use std::str::FromStr;

use super::ast::{
    Argument, FILTERS, Filter, Lookups, Piece, Place, Template, begins_name, continues_name,
};
use super::error::{TemplateError, TemplateProblem as P};
use super::filter::Op;
use crate::plan::nearest;
use crate::value::cursor::Cursor;

type Result<T> = std::result::Result<T, TemplateError>;

impl Template {
    /// Reads a template for a place. All its lookup tables must exist.
    pub fn parse(text: &str, place: Place, lookups: &Lookups) -> Result<Self> {
        Parser::read(text, Some((place, lookups)))
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    /// By the grammar alone: for any place, with any lookup tables.
    fn from_str(text: &str) -> Result<Self> {
        Parser::read(text, None)
    }
}

impl P {
    fn at<T>(self, position: usize) -> Result<T> {
        let problem = self;
        Err(TemplateError { position, problem })
    }
}

struct Parser<'t> {
    text: Cursor<'t>,
    /// What the template is for, if that is known.
    place: Option<(Place, &'t Lookups)>,
    /// Where the first filter `optional` is.
    optional: Option<usize>,
}

impl<'t> Parser<'t> {
    fn read(text: &'t str, place: Option<(Place, &'t Lookups)>) -> Result<Template> {
        let mut parser = Self {
            text: Cursor::new(text),
            place,
            optional: None,
        };
        let template = parser.template()?;
        let Some((place, _)) = place else {
            return Ok(template);
        };
        let needed = matches!(place, Place::Topic | Place::Partition | Place::Timestamp);
        match (parser.optional, place.always_there()) {
            _ if needed && template.is_empty() => P::Empty.at(1),
            (Some(position), Some(what)) => P::NothingToLeaveOut(what).at(position),
            (Some(position), None) if template.pieces.len() > 1 => P::OptionalInText.at(position),
            _ => Ok(template),
        }
    }

    fn template(&mut self) -> Result<Template> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        while let Some(c) = self.text.next() {
            let position = self.text.position - 1;
            match c {
                '{' if self.text.take("{") => literal.push('{'),
                '}' if self.text.take("}") => literal.push('}'),
                '}' => return P::Stray.at(position),
                '$' if self.text.peek() == Some('{') && !self.text.rest.starts_with("{{") => {
                    return P::Dollar.at(position);
                }
                '{' => match self.expression(position)? {
                    Piece::Literal(text) if !text.is_empty() => literal.push_str(&text),
                    piece => {
                        if !literal.is_empty() {
                            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                        }
                        pieces.push(piece);
                    }
                },
                c => literal.push(c),
            }
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Template { pieces })
    }

    /// The rest of an expression behind its `{`, with the `}`.
    fn expression(&mut self, open: usize) -> Result<Piece> {
        const COLUMN: P = P::Expected("the name of a column");
        let position = self.blanks();
        let mut piece = match self.text.peek() {
            Some('"') => Piece::Column(self.quoted('"')?, Vec::new()),
            Some('\'') => Piece::Literal(self.quoted('\'')?),
            Some(c) if begins_name(c) => Piece::Column(self.name().to_owned(), Vec::new()),
            None => return P::Unclosed.at(open),
            Some(_) => return COLUMN.at(position),
        };
        let mut optional = None;
        loop {
            if matches!(&piece, Piece::Column(name, _) if name.is_empty()) {
                return COLUMN.at(self.text.position - 1);
            }
            let position = self.blanks();
            match (self.text.next(), &mut piece) {
                (None, _) => return P::Unclosed.at(open),
                (Some('}'), _) => return Ok(piece),
                (Some('|'), Piece::Column(_, filters)) => {
                    if let (Some(position), Some(_)) = (optional, self.place) {
                        return P::OptionalNotLast.at(position);
                    }
                    let position = self.blanks();
                    let filter = self.filter(position)?;
                    if filter.is_optional() {
                        optional = Some(position);
                        self.optional.get_or_insert(position);
                    }
                    filters.push(filter);
                }
                (Some('|'), Piece::Literal(_)) => {
                    return P::Expected("}; filters are for columns").at(position);
                }
                _ => return P::Expected("| and a filter, or }").at(position),
            }
        }
    }

    fn filter(&mut self, position: usize) -> Result<Filter> {
        let name = self.name();
        if name.is_empty() {
            return P::Expected("the name of a filter").at(position);
        }
        let Some((filter, usage)) = FILTERS.into_iter().find(|(known, _)| *known == name) else {
            let nearest = nearest(name, FILTERS.into_iter().map(|(known, _)| known), 0.75);
            let name = name.to_owned();
            return P::UnknownFilter { name, nearest }.at(position);
        };
        let arguments = self.arguments()?;
        let read = Filter {
            name: filter,
            arguments,
        };
        if Op::of(&read, &Lookups::new()).is_none() {
            return P::Arguments { filter, usage }.at(position);
        }
        if let (Some((_, lookups)), "lookup", Some(Argument::Text(table))) =
            (self.place, filter, read.arguments.first())
            && !lookups.contains_key(table)
        {
            let known: Vec<String> = lookups.keys().cloned().collect();
            let problem = P::UnknownTable {
                name: table.clone(),
                nearest: nearest(table, known.iter().map(String::as_str), 0.75),
                known,
            };
            return problem.at(position);
        }
        Ok(read)
    }

    fn arguments(&mut self) -> Result<Vec<Argument>> {
        let mut arguments = Vec::new();
        if !self.text.take("(") {
            return Ok(arguments);
        }
        loop {
            let position = self.blanks();
            arguments.push(match self.text.peek() {
                Some('\'') => Argument::Text(self.quoted('\'')?),
                Some('0'..='9') => match self.text.take_while(|c| c.is_ascii_digit()).parse() {
                    Ok(number) => Argument::Number(number),
                    Err(_) => {
                        return P::Expected("a smaller number").at(self.text.position - 1);
                    }
                },
                Some(c) if begins_name(c) => {
                    if self.name() != "keep" {
                        let expected = "a 'text' in single quotes, a number or keep";
                        return P::Expected(expected).at(position);
                    }
                    Argument::Keep
                }
                _ => return P::Expected("a 'text' in single quotes or a number").at(position),
            });
            let position = self.blanks();
            match self.text.next() {
                Some(')') => return Ok(arguments),
                Some(',') => {}
                _ => return P::Expected(", or )").at(position),
            }
        }
    }

    /// Passes over blanks; gives the position behind them.
    fn blanks(&mut self) -> usize {
        self.text.take_while(char::is_whitespace);
        self.text.position
    }

    fn name(&mut self) -> &'t str {
        self.text.take_while(continues_name)
    }

    fn quoted(&mut self, quote: char) -> Result<String> {
        let position = self.text.position;
        self.text.next();
        let text = self.text.quoted(quote);
        text.map_or_else(|| P::Quote(quote).at(position), Ok)
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
            ("{'x$$'}{a}", "x{'$$'}{a}"),
            ("{''}{a}{'{'}", "{''}{a}{{"),
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
