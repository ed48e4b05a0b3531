//! Why a value does not fit the schema of its subject.

use std::fmt;

/// What does not fit, and where. Of a value it has nothing: the place is told by names of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaMismatch {
    /// What is wrong there.
    pub what: SchemaMismatchAt,
    /// From the inside out.
    way: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(Box<str>),
    Item,
    Member,
}

/// What does not fit. Completes "the value …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaMismatchAt {
    /// Or not UTF-8.
    #[error("is not JSON, or nested too deep")]
    NotJson,
    /// Another type of value is wanted: this one.
    #[error("is not {0}")]
    Wants(&'static str),
    /// A number that the type cannot hold.
    #[error("is beyond the range of {0}")]
    Range(&'static str),
    /// A decimal.
    #[error("has more digits than the schema's decimal")]
    Digits,
    /// A text.
    #[error("is no symbol of the schema's enum")]
    Symbol,
    /// Bytes, more or fewer.
    #[error("is not of the size that the schema says")]
    Size,
    /// A field that is not there.
    #[error("is missing, and the schema has no default for it")]
    Missing,
    /// An object.
    #[error("has a member that is no field of the record")]
    UnknownMember,
    /// No branch takes it.
    #[error("fits no branch of the schema's union")]
    NoBranch,
    /// Too many branches of unions would have to be tried.
    #[error("nests too many unions that could take it")]
    Ambiguous,
}

impl From<SchemaMismatchAt> for SchemaMismatch {
    fn from(what: SchemaMismatchAt) -> Self {
        Self {
            what,
            way: Vec::new(),
        }
    }
}

impl SchemaMismatch {
    pub(crate) fn in_field(mut self, name: &str) -> Self {
        self.way.push(Step::Field(name.into()));
        self
    }

    pub(crate) fn in_item(mut self) -> Self {
        self.way.push(Step::Item);
        self
    }

    pub(crate) fn in_member(mut self) -> Self {
        self.way.push(Step::Member);
        self
    }

    /// Where: `order.lines[].sku`, with `{}` for the values of a map; empty for the whole value.
    pub fn place(&self) -> String {
        let mut place = String::new();
        for step in self.way.iter().rev() {
            match step {
                Step::Field(name) => {
                    if !place.is_empty() {
                        place.push('.');
                    }
                    place.push_str(name);
                }
                Step::Item => place.push_str("[]"),
                Step::Member => place.push_str("{}"),
            }
        }
        place
    }
}

/// Completes "the value …".
impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        if !place.is_empty() {
            write!(f, "at {place:?} ")?;
        }
        self.what.fmt(f)
    }
}
