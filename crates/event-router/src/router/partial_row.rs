//! The parts of an unroutable row, for its dead letter.

use std::fmt;

use walrelay_pgoutput::{Relation, Tuple, Value};
use walrelay_sink::Header;

use crate::plan::{ColumnNames, find};
use crate::render::debezium::ID_HEADER;
use crate::value::types::{self, Reading};

/// Event id, key and value of a row that cannot be routed, as far as they are known.
#[derive(Clone, Copy, Default)]
pub struct PartialRow<'a> {
    /// Id of the event.
    pub event_id: Option<&'a [u8]>,
    /// Key of the record.
    pub key: Option<&'a [u8]>,
    /// Value of the record.
    pub value: Option<&'a [u8]>,
    /// Name of the header with the event's id; `None` is `id`.
    pub id_header: Option<&'a str>,
}

/// Position and reading of the columns of id, key and value in a table.
pub(super) struct UnroutableTable([Option<(usize, Reading)>; 3]);

impl UnroutableTable {
    pub(super) fn new(
        columns: [Option<&str>; 3],
        relation: &Relation<'_>,
        names: &ColumnNames,
    ) -> Self {
        Self(columns.map(|wanted| {
            let (position, column) = find(relation, names, wanted?)?;
            Some((position, types::reading(column.type_oid.get())))
        }))
    }

    /// Reads the columns. A value that cannot be read as its type is unchanged.
    pub(super) fn read<'a>(&self, tuple: &Tuple<'a>, id_header: &'a str) -> PartialRow<'a> {
        let [event_id, key, value] = self.0.map(|field| {
            let (position, reading) = field?;
            match tuple.values().nth(position)? {
                Value::Text(text) => reading.read(text).or(Some(text)),
                Value::Binary(bytes) => Some(bytes),
                Value::Null | Value::UnchangedToast => None,
            }
        });
        PartialRow {
            event_id,
            key,
            value,
            id_header: Some(id_header),
        }
    }
}

impl<'a> PartialRow<'a> {
    /// Returns the headers of the record that the row would have become.
    pub fn headers(&self) -> [Header<'a>; 1] {
        [Header {
            name: self.id_header.unwrap_or(ID_HEADER),
            value: self.event_id,
        }]
    }
}

/// Shows lengths, no values.
impl fmt::Debug for PartialRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartialRow")
            .field("event_id_bytes", &self.event_id.map(<[u8]>::len))
            .field("key_bytes", &self.key.map(<[u8]>::len))
            .field("value_bytes", &self.value.map(<[u8]>::len))
            .finish()
    }
}
