//! How the rows of one table become records: compiled once, when the table is announced.
//!
//! The plan knows the parts of a record and where its columns are. What makes a part is a [`Render`] of
//! the rooms in `render/`.

mod columns;
mod error;
mod role;
mod schema_mismatch;
mod topic;

use std::fmt;

use walrelay_pgoutput::{Relation, Value};

pub(crate) use columns::{Columns, Slots};
pub use error::{PlanError, RouteError};
pub(crate) use error::{did_you_mean, nearest};
pub use role::{Role, Target};
pub use schema_mismatch::{SchemaMismatch, SchemaMismatchAt};
pub(crate) use topic::{Topic, TopicName};

use crate::value::types::Reading;
use crate::value::{Fault, Part, ValueError, value};

/// How the rows of one table become records.
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

/// What a part is made of. A `slot` counts the columns that the plan needs, not those of the table.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A column's text, as Postgres writes it or nearly so.
    Column { slot: usize, reading: Reading },
    /// More than that.
    Made(Box<dyn Render>),
}

/// Makes a part of a record, for one table.
pub(crate) trait Render: fmt::Debug + Send + Sync {
    /// The slot to blame where the part is of no use.
    fn slot(&self) -> usize;

    /// Makes the part for a row with these `values` of the columns that the plan needs.
    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault>;
}

impl Plan {
    /// Makes the text of this column the topic.
    pub(crate) fn topic_from(
        &mut self,
        relation: &Relation<'_>,
        column: &str,
    ) -> Result<(), PlanError> {
        let index = Columns::of(relation).index(column, || Role::RouteBy)?;
        self.topic = Topic::Routed {
            slot: self.slots.add(index, column),
            default: None,
            name: None,
        };
        Ok(())
    }
}

impl Field {
    /// A part that is rendered.
    pub(crate) fn made(role: Role, render: impl Render + 'static) -> Self {
        let piece = Piece::Made(Box::new(render));
        Self { role, piece }
    }
}

impl Piece {
    /// The slot to blame where what was made of it is of no use.
    pub(crate) fn slot(&self) -> usize {
        match self {
            Self::Column { slot, .. } => *slot,
            Self::Made(render) => render.slot(),
        }
    }

    /// A text that [`render`](Self::render) would give as it stands in the row.
    #[inline]
    pub(crate) fn in_row<'t>(&self, values: &[Value<'t>]) -> Option<&'t [u8]> {
        match self {
            Self::Column {
                slot,
                reading: Reading::Verbatim,
            } => match values.get(*slot) {
                Some(Value::Text(text)) => Some(text),
                _ => None,
            },
            _ => None,
        }
    }

    /// Makes the part for a row with these `values` of the columns that the plan needs.
    pub(crate) fn render<'t>(
        &self,
        values: &[Value<'t>],
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, Fault> {
        match self {
            Self::Made(render) => render.render(values, scratch),
            Self::Column { slot, reading } => match (reading, value(values, *slot)?) {
                (_, None) => Ok(Part::Null),
                (Reading::Verbatim, Some(text)) => Ok(Part::Row(text)),
                (Reading::Boolean, Some(b"t")) => Ok(Part::Row(b"true")),
                (Reading::Boolean, Some(b"f")) => Ok(Part::Row(b"false")),
                (Reading::Boolean, Some(_)) => Err(Fault::new(*slot, ValueError::NotBoolean)),
            },
        }
    }
}
