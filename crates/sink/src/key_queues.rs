use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::Instant;

use crate::{HeldRecord, Record};

/// Records that a sink has accepted, by key, for a sink that sends each record by itself and may
/// have to send it again.
///
/// At most one record of a key is in flight. A record that is refused for the moment is sent again
/// alone: it holds back the later records of its key, and no other key. If `max_blocked` keys are
/// held back in this way, the others wait too: then the endpoint is at fault, and not a record.
///
/// Each record is in the queues from [`push`](Self::push) until [`done`](Self::done) or
/// [`take_all`](Self::take_all), so a [`Window`](crate::Window) bounds their records and bytes. No
/// clock is read: the caller says what time it is.
///
/// # Order
/// Records of one topic and key are sent in the order in which they were pushed. The other parts of an
/// address, such as a routing key, do not matter: several may lead to one place. Records without a
/// key have no order, and hold nothing back. After [`across_topics`](Self::across_topics) the topic does
/// not matter either.
pub struct KeyQueues {
    max_blocked: usize,
    /// Records of one key are in order also if their topics differ.
    by_key_alone: bool,
    /// The queue of each key, by number. No queue is empty.
    queues: HashMap<u64, Queue>,
    /// The number of the queue of a key.
    numbers: HashMap<Box<[u8]>, u64>,
    next_number: u64,
    /// Queues whose first record may be sent, in the order in which they became ready.
    ready: VecDeque<u64>,
    /// Queues whose first record is to be sent again, by the time.
    due: BTreeSet<(Instant, u64)>,
    /// The queues of the records in flight, by sequence number.
    in_flight: BTreeMap<u64, u64>,
    /// The number of queues whose first record was refused.
    blocked: usize,
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
    /// The record.
    pub record: HeldRecord,
}

struct Queue {
    /// `None` for a record without a key.
    key: Option<Box<[u8]>>,
    records: VecDeque<QueuedRecord>,
}

impl KeyQueues {
    /// Creates empty queues. At most `max_blocked` keys may be held back before the other keys wait
    /// too; zero counts as one.
    pub fn new(max_blocked: usize) -> Self {
        Self {
            max_blocked: max_blocked.max(1),
            by_key_alone: false,
            queues: HashMap::new(),
            numbers: HashMap::new(),
            next_number: 0,
            ready: VecDeque::new(),
            due: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            blocked: 0,
        }
    }

    /// Sends records of one key in order, also of different topics. To be called before the first
    /// record.
    #[must_use]
    pub fn across_topics(mut self) -> Self {
        self.by_key_alone = true;
        self
    }

