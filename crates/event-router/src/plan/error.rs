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
    /// A column that an option names is not there.
    #[error(
        "table {table} has no column {column:?} for {role} (option {}); its columns are {}{}",
        role.option(),
        list(columns),
        did_you_mean(nearest.as_deref())
    )]
    MissingColumn {
        /// `schema.table`.
        table: String,
        /// The column that was looked for.
        column: String,
        /// What for.
        role: Role,
        /// The columns that the table sends, in its order. A publication with a column list sends
        /// fewer than the table has.
        columns: Vec<String>,
        /// The one of them that is nearest in spelling, where one is near.
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
        /// What it was to be used for.
        role: Role,
        /// Its type, as `pg_type.oid`.
        type_oid: u32,
    },
    /// What stands in for NULL is not what the column is, and JSON is built of it.
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
        /// What it is needed for.
        role: Role,
        /// Its type, as `pg_type.oid`.
        type_oid: u32,
    },
}

impl PlanError {
    /// A table and the options do not fit each other: one of them must change.
    pub const fn disposition(&self) -> Disposition {
        Disposition::Configuration
    }

    /// What each row of such a table is.
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
        Role::EventId | Role::EventKey | Role::Payload => "use another type",
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

/// `; did you mean "x"?`, or nothing.
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
    #[error("table {table}: column {column:?}{} {why} in this row", needed(role))]
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
            Self::Value { role, why, .. } => Some(value_poison(*why, role)),
        }
    }
}

/// What an event is whose value for `role` is wrong in this way.
const fn value_poison(why: ValueError, role: &Role) -> Poison {
    use ValueError::{Empty, NotANumber, NotInTable, NotUtf8, Null};

    match (why, role) {
        (Null | NotUtf8 | Empty, Role::RouteBy | Role::Template(Target::Topic))
        | (Null | NotANumber, Role::Template(Target::Partition))
        | (NotInTable, _) => Poison::Unroutable,
        _ => Poison::Undecodable,
    }
}

fn needed(role: &Role) -> String {
    match role {
        Role::RouteBy | Role::Template(Target::Topic) => " chooses the topic and".to_owned(),
        role => format!(", needed for {role},"),
    }
}
