//! Templates as they are read, before they are compiled.

use std::collections::BTreeMap;
use std::fmt;

use crate::value::json::Step;

/// A text with columns in it: `{aggregate_type | lower}.events`.
///
/// The grammar is that at the head of `render/template/mod.rs`. What is written back by
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

#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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

// === impl Template ===

impl Template {
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

    /// The text, where no column has a part in it.
    pub(crate) fn constant(&self) -> Option<String> {
        let literal = |piece: &Piece| match piece {
            Piece::Literal(text) => Some(text.clone()),
            Piece::Value(_) => None,
        };
        self.pieces.iter().map(literal).collect()
    }

    /// Whether it is an empty text, whatever the row.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.iter().all(|piece| match piece {
            Piece::Literal(text) => text.is_empty(),
            Piece::Value(expression) => match &expression.source {
                Source::Text(text) => text.is_empty(),
                Source::Column(_) => false,
            },
        })
    }

    pub(super) fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Value(expression) => Some(expression),
        })
    }
}

impl Filter {
    pub(super) const fn lookup(table: String, otherwise: Otherwise) -> Self {
        Self::Lookup { table, otherwise }
    }
}

impl Place {
    /// What stands there, where it cannot be left out.
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
            Source::Column(name) if is_plain(name) => f.write_str(name)?,
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
                let steps = steps.iter().map(|step| match step {
                    Step::Member(name) => Quoted(name).to_string(),
                    Step::Item(item) => item.to_string(),
                });
                write!(f, "json({})", steps.collect::<Vec<_>>().join(", "))
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

pub(super) fn begins_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || (!c.is_ascii() && c.is_alphabetic())
}

/// As Postgres has its identifiers, but for the folding to lower case.
pub(super) fn continues_name(c: char) -> bool {
    begins_name(c) || c.is_ascii_digit() || c == '$'
}

/// Whether a column's name needs no quotes.
fn is_plain(name: &str) -> bool {
    name.starts_with(begins_name) && name.chars().all(continues_name)
}

// === Objects ===

/// What a value is made of.
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
    /// Of the row.
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
