//! Mismatches between a value and the schema of its subject.

use std::fmt;

/// What does not fit, and where. It contains names of the schema, and nothing of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaMismatch {
    /// What is wrong there.
    pub what: SchemaMismatchAt,
    place: String,
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
        let place = String::new();
        Self { what, place }
    }
}

impl SchemaMismatch {
    /// The mismatch is within this part of a value: a field, [`ITEM`](Self::ITEM) or
    /// [`MEMBER`](Self::MEMBER).
    pub(crate) fn within(mut self, outer: &str) -> Self {
        let inner = &self.place;
        let dot = if inner.is_empty() || inner.starts_with(['[', '{']) {
            ""
        } else {
            "."
        };
        self.place = [outer, dot, inner].concat();
        self
    }

    pub(crate) const ITEM: &str = "[]";
    pub(crate) const MEMBER: &str = "{}";

    /// Where: `order.lines[].sku`, with `{}` for the values of a map; empty for the whole value.
    pub fn place(&self) -> &str {
        &self.place
    }
}

/// Completes "the value …".
impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "at {:?} ", self.place)?;
        }
        self.what.fmt(f)
    }
}
