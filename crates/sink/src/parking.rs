use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sync::lock;
use crate::{ClusterNames, EventOrigin, EventPosition, PublishedLsn};

/// Parked keys: keys with an open dead letter, which later events of the key must not overtake.
///
/// Shared by the relay, which parks keys and queries them, and the watcher of the topic of dead
/// letters, which adds the dead letters of earlier runs and removes the resolved ones.
///
/// # Memory
/// A key and some 200 bytes for each open dead letter, and some 50 bytes for each resolved one
/// whose repeat may still be read, or that is of another cluster: [`forget_resolved_before`](Self::forget_resolved_before).
///
/// # Clusters
/// Clusters may have slots of one name that share a topic of dead letters. An open dead letter of any of them parks its
/// key, because the outbox may have been moved from there. A dead letter is resolved only by a resolution of its
/// [`EventOrigin`].
///
/// # Ordering
/// A key is free again when **every** dead letter of it, those of this run included, is resolved. A
/// resolution is written after the dead letter's record was acknowledged in its own topic, so
/// events of the key that the relay sends after it follow that record.
///
/// # Readings
/// Before the relay sends anything, the topic of dead letters must be read to its end, and again
/// when the relay takes the slot over from another one, which may have parked keys meanwhile. Each
/// [`require_reading`](Self::require_reading) asks for one more reading, which starts later.
pub struct Parking {
    state: Mutex<ParkingState>,
    /// The number of open dead letters. It is usually 0, and then a query costs one load.
    open: AtomicUsize,
    /// The number of readings that were required.
    required: AtomicU64,
    /// The number of the last reading that is done.
    read: AtomicU64,
    /// The LSN before which all is confirmed: dead letters of transactions whose commit record
    /// starts before it are not written any more.
    confirmed: AtomicU64,
}

#[derive(Default)]
struct ParkingState {
    open: HashMap<EventOrigin, ParkedKey>,
    /// Resolved dead letters whose repeat may still be read. A repeat is ignored.
    resolved: HashSet<EventOrigin>,
    /// The open dead letters of each parked key.
    by_key: HashMap<ParkedKey, BTreeSet<EventOrigin>>,
    clusters: ClusterNames,
    /// The cluster whose log the relay reads.
    own: Option<Box<str>>,
}

/// A key and the topic that it is parked for; `None`: for all topics.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ParkedKey {
    key: Box<[u8]>,
    topic: Option<Box<str>>,
}

impl Default for Parking {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            open: AtomicUsize::default(),
            required: AtomicU64::new(1),
            read: AtomicU64::default(),
            confirmed: AtomicU64::default(),
        }
    }
}

