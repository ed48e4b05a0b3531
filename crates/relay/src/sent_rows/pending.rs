use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use walrelay_lsn::{CommitEnd, Lsn, RelationId, RelationMap, Xid};
use walrelay_pgoutput::{Relation, ReplicaIdentity, Tuple};
use walrelay_sink::EventPosition;

use super::keys::{KeyedTable, SentKeys, dead_entry};
use super::queue::{CHUNK, SentRows};
use crate::table::TableName;

/// The keys of rows whose records the sink took, until they are acknowledged. `max_unconfirmed_records`
/// bounds their number.
#[derive(Debug)]
pub(crate) struct PendingRows {
    shared: Arc<SentRows>,
    /// The number of the table and the positions of the key's columns in a row, by the relation that
    /// the server announced. No entry: rows of it have no key.
    key_columns: RelationMap<(u32, Vec<usize>)>,
    /// The chunks in the order of the WAL. Only the last one is added to.
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that were released.
    released: usize,
    /// The length of the last chunk before the key that was written last, until the sink takes the
    /// record.
    offered: Option<usize>,
    /// The acknowledged position at the last release.
    acknowledged: CommitEnd,
    /// The entries of dead letters behind the first open event of a sink that ended. The next one passes
    /// over those that were acknowledged.
    set_aside: BTreeMap<EventPosition, SentKeys>,
}

/// Some keys, and the lowest and the highest event that one of them may be of.
#[derive(Debug)]
struct Chunk {
    keys: SentKeys,
    lowest: EventPosition,
    highest: EventPosition,
}

/// Returns the last chunk, for the key of this event.
fn last_chunk(chunks: &mut VecDeque<Chunk>, event: EventPosition) -> Option<&mut SentKeys> {
    let is_long = |chunk: &Chunk| chunk.keys.entries.len() >= CHUNK;
    if chunks.back().is_none_or(is_long) {
        chunks.push_back(Chunk {
            keys: SentKeys::default(),
            lowest: event,
            highest: event,
        });
    }
    let chunk = chunks.back_mut()?;
    chunk.lowest = chunk.lowest.min(event);
    chunk.highest = chunk.highest.max(event);
    Some(&mut chunk.keys)
}

impl PendingRows {
    pub(crate) fn new(shared: Arc<SentRows>) -> Self {
        Self {
            shared,
            key_columns: RelationMap::new(),
            chunks: VecDeque::new(),
            released: 0,
            offered: None,
            acknowledged: CommitEnd::from_slot(Lsn::ZERO),
            set_aside: BTreeMap::new(),
        }
    }

    /// Sets the cluster whose rows are read from now on.
    pub(crate) fn set_system(&self, system: &str) {
        self.shared.set_system(system);
    }

