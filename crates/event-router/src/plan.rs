use std::fmt;

use walrelay_pgoutput::Relation;
use walrelay_sink::{Disposition, Poison};

use crate::cloud_event::CloudPlan;
use crate::column_type::{self, Reading};
use crate::columns::{Columns, Slots};
use crate::confluent::RecordName;
use crate::part::{Fault, Piece};
use crate::topic::Topic;
use crate::{Role, Route, RouteError, TableFacts};

/// How the rows of one table become records. Compiled once when the table is announced.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) slots: Slots,
    pub(crate) topic: Topic,
    pub(crate) key: Option<Field>,
    pub(crate) value: Option<Field>,
    pub(crate) headers: Vec<HeaderField>,
    /// Decimal text of a partition's number.
    pub(crate) partition: Option<Field>,
    /// Decimal text of milliseconds since 1970-01-01 UTC.
    pub(crate) timestamp: Option<Field>,
    /// Slot of the event's id, for dead letters.
    pub(crate) event_id: Option<usize>,
    /// What makes a CloudEvent of the record.
    pub(crate) cloud: Option<CloudPlan>,
    /// What names the record, where the subject of its schema is called by it.
    pub(crate) record: Option<RecordName>,
}

/// A part of the record, and what it is made of.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) role: Role,
    pub(crate) piece: Piece,
}

/// A header.
#[derive(Debug)]
pub(crate) struct HeaderField {
    pub(crate) name: Box<str>,
    pub(crate) field: Field,
}

impl Plan {
    pub(crate) fn compile(
        route: &Route,
        relation: &Relation<'_>,
        facts: Option<&TableFacts>,
    ) -> Result<Self, PlanError> {
        match route {
            Route::Debezium(options) => options.compile(relation, facts),
            Route::Template(templates) => templates.compile(relation),
        }
    }

    /// Leaves the choice of the topic to this column: what it says is the topic.
    pub(crate) fn topic_from(
        &mut self,
        relation: &Relation<'_>,
        column: &str,
    ) -> Result<(), PlanError> {
        let found = relation.columns().position(|known| known.name == column);
        let Some(index) = found else {
            let columns = Columns::of(relation);
            return Err(PlanError::missing(&columns, column, Role::RouteBy));
        };
        let slot = self.slots.add(index, column);
        self.topic = Topic::Column { slot };
        Ok(())
    }

    /// What `fault` is to people, where `role` was to be filled.
    #[cold]
    pub(crate) fn error(&self, fault: Fault, role: &Role) -> RouteError {
        let name = self.slots.names.get(fault.slot);
        RouteError::Value {
            table: self.slots.table.to_string(),
            column: name.map_or_else(String::new, ToString::to_string),
            role: role.clone(),
            why: fault.why,
        }
    }
}

/// Where event id, key and payload are, as far as they are: for rows that cannot be routed.
#[derive(Debug, Default)]
pub(crate) struct UnroutableTable {
    /// Event id, key, payload: the column's index in the row and how it is read.
    pub(crate) fields: [Option<(usize, Reading)>; 3],
}

impl UnroutableTable {
    pub(crate) fn of(route: &Route, relation: &Relation<'_>) -> Self {
        Self {
            fields: route.partial_row_columns().map(|wanted| {
                let (index, column) = relation
                    .columns()
                    .enumerate()
                    .find(|(_, column)| Some(column.name) == wanted)?;
                Some((index, column_type::reading(column.type_oid.get())))
            }),
        }
    }
}

/// Why the rows of a table cannot be routed at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A column that an option names is not there.
    #[error(
        "table {table} has no column {column:?} for {role} (option {}); its columns are {}{}",
        role.option(),
        List(columns),
        Nearest(nearest.as_deref())
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
        Type(*type_oid),
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
        Type(*type_oid),
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
    /// A table and the options do not fit each other: somebody must change one of them.
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

    pub(crate) fn missing(columns: &Columns<'_>, column: &str, role: Role) -> Self {
        Self::MissingColumn {
            table: columns.table().to_owned(),
            column: column.to_owned(),
            role,
            nearest: columns.nearest(column),
            columns: columns.names(),
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

struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name:?}")?;
        }
        if self.0.is_empty() {
            f.write_str("none")?;
        }
        Ok(())
    }
}

struct Nearest<'a>(Option<&'a str>);

impl fmt::Display for Nearest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, "; did you mean {name:?}?"),
            None => Ok(()),
        }
    }
}

struct Type(u32);

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match column_type::name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "{} (pg_type.oid)", self.0),
        }
    }
}
