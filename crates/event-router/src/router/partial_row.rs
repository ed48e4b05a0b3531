//! What can be had of a row that cannot be routed, for its dead letter.

use std::fmt;

use walrelay_pgoutput::{Relation, Tuple, Value};
use walrelay_sink::Header;

use crate::render::debezium::ID_HEADER;
use crate::value::types::{self, Reading};

/// Event id, key and value of a row that cannot be routed, as far as they are known.
#[derive(Clone, Copy, Default)]
pub struct PartialRow<'a> {
    /// The event's id.
    pub event_id: Option<&'a [u8]>,
    /// The record's key.
    pub key: Option<&'a [u8]>,
    /// The record's value.
    pub value: Option<&'a [u8]>,
    /// The header that carries the event's id; `None` is `id`.
    pub id_header: Option<&'a str>,
}

/// Where these are in the rows of a table: the column's index, and how it is read.
#[derive(Debug, Default)]
pub(super) struct UnroutableTable {
    fields: [Option<(usize, Reading)>; 3],
}

impl UnroutableTable {
    /// By the names of the columns of event id, key and value.
    pub(super) fn of(columns: [Option<&str>; 3], relation: &Relation<'_>) -> Self {
        Self {
            fields: columns.map(|wanted| {
                let (index, column) = relation
                    .columns()
                    .enumerate()
                    .find(|(_, column)| Some(column.name) == wanted)?;
                Some((index, types::reading(column.type_oid.get())))
            }),
        }
    }

    /// A value that cannot be read as it should is given as it came.
    pub(super) fn read<'a>(&self, tuple: &Tuple<'a>) -> PartialRow<'a> {
        let [event_id, key, value] = self.fields.map(|field| {
            let (index, reading) = field?;
            match (tuple.values().nth(index)?, reading) {
                (Value::Text(b"t"), Reading::Boolean) => Some(&b"true"[..]),
                (Value::Text(b"f"), Reading::Boolean) => Some(&b"false"[..]),
                (Value::Text(bytes) | Value::Binary(bytes), _) => Some(bytes),
                (Value::Null | Value::UnchangedToast, _) => None,
            }
        });
        PartialRow {
            event_id,
            key,
            value,
            id_header: None,
        }
    }
}

impl<'a> PartialRow<'a> {
    /// The headers of the record that the row would have become.
    pub fn headers(&self) -> [Header<'a>; 1] {
        [Header {
            name: self.id_header.unwrap_or(ID_HEADER),
            value: self.event_id,
        }]
    }
}

/// Lengths, no values.
impl fmt::Debug for PartialRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartialRow")
            .field("event_id_bytes", &self.event_id.map(<[u8]>::len))
            .field("key_bytes", &self.key.map(<[u8]>::len))
            .field("value_bytes", &self.value.map(<[u8]>::len))
            .finish()
    }
}
