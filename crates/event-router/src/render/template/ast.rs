//! Parsed templates, before they are compiled for a table.

use std::collections::BTreeMap;

/// A text that contains columns, such as `{aggregate_type | lower}.events`.
///
/// `render/template/mod.rs` has the grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub(super) pieces: Vec<Piece>,
}

/// The tables of the filter `lookup`, by name.
pub type Lookups = BTreeMap<String, BTreeMap<String, String>>;

/// The part of a record that a template makes. It decides what NULL means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TemplateTarget {
    /// The topic. NULL: the row is unroutable.
    Topic,
    /// A part of the sink's address. NULL: the row is unroutable.
    Address,
    /// The record's key. NULL: the null key.
    Key,
    /// The record's value. NULL: the null value, a tombstone.
    Value,
    /// A member of a value that is a JSON object. NULL: `null`, or left out.
    Member,
    /// A header. NULL: a null header, or left out.
    Header,
    /// The partition. NULL: the row is unroutable, or the sink's partitioner chooses.
    Partition,
    /// The record's timestamp. NULL: the time of production.
    Timestamp,
}

/// The form of a value in an address. A value is no token of a subject if it is empty, or has a dot, a
/// wildcard (`*`, `>`), a blank or a control character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// The row is unroutable if the value is no token.
    Refuse,
    /// Each such character is replaced by `_`, and so is the empty value. Two values may become one
    /// token.
    Replace,
    /// Every byte but the unreserved ones of RFC 3986 is percent-encoded. The row is unroutable if the
    /// value is empty, `.` or `..`.
    Url,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(String),
    /// A column and its filters.
    Column(String, Vec<Filter>),
}

/// A filter as written; [`Op::of`](super::filter::Op::of) interprets its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    /// One of the names in [`FILTERS`].
    pub(super) name: &'static str,
    pub(super) arguments: Vec<Argument>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Argument {
    Text(String),
    Number(usize),
    Keep,
    /// A value and its replacement; `None` for all other values.
    Entry(Option<String>, String),
}

/// The filters and their usage, in the order of the documentation.
pub(super) const FILTERS: [(&str, &str); 11] = [
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
    ("map", "map(value: 'replacement', …, default: 'others')"),
    ("text", "text"),
    ("optional", "optional"),
];

impl Template {
    /// Returns the columns that the template reads, in order, with repetitions.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Column(name, _) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// Returns the column, if the template is one column without filters that change it.
    pub(crate) fn column(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [Piece::Column(name, filters)] if filters.iter().all(Filter::is_optional) => Some(name),
            _ => None,
        }
    }

    /// Returns the text, if the template reads no column.
    pub fn constant(&self) -> Option<String> {
        let literal = |piece: &Piece| match piece {
            Piece::Literal(text) => Some(text.clone()),
            Piece::Column(..) => None,
        };
        self.pieces.iter().map(literal).collect()
    }
}

impl Filter {
    pub(super) fn is_optional(&self) -> bool {
        self.name == "optional"
    }
}

impl TemplateTarget {
    /// Returns the part in words, if it cannot be left out.
    pub(super) const fn always_present(self) -> Option<&'static str> {
        match self {
            Self::Topic => Some("the topic"),
            Self::Address => Some("the address"),
            Self::Key => Some("the key, which is null without it,"),
            Self::Value => Some("the value, which is null without it,"),
            Self::Timestamp => Some("the timestamp, which is the time of production without it,"),
            Self::Member | Self::Header | Self::Partition => None,
        }
    }
}

pub(super) fn begins_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || (!c.is_ascii() && c.is_alphabetic())
}

/// Returns true if the character continues an identifier as in Postgres, but case-sensitive.
pub(super) fn continues_name(c: char) -> bool {
    begins_name(c) || c.is_ascii_digit() || c == '$'
}

// === Objects ===

/// The template of a record's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueTemplate {
    /// A text, or a column unchanged.
    Text(Template),
    /// A JSON object.
    Object(Object),
}

/// A template of a JSON object, with its members in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Object {
    /// Names and values of the members.
    pub members: Vec<(String, Member)>,
}

/// A member of an [`Object`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// A template.
    Template(Template),
    /// The constant `true` or `false`.
    Boolean(bool),
    /// A constant integer.
    Integer(i64),
    /// A nested object.
    Object(Object),
}

impl Object {
    /// Returns all templates in the object and in nested ones.
    pub(super) fn templates(&self) -> Vec<&Template> {
        let members = self.members.iter().flat_map(|(_, member)| match member {
            Member::Template(template) => vec![template],
            Member::Boolean(_) | Member::Integer(_) => Vec::new(),
            Member::Object(object) => object.templates(),
        });
        members.collect()
    }
}