impl Parking {
    /// Creates a set without any parked key, for which one reading is required.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requires one more reading, from the topic's present end at least: another relay may have
    /// written dead letters until now. Nothing is required any more after
    /// [`set_ready`](Self::set_ready).
    pub fn require_reading(&self) {
        self.required.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of the last required reading.
    pub fn required(&self) -> u64 {
        self.required.load(Ordering::Acquire)
    }

    /// Declares that a reading is done which began when this was the number of the last required
    /// one: the open dead letters that were in the topic are parked.
    pub fn set_read(&self, number: u64) {
        self.read.fetch_max(number, Ordering::AcqRel);
    }

    /// Declares that no reading is needed, for good: nothing can read the dead letters back.
    pub fn set_ready(&self) {
        self.set_read(u64::MAX);
    }

    /// Returns true if all required readings are done. Until then nothing may be sent.
    pub fn is_ready(&self) -> bool {
        self.read.load(Ordering::Acquire) >= self.required()
    }

    /// Parks the key of an open dead letter, which the relay is about to write or which was read
    /// from the topic. A dead letter that is open or was resolved already changes nothing. `system`: the cluster of the
    /// event; `None` if the dead letter names none.
    pub fn park(&self, id: EventPosition, system: Option<&str>, topic: Option<&str>, key: &[u8]) {
        let mut state = lock(&self.state);
        let origin = state.clusters.origin(id, system);
        if state.resolved.contains(&origin) || state.open.contains_key(&origin) {
            return;
        }
        let parked = ParkedKey::new(topic, key);
        let dead_letters = state.by_key.entry(parked.clone()).or_default();
        dead_letters.insert(origin.clone());
        state.open.insert(origin, parked);
        self.open.store(state.open.len(), Ordering::Release);
    }

    /// Marks a dead letter as resolved; frees its key if it was the last open one of the key. `system`: the cluster that
    /// the resolution names.
    pub fn resolve(&self, id: EventPosition, system: Option<&str>) {
        let mut state = lock(&self.state);
        let origin = state.clusters.origin(id, system);
        state.resolved.insert(origin.clone());
        let Some(parked) = state.open.remove(&origin) else {
            return;
        };
        if let Some(dead_letters) = state.by_key.get_mut(&parked) {
            dead_letters.remove(&origin);
            if dead_letters.is_empty() {
                state.by_key.remove(&parked);
            }
        }
        self.open.store(state.open.len(), Ordering::Release);
    }

    /// Returns true if this event, of this topic and key, must become a dead letter, too: an
    /// **earlier** event has an open one. Only earlier ones count: a relay that reads the WAL again
    /// also reads events before a dead letter that it wrote the first time.
    pub fn is_parked(&self, event: EventPosition, topic: &str, key: &[u8]) -> bool {
        if self.open.load(Ordering::Acquire) == 0 {
            return false;
        }
        let state = lock(&self.state);
        [None, Some(topic)].into_iter().any(|topic| {
            let dead_letters = state.by_key.get(&ParkedKey::new(topic, key));
            let first = dead_letters.and_then(BTreeSet::first);
            first.is_some_and(|(first, _)| *first < event)
        })
    }

    /// Sets the system identifier of the cluster whose log the relay reads and confirms.
    pub fn set_cluster(&self, system: &str) {
        lock(&self.state).own = Some(system.into());
    }

    /// Declares that the relay confirmed everything before this position: all dead letters of
    /// transactions whose commit record starts before it are acknowledged, and the relay writes
    /// none of them again.
    pub fn confirm(&self, before: PublishedLsn) {
        self.confirmed.fetch_max(before.get(), Ordering::AcqRel);
    }

    /// Returns the position that the relay has confirmed. Dead letters of transactions before it
    /// were in their topic when this was called.
    pub fn confirmed(&self) -> PublishedLsn {
        PublishedLsn::from_published(self.confirmed.load(Ordering::Acquire))
    }

    /// Forgets the resolved dead letters of transactions before this position. To be called after
    /// everything was read that was in the topic **after** [`confirmed`](Self::confirmed) returned
    /// this position: then no repeat of them is left to be read. Those of other clusters are kept, because the relay
    /// confirms nothing of their logs.
    pub fn forget_resolved_before(&self, before: PublishedLsn) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let count = state.resolved.len();
        let own = state.own.as_deref();
        let is_foreign = |system: &str| own.is_some_and(|own| own != system);
        state.resolved.retain(|(id, system)| {
            id.published_lsn() >= before || system.as_deref().is_some_and(is_foreign)
        });
        if state.resolved.len() < count {
            state.resolved.shrink_to_fit();
        }
    }

    /// Returns the number of resolved dead letters that are remembered.
    pub fn resolved(&self) -> usize {
        lock(&self.state).resolved.len()
    }

    /// Returns the number of parked keys, counted once for each topic.
    pub fn keys(&self) -> usize {
        lock(&self.state).by_key.len()
    }

    /// Returns the number of open dead letters.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }
}

impl ParkedKey {
    fn new(topic: Option<&str>, key: &[u8]) -> Self {
        Self {
            key: key.into(),
            topic: topic.map(Into::into),
        }
    }
}

