use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::EventPosition;

/// Keys of which an event is a dead letter, so that later events must follow it and not overtake.
///
/// Shared between the relay, which parks keys and asks, and whoever watches the topic of dead letters,
/// who makes known what earlier runs left there and what was resolved since.
///
/// # Memory
/// A key and some 200 bytes for each open dead letter, and some 50 bytes for each resolved one of which a
/// repeat may still be read: [`forget_resolved_before`](Self::forget_resolved_before).
///
/// # Ordering
/// A key is free again when **every** dead letter of it, those of this run included, was resolved. As a
/// resolution is written after its dead letter's record was acknowledged where it belongs, whatever the
/// relay sends of the key after that comes after it.
#[derive(Default)]
pub struct Parking {
    state: Mutex<State>,
    /// Open dead letters: most of the time there are none, and then asking costs one load.
    open: AtomicUsize,
    ready: AtomicBool,
    /// Dead letters of transactions whose commit record starts before this are written by nobody any more.
    confirmed: AtomicU64,
}

#[derive(Default)]
struct State {
    open: HashMap<EventPosition, Place>,
    /// Those of which a repeat may be read, which changes nothing.
    resolved: HashSet<EventPosition>,
    /// The open dead letters of each.
    places: HashMap<Place, BTreeSet<EventPosition>>,
}

/// A key, and the topic it is parked for; without one, it is parked for all.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    key: Box<[u8]>,
    topic: Option<Box<str>>,
}

impl Parking {
    /// Nothing is parked, and it is not known yet what earlier runs left.
    pub fn new() -> Self {
        Self::default()
    }

    /// What earlier runs left is known from here on.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Whether it is known what earlier runs left. Until then nothing may be sent.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// There is an open dead letter: the relay is about to write it, or it was read in the topic. Known
    /// ones, and ones that were resolved before, change nothing.
    pub fn park(&self, id: EventPosition, topic: Option<&str>, key: &[u8]) {
        let mut state = self.lock();
        if state.resolved.contains(&id) || state.open.contains_key(&id) {
            return;
        }
        let place = Place {
            key: key.into(),
            topic: topic.map(Into::into),
        };
        state.places.entry(place.clone()).or_default().insert(id);
        state.open.insert(id, place);
        self.open.store(state.open.len(), Ordering::Release);
    }

    /// A dead letter was resolved.
    pub fn resolve(&self, id: EventPosition) {
        let mut state = self.lock();
        state.resolved.insert(id);
        let Some(place) = state.open.remove(&id) else {
            return;
        };
        if let Some(dead_letters) = state.places.get_mut(&place) {
            dead_letters.remove(&id);
            if dead_letters.is_empty() {
                state.places.remove(&place);
            }
        }
        self.open.store(state.open.len(), Ordering::Release);
    }

    /// Whether this event, of this key and bound for this topic, must become a dead letter too: an
    /// **earlier** event has an open one. A relay that reads the log again meets events that come
    /// before a dead letter which it wrote the first time.
    pub fn is_parked(&self, event: EventPosition, topic: &str, key: &[u8]) -> bool {
        if self.open.load(Ordering::Acquire) == 0 {
            return false;
        }
        let state = self.lock();
        let place = |topic: Option<&str>| Place {
            key: key.into(),
            topic: topic.map(Into::into),
        };
        [place(None), place(Some(topic))].iter().any(|place| {
            let first = state.places.get(place).and_then(BTreeSet::first);
            first.is_some_and(|first| *first < event)
        })
    }

    /// The relay confirmed everything before this position: all dead letters of transactions whose commit
    /// record starts before it were acknowledged, and it writes none of them again.
    pub fn confirm(&self, lsn: u64) {
        self.confirmed.fetch_max(lsn, Ordering::AcqRel);
    }

    /// Up to where the relay has confirmed. Dead letters from before it were in their topic when this was
    /// called.
    pub fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Forgets which dead letters of transactions before this position were resolved. Call it once everything
    /// was read that was in the topic **after** [`confirmed`](Self::confirmed) gave this position: then no
    /// repeat of them is left to be read.
    pub fn forget_resolved_before(&self, lsn: u64) {
        let mut state = self.lock();
        let before = state.resolved.len();
        state.resolved.retain(|id| id.lsn >= lsn);
        if state.resolved.len() < before {
            state.resolved.shrink_to_fit();
        }
    }

    /// How many resolved dead letters are remembered.
    pub fn resolved(&self) -> usize {
        self.lock().resolved.len()
    }

    /// How many keys are parked, counted for each topic that they are parked for.
    pub fn keys(&self) -> usize {
        self.lock().places.len()
    }

    /// How many dead letters are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock, and half a change is not possible.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// By hand: keys are values of rows.
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

    const A: EventPosition = EventPosition { lsn: 1, row: 0 };
    const B: EventPosition = EventPosition { lsn: 1, row: 1 };
    const LATER: EventPosition = EventPosition { lsn: 2, row: 0 };

    #[test]
    fn a_key_is_free_when_its_last_letter_is_resolved() {
        let parking = Parking::new();
        assert!(!parking.is_parked(LATER, "t", b"k"));
        parking.park(A, Some("t"), b"k");
        parking.park(A, Some("t"), b"k");
        parking.park(B, Some("t"), b"k");
        let before = EventPosition { lsn: 0, row: 7 };
        assert!(
            !parking.is_parked(before, "t", b"k"),
            "it comes before the dead letter"
        );
        assert!(parking.is_parked(LATER, "t", b"k"));
        assert!(
            !parking.is_parked(LATER, "other", b"k") && !parking.is_parked(LATER, "t", b"other")
        );
        parking.resolve(A);
        assert!(parking.is_parked(LATER, "t", b"k"));
        parking.resolve(B);
        assert!(!parking.is_parked(LATER, "t", b"k"));
        assert_eq!(parking.open(), 0);
        // A repeat of a dead letter that was resolved.
        parking.park(A, Some("t"), b"k");
        assert!(!parking.is_parked(LATER, "t", b"k"));
    }

    #[test]
    fn resolved_letters_are_remembered_until_no_repeat_can_be_read() {
        let parking = Parking::new();
        for lsn in 0..10_000 {
            let id = EventPosition { lsn, row: 0 };
            parking.park(id, Some("t"), b"k");
            parking.resolve(id);
            // Read again, before the relay has confirmed it.
            parking.park(id, Some("t"), b"k");
            assert_eq!(parking.open(), 0);
            parking.confirm(lsn);
            if lsn % 100 == 0 {
                parking.forget_resolved_before(parking.confirmed());
            }
            assert!(parking.resolved() <= 101, "{}", parking.resolved());
        }
        parking.confirm(5);
        assert_eq!(parking.confirmed(), 9_999, "it does not go back");
        parking.forget_resolved_before(10_000);
        assert_eq!(parking.resolved(), 0);
    }

    #[test]
    fn a_key_whose_letter_has_no_topic_is_parked_for_all() {
        let parking = Parking::new();
        parking.park(A, None, b"secret-key");
        assert!(parking.is_parked(LATER, "any", b"secret-key"));
        assert!(!parking.is_parked(LATER, "any", b"other"));
        assert!(!format!("{parking:?}").contains("secret"), "{parking:?}");
    }
}
