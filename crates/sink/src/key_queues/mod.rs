use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::Instant;

use crate::{HeldRecord, Record, Retrying, Window, id_text};
use lanes::{LaneNumber, Lanes};

mod lanes;
#[cfg(test)]
mod tests;

/// Records that a sink has accepted, by key, for a sink that sends each record by itself and may
/// have to send it again.
///
/// At most one record of a key is in flight. A record that is refused for the moment is sent again
/// alone: it holds back the later records of its key, and no other key.
///
/// Each record is in the queues from [`push`](Self::push) until [`done`](Self::done),
/// [`withdraw`](Self::withdraw) or [`take_all`](Self::take_all), so a [`Window`](crate::Window) bounds
/// their records and bytes. No clock is read: the caller says what time it is.
///
/// # Lanes
/// A lane is a destination that may fail by itself, such as the host and path of a URL, or an
/// exchange. If `max_blocked` keys of a lane are held back, its other keys wait too, and no other
/// lane does. A lane that [fails](Self::fail_lane) has one record in flight at a time, until one of
/// its records is done. Lanes take turns.
///
/// # Order
/// Records of one topic and key are sent in the order in which they were pushed. The other parts of an
/// address, such as a routing key, do not matter: several may lead to one place. Records without a
/// key have no order, and hold nothing back. After [`across_topics`](Self::across_topics) the topic does
/// not matter either.
pub struct KeyQueues {
    /// Records of one key are in order also if their topics differ.
    by_key_alone: bool,
    /// The queue of each key, by number. A queue is empty only while a record of it is refused for good.
    queues: HashMap<u64, Queue>,
    /// The number of the queue of a key.
    numbers: HashMap<Box<[u8]>, u64>,
    next_number: u64,
    lanes: Lanes,
    /// Queues whose first record is to be sent again, by the time.
    due: BTreeSet<(Instant, u64)>,
    /// The queues of the records in flight, by sequence number.
    in_flight: BTreeMap<u64, u64>,
    /// Records that are refused for good, by sequence number, each with its queue. Nothing else of
    /// that queue is sent.
    refused: HashMap<u64, (u64, QueuedRecord)>,
    /// Records have begun to wait since the last call of [`set_aside`](Self::set_aside).
    waits_anew: bool,
}

/// A record in [`KeyQueues`].
#[derive(Debug)]
pub struct QueuedRecord {
    /// The sequence number that the caller chose.
    pub seq: u64,
    /// The bytes of the window that the record has taken.
    pub weight: u64,
    /// The number of times that the record was sent and refused for the moment.
    pub refusals: u32,
    /// When the record was refused first, for a reason that it is given up for in the end.
    pub refused_since: Option<Instant>,
    /// Since when the record is sent again, for whatever reason.
    held_since: Option<Instant>,
    /// Why it is sent again.
    held_for: Box<str>,
    /// The record.
    pub record: HeldRecord,
    /// The record has given its room back, see [`Window::set_aside`].
    pub is_aside: bool,
    lane: LaneNumber,
}

impl QueuedRecord {
    /// Creates a record for a queue without lanes.
    pub fn new(record: &Record<'_>, seq: u64, weight: u64) -> Self {
        Self {
            seq,
            weight,
            refusals: 0,
            refused_since: None,
            held_since: None,
            held_for: Box::default(),
            record: HeldRecord::new(record),
            is_aside: false,
            lane: LaneNumber::default(),
        }
    }

    /// Gives the room of the record back while it waits. Returns false if it may not.
    pub fn set_aside(&mut self, window: &Window) -> bool {
        self.is_aside = self.is_aside || window.set_aside(self.weight);
        self.is_aside
    }
}

struct Queue {
    /// `None` for a record without a key.
    key: Option<Box<[u8]>>,
    records: VecDeque<QueuedRecord>,
}

impl KeyQueues {
    /// Creates empty queues. At most `max_blocked` keys of a lane may be held back before its other
    /// keys wait too; zero counts as one.
    pub fn new(max_blocked: usize) -> Self {
        Self {
            by_key_alone: false,
            queues: HashMap::new(),
            numbers: HashMap::new(),
            next_number: 0,
            lanes: Lanes::new(max_blocked),
            due: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            refused: HashMap::new(),
            waits_anew: false,
        }
    }

    /// Sends records of one key in order, also of different topics. To be called before the first
    /// record.
    #[must_use]
    pub fn across_topics(mut self) -> Self {
        self.by_key_alone = true;
        self
    }

    /// Bounds the records in flight of all lanes that fail, so that the others have room too. To be called
    /// before the first record; zero counts as one.
    #[must_use]
    pub fn with_probes(mut self, most: usize) -> Self {
        self.lanes.set_max_probes(most);
        self
    }

