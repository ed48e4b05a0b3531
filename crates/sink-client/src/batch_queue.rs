use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::time::Instant;

use walrelay_sink::{HeldRecord, QueuedRecord, Record, Retrying, Waiting, Window, queue_key};

use crate::Queue;

/// Accepted records in order, for a sink that sends them in batches.
///
/// A record that is refused for good leaves the queue. No later record of its topic and key gets into a
/// batch until the refused one is withdrawn.
#[derive(Default)]
pub struct BatchQueue {
    /// The records that are sent.
    batch: Vec<QueuedRecord>,
    waiting: VecDeque<QueuedRecord>,
    /// By sequence number.
    refused: HashMap<u64, QueuedRecord>,
    /// The sequence number of the refused record, by topic and key.
    blocked: HashMap<Box<[u8]>, u64>,
    /// Topics whose records the sink holds back, for views.
    held: BTreeMap<Box<str>, Held>,
    /// All records are held back, for views.
    all_held: Option<Held>,
    /// Records have begun to wait for held topics since records were set aside.
    waits_anew: bool,
}

/// The reason why the records of a topic, or all records, are held back.
#[derive(Debug, Clone)]
pub struct Held {
    /// The server's answer, without any key or value of a record.
    pub why: String,
    /// Since when they are.
    pub since: Instant,
    /// When the first record is sent again.
    pub next: Instant,
}

impl BatchQueue {
    /// Makes a batch of the first records, at most `max_records` or some more bytes than `max_bytes`, and
    /// without those that are `held`. The records of the last batch are the first, unless they were
    /// [taken](Self::take_batch). They are in the batch until the next call.
    pub fn next_batch(
        &mut self,
        max_records: usize,
        max_bytes: u64,
        mut held: impl FnMut(&Record<'_>) -> bool,
    ) -> &[QueuedRecord] {
        let last = std::mem::take(&mut self.batch);
        self.put_back(last);
        let mut passed = Vec::new();
        let mut bytes = 0;
        while self.batch.len() < max_records
            && bytes < max_bytes
            && let Some(queued) = self.waiting.pop_front()
        {
            if self.is_blocked(&queued) || queued.record.with(&mut held) {
                passed.push(queued);
            } else {
                bytes += queued.weight;
                self.batch.push(queued);
            }
        }
        self.put_back(passed);
        &self.batch
    }

    /// Notes that the records of a topic are held back.
    pub fn hold(&mut self, topic: &str, held: Held) {
        self.waits_anew |= self.held.insert(topic.into(), held).is_none();
    }

    /// Notes that all records are held back, because the first one is sent again at `next`.
    pub fn hold_all(&mut self, why: &str, now: Instant, next: Instant) {
        let since = self.all_held.as_ref().map_or(now, |held| held.since);
        let why = why.to_owned();
        self.all_held = Some(Held { why, since, next });
    }

    /// Notes that the records are not held back any more because of the first one.
    pub fn release_all(&mut self) {
        self.all_held = None;
    }

    /// Notes that the records of a topic are not held back any more.
    pub fn release(&mut self, topic: &str) {
        self.held.remove(topic);
    }

    /// Returns which keys are held back with their topics; `None`: none is. Takes a step for each record.
    pub fn retrying(&self, limit: u32) -> Option<Retrying> {
        if let Some(Held { why, since, next }) = &self.all_held {
            let all = self.batch.iter().chain(&self.waiting);
            let waiting = Waiting::new(all.map(|queued| &queued.record), why, *since, Some(*next));
            return Waiting::total(waiting, limit);
        }
        let mut records: BTreeMap<&str, Vec<&HeldRecord>> = BTreeMap::new();
        if self.held.is_empty() {
            return None;
        }
        for queued in self.batch.iter().chain(&self.waiting) {
            let held = queued
                .record
                .with(|record| self.held.get_key_value(record.topic));
            if let Some((topic, _)) = held {
                records.entry(&**topic).or_default().push(&queued.record);
            }
        }
        let waiting = records.into_iter().filter_map(|(topic, records)| {
            let Held { why, since, next } = &self.held[topic];
            Waiting::new(records, why, *since, Some(*next))
        });
        Waiting::total(waiting, limit)
    }

    /// Returns the records of the batch.
    pub fn batch(&self) -> &[QueuedRecord] {
        &self.batch
    }

    /// Takes the records of the batch out.
    pub fn take_batch(&mut self) -> Vec<QueuedRecord> {
        std::mem::take(&mut self.batch)
    }

    /// Puts records back that were taken out. They are sent in the order of their numbers.
    pub fn put_back(&mut self, records: Vec<QueuedRecord>) {
        let (last, first) = (records.last(), self.waiting.front());
        let is_between = last
            .zip(first)
            .is_some_and(|(last, first)| last.seq > first.seq);
        for queued in records.into_iter().rev() {
            self.waits_anew |= !queued.is_aside && is_held(&self.held, &queued);
            self.waiting.push_front(queued);
        }
        if is_between {
            let waiting = self.waiting.make_contiguous();
            waiting.sort_by_key(|queued| queued.seq);
        }
    }

    /// Returns the records that are in no batch.
    pub fn waiting(&self) -> &VecDeque<QueuedRecord> {
        &self.waiting
    }

    /// Returns a record that is in no batch.
    pub fn waiting_mut(&mut self, seq: u64) -> Option<&mut QueuedRecord> {
        self.waiting.iter_mut().find(|queued| queued.seq == seq)
    }

    /// Takes a record out.
    pub fn take(&mut self, seq: u64) -> Option<QueuedRecord> {
        let is_it = |queued: &QueuedRecord| queued.seq == seq;
        if let Some(at) = self.batch.iter().position(is_it) {
            return Some(self.batch.remove(at));
        }
        let at = self.waiting.iter().position(is_it)?;
        self.waiting.remove(at)
    }

    /// Returns true if a record is refused for good, and not withdrawn.
    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    fn is_blocked(&self, queued: &QueuedRecord) -> bool {
        !self.blocked.is_empty()
            && key_of(queued).is_some_and(|key| self.blocked.contains_key(&key))
    }
}

impl Queue for BatchQueue {
    // A batch has no lanes.
    fn push(&mut self, record: &Record<'_>, _: &str, seq: u64, weight: u64) {
        self.waiting
            .push_back(QueuedRecord::new(record, seq, weight));
    }

