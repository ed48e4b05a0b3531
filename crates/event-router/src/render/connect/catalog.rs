//! The facts about a table that pgoutput's Relation message does not have.

use walrelay_lsn::TypeOid;

/// A table as the catalogs have it: whether columns are NOT NULL, their defaults, and what types
/// made by users are. A [`Router`](crate::Router) works without; it then takes every column as
/// optional and types made by users as texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its columns, in any order.
    pub columns: Vec<ColumnFacts>,
}

/// A column of a [`TableFacts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFacts {
    /// Its name.
    pub name: String,
    /// Its type. Facts of a column whose type is another by now are not used.
    pub type_facts: TypeFacts,
    /// Whether it, or the domain that it is of, refuses NULL.
    pub not_null: bool,
    /// `pg_get_expr` of its default, in a session with `DateStyle = ISO`.
    pub default: Option<String>,
}

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeFacts {
    /// `pg_type.oid`.
    pub oid: TypeOid,
    /// `pg_type.typname`.
    pub name: String,
    /// Its kind.
    pub kind: TypeKind,
}

/// The kind of a type (`pg_type.typtype`, `typcategory`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypeKind {
    /// A base type, of Postgres or of an extension.
    Base,
    /// An enum, with its labels in their order.
    Enum(Vec<String>),
    /// A domain over another type, with that type's modifier.
    Domain(Box<TypeFacts>, i32),
    /// An array.
    Array(Box<TypeFacts>),
    /// Anything else: a composite, a range, a multirange.
    Other,
}

/// Of domains in each other.
const MAX_DEPTH: usize = 16;

impl TypeFacts {
    /// The type under the domains, and its modifier.
    pub(crate) fn base(&self, modifier: i32) -> (&Self, i32) {
        let (mut facts, mut modifier) = (self, modifier);
        for _ in 0..MAX_DEPTH {
            let TypeKind::Domain(base, of_domain) = &facts.kind else {
                break;
            };
            facts = base;
            modifier = *of_domain;
        }
        (facts, modifier)
    }
}
