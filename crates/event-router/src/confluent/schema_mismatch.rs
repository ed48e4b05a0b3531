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

/// What does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaMismatchAt {
    /// It is not JSON, nested too deep, or not UTF-8.
    NotJson,
    /// Another type of value is wanted: this one.
    Wants(&'static str),
    /// A number that the type cannot hold.
    Range(&'static str),
    /// A decimal that has more digits than the schema gives it.
    Digits,
    /// A text that is no symbol of the enum.
    Symbol,
    /// Bytes, more or fewer than the schema says.
    Size,
    /// A field that is not there, and has no default.
    Missing,
    /// The object has a member that is no field of the record.
    UnknownMember,
    /// No branch of the union takes it.
    NoBranch,
    /// Too many branches of unions would have to be tried.
    Ambiguous,
}

impl SchemaMismatch {
    pub(super) fn of(what: SchemaMismatchAt) -> Self {
        Self {
            what,
            way: Vec::new(),
        }
    }

    pub(super) fn in_field(mut self, name: &str) -> Self {
        self.way.push(Step::Field(name.into()));
        self
    }

    pub(super) fn in_item(mut self) -> Self {
        self.way.push(Step::Item);
        self
    }

    pub(super) fn in_member(mut self) -> Self {
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
        match self.what {
            SchemaMismatchAt::NotJson => f.write_str("is not JSON, or nested too deep"),
            SchemaMismatchAt::Wants(what) => write!(f, "is not {what}"),
            SchemaMismatchAt::Range(what) => write!(f, "is beyond the range of {what}"),
            SchemaMismatchAt::Digits => f.write_str("has more digits than the schema's decimal"),
            SchemaMismatchAt::Symbol => f.write_str("is no symbol of the schema's enum"),
            SchemaMismatchAt::Size => f.write_str("is not of the size that the schema says"),
            SchemaMismatchAt::Missing => {
                f.write_str("is missing, and the schema has no default for it")
            }
            SchemaMismatchAt::UnknownMember => {
                f.write_str("has a member that is no field of the record")
            }
            SchemaMismatchAt::NoBranch => f.write_str("fits no branch of the schema's union"),
            SchemaMismatchAt::Ambiguous => f.write_str("nests too many unions that could take it"),
        }
    }
}
