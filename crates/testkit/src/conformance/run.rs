//! The run of one promise: its events, its sinks, and the relay's part.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fastrand::Rng;
use walrelay_sink::{AnySinkFactory, BatchingMode, EventPosition, SinkFactory as _};

use super::captured::{self, MARK};
use super::event::Event;
use super::session::{Limits, Session};
use super::{Bounds, Destination, Stored};

/// Bounds that no run reaches.
pub(super) const ROOMY: Bounds = Bounds {
    records: 50_000,
    bytes: 64 << 20,
};

/// The run of one promise.
pub(super) struct Run<'a> {
    pub(super) destination: &'a dyn Destination,
    pub(super) limits: Limits,
    pub(super) rng: Rng,
    /// The topic, which no other run uses.
    pub(super) topic: String,
    /// A text in each key, value and header value, which no other run uses.
    pub(super) marker: String,
    /// The number of events that were made.
    made: u64,
    /// Makes all sinks with roomy bounds, as a relay has one factory: a factory may remember what a
    /// server refused.
    factory: RefCell<AnySinkFactory>,
}

impl<'a> Run<'a> {
    pub(super) fn new(promise: &str, destination: &'a dyn Destination, limits: Limits) -> Self {
        captured::start();
        let rng = crate::rng(&format!("conformance::{promise}"));
        // Not from the seed: runs with the same seed may share a server.
        let unique = Rng::new().u64(..);
        let topic = format!("{}-{unique:016x}", promise.replace('_', "-"));
        destination.create_topic(&topic);
        Self {
            destination,
            limits,
            rng,
            topic,
            marker: format!("{MARK}{unique:016x}"),
            made: 0,
            factory: RefCell::new(destination.factory(ROOMY)),
        }
    }

    /// Makes an event with one of `keys` keys.
    pub(super) fn event(&mut self, number: u64, keys: u64) -> Event {
        let padding = self.rng.usize(..200);
        self.made += 1;
        Event {
            topic: self.topic.clone(),
            key: format!("{}-{}", self.marker, self.rng.u64(..keys)).into_bytes(),
            value: format!("{}-{number}-{}", self.marker, "x".repeat(padding)).into_bytes(),
            id: format!("{}-{number}", self.marker),
            note: self.marker.clone(),
            position: EventPosition::in_first_epoch(1, self.made),
        }
    }

    /// Creates another topic of this run.
    pub(super) fn another_topic(&self, name: &str) -> String {
        let topic = format!("{name}-{}", self.topic);
        self.destination.create_topic(&topic);
        topic
    }

    /// Returns the ids of a topic's records, in the server's order.
    pub(super) fn stored_ids(&self, topic: &str) -> Vec<String> {
        let stored = self.destination.stored(topic).into_iter();
        stored.map(|stored| stored.id).collect()
    }

    /// Makes events with numbers from zero.
    pub(super) fn events(&mut self, count: u64, keys: u64) -> Vec<Event> {
        (0..count).map(|number| self.event(number, keys)).collect()
    }

    /// Creates a sink with roomy bounds.
    #[track_caller]
    pub(super) fn open(&self) -> Session {
        self.open_by(&mut self.factory.borrow_mut())
    }

    /// Creates a sink with these bounds.
    #[track_caller]
    pub(super) fn open_within(&self, bounds: Bounds) -> Session {
        self.open_by(&mut self.destination.factory(bounds))
    }

    /// Creates a sink by this factory.
    #[track_caller]
    pub(super) fn open_by(&self, factory: &mut AnySinkFactory) -> Session {
        Session::new(self.limits, |deliveries| {
            let created = factory.create(None, deliveries);
            created.unwrap_or_else(|error| panic!("no sink can be created: {error}"))
        })
    }

    /// Opens a sink, delivers one event by it, and closes it.
    #[track_caller]
    pub(super) fn deliver(&self, event: &Event) {
        let mut session = self.open();
        let offered = session.offer(event, 0);
        offered.unwrap_or_else(|error| panic!("a good record is refused: {error}"));
        session.settle();
        assert_eq!(session.close(self.limits.patience).failures(), []);
    }

