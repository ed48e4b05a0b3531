//! Mismatches between a value and the schema of its subject.

use std::fmt;

/// A mismatch and its place in the value. Contains names of the schema, but nothing of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaMismatch {
    /// The part that does not fit.
    pub what: SchemaMismatchAt,
    /// The path to the mismatch, such as `order.lines[].sku`; `{}` stands for the values of a map.
    /// Empty for the whole value.
    pub place: String,
}

/// The part of a value that does not fit the schema. Completes "the value …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaMismatchAt {
    /// The document is not JSON, nested too deep, or not UTF-8.
    #[error("is not JSON, or nested too deep")]
    NotJson,
    /// A value of another type than this one.
    #[error("is not {0}")]
    Wants(&'static str),
    /// A number out of the range of this type.
    #[error("is beyond the range of {0}")]
    Range(&'static str),
    /// A decimal with too many digits.
    #[error("has more digits than the schema's decimal")]
    Digits,
    /// A text that is no symbol of the enum.
    #[error("is no symbol of the schema's enum")]
    Symbol,
    /// Bytes of another length than the schema's.
    #[error("is not of the size that the schema says")]
    Size,
    /// A missing field that has no default.
    #[error("is missing, and the schema has no default for it")]
    Missing,
    /// An object with a member that is no field of the record.
    #[error("has a member that is no field of the record")]
    UnknownMember,
    /// A value that no branch of the union accepts.
    #[error("fits no branch of the schema's union")]
    NoBranch,
    /// A value for which too many branches of nested unions would have to be tried.
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
    /// Puts `outer` before the place: the part of a value that has the mismatch. `outer` is a
    /// field, [`ITEM`](Self::ITEM) or [`MEMBER`](Self::MEMBER).
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
