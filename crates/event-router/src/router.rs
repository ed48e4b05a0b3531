use std::collections::HashMap;
use std::fmt;

use walrelay_lsn::RelationId;
use walrelay_pgoutput::{Relation, Tuple, Value};
use walrelay_sink::{Disposition, Header, Record};

use crate::column_type::Reading;
use crate::plan::{Field, Plan};
use crate::{Options, PlanError, Role};

/// The header that carries the event's id. Debezium names it so whatever the column is called.
const ID_HEADER: &str = "id";

/// Turns the rows of outbox tables into records.
pub struct Router {
    options: Options,
    plans: HashMap<RelationId, Plan>,
    /// The topic of the row that is being routed; kept so that its memory is.
    topic: String,
}

/// A record made of a row: the bytes are the row's, the topic is the router's until its next row.
pub struct Routed<'a> {
    topic: &'a str,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: [Header<'a>; 1],
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
    /// The routing column is NULL: there is no topic for the row.
    #[error("table {table}: column {column:?} chooses the topic and is NULL in this row")]
    RoutingValueNull {
        /// `schema.table`.
        table: String,
        /// The routing column.
        column: String,
    },
    /// The routing column is not UTF-8, and a topic name is.
    #[error("table {table}: column {column:?} chooses the topic and is not UTF-8 in this row")]
    RoutingValueNotUtf8 {
        /// `schema.table`.
        table: String,
        /// The routing column.
        column: String,
    },
    /// The template is the routing value alone, and that is empty.
    #[error("table {table}: column {column:?} is empty in this row, and with it the topic's name")]
    EmptyTopic {
        /// `schema.table`.
        table: String,
        /// The routing column.
        column: String,
    },
    /// The row says that a value did not change instead of giving it. An inserted row cannot: this
    /// is another kind of row.
    #[error(
        "table {table}: column {column:?}, needed for {role}, is left out of this row as unchanged"
    )]
    UnchangedToast {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// What it is needed for.
        role: Role,
    },
    /// The value is in Postgres' binary format, and was asked for as text.
    #[error("table {table}: column {column:?}, needed for {role}, is in binary format in this row")]
    Binary {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// What it is needed for.
        role: Role,
    },
    /// A boolean that is neither `t` nor `f`.
    #[error(
        "table {table}: column {column:?}, needed for {role}, is boolean and neither t nor f in this row"
    )]
    NotBoolean {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// What it is needed for.
        role: Role,
    },
}

impl RouteError {
    /// The same row gives the same error again.
    pub const fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }
}

// === impl Router ===

impl Router {
    /// A router that knows no table yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            plans: HashMap::new(),
            topic: String::new(),
        }
    }

    /// Compiles the plan of a table. Call it for every Relation message: Postgres sends one before
    /// a table's first row on a connection and again after the table has changed.
    ///
    /// On error the table is forgotten: a plan made for its former columns must not route its rows.
    pub fn relation(&mut self, relation: &Relation<'_>) -> Result<(), PlanError> {
        self.plans.remove(&relation.id);
        let plan = Plan::compile(&self.options, relation)?;
        self.plans.insert(relation.id, plan);
        Ok(())
    }

    /// Whether rows of this table can be routed.
    pub fn knows(&self, relation: RelationId) -> bool {
        self.plans.contains_key(&relation)
    }

    /// Makes an inserted row a record.
    pub fn route<'a>(
        &'a mut self,
        relation: RelationId,
        tuple: &Tuple<'a>,
    ) -> Result<Routed<'a>, RouteError> {
        let Some(plan) = self.plans.get(&relation) else {
            return Err(RouteError::UnknownRelation { relation });
        };
        if tuple.len() != plan.columns {
            return Err(RouteError::ColumnCount {
                table: plan.table.to_string(),
                announced: plan.columns,
                found: tuple.len(),
            });
        }
        let mut texts: [Option<&'a [u8]>; 4] = [None; 4];
        for (index, value) in tuple.values().take(plan.needed).enumerate() {
            for (text, field) in texts.iter_mut().zip(&plan.fields) {
                if field.index == index {
                    *text = read(value, *field)
                        .map_err(|unreadable| unreadable.at(plan, &self.options, field.role))?;
                }
            }
        }
        let [id, key, payload, routed_by] = texts;

        let table = || plan.table.to_string();
        let column = || self.options.route_by.clone();
        let Some(routed_by) = routed_by else {
            return Err(RouteError::RoutingValueNull {
                table: table(),
                column: column(),
            });
        };
        let Ok(routed_by) = std::str::from_utf8(routed_by) else {
            return Err(RouteError::RoutingValueNotUtf8 {
                table: table(),
                column: column(),
            });
        };
        self.options.topic.render(routed_by, &mut self.topic);
        if self.topic.is_empty() {
            return Err(RouteError::EmptyTopic {
                table: table(),
                column: column(),
            });
        }
        Ok(Routed {
            topic: &self.topic,
            key,
            value: payload,
            headers: [Header {
                name: ID_HEADER,
                value: id,
            }],
        })
    }

    /// Forgets all tables: a new connection announces them afresh.
    pub fn clear(&mut self) {
        self.plans.clear();
    }
}

// Written by hand: the scratch topic holds a row's value.
impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("options", &self.options)
            .field("plans", &self.plans)
            .finish_non_exhaustive()
    }
}

/// What a value was, where a text was needed.
enum Unreadable {
    UnchangedToast,
    Binary,
    NotBoolean,
}

impl Unreadable {
    fn at(self, plan: &Plan, options: &Options, role: Role) -> RouteError {
        let table = plan.table.to_string();
        let column = options.column(role).to_owned();
        match self {
            Self::UnchangedToast => RouteError::UnchangedToast {
                table,
                column,
                role,
            },
            Self::Binary => RouteError::Binary {
                table,
                column,
                role,
            },
            Self::NotBoolean => RouteError::NotBoolean {
                table,
                column,
                role,
            },
        }
    }
}

fn read(value: Value<'_>, field: Field) -> Result<Option<&[u8]>, Unreadable> {
    match (value, field.reading) {
        (Value::Null, _) => Ok(None),
        (Value::Text(text), Reading::Verbatim) => Ok(Some(text)),
        (Value::Text(b"t"), Reading::Boolean) => Ok(Some(b"true")),
        (Value::Text(b"f"), Reading::Boolean) => Ok(Some(b"false")),
        (Value::Text(_), Reading::Boolean) => Err(Unreadable::NotBoolean),
        (Value::UnchangedToast, _) => Err(Unreadable::UnchangedToast),
        (Value::Binary(_), _) => Err(Unreadable::Binary),
    }
}

// === impl Routed ===

impl Routed<'_> {
    /// The record, to be offered to a sink.
    pub fn record(&self) -> Record<'_> {
        Record {
            topic: self.topic,
            partition: None,
            timestamp_ms: None,
            key: self.key,
            value: self.value,
            headers: &self.headers,
        }
    }
}

/// As [`Record`]'s: lengths, no values.
impl fmt::Debug for Routed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Routed").field(&self.record()).finish()
    }
}
