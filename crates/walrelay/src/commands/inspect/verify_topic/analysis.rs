//! Finds what is wrong in the records of topics. No I/O: records in, findings out.
//!
//! Delivery is at least once: a relay that goes back sends a suffix again. So a repeat is `repeated`
//! wherever it stands, and only the first delivery of an event is `out of order`.
//!
//! Memory: about 45 to 90 bytes for each event and 85 to 165 for each key that is remembered, and
//! about 200 for each expected row. An event or key that was forgotten is unknown when it comes
//! again.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

use walrelay_sink::EventPosition;

use super::memory::{Distribution, Remembered};

/// Findings of a kind that are kept to be shown; further ones are counted.
const SHOWN: usize = 10;

/// The place of an event in the order of its key: its position in the log, or, without one, the
/// number of its first delivery from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    commit: u64,
    row: u64,
}

impl Order {
    /// Comes before all others: nothing tells the event's place.
    const UNKNOWN: Self = Self { commit: 0, row: 0 };

    /// Makes the n-th first delivery.
    fn nth(n: u64) -> Self {
        Self { commit: n, row: 0 }
    }

    /// Makes that of a position in the log.
    pub(super) fn from_position(position: EventPosition) -> Self {
        Self {
            commit: position.published_lsn().get(),
            row: position.row,
        }
    }

    /// Reads the value of a position header; `None` if it is none.
    pub(super) fn from_header(value: &[u8]) -> Option<Self> {
        let (commit, row) = str::from_utf8(value).ok()?.split_once('/')?;
        let digits = (commit.len(), row.len()) == (16, 8);
        Some(Self {
            commit: u64::from_str_radix(commit, 16).ok().filter(|_| digits)?,
            row: u32::from_str_radix(row, 16).ok()?.into(),
        })
    }
}

/// The place of a record. Topics are numbered by [`Analysis::add_topic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) topic: u32,
    pub(super) partition: i32,
    pub(super) offset: i64,
}

/// A record, as the analysis needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery<'a> {
    pub(super) at: At,
    pub(super) key: Option<&'a [u8]>,
    /// The event's id.
    pub(super) id: Option<&'a str>,
    /// The event's position.
    pub(super) position: Option<Order>,
    /// An operator had the record sent again: by `replay` or `resend`.
    pub(super) on_purpose: bool,
    /// The time from the commit to the writing of the record; `None` if it has no commit time.
    pub(super) latency: Option<Latency>,
}

/// The time from a commit to the writing of its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Latency {
    Millis(i64),
    /// The topic does not tell when a record was written.
    Unknown,
}

/// The fault that a finding is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FindingKind {
    /// An event that was delivered before.
    Repeated,
    /// The first delivery of an event, after a newer event of its key.
    OutOfOrder,
    /// A key whose last record is of an older event than its newest.
    Stale,
    /// A key in two partitions, which have no common order.
    Split,
    /// An expected event that was not delivered.
    Lost,
}

/// An instance of something wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The event's id, where it is known.
    pub(super) id: Option<String>,
    /// The record; `None` if it is lost.
    pub(super) at: Option<At>,
    /// The record that it is compared with: the last delivery, the newer event, or the key's first
    /// partition.
    pub(super) other: Option<At>,
}

/// The result.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) records: u64,
    /// Number of different events.
    pub(super) events: u64,
    /// Number of different keys.
    pub(super) keys: u64,
    pub(super) without_id: u64,
    /// Number of records that `replay` or `resend` sent: they are no findings.
    pub(super) on_purpose: u64,
    /// Number of records that may repeat one from before what was read or remembered, and of keys
    /// that were forgotten at an older event than their newest.
    pub(super) unjudged: u64,
    /// Whether ids or keys were forgotten.
    pub(super) forgot: bool,
    /// Whether records have a position.
    pub(super) positions: bool,
    /// The largest number of offsets between two deliveries of an event in a partition.
    pub(super) largest_distance: i64,
    pub(super) latency_ms: Distribution,
    /// Number of records with a commit time of which the topic does not tell when they were written.
    pub(super) untimed: u64,
    pub(super) counts: BTreeMap<FindingKind, u64>,
    /// The first of each kind.
    pub(super) shown: BTreeMap<FindingKind, Vec<Finding>>,
}

