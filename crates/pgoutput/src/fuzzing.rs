//! The functions that the fuzz targets run, public so that a test can run their corpus.
//!
//! Each takes any bytes and panics only if an invariant of this crate is violated.

extern crate alloc;

use alloc::string::ToString;
use alloc::vec::Vec;
use alloc::{format, vec};

use crate::{DecodeError, Message, Tuple, Value, decode, encode};

/// Decodes, then reads every value, column and relation of the message.
pub fn decodes_without_panic(body: &[u8]) {
    match decode(body) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            // A malformed message is reported with the kind of its tag.
            if let DecodeError::Malformed {
                message, offset, ..
            } = error
            {
                assert!(offset <= body.len(), "{error:?}");
                assert_eq!(body.first(), Some(&message.tag()));
            }
        }
        Ok(message) => {
            assert_eq!(body.first(), Some(&message.kind().tag()));
            walk(&message);
            assert!(!format!("{message:?}").is_empty());
            assert_other_lengths_are_refused(body);
        }
    }
}

/// Decodes; a decoded message must encode to the same bytes again.
pub fn encodes_what_it_decoded(body: &[u8]) {
    let Ok(message) = decode(body) else { return };
    let again = encode::message(&message);
    assert_eq!(decode(&again), Ok(message));
    // Servers write "pg_catalog" as an empty string, so a body that spells it out encodes shorter.
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
                walk_tuple(old.row());
            }
            walk_tuple(update.new);
        }
        Message::Delete(delete) => walk_tuple(delete.old.row()),
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
        }
        Message::Commit(_) | Message::Origin(_) | Message::Type(_) | Message::Logical(_) => {}
    }
}

fn walk_tuple(tuple: Tuple<'_>) {
    let values: Vec<Value<'_>> = tuple.values().collect();
    assert_eq!(values.len(), tuple.len());
    assert_eq!(tuple.is_empty(), values.is_empty());
    // `Debug` shows the length only: other bytes of the same length look the same.
    for value in values {
        if let Value::Text(bytes) = value {
            let other = vec![b'?'; bytes.len()];
            assert_eq!(format!("{value:?}"), format!("{:?}", Value::Text(&other)));
        }
    }
}

/// Asserts that a valid body with one byte less or one byte more is an error.
fn assert_other_lengths_are_refused(body: &[u8]) {
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
