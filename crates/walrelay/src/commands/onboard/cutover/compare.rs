//! Compares walrelay's records with those of the polling relay. No I/O: records in, differences
//! out.
//!
//! Records of both sides are paired by the id of their event. An event of one side that has no pair
//! within `patience` is missing on the other side. Memory: a few hundred bytes for each unpaired
//! event, and eight for each of the last [`REMEMBERED`] pairs.
//!
//! `ours` and `here` are walrelay's side, `theirs` and `there` that of the polling relay.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use walrelay_sink_kind::topics::ReadRecord;

/// Ids of pairs that are remembered, so that a repeated record is recognised.
const REMEMBERED: usize = 1_000_000;

/// The parts of a record that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: String,
    topic: String,
    /// `None` if the partition is not compared.
    partition: Option<i32>,
    /// Hash of the key.
    key: u64,
    /// Hash of the value's bytes.
    value: u64,
    /// Hash of the value as JSON, regardless of white space and the order of members.
    json: Option<u64>,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Event {
    /// Makes the event of a record; `topic` is the topic's name without the shadow prefix.
    pub(super) fn new(
        id: String,
        topic: &str,
        partition: Option<i32>,
        record: &ReadRecord,
    ) -> Self {
        let json = record.value.as_deref().and_then(|value| {
            let value: Value = serde_json::from_slice(value).ok()?;
            Some(hash(&value.to_string()))
        });
        Self {
            id,
            topic: topic.to_owned(),
            partition,
            key: hash(&record.key),
            value: hash(&record.value),
            json,
        }
    }

    fn key(&self) -> Key {
        (hash(&self.topic), self.key)
    }
}

/// A kind of difference between the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DifferenceKind {
    /// The polling relay has not published the event.
    MissingThere,
    /// walrelay has not published the event.
    MissingHere,
    Topic,
    Partition,
    Key,
    /// The values are the same JSON in different bytes.
    JsonBytes,
    Value,
    /// The polling relay published the event before an event of the same key that walrelay
    /// publishes first.
    Order,
}

impl fmt::Display for DifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MissingThere => "only walrelay has it",
            Self::MissingHere => "only the other relay has it",
            Self::Topic => "another topic",
            Self::Partition => "another partition",
            Self::Key => "another key",
            Self::JsonBytes => "the value is the same JSON in other bytes",
            Self::Value => "another value",
            Self::Order => "another order within its key",
        })
    }
}

/// A difference in one event. It contains no row value but the event id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Difference {
    pub(super) kind: DifferenceKind,
    /// The difference is the n-th of its kind.
    #[serde(skip)]
    pub(super) number: u64,
    pub(super) id: String,
    pub(super) topic: String,
}

/// Hashes of topic and key.
type Key = (u64, u64);

/// An event that only one side has published yet.
#[derive(Debug)]
struct Unpaired {
    event: Event,
    since: Instant,
    /// For an event of the polling relay: its number in the order of arrival. Otherwise 0.
    arrival: u64,
}

/// An event of walrelay's, in the queue of its key.
#[derive(Debug)]
struct Queued {
    id: String,
    /// The arrival number of the polling relay's event, once it has arrived.
    arrival: Option<u64>,
}

/// Compares the two sides.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    patience: Duration,
    ours: HashMap<String, Unpaired>,
    theirs: HashMap<String, Unpaired>,
    /// For each key, walrelay's events in order, from the first one that is not paired.
    order: HashMap<Key, VecDeque<Queued>>,
    /// For each key, the highest arrival number of a pair taken from `order`, and when it was
    /// taken.
    settled: HashMap<Key, (u64, Instant)>,
    /// Hashes of the ids of the last [`REMEMBERED`] pairs, and the same in their order.
    paired: HashSet<u64>,
    paired_order: VecDeque<u64>,
    /// The last arrival number.
    arrivals: u64,
    pub(super) pairs: u64,
    /// Records of events that the same side had published before.
    pub(super) repeats: u64,
    pub(super) counts: BTreeMap<DifferenceKind, u64>,
    /// Differences that the caller has not taken yet.
    pub(super) found: Vec<Difference>,
}