impl Findings {
    fn found(&mut self, kind: FindingKind, finding: impl FnOnce() -> Finding) {
        *self.counts.entry(kind).or_default() += 1;
        let shown = self.shown.entry(kind).or_default();
        if shown.len() < SHOWN {
            shown.push(finding());
        }
    }

    pub(super) fn count(&self, kind: FindingKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or_default()
    }
}

/// An event that was delivered.
#[derive(Debug)]
struct Event {
    order: Order,
    /// Its last delivery.
    at: At,
}

/// A key of a topic.
#[derive(Debug)]
struct Key {
    newest: Order,
    newest_offset: i64,
    last: Order,
    last_offset: i64,
    topic: u32,
    partition: i32,
    /// The orders are positions.
    positions: bool,
    /// The key is in another partition, too. Its order is not looked at any more.
    split: bool,
    /// Its first records were not read.
    late: bool,
}

impl Key {
    fn at(&self, offset: i64) -> At {
        At {
            topic: self.topic,
            partition: self.partition,
            offset,
        }
    }

    /// Returns what is wrong if nothing follows of the key. `forgot`: events were forgotten.
    /// Without positions, a repeat of one, or of one that was not read, counts as a new event.
    fn stale(&self, forgot: bool) -> Option<Finding> {
        let judged = !self.split && (self.positions || !(self.late || forgot));
        (judged && self.last < self.newest).then(|| Finding {
            id: None,
            at: Some(self.at(self.last_offset)),
            other: Some(self.at(self.newest_offset)),
        })
    }
}

