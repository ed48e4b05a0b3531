//! Facts about a table from the catalogs, which pgoutput's Relation message does not contain.

use std::collections::HashMap;

use walrelay_lsn::TypeOid;

/// Facts about a table from the catalogs: NOT NULL, defaults, and the kinds of user-defined types.
/// A [`Router`](crate::Router) works without them: every column is then optional, and every
/// user-defined type is read as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Schema of the table.
    pub schema: String,
    /// Name of the table.
    pub name: String,
    /// Columns of the table, in any order.
    pub columns: Vec<ColumnFacts>,
}

impl TableFacts {
    /// Returns the type below each domain of the columns.
    pub(crate) fn domains(&self) -> HashMap<TypeOid, TypeOid> {
        let types = self.columns.iter().map(|column| &column.type_facts);
        let domains = types.filter(|facts| matches!(facts.kind, TypeKind::Domain(..)));
        domains
            .map(|facts| (facts.oid, facts.base(0).0.oid))
            .collect()
    }
}

/// A column of a [`TableFacts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFacts {
    /// Name of the column.
    pub name: String,
    /// Type of the column. Facts are ignored if the column has another type by now.
    pub type_facts: TypeFacts,
    /// True if the column, or its domain, is NOT NULL.
    pub not_null: bool,
    /// Default of the column, as `pg_get_expr` writes it in a session with `DateStyle = ISO`.
    pub default: Option<String>,
}

/// Facts about a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeFacts {
    /// The type's OID (`pg_type.oid`).
    pub oid: TypeOid,
    /// The type's name (`pg_type.typname`).
    pub name: String,
    /// Kind of the type.
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

/// Limit of domains over domains.
const MAX_DEPTH: usize = 16;

impl TypeFacts {
    /// Returns the type below all domains, and its modifier.
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
