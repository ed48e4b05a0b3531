//! Errors of tables and rows that cannot be routed.

use walrelay_lsn::RelationId;
use walrelay_sink::Poison;

use super::role::{Role, Target};
use super::schema_mismatch::SchemaMismatch;
use crate::value::{ValueError, types};

/// The reason why no row of a table can be routed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The table has no column of the name that an option has.
    #[error(
        "table {table} has no column {column:?} for {role} (option {}); its columns are {}{}",
        role.option(),
        list(columns),
        did_you_mean(nearest.as_deref())
    )]
    MissingColumn {
        /// The table as `schema.table`.
        table: String,
        /// The missing column.
        column: String,
        /// Purpose of the column.
        role: Role,
        /// The columns that the publication sends, in the table's order.
        columns: Vec<String>,
        /// The column of the most similar name.
        nearest: Option<String>,
    },
    /// This version does not support the column's type for its purpose.
    #[error(
        "column {column:?} of table {table} is of type {}, which is not supported for {role} (option {}) in this version: {}",
        types::described(*type_oid),
        role.option(),
        supported(role)
    )]
    UnsupportedType {
        /// The table as `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// Purpose of the column.
        role: Role,
        /// Type of the column, `pg_type.oid`.
        type_oid: u32,
    },
    /// The filter `default` has a value of another type than the column, which would make invalid
    /// JSON.
    #[error(
        "the default of column {column:?} of table {table}, which is of type {}, is none for {role} (option {}): write a value of that type, or make it a text with the filter text before it",
        types::described(*type_oid),
        role.option()
    )]
    Default {
        /// The table as `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// Purpose of the column.
        role: Role,
        /// Type of the column, `pg_type.oid`.
        type_oid: u32,
    },
}

impl PlanError {
    /// Returns the kind of poison that each row of the table is.
    pub const fn poison(&self) -> Poison {
        match self {
            Self::MissingColumn { .. } => Poison::Unroutable,
            Self::UnsupportedType { .. } | Self::Default { .. } => Poison::Undecodable,
        }
    }
}

fn supported(role: &Role) -> &'static str {
    match role {
        Role::RouteBy => "use a character type, uuid, json, jsonb, xml, inet or a type of your own",
        Role::SchemaVersion | Role::Additional => "use an integer",
        Role::EventId | Role::EventKey | Role::Payload | Role::EventType => "use another type",
        Role::Headers => {
            "use json, jsonb, hstore, or a text of either; or two columns of the type text[]"
        }
        Role::EventTimestamp | Role::Template(_) => {
            "use timestamptz, timestamp, date, or a number of milliseconds since 1970"
        }
    }
}

/// Writes the names in quotes, separated by commas, or `none`.
fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}

pub(crate) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// The reason why a row cannot be routed. Errors name table and column, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The table was not announced on this connection, or has no plan.
    #[error("a row of the table with OID {relation} came before the table was announced")]
    UnknownRelation {
        /// The table, as `pg_class.oid`.
        relation: RelationId,
    },
    /// The row does not have as many columns as the last Relation message of its table.
    #[error("a row of table {table} has {found} columns, the table was announced with {announced}")]
    ColumnCount {
        /// The table as `schema.table`.
        table: String,
        /// Number of columns in the last Relation message.
        announced: usize,
        /// Number of columns in the row.
        found: usize,
    },
    /// A value does not fit the purpose of its column.
    #[error("table {table}: column {column:?}{} {why} in this row", needed(role))]
    Value {
        /// The table as `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// Purpose of the column.
        role: Role,
        /// The fault of the value.
        why: ValueError,
    },
    /// The schema of the subject is not known. The row can be routed after
    /// [`Router::learn`](crate::Router::learn).
    #[error("the schema of subject {subject:?} is not known")]
    UnknownSchema {
        /// The subject.
        subject: String,
    },
    /// The value does not fit the schema of its subject.
    #[error("table {table}: the value {schema_mismatch}, by the schema of subject {subject:?}")]
    SchemaMismatch {
        /// The table as `schema.table`.
        table: String,
        /// The subject.
        subject: String,
        /// The part of the value that does not fit, and where it is.
        schema_mismatch: SchemaMismatch,
        /// True if a later schema may exist that the value fits.
        may_change: bool,
    },
}

impl RouteError {
    /// Returns the kind of poison that the row is; `None` if the row is not at fault.
    pub const fn poison(&self) -> Option<Poison> {
        use ValueError::{Empty, NotANumber, NotAToken, NotInTable, NotInUrl, NotUtf8, Null};

        let (why, role) = match self {
            Self::UnknownRelation { .. }
            | Self::ColumnCount { .. }
            | Self::UnknownSchema { .. } => return None,
            Self::SchemaMismatch { .. } => return Some(Poison::Undecodable),
            Self::Value { role, why, .. } => (why, role),
        };
        Some(match (why, role) {
            (
                Null | NotUtf8 | Empty,
                Role::RouteBy | Role::Template(Target::Topic | Target::Address(_)),
            )
            | (Null | NotANumber, Role::Template(Target::Partition))
            | (NotInTable | NotAToken | NotInUrl, _) => Poison::Unroutable,
            _ => Poison::Undecodable,
        })
    }
}

fn needed(role: &Role) -> String {
    match role {
        Role::RouteBy | Role::Template(Target::Topic) => " chooses the topic and".to_owned(),
        role => format!(", needed for {role},"),
    }
}