    /// Appends a record that has taken `weight` bytes of the window. `seq` must not be in the queues.
    pub fn push(&mut self, record: &Record<'_>, seq: u64, weight: u64) {
        let queued = QueuedRecord {
            seq,
            weight,
            refusals: 0,
            record: HeldRecord::new(record),
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
        self.ready.push_back(number);
    }

    /// Returns a record to send, which is in flight until [`done`](Self::done) or
    /// [`retry_at`](Self::retry_at). Records to be sent again come first. `None`: there is none at
    /// `now`; ask again after one of those calls, a [`push`](Self::push), or at
    /// [`next_due`](Self::next_due).
    pub fn next(&mut self, now: Instant) -> Option<&QueuedRecord> {
        let number = match self.due.first() {
            Some((at, _)) if *at <= now => self.due.pop_first().map(|(_, number)| number),
            _ if self.is_blocked() => None,
            _ => self.ready.pop_front(),
        }?;
        let first = self.queues.get(&number)?.records.front()?;
        self.in_flight.insert(first.seq, number);
        Some(first)
    }

    /// Returns the time at which a record is to be sent again.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns true if so many keys are held back that no other key is sent.
    pub fn is_blocked(&self) -> bool {
        self.blocked >= self.max_blocked
    }

    /// Returns the number of keys that are held back by a record that was refused.
    pub fn blocked(&self) -> usize {
        self.blocked
    }

    /// Returns a record in flight; `None` if it is not in flight.
    pub fn in_flight(&self, seq: u64) -> Option<&QueuedRecord> {
        let number = self.in_flight.get(&seq)?;
        self.queues.get(number)?.records.front()
    }

    /// Makes a record in flight be sent again at `at`. It holds back its key until it is done.
    pub fn retry_at(&mut self, seq: u64, at: Instant) {
        self.retry_with(seq, |_| at);
    }

    /// Makes a record in flight be sent again at the time that `at` returns for the number of its
    /// earlier refusals.
    pub fn retry_with(&mut self, seq: u64, at: impl FnOnce(u32) -> Instant) {
        let Some(number) = self.in_flight.remove(&seq) else {
            return;
        };
        let queue = self.queues.get_mut(&number);
        if let Some(first) = queue.and_then(|queue| queue.records.front_mut()) {
            self.blocked += usize::from(first.refusals == 0);
            let at = at(first.refusals);
            first.refusals = first.refusals.saturating_add(1);
            self.due.insert((at, number));
        }
    }

    /// Removes a record in flight, which was delivered, or refused for good, and returns it: the
    /// caller reports it and gives back its room. `None` if it is not in flight.
    pub fn done(&mut self, seq: u64) -> Option<QueuedRecord> {
        let number = self.in_flight.remove(&seq)?;
        let queue = self.queues.get_mut(&number)?;
        let done = queue.records.pop_front()?;
        self.blocked -= usize::from(done.refusals > 0);
        if !queue.records.is_empty() {
            self.ready.push_back(number);
        } else if let Some(Queue { key: Some(key), .. }) = self.queues.remove(&number) {
            self.numbers.remove(&key);
        }
        Some(done)
    }

    /// Removes all records, also those in flight, in the order of their sequence numbers: the sink
    /// is broken or closed, and reports each as failed. A later answer to one of them is ignored by
    /// [`done`](Self::done) and [`retry_at`](Self::retry_at).
    pub fn take_all(&mut self) -> Vec<QueuedRecord> {
        let mut empty = Self::new(self.max_blocked);
        empty.by_key_alone = self.by_key_alone;
        let emptied = std::mem::replace(self, empty);
        let queues = emptied.queues.into_values();
        let mut all: Vec<_> = queues.flat_map(|queue| queue.records).collect();
        all.sort_unstable_by_key(|queued| queued.seq);
        all
    }
}

/// Joins topic and key. A topic's name has no NUL.
fn queue_key(topic: &str, key: &[u8]) -> Box<[u8]> {
    [topic.as_bytes(), b"\0", key].concat().into()
}

impl fmt::Debug for KeyQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyQueues")
            .field("keys", &self.queues.len())
            .field("in_flight", &self.in_flight.len())
            .field("blocked", &self.blocked)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MAX_BLOCKED: usize = 2;

    fn push(queues: &mut KeyQueues, topic: &str, key: Option<u8>, seq: u64) {
        let key = key.map(|key| [key]);
        let record = Record {
            topic,
            key: key.as_ref().map(|key| &key[..]),
            ..Record::default()
        };
        queues.push(&record, seq, seq + 100);
    }

    fn next(queues: &mut KeyQueues, now: Instant) -> Option<u64> {
        queues.next(now).map(|queued| queued.seq)
    }

    #[test]
    fn a_refused_record_holds_back_its_key_alone_until_too_many_are_held_back() {
        let mut queues = KeyQueues::new(MAX_BLOCKED);
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        push(&mut queues, "t", Some(1), 0);
        push(&mut queues, "t", Some(1), 1);
        push(&mut queues, "u", Some(1), 2);
        push(&mut queues, "t", None, 3);
        assert_eq!(next(&mut queues, now), Some(0));
        assert_eq!(queues.in_flight(0).map(|queued| queued.weight), Some(100));
        assert!(queues.in_flight(1).is_none(), "it waits for the first");
        queues.retry_at(0, later);
        assert_eq!((queues.blocked(), queues.next_due()), (1, Some(later)));
        assert_eq!(next(&mut queues, now), Some(2), "another topic's key");
        queues.retry_at(2, later + Duration::from_secs(1));
        assert!(queues.is_blocked());
        assert_eq!(next(&mut queues, now), None, "two keys are held back");
        assert_eq!(next(&mut queues, later), Some(0), "sent again, alone");
        assert_eq!(next(&mut queues, later), None);
        let done = queues.done(0).expect("in flight");
        assert_eq!((done.weight, done.refusals), (100, 1));
        assert!(queues.done(0).is_none(), "it is reported once");
        assert!(!queues.is_blocked());
        assert_eq!(next(&mut queues, later), Some(3));
        assert_eq!(next(&mut queues, later), Some(1), "the next of the key");
        let left: Vec<u64> = queues.take_all().iter().map(|queued| queued.seq).collect();
        assert_eq!(left, [1, 2, 3]);
        assert!(queues.done(1).is_none(), "a late answer");
        queues.retry_at(3, later);
        assert_eq!((queues.blocked(), queues.next_due()), (0, None));
    }

