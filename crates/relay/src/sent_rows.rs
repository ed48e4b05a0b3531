//! The keys of rows whose records were acknowledged, so that exactly these rows can be marked as
//! sent.
//!
//! [`PendingRows`] belongs to the core: it notes the key of each row whose record the sink took.
//! When the transactions are confirmed, the keys move to [`SentRows`], from which another thread
//! takes them. What is not noted, or forgotten, makes the rows [incomplete](SentRows::take_incomplete).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use walrelay_lsn::{Lsn, RelationId, RelationMap, Xid};
use walrelay_pgoutput::{Relation, ReplicaIdentity, Tuple, Value};
use walrelay_sink::{EventPosition, lock};

use crate::table::TableName;

/// Bytes of keys from which on a chunk is not added to.
const CHUNK: usize = 64 << 10;
/// Length of the fixed part of an entry.
const HEAD: usize = 28;

/// The table of rows, and the columns of their keys, in the order of the values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedTable {
    /// The outbox table, as configured.
    pub table: TableName,
    /// Names of the columns of the replica identity.
    pub columns: Vec<String>,
}

/// The key of a row.
pub struct SentKey<'a> {
    /// The table or partition that the WAL names.
    pub relation: RelationId,
    /// The transaction that inserted the row.
    pub xid: Xid,
    entry: &'a [u8],
}

impl<'a> SentKey<'a> {
    /// Returns the values as text, one for each of [`KeyedTable::columns`].
    pub fn values(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.entry.get(HEAD..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (len, tail) = rest.split_first_chunk()?;
            let (value, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = tail;
            Some(value)
        })
    }

    fn position(&self) -> EventPosition {
        EventPosition {
            lsn: number(self.entry, 0),
            row: number(self.entry, 8),
        }
    }
}

// Not derived: keys are values of rows.
impl fmt::Debug for SentKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentKey").finish_non_exhaustive()
    }
}