/// Takes records, those of each partition in the order of their offsets.
#[derive(Debug)]
pub(super) struct Analysis {
    topics: u32,
    ids: Remembered<Event>,
    keys: Remembered<Key>,
    /// For each partition that is not read from its first record on: the position of the first one
    /// that is read.
    begun: HashMap<(u32, i32), Option<Order>>,
    /// The newest position of an event that was forgotten.
    forgotten: Order,
    /// Events that must be delivered, by the hash of topic and id.
    expected: HashMap<u64, (u32, Box<str>)>,
    findings: Findings,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Analysis {
    /// Remembers at least the last `remembered` events, and as many keys.
    pub(super) fn new(remembered: usize) -> Self {
        Self {
            topics: 0,
            ids: Remembered::new(remembered),
            keys: Remembered::new(remembered),
            begun: HashMap::new(),
            forgotten: Order::UNKNOWN,
            expected: HashMap::new(),
            findings: Findings::default(),
        }
    }

    /// Returns the number of a new topic.
    pub(super) fn add_topic(&mut self) -> u32 {
        self.topics += 1;
        self.topics - 1
    }

    /// Notes that a partition's first records are not read: events from before may be repeated.
    pub(super) fn begins_late(&mut self, topic: u32, partition: i32) {
        self.begun.insert((topic, partition), None);
    }

    /// Notes that an event must be in the topic.
    pub(super) fn expect(&mut self, topic: u32, id: Box<str>) {
        self.expected.insert(hash(&(topic, &*id)), (topic, id));
    }

    /// Takes the next record.
    pub(super) fn add(&mut self, delivery: &Delivery<'_>) {
        self.make_room();
        let findings = &mut self.findings;
        findings.records += 1;
        match delivery.latency {
            Some(Latency::Millis(millis)) => findings.latency_ms.add(millis),
            Some(Latency::Unknown) => findings.untimed += 1,
            None => {}
        }
        findings.on_purpose += u64::from(delivery.on_purpose);
        findings.positions |= delivery.position.is_some();
        let Some(id) = delivery.id else {
            findings.without_id += 1;
            return;
        };
        let at = delivery.at;
        let event = hash(&(at.topic, id));
        self.expected.remove(&event);
        let known = self.ids.get_mut(event);
        let key_hash = delivery.key.map(|key| hash(&(at.topic, key)));
        let key = key_hash.and_then(|key| self.keys.get_mut(key));
        let order = delivery
            .position
            .or_else(|| known.as_ref().map(|known| known.order))
            .unwrap_or_else(|| match &key {
                None => Order::nth(1),
                Some(key) if key.positions => Order::UNKNOWN,
                Some(key) => Order::nth(key.newest.commit + 1),
            });
        let begun = self.begun.get_mut(&(at.topic, at.partition));
        let late = begun.is_some();
        let before = begun.map(|begun| *begun.get_or_insert(order));
        let before = before.unwrap_or(Order::UNKNOWN).max(self.forgotten);
        let first = known.is_none();
        if let Some(known) = known {
            if !delivery.on_purpose {
                if known.at.partition == at.partition {
                    let distance = at.offset - known.at.offset;
                    findings.largest_distance = findings.largest_distance.max(distance);
                }
                findings.found(FindingKind::Repeated, || Finding {
                    id: Some(id.to_owned()),
                    at: Some(at),
                    other: Some(known.at),
                });
            }
            known.at = at;
        } else {
            findings.events += 1;
            self.ids.insert(event, Event { order, at });
        }
        let Some(key) = key else {
            if let Some(key) = key_hash {
                findings.keys += 1;
                let key_of = Key {
                    newest: order,
                    newest_offset: at.offset,
                    last: order,
                    last_offset: at.offset,
                    topic: at.topic,
                    partition: at.partition,
                    positions: delivery.position.is_some(),
                    split: false,
                    late,
                };
                self.keys.insert(key, key_of);
            }
            return;
        };
        if key.partition != at.partition {
            if !std::mem::replace(&mut key.split, true) {
                findings.found(FindingKind::Split, || Finding {
                    id: Some(id.to_owned()),
                    at: Some(at),
                    other: Some(key.at(key.newest_offset)),
                });
            }
            return;
        }
        if order == Order::UNKNOWN {
            findings.unjudged += 1;
            return;
        }
        if order > key.newest {
            (key.newest, key.newest_offset) = (order, at.offset);
            key.positions |= delivery.position.is_some();
        } else if first && order < key.newest && !delivery.on_purpose {
            if order <= before {
                findings.unjudged += 1;
            } else if !key.split {
                findings.found(FindingKind::OutOfOrder, || Finding {
                    id: Some(id.to_owned()),
                    at: Some(at),
                    other: Some(key.at(key.newest_offset)),
                });
            }
        }
        (key.last, key.last_offset) = (order, at.offset);
    }

    fn make_room(&mut self) {
        for event in self.ids.make_room() {
            self.forgotten = self.forgotten.max(event.order);
            self.findings.forgot = true;
        }
        for key in self.keys.make_room() {
            self.findings.forgot = true;
            // Between two records of a long repeat, perhaps.
            self.findings.unjudged += u64::from(key.stale(true).is_some());
        }
    }

    /// Ends the analysis.
    pub(super) fn finish(self) -> Findings {
        let mut findings = self.findings;
        let forgot = findings.forgot;
        let stale = self.keys.into_values();
        let stale = stale.filter_map(|key| key.stale(forgot));
        let mut stale: Vec<Finding> = stale.collect();
        stale.sort_by_key(|finding| finding.at);
        for finding in stale {
            findings.found(FindingKind::Stale, || finding);
        }
        let mut lost: Vec<(u32, Box<str>)> = self.expected.into_values().collect();
        lost.sort_unstable();
        for (_, id) in lost {
            findings.found(FindingKind::Lost, || Finding {
                id: Some(id.into()),
                at: None,
                other: None,
            });
        }
        findings
    }
}

#[cfg(test)]
mod tests;
