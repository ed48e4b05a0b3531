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
pub(crate) use columns::{Columns, Slots, find};
pub use error::{PlanError, RouteError};
pub(crate) use error::{did_you_mean, nearest};
pub use role::{Role, Target};
pub use schema_mismatch::{SchemaMismatch, SchemaMismatchAt};
pub(crate) use topic::Topic;

use crate::value::types::Reading;
use crate::value::{Fault, Part, ValueError, value};

pub(crate) struct Plan {
    pub(crate) topic: Topic,
    pub(crate) key: Option<Field>,
    pub(crate) value: Field,
    pub(crate) headers: Vec<(Box<str>, Field)>,
    /// Renders the number of the partition as decimal text.
    pub(crate) partition: Option<Field>,
    /// Renders milliseconds since 1970-01-01 UTC as decimal text.
    pub(crate) timestamp: Option<Field>,
    /// Slot of the event's id, for dead letters.
    pub(crate) event_id: Option<usize>,
}

pub(crate) struct Field {
    pub(crate) role: Role,
    pub(crate) piece: Piece,
}

/// The source of a part. A slot is an index into the columns that the plan needs, not into the
/// table's.
pub(crate) enum Piece {
    Column { slot: usize, reading: Reading },
    Rendered(Renderer),
}

/// A function that renders a part of a record, for one table.
pub(crate) struct Renderer {
    /// Slot of the column that an error about the part names.
    pub(crate) slot: usize,
    pub(crate) render: Box<Render>,
}

/// Renders a part from the values by slot. Appends to the scratch buffer what is not in the row.
pub(crate) type Render =
    dyn for<'t> Fn(&[Value<'t>], &mut Vec<u8>) -> Result<Part<'t>, Fault> + Send + Sync;

impl Renderer {
    pub(crate) fn new(
        slot: usize,
        render: impl for<'t> Fn(&[Value<'t>], &mut Vec<u8>) -> Result<Part<'t>, Fault>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let render = Box::new(render);
        Self { slot, render }
    }

    pub(crate) fn field(self, role: Role) -> Field {
        let piece = Piece::Rendered(self);
        Field { role, piece }
    }
}

impl Field {
    pub(crate) fn column(role: Role, slot: usize, reading: Reading) -> Self {
        let piece = Piece::Column { slot, reading };
        Self { role, piece }
    }
}

impl Piece {
    pub(crate) fn slot(&self) -> usize {
        match self {
            Self::Column { slot, .. } | Self::Rendered(Renderer { slot, .. }) => *slot,
        }
    }

    /// Returns the text that [`render`](Self::render) would return unchanged from the row.
    #[inline]
    pub(crate) fn in_row<'t>(&self, values: &[Value<'t>]) -> Option<&'t [u8]> {
        if let Self::Column { slot, reading } = self
            && *reading == Reading::Verbatim
            && let Some(Value::Text(text)) = values.get(*slot)
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
            Self::Column { slot, reading } => match value(values, *slot)? {
                None => Ok(Part::Null),
                Some(text) => match reading.read(text) {
                    Some(text) => Ok(Part::Row(text)),
                    None => Err(Fault::new(*slot, ValueError::NotBoolean)),
                },
            },
        }
    }
}
