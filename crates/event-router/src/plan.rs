use std::fmt;

use walrelay_pgoutput::Relation;
use walrelay_sink::{Disposition, Poison};

use crate::column_type::{self, Reading};
use crate::{Options, Role};

/// Where the columns of one table are that its rows are routed by.
#[derive(Debug)]
pub(crate) struct Plan {
    /// `schema.table`, for errors.
    pub(crate) table: Box<str>,
    /// How many columns the table was announced with; every row must have as many.
    pub(crate) columns: usize,
    /// By role, in the order of [`Role::ALL`].
    pub(crate) fields: [Field; 4],
    /// One past the last column that is needed: what follows is not looked at.
    pub(crate) needed: usize,
}

/// One column and how it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) role: Role,
    pub(crate) index: usize,
    pub(crate) reading: Reading,
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
        supported(*role)
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
            Self::UnsupportedType { .. } => Poison::Undecodable,
        }
    }
}

impl Plan {
    pub(crate) fn compile(options: &Options, relation: &Relation<'_>) -> Result<Self, PlanError> {
        let table = format!("{}.{}", relation.namespace, relation.name);
        let field = |role| field(options.column(role), role, &table, relation);
        let fields = [
            field(Role::ALL[0])?,
            field(Role::ALL[1])?,
            field(Role::ALL[2])?,
            field(Role::ALL[3])?,
        ];
        let last = fields.iter().map(|field| field.index).max();
        Ok(Self {
            columns: relation.columns().count(),
            needed: last.map_or(0, |index| index + 1),
            fields,
            table: table.into(),
        })
    }
}

/// Where event id, key and payload are, as far as they are: for rows that cannot be routed.
#[derive(Debug)]
pub(crate) struct Wreck {
    /// Event id, key, payload: the column's place and how it is read.
    pub(crate) fields: [Option<(usize, Reading)>; 3],
}

impl Wreck {
    const ROLES: [Role; 3] = [Role::EventId, Role::EventKey, Role::Payload];

    pub(crate) fn of(options: &Options, relation: &Relation<'_>) -> Self {
        let find = |role| {
            let wanted = options.column(role);
            let (index, column) = relation
                .columns()
                .enumerate()
                .find(|(_, column)| column.name == wanted)?;
            let reading = column_type::reading(column.type_oid.get(), role);
            Some((index, reading.unwrap_or(Reading::Verbatim)))
        };
        Self {
            fields: Self::ROLES.map(find),
        }
    }

    pub(crate) fn of_plan(plan: &Plan) -> Self {
        let find = |role| {
            let field = plan.fields.iter().find(|field| field.role == role)?;
            Some((field.index, field.reading))
        };
        Self {
            fields: Self::ROLES.map(find),
        }
    }
}

fn field(
    wanted: &str,
    role: Role,
    table: &str,
    relation: &Relation<'_>,
) -> Result<Field, PlanError> {
    let found = relation
        .columns()
        .enumerate()
        .find(|(_, column)| column.name == wanted);
    let Some((index, column)) = found else {
        let columns: Vec<String> = relation.columns().map(|c| c.name.to_owned()).collect();
        return Err(PlanError::MissingColumn {
            table: table.to_owned(),
            column: wanted.to_owned(),
            role,
            nearest: nearest(wanted, &columns),
            columns,
        });
    };
    let type_oid = column.type_oid.get();
    match column_type::reading(type_oid, role) {
        Some(reading) => Ok(Field {
            role,
            index,
            reading,
        }),
        None => Err(PlanError::UnsupportedType {
            table: table.to_owned(),
            column: wanted.to_owned(),
            role,
            type_oid,
        }),
    }
}

/// The column somebody may have meant: `aggregate_id` for `aggregateid`.
fn nearest(wanted: &str, columns: &[String]) -> Option<String> {
    columns
        .iter()
        .map(|column| (strsim::jaro_winkler(wanted, column), column))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, column)| column.clone())
}

fn supported(role: Role) -> &'static str {
    match role {
        Role::RouteBy => "use a character type, uuid, json, jsonb, xml, inet or a type of your own",
        Role::EventId | Role::EventKey | Role::Payload => {
            "use a character type, uuid, json, jsonb, xml, inet, an integer, oid, boolean or a type of your own"
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