    #[test]
    fn records_may_be_in_order_by_key_alone() {
        let now = Instant::now();
        for (queues, sent) in [
            (KeyQueues::new(MAX_BLOCKED), vec![0, 1, 2, 3, 4]),
            (
                KeyQueues::new(MAX_BLOCKED).across_topics(),
                vec![0, 2, 3, 4],
            ),
        ] {
            let mut queues = queues;
            push(&mut queues, "t", Some(1), 0);
            push(&mut queues, "u", Some(1), 1);
            push(&mut queues, "t", Some(2), 2);
            push(&mut queues, "t", None, 3);
            push(&mut queues, "t", None, 4);
            let found: Vec<u64> = std::iter::from_fn(|| next(&mut queues, now)).collect();
            assert_eq!(found, sent);
            assert_eq!(queues.take_all().len(), 5);
        }
    }

    /// Draws a random number below `limit`: xorshift, by Marsaglia.
    fn random(state: &mut u64, limit: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % limit
    }

    /// In any order of pushes, answers and times: no record of a key is sent before an earlier one
    /// is done, no key waits for another one unless too many are held back, and in the end each
    /// record is done once.
    #[test]
    fn nobody_is_passed_or_forgotten() {
        for seed in 1..=500_u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut queues = KeyQueues::new(MAX_BLOCKED);
            let mut now = Instant::now();
            // The key of each record, the records to be done of each key, and those in flight.
            let mut keys: Vec<Option<u8>> = Vec::new();
            let mut open: BTreeMap<Option<u8>, VecDeque<u64>> = BTreeMap::new();
            let mut in_flight: Vec<u64> = Vec::new();
            let mut refused: BTreeSet<u64> = BTreeSet::new();
            let mut done = 0;
            for step in 0..2_000 {
                let faults = step < 300;
                match random(&mut state, 8) {
                    0..3 if faults => {
                        let key = random(&mut state, 5);
                        let key = (key > 0).then_some(key as u8);
                        let seq = keys.len() as u64;
                        push(&mut queues, "t", key, seq);
                        keys.push(key);
                        open.entry(key).or_default().push_back(seq);
                    }
                    3 => now += Duration::from_millis(random(&mut state, 20)),
                    4 | 5 if !in_flight.is_empty() => {
                        let at = random(&mut state, in_flight.len() as u64) as usize;
                        let seq = in_flight.swap_remove(at);
                        if faults && random(&mut state, 3) == 0 {
                            queues
                                .retry_at(seq, now + Duration::from_millis(random(&mut state, 30)));
                            refused.insert(seq);
                        } else {
                            let record = queues.done(seq).expect("in flight");
                            assert_eq!((record.seq, record.weight), (seq, seq + 100));
                            let open = open.entry(keys[seq as usize]).or_default();
                            open.retain(|other| *other != seq);
                            refused.remove(&seq);
                            done += 1;
                        }
                    }
                    _ => {
                        let sent = next(&mut queues, now);
                        if let Some(seq) = sent {
                            assert!(!in_flight.contains(&seq), "{seed}: sent twice at a time");
                            let key = keys[seq as usize];
                            let first = open[&key].front() == Some(&seq);
                            assert!(key.is_none() || first, "{seed}: {seq} passes a record");
                            in_flight.push(seq);
                        } else if refused.len() < MAX_BLOCKED {
                            // What is not sent now is in flight, refused, or behind such a record.
                            let idle = open.iter().any(|(key, open)| {
                                let waits =
                                    |seq: &u64| in_flight.contains(seq) || refused.contains(seq);
                                let mut candidates = open.iter().take(match key {
                                    Some(_) => 1,
                                    None => usize::MAX,
                                });
                                candidates.any(|seq| !waits(seq))
                            });
                            assert!(!idle, "{seed}: a key waits for nothing");
                        }
                    }
                }
                assert_eq!(queues.blocked(), refused.len(), "{seed}");
            }
            while done < keys.len() {
                now += Duration::from_secs(1);
                while let Some(seq) = next(&mut queues, now) {
                    in_flight.push(seq);
                }
                assert!(!in_flight.is_empty(), "{seed}: a record is forgotten");
                for seq in in_flight.drain(..) {
                    assert!(queues.done(seq).is_some(), "{seed}");
                    done += 1;
                }
            }
            assert!(
                queues.queues.is_empty() && queues.numbers.is_empty(),
                "{seed}"
            );
            assert!(queues.take_all().is_empty(), "{seed}");
        }
    }
}
