//! [`AccountedRows`]: the bucket and the hash of a row, by the columns of its table.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use walrelay_event_router::epoch_micros;
use walrelay_lsn::{RelationId, RelationMap};
use walrelay_pgoutput::{Relation, ReplicaIdentity, Tuple, Value};

use super::sums::{AccountColumns, BUCKET_SECONDS, Bucket, RowSum};

/// The columns of an announced table.
#[derive(Debug)]
struct Accounted {
    /// Positions of the hashed columns in a row, ascending.
    hashed: Vec<usize>,
    /// Position of the age column.
    age: usize,
    names: Arc<[String]>,
}

/// Reads rows of announced tables.
pub(super) struct AccountedRows {
    tables: RelationMap<Accounted>,
    /// The hashed text of a row, so that it is not allocated anew.
    text: Vec<u8>,
}

impl AccountedRows {
    pub(super) fn new() -> Self {
        Self {
            tables: RelationMap::new(),
            text: Vec::new(),
        }
    }

    /// Learns the columns of an outbox table: those of the replica identity and of the event's id,
    /// and the age. A table without an age is not counted, nor one whose rows only the age would identify: an
    /// unsent row could take the place of a sent one.
    pub(super) fn announce(&mut self, relation: &Relation<'_>, wanted: &AccountColumns) {
        self.tables.remove(relation.id);
        let keyed = matches!(
            relation.replica_identity,
            ReplicaIdentity::Default | ReplicaIdentity::Index
        );
        let position = |name: &String| relation.columns().position(|column| column.name == name);
        let Some(age) = wanted.age.iter().find_map(position) else {
            return;
        };
        let (mut hashed, mut names) = (Vec::new(), Vec::new());
        for (at, column) in relation.columns().enumerate() {
            let is_id = wanted.id.as_ref().is_some_and(|id| id == column.name);
            if at != age && (is_id || keyed && column.is_key) {
                hashed.push(at);
                names.push(column.name.to_owned());
            }
        }
        if hashed.is_empty() {
            return;
        }
        names.extend(
            relation
                .columns()
                .nth(age)
                .map(|column| column.name.to_owned()),
        );
        let names = names.into();
        self.tables
            .insert(relation.id, Accounted { hashed, age, names });
    }

    /// Forgets the announced tables.
    pub(super) fn clear(&mut self) {
        self.tables.clear();
    }

    /// Returns bucket and hash of a row. `None`: the table has no age, or the row's is no finite time.
    pub(super) fn read(
        &mut self,
        relation: RelationId,
        tuple: &Tuple<'_>,
    ) -> Option<(Bucket, RowSum)> {
        let table = self.tables.get(relation)?;
        let text = &mut self.text;
        text.clear();
        let mut hashed = table.hashed.iter().peekable();
        let mut micros = None;
        for (at, value) in tuple.values().enumerate() {
            if at == table.age {
                let Value::Text(age) = value else { return None };
                micros = epoch_micros(age);
            }
            if hashed.next_if_eq(&&at).is_some() {
                append(text, value)?;
            }
        }
        let micros = micros.filter(|_| hashed.peek().is_none())?;
        write(text, format_args!("{micros}"));
        let bucket = Bucket {
            relation,
            columns: Arc::clone(&table.names),
            number: micros.div_euclid(BUCKET_SECONDS * 1_000_000),
        };
        let hash = Sha256::digest(&*text);
        let half = |from: usize| {
            let bytes = hash.get(from..).and_then(|rest| rest.first_chunk());
            i128::from(bytes.map_or(0, |bytes| i64::from_be_bytes(*bytes)))
        };
        let (high, low) = (half(0), half(8));
        Some((bucket, RowSum { rows: 1, high, low }))
    }
}

/// Appends a value as the SQL of the source writes it: its length in characters, and its text.
/// `None`: the value is not known.
fn append(text: &mut Vec<u8>, value: Value<'_>) -> Option<()> {
    match value {
        Value::Null => text.extend_from_slice(b"n;"),
        Value::Text(value) => {
            // Continuation bytes of UTF-8 begin no character.
            let length = value.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            write(text, format_args!("{length}:"));
            text.extend_from_slice(value);
            text.push(b';');
        }
        Value::UnchangedToast | Value::Binary(_) => return None,
    }
    Some(())
}

/// Appends a formatted text.
fn write(text: &mut Vec<u8>, arguments: fmt::Arguments<'_>) {
    // Writing to a vector does not fail.
    let _ = text.write_fmt(arguments);
}