/// Reads the number at `at`; zero if the entry is too short.
fn number(entry: &[u8], at: usize) -> u64 {
    let bytes = entry.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Keys of rows, in the order of the WAL.
#[derive(Default, Clone)]
pub struct SentKeys {
    /// Entries: commit position and row (8 bytes each), relation, xid, length of the values (4 bytes
    /// each), then length (4 bytes) and text of each value.
    entries: Vec<u8>,
    /// The event of the first entry.
    first: Option<EventPosition>,
    /// The highest start of a commit record.
    last: u64,
}

impl SentKeys {
    /// Iterates over the keys.
    pub fn iter(&self) -> impl Iterator<Item = SentKey<'_>> {
        let mut rest = self.entries.as_slice();
        std::iter::from_fn(move || {
            let number = |at: usize| {
                rest.get(at..)?
                    .first_chunk()
                    .map(|b| u32::from_le_bytes(*b))
            };
            let (relation, xid, len) = (number(16)?, number(20)?, number(24)?);
            let (entry, tail) = rest.split_at_checked(HEAD + len as usize)?;
            rest = tail;
            Some(SentKey {
                relation: RelationId::new(relation),
                xid: Xid::new(xid),
                entry,
            })
        })
    }

    /// Returns true if there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a key.
    pub fn push(&mut self, key: &SentKey<'_>) {
        let position = key.position();
        self.first.get_or_insert(position);
        self.last = self.last.max(position.lsn);
        self.entries.extend_from_slice(key.entry);
    }

    /// Forgets the keys of this event and of later ones.
    fn truncate(&mut self, from: EventPosition) {
        let (mut len, mut last) = (0, 0);
        for key in self.iter().take_while(|key| key.position() < from) {
            len += key.entry.len();
            last = key.position().lsn;
        }
        self.entries.truncate(len);
        self.last = last;
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

/// The keys of rows whose records are acknowledged and whose transactions may be confirmed.
#[derive(Debug)]
pub struct SentRows {
    confirmed: Mutex<ConfirmedRows>,
    limit: usize,
}

#[derive(Debug)]
struct ConfirmedRows {
    keys: VecDeque<SentKeys>,
    bytes: usize,
    tables: HashMap<RelationId, Arc<KeyedTable>>,
    incomplete: bool,
    /// Counts how often all was forgotten.
    forgotten: u64,
}

/// Keys that were taken, to be given back if their rows were not marked.
#[derive(Debug)]
pub struct TakenKeys {
    /// The keys.
    pub keys: Vec<SentKeys>,
    forgotten: u64,
}

impl SentRows {
    /// Bytes of keys that are kept, at most: of confirmed rows, and the same of unconfirmed ones. A
    /// key of one uuid takes 68 bytes.
    pub const LIMIT: usize = 16 << 20;

    /// Creates rows that are incomplete: those of earlier processes are not noted. `limit`: bytes of
    /// keys, at most, of confirmed rows, and the same of unconfirmed ones.
    pub fn with_limit(limit: usize) -> Self {
        let confirmed = ConfirmedRows {
            keys: VecDeque::new(),
            bytes: 0,
            tables: HashMap::new(),
            incomplete: true,
            forgotten: 0,
        };
        Self {
            confirmed: Mutex::new(confirmed),
            limit,
        }
    }

    /// Takes keys of transactions that a slot at `confirmed` has confirmed, at least so many
    /// `bytes` if there are.
    pub fn take(&self, confirmed: Lsn, bytes: usize) -> TakenKeys {
        let mut rows = lock(&self.confirmed);
        let mut taken = TakenKeys {
            keys: Vec::new(),
            forgotten: rows.forgotten,
        };
        let mut size = 0;
        // A commit record that starts before the confirmed position ends there at the latest.
        while size < bytes
            && rows
                .keys
                .front()
                .is_some_and(|keys| keys.last < confirmed.get())
            && let Some(keys) = rows.keys.pop_front()
        {
            size += keys.entries.len();
            taken.keys.push(keys);
        }
        rows.bytes -= size;
        taken
    }

    /// Gives keys back: the next call takes them again.
    pub fn give_back(&self, taken: TakenKeys) {
        let mut rows = lock(&self.confirmed);
        if taken.forgotten != rows.forgotten {
            return;
        }
        for keys in taken.keys.into_iter().rev().filter(|keys| !keys.is_empty()) {
            rows.bytes += keys.entries.len();
            rows.keys.push_front(keys);
        }
    }

    /// Returns the table of a key's relation.
    pub fn table(&self, relation: RelationId) -> Option<Arc<KeyedTable>> {
        lock(&self.confirmed).tables.get(&relation).cloned()
    }

    /// Returns whether acknowledged rows were not noted, or were forgotten, since the last call.
    pub fn take_incomplete(&self) -> bool {
        std::mem::take(&mut lock(&self.confirmed).incomplete)
    }

    /// Notes that acknowledged rows are not noted, or were forgotten.
    pub fn set_incomplete(&self) {
        lock(&self.confirmed).incomplete = true;
    }

    fn push(&self, keys: SentKeys) {
        let mut rows = lock(&self.confirmed);
        if rows.bytes + keys.entries.len() > self.limit {
            rows.incomplete = true;
        } else {
            rows.bytes += keys.entries.len();
            rows.keys.push_back(keys);
        }
    }

    /// Forgets all keys: other rows may have their positions, or their keys.
    fn forget(&self) {
        let mut rows = lock(&self.confirmed);
        rows.keys.clear();
        rows.bytes = 0;
        rows.incomplete = true;
        rows.forgotten += 1;
    }

    /// Learns a table. Returns whether its keys were others before.
    fn announce(&self, relation: RelationId, table: KeyedTable) -> bool {
        let mut rows = lock(&self.confirmed);
        let known = rows.tables.insert(relation, Arc::new(table));
        known.is_some_and(|known| rows.tables.get(&relation) != Some(&known))
    }
}

/// The keys of rows whose records the sink took, until their transactions are confirmed.
#[derive(Debug)]
pub(crate) struct PendingRows {
    shared: Arc<SentRows>,
    /// The positions of the key's columns in a row, by the relation that the server announced. No
    /// entry: rows of it have no key.
    key_columns: RelationMap<Vec<usize>>,
    /// The chunks in the order of the WAL. Only the last one is added to.
    chunks: VecDeque<SentKeys>,
    bytes: usize,
    /// The last chunk is not added to.
    sealed: bool,
    /// The event whose key was written last, and the length of its chunk before it, until the sink
    /// takes the record.
    offered: Option<(EventPosition, usize)>,
    /// Rows are noted. Rows of a snapshot are not: their positions are none of the WAL.
    noting: bool,
    incomplete: bool,
}

impl PendingRows {
    pub(crate) fn new(shared: Arc<SentRows>) -> Self {
        Self {
            shared,
            key_columns: RelationMap::new(),
            chunks: VecDeque::new(),
            bytes: 0,
            sealed: false,
            offered: None,
            noting: true,
            incomplete: false,
        }
    }

    /// Sets whether rows are noted. Those that are not must be found in another way.
    pub(crate) fn note(&mut self, noting: bool) {
        self.noting = noting;
        self.incomplete |= !noting;
    }

    /// Learns the key of an outbox table. A key is that of a unique index without NULL; there is none
    /// with `REPLICA IDENTITY FULL` or `NOTHING`, or if the publication leaves out a column of it.
    pub(crate) fn announce(&mut self, relation: &Relation<'_>, table: &TableName) {
        self.key_columns.remove(relation.id);
        let unique = matches!(
            relation.replica_identity,
            ReplicaIdentity::Default | ReplicaIdentity::Index
        );
        let columns = relation
            .columns()
            .enumerate()
            .filter(|(_, column)| unique && column.is_key);
        let (positions, columns): (Vec<usize>, Vec<String>) = columns
            .map(|(at, column)| (at, column.name.to_owned()))
            .unzip();
        if positions.is_empty() {
            return;
        }
        self.key_columns.insert(relation.id, positions);
        let table = table.clone();
        if self
            .shared
            .announce(relation.id, KeyedTable { table, columns })
        {
            self.forget_all();
        }
    }

    /// Forgets the announced tables: the server announces them again on each connection.
    pub(crate) fn clear_tables(&mut self) {
        self.key_columns.clear();
    }

    /// Writes the key of a row whose record is offered to the sink.
    pub(crate) fn offer(
        &mut self,
        position: EventPosition,
        relation: RelationId,
        xid: Xid,
        tuple: &Tuple<'_>,
    ) {
        self.retract();
        if !self.noting {
            return;
        }
        let Some(columns) = self.key_columns.get(relation) else {
            self.incomplete = true;
            return;
        };
        if self.sealed
            || self
                .chunks
                .back()
                .is_none_or(|chunk| chunk.entries.len() >= CHUNK)
        {
            self.chunks.push_back(SentKeys::default());
            self.sealed = false;
        }
        let Some(chunk) = self.chunks.back_mut() else {
            return;
        };
        let begin = chunk.entries.len();
        self.offered = Some((position, begin));
        let entries = &mut chunk.entries;
        entries.extend_from_slice(&position.lsn.to_le_bytes());
        entries.extend_from_slice(&position.row.to_le_bytes());
        entries.extend_from_slice(&relation.get().to_le_bytes());
        entries.extend_from_slice(&xid.get().to_le_bytes());
        entries.extend_from_slice(&[0; 4]);
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
        if let Some(place) = entries.get_mut(begin + HEAD - 4..begin + HEAD) {
            place.copy_from_slice(&len.to_le_bytes());
        }
        // A value of the key is missing.
        if next.is_some() {
            self.retract();
            self.incomplete = true;
        }
    }

    /// Keeps the key that was offered: the sink took the record, or the row needs none.
    pub(crate) fn keep_offered(&mut self) {
        let (Some((position, begin)), Some(chunk)) = (self.offered.take(), self.chunks.back_mut())
        else {
            return;
        };
        chunk.first.get_or_insert(position);
        chunk.last = position.lsn;
        self.bytes += chunk.entries.len() - begin;
        if self.bytes > self.shared.limit {
            self.forget();
        }
    }

    /// Notes that rows are acknowledged, or will be, that are not noted.
    pub(crate) fn set_incomplete(&mut self) {
        self.incomplete = true;
    }

    /// Forgets the key that was offered.
    pub(crate) fn retract(&mut self) {
        if let (Some((_, begin)), Some(chunk)) = (self.offered.take(), self.chunks.back_mut()) {
            chunk.entries.truncate(begin);
        }
    }

    /// Passes on the keys of the transactions before `confirmed`.
    pub(crate) fn confirmed(&mut self, confirmed: Lsn) {
        self.retract();
        let is_confirmed = |keys: &SentKeys| keys.last < confirmed.get();
        while self.chunks.front().is_some_and(is_confirmed)
            && let Some(keys) = self.chunks.pop_front()
        {
            self.bytes -= keys.entries.len();
            if !keys.is_empty() {
                self.shared.push(keys);
            }
        }
        // So that the rest of it does not wait for what follows.
        let last = self.chunks.back().and_then(|keys| keys.first);
        self.sealed |= last.is_some_and(|first| first.lsn < confirmed.get());
        if std::mem::take(&mut self.incomplete) {
            self.shared.set_incomplete();
        }
    }

    /// Forgets the keys of this event and of later ones: they are sent again.
    pub(crate) fn forget_from(&mut self, event: EventPosition) {
        self.retract();
        let is_later = |keys: &SentKeys| keys.first.is_none_or(|first| first >= event);
        while self.chunks.back().is_some_and(is_later) {
            self.chunks.pop_back();
        }
        if let Some(keys) = self.chunks.back_mut() {
            keys.truncate(event);
        }
        self.bytes = self.chunks.iter().map(|keys| keys.entries.len()).sum();
    }

    /// Forgets all keys that are not confirmed.
    pub(crate) fn forget(&mut self) {
        self.chunks.clear();
        self.offered = None;
        self.bytes = 0;
        self.incomplete = true;
    }

    /// Forgets all keys, also those that were passed on and not taken.
    pub(crate) fn forget_all(&mut self) {
        self.forget();
        self.shared.forget();
    }
}

#[cfg(test)]
mod tests {
    use walrelay_pgoutput::{Message, decode};

    use super::*;

    /// Returns the Relation message of `public.outbox (body, id)`, whose key is `id`.
    fn relation(identity: u8) -> Vec<u8> {
        let mut body = b"R\0\0\0\x07public\0outbox\0".to_vec();
        body.push(identity);
        body.extend(b"\0\x02\0body\0\0\0\0\x19\xff\xff\xff\xff\x01id\0\0\0\0\x19\xff\xff\xff\xff");
        body
    }

    /// Notes a row with this id, as the core does.
    fn note(rows: &mut PendingRows, lsn: u64, row: u64, id: &str, taken: bool) {
        let mut body = b"I\0\0\0\x07N\0\x02t\0\0\0\x01xt".to_vec();
        body.extend((id.len() as u32).to_be_bytes());
        body.extend(id.as_bytes());
        let Ok(Message::Insert(insert)) = decode(&body) else {
            panic!("no row");
        };
        rows.offer(
            EventPosition { lsn, row },
            insert.relation,
            Xid::new(9),
            &insert.tuple,
        );
        if taken {
            rows.keep_offered();
        }
    }

    fn pending(limit: usize) -> (Arc<SentRows>, PendingRows) {
        let shared = Arc::new(SentRows::with_limit(limit));
        let mut rows = PendingRows::new(Arc::clone(&shared));
        announce(&mut rows, b'd');
        assert!(
            shared.take_incomplete(),
            "those of earlier processes are missing"
        );
        (shared, rows)
    }

    fn announce(rows: &mut PendingRows, identity: u8) {
        let body = relation(identity);
        let Ok(Message::Relation(relation)) = decode(&body) else {
            panic!("no relation");
        };
        rows.announce(&relation, &TableName::new("public", "outbox"));
    }

    fn ids(taken: &TakenKeys) -> Vec<String> {
        let keys = taken.keys.iter().flat_map(SentKeys::iter);
        let values = keys.flat_map(|key| key.values().map(<[u8]>::to_vec).collect::<Vec<_>>());
        values
            .map(|value| String::from_utf8(value).expect("a text"))
            .collect()
    }

    #[test]
    fn a_key_is_taken_once_its_commit_is_confirmed() {
        let (shared, mut rows) = pending(SentRows::LIMIT);
        for (lsn, row, id) in [(10, 0, "a"), (10, 1, "b"), (20, 0, "c")] {
            note(&mut rows, lsn, row, id, true);
        }
        note(&mut rows, 20, 1, "not taken by the sink", false);
        note(&mut rows, 20, 1, "d", true);
        rows.confirmed(Lsn::new(11));
        assert!(
            ids(&shared.take(Lsn::new(11), 100)).is_empty(),
            "in one chunk"
        );
        note(&mut rows, 30, 0, "e", true);
        rows.confirmed(Lsn::new(21));
        assert!(
            ids(&shared.take(Lsn::new(20), 1)).is_empty(),
            "acknowledged, not confirmed"
        );
        let taken = shared.take(Lsn::new(21), 1);
        assert_eq!(ids(&taken), ["a", "b", "c", "d"]);
        let table = shared.table(RelationId::new(7)).expect("a table");
        assert_eq!(table.columns, ["id"]);
        shared.give_back(taken);
        rows.confirmed(Lsn::new(40));
        assert_eq!(
            ids(&shared.take(Lsn::new(40), 1000)),
            ["a", "b", "c", "d", "e"]
        );
        assert!(!shared.take_incomplete());
    }

    #[test]
    fn what_is_sent_again_is_forgotten() {
        let (shared, mut rows) = pending(SentRows::LIMIT);
        for (row, id) in ["a", "b", "c"].into_iter().enumerate() {
            note(&mut rows, 10, row as u64, id, true);
        }
        rows.forget_from(EventPosition { lsn: 10, row: 1 });
        note(&mut rows, 10, 1, "b", true);
        rows.confirmed(Lsn::new(11));
        let taken = shared.take(Lsn::new(11), 1);
        assert_eq!(ids(&taken), ["a", "b"]);
        assert!(!shared.take_incomplete());
        // On another timeline other rows may have these keys.
        rows.forget_all();
        shared.give_back(taken);
        assert!(ids(&shared.take(Lsn::MAX, 1)).is_empty());
        assert!(shared.take_incomplete());
    }

    #[test]
    fn rows_that_are_not_noted_are_incomplete() {
        // Three keys of one byte.
        let (shared, mut rows) = pending(3 * (HEAD + 5));
        for row in 0..3 {
            note(&mut rows, 10, row, "a", true);
        }
        rows.confirmed(Lsn::new(11));
        note(&mut rows, 20, 0, "b", true);
        assert!(!shared.take_incomplete());
        rows.confirmed(Lsn::new(21));
        assert!(shared.take_incomplete(), "too many wait for the mark");
        assert_eq!(ids(&shared.take(Lsn::MAX, 1)).len(), 3);
        for row in 0..4 {
            note(&mut rows, 30, row, "c", true);
        }
        rows.confirmed(Lsn::new(31));
        assert!(
            shared.take_incomplete(),
            "too many wait for the confirmation"
        );
        for without_key in *b"fn" {
            announce(&mut rows, without_key);
            note(&mut rows, 40, 0, "d", true);
            rows.confirmed(Lsn::new(41));
            assert!(shared.take_incomplete());
        }
        assert!(ids(&shared.take(Lsn::MAX, 1)).is_empty());
    }
}
