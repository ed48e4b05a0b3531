//! Accepted records that a [`PartitionGate`](crate::in_flight::partition_gate::PartitionGate) holds
//! back, by topic and [`HoldQueue`], first in, first out. They count as in flight, so the window
//! bounds them.

use std::collections::{BTreeMap, VecDeque};

use walrelay_sink::{HeldRecord, Record, Window};

use crate::in_flight::partition_gate::HoldQueue;

/// The hold queues of all topics of one sink.
#[derive(Default)]
pub(crate) struct HoldQueues {
    /// The queues by the topic's number in the sink. No queue in the map is empty.
    of: BTreeMap<(usize, HoldQueue), VecDeque<Queued>>,
}

/// A record that is queued.
pub(crate) struct Queued {
    pub(crate) seq: u64,
    /// Bytes of the window that the record has taken.
    pub(crate) weight: u64,
    /// The timestamp for librdkafka.
    pub(crate) timestamp_ms: i64,
    /// The record has given its room back, see [`Window::set_aside`].
    pub(crate) is_aside: bool,
    pub(crate) record: HeldRecord,
}

impl Queued {
    /// Gives the room of the record back while it waits. Returns false if it may not.
    pub(crate) fn set_aside(&mut self, window: &Window) -> bool {
        self.is_aside = self.is_aside || window.set_aside(self.weight);
        self.is_aside
    }

    /// Takes room again if the record has given it back.
    pub(crate) fn take_room(&mut self, window: &Window) {
        if std::mem::take(&mut self.is_aside) {
            window.take_aside(self.weight);
        }
    }

    /// Calls `call` with the record. In the queue of a partition the record names that partition: a
    /// record without a key was assigned it, and the partitioner might choose another one.
    pub(crate) fn with<T>(&self, queue: HoldQueue, call: impl FnOnce(&Record<'_>) -> T) -> T {
        self.record.with(|record| {
            call(&Record {
                partition: match queue {
                    HoldQueue::Topic => record.partition,
                    HoldQueue::Partition(partition) => Some(partition),
                },
                ..*record
            })
        })
    }
}

impl HoldQueues {
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Returns the sequence numbers of all held records.
    #[cfg(test)]
    pub(crate) fn seqs(&self) -> Vec<u64> {
        let all = self.of.values().flatten();
        all.map(|queued| queued.seq).collect()
    }

    pub(crate) fn push(&mut self, topic: usize, queue: HoldQueue, queued: Queued) {
        self.of.entry((topic, queue)).or_default().push_back(queued);
    }

    /// Returns the queues of a topic: first those of its partitions, then the topic's own, because
    /// records move from the topic's queue to those of partitions.
    pub(crate) fn topic_queues(&self, topic: usize) -> Vec<HoldQueue> {
        let all = (topic, HoldQueue::Topic)..=(topic, HoldQueue::Partition(i32::MAX));
        self.of
            .range(all)
            .rev()
            .map(|((_, queue), _)| *queue)
            .collect()
    }

    pub(crate) fn first(&self, topic: usize, queue: HoldQueue) -> Option<&Queued> {
        self.of.get(&(topic, queue))?.front()
    }

    /// Removes the first record of a queue.
    pub(crate) fn pop(&mut self, topic: usize, queue: HoldQueue) -> Option<Queued> {
        let queued = self.of.get_mut(&(topic, queue))?;
        let first = queued.pop_front();
        if queued.is_empty() {
            self.of.remove(&(topic, queue));
        }
        first
    }

    /// Removes all records of a topic. Returns them in an order in which each key's records are as they
    /// were accepted: the topic's own queue is behind those of its partitions.
    pub(crate) fn take_topic(&mut self, topic: usize) -> VecDeque<Queued> {
        let queues = self.topic_queues(topic).into_iter();
        queues
            .filter_map(|queue| self.of.remove(&(topic, queue)))
            .flatten()
            .collect()
    }

    /// Removes all records; returns them with their topics' numbers.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (usize, Queued)> + use<> {
        std::mem::take(&mut self.of)
            .into_iter()
            .flat_map(|((topic, _), queued)| queued.into_iter().map(move |one| (topic, one)))
    }
}

#[cfg(test)]
mod tests;
