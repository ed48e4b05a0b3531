//! Encodes messages as a server does.
//!
//! A relay encodes the rows of a snapshot; fake servers, benchmarks and property tests encode any
//! messages. [`Table`] is a shorthand for a Relation message and its text rows.
//!
//! ```
//! use walrelay_lsn::{Lsn, RelationId, TypeOid, Xid};
//! use walrelay_pgoutput::{PgTimestamp, encode};
//!
//! let outbox = encode::Table::new(RelationId::new(16400), "public", "outbox")
//!     .key("id", TypeOid::new(2950))
//!     .column("payload", TypeOid::new(3802));
//! let time = PgTimestamp::new(0);
//! let transaction: [Vec<u8>; 4] = [
//!     encode::begin(Lsn::new(0x100), time, Xid::new(7)),
//!     outbox.relation(),
//!     outbox.insert(&[Some("018f5a3e-7c1d-7b1a-9c55-0123456789ab"), None]),
//!     encode::commit(Lsn::new(0x100), Lsn::new(0x130), time),
//! ];
//! # for body in transaction { walrelay_pgoutput::decode(&body).unwrap(); }
//! ```
//!
//! # Panics
//! On input that no server can send: a zero byte in a name, more than 32767 columns, a value of
//! 2 GiB.

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use core::mem;

use walrelay_lsn::{Lsn, RelationId, TypeOid, Xid};

use crate::{Column, Message, MessageKind, OldRow, PgTimestamp, ReplicaIdentity, Value};

/// Encodes a Begin message.
pub fn begin(final_lsn: Lsn, commit_time: PgTimestamp, xid: Xid) -> Vec<u8> {
    Body::new(MessageKind::Begin)
        .int64(final_lsn.get())
        .int64(commit_time.get().cast_unsigned())
        .int32(xid.get())
        .0
}

/// Encodes a Commit message.
pub fn commit(commit_lsn: Lsn, end_lsn: Lsn, commit_time: PgTimestamp) -> Vec<u8> {
    Body::new(MessageKind::Commit)
        .int8(0)
        .int64(commit_lsn.get())
        .int64(end_lsn.get())
        .int64(commit_time.get().cast_unsigned())
        .0
}

/// Encodes an Origin message.
pub fn origin(commit_lsn: Lsn, name: &str) -> Vec<u8> {
    Body::new(MessageKind::Origin)
        .int64(commit_lsn.get())
        .string(name)
        .0
}

/// Encodes a Relation message. The namespace `pg_catalog` becomes the empty string, as from a
/// server.
pub fn relation<'c>(
    id: RelationId,
    namespace: &str,
    name: &str,
    replica_identity: ReplicaIdentity,
    columns: impl ExactSizeIterator<Item = Column<'c>>,
) -> Vec<u8> {
    let mut body = Body::new(MessageKind::Relation)
        .int32(id.get())
        .namespace(namespace)
        .string(name)
        .int8(replica_identity.tag())
        .count(columns.len());
    for column in columns {
        body = body
            .int8(column.is_key.into())
            .string(column.name)
            .int32(column.type_oid.get())
            .int32(column.type_modifier.cast_unsigned());
    }
    body.0
}

/// Encodes a Type message. The namespace `pg_catalog` becomes the empty string, as from a server.
pub fn type_name(oid: TypeOid, namespace: &str, name: &str) -> Vec<u8> {
    Body::new(MessageKind::Type)
        .int32(oid.get())
        .namespace(namespace)
        .string(name)
        .0
}

/// Encodes an Insert message.
pub fn insert(relation: RelationId, row: &[Value<'_>]) -> Vec<u8> {
    let mut message = Vec::with_capacity(64);
    insert_into(&mut message, relation, row.iter().copied());
    message
}

/// Encodes an Insert message into a buffer, which is cleared before.
pub fn insert_into<'v>(
    message: &mut Vec<u8>,
    relation: RelationId,
    row: impl ExactSizeIterator<Item = Value<'v>>,
) {
    message.clear();
    let body = Body(mem::take(message)).int8(MessageKind::Insert.tag());
    *message = body.int32(relation.get()).tuple(b'N', row).0;
}