    /// Returns true if so many rows wait for their marks that no further one should be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.is_full()
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
            self.shared.without_key(table.clone());
            return;
        }
        let row_columns = relation.columns().map(|column| column.name.to_owned());
        let number = self.shared.announce(KeyedTable {
            relation: relation.id,
            table: table.clone(),
            columns,
            row_columns: row_columns.collect(),
            time_zone: self.shared.time_zone(),
        });
        self.key_columns.insert(relation.id, (number, positions));
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
        let Some((table, columns)) = self.key_columns.get(relation) else {
            return;
        };
        if let Some(chunk) = last_chunk(&mut self.chunks, position) {
            let begin = chunk.entries.len();
            let written = chunk.write(position, (*table, xid), columns, tuple);
            self.offered = written.then_some(begin);
        }
    }

    /// Turns the key that was offered into that of a dead letter; forgets it if those are not noted.
    pub(crate) fn offered_is_dead(&mut self, reason: &str) {
        let Some(begin) = self.offered.filter(|_| self.shared.notes_dead()) else {
            self.retract();
            return;
        };
        if let Some(Chunk { keys: chunk, .. }) = self.chunks.back_mut() {
            let dead = dead_entry(chunk.entries.get(begin..).unwrap_or_default(), reason);
            chunk.entries.truncate(begin);
            chunk.entries.extend_from_slice(&dead);
        }
    }

    /// Writes the key of a dead letter again that an earlier sink acknowledged, because its event is passed
    /// over.
    pub(crate) fn resume_dead(&mut self, event: EventPosition) {
        self.retract();
        let Some(entry) = self.set_aside.remove(&event) else {
            return;
        };
        if let Some(chunk) = last_chunk(&mut self.chunks, event) {
            chunk.entries.extend_from_slice(&entry.entries);
        }
    }

    /// Keeps the key that was offered: the sink took the record, or the row needs none.
    pub(crate) fn keep_offered(&mut self) {
        self.offered = None;
    }

    /// Forgets the key that was offered.
    pub(crate) fn retract(&mut self) {
        if let (Some(begin), Some(chunk)) = (self.offered.take(), self.chunks.back_mut()) {
            chunk.keys.entries.truncate(begin);
        }
    }

    /// Passes on the keys of the events before `first`, the first event that is not acknowledged.
    /// `acknowledged`: the commit end of the acknowledged prefix.
    pub(crate) fn release(&mut self, first: Option<EventPosition>, acknowledged: CommitEnd) {
        self.retract();
        let first = first.unwrap_or_default();
        let mut whole = 0;
        let mut end = self.released;
        for Chunk { keys: chunk, .. } in &self.chunks {
            end = if whole == 0 { self.released } else { 0 };
            let keys = chunk.iter_from(end);
            let before = keys.take_while(|key| key.position() < first);
            end += before.map(|key| key.entry.len()).sum::<usize>();
            if end < chunk.entries.len() {
                break;
            }
            whole += 1;
        }
        let mut from = self.released;
        let mut slices: Vec<&[u8]> = Vec::new();
        for (number, Chunk { keys: chunk, .. }) in self.chunks.iter().enumerate().take(whole + 1) {
            let until = if number < whole {
                chunk.entries.len()
            } else {
                end
            };
            slices.extend(
                chunk
                    .entries
                    .get(from..until)
                    .filter(|keys| !keys.is_empty()),
            );
            from = 0;
        }
        if !slices.is_empty() || acknowledged > self.acknowledged {
            self.shared.push(&slices, acknowledged);
            self.acknowledged = acknowledged;
        }
        // Nothing is read again before the first open event.
        self.set_aside = self.set_aside.split_off(&first);
        let has_rest = whole < self.chunks.len();
        self.chunks.drain(..whole);
        self.released = if has_rest { end } else { 0 };
    }

    /// Forgets the first key of this event or a later one, and all keys behind it: they are sent again.
    ///
    /// After a lost connection a transaction is read again, so keys of earlier events may be behind that
    /// key. Their rows were acknowledged at the first reading, whose keys are in front of it.
    pub(crate) fn forget_from(&mut self, event: EventPosition) {
        self.retract();
        let mut from = self.released;
        for Chunk { keys: chunk, .. } in &self.chunks {
            for key in chunk.iter_from(from) {
                if key.position() >= event && key.dead_reason().is_some() {
                    let entries = key.entry.to_vec();
                    self.set_aside.insert(key.position(), SentKeys { entries });
                }
            }
            from = 0;
        }
        let mut from = self.released;
        let mut kept = self.chunks.len();
        for (number, Chunk { keys: chunk, .. }) in self.chunks.iter_mut().enumerate() {
            let before = chunk.iter_from(from);
            let before = before.take_while(|key| key.position() < event);
            let len = from + before.map(|key| key.entry.len()).sum::<usize>();
            if len < chunk.entries.len() {
                chunk.entries.truncate(len);
                kept = number + usize::from(len > from);
                break;
            }
            from = 0;
        }
        self.chunks.truncate(kept);
        if self.chunks.is_empty() {
            self.released = 0;
        }
    }

    /// Forgets the keys of this event, which was noted and not released: it does not count as sent.
    pub(crate) fn forget_event(&mut self, event: EventPosition) {
        self.change_event(event, None);
    }

    /// Turns the keys of this event, which was noted and not released, into those of a dead letter;
    /// forgets them if those are not noted.
    pub(crate) fn event_is_dead(&mut self, event: EventPosition, reason: &str) {
        let reason = Some(reason).filter(|_| self.shared.notes_dead());
        self.change_event(event, reason);
    }

    fn change_event(&mut self, event: EventPosition, reason: Option<&str>) {
        self.retract();
        // A topic that is given up may change all keys, so not each of them is looked at for each.
        let has_event = |chunk: &Chunk| (chunk.lowest..=chunk.highest).contains(&event);
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            if !has_event(chunk) {
                continue;
            }
            let keys = &mut chunk.keys;
            let mut at = if number == 0 { self.released } else { 0 };
            let entry_range = keys.iter_from(at).find_map(|key| {
                let range = at..at + key.entry.len();
                at = range.end;
                (key.position() == event).then_some(range)
            });
            if let Some(range) = entry_range {
                let entry = keys.entries.get(range.clone()).unwrap_or_default();
                let dead = reason.map(|reason| dead_entry(entry, reason));
                keys.entries.splice(range, dead.unwrap_or_default());
            }
        }
    }

    /// Forgets all keys, also those that were passed on and are not marked: no position is confirmed
    /// for them, so their events are sent again.
    pub(crate) fn forget(&mut self) {
        self.chunks.clear();
        self.released = 0;
        self.offered = None;
        self.acknowledged = CommitEnd::from_slot(Lsn::ZERO);
        self.set_aside.clear();
        self.shared.forget();
    }
}