    /// Appends a record of a lane that has taken `weight` bytes of the window. `seq` must not be in the
    /// queues.
    pub fn push(&mut self, record: &Record<'_>, lane: &str, seq: u64, weight: u64) {
        let lane = self.lanes.enter(lane);
        let queued = QueuedRecord {
            lane,
            ..QueuedRecord::new(record, seq, weight)
        };
        let key = record.key.map(|key| {
            if self.by_key_alone {
                key.into()
            } else {
                queue_key(record.topic, key)
            }
        });
        if let Some(key) = &key
            && let Some(number) = self.numbers.get(key)
            && let Some(queue) = self.queues.get_mut(number)
        {
            queue.records.push_back(queued);
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        if let Some(key) = &key {
            self.numbers.insert(key.clone(), number);
        }
        let records = VecDeque::from([queued]);
        self.queues.insert(number, Queue { key, records });
        self.lanes.ready(lane, number);
    }

    /// Returns a record to send, which is in flight until [`done`](Self::done),
    /// [`refuse`](Self::refuse) or [`retry_at`](Self::retry_at). Records to be sent again come first in
    /// their lane. `None`: there is none at `now`; ask again after one of those calls, a
    /// [`push`](Self::push), a [`withdraw`](Self::withdraw), or at [`next_due`](Self::next_due).
    pub fn next(&mut self, now: Instant) -> Option<&QueuedRecord> {
        while let Some((at, number)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            if let Some(first) = first(&self.queues, number) {
                self.lanes.again(first.lane, number);
            }
        }
        let number = self.lanes.next(now)?;
        let first = first(&self.queues, number)?;
        self.in_flight.insert(first.seq, number);
        Some(first)
    }

    /// Returns the time at which there may be another record to send.
    pub fn next_due(&self) -> Option<Instant> {
        let due = self.due.first().map(|(at, _)| *at);
        due.into_iter().chain(self.lanes.next_due()).min()
    }

    /// Returns the number of keys that are held back by a record that is sent again.
    pub fn blocked(&self) -> usize {
        self.lanes.blocked()
    }

    /// Returns which keys are held back; `None`: none is. Takes a step for each.
    pub fn retrying(&self) -> Option<Retrying> {
        let due = self.due.iter().map(|(at, number)| (Some(*at), *number));
        let in_flight = self.in_flight.values().map(|number| (None, *number));
        let queues = due.chain(in_flight).chain(self.lanes.again_queues());
        let since = queues.filter_map(|(next, number)| {
            let record = first(&self.queues, number)?;
            let next = next.map(|at| at.max(self.lanes.paused_until(record.lane).unwrap_or(at)));
            Some((record.held_since?, next, record))
        });
        let (since, next, oldest) = since.min_by_key(|(since, ..)| *since)?;
        let (event_id, topic) = oldest.record.with(|record| {
            let event_id = record.event_id.map(id_text);
            (event_id, record.topic.to_owned())
        });
        Some(Retrying {
            keys: self.blocked() as u64,
            most: self.lanes.most_blocked() as u64,
            limit: self.lanes.max_blocked() as u64,
            since,
            event_id,
            topic,
            why: oldest.held_for.to_string(),
            next,
        })
        .filter(|retrying| retrying.keys > 0)
    }

    /// Sets the records aside that wait for a refused one of their key, and those of lanes that fail if there were
    /// other lanes: a window that is full of them stops all others. Takes a step for each key.
    pub fn set_aside(&mut self, window: &Window) {
        self.waits_anew = false;
        for queue in self.queues.values_mut() {
            let waits = queue.records.front().is_some_and(|first| {
                first.held_since.is_some() || self.lanes.waits_for_itself(first.lane)
            });
            if waits
                && !queue
                    .records
                    .iter_mut()
                    .all(|record| record.set_aside(window))
            {
                return;
            }
        }
    }

    /// Returns true if records have begun to wait since the last call of [`set_aside`](Self::set_aside), which would
    /// set them aside.
    pub fn waits_anew(&self) -> bool {
        self.waits_anew
    }

    /// Returns a record in flight; `None` if it is not in flight.
    pub fn in_flight(&self, seq: u64) -> Option<&QueuedRecord> {
        first(&self.queues, *self.in_flight.get(&seq)?)
    }

    /// Makes a record in flight be sent again at `at`. It holds back its key until it is done. `why`: the
    /// reason for views, without any key or value of the record.
    pub fn retry_at(&mut self, seq: u64, why: &str, at: Instant) {
        self.retry_with(seq, why, |_| at);
    }

    /// Makes a record in flight be sent again at the time that `at` returns for the number of its
    /// earlier refusals, as [`retry_at`](Self::retry_at) does.
    pub fn retry_with(&mut self, seq: u64, why: &str, at: impl FnOnce(u32) -> Instant) {
        let Some(number) = self.in_flight.remove(&seq) else {
            return;
        };
        let queue = self.queues.get_mut(&number);
        if let Some(first) = queue.and_then(|queue| queue.records.front_mut()) {
            self.lanes.held_back(first.lane, first.refusals == 0);
            self.waits_anew |= first.refusals == 0;
            let at = at(first.refusals);
            first.held_since.get_or_insert(at);
            if *first.held_for != *why {
                first.held_for = Box::from(why);
            }
            first.refusals = first.refusals.saturating_add(1);
            self.due.insert((at, number));
        }
    }

    /// Notes at `now` that a record in flight is refused for a reason that it is given up for in the end.
    /// Returns when that was so first. An outage does not count.
    pub fn refused_since(&mut self, seq: u64, now: Instant) -> Option<Instant> {
        let number = self.in_flight.get(&seq)?;
        let first = self.queues.get_mut(number)?.records.front_mut()?;
        Some(*first.refused_since.get_or_insert(now))
    }

    /// Notes that the lane of a record in flight fails: until one of its records is done, one at a time
    /// is sent, and none before `until`.
    pub fn fail_lane(&mut self, seq: u64, until: Instant) {
        if let Some(queued) = self.in_flight(seq) {
            let lane = queued.lane;
            self.lanes.fail(lane, until);
            self.waits_anew = true;
        }
    }

    /// Removes a record in flight, which was delivered, and returns it: the caller reports it and gives
    /// back its room. `None` if it is not in flight.
    pub fn done(&mut self, seq: u64) -> Option<QueuedRecord> {
        let (number, done) = self.take_first(seq)?;
        self.lanes.succeeded(done.lane);
        self.go_on(number);
        Some(done)
    }

    /// Notes that a record in flight is refused for good. The caller reports it and gives back its
    /// room. No later record of its key is sent until it is [withdrawn](Self::withdraw). `None` if it is
    /// not in flight.
    pub fn refuse(&mut self, seq: u64) -> Option<&QueuedRecord> {
        let refused = self.take_first(seq)?;
        let (_, record) = self.refused.entry(seq).insert_entry(refused).into_mut();
        Some(record)
    }

    /// Removes a record that was refused for good; with `behind`, it removes the later records of its
    /// key too, for which the caller gives back their room. Empty if there is none.
    pub fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<QueuedRecord> {
        let Some((number, refused)) = self.refused.remove(&seq) else {
            return Vec::new();
        };
        let mut withdrawn = vec![refused];
        if behind && let Some(queue) = self.queues.get_mut(&number) {
            for queued in queue.records.drain(..) {
                self.lanes.leave(queued.lane);
                withdrawn.push(queued);
            }
        }
        self.go_on(number);
        withdrawn
    }

    /// Takes the first record of a queue, which is in flight. Returns the queue too.
    fn take_first(&mut self, seq: u64) -> Option<(u64, QueuedRecord)> {
        let number = self.in_flight.remove(&seq)?;
        let first = self.queues.get_mut(&number)?.records.pop_front()?;
        self.lanes.ended(first.lane, first.refusals > 0);
        Some((number, first))
    }

    /// Makes the next record of a queue ready, or removes the queue if it has none.
    fn go_on(&mut self, number: u64) {
        if let Some(next) = first(&self.queues, number) {
            self.lanes.ready(next.lane, number);
        } else if let Some(Queue { key: Some(key), .. }) = self.queues.remove(&number) {
            self.numbers.remove(&key);
        }
    }

    /// Removes all records, also those in flight, in the order of their sequence numbers: the sink
    /// has ended, and reports each as failed. Those that are refused for good were reported.
    /// A later answer to one of them is ignored by [`done`](Self::done) and
    /// [`retry_at`](Self::retry_at).
    pub fn take_all(&mut self) -> Vec<QueuedRecord> {
        let empty = Self {
            by_key_alone: self.by_key_alone,
            ..Self::new(self.lanes.max_blocked())
        };
        let emptied = std::mem::replace(self, empty);
        let queues = emptied.queues.into_values();
        let mut all: Vec<_> = queues.flat_map(|queue| queue.records).collect();
        all.sort_unstable_by_key(|queued| queued.seq);
        all
    }
}

fn first(queues: &HashMap<u64, Queue>, number: u64) -> Option<&QueuedRecord> {
    queues.get(&number)?.records.front()
}

/// Joins topic and key, for the queue of records that are sent in order. A topic may have any byte, so the
/// number of its bytes comes first.
#[must_use]
pub fn queue_key(topic: &str, key: &[u8]) -> Box<[u8]> {
    let length = topic.len().to_be_bytes();
    [&length, topic.as_bytes(), key].concat().into()
}

impl fmt::Debug for KeyQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyQueues")
            .field("keys", &self.queues.len())
            .field("in_flight", &self.in_flight.len())
            .field("blocked", &self.blocked())
            .finish_non_exhaustive()
    }
}