/// Encodes an Update message.
pub fn update(
    relation: RelationId,
    old: Option<OldRow<&[Value<'_>]>>,
    new: &[Value<'_>],
) -> Vec<u8> {
    let body = Body::new(MessageKind::Update).int32(relation.get());
    let old = old.map(|old| old.map(|row| row.iter().copied()));
    let body = old.into_iter().fold(body, Body::old);
    body.tuple(b'N', new.iter().copied()).0
}

/// Encodes a Delete message.
pub fn delete(relation: RelationId, old: OldRow<&[Value<'_>]>) -> Vec<u8> {
    Body::new(MessageKind::Delete)
        .int32(relation.get())
        .old(old.map(|row| row.iter().copied()))
        .0
}

/// Encodes a Truncate message.
pub fn truncate(
    cascade: bool,
    restart_identity: bool,
    relations: impl ExactSizeIterator<Item = RelationId>,
) -> Vec<u8> {
    let body = Body::new(MessageKind::Truncate)
        .length(relations.len())
        .int8(u8::from(cascade) | u8::from(restart_identity) << 1);
    relations
        .fold(body, |body, relation| body.int32(relation.get()))
        .0
}

/// Encodes a logical decoding message.
pub fn logical(transactional: bool, lsn: Lsn, prefix: &str, content: &[u8]) -> Vec<u8> {
    Body::new(MessageKind::Logical)
        .int8(transactional.into())
        .int64(lsn.get())
        .string(prefix)
        .sized(content)
        .0
}

/// Encodes any decoded message into the bytes it was decoded from.
pub fn message(message: &Message<'_>) -> Vec<u8> {
    match message {
        Message::Begin(m) => begin(m.final_lsn, m.commit_time, m.xid),
        Message::Commit(m) => commit(m.commit_lsn, m.end.lsn(), m.commit_time),
        Message::Origin(m) => origin(m.commit_lsn, m.name),
        Message::Relation(m) => {
            relation(m.id, m.namespace, m.name, m.replica_identity, m.columns())
        }
        Message::Type(m) => type_name(m.oid, m.namespace, m.name),
        Message::Insert(m) => insert(m.relation, &m.tuple.values().collect::<Vec<_>>()),
        Message::Update(m) => {
            let body = Body::new(MessageKind::Update).int32(m.relation.get());
            let old = m.old.map(|old| old.map(|tuple| tuple.values()));
            let body = old.into_iter().fold(body, Body::old);
            body.tuple(b'N', m.new.values()).0
        }
        Message::Delete(m) => {
            Body::new(MessageKind::Delete)
                .int32(m.relation.get())
                .old(m.old.map(|tuple| tuple.values()))
                .0
        }
        Message::Truncate(m) => truncate(m.cascade, m.restart_identity, m.relations()),
        Message::Logical(m) => logical(m.transactional, m.lsn, m.prefix, m.content),
    }
}

/// A table, for encoding its Relation and Insert messages.
#[derive(Debug, Clone)]
pub struct Table {
    id: RelationId,
    namespace: String,
    name: String,
    replica_identity: ReplicaIdentity,
    columns: Vec<(String, bool, TypeOid)>,
}

impl Table {
    /// Creates a table without columns and with the default replica identity.
    pub fn new(id: RelationId, namespace: &str, name: &str) -> Self {
        Self {
            id,
            namespace: namespace.into(),
            name: name.into(),
            replica_identity: ReplicaIdentity::Default,
            columns: Vec::new(),
        }
    }

    /// Sets the replica identity. The columns of the key are those added by [`Table::key`].
    #[must_use]
    pub fn replica_identity(mut self, replica_identity: ReplicaIdentity) -> Self {
        self.replica_identity = replica_identity;
        self
    }

    /// Adds a column that is part of the key.
    #[must_use]
    pub fn key(mut self, name: &str, type_oid: TypeOid) -> Self {
        self.columns.push((name.into(), true, type_oid));
        self
    }

    /// Adds a column.
    #[must_use]
    pub fn column(mut self, name: &str, type_oid: TypeOid) -> Self {
        self.columns.push((name.into(), false, type_oid));
        self
    }

    /// Returns the id by which rows refer to the table.
    pub const fn id(&self) -> RelationId {
        self.id
    }

    /// Encodes the table's Relation message.
    pub fn relation(&self) -> Vec<u8> {
        let columns = self.columns.iter().map(|(name, is_key, type_oid)| Column {
            name,
            is_key: *is_key,
            type_oid: *type_oid,
            type_modifier: -1,
        });
        relation(
            self.id,
            &self.namespace,
            &self.name,
            self.replica_identity,
            columns,
        )
    }

    /// Encodes the Insert message of a row of text values, `None` for NULL.
    ///
    /// # Panics
    /// If the number of values differs from the number of columns.
    #[track_caller]
    pub fn insert(&self, row: &[Option<&str>]) -> Vec<u8> {
        assert_eq!(
            row.len(),
            self.columns.len(),
            "one value for each column of {:?}",
            self.name
        );
        let values = row.iter().map(|value| match value {
            Some(text) => Value::Text(text.as_bytes()),
            None => Value::Null,
        });
        let mut message = Vec::new();
        insert_into(&mut message, self.id, values);
        message
    }
}

/// The body of a message under construction.
struct Body(Vec<u8>);

impl Body {
    fn new(kind: MessageKind) -> Self {
        Self(Vec::with_capacity(64)).int8(kind.tag())
    }

    fn int8(mut self, number: u8) -> Self {
        self.0.push(number);
        self
    }

    fn int32(mut self, number: u32) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn int64(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn count(mut self, count: usize) -> Self {
        assert!(count <= 0x7FFF, "{count} columns do not fit an Int16");
        self.0.extend_from_slice(&(count as u16).to_be_bytes());
        self
    }

    fn length(self, len: usize) -> Self {
        assert!(len <= 0x7FFF_FFFF, "{len} does not fit an Int32");
        self.int32(len as u32)
    }

    fn sized(self, bytes: &[u8]) -> Self {
        let mut body = self.length(bytes.len());
        body.0.extend_from_slice(bytes);
        body
    }

    fn string(mut self, text: &str) -> Self {
        assert!(
            !text.contains('\0'),
            "{text:?} cannot be sent as a zero-terminated string"
        );
        self.0.extend_from_slice(text.as_bytes());
        self.int8(0)
    }

    fn namespace(self, name: &str) -> Self {
        self.string(if name == "pg_catalog" { "" } else { name })
    }

    fn tuple<'v>(self, kind: u8, values: impl ExactSizeIterator<Item = Value<'v>>) -> Self {
        let body = self.int8(kind).count(values.len());
        values.fold(body, |body, value| match value {
            Value::Null => body.int8(b'n'),
            Value::UnchangedToast => body.int8(b'u'),
            Value::Text(bytes) => body.int8(b't').sized(bytes),
            Value::Binary(bytes) => body.int8(b'b').sized(bytes),
        })
    }

    fn old<'v>(self, old: OldRow<impl ExactSizeIterator<Item = Value<'v>>>) -> Self {
        match old {
            OldRow::Key(row) => self.tuple(b'K', row),
            OldRow::Full(row) => self.tuple(b'O', row),
        }
    }
}
