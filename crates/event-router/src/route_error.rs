use std::fmt;

use walrelay_lsn::RelationId;
use walrelay_sink::{Disposition, Poison};

use crate::{Role, SchemaMismatch, Target, ValueError};

/// Why a row cannot be routed. Names table and column, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The row's table was not announced since the connection began, or was refused then.
    #[error("a row of the table with OID {relation} came before the table was announced")]
    UnknownRelation {
        /// The table, as `pg_class.oid`.
        relation: RelationId,
    },
    /// The row is not of the table as it was announced.
    #[error("a row of table {table} has {found} columns, the table was announced with {announced}")]
    ColumnCount {
        /// `schema.table`.
        table: String,
        /// By the last Relation message.
        announced: usize,
        /// In the row.
        found: usize,
    },
    /// A value is not what is needed.
    #[error("table {table}: column {column:?}{} {why} in this row", Needed(role))]
    Value {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// What it is needed for.
        role: Role,
        /// What is wrong with it.
        why: ValueError,
    },
    /// The value is to be encoded, and the schema of its subject is not known. The row can be read once
    /// the router was told of it: [`Router::learn`](crate::Router::learn).
    #[error("the schema of subject {subject:?} is not known")]
    UnknownSchema {
        /// The subject.
        subject: String,
    },
    /// The value does not fit the schema of its subject.
    #[error("table {table}: the value {schema_mismatch}, by the schema of subject {subject:?}")]
    SchemaMismatch {
        /// `schema.table`.
        table: String,
        /// The subject.
        subject: String,
        /// What is wrong.
        schema_mismatch: SchemaMismatch,
        /// There may be a later schema, which it may fit.
        may_change: bool,
    },
}

impl RouteError {
    /// The same row gives the same error again.
    pub const fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }

    /// Whether it is this row that is wrong, and in which way. A row of a table that was announced
    /// otherwise is not: there the stream is not understood.
    pub const fn poison(&self) -> Option<Poison> {
        match self {
            Self::UnknownRelation { .. }
            | Self::ColumnCount { .. }
            | Self::UnknownSchema { .. } => None,
            Self::SchemaMismatch { .. } => Some(Poison::Undecodable),
            Self::Value { role, why, .. } => Some(why.poison(role)),
        }
    }
}

struct Needed<'a>(&'a Role);

impl fmt::Display for Needed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Role::RouteBy | Role::Template(Target::Topic) => f.write_str(" chooses the topic and"),
            role => write!(f, ", needed for {role},"),
        }
    }
}
