use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_sink::lock;

use super::keys::{KeyedTable, SentKeys};
use crate::table::TableName;

/// Bytes of keys from which on a chunk is not added to.
pub(super) const CHUNK: usize = 64 << 10;
/// The time after the last call of [`SentRows::settled`] for which a stream counts as open.
const ASKED: Duration = Duration::from_secs(3);

/// The keys of rows whose records are acknowledged, until the rows are marked.
#[derive(Debug)]
pub struct SentRows {
    queue: Mutex<Queue>,
    /// The bytes of the queue.
    bytes: AtomicUsize,
    limit: usize,
    /// Keys of rows whose events became dead letters are noted, too.
    notes_dead: bool,
    arrived: Notify,
}

#[derive(Debug)]
struct Queue {
    /// In the order of the WAL.
    items: VecDeque<Item>,
    /// The items at the front that were taken. They are not added to.
    taken: usize,
    /// The highest barrier before which every key was settled.
    settled: CommitEnd,
    /// When [`SentRows::settled`] was called.
    asked_at: Option<Instant>,
    tables: Vec<Arc<KeyedTable>>,
    /// The time zone of the session that reads rows.
    time_zone: String,
    /// The cluster whose rows are read.
    system: String,
    /// Tables whose rows have no key, which were not reported yet.
    without_key: BTreeSet<TableName>,
    /// Counts how often all was forgotten.
    forgotten: u64,
}

#[derive(Debug)]
enum Item {
    Keys(SentKeys),
    /// Every event of the transactions up to here has its key before this.
    Barrier(CommitEnd),
}

/// Keys that were taken, to be settled.
#[derive(Debug)]
pub struct TakenKeys {
    /// The keys.
    pub keys: SentKeys,
    items: usize,
    forgotten: u64,
}

impl SentRows {
    /// Bytes of keys that wait for their marks. With more, nothing is sent for a moment. A key of one
    /// uuid takes 84 bytes.
    pub const LIMIT: usize = 16 << 20;

    /// Creates an empty queue. `limit`: its bytes of keys, from which on it [is full](Self::is_full).
    pub fn with_limit(limit: usize) -> Self {
        let queue = Queue {
            items: VecDeque::new(),
            taken: 0,
            settled: CommitEnd::from_slot(Lsn::ZERO),
            asked_at: None,
            tables: Vec::new(),
            time_zone: String::new(),
            system: String::new(),
            without_key: BTreeSet::new(),
            forgotten: 0,
        };
        Self {
            queue: Mutex::new(queue),
            bytes: AtomicUsize::new(0),
            limit,
            notes_dead: false,
            arrived: Notify::new(),
        }
    }

    /// Sets that keys of rows whose events became dead letters come, too, with the reason. A relay that
    /// does not mark such rows needs none.
    #[must_use]
    pub fn noting_dead(mut self, notes: bool) -> Self {
        self.notes_dead = notes;
        self
    }

    /// Returns true if the keys of dead letters are noted.
    pub(super) fn notes_dead(&self) -> bool {
        self.notes_dead
    }

    /// Sets the `TimeZone` of the session that reads the rows from now on: of the tables that are announced after that.
    /// A source calls it when it opens a stream.
    pub fn set_time_zone(&self, time_zone: &str) {
        time_zone.clone_into(&mut lock(&self.queue).time_zone);
    }

    /// Returns the time zone of the session that reads rows.
    pub(super) fn time_zone(&self) -> String {
        lock(&self.queue).time_zone.clone()
    }

    /// Sets the cluster whose rows are read from now on.
    pub(super) fn set_system(&self, system: &str) {
        system.clone_into(&mut lock(&self.queue).system);
    }

    /// Returns the system identifier of the cluster whose rows are read; empty before the first stream.
    pub fn system(&self) -> String {
        lock(&self.queue).system.clone()
    }

    /// Returns true if no further key should come for a moment.
    pub fn is_full(&self) -> bool {
        self.bytes() >= self.limit
    }

    /// Returns the bytes of the keys.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the highest commit end before which every row is marked, or stored to be marked later;
    /// `None` if that holds for every acknowledged row. A source calls it before it confirms.
    pub fn settled(&self) -> Option<CommitEnd> {
        let mut queue = lock(&self.queue);
        queue.asked_at = Some(Instant::now());
        (!queue.items.is_empty()).then_some(queue.settled)
    }

    /// Returns true if there are keys.
    pub fn is_queued(&self) -> bool {
        !lock(&self.queue).items.is_empty()
    }

