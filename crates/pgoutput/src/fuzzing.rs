//! What the fuzz targets run, here so that their corpus is also an ordinary test.
//!
//! Each takes any bytes and panics only when a promise of this crate is broken.

extern crate alloc;

use alloc::string::ToString;
use alloc::vec::Vec;
use alloc::{format, vec};

use crate::{DecodeError, Message, Tuple, Value, decode, encode};

/// Decodes, then walks everything there is to walk.
pub fn decodes_without_panic(body: &[u8]) {
    match decode(body) {
        Err(error) => {
            assert!(error.offset() <= body.len(), "{error:?}");
            assert!(!error.to_string().is_empty());
            // Unknown or empty, or about the kind that the tag says.
            if let DecodeError::Malformed { message, .. } = error {
                assert_eq!(body.first(), Some(&message.tag()));
            }
        }
        Ok(message) => {
            assert_eq!(body.first(), Some(&message.kind().tag()));
            walk(&message);
            assert!(!format!("{message:?}").is_empty());
            ends_where_it_ends(body);
        }
    }
}

/// Decodes; what was understood must encode to the same bytes again.
pub fn encodes_what_it_decoded(body: &[u8]) {
    let Ok(message) = decode(body) else { return };
    let again = encode::message(&message);
    assert_eq!(decode(&again), Ok(message));
    // Servers write "pg_catalog" as an empty string, so spelled out it comes back shorter.
    let spelled_out = match &message {
        Message::Relation(relation) => relation.namespace == "pg_catalog",
        Message::Type(named) => named.namespace == "pg_catalog",
        _ => false,
    };
    if !spelled_out {
        assert_eq!(again, body);
    }
}

fn walk(message: &Message<'_>) {
    match message {
        Message::Insert(insert) => walk_tuple(insert.tuple),
        Message::Update(update) => {
            if let Some(old) = update.old {
                walk_tuple(old.tuple());
            }
            walk_tuple(update.new);
        }
        Message::Delete(delete) => walk_tuple(delete.old.tuple()),
        Message::Relation(relation) => {
            let columns = relation.columns();
            assert_eq!(columns.len(), columns.count());
            assert!(relation.columns().all(|column| !column.name.contains('\0')));
        }
        Message::Truncate(truncate) => {
            let relations = truncate.relations();
            assert_eq!(relations.len(), relations.count());
        }
        Message::Begin(begin) => {
            begin.commit_time.unix_micros();
            begin.commit_time.unix_millis();
        }
        Message::Commit(_) | Message::Origin(_) | Message::Type(_) | Message::Logical(_) => {}
    }
}

fn walk_tuple(tuple: Tuple<'_>) {
    let values: Vec<Value<'_>> = tuple.values().collect();
    assert_eq!(values.len(), tuple.len());
    assert_eq!(tuple.is_empty(), values.is_empty());
    // Shown by length only: as many letters for any other bytes.
    for value in values {
        if let Value::Text(bytes) = value {
            let other = vec![b'?'; bytes.len()];
            assert_eq!(format!("{value:?}"), format!("{:?}", Value::Text(&other)));
        }
    }
}

/// No body is a message both whole and cut or prolonged.
fn ends_where_it_ends(body: &[u8]) {
    if let Some((_, shorter)) = body.split_last() {
        assert!(decode(shorter).is_err());
    }
    let mut longer = body.to_vec();
    longer.push(0);
    assert!(matches!(
        decode(&longer),
        Err(DecodeError::Malformed { .. })
    ));
}
