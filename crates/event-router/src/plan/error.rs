//! Why the rows of a table, or one row, cannot be routed.

use walrelay_lsn::RelationId;
use walrelay_sink::{Disposition, Poison};

use super::role::{Role, Target};
use super::schema_mismatch::SchemaMismatch;
use crate::value::{ValueError, types};

/// Why the rows of a table cannot be routed at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The table does not have a column that an option names.
    #[error(
        "table {table} has no column {column:?} for {role} (option {}); its columns are {}{}",
        role.option(),
        list(columns),
        did_you_mean(nearest.as_deref())
    )]
    MissingColumn {
        /// `schema.table`.
        table: String,
        /// The missing column.
        column: String,
        /// Its purpose.
        role: Role,
        /// The columns that the publication sends, in the table's order.
        columns: Vec<String>,
        /// A column of similar spelling.
        nearest: Option<String>,
    },
    /// A column is of a type whose Debezium form is not made in this version.
    #[error(
        "column {column:?} of table {table} is of type {}, which is not supported for {role} (option {}) in this version: {}",
        types::described(*type_oid),
        role.option(),
        supported(role)
    )]
    UnsupportedType {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// Its purpose.
        role: Role,
        /// Its type, as `pg_type.oid`.
        type_oid: u32,
    },
    /// The default is of another type than the column, and would break the JSON around it.
    #[error(
        "the default of column {column:?} of table {table}, which is of type {}, is none for {role} (option {}): write a value of that type, or make it a text with the filter text before it",
        types::described(*type_oid),
        role.option()
    )]
    Default {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// Its purpose.
        role: Role,
        /// Its type, as `pg_type.oid`.
        type_oid: u32,
    },
}

impl PlanError {
    /// The table or the options must change.
    pub const fn disposition(&self) -> Disposition {
        Disposition::Configuration
    }

    /// The fault of each row of such a table.
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
        Role::EventTimestamp | Role::Template(_) => {
            "use timestamptz, timestamp, date, or a number of milliseconds since 1970"
        }
    }
}

/// The names in quotes, or `none`.
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

/// The name that is nearest in spelling, if its similarity is above `threshold`.
pub(crate) fn nearest<'a>(
    wanted: &str,
    known: impl Iterator<Item = &'a str>,
    threshold: f64,
) -> Option<String> {
    known
        .map(|name| (strsim::jaro_winkler(wanted, name), name))
        .filter(|(similarity, _)| *similarity > threshold)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name.to_owned())
}

/// Why a row cannot be routed. Errors name table and column, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The table was not announced on this connection, or was refused.
    #[error("a row of the table with OID {relation} came before the table was announced")]
    UnknownRelation {
        /// The table, as `pg_class.oid`.
        relation: RelationId,
    },
    /// The row has other columns than the table was announced with.
    #[error("a row of table {table} has {found} columns, the table was announced with {announced}")]
    ColumnCount {
        /// `schema.table`.
        table: String,
        /// By the last Relation message.
        announced: usize,
        /// In the row.
        found: usize,
    },
    /// A value does not fit its purpose.
    #[error("table {table}: column {column:?}{} {why} in this row", needed(role))]
    Value {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// Its purpose.
        role: Role,
        /// What is wrong with it.
        why: ValueError,
    },
    /// The schema of the subject is not known. The row can be read after
    /// [`Router::learn`](crate::Router::learn).
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
        /// A later schema may exist, and the value may fit that.
        may_change: bool,
    },
}

impl RouteError {
    /// Fatal: the same row gives the same error again.
    pub const fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }

    /// The fault of the row; `None` if the row is not at fault.
    pub const fn poison(&self) -> Option<Poison> {
        use ValueError::{Empty, NotANumber, NotInTable, NotUtf8, Null};

        let (why, role) = match self {
            Self::UnknownRelation { .. }
            | Self::ColumnCount { .. }
            | Self::UnknownSchema { .. } => return None,
            Self::SchemaMismatch { .. } => return Some(Poison::Undecodable),
            Self::Value { role, why, .. } => (why, role),
        };
        Some(match (why, role) {
            (Null | NotUtf8 | Empty, Role::RouteBy | Role::Template(Target::Topic))
            | (Null | NotANumber, Role::Template(Target::Partition))
            | (NotInTable, _) => Poison::Unroutable,
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
