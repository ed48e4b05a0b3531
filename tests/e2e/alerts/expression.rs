//! The part of PromQL that the alerts use, evaluated over scrapes.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;
use std::time::Duration;

/// Divisor of the ranges in expressions.
const FASTER: u32 = 40;

pub(super) type Labels = BTreeMap<String, String>;
type Vector = Vec<(Labels, f64)>;

/// The metrics that were served at one moment.
#[derive(Debug)]
pub(super) struct Scrape {
    at: Duration,
    /// Name, labels, value.
    series: Vec<(String, Labels, f64)>,
}

impl Scrape {
    /// Parses the text of a scrape at this time, or `None` for a failed one. Adds the series `up`,
    /// as Prometheus does.
    pub(super) fn parse(at: Duration, text: Option<&str>, job: &str) -> Self {
        let up = f64::from(u8::from(text.is_some()));
        let labels = Labels::from([("job".to_owned(), job.to_owned())]);
        let mut series = vec![("up".to_owned(), labels, up)];
        let lines = text.unwrap_or_default().lines();
        series.extend(lines.filter(|line| !line.starts_with('#')).map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = selector(name);
            (name, labels, value.parse().expect("a number"))
        }));
        Self { at, series }
    }
}

/// Parses `name{label="value",…}`. No value here contains a quote.
fn selector(text: &str) -> (String, Labels) {
    let (name, rest) = text.split_once('{').unwrap_or((text, "}"));
    let pairs = rest
        .trim_end_matches('}')
        .split("\",")
        .filter(|pair| !pair.is_empty());
    let labels = pairs.map(|pair| {
        let (label, value) = pair.split_once("=\"").expect("a label");
        (label.to_owned(), value.trim_end_matches('"').to_owned())
    });
    (name.to_owned(), labels.collect())
}

#[derive(Debug)]
pub(super) enum Expression {
    Number(f64),
    Series(String, Labels),
    /// A function over a range of a series.
    Over(String, Box<Expression>, Duration),
    Binary(Box<Expression>, String, Box<Expression>),
}

impl Expression {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Tokens(text.chars().peekable());
        let parsed = Self::binary(&mut tokens, 0)?;
        match tokens.next() {
            None => Ok(parsed),
            Some(token) => Err(format!("{token:?} is not understood in {text}")),
        }
    }

    /// Parses binary operators by precedence, the weakest first.
    fn binary(tokens: &mut Tokens<'_>, level: usize) -> Result<Self, String> {
        const LEVELS: [&[&str]; 3] = [&["and"], &["==", "<", ">"], &["*"]];
        let Some(operators) = LEVELS.get(level) else {
            return Self::single(tokens);
        };
        let mut left = Self::binary(tokens, level + 1)?;
        while let Some(operator) = tokens
            .peek()
            .filter(|token| operators.contains(&token.as_str()))
        {
            tokens.next();
            let right = Self::binary(tokens, level + 1)?;
            left = Self::Binary(Box::new(left), operator, Box::new(right));
        }
        Ok(left)
    }

    fn single(tokens: &mut Tokens<'_>) -> Result<Self, String> {
        let token = tokens.next().ok_or("the expression ends early")?;
        if let Ok(number) = token.parse() {
            return Ok(Self::Number(number));
        }
        if !matches!(token.as_str(), "delta" | "increase" | "changes") {
            let (name, labels) = selector(&token);
            return Ok(Self::Series(name, labels));
        }
        let argument = tokens
            .next()
            .filter(|token| token == "(")
            .and_then(|_| tokens.next());
        let argument = argument.ok_or("a function needs an argument")?;
        let (series, range) = argument.split_once('[').ok_or("a function needs a range")?;
        let minutes: u64 = range
            .trim_end_matches("m]")
            .parse()
            .map_err(|_| format!("{range} is no range"))?;
        if tokens.next().as_deref() != Some(")") {
            return Err("a function is not closed".to_owned());
        }
        let (name, labels) = selector(series);
        let series = Box::new(Self::Series(name, labels));
        Ok(Self::Over(
            token,
            series,
            Duration::from_secs(60 * minutes) / FASTER,
        ))
    }

    pub(super) fn evaluate(&self, scrapes: &[Scrape]) -> Vector {
        let Some(last) = scrapes.last() else {
            return Vec::new();
        };
        match self {
            Self::Number(number) => vec![(Labels::new(), *number)],
            Self::Series(name, wanted) => {
                let series = last.series.iter().filter(|(found, labels, _)| {
                    found == name
                        && wanted
                            .iter()
                            .all(|(label, value)| labels.get(label) == Some(value))
                });
                series
                    .map(|(_, labels, value)| (labels.clone(), *value))
                    .collect()
            }
            Self::Over(function, series, range) => {
                let from = last.at.saturating_sub(*range);
                let within = scrapes
                    .iter()
                    .position(|scrape| scrape.at >= from)
                    .unwrap_or(0);
                over(function, series, &scrapes[within..])
            }
            Self::Binary(left, operator, right) => {
                let (lefts, rights) = (left.evaluate(scrapes), right.evaluate(scrapes));
                let alone = matches!(**left, Self::Number(_)) || matches!(**right, Self::Number(_));
                let mut found = Vec::new();
                for (labels, a) in &lefts {
                    for (_, b) in rights
                        .iter()
                        .filter(|(others, _)| alone || others == labels)
                    {
                        let labels = if labels.is_empty() {
                            &rights[0].0
                        } else {
                            labels
                        };
                        match operator.as_str() {
                            "*" => found.push((labels.clone(), a * b)),
                            "==" if a.total_cmp(b).is_eq() => found.push((labels.clone(), *a)),
                            "<" if a < b => found.push((labels.clone(), *a)),
                            ">" if a > b => found.push((labels.clone(), *a)),
                            "and" => found.push((labels.clone(), *a)),
                            _ => {}
                        }
                    }
                }
                found
            }
        }
    }
}

