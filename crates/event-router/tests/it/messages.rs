//! pgoutput messages for tests, and what is in them.

use walrelay_event_router::{Event, PlanError, RouteError, Routed, Router};
use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{Message, PgTimestamp, Relation, Tuple, decode};

pub(crate) const TEXT: u32 = 25;
pub(crate) const UUID: u32 = 2950;
pub(crate) const JSONB: u32 = 3802;
pub(crate) const TIMESTAMPTZ: u32 = 1184;

/// The OID of the table that [`relation`] and [`insert`] speak of.
pub(crate) const TABLE: u32 = 16385;

/// A value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

pub(crate) fn text(text: &str) -> Cell {
    Cell::Text(text.as_bytes().to_vec())
}

/// A Relation message of `public.outbox` with these columns.
pub(crate) fn relation<S: AsRef<str>>(columns: &[(S, u32)]) -> Vec<u8> {
    let mut message = vec![b'R'];
    message.extend(TABLE.to_be_bytes());
    message.extend(b"public\0outbox\0d");
    message.extend((columns.len() as u16).to_be_bytes());
    for (name, type_oid) in columns {
        message.push(0);
        message.extend(name.as_ref().as_bytes());
        message.push(0);
        message.extend(type_oid.to_be_bytes());
        message.extend((-1_i32).to_be_bytes());
    }
    message
}

/// The Relation message of the table Debezium's documentation describes.
pub(crate) fn debezium_outbox() -> Vec<u8> {
    relation(&[
        ("id", UUID),
        ("aggregatetype", TEXT),
        ("aggregateid", TEXT),
        ("type", TEXT),
        ("payload", JSONB),
    ])
}

/// The columns of the preset `outbox`.
pub(crate) const OUTBOX: [(&str, u32); 7] = [
    ("id", UUID),
    ("aggregate_type", TEXT),
    ("aggregate_id", TEXT),
    ("event_type", TEXT),
    ("payload", JSONB),
    ("metadata", JSONB),
    ("created_at", TIMESTAMPTZ),
];

/// The Relation message of a table that has the columns of every preset.
pub(crate) fn presets_outbox() -> Vec<u8> {
    relation(&[
        ("id", UUID),
        ("aggregate_type", TEXT),
        ("aggregate_id", TEXT),
        ("type", TEXT),
        ("event_type", TEXT),
        ("payload", JSONB),
        ("metadata", JSONB),
        ("created_at", TIMESTAMPTZ),
    ])
}

/// An Insert message.
pub(crate) fn insert(cells: &[Cell]) -> Vec<u8> {
    let mut message = vec![b'I'];
    message.extend(TABLE.to_be_bytes());
    message.push(b'N');
    message.extend((cells.len() as u16).to_be_bytes());
    for cell in cells {
        let (kind, bytes) = match cell {
            Cell::Null => (b'n', None),
            Cell::Unchanged => (b'u', None),
            Cell::Text(bytes) => (b't', Some(bytes)),
            Cell::Binary(bytes) => (b'b', Some(bytes)),
        };
        message.push(kind);
        if let Some(bytes) = bytes {
            message.extend((bytes.len() as u32).to_be_bytes());
            message.extend(bytes);
        }
    }
    message
}

/// An Insert message of texts and NULLs.
pub(crate) fn insert_texts(values: &[Option<&str>]) -> Vec<u8> {
    let cells: Vec<Cell> = values
        .iter()
        .map(|value| value.map_or(Cell::Null, text))
        .collect();
    insert(&cells)
}

/// What a Relation message says.
pub(crate) fn as_relation(message: &[u8]) -> Relation<'_> {
    match decode(message) {
        Ok(Message::Relation(relation)) => relation,
        other => panic!("not a Relation message: {other:?}"),
    }
}

/// The row of an Insert message.
pub(crate) fn as_row(message: &[u8]) -> (RelationId, Tuple<'_>) {
    match decode(message) {
        Ok(Message::Insert(insert)) => (insert.relation, insert.tuple),
        other => panic!("not an Insert message: {other:?}"),
    }
}

/// Announces a table.
pub(crate) fn announce(router: &mut Router, message: &[u8]) -> Result<(), PlanError> {
    router.relation(&as_relation(message))
}

/// The first row of a transaction that committed when Postgres' time began.
pub(crate) fn event() -> Event {
    Event {
        commit_lsn: Lsn::new(0x100),
        row: 0,
        commit_time: PgTimestamp::new(0),
    }
}

/// Routes the row of an Insert message.
pub(crate) fn route<'a>(
    router: &'a mut Router,
    message: &'a [u8],
) -> Result<Routed<'a>, RouteError> {
    let (relation, row) = as_row(message);
    router.route(relation, &row, &event())
}