// Not derived: keys are values of rows.
impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parking")
            .field("open", &self.open())
            .field("ready", &self.is_ready())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EventPosition = EventPosition::in_first_epoch(1, 0);
    const B: EventPosition = EventPosition::in_first_epoch(1, 1);
    const LATER: EventPosition = EventPosition::in_first_epoch(2, 0);

    /// The log of a server that the outbox was moved to starts lower.
    #[test]
    fn a_key_stays_parked_and_resolved_after_a_move_to_lower_positions() {
        let at = |epoch, lsn| EventPosition { epoch, lsn, row: 0 };
        let parking = Parking::new();
        parking.park(at(0, 900), None, Some("t"), b"k");
        assert!(parking.is_parked(at(1, 20), "t", b"k"));
        parking.resolve(at(0, 900), None);
        assert!(!parking.is_parked(at(1, 20), "t", b"k"));
        parking.confirm(PublishedLsn::new(0, 1_000));
        parking.resolve(at(1, 20), None);
        parking.confirm(PublishedLsn::new(1, 10));
        parking.forget_resolved_before(parking.confirmed());
        parking.park(at(1, 20), None, Some("t"), b"k");
        assert_eq!(parking.open(), 0, "it was resolved before it was read");
    }

    #[test]
    fn a_key_is_free_when_its_last_dead_letter_is_resolved() {
        let parking = Parking::new();
        assert!(!parking.is_parked(LATER, "t", b"k"));
        parking.park(A, None, Some("t"), b"k");
        parking.park(A, None, Some("t"), b"k");
        parking.park(B, None, Some("t"), b"k");
        let before = EventPosition::in_first_epoch(0, 7);
        assert!(
            !parking.is_parked(before, "t", b"k"),
            "the event is before the dead letter"
        );
        assert!(parking.is_parked(LATER, "t", b"k"));
        assert!(
            !parking.is_parked(LATER, "other", b"k") && !parking.is_parked(LATER, "t", b"other")
        );
        parking.resolve(A, None);
        assert!(parking.is_parked(LATER, "t", b"k"));
        parking.resolve(B, None);
        assert!(!parking.is_parked(LATER, "t", b"k"));
        assert_eq!(parking.open(), 0);
        // A repeat of a resolved dead letter.
        parking.park(A, None, Some("t"), b"k");
        assert!(!parking.is_parked(LATER, "t", b"k"));
    }

    /// Two clusters have a slot of one name, and events at one position.
    #[test]
    fn a_dead_letter_of_another_cluster_neither_frees_a_key_nor_keeps_one_from_being_parked() {
        let (own, other) = (Some("1"), Some("2"));
        for foreign in [other, None] {
            let parking = Parking::new();
            parking.park(A, own, Some("t"), b"k");
            parking.park(A, foreign, Some("t"), b"k");
            parking.resolve(A, foreign);
            assert!(parking.is_parked(LATER, "t", b"k"), "its own is open");
            parking.resolve(A, own);
            assert!(!parking.is_parked(LATER, "t", b"k"));
            assert_eq!(parking.open(), 0);

            let parking = Parking::new();
            parking.resolve(A, foreign);
            parking.park(A, own, Some("t"), b"k");
            assert!(
                parking.is_parked(LATER, "t", b"k"),
                "only the other is resolved"
            );

            let parking = Parking::new();
            parking.park(A, foreign, Some("t"), b"other");
            parking.park(A, own, Some("t"), b"k");
            assert!(parking.is_parked(LATER, "t", b"k") && parking.is_parked(LATER, "t", b"other"));
            assert!(!parking.is_parked(A, "t", b"k"), "it is not before itself");
            parking.resolve(A, foreign);
            assert!(
                parking.is_parked(LATER, "t", b"k") && !parking.is_parked(LATER, "t", b"other")
            );
        }
    }

    #[test]
    fn a_resolved_dead_letter_of_another_cluster_parks_no_key_when_it_is_repeated() {
        let parking = Parking::new();
        parking.set_cluster("1");
        for system in [Some("1"), Some("2"), None] {
            parking.park(A, system, Some("t"), b"k");
            parking.resolve(A, system);
        }
        parking.confirm(PublishedLsn::new(0, 100));
        parking.forget_resolved_before(parking.confirmed());
        assert_eq!(parking.resolved(), 1, "that of the other cluster");
        parking.park(A, Some("2"), Some("t"), b"k");
        assert!(!parking.is_parked(LATER, "t", b"k"));
    }

    #[test]
    fn resolved_dead_letters_are_remembered_until_no_repeat_can_be_read() {
        let parking = Parking::new();
        for lsn in 0..10_000 {
            let id = EventPosition::in_first_epoch(lsn, 0);
            parking.park(id, None, Some("t"), b"k");
            parking.resolve(id, None);
            // A repeat, read before the relay has confirmed the transaction.
            parking.park(id, None, Some("t"), b"k");
            assert_eq!(parking.open(), 0);
            parking.confirm(PublishedLsn::new(0, lsn));
            if lsn % 100 == 0 {
                parking.forget_resolved_before(parking.confirmed());
            }
            assert!(parking.resolved() <= 101, "{}", parking.resolved());
        }
        parking.confirm(PublishedLsn::new(0, 5));
        assert_eq!(parking.confirmed().get(), 9_999, "it does not go back");
        parking.forget_resolved_before(PublishedLsn::new(0, 10_000));
        assert_eq!(parking.resolved(), 0);
    }

    #[test]
    fn a_reading_that_began_before_it_was_required_is_not_enough() {
        let parking = Parking::new();
        assert!(!parking.is_ready());
        let first = parking.required();
        parking.require_reading();
        parking.set_read(first);
        assert!(!parking.is_ready());
        parking.set_read(parking.required());
        assert!(parking.is_ready());
        parking.require_reading();
        assert!(!parking.is_ready());
        parking.set_ready();
        parking.require_reading();
        assert!(parking.is_ready(), "nothing can be read");
    }

    #[test]
    fn a_key_whose_dead_letter_has_no_topic_is_parked_for_all_topics() {
        let parking = Parking::new();
        parking.park(A, None, None, b"secret-key");
        assert!(parking.is_parked(LATER, "any", b"secret-key"));
        assert!(!parking.is_parked(LATER, "any", b"other"));
        assert!(!format!("{parking:?}").contains("secret"), "{parking:?}");
    }
}
