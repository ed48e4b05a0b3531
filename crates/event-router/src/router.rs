use std::collections::HashMap;
use std::fmt;

use walrelay_lsn::RelationId;
use walrelay_pgoutput::{Relation, Tuple, Value};
use walrelay_sink::{Disposition, Header, Poison, Record};

use crate::column_type::Reading;
use crate::plan::{Field, Plan, Wreck};
use crate::{Options, PlanError, Role};

/// The header that carries the event's id. Debezium names it so whatever the column is called.
const ID_HEADER: &str = "id";

/// Turns the rows of outbox tables into records.
pub struct Router {
    options: Options,
    plans: HashMap<RelationId, Plan>,
    /// Where the columns are of tables that have no plan.
    wrecks: HashMap<RelationId, Wreck>,
    /// The topic of the row that is being routed; kept so that its memory is.
    topic: String,
}

/// A record made of a row: the bytes are the row's, the topic is the router's until its next row.
pub struct Routed<'a> {
    topic: &'a str,
    row: Row<'a>,
}

/// What a row says of its record; the topic is the router's, see [`Router::topic`].
#[derive(Clone, Copy)]
pub struct Row<'a> {
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: [Header<'a>; 1],
}

/// What can be had of a row that cannot be routed: for a letter that says so.
#[derive(Clone, Copy, Default)]
pub struct Salvage<'a> {
    /// The event's id.
    pub event_id: Option<&'a [u8]>,
    /// The record's key.
    pub key: Option<&'a [u8]>,
    /// The record's value.
    pub value: Option<&'a [u8]>,
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

    /// Whether it is this row that is wrong, and in which way. A row of a table that was announced
    /// otherwise is not: there the stream is not understood.
    pub const fn poison(&self) -> Option<Poison> {
        match self {
            Self::UnknownRelation { .. } | Self::ColumnCount { .. } => None,
            Self::RoutingValueNull { .. }
            | Self::RoutingValueNotUtf8 { .. }
            | Self::EmptyTopic { .. } => Some(Poison::Unroutable),
            Self::UnchangedToast { .. } | Self::Binary { .. } | Self::NotBoolean { .. } => {
                Some(Poison::Undecodable)
            }
        }
    }
}

// === impl Router ===

impl Router {
    /// A router that knows no table yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            plans: HashMap::new(),
            wrecks: HashMap::new(),
            topic: String::new(),
        }
    }

    /// Compiles the plan of a table. Call it for every Relation message: Postgres sends one before
    /// a table's first row on a connection and again after the table has changed.
    ///
    /// On error the table is forgotten: a plan made for its former columns must not route its rows.
    /// They can still be [salvaged](Self::salvage).
    pub fn relation(&mut self, relation: &Relation<'_>) -> Result<(), PlanError> {
        self.plans.remove(&relation.id);
        self.wrecks.remove(&relation.id);
        match Plan::compile(&self.options, relation) {
            Ok(plan) => {
                self.plans.insert(relation.id, plan);
                Ok(())
            }
            Err(error) => {
                let wreck = Wreck::of(&self.options, relation);
                self.wrecks.insert(relation.id, wreck);
                Err(error)
            }
        }
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
        let row = self.read(relation, tuple)?;
        let topic = self.topic();
        Ok(Routed { topic, row })
    }

    /// The same in two steps, for callers that keep the router meanwhile: the topic is
    /// [`topic`](Self::topic) until the next row is read.
    pub fn read<'a>(
        &mut self,
        relation: RelationId,
        tuple: &Tuple<'a>,
    ) -> Result<Row<'a>, RouteError> {
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
        Ok(Row {
            key,
            value: payload,
            headers: [Header {
                name: ID_HEADER,
                value: id,
            }],
        })
    }

    /// The topic of the row that was read last.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// What can be had of a row that [`read`](Self::read) refused. What cannot be read as it should
    /// is given as it came.
    pub fn salvage<'a>(&self, relation: RelationId, tuple: &Tuple<'a>) -> Salvage<'a> {
        let mut found: [Option<&'a [u8]>; 3] = [None; 3];
        let wreck;
        let columns = if let Some(plan) = self.plans.get(&relation) {
            wreck = Wreck::of_plan(plan);
            &wreck
        } else if let Some(wreck) = self.wrecks.get(&relation) {
            wreck
        } else {
            return Salvage::default();
        };
        for (index, value) in tuple.values().enumerate() {
            for (found, field) in found.iter_mut().zip(&columns.fields) {
                if let Some((at, reading)) = field
                    && *at == index
                {
                    *found = match (value, *reading) {
                        (Value::Text(b"t"), Reading::Boolean) => Some(b"true"),
                        (Value::Text(b"f"), Reading::Boolean) => Some(b"false"),
                        (Value::Text(bytes) | Value::Binary(bytes), _) => Some(bytes),
                        (Value::Null | Value::UnchangedToast, _) => None,
                    };
                }
            }
        }
        let [event_id, key, value] = found;
        Salvage {
            event_id,
            key,
            value,
        }
    }

    /// Forgets all tables: a new connection announces them afresh.
    pub fn clear(&mut self) {
        self.plans.clear();
        self.wrecks.clear();
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
        self.row.record(self.topic)
    }
}

// === impl Row ===

impl<'a> Row<'a> {
    /// The record, with its topic.
    pub fn record<'r>(&'r self, topic: &'r str) -> Record<'r> {
        Record {
            topic,
            partition: None,
            timestamp_ms: None,
            key: self.key,
            value: self.value,
            headers: &self.headers,
        }
    }

    /// The record's key.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.key
    }

    /// The record's value.
    pub fn value(&self) -> Option<&'a [u8]> {
        self.value
    }

    /// The record's headers.
    pub fn headers(&self) -> &[Header<'a>] {
        &self.headers
    }

    /// The event's id.
    pub fn event_id(&self) -> Option<&'a [u8]> {
        self.headers[0].value
    }
}

// === impl Salvage ===

impl<'a> Salvage<'a> {
    /// The headers of the record that the row would have become.
    pub fn headers(&self) -> [Header<'a>; 1] {
        [Header {
            name: ID_HEADER,
            value: self.event_id,
        }]
    }
}

/// Lengths, no values.
impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Row").field(&self.record("")).finish()
    }
}

/// Lengths, no values.
impl fmt::Debug for Salvage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Salvage")
            .field("event_id_bytes", &self.event_id.map(<[u8]>::len))
            .field("key_bytes", &self.key.map(<[u8]>::len))
            .field("value_bytes", &self.value.map(<[u8]>::len))
            .finish()
    }
}

/// As [`Record`]'s: lengths, no values.
impl fmt::Debug for Routed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Routed").field(&self.record()).finish()
    }
}
