//! The plan of a table, compiled when pgoutput announces the table.
//!
//! A plan has the parts of a record and the columns that they need. The modules in `render/` make
//! the functions that render the parts.

mod columns;
mod error;
mod role;
mod schema_mismatch;
mod topic;

use walrelay_pgoutput::Value;

pub use columns::ColumnNames;
pub(crate) use columns::{Columns, PlanColumns, find};
pub(crate) use error::did_you_mean;
pub use error::{PlanError, RouteError};
pub use role::{Role, Target};
pub use schema_mismatch::{SchemaMismatch, SchemaMismatchAt};
pub(crate) use topic::Topic;

use crate::value::types::Reading;
use crate::value::{ColumnIndex, Fault, Part, ValueError, value};

pub(crate) struct Plan {
    pub(crate) topic: Topic,
    /// The second part of the address.
    pub(crate) routing_key: Option<Field>,
    pub(crate) key: Option<Field>,
    pub(crate) value: Field,
    pub(crate) headers: Vec<(Box<str>, Field)>,
    /// Renders the number of the partition as decimal text.
    pub(crate) partition: Option<Field>,
    /// Renders milliseconds since 1970-01-01 UTC as decimal text.
    pub(crate) timestamp: Option<Field>,
    /// Index of the event's id, for dead letters.
    pub(crate) event_id: Option<ColumnIndex>,
}

pub(crate) struct Field {
    pub(crate) role: Role,
    pub(crate) piece: Piece,
}

/// The source of a part. A column is one of those that the plan needs.
pub(crate) enum Piece {
    Column {
        index: ColumnIndex,
        reading: Reading,
    },
    Rendered(Renderer),
}

/// A function that renders a part of a record, for one table.
pub(crate) struct Renderer {
    /// Index of the column that an error about the part names.
    pub(crate) index: ColumnIndex,
    pub(crate) render: Box<Render>,
}

/// Renders a part from the values by index. Appends to the scratch buffer what is not in the row.
pub(crate) type Render =
    dyn for<'t> Fn(&[Value<'t>], &mut Vec<u8>) -> Result<Part<'t>, Fault> + Send + Sync;

impl Renderer {
    pub(crate) fn new(
        index: ColumnIndex,
        render: impl for<'t> Fn(&[Value<'t>], &mut Vec<u8>) -> Result<Part<'t>, Fault>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let render = Box::new(render);
        Self { index, render }
    }

    pub(crate) fn field(self, role: Role) -> Field {
        let piece = Piece::Rendered(self);
        Field { role, piece }
    }
}

impl Field {
    pub(crate) fn column(role: Role, index: ColumnIndex, reading: Reading) -> Self {
        let piece = Piece::Column { index, reading };
        Self { role, piece }
    }
}

impl Piece {
    pub(crate) fn index(&self) -> ColumnIndex {
        match self {
            Self::Column { index, .. } | Self::Rendered(Renderer { index, .. }) => *index,
        }
    }

    /// Returns the text that [`render`](Self::render) would return unchanged from the row.
    #[inline]
    pub(crate) fn in_row<'t>(&self, values: &[Value<'t>]) -> Option<&'t [u8]> {
        if let Self::Column { index, reading } = self
            && *reading == Reading::Verbatim
            && let Some(Value::Text(text)) = values.get(*index)
        {
            return Some(text);
        }
        None
    }

    pub(crate) fn render<'t>(
        &self,
        values: &[Value<'t>],
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, Fault> {
        match self {
            Self::Rendered(renderer) => (renderer.render)(values, scratch),
            Self::Column { index, reading } => match value(values, *index)? {
                None => Ok(Part::Null),
                Some(text) => match reading.read(text) {
                    Some(text) => Ok(Part::Row(text)),
                    None => Err(Fault::new(*index, ValueError::NotBoolean)),
                },
            },
        }
    }
}