    // A record stays in the queue if an earlier one of its key is refused.
    fn refuse(&mut self, seq: u64) -> Option<&QueuedRecord> {
        let mut all = self.batch.iter().chain(&self.waiting);
        let queued = all.find(|queued| queued.seq == seq)?;
        if self.is_blocked(queued) {
            return None;
        }
        let queued = self.take(seq)?;
        if let Some(key) = key_of(&queued) {
            self.blocked.insert(key, seq);
        }
        Some(self.refused.entry(seq).insert_entry(queued).into_mut())
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<QueuedRecord> {
        let Some(refused) = self.refused.remove(&seq) else {
            return Vec::new();
        };
        let key = key_of(&refused);
        let mut withdrawn = vec![refused];
        if let Some(key) = key {
            self.blocked.remove(&key);
            if behind {
                let is_behind = |queued: &QueuedRecord| key_of(queued).as_ref() == Some(&key);
                let (behind, others): (VecDeque<_>, _) =
                    self.waiting.drain(..).partition(is_behind);
                self.waiting = others;
                withdrawn.extend(behind);
            }
        }
        withdrawn
    }

    fn set_aside(&mut self, window: &Window) {
        self.waits_anew = false;
        // Records of the batch are sent.
        for queued in &mut self.waiting {
            if is_held(&self.held, queued) && !queued.set_aside(window) {
                return;
            }
        }
    }

    fn waits_anew(&self) -> bool {
        self.waits_anew
    }

    fn take_all(&mut self) -> Vec<QueuedRecord> {
        let mut all = self.take_batch();
        all.extend(self.waiting.drain(..));
        all
    }
}

fn is_held(held: &BTreeMap<Box<str>, Held>, queued: &QueuedRecord) -> bool {
    let topics = |record: &Record<'_>| held.contains_key(record.topic);
    !held.is_empty() && queued.record.with(topics)
}

fn key_of(queued: &QueuedRecord) -> Option<Box<[u8]>> {
    let joined = |record: &Record<'_>| Some(queue_key(record.topic, record.key?));
    queued.record.with(joined)
}

// Not derived: shows no row values.
impl fmt::Debug for BatchQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchQueue")
            .field("batch", &self.batch.len())
            .field("waiting", &self.waiting.len())
            .field("refused", &self.refused.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(records: &[(u64, &str, Option<&str>)]) -> BatchQueue {
        let mut queue = BatchQueue::default();
        for (seq, topic, key) in records {
            push(&mut queue, *seq, topic, *key);
        }
        queue
    }

    fn push(queue: &mut BatchQueue, seq: u64, topic: &str, key: Option<&str>) {
        let record = Record {
            topic,
            key: key.map(str::as_bytes),
            ..Record::default()
        };
        queue.push(&record, topic, seq, 1);
    }

    fn next(queue: &mut BatchQueue, held: &str) -> Vec<u64> {
        seqs(queue.next_batch(3, 100, |record| record.topic == held))
    }

    fn seqs(records: &[QueuedRecord]) -> Vec<u64> {
        records.iter().map(|queued| queued.seq).collect()
    }

    #[test]
    fn a_refused_record_holds_back_the_later_ones_of_its_topic_and_key() {
        let mut queue = queue(&[
            (0, "t", Some("a")),
            (1, "t", Some("a")),
            (2, "t", Some("b")),
            (3, "u", Some("a")),
            (4, "t", None),
        ]);
        assert_eq!(next(&mut queue, ""), [0, 1, 2]);
        assert_eq!(queue.refuse(0).map(|queued| queued.seq), Some(0));
        assert!(queue.refuse(1).is_none(), "its turn comes later");
        assert_eq!(next(&mut queue, ""), [2, 3, 4]);
        assert_eq!(seqs(&queue.withdraw(0, false)), [0]);
        assert!(queue.withdraw(0, false).is_empty());
        assert_eq!(next(&mut queue, ""), [1, 2, 3]);
        assert_eq!(seqs(&queue.take_all()), [1, 2, 3, 4]);
    }

    #[test]
    fn the_records_behind_a_refused_one_are_withdrawn_in_order() {
        let mut queue = queue(&[
            (0, "t", Some("a")),
            (1, "t", Some("a")),
            (2, "t", Some("b")),
        ]);
        queue.next_batch(1, 100, |_| false);
        queue.refuse(0);
        assert_eq!(next(&mut queue, ""), [2]);
        push(&mut queue, 3, "t", Some("a"));
        assert_eq!(seqs(&queue.withdraw(0, true)), [0, 1, 3]);
        assert!(!queue.has_refused());
        // A dead letter has the number of its event.
        push(&mut queue, 0, "dead", Some("a"));
        assert_eq!(next(&mut queue, ""), [0, 2]);
    }

    #[test]
    fn a_batch_is_bounded_and_leaves_out_what_is_held() {
        let mut queue = queue(&[(0, "t", None), (1, "held", None), (2, "t", None)]);
        assert_eq!(next(&mut queue, "held"), [0, 2]);
        assert_eq!(next(&mut queue, ""), [0, 1, 2], "in order");
        assert_eq!(seqs(queue.next_batch(3, 2, |_| false)), [0, 1]);
        let mut batch = queue.take_batch();
        assert_eq!(batch.remove(0).seq, 0);
        queue.put_back(batch);
        assert_eq!(next(&mut queue, ""), [1, 2]);
    }
}
