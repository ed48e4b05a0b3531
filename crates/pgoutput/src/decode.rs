use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};

use crate::cursor::{Cursor, Read};
use crate::error::{DecodeError, Fault, Field};
use crate::{
    Begin, Commit, Delete, Insert, LogicalMessage, Message, MessageKind, OldTuple, Origin,
    PgTimestamp, Relation, ReplicaIdentity, Truncate, Tuple, Type, Update,
};

/// Decodes the body of one XLogData message.
///
/// Borrows from `body` and allocates nothing; a row costs one forward pass over its column headers.
///
/// # Errors
/// When the body is not, to its last byte, one message of protocol version 1.
///
/// ```
/// use walrelay_pgoutput::decode;
/// let error = decode(b"I\0\0\x40\x0bN\0\x01t\0\0\0\x05four").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "malformed pgoutput Insert message: value at byte 13: truncated, 5 bytes needed, 4 left",
/// );
/// ```
#[inline]
pub fn decode(body: &[u8]) -> Result<Message<'_>, DecodeError> {
    let Some((&tag, rest)) = body.split_first() else {
        return Err(DecodeError::Empty);
    };
    let Some(kind) = MessageKind::from_tag(tag) else {
        return Err(DecodeError::UnknownMessage { tag });
    };
    let mut cursor = Cursor::new(rest);
    let message = match kind {
        // First, and the only one worth inlining: an outbox is all inserts.
        MessageKind::Insert => insert(&mut cursor).map(Message::Insert),
        MessageKind::Begin => begin(&mut cursor).map(Message::Begin),
        MessageKind::Commit => commit(&mut cursor).map(Message::Commit),
        MessageKind::Origin => origin(&mut cursor).map(Message::Origin),
        MessageKind::Relation => relation(&mut cursor).map(Message::Relation),
        MessageKind::Type => r#type(&mut cursor).map(Message::Type),
        MessageKind::Update => update(&mut cursor).map(Message::Update),
        MessageKind::Delete => delete(&mut cursor).map(Message::Delete),
        MessageKind::Truncate => truncate(&mut cursor).map(Message::Truncate),
        MessageKind::Logical => logical(&mut cursor).map(Message::Logical),
    };
    match message.and_then(|message| cursor.finish().map(|()| message)) {
        Ok(message) => Ok(message),
        Err(broken) => Err(broken.of(kind, body)),
    }
}

fn begin(cursor: &mut Cursor<'_>) -> Read<Begin> {
    Ok(Begin {
        final_lsn: lsn(cursor, Field::FinalLsn)?,
        commit_time: PgTimestamp::new(cursor.i64(Field::CommitTime)?),
        xid: Xid::new(cursor.u32(Field::Xid)?),
    })
}

fn commit(cursor: &mut Cursor<'_>) -> Read<Commit> {
    cursor.flags(Field::Flags, 0)?;
    Ok(Commit {
        commit_lsn: lsn(cursor, Field::CommitLsn)?,
        end: CommitEnd::from_commit_message(lsn(cursor, Field::EndLsn)?),
        commit_time: PgTimestamp::new(cursor.i64(Field::CommitTime)?),
    })
}

fn origin<'a>(cursor: &mut Cursor<'a>) -> Read<Origin<'a>> {
    Ok(Origin {
        commit_lsn: lsn(cursor, Field::CommitLsn)?,
        name: cursor.string(Field::OriginName)?,
    })
}

fn relation<'a>(cursor: &mut Cursor<'a>) -> Read<Relation<'a>> {
    let id = relation_id(cursor)?;
    let namespace = cursor.namespace()?;
    let name = cursor.string(Field::RelationName)?;
    let start = *cursor;
    let found = cursor.u8(Field::ReplicaIdentity)?;
    let Some(replica_identity) = ReplicaIdentity::from_tag(found) else {
        let fault = Fault::UnknownTag {
            found,
            known: "'d', 'n', 'f', 'i'",
        };
        return Err(start.broken(Field::ReplicaIdentity, fault));
    };
    let count = cursor.count(Field::ColumnCount)?;
    let columns = *cursor;
    for _ in 0..count {
        cursor.column()?;
    }
    Ok(Relation::new(
        id,
        namespace,
        name,
        replica_identity,
        count,
        columns.until(*cursor),
    ))
}

