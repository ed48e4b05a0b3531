//! Parses a text into a [`Template`].

use std::str::FromStr;

use walrelay_failure::nearest;

use super::ast::{
    Argument, FILTERS, Filter, Lookups, Piece, Template, TemplateTarget, begins_name,
    continues_name,
};
use super::error::{TemplateError, TemplateProblem as P};
use super::filter::Op;
use crate::value::cursor::Cursor;

type Result<T> = std::result::Result<T, TemplateError>;

impl Template {
    /// Parses a template for a place. All its lookup tables must be in `lookups`.
    pub fn parse(text: &str, place: TemplateTarget, lookups: &Lookups) -> Result<Self> {
        Parser::read(text, Some((place, lookups)))
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    /// Parses a template by the grammar alone, without the rules of a place and the lookup tables.
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
    /// The place of the template and the lookup tables, if known.
    place: Option<(TemplateTarget, &'t Lookups)>,
    /// Position of the first filter `optional`.
    optional: Option<usize>,
}

impl<'t> Parser<'t> {
    fn read(text: &'t str, place: Option<(TemplateTarget, &'t Lookups)>) -> Result<Template> {
        let mut parser = Self {
            text: Cursor::new(text),
            place,
            optional: None,
        };
        let template = parser.template()?;
        let Some((place, _)) = place else {
            return Ok(template);
        };
        let needed = matches!(
            place,
            TemplateTarget::Topic | TemplateTarget::Partition | TemplateTarget::Timestamp
        );
        match (parser.optional, place.always_present()) {
            _ if needed && template.constant().as_deref() == Some("") => P::Empty.at(1),
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

    /// Parses an expression after its `{`, with the `}`.
    fn expression(&mut self, open: usize) -> Result<Piece> {
        const COLUMN: P = P::Expected("the name of a column");
        let position = self.text.blanks();
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
            let position = self.text.blanks();
            match (self.text.next(), &mut piece) {
                (None, _) => return P::Unclosed.at(open),
                (Some('}'), _) => return Ok(piece),
                (Some('|'), Piece::Column(_, filters)) => {
                    if let (Some(position), Some(_)) = (optional, self.place) {
                        return P::OptionalNotLast.at(position);
                    }
                    let position = self.text.blanks();
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
        let written = self.name();
        if written.is_empty() {
            return P::Expected("the name of a filter").at(position);
        }
        let Some((name, usage)) = FILTERS.into_iter().find(|(name, _)| *name == written) else {
            let nearest = nearest(written, FILTERS.map(|(name, _)| name)).map(str::to_owned);
            let name = written.to_owned();
            return P::UnknownFilter { name, nearest }.at(position);
        };
        let arguments = self.arguments()?;
        let filter = Filter { name, arguments };
        if Op::from_filter(&filter, &Lookups::new()).is_none() {
            let filter = name;
            return P::Arguments { filter, usage }.at(position);
        }
        if let (Some((_, lookups)), "lookup", Some(Argument::Text(table))) =
            (self.place, name, filter.arguments.first())
            && !lookups.contains_key(table)
        {
            let known: Vec<String> = lookups.keys().cloned().collect();
            let problem = P::UnknownTable {
                name: table.clone(),
                nearest: nearest(table, known.iter().map(String::as_str)).map(str::to_owned),
                known,
            };
            return problem.at(position);
        }
        Ok(filter)
    }

    fn arguments(&mut self) -> Result<Vec<Argument>> {
        let mut arguments = Vec::new();
        if !self.text.take("(") {
            return Ok(arguments);
        }
        loop {
            let position = self.text.blanks();
            arguments.push(match self.text.peek() {
                Some('\'') => {
                    let text = self.quoted('\'')?;
                    match self.replacement()? {
                        Some(by) => Argument::Entry(Some(text), by),
                        None => Argument::Text(text),
                    }
                }
                Some('0'..='9') => match self.text.take_while(|c| c.is_ascii_digit()).parse() {
                    Ok(number) => Argument::Number(number),
                    Err(_) => {
                        return P::Expected("a smaller number").at(self.text.position - 1);
                    }
                },
                Some(c) if begins_name(c) => {
                    let name = self.name();
                    match (self.replacement()?, name) {
                        (Some(by), "default") => Argument::Entry(None, by),
                        (Some(by), name) => Argument::Entry(Some(name.to_owned()), by),
                        (None, "keep") => Argument::Keep,
                        (None, _) => {
                            let expected = "a 'text' in single quotes, a number or keep";
                            return P::Expected(expected).at(position);
                        }
                    }
                }
                _ => return P::Expected("a 'text' in single quotes or a number").at(position),
            });
            let position = self.text.blanks();
            match self.text.next() {
                Some(')') => return Ok(arguments),
                Some(',') => {}
                _ => return P::Expected(", or )").at(position),
            }
        }
    }

    /// Parses the text behind a `:`; `None` if there is no `:`.
    fn replacement(&mut self) -> Result<Option<String>> {
        self.text.blanks();
        if !self.text.take(":") {
            return Ok(None);
        }
        let position = self.text.blanks();
        if self.text.peek() != Some('\'') {
            return P::Expected("a 'text' in single quotes").at(position);
        }
        self.quoted('\'').map(Some)
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

    #[test]
    fn forms_of_one_template_are_equal() {
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
            ("{a | json('b.c',0 , 'd')}", "{a | json('b.c', 0, 'd')}"),
            ("{a | lookup('t')}", "{a | lookup('t')}"),
            ("{a | lookup('t', keep)}", "{a | lookup('t', keep)}"),
            (
                "{a | lookup('t', 'x') | default('')}",
                "{a | lookup('t', 'x') | default('')}",
            ),
            (
                "{a | map(b:'x' , 'c.d' : 'y', default: 'z')}",
                "{a | map('b': 'x', 'c.d': 'y', default: 'z')}",
            ),
            ("{a | text | optional}", "{a | text | optional}"),
        ] {
            let [template, expected] =
                [text, expected].map(|text| text.parse::<Template>().unwrap());
            assert_eq!(template, expected);
        }
        assert!("{a | json()}".parse::<Template>().is_err());
    }

    #[test]
    fn errors_say_where_and_what() {
        let unclosed = "{ is not closed by a }; write {{ for the character itself";
        let dollar = "a column is written {name}, without a dollar sign; write {'$'} for the \
                      character itself";
        let filters = "there is no filter \"lowr\"; did you mean \"lower\"?; filters are lower, \
                       upper, before, after, replace, default, json, lookup, map, text, optional";
        for (text, position, problem) in [
            ("é{type", 2, unclosed),
            ("{", 1, unclosed),
            ("{type |", 8, "expected the name of a filter"),
            (
                "a}",
                2,
                "a } without its {; write }} for the character itself",
            ),
            ("x.${type}", 3, dollar),
            ("{}", 2, "expected the name of a column"),
            ("{\"\"}", 3, "expected the name of a column"),
            ("{'a' | lower}", 6, "expected }; filters are for columns"),
            ("{1}", 2, "expected the name of a column"),
            ("{a b}", 4, "expected | and a filter, or }"),
            (
                "{a | before('.}",
                13,
                "the quote is not closed by another '",
            ),
            (
                "{a | before(.)}",
                13,
                "expected a 'text' in single quotes or a number",
            ),
            ("{a | before('.'}", 16, "expected , or )"),
            (
                "{a | lookup('t', drop)}",
                18,
                "expected a 'text' in single quotes, a number or keep",
            ),
            ("{a | before}", 6, "before is written before('separator')"),
            (
                "{a | before('')}",
                6,
                "before is written before('separator')",
            ),
            ("{a | lower('x')}", 6, "lower is written lower"),
            (
                "{a | replace('', 'x')}",
                6,
                "replace is written replace('old', 'new')",
            ),
            (
                "{a | json(99999999999999999999999)}",
                33,
                "expected a smaller number",
            ),
            (
                "{a | map(b: 'x', 'b': 'y')}",
                6,
                "map is written map(value: 'replacement', …, default: 'others')",
            ),
            ("{a | map(b: x)}", 13, "expected a 'text' in single quotes"),
            ("{type | lowr}", 9, filters),
        ] {
            let error = text.parse::<Template>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("character {position}: {problem}"),
                "{text}"
            );
        }
    }

    #[test]
    fn places_have_rules() {
        let lookups = Lookups::from([("topics".to_owned(), BTreeMap::new())]);
        let check = |text, place| Template::parse(text, place, &lookups);
        assert!(check("{a | lookup('topics')}", TemplateTarget::Topic).is_ok());
        assert!(check("", TemplateTarget::Key).is_ok());
        assert!(check("", TemplateTarget::Address).is_ok());
        for place in [
            TemplateTarget::Member,
            TemplateTarget::Header,
            TemplateTarget::Partition,
        ] {
            assert!(check("{a | optional}", place).is_ok());
        }
        for place in [
            TemplateTarget::Topic,
            TemplateTarget::Address,
            TemplateTarget::Key,
            TemplateTarget::Value,
            TemplateTarget::Timestamp,
        ] {
            let error = check("{a | optional}", place).unwrap_err();
            assert!(error.to_string().contains("cannot be left out"), "{error}");
        }
        let table =
            "there is no lookup table \"topic\"; did you mean \"topics\"?; tables are topics";
        let alone = "optional can only stand where the column is all there is";
        for (text, place, position, problem) in [
            ("{a | lookup('topic')}", TemplateTarget::Topic, 6, table),
            ("", TemplateTarget::Topic, 1, "it is empty"),
            ("{''}", TemplateTarget::Topic, 1, "it is empty"),
            (
                "{a | optional | text}",
                TemplateTarget::Header,
                6,
                "optional must be the last filter",
            ),
            ("x{a | optional}", TemplateTarget::Header, 7, alone),
        ] {
            let error = check(text, place).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("character {position}: {problem}"),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused_at_a_position(text: String) {
            parsed_or_refused(&text)?;
        }

        #[test]
        fn any_text_of_template_characters_too(
            text in r#"([a-c{}|()'", $.0-9é]|\{[a-c]|\{\{|lower|before\('|'\)|json|lookup|keep|default| \| ){0,16}"#
        ) {
            parsed_or_refused(&text)?;
        }

        #[test]
        fn any_template_is_parsed(text in r"(x|\{\{|\{a( \| (lower|upper|text|json|json\('b', 0\)|default\('z'''\)|before\('\.'\)|replace\('a', ''\)|lookup\('t', keep\)|map\(b: 'c', default: ''\))){0,3}\}){0,6}") {
            prop_assert!(text.parse::<Template>().is_ok());
        }
    }

    fn parsed_or_refused(text: &str) -> std::result::Result<(), TestCaseError> {
        if let Err(error) = text.parse::<Template>() {
            let within = 1..=text.chars().count() + 1;
            prop_assert!(within.contains(&error.position), "{error}");
        }
        Ok(())
    }
}
