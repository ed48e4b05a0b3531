//! Holds what walrelay makes of events against what another relay made of them. Pure: records in, differences out.
//!
//! An event is known by its id. Events of one side wait for the other side's for `patience`, then they are missing.
//! Memory: a few hundred bytes for each event that waits, and eight for each of the last [`REMEMBERED`] pairs.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use serde_json::Value;
use walrelay_kafka_sink::TailedRecord;

/// Ids of pairs that are kept, so that a repeated record is known as one.
const REMEMBERED: usize = 1_000_000;

/// Where a record has the id of its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IdPlace {
    /// In the first of these headers that it has.
    Headers(Vec<String>),
    /// In this member of its value, which is a JSON object.
    Member(String),
}

impl IdPlace {
    /// The id, as text.
    pub(super) fn of(&self, record: &TailedRecord) -> Option<String> {
        match self {
            Self::Headers(names) => names.iter().find_map(|wanted| {
                let found = record.headers.iter().find(|(name, _)| name == wanted);
                let value = found?.1.as_deref()?;
                Some(String::from_utf8_lossy(value).into_owned())
            }),
            Self::Member(member) => {
                let value: Value = serde_json::from_slice(record.value.as_deref()?).ok()?;
                match value.get(member)? {
                    Value::String(text) => Some(text.clone()),
                    Value::Null => None,
                    other => Some(other.to_string()),
                }
            }
        }
    }
}

/// What is compared of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: String,
    topic: String,
    /// `None`: the partition is not compared.
    partition: Option<i32>,
    key: u64,
    value: u64,
    /// Of the value as JSON, whatever its spaces and the order of its members.
    json: Option<u64>,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Event {
    /// `topic`: what the topic is called when its prefix is gone.
    pub(super) fn of(
        id: String,
        topic: &str,
        partition: Option<i32>,
        record: &TailedRecord,
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

/// How the two sides differ in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The other relay has not published it.
    MissingThere,
    /// walrelay has not published it.
    MissingHere,
    Topic,
    Partition,
    Key,
    /// The bytes, but not what they mean as JSON.
    Spelling,
    Value,
    /// The other relay published it before an event of the same key that walrelay publishes first.
    Order,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MissingThere => "only walrelay has it",
            Self::MissingHere => "only the other relay has it",
            Self::Topic => "another topic",
            Self::Partition => "another partition",
            Self::Key => "another key",
            Self::Spelling => "the value is the same JSON in other bytes",
            Self::Value => "another value",
            Self::Order => "another order within its key",
        })
    }
}

/// A difference, without any value of a row but the event's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) topic: String,
}

/// Topic and key, as hashes.
type Key = (u64, u64);

#[derive(Debug)]
struct Waiting {
    event: Event,
    since: Instant,
    /// Its place in the order of arrival.
    place: u64,
}

/// An event of walrelay's, in the order of its key.
#[derive(Debug)]
struct Queued {
    id: String,
    /// The other side's place, when it is there.
    place: Option<u64>,
}

/// Both sides, as far as they are not paired.
#[derive(Debug)]
pub(super) struct Comparison {
    patience: Duration,
    ours: HashMap<String, Waiting>,
    theirs: HashMap<String, Waiting>,
    /// By key, what walrelay published and what is not settled yet.
    order: HashMap<Key, VecDeque<Queued>>,
    /// The highest place that is settled, by key, and when.
    settled: HashMap<Key, (u64, Instant)>,
    paired: HashSet<u64>,
    paired_in_turn: VecDeque<u64>,
    places: u64,
    pub(super) pairs: u64,
    /// Records of events that were there already.
    pub(super) repeats: u64,
    pub(super) counts: BTreeMap<Kind, u64>,
}