fn r#type<'a>(cursor: &mut Cursor<'a>) -> Read<Type<'a>> {
    Ok(Type {
        oid: TypeOid::new(cursor.u32(Field::TypeOid)?),
        namespace: cursor.namespace()?,
        name: cursor.string(Field::TypeName)?,
    })
}

#[inline]
fn insert<'a>(cursor: &mut Cursor<'a>) -> Read<Insert<'a>> {
    let relation = relation_id(cursor)?;
    tuple_kind(cursor, |tag| (tag == b'N').then_some(()), "'N'")?;
    Ok(Insert {
        relation,
        tuple: tuple(cursor)?,
    })
}

fn update<'a>(cursor: &mut Cursor<'a>) -> Read<Update<'a>> {
    let relation = relation_id(cursor)?;
    let first = tuple_kind(
        cursor,
        |tag| {
            if tag == b'N' {
                Some(None)
            } else {
                old_tuple(tag).map(Some)
            }
        },
        "'K', 'O', 'N'",
    )?;
    let old = match first {
        None => None,
        Some(wrap) => {
            let old = wrap(tuple(cursor)?);
            tuple_kind(cursor, |tag| (tag == b'N').then_some(()), "'N'")?;
            Some(old)
        }
    };
    Ok(Update {
        relation,
        old,
        new: tuple(cursor)?,
    })
}

fn delete<'a>(cursor: &mut Cursor<'a>) -> Read<Delete<'a>> {
    let relation = relation_id(cursor)?;
    let wrap = tuple_kind(cursor, old_tuple, "'K', 'O'")?;
    Ok(Delete {
        relation,
        old: wrap(tuple(cursor)?),
    })
}

fn truncate<'a>(cursor: &mut Cursor<'a>) -> Read<Truncate<'a>> {
    let count = cursor.length(Field::RelationCount)?;
    let options = cursor.flags(Field::TruncateOptions, 3)?;
    // Saturating: a count beyond the address space is truncation like any other that is too big.
    let ids = cursor.bytes(Field::RelationId, count.saturating_mul(size_of::<u32>()))?;
    Ok(Truncate::new(options & 1 != 0, options & 2 != 0, ids))
}

fn logical<'a>(cursor: &mut Cursor<'a>) -> Read<LogicalMessage<'a>> {
    let transactional = cursor.flags(Field::Flags, 1)? != 0;
    let lsn = lsn(cursor, Field::MessageLsn)?;
    let prefix = cursor.string(Field::Prefix)?;
    let len = cursor.length(Field::ContentLength)?;
    let content = cursor.bytes(Field::Content, len)?;
    Ok(LogicalMessage {
        transactional,
        lsn,
        prefix,
        content,
    })
}

/// TupleData, every column of it checked.
#[inline]
fn tuple<'a>(cursor: &mut Cursor<'a>) -> Read<Tuple<'a>> {
    let count = cursor.count(Field::ColumnCount)?;
    let values = *cursor;
    for _ in 0..count {
        cursor.value()?;
    }
    Ok(Tuple::new(count, values.until(*cursor)))
}

/// The letter before a tuple, through `known_as`.
#[inline]
fn tuple_kind<T>(
    cursor: &mut Cursor<'_>,
    known_as: impl FnOnce(u8) -> Option<T>,
    known: &'static str,
) -> Read<T> {
    let start = *cursor;
    let found = cursor.u8(Field::TupleKind)?;
    known_as(found)
        .ok_or_else(|| start.broken(Field::TupleKind, Fault::UnknownTag { found, known }))
}

fn old_tuple<'a>(tag: u8) -> Option<fn(Tuple<'a>) -> OldTuple<'a>> {
    match tag {
        b'K' => Some(OldTuple::Key),
        b'O' => Some(OldTuple::Full),
        _ => None,
    }
}

fn lsn(cursor: &mut Cursor<'_>, field: Field) -> Read<Lsn> {
    cursor.u64(field).map(Lsn::new)
}

#[inline]
fn relation_id(cursor: &mut Cursor<'_>) -> Read<RelationId> {
    cursor.u32(Field::RelationId).map(RelationId::new)
}
