use std::fmt;

use sha2::{Digest, Sha256};
use walrelay_lsn::{RelationId, Xid};
use walrelay_pgoutput::{Tuple, Value};
use walrelay_sink::{EventPosition, PublishedLsn};

use crate::table::TableName;

/// Length of a row's hash: that of SHA-256, cut off.
pub const HASH_BYTES: usize = 16;
/// Length of the fixed part of an entry.
pub(super) const HEAD: usize = 28 + HASH_BYTES;
/// The bit of an entry's table that says that the event became a dead letter.
const DEAD: u32 = 1 << 31;
/// Bytes of the reason of a dead letter that are kept, at most.
const MAX_REASON: usize = 1000;

/// The table of rows, the columns of their keys, and the columns that their hashes cover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedTable {
    /// The table or partition that the WAL names.
    pub relation: RelationId,
    /// The outbox table, as configured.
    pub table: TableName,
    /// Names of the columns of the replica identity, in the order of a key's values.
    pub columns: Vec<String>,
    /// Names of all columns of the Relation message, in its order.
    pub row_columns: Vec<String>,
    /// The `TimeZone` of the session that read the rows, on which the text of a `timestamptz` depends; empty if it is
    /// unknown.
    pub time_zone: String,
}

/// The key of a row.
pub struct SentKey<'a> {
    /// The number of the row's [`KeyedTable`], see [`SentRows::table`](super::SentRows::table).
    pub table: u32,
    /// The transaction that inserted the row; 0 for a row of a snapshot.
    pub xid: Xid,
    pub(super) entry: &'a [u8],
}

impl<'a> SentKey<'a> {
    /// Returns the values as text, one for each of [`KeyedTable::columns`].
    pub fn values(&self) -> impl Iterator<Item = &'a [u8]> {
        self.texts().skip(usize::from(self.is_dead()))
    }

    /// Returns the reason why the event became a dead letter; `None` if its record was acknowledged.
    pub fn dead_reason(&self) -> Option<&'a [u8]> {
        self.texts().next().filter(|_| self.is_dead())
    }

    /// Returns the event's position.
    pub fn event(&self) -> EventPosition {
        self.position()
    }

    fn is_dead(&self) -> bool {
        table_of(self.entry) & DEAD != 0
    }

    /// Returns the texts of the entry: the reason of a dead letter, then the values.
    fn texts(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.entry.get(HEAD..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (len, tail) = rest.split_first_chunk()?;
            let (value, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = tail;
            Some(value)
        })
    }

    /// Returns the hash of the row as it was inserted: SHA-256, cut off, over `n` for NULL, and
    /// `t`, the length in bytes, `:` and the text for any other value of
    /// [`KeyedTable::row_columns`].
    pub fn hash(&self) -> &'a [u8] {
        self.entry.get(28..HEAD).unwrap_or_default()
    }

    pub(super) fn position(&self) -> EventPosition {
        let published = PublishedLsn::from_published(number(self.entry, 0));
        EventPosition::from_published(published, number(self.entry, 8))
    }
}

// Not derived: keys are values of rows.
impl fmt::Debug for SentKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentKey").finish_non_exhaustive()
    }
}

