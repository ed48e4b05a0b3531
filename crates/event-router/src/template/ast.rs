use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::error::{TemplateError, TemplateProblem};
use super::json::Step;
use super::parse;

/// A text with columns in it: `{aggregate_type | lower}.events`.
///
/// The grammar is that at the head of `template/mod.rs`. What is written back by
/// `Display` reads as the same template.
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    pub(super) pieces: Vec<Piece>,
}

/// Tables that the filter `lookup` knows: by name, what each value becomes.
pub type Lookups = BTreeMap<String, BTreeMap<String, String>>;

/// What a template is for. It decides what NULL means there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The topic. NULL: the row is unroutable.
    Topic,
    /// The record's key. NULL: the null key.
    Key,
    /// The record's value. NULL: the null value, a tombstone.
    Value,
    /// A member of a value that is built as a JSON object. NULL: `null`, or left out.
    Member,
    /// A header. NULL: present and null, or left out.
    Header,
    /// The partition. NULL: the row is unroutable, or left to the sink's partitioner.
    Partition,
    /// The record's timestamp. NULL: the time of production.
    Timestamp,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(String),
    Value(Expression),
}

/// A column and what is done to its value.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Expression {
    pub(super) source: Source,
    pub(super) filters: Vec<(At, Filter)>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Source {
    Column(String),
    Text(String),
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Filter {
    Lower,
    Upper,
    Before(String),
    After(String),
    Replace(String, String),
    Default(String),
    Json(Vec<Step>),
    Lookup { table: String, otherwise: Otherwise },
    Text,
    Optional,
}

/// What becomes of a value that a lookup table does not have.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Otherwise {
    /// The row is unroutable.
    Refuse,
    /// It stays as it is.
    Keep,
    /// This.
    Text(String),
}

/// Where something stands in the text. Says nothing of what it is: equal to any other.
#[derive(Clone, Copy)]
pub(super) struct At(pub(super) usize);

impl PartialEq for At {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for At {}

/// All filters, in the order of the documentation.
pub(super) const FILTERS: &[&str] = &[
    "lower", "upper", "before", "after", "replace", "default", "json", "lookup", "text", "optional",
];

// === impl Template ===

impl Template {
    /// Reads a template for a place.
    pub fn parse(text: &str, place: Place, lookups: &Lookups) -> Result<Self, TemplateError> {
        let template: Self = text.parse()?;
        template.check(place, lookups)?;
        Ok(template)
    }

    /// Whether it can stand in this place, and all its lookup tables exist.
    pub fn check(&self, place: Place, lookups: &Lookups) -> Result<(), TemplateError> {
        let error = |position, problem| Err(TemplateError { position, problem });
        let needed = matches!(place, Place::Topic | Place::Partition | Place::Timestamp);
        if needed && self.is_empty() {
            return error(1, TemplateProblem::Empty);
        }
        for expression in self.expressions() {
            let last = expression.filters.len().saturating_sub(1);
            for (index, (At(position), filter)) in expression.filters.iter().enumerate() {
                match filter {
                    Filter::Lookup { table, .. } if !lookups.contains_key(table) => {
                        let known: Vec<String> = lookups.keys().cloned().collect();
                        let problem = TemplateProblem::UnknownTable {
                            name: table.clone(),
                            nearest: nearest(table, known.iter().map(String::as_str)),
                            known,
                        };
                        return error(*position, problem);
                    }
                    Filter::Optional if index < last => {
                        return error(*position, TemplateProblem::OptionalNotLast);
                    }
                    Filter::Optional => {
                        if let Some(what) = place.always_there() {
                            let problem = TemplateProblem::NothingToLeaveOut(what);
                            return error(*position, problem);
                        }
                        if self.pieces.len() > 1 {
                            return error(*position, TemplateProblem::OptionalInText);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The columns that it names, in order, repeated where they are.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.expressions()
            .filter_map(|expression| match &expression.source {
                Source::Column(name) => Some(name.as_str()),
                Source::Text(_) => None,
            })
    }

    /// The one column that it is, as it stands in the row.
    pub(crate) fn column(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [
                Piece::Value(Expression {
                    source: Source::Column(name),
                    filters,
                }),
            ] if filters
                .iter()
                .all(|(_, filter)| *filter == Filter::Optional) =>
            {
                Some(name)
            }
            _ => None,
        }
    }

    /// Whether it is an empty text, whatever the row.
    fn is_empty(&self) -> bool {
        self.pieces.iter().all(|piece| match piece {
            Piece::Literal(text) => text.is_empty(),
            Piece::Value(expression) => match &expression.source {
                Source::Text(text) => text.is_empty(),
                Source::Column(_) => false,
            },
        })
    }

    fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Value(expression) => Some(expression),
        })
    }
}

impl Place {
    /// What stands there, where it cannot be left out.
    const fn always_there(self) -> Option<&'static str> {
        match self {
            Self::Topic => Some("the topic"),
            Self::Key => Some("the key, which is null without it,"),
            Self::Value => Some("the value, which is null without it,"),
            Self::Timestamp => Some("the timestamp, which is the time of production without it,"),
            Self::Member | Self::Header | Self::Partition => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Topic => "the topic",
            Self::Key => "the key",
            Self::Value => "the value",
            Self::Member => "a member of the value",
            Self::Header => "a header",
            Self::Partition => "the partition",
            Self::Timestamp => "the timestamp",
        })
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    /// By the grammar alone; [`check`](Template::check) looks at the rest.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::template(text)
    }
}

// === Display ===

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => {
                    f.write_str(&text.replace('{', "{{").replace('}', "}}"))?;
                }
                Piece::Value(expression) => write!(f, "{{{expression}}}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({:?})", self.to_string())
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Column(name) if parse::is_plain(name) => f.write_str(name)?,
            Source::Column(name) => write!(f, "\"{}\"", name.replace('"', "\"\""))?,
            Source::Text(text) => write!(f, "{}", Quoted(text))?,
        }
        for (_, filter) in &self.filters {
            write!(f, " | {filter}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lower => f.write_str("lower"),
            Self::Upper => f.write_str("upper"),
            Self::Before(separator) => write!(f, "before({})", Quoted(separator)),
            Self::After(separator) => write!(f, "after({})", Quoted(separator)),
            Self::Replace(old, new) => write!(f, "replace({}, {})", Quoted(old), Quoted(new)),
            Self::Default(text) => write!(f, "default({})", Quoted(text)),
            Self::Json(steps) if steps.is_empty() => f.write_str("json"),
            Self::Json(steps) => {
                f.write_str("json(")?;
                for (index, step) in steps.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    match step {
                        Step::Member(name) => write!(f, "{comma}{}", Quoted(name))?,
                        Step::Item(item) => write!(f, "{comma}{item}")?,
                    }
                }
                f.write_str(")")
            }
            Self::Lookup { table, otherwise } => match otherwise {
                Otherwise::Refuse => write!(f, "lookup({})", Quoted(table)),
                Otherwise::Keep => write!(f, "lookup({}, keep)", Quoted(table)),
                Otherwise::Text(text) => write!(f, "lookup({}, {})", Quoted(table), Quoted(text)),
            },
            Self::Text => f.write_str("text"),
            Self::Optional => f.write_str("optional"),
        }
    }
}

struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0.replace('\'', "''"))
    }
}

/// The name that somebody may have meant.
pub(super) fn nearest<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    known
        .map(|name| (strsim::jaro_winkler(wanted, name), name))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name.to_owned())
}