/// Applies a function to the values of each series within the range. A series with one value has no
/// difference.
fn over(function: &str, series: &Expression, scrapes: &[Scrape]) -> Vector {
    let mut values: BTreeMap<Labels, Vec<f64>> = BTreeMap::new();
    for at in 1..=scrapes.len() {
        for (labels, value) in series.evaluate(&scrapes[..at]) {
            values.entry(labels).or_default().push(value);
        }
    }
    let several = values.into_iter().filter(|(_, values)| values.len() > 1);
    several
        .map(|(labels, values)| {
            let steps = || values.windows(2).map(|pair| pair[1] - pair[0]);
            let result = match function {
                "changes" => steps().filter(|step| *step != 0.0).count() as f64,
                // A counter that restarts counts from zero.
                "increase" => values
                    .windows(2)
                    .map(|p| if p[1] < p[0] { p[1] } else { p[1] - p[0] })
                    .sum(),
                _ => steps().sum(),
            };
            (labels, result)
        })
        .collect()
}

/// Words, operators and brackets. A selector with its labels and range is one word.
struct Tokens<'t>(Peekable<Chars<'t>>);

impl Tokens<'_> {
    fn peek(&self) -> Option<String> {
        Tokens(self.0.clone()).next()
    }

    fn next(&mut self) -> Option<String> {
        while self.0.next_if(|c| c.is_whitespace()).is_some() {}
        let first = self.0.next()?;
        let mut token = String::from(first);
        let more: fn(char) -> bool = match first {
            '(' | ')' | '*' | '<' | '>' => return Some(token),
            '=' => |c| c == '=',
            _ => |c| c.is_ascii_alphanumeric() || "_.{}[]=\"\"".contains(c),
        };
        let mut braces = 0;
        while let Some(c) = self.0.next_if(|c| braces > 0 || more(*c)) {
            braces += i32::from(c == '{') - i32::from(c == '}');
            token.push(c);
        }
        Some(token)
    }
}

#[test]
fn expressions_are_evaluated_as_prometheus_does() {
    let scrape = |counter: u64, gauge: &str| {
        Scrape::parse(
            Duration::ZERO,
            Some(&format!(
                "# HELP x\nc_total{{class=\"a\"}} {counter}\ng {gauge}\nl 10\n"
            )),
            "j",
        )
    };
    let scrapes = [scrape(3, "1"), scrape(5, "7"), scrape(2, "4.5")];
    let value = |text: &str| {
        let vector = Expression::parse(text).expect(text).evaluate(&scrapes);
        vector.first().map(|(_, value)| *value)
    };
    for (text, expected) in [
        ("g", Some(4.5)),
        ("g == 4.5", Some(4.5)),
        ("g > 4.5", None),
        ("g < 0.5 * l", Some(4.5)),
        ("g > 0.5 * l", None),
        ("c_total{class=\"a\"} == 2", Some(2.0)),
        ("c_total{class=\"b\"} == 2", None),
        ("increase(c_total[15m]) > 0", Some(4.0)),
        ("delta(g[5m]) > 0 and delta(l[5m]) == 0", Some(3.5)),
        ("delta(g[5m]) > 0 and delta(l[5m]) > 0", None),
        ("changes(g[15m]) > 1", Some(2.0)),
        ("up{job=\"j\"} == 1", Some(1.0)),
        ("up{job=\"k\"} == 1", None),
    ] {
        assert_eq!(value(text), expected, "{text}");
    }
    assert!(Expression::parse("sum(g)").is_err());
}