impl Comparison {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            ours: HashMap::new(),
            theirs: HashMap::new(),
            order: HashMap::new(),
            settled: HashMap::new(),
            paired: HashSet::new(),
            paired_in_turn: VecDeque::new(),
            places: 0,
            pairs: 0,
            repeats: 0,
            counts: BTreeMap::new(),
        }
    }

    /// Whether nothing differed but the spelling of JSON.
    pub(super) fn is_equal(&self) -> bool {
        self.counts.keys().all(|kind| *kind == Kind::Spelling)
    }

    /// Events that wait for the other side's.
    pub(super) fn waiting(&self) -> usize {
        self.ours.len() + self.theirs.len()
    }

    /// Events of walrelay's that wait.
    pub(super) fn ours_waiting(&self) -> usize {
        self.ours.len()
    }

    fn found(&mut self, kind: Kind, id: &str, topic: &str) -> Difference {
        *self.counts.entry(kind).or_default() += 1;
        Difference {
            kind,
            id: id.to_owned(),
            topic: topic.to_owned(),
        }
    }

    fn is_repeat(&mut self, known: bool, id: &str) -> bool {
        let repeat = known || self.paired.contains(&hash(&id));
        self.repeats += u64::from(repeat);
        repeat
    }

    /// A record of walrelay's.
    pub(super) fn ours(&mut self, event: Event, now: Instant) -> Vec<Difference> {
        if self.is_repeat(self.ours.contains_key(&event.id), &event.id) {
            return Vec::new();
        }
        let queue = self.order.entry(event.key()).or_default();
        let there = self.theirs.remove(&event.id);
        queue.push_back(Queued {
            id: event.id.clone(),
            place: there.as_ref().map(|there| there.place),
        });
        if let Some(there) = there {
            return self.pair(&event, &there.event, now);
        }
        let id = event.id.clone();
        let (since, place) = (now, 0);
        self.ours.insert(
            id,
            Waiting {
                event,
                since,
                place,
            },
        );
        Vec::new()
    }

    /// A record of the other relay's.
    pub(super) fn theirs(&mut self, event: Event, now: Instant) -> Vec<Difference> {
        if self.is_repeat(self.theirs.contains_key(&event.id), &event.id) {
            return Vec::new();
        }
        self.places += 1;
        let place = self.places;
        let Some(here) = self.ours.remove(&event.id) else {
            let id = event.id.clone();
            let since = now;
            self.theirs.insert(
                id,
                Waiting {
                    event,
                    since,
                    place,
                },
            );
            return Vec::new();
        };
        let queue = self.order.get_mut(&here.event.key());
        let queued = queue.and_then(|queue| queue.iter_mut().find(|of| of.id == event.id));
        if let Some(queued) = queued {
            queued.place = Some(place);
        }
        self.pair(&here.event, &event, now)
    }

    fn pair(&mut self, here: &Event, there: &Event, now: Instant) -> Vec<Difference> {
        self.pairs += 1;
        let id = hash(&here.id);
        self.paired.insert(id);
        self.paired_in_turn.push_back(id);
        if self.paired_in_turn.len() > REMEMBERED
            && let Some(oldest) = self.paired_in_turn.pop_front()
        {
            self.paired.remove(&oldest);
        }
        let same_json = here.json.is_some() && here.json == there.json;
        let kinds = [
            (here.topic != there.topic).then_some(Kind::Topic),
            (here.key != there.key).then_some(Kind::Key),
            (here.partition.is_some()
                && there.partition.is_some()
                && here.partition != there.partition)
                .then_some(Kind::Partition),
            (here.value != there.value).then_some(if same_json {
                Kind::Spelling
            } else {
                Kind::Value
            }),
        ];
        let kinds = kinds.into_iter().flatten();
        let mut found: Vec<Difference> = kinds
            .map(|kind| self.found(kind, &here.id, &here.topic))
            .collect();
        found.extend(self.settle(&here.key(), here, now));
        found
    }

    /// Takes from the front of a key's queue what both sides have.
    fn settle(&mut self, key: &Key, last: &Event, now: Instant) -> Vec<Difference> {
        let mut found = Vec::new();
        let Some(mut queue) = self.order.remove(key) else {
            return found;
        };
        while let Some(place) = queue.front().and_then(|front| front.place) {
            let front = queue.pop_front();
            let before = self.settled.get(key).map_or(0, |(place, _)| *place);
            self.settled.insert(*key, (before.max(place), now));
            if let Some(front) = front.filter(|_| place < before) {
                found.push(self.found(Kind::Order, &front.id, &last.topic));
            }
        }
        if !queue.is_empty() {
            self.order.insert(*key, queue);
        }
        found
    }

    /// What has waited too long. `judged`: whether the other relay's event should have been among walrelay's.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        judged: impl Fn(&str) -> bool,
    ) -> Vec<Difference> {
        let patience = self.patience;
        let late = |waiting: &Waiting| now.duration_since(waiting.since) >= patience;
        let expired = |side: &mut HashMap<String, Waiting>| -> Vec<Event> {
            let mut late: Vec<Waiting> = side
                .extract_if(|_, waiting| late(waiting))
                .map(|of| of.1)
                .collect();
            late.sort_by_key(|waiting| waiting.place);
            late.into_iter().map(|waiting| waiting.event).collect()
        };
        let (ours, theirs) = (expired(&mut self.ours), expired(&mut self.theirs));
        let mut found = Vec::new();
        for event in ours {
            found.push(self.found(Kind::MissingThere, &event.id, &event.topic));
            let key = event.key();
            if let Some(queue) = self.order.get_mut(&key) {
                queue.retain(|queued| queued.id != event.id);
            }
            found.extend(self.settle(&key, &event, now));
        }
        for event in theirs.iter().filter(|event| judged(&event.id)) {
            found.push(self.found(Kind::MissingHere, &event.id, &event.topic));
        }
        let order = &self.order;
        self.settled
            .retain(|key, (_, at)| order.contains_key(key) || now.duration_since(*at) < patience);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn event(id: &str, key: &str, value: &str) -> Event {
        let record = TailedRecord {
            topic: "t".to_owned(),
            partition: 0,
            offset: 0,
            timestamp_ms: None,
            key: Some(key.into()),
            value: Some(value.into()),
            headers: Vec::new(),
        };
        Event::of(id.to_owned(), "t", Some(0), &record)
    }

    /// Feeds `here` or `there` with events `id:key:value`; the kinds of differences and their ids.
    fn compare(steps: &[(&str, &str)]) -> (Comparison, Vec<(Kind, String)>) {
        let mut comparison = Comparison::new(PATIENCE);
        let now = Instant::now();
        let mut found = Vec::new();
        for (side, text) in steps {
            let mut parts = text.splitn(3, ':').map(ToOwned::to_owned);
            let mut next = || parts.next().expect("id:key:value");
            let event = event(&next(), &next(), &next());
            found.extend(match *side {
                "here" => comparison.ours(event, now),
                _ => comparison.theirs(event, now),
            });
        }
        found.extend(comparison.expire(now + PATIENCE, |id| id != "before"));
        let found = found.into_iter().map(|of| (of.kind, of.id)).collect();
        (comparison, found)
    }

    #[test]
    fn what_differs_is_named() {
        let of = |kind, id: &str| vec![(kind, id.to_owned())];
        for (steps, expected) in [
            (vec![("here", "1:a:v"), ("there", "1:a:v")], vec![]),
            (vec![("there", "1:a:v"), ("here", "1:a:v")], vec![]),
            (
                vec![("here", "1:a:v"), ("there", "1:a:w")],
                of(Kind::Value, "1"),
            ),
            (
                vec![("here", "1:a:{\"a\": 1}"), ("there", "1:a:{\"a\":1}")],
                of(Kind::Spelling, "1"),
            ),
            (
                vec![("here", "1:a:v"), ("there", "1:b:v")],
                of(Kind::Key, "1"),
            ),
            (vec![("here", "1:a:v")], of(Kind::MissingThere, "1")),
            (vec![("there", "1:a:v")], of(Kind::MissingHere, "1")),
            (vec![("there", "before:a:v")], vec![]),
            // A repetition, before and after the pair.
            (
                vec![
                    ("here", "1:a:v"),
                    ("here", "1:a:v"),
                    ("there", "1:a:v"),
                    ("there", "1:a:v"),
                ],
                vec![],
            ),
        ] {
            assert_eq!(compare(&steps).1, expected, "{steps:?}");
        }
        let (comparison, _) = compare(&[("here", "1:a:v"), ("there", "1:a:v"), ("there", "1:a:v")]);
        assert_eq!(
            (comparison.pairs, comparison.repeats, comparison.waiting()),
            (1, 1, 0)
        );
        assert!(comparison.is_equal());
    }

    #[test]
    fn the_order_within_a_key_is_compared_and_no_other() {
        let swapped = [
            ("here", "1:a:v"),
            ("here", "2:a:v"),
            ("there", "2:a:v"),
            ("there", "1:a:v"),
        ];
        assert_eq!(compare(&swapped).1, [(Kind::Order, "2".to_owned())]);
        // The other relay is ahead.
        let ahead = [
            ("there", "2:a:v"),
            ("there", "1:a:v"),
            ("here", "1:a:v"),
            ("here", "2:a:v"),
        ];
        assert_eq!(compare(&ahead).1, [(Kind::Order, "2".to_owned())]);
        let two_keys = [
            ("here", "1:a:v"),
            ("here", "2:b:v"),
            ("there", "2:b:v"),
            ("there", "1:a:v"),
        ];
        assert_eq!(compare(&two_keys).1, []);
        // What is missing does not hide the order of the others.
        let hole = [
            ("here", "0:a:v"),
            ("here", "1:a:v"),
            ("here", "2:a:v"),
            ("there", "2:a:v"),
            ("there", "1:a:v"),
        ];
        let (comparison, found) = compare(&hole);
        assert_eq!(
            found,
            [
                (Kind::MissingThere, "0".to_owned()),
                (Kind::Order, "2".to_owned())
            ]
        );
        assert!(!comparison.is_equal() && comparison.order.is_empty());
    }

    #[test]
    fn an_id_is_found_in_a_header_or_in_the_value() {
        let record = TailedRecord {
            topic: "t".to_owned(),
            partition: 0,
            offset: 0,
            timestamp_ms: None,
            key: None,
            value: Some(br#"{"event_id": 17, "other": null}"#.to_vec()),
            headers: vec![("event_id".to_owned(), Some(b"x".to_vec()))],
        };
        let headers = IdPlace::Headers(vec!["id".to_owned(), "event_id".to_owned()]);
        assert_eq!(headers.of(&record).as_deref(), Some("x"));
        let member = |name: &str| IdPlace::Member(name.to_owned()).of(&record);
        assert_eq!(member("event_id").as_deref(), Some("17"));
        assert_eq!((member("other"), member("none")), (None, None));
    }
}