    /// Delivers all events as the relay does. After a failure it makes a new sink and sends again
    /// from the first event that is not acknowledged. An event whose record was refused as poison is
    /// sent alone, and left out if it is refused again. Calls `before` once before each event.
    ///
    /// Returns the numbers of the events that were left out.
    #[track_caller]
    pub(super) fn carry(
        &mut self,
        events: &[Event],
        mut before: impl FnMut(usize, &mut Session),
    ) -> BTreeSet<usize> {
        let mut poisoned = BTreeSet::new();
        let (mut first, mut called) = (0, 0);
        let mut deadline = Instant::now() + self.limits.patience;
        while first < events.len() {
            let mut session = self.open();
            let mut refused = BTreeMap::new();
            for (number, event) in events.iter().enumerate().skip(first) {
                if number >= called {
                    before(number, &mut session);
                    called = number + 1;
                }
                if poisoned.contains(&number) {
                    continue;
                }
                if self.rng.u8(..) < 8 {
                    let modes = [BatchingMode::Latency, BatchingMode::Throughput];
                    session.set_mode(modes[self.rng.usize(..2)]);
                }
                if let Err(error) = session.offer(event, number as u64) {
                    refused.insert(number, error);
                    break;
                }
            }
            session.settle();
            let failed = !session.reports.is(|state| state.failures == 0);
            let grace = if failed {
                Duration::ZERO
            } else {
                self.limits.patience
            };
            let state = session.close(grace).state();
            let open =
                |number: &usize| !state.is_delivered(*number as u64) && !poisoned.contains(number);
            let undelivered = (first..events.len()).find(open);
            let moved = undelivered != Some(first);
            first = undelivered.unwrap_or(events.len());
            let reported = state.outcomes.get(&(first as u64)).cloned();
            let error = reported.and_then(Result::err).or(refused.remove(&first));
            if error.is_some_and(|error| error.poison.is_some())
                && self.is_refused_alone(&events[first])
            {
                poisoned.insert(first);
            } else if !moved {
                assert!(
                    Instant::now() < deadline,
                    "event {first} is never delivered"
                );
                continue;
            }
            deadline = Instant::now() + self.limits.patience;
        }
        poisoned
    }

    /// Sends an event alone. Returns false if it is delivered.
    #[track_caller]
    fn is_refused_alone(&self, event: &Event) -> bool {
        let mut session = self.open();
        let error = match session.offer(event, 0) {
            Ok(()) => {
                session.settle();
                session.close(self.limits.patience).failures().pop()
            }
            Err(error) => Some(error),
        };
        if let Some(error) = &error {
            assert!(
                error.poison.is_some(),
                "refused alone as no poison: {error}"
            );
        }
        error.is_some()
    }

    /// Reads the topic. Asserts that each record is one of these events, unchanged, and that no
    /// repeat is there if the server drops them. Returns the events' numbers, in the server's order.
    #[track_caller]
    pub(super) fn stored(&self, events: &[Event]) -> Vec<usize> {
        let stored = self.destination.stored(&self.topic);
        let numbers: Vec<usize> = stored
            .into_iter()
            .map(|stored| {
                let number = events.iter().position(|event| event.id == stored.id);
                let Some(number) = number else {
                    panic!(
                        "a stored record has an id that no event has: {:?}",
                        stored.id
                    )
                };
                let event = &events[number];
                let sent = Stored {
                    key: Some(event.key.clone()),
                    value: Some(event.value.clone()),
                    id: event.id.clone(),
                };
                // The values are long.
                assert!(
                    stored == sent,
                    "a stored record differs from event {number}"
                );
                number
            })
            .collect();
        let distinct: BTreeSet<&usize> = numbers.iter().collect();
        assert!(
            !self.destination.drops_repeats() || distinct.len() == numbers.len(),
            "a repeat was stored: {numbers:?}"
        );
        numbers
    }
}