/// Reads the table of an entry, with the bit of dead letters; zero if the entry is too short.
fn table_of(entry: &[u8]) -> u32 {
    let bytes = entry.get(16..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Makes the entry of an event that became a dead letter from that of its row.
pub(super) fn dead_entry(entry: &[u8], reason: &str) -> Vec<u8> {
    let table = table_of(entry);
    let Some((head, values)) = entry.split_at_checked(HEAD).filter(|_| table & DEAD == 0) else {
        return entry.to_vec();
    };
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let reason = reason.get(..end).unwrap_or_default().as_bytes();
    let mut dead = head.to_vec();
    dead.extend_from_slice(&(reason.len() as u32).to_le_bytes());
    dead.extend_from_slice(reason);
    dead.extend_from_slice(values);
    let len = (dead.len() - HEAD) as u32;
    for (at, number) in [(16, table | DEAD), (24, len)] {
        if let Some(place) = dead.get_mut(at..at + 4) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }
    dead
}

/// Reads the number at `at`; zero if the entry is too short.
fn number(entry: &[u8], at: usize) -> u64 {
    let bytes = entry.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Hashes the values of a row, see [`SentKey::hash`].
pub fn row_hash<'a>(values: impl Iterator<Item = Value<'a>>) -> [u8; HASH_BYTES] {
    let mut sha = Sha256::new();
    for value in values {
        match value.bytes() {
            None => sha.update(b"n"),
            Some(bytes) => {
                sha.update(format!("t{}:", bytes.len()));
                sha.update(bytes);
            }
        }
    }
    let whole = sha.finalize();
    let mut cut = [0; HASH_BYTES];
    cut.iter_mut().zip(whole).for_each(|(to, from)| *to = from);
    cut
}

/// Keys of rows, in the order of the WAL.
#[derive(Default, Clone)]
pub struct SentKeys {
    /// Entries: commit position and row (8 bytes each), table, xid, length of the values (4 bytes
    /// each), hash, then length (4 bytes) and text of each value. The entry of a dead letter has a bit
    /// in its table, and the reason before the values.
    pub(super) entries: Vec<u8>,
}

impl SentKeys {
    /// Iterates over the keys.
    pub fn iter(&self) -> impl Iterator<Item = SentKey<'_>> {
        self.iter_from(0)
    }

    /// Iterates over the keys from that at this offset on.
    pub(super) fn iter_from(&self, offset: usize) -> impl Iterator<Item = SentKey<'_>> {
        let mut rest = self.entries.get(offset..).unwrap_or_default();
        std::iter::from_fn(move || {
            let number = |at: usize| {
                rest.get(at..)?
                    .first_chunk()
                    .map(|b| u32::from_le_bytes(*b))
            };
            let (table, xid, len) = (number(16)?, number(20)?, number(24)?);
            let (entry, tail) = rest.split_at_checked(HEAD + len as usize)?;
            rest = tail;
            Some(SentKey {
                table: table & !DEAD,
                xid: Xid::new(xid),
                entry,
            })
        })
    }

    /// Returns true if there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes the key of a row, whose columns are at `columns`. Returns whether the row has one.
    pub(super) fn write(
        &mut self,
        position: EventPosition,
        (table, xid): (u32, Xid),
        columns: &[usize],
        tuple: &Tuple<'_>,
    ) -> bool {
        let entries = &mut self.entries;
        let begin = entries.len();
        entries.extend_from_slice(&position.published_lsn().get().to_le_bytes());
        entries.extend_from_slice(&position.row.to_le_bytes());
        entries.extend_from_slice(&table.to_le_bytes());
        entries.extend_from_slice(&xid.get().to_le_bytes());
        entries.extend_from_slice(&[0; 4]);
        entries.extend_from_slice(&row_hash(tuple.values()));
        let mut wanted = columns.iter();
        let mut next = wanted.next();
        for (at, value) in tuple.values().enumerate() {
            match (next, value) {
                (Some(column), _) if *column != at => {}
                (Some(_), Value::Text(text)) => {
                    entries.extend_from_slice(&(text.len() as u32).to_le_bytes());
                    entries.extend_from_slice(text);
                    next = wanted.next();
                }
                _ => break,
            }
        }
        let len = (entries.len() - begin - HEAD) as u32;
        if let Some(place) = entries.get_mut(begin + 24..begin + 28) {
            place.copy_from_slice(&len.to_le_bytes());
        }
        // A value of the key may be missing.
        if next.is_some() {
            entries.truncate(begin);
        }
        next.is_none()
    }
}

// Not derived: keys are values of rows.
impl fmt::Debug for SentKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.entries.len();
        f.debug_struct("SentKeys")
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}
