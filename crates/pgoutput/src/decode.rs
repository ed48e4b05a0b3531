use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};

use crate::cursor::{Broken, Cursor, Read};
use crate::error::DecodeError;
use crate::fault::{Fault, Field};
use crate::{
    Begin, Commit, Delete, Insert, LogicalMessage, Message, MessageKind, OldRow, Origin,
    PgTimestamp, Relation, ReplicaIdentity, Truncate, Tuple, Type, Update,
};

/// Decodes the body of one XLogData message.
///
/// Borrows from `body` and allocates nothing. A row costs one pass over its column headers.
///
/// # Errors
/// If the body, to its last byte, is not exactly one message of protocol version 1.
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
        // First, and the only one worth inlining: an outbox receives only inserts.
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
        Err(broken) => Err(malformed(kind, body, broken)),
    }
}

#[cold]
fn malformed(message: MessageKind, body: &[u8], broken: Broken) -> DecodeError {
    DecodeError::Malformed {
        message,
        field: broken.field,
        offset: body.len().saturating_sub(broken.left),
        fault: broken.fault,
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
    let replica_identity = letter(
        cursor,
        Field::ReplicaIdentity,
        ReplicaIdentity::from_tag,
        "'d', 'n', 'f', 'i'",
    )?;
    let count = cursor.count(Field::ColumnCount)?;
    let columns = *cursor;
    for _ in 0..count {
        cursor.column()?;
    }
    Ok(Relation {
        id,
        namespace,
        name,
        replica_identity,
        count,
        columns: columns.until(*cursor),
    })
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
    Ok(Insert {
        relation: relation_id(cursor)?,
        tuple: new_tuple(cursor)?,
    })
}

fn update<'a>(cursor: &mut Cursor<'a>) -> Read<Update<'a>> {
    let relation = relation_id(cursor)?;
    let first = letter(
        cursor,
        Field::TupleKind,
        |tag| match tag {
            b'N' => Some(None),
            tag => old_row(tag).map(Some),
        },
        "'K', 'O', 'N'",
    )?;
    let first_row = tuple(cursor)?;
    let (old, new) = match first {
        None => (None, first_row),
        Some(wrap) => (Some(wrap(first_row)), new_tuple(cursor)?),
    };
    Ok(Update { relation, old, new })
}

fn delete<'a>(cursor: &mut Cursor<'a>) -> Read<Delete<'a>> {
    let relation = relation_id(cursor)?;
    let wrap = letter(cursor, Field::TupleKind, old_row, "'K', 'O'")?;
    Ok(Delete {
        relation,
        old: wrap(tuple(cursor)?),
    })
}

fn truncate<'a>(cursor: &mut Cursor<'a>) -> Read<Truncate<'a>> {
    let count = cursor.length(Field::RelationCount)?;
    let options = cursor.flags(Field::TruncateOptions, 3)?;
    // Saturating: a count beyond the address space is reported as truncated, too.
    let ids = cursor.bytes(Field::RelationId, count.saturating_mul(size_of::<u32>()))?;
    let (ids, _) = ids.as_chunks();
    Ok(Truncate {
        cascade: options & 1 != 0,
        restart_identity: options & 2 != 0,
        ids,
    })
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

/// Reads TupleData and validates every column.
#[inline]
fn tuple<'a>(cursor: &mut Cursor<'a>) -> Read<Tuple<'a>> {
    let count = cursor.count(Field::ColumnCount)?;
    let values = *cursor;
    for _ in 0..count {
        cursor.value()?;
    }
    let values = values.until(*cursor);
    Ok(Tuple { count, values })
}

/// Reads the letter before a new row, and the row.
#[inline]
fn new_tuple<'a>(cursor: &mut Cursor<'a>) -> Read<Tuple<'a>> {
    let is_new = |tag| (tag == b'N').then_some(());
    letter(cursor, Field::TupleKind, is_new, "'N'")?;
    tuple(cursor)
}

/// Reads a letter and maps it by `known_as`; `None` is a fault, which lists the letters `known`.
#[inline]
fn letter<T>(
    cursor: &mut Cursor<'_>,
    field: Field,
    known_as: impl FnOnce(u8) -> Option<T>,
    known: &'static str,
) -> Read<T> {
    let start = *cursor;
    let found = cursor.u8(field)?;
    known_as(found).ok_or_else(|| start.broken(field, Fault::UnknownTag { found, known }))
}

fn old_row<'a>(tag: u8) -> Option<fn(Tuple<'a>) -> OldRow<Tuple<'a>>> {
    match tag {
        b'K' => Some(OldRow::Key),
        b'O' => Some(OldRow::Full),
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