impl Comparison {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            ..Self::default()
        }
    }

    /// Returns true if nothing differed but the bytes of equal JSON.
    pub(super) fn is_equal(&self) -> bool {
        self.counts
            .keys()
            .all(|kind| *kind == DifferenceKind::JsonBytes)
    }

    /// Returns the number of events that are not paired.
    pub(super) fn unpaired(&self) -> usize {
        self.ours.len() + self.theirs.len()
    }

    /// Returns the number of walrelay's events that are not paired.
    pub(super) fn ours_unpaired(&self) -> usize {
        self.ours.len()
    }

    fn add_difference(&mut self, kind: DifferenceKind, id: &str, topic: &str) {
        let number = self.counts.entry(kind).or_default();
        *number += 1;
        self.found.push(Difference {
            kind,
            number: *number,
            id: id.to_owned(),
            topic: topic.to_owned(),
        });
    }

    /// Returns true if the event was paired before, or is `known` to be unpaired; counts it then.
    fn is_repeat(&mut self, known: bool, id: &str) -> bool {
        let repeat = known || self.paired.contains(&hash(&id));
        self.repeats += u64::from(repeat);
        repeat
    }

    /// Takes an event of walrelay's.
    pub(super) fn add_ours(&mut self, event: Event, now: Instant) {
        if self.is_repeat(self.ours.contains_key(&event.id), &event.id) {
            return;
        }
        let queue = self.order.entry(event.key()).or_default();
        let there = self.theirs.remove(&event.id);
        queue.push_back(Queued {
            id: event.id.clone(),
            arrival: there.as_ref().map(|there| there.arrival),
        });
        if let Some(there) = there {
            self.pair(&event, &there.event, now);
        } else {
            let unpaired = Unpaired {
                event,
                since: now,
                arrival: 0,
            };
            self.ours.insert(unpaired.event.id.clone(), unpaired);
        }
    }

    /// Takes an event of the polling relay's.
    pub(super) fn add_theirs(&mut self, event: Event, now: Instant) {
        if self.is_repeat(self.theirs.contains_key(&event.id), &event.id) {
            return;
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        let Some(here) = self.ours.remove(&event.id) else {
            let unpaired = Unpaired {
                event,
                since: now,
                arrival,
            };
            self.theirs.insert(unpaired.event.id.clone(), unpaired);
            return;
        };
        let queue = self.order.get_mut(&here.event.key());
        let queued = queue.and_then(|queue| queue.iter_mut().find(|of| of.id == event.id));
        if let Some(queued) = queued {
            queued.arrival = Some(arrival);
        }
        self.pair(&here.event, &event, now);
    }

    fn pair(&mut self, here: &Event, there: &Event, now: Instant) {
        self.pairs += 1;
        let id = hash(&here.id);
        self.paired.insert(id);
        self.paired_order.push_back(id);
        if self.paired_order.len() > REMEMBERED
            && let Some(oldest) = self.paired_order.pop_front()
        {
            self.paired.remove(&oldest);
        }
        let partitions = here.partition.zip(there.partition);
        let other_value = if here.json.is_some() && here.json == there.json {
            DifferenceKind::JsonBytes
        } else {
            DifferenceKind::Value
        };
        for (differs, kind) in [
            (here.topic != there.topic, DifferenceKind::Topic),
            (here.key != there.key, DifferenceKind::Key),
            (
                partitions.is_some_and(|(here, there)| here != there),
                DifferenceKind::Partition,
            ),
            (here.value != there.value, other_value),
        ] {
            if differs {
                self.add_difference(kind, &here.id, &here.topic);
            }
        }
        self.settle(here, now);
    }

    /// Removes pairs from the front of the queue of the event's key; those that arrived out of order
    /// are differences.
    fn settle(&mut self, event: &Event, now: Instant) {
        let key = event.key();
        let Some(mut queue) = self.order.remove(&key) else {
            return;
        };
        while let Some(arrival) = queue.front().and_then(|front| front.arrival) {
            let front = queue.pop_front();
            let highest = self.settled.get(&key).map_or(0, |(arrival, _)| *arrival);
            self.settled.insert(key, (highest.max(arrival), now));
            if let Some(front) = front.filter(|_| arrival < highest) {
                self.add_difference(DifferenceKind::Order, &front.id, &event.topic);
            }
        }
        if !queue.is_empty() {
            self.order.insert(key, queue);
        }
    }

    /// Removes events that have had no pair for `patience`: they are missing. An event of the
    /// polling relay is missing only if `is_expected` says of its id that walrelay publishes it.
    pub(super) fn expire(&mut self, now: Instant, is_expected: impl Fn(&str) -> bool) {
        let patience = self.patience;
        let expired = |side: &mut HashMap<String, Unpaired>| -> Vec<Event> {
            let mut expired: Vec<Unpaired> = side
                .extract_if(|_, event| now.duration_since(event.since) >= patience)
                .map(|(_, event)| event)
                .collect();
            expired.sort_by_key(|event| event.arrival);
            expired.into_iter().map(|expired| expired.event).collect()
        };
        let (ours, theirs) = (expired(&mut self.ours), expired(&mut self.theirs));
        for event in ours {
            self.add_difference(DifferenceKind::MissingThere, &event.id, &event.topic);
            if let Some(queue) = self.order.get_mut(&event.key()) {
                queue.retain(|queued| queued.id != event.id);
            }
            self.settle(&event, now);
        }
        for event in theirs.iter().filter(|event| is_expected(&event.id)) {
            self.add_difference(DifferenceKind::MissingHere, &event.id, &event.topic);
        }
        let order = &self.order;
        self.settled
            .retain(|key, (_, at)| order.contains_key(key) || now.duration_since(*at) < patience);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn event(id: &str, key: &str, value: &str) -> Event {
        let record = ReadRecord {
            topic: "t".to_owned(),
            key: Some(key.into()),
            value: Some(value.into()),
            ..ReadRecord::default()
        };
        Event::new(id.to_owned(), "t", Some(0), &record)
    }

    /// Adds events `id:key:value` to the side `here` or `there`, such as
    /// `here 1:a:v; there 1:a:v`. Returns the kinds and ids of differences.
    fn compare(steps: &str) -> (Comparison, Vec<(DifferenceKind, String)>) {
        let mut comparison = Comparison::new(PATIENCE);
        let now = Instant::now();
        for step in steps.split("; ") {
            let (side, text) = step.split_once(' ').expect("side and event");
            let mut parts = text.splitn(3, ':');
            let mut next = || parts.next().expect("id:key:value");
            let event = event(next(), next(), next());
            match side {
                "here" => comparison.add_ours(event, now),
                _ => comparison.add_theirs(event, now),
            }
        }
        comparison.expire(now + PATIENCE, |id| id != "before");
        let found = std::mem::take(&mut comparison.found).into_iter();
        let found = found.map(|of| (of.kind, of.id)).collect();
        (comparison, found)
    }

    #[test]
    fn differences_are_classified() {
        for (steps, expected) in [
            ("here 1:a:v; there 1:a:v", None),
            ("there 1:a:v; here 1:a:v", None),
            ("here 1:a:v; there 1:a:w", Some(DifferenceKind::Value)),
            (
                "here 1:a:{\"a\": 1}; there 1:a:{\"a\":1}",
                Some(DifferenceKind::JsonBytes),
            ),
            ("here 1:a:v; there 1:b:v", Some(DifferenceKind::Key)),
            ("here 1:a:v", Some(DifferenceKind::MissingThere)),
            ("there 1:a:v", Some(DifferenceKind::MissingHere)),
            ("there before:a:v", None),
            // Repeats, before and after the pair.
            ("here 1:a:v; here 1:a:v; there 1:a:v; there 1:a:v", None),
        ] {
            let expected: Vec<_> = expected
                .map(|kind| (kind, "1".to_owned()))
                .into_iter()
                .collect();
            assert_eq!(compare(steps).1, expected, "{steps}");
        }
        let (comparison, _) = compare("here 1:a:v; there 1:a:v; there 1:a:v");
        assert_eq!(
            (comparison.pairs, comparison.repeats, comparison.unpaired()),
            (1, 1, 0)
        );
        assert!(comparison.is_equal());
    }

    #[test]
    fn the_order_is_compared_within_a_key_only() {
        let of = |kind, id: &str| (kind, id.to_owned());
        let overtaken = || of(DifferenceKind::Order, "2");
        let swapped = compare("here 1:a:v; here 2:a:v; there 2:a:v; there 1:a:v").1;
        assert_eq!(swapped, [overtaken()]);
        // The polling relay is ahead.
        let ahead = compare("there 2:a:v; there 1:a:v; here 1:a:v; here 2:a:v").1;
        assert_eq!(ahead, [overtaken()]);
        let two_keys = compare("here 1:a:v; here 2:b:v; there 2:b:v; there 1:a:v").1;
        assert_eq!(two_keys, []);
        // A missing event does not hide the order of the others.
        let (comparison, hole) =
            compare("here 0:a:v; here 1:a:v; here 2:a:v; there 2:a:v; there 1:a:v");
        assert_eq!(hole, [of(DifferenceKind::MissingThere, "0"), overtaken()]);
        assert!(!comparison.is_equal() && comparison.order.is_empty());
    }
}
