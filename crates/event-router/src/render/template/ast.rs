//! Templates as they are read, before they are compiled.

use std::collections::BTreeMap;
use std::fmt;

/// A text with columns in it: `{aggregate_type | lower}.events`.
///
/// The grammar is at the head of `render/template/mod.rs`. `Display` writes a text that reads as the
/// same template.
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    pub(super) pieces: Vec<Piece>,
}

/// The tables of the filter `lookup`, by name.
pub type Lookups = BTreeMap<String, BTreeMap<String, String>>;

/// The part of a record that a template makes, which gives NULL its meaning.
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
    /// A column and its filters.
    Column(String, Vec<Filter>),
}

/// A filter as it is written; [`Op::of`](super::filter::Op::of) gives its arguments a meaning.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Filter {
    /// One of [`FILTERS`].
    pub(super) name: &'static str,
    pub(super) arguments: Vec<Argument>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Argument {
    Text(String),
    Number(usize),
    Keep,
}

/// All filters and how they are written, in the order of the documentation.
pub(super) const FILTERS: [(&str, &str); 10] = [
    ("lower", "lower"),
    ("upper", "upper"),
    ("before", "before('separator')"),
    ("after", "after('separator')"),
    ("replace", "replace('old', 'new')"),
    ("default", "default('text')"),
    (
        "json",
        "json, or json('member', 0, …) with the way to what is meant",
    ),
    (
        "lookup",
        "lookup('table'), lookup('table', 'what others become') or lookup('table', keep)",
    ),
    ("text", "text"),
    ("optional", "optional"),
];

impl Template {
    /// The columns that it names, in order, repeated where they are.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Column(name, _) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// The one column that it is, as it stands in the row.
    pub(crate) fn column(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [Piece::Column(name, filters)] if filters.iter().all(Filter::is_optional) => Some(name),
            _ => None,
        }
    }

    /// The text, where no column has a part in it.
    pub(crate) fn constant(&self) -> Option<String> {
        let literal = |piece: &Piece| match piece {
            Piece::Literal(text) => Some(text.clone()),
            Piece::Column(..) => None,
        };
        self.pieces.iter().map(literal).collect()
    }

    /// Whether it is an empty text, whatever the row.
    pub(super) fn is_empty(&self) -> bool {
        let empty = |piece: &Piece| matches!(piece, Piece::Literal(text) if text.is_empty());
        self.pieces.iter().all(empty)
    }
}

impl Filter {
    pub(super) fn is_optional(&self) -> bool {
        self.name == "optional"
    }
}

impl Place {
    /// The part, if it cannot be left out.
    pub(super) const fn always_there(self) -> Option<&'static str> {
        match self {
            Self::Topic => Some("the topic"),
            Self::Key => Some("the key, which is null without it,"),
            Self::Value => Some("the value, which is null without it,"),
            Self::Timestamp => Some("the timestamp, which is the time of production without it,"),
            Self::Member | Self::Header | Self::Partition => None,
        }
    }
}

// === Display ===

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pieces = self.pieces.iter().peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Literal(text) if text.is_empty() => f.write_str("{''}")?,
                Piece::Literal(text) => {
                    let text = text.replace('{', "{{").replace('}', "}}");
                    let plain = text.trim_end_matches('$');
                    let dollars = text.get(plain.len()..).unwrap_or_default();
                    // A column behind them would read as `${name}`.
                    if !dollars.is_empty() && pieces.peek().is_some() {
                        write!(f, "{plain}{{'{dollars}'}}")?;
                    } else {
                        f.write_str(&text)?;
                    }
                }
                Piece::Column(name, filters) => {
                    // A name needs no quotes if the grammar takes it as one.
                    if name.starts_with(begins_name) && name.chars().all(continues_name) {
                        write!(f, "{{{name}")?;
                    } else {
                        write!(f, "{{\"{}\"", name.replace('"', "\"\""))?;
                    }
                    for filter in filters {
                        write!(f, " | {filter}")?;
                    }
                    f.write_str("}")?;
                }
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

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if self.arguments.is_empty() {
            return Ok(());
        }
        let arguments: Vec<String> = self.arguments.iter().map(ToString::to_string).collect();
        write!(f, "({})", arguments.join(", "))
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            Self::Number(number) => number.fmt(f),
            Self::Keep => f.write_str("keep"),
        }
    }
}

pub(super) fn begins_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || (!c.is_ascii() && c.is_alphabetic())
}

/// Like Postgres' identifiers, without folding to lower case.
pub(super) fn continues_name(c: char) -> bool {
    begins_name(c) || c.is_ascii_digit() || c == '$'
}

// === Objects ===

/// The template of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueTemplate {
    /// A text, or a column as it is.
    Text(Template),
    /// A JSON object.
    Object(Object),
}

/// A JSON object with these members, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Object {
    /// Names and values.
    pub members: Vec<(String, Member)>,
}

/// A member of an [`Object`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// A template.
    Template(Template),
    /// The same for all rows.
    Literal(Scalar),
    /// An object in the object.
    Object(Object),
}

/// A JSON value that needs no quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
        }
    }
}

impl Object {
    /// All templates in it.
    pub(super) fn templates(&self) -> Vec<&Template> {
        let members = self.members.iter().flat_map(|(_, member)| match member {
            Member::Template(template) => vec![template],
            Member::Literal(_) => Vec::new(),
            Member::Object(object) => object.templates(),
        });
        members.collect()
    }
}