    /// Returns true if a stream confirms positions, so that keys which stay hold it up.
    pub fn holds_up(&self) -> bool {
        let queue = lock(&self.queue);
        let lately = queue.asked_at.is_some_and(|at| at.elapsed() < ASKED);
        lately && !queue.items.is_empty()
    }

    /// Waits until there are keys. Cancel-safe.
    pub async fn queued(&self) {
        loop {
            let arrived = self.arrived.notified();
            if !lock(&self.queue).items.is_empty() {
                return;
            }
            arrived.await;
        }
    }

    /// Returns the first keys, some `bytes` of them. Without [`settle`](Self::settle) the next call
    /// returns them again.
    pub fn take(&self, bytes: usize) -> TakenKeys {
        let mut queue = lock(&self.queue);
        let mut taken = TakenKeys {
            keys: SentKeys::default(),
            items: 0,
            forgotten: queue.forgotten,
        };
        for item in &queue.items {
            if let Item::Keys(keys) = item {
                if taken.keys.entries.len() >= bytes {
                    break;
                }
                taken.keys.entries.extend_from_slice(&keys.entries);
            }
            taken.items += 1;
        }
        queue.taken = taken.items;
        taken
    }

    /// Removes keys: their rows are marked, or stored to be marked later, or cannot be.
    pub fn settle(&self, taken: &TakenKeys) {
        let mut queue = lock(&self.queue);
        if taken.forgotten != queue.forgotten {
            return;
        }
        let items = taken.items.min(queue.items.len());
        let removed: Vec<Item> = queue.items.drain(..items).collect();
        queue.taken = 0;
        for item in removed {
            match item {
                Item::Barrier(end) => queue.settled = queue.settled.max(end),
                Item::Keys(keys) => {
                    self.bytes.fetch_sub(keys.entries.len(), Ordering::Relaxed);
                }
            }
        }
        while let Some(Item::Barrier(end)) = queue.items.front() {
            queue.settled = queue.settled.max(*end);
            queue.items.pop_front();
        }
    }

    /// Returns the table of a key.
    pub fn table(&self, number: u32) -> Option<Arc<KeyedTable>> {
        lock(&self.queue).tables.get(number as usize).cloned()
    }

    /// Takes the tables without a key that were announced since the last call: their rows cannot be
    /// marked.
    pub fn take_without_key(&self) -> BTreeSet<TableName> {
        std::mem::take(&mut lock(&self.queue).without_key)
    }

    /// Adds keys, as entries, and then the commit end of the acknowledged prefix.
    pub(super) fn push(&self, chunks: &[&[u8]], acknowledged: CommitEnd) {
        let mut queue = lock(&self.queue);
        for entries in chunks {
            self.bytes.fetch_add(entries.len(), Ordering::Relaxed);
            let may_add = queue.items.len() > queue.taken;
            match queue.items.back_mut() {
                Some(Item::Keys(keys)) if may_add && keys.entries.len() < CHUNK => {
                    keys.entries.extend_from_slice(entries);
                }
                _ => {
                    let entries = entries.to_vec();
                    queue.items.push_back(Item::Keys(SentKeys { entries }));
                }
            }
        }
        let is_new = acknowledged > queue.last_barrier();
        match queue.items.back_mut() {
            Some(Item::Barrier(end)) => *end = acknowledged.max(*end),
            Some(Item::Keys(_)) if is_new => queue.items.push_back(Item::Barrier(acknowledged)),
            _ => {}
        }
        if !chunks.is_empty() {
            self.arrived.notify_one();
        }
    }

    /// Forgets all keys: their events are sent again, or other rows may have their positions.
    pub(super) fn forget(&self) {
        let mut queue = lock(&self.queue);
        queue.items.clear();
        queue.taken = 0;
        queue.settled = CommitEnd::from_slot(Lsn::ZERO);
        queue.forgotten += 1;
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Learns a table, and returns its number.
    pub(super) fn announce(&self, table: KeyedTable) -> u32 {
        let mut queue = lock(&self.queue);
        let place = queue.tables.iter().rposition(|other| **other == table);
        let number = place.unwrap_or_else(|| {
            queue.tables.push(Arc::new(table));
            queue.tables.len() - 1
        });
        number.try_into().unwrap_or(u32::MAX)
    }

    /// Notes a table whose rows have no key.
    pub(super) fn without_key(&self, table: TableName) {
        lock(&self.queue).without_key.insert(table);
    }
}

impl Queue {
    /// Returns the highest barrier.
    fn last_barrier(&self) -> CommitEnd {
        let last = self.items.iter().rev().find_map(|item| match item {
            Item::Barrier(end) => Some(*end),
            Item::Keys(_) => None,
        });
        last.unwrap_or(self.settled)
    }
}
